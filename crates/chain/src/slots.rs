//! Numbered places of things that end, such as sessions: a place is used again, and a handle says
//! whose it was.

/// The place of something that ends, and how often the place was used before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Handle {
    pub(crate) at: u32,
    generation: u32,
}

impl Handle {
    /// The handle as a number that is not 0: what a stage remembers with an entry.
    pub(crate) fn cookie(self) -> u64 {
        u64::from(self.generation) << 32 | (u64::from(self.at) + 1)
    }

    /// The handle of a cookie.
    pub(crate) fn of_cookie(cookie: u64) -> Handle {
        Handle {
            at: (cookie as u32).wrapping_sub(1),
            generation: (cookie >> 32) as u32,
        }
    }
}

/// Numbered places.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    pub(crate) fn insert(&mut self, value: T) -> Handle {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[at as usize];
        place.1 = Some(value);
        Handle {
            at,
            generation: place.0,
        }
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.1.as_mut()
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let place = self.places.get_mut(at as usize)?;
        let value = place.1.take()?;
        place.0 = place.0.wrapping_add(1);
        self.free.push(at);
        Some(value)
    }

    /// The value of a handle, unless it has ended.
    pub(crate) fn at(&self, handle: Handle) -> Option<&T> {
        let place = self.places.get(handle.at as usize)?;
        place.1.as_ref().filter(|_| place.0 == handle.generation)
    }

    pub(crate) fn at_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let place = self.places.get_mut(handle.at as usize)?;
        place.1.as_mut().filter(|_| place.0 == handle.generation)
    }

    pub(crate) fn handle(&self, at: u32) -> Handle {
        let generation = self.places.get(at as usize).map_or(0, |place| place.0);
        Handle { at, generation }
    }

    /// Number of places in use.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// All places, in use or not.
    pub(crate) fn places(&self) -> std::ops::Range<u32> {
        0..self.places.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_ends_with_what_it_named() {
        let mut slots = Slots::default();
        let (a, b) = (slots.insert('a'), slots.insert('b'));
        assert_eq!((slots.at(a), slots.get(b.at)), (Some(&'a'), Some(&'b')));
        assert_eq!(slots.remove(a.at), Some('a'));
        assert_eq!((slots.remove(a.at), slots.len()), (None, 1));
        let c = slots.insert('c');
        assert_eq!((c.at, slots.places()), (a.at, 0..2));
        assert_eq!((slots.at(a), slots.at(c)), (None, Some(&'c')));
        for handle in [a, b, c] {
            assert_ne!(handle.cookie(), 0);
            assert_eq!(Handle::of_cookie(handle.cookie()), handle);
        }
    }
}
