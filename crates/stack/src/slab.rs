//! Values with generational handles, which become invalid with their values.

/// The index of a slot, and which of its values the handle is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Handle {
    pub(crate) index: u32,
    generation: u32,
}

impl Handle {
    /// The handle as a number.
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The handle of such a number.
    pub(crate) fn from_bits(bits: u64) -> Handle {
        Handle {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Values in slots with generational handles.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    changes: u64,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
            changes: 0,
        }
    }

    /// A number that changes when a value was added, removed or borrowed for a change;
    /// [`Slab::get_mut_untracked`] does not count.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, thing: T) -> Handle {
        self.changes += 1;
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(thing);
            let generation = slot.generation;
            return Handle { index, generation };
        }
        let index = u32::try_from(self.slots.len()).expect("tables are limited below 2^32");
        self.slots.push(Slot {
            generation: 0,
            value: Some(thing),
        });
        Handle {
            index,
            generation: 0,
        }
    }

    pub(crate) fn remove(&mut self, name: Handle) -> Option<T> {
        self.get(name)?;
        self.changes += 1;
        let slot = self.slots.get_mut(name.index as usize)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(name.index);
        slot.value.take()
    }

    pub(crate) fn get(&self, name: Handle) -> Option<&T> {
        let slot = self.slots.get(name.index as usize)?;
        slot.value
            .as_ref()
            .filter(|_| slot.generation == name.generation)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, name: Handle) -> Option<&mut T> {
        self.changes += 1;
        self.get_mut_untracked(name)
    }

    /// A value to be changed, for a caller that goes by [`Slab::changes`] and accounts for the
    /// change itself.
    #[inline]
    pub(crate) fn get_mut_untracked(&mut self, name: Handle) -> Option<&mut T> {
        let slot = self.slots.get_mut(name.index as usize)?;
        slot.value
            .as_mut()
            .filter(|_| slot.generation == name.generation)
    }

    /// All values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// All values, for changes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.changes += 1;
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }

    /// The handle of the value that is in this slot now.
    pub(crate) fn at(&self, index: u32) -> Option<Handle> {
        let slot = self.slots.get(index as usize)?;
        let generation = slot.generation;
        slot.value.is_some().then_some(Handle { index, generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_may_have_changed_is_seen() {
        let mut slab = Slab::new();
        let mut before = slab.changes();
        let mut changed = |slab: &Slab<char>| {
            let now = slab.changes();
            std::mem::replace(&mut before, now) != now
        };
        let a = slab.insert('a');
        assert!(changed(&slab));
        assert!(slab.get(a).is_some() && slab.at(0).is_some() && slab.iter().count() == 1);
        assert_eq!(slab.get_mut_untracked(a), Some(&mut 'a'));
        assert!(!changed(&slab));
        slab.get_mut(a);
        assert!(changed(&slab));
        assert_eq!(slab.iter_mut().count(), 1);
        assert!(changed(&slab));
        slab.remove(a);
        assert!(changed(&slab));
    }

    #[test]
    fn names_die_with_their_things() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!((slab.remove(a), slab.get(a), slab.len()), (None, None, 1));
        let c = slab.insert('c');
        assert_eq!((c.index, slab.get(a)), (a.index, None));
        assert_eq!(slab.get_mut(c), Some(&mut 'c'));
        assert_eq!(
            (slab.at(0), slab.at(1), slab.at(2)),
            (Some(c), Some(b), None)
        );
    }
}
