//! The children of an inner node: a hash table from values to nodes.
//!
//! ```text
//!  0                 7        8                15
//! ┌────────┬─────────┬────────┬────────────────┬────┐
//! │ hash 0 …  hash 6 │ passed │ node 0 … node 6│  0 │   64 bytes
//! └────────┴─────────┴────────┴────────────────┴────┘
//! ```
//!
//! A bucket is a cache line. A look-up compares all hashes of one bucket at
//! once, without a branch for each, and selects the node in the same way. A
//! child whose bucket is full goes to the next one that is not, and `passed`
//! counts such children, so that a look-up knows whether to go on. Hashes are
//! bijective: equal hashes mean equal values.
//!
//! Growing is spread over later changes: while the old array is emptied,
//! look-ups try both.

use super::NodeRef;

/// Number of children that a bucket holds.
const CELLS: usize = 7;
/// The place of the count of children that found a bucket full.
const PASSED: usize = 7;
/// The largest mean number of children in a bucket, if there are several.
const LOAD_MAX: usize = 4;
/// Number of buckets moved with each change while the array grows.
const MIGRATE_PER_CHANGE: usize = 8;
/// The word for no node.
const NOTHING: u32 = 0;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket {
    hashes: [u32; CELLS + 1],
    /// The complement of each node's name; `NOTHING` if the cell is free.
    nodes: [u32; CELLS + 1],
}

struct Buckets {
    all: Box<[Bucket]>,
    /// Number of bits of a hash that do not select a bucket.
    shift: u32,
    /// Number of children.
    len: u32,
}

struct Old {
    buckets: Buckets,
    /// Buckets before this one have moved.
    moved: usize,
}

/// A hash table of nodes.
pub(super) struct Children {
    now: Buckets,
    old: Option<Box<Old>>,
}

impl Bucket {
    const EMPTY: Bucket = Bucket {
        hashes: [0; CELLS + 1],
        nodes: [NOTHING; CELLS + 1],
    };

    /// The node with a hash, as a word.
    #[inline]
    fn word(&self, hash: u32) -> u32 {
        // No branch for each cell, so that the compiler compares several at
        // once. At most one cell in use has the hash.
        let select = |(other, node): (&u32, &u32)| if *other == hash { *node } else { NOTHING };
        let cells = self.hashes.iter().zip(&self.nodes);
        cells.map(select).fold(NOTHING, |word, node| word | node)
    }
}

impl Buckets {
    fn new(count: usize) -> Buckets {
        Buckets {
            all: vec![Bucket::EMPTY; count].into(),
            shift: u32::BITS - count.trailing_zeros(),
            len: 0,
        }
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        (u64::from(hash) >> self.shift) as usize
    }

    /// The word with a hash; `NOTHING` if there is none.
    fn word(&self, hash: u32) -> u32 {
        let (home, count) = (self.home(hash), self.all.len());
        for distance in 0..count {
            let bucket = &self.all[(home + distance) & (count - 1)];
            let word = bucket.word(hash);
            if word != NOTHING || bucket.hashes[PASSED] == 0 {
                return word;
            }
        }
        NOTHING
    }

    /// The bucket and cell of a hash; `None` if it is not there.
    fn find(&self, hash: u32) -> Option<(usize, usize)> {
        let (home, count) = (self.home(hash), self.all.len());
        for distance in 0..count {
            let at = (home + distance) & (count - 1);
            let Bucket { hashes, nodes } = &self.all[at];
            let mut cells = 0..CELLS;
            if let Some(cell) = cells.find(|cell| hashes[*cell] == hash && nodes[*cell] != NOTHING)
            {
                return Some((at, cell));
            }
            if hashes[PASSED] == 0 {
                return None;
            }
        }
        None
    }

    /// Adds a word; there is a free cell.
    fn put(&mut self, hash: u32, word: u32) {
        self.len += 1;
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.all[at];
            let free = bucket.nodes[..CELLS]
                .iter()
                .position(|node| *node == NOTHING);
            if let Some(cell) = free {
                (bucket.hashes[cell], bucket.nodes[cell]) = (hash, word);
                return;
            }
            bucket.hashes[PASSED] += 1;
            at = (at + 1) & (self.all.len() - 1);
        }
    }

    /// Removes a hash; returns whether it was there.
    fn remove(&mut self, hash: u32) -> bool {
        let Some((end, cell)) = self.find(hash) else {
            return false;
        };
        let mut at = self.home(hash);
        while at != end {
            self.all[at].hashes[PASSED] -= 1;
            at = (at + 1) & (self.all.len() - 1);
        }
        self.all[end].nodes[cell] = NOTHING;
        self.len -= 1;
        true
    }
}

impl Children {
    /// No children; takes no memory.
    pub(super) fn new() -> Children {
        Children {
            now: Buckets {
                all: Box::default(),
                shift: u32::BITS,
                len: 0,
            },
            old: None,
        }
    }

    fn len(&self) -> u32 {
        self.now.len + self.old.as_ref().map_or(0, |old| old.buckets.len)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The child with a hash; [`NodeRef::NONE`] if there is none.
    #[inline]
    pub(super) fn get(&self, hash: u32) -> NodeRef {
        let Some(bucket) = self.now.all.get(self.now.home(hash)) else {
            return NodeRef::NONE;
        };
        let word = bucket.word(hash);
        if word == NOTHING && (bucket.hashes[PASSED] != 0 || self.old.is_some()) {
            return self.get_elsewhere(hash);
        }
        NodeRef::from_word(word)
    }

    #[cold]
    fn get_elsewhere(&self, hash: u32) -> NodeRef {
        let word = self.now.word(hash);
        match &self.old {
            Some(old) if word == NOTHING => NodeRef::from_word(old.buckets.word(hash)),
            _ => NodeRef::from_word(word),
        }
    }

    /// Makes `node` the child with a hash.
    pub(super) fn set(&mut self, hash: u32, node: NodeRef) {
        let old = self.old.as_mut().map(|old| &mut old.buckets);
        for buckets in [Some(&mut self.now), old].into_iter().flatten() {
            if let Some((at, cell)) = buckets.find(hash) {
                buckets.all[at].nodes[cell] = node.to_word();
                return;
            }
        }
        self.migrate(MIGRATE_PER_CHANGE);
        let buckets = self.now.all.len();
        let room = if buckets == 1 {
            CELLS
        } else {
            buckets * LOAD_MAX
        };
        if self.len() as usize >= room {
            self.grow();
        }
        self.now.put(hash, node.to_word());
    }

    /// Removes the child with a hash, if there is one.
    pub(super) fn remove(&mut self, hash: u32) {
        if !self.now.remove(hash)
            && let Some(old) = &mut self.old
        {
            old.buckets.remove(hash);
        }
        self.migrate(MIGRATE_PER_CHANGE);
    }

    fn grow(&mut self) {
        self.migrate(usize::MAX);
        // Half full: the old array is empty long before this one is full.
        let count = (self.len() as usize)
            .div_ceil(LOAD_MAX / 2)
            .next_power_of_two();
        let buckets = std::mem::replace(&mut self.now, Buckets::new(count));
        self.old = Some(Box::new(Old { buckets, moved: 0 }));
        self.migrate(MIGRATE_PER_CHANGE);
    }

    /// Moves up to `count` buckets of the old array; returns whether none
    /// remain.
    pub(super) fn migrate(&mut self, count: usize) -> bool {
        let Some(old) = &mut self.old else {
            return true;
        };
        let Buckets { all, len, .. } = &mut old.buckets;
        let end = all.len().min(old.moved.saturating_add(count));
        for Bucket { hashes, nodes } in &mut all[old.moved..end] {
            for (hash, node) in hashes.iter().zip(nodes) {
                if *node != NOTHING {
                    self.now.put(*hash, std::mem::take(node));
                    *len -= 1;
                }
            }
        }
        old.moved = end;
        let is_whole = end == all.len();
        if is_whole {
            self.old = None;
        }
        is_whole
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::Kind;
    use super::*;
    use std::collections::BTreeMap;

    /// Many changes equal those of a map; few hashes, many of them in one
    /// bucket, so that buckets overflow.
    #[test]
    fn children_are_those_of_a_map() {
        let mut random = 0x2545_f491_u64;
        let mut next = move || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as u32
        };
        for spread in [3, 8, 20, 28] {
            let mut children = Children::new();
            let mut model = BTreeMap::new();
            for step in 0..4_000 {
                let hash = (next() >> spread << spread).wrapping_add(next() % 13);
                let node = NodeRef::new(Kind::Split, next() >> 3);
                // Growing and shrinking in turn.
                if next() % 8 < 3 + step / 400 % 3 {
                    children.set(hash, node);
                    model.insert(hash, node);
                } else {
                    children.remove(hash);
                    model.remove(&hash);
                }
                let found = model.get(&hash).copied().unwrap_or(NodeRef::NONE);
                assert_eq!(children.get(hash), found, "spread {spread}, step {step}");
                assert_eq!(children.len() as usize, model.len());
            }
            for (hash, node) in &model {
                assert_eq!(children.get(*hash), *node);
            }
            for hash in (0..1_000).map(|n: u32| n.wrapping_mul(0x9e37_79b1)) {
                let found = model.get(&hash).copied().unwrap_or(NodeRef::NONE);
                assert_eq!(children.get(hash), found);
            }
        }
    }
}
