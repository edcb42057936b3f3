//! Arrays that grow without moving their items, so that no insert waits for a
//! large copy.

use std::ops::{Index, IndexMut};

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

/// An array in chunks of 1,024 items; growth moves only the last chunk.
#[derive(Clone, Debug)]
pub(crate) struct Chunks<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Chunks {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Chunks<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, item: T) -> usize {
        if self.len.is_multiple_of(CHUNK) {
            self.chunks.push(Vec::new());
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(item);
        }
        self.len += 1;
        self.len - 1
    }

    /// Removes and returns the last item; `None` if the array is empty.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.chunks.last_mut()?.pop()?;
        self.len -= 1;
        if self.len.is_multiple_of(CHUNK) {
            self.chunks.pop();
        }
        Some(item)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.chunks
            .get(index >> CHUNK_BITS)?
            .get(index & (CHUNK - 1))
    }
}

impl<T> Index<usize> for Chunks<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        &self.chunks[index >> CHUNK_BITS][index & (CHUNK - 1)]
    }
}

impl<T> IndexMut<usize> for Chunks<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.chunks[index >> CHUNK_BITS][index & (CHUNK - 1)]
    }
}

/// Items under small numbers; a freed number is reused.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    items: Chunks<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab {
            items: Chunks::default(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.items[index as usize] = Some(item);
            return index;
        }
        self.items.push(Some(item)) as u32
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        if index as usize >= self.items.len() {
            return None;
        }
        let item = self.items[index as usize].take()?;
        self.free.push(index);
        Some(item)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.items.get(index as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        if index as usize >= self.items.len() {
            return None;
        }
        self.items[index as usize].as_mut()
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Whether [`drop_last`](Slab::drop_last) has freed all memory.
    pub(crate) fn is_bare(&self) -> bool {
        self.items.len() == 0
    }

    /// Drops the item of the greatest number, if it is present, and frees its
    /// memory; returns `false` if there is no memory to free. Afterwards the
    /// slab takes no new items.
    pub(crate) fn drop_last(&mut self) -> bool {
        self.items.pop().is_some()
    }
}

/// As [`Slab`], in one array, which a reader reaches in one step. Growth beyond
/// the capacity moves all items.
#[derive(Debug)]
pub(crate) struct Flat<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Flat<T> {
    /// An empty array with memory for `capacity` items. Pages of memory that
    /// are never used cost nothing.
    pub(crate) fn with_capacity(capacity: usize) -> Flat<T> {
        Flat {
            items: Vec::with_capacity(capacity),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.items[index as usize] = item;
            return index;
        }
        self.items.push(item);
        self.items.len() as u32 - 1
    }

    /// Frees a number and returns the item, which `instead` replaces until the
    /// number is reused.
    pub(crate) fn remove(&mut self, index: u32, instead: T) -> Option<T> {
        let item = self.items.get_mut(index as usize)?;
        self.free.push(index);
        Some(std::mem::replace(item, instead))
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.items.get_mut(index as usize)
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Whether [`drop_last`](Flat::drop_last) has dropped all items.
    pub(crate) fn is_bare(&self) -> bool {
        self.items.is_empty()
    }

    /// Drops the item of the greatest number; returns `false` if there is none.
    /// Afterwards the array takes no new items.
    pub(crate) fn drop_last(&mut self) -> bool {
        self.items.pop().is_some()
    }
}

impl<T> Index<u32> for Flat<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.items[index as usize]
    }
}
