//! Strict priority.

/// The classes that have frames, as a tree of bits: the class with the least index is
/// found by one step a level.
#[derive(Debug)]
pub(crate) struct Priority {
    /// Bit `i` of word `w` of a level says whether word `64 w + i` of the level below,
    /// or class `64 w + i`, has any.
    levels: Vec<Vec<u64>>,
}

impl Priority {
    pub(crate) fn new(classes: usize) -> Priority {
        let mut levels = Vec::new();
        let mut words = classes;
        loop {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words]);
            if words == 1 {
                return Priority { levels };
            }
        }
    }

    pub(crate) fn set(&mut self, class: usize, has_frames: bool) {
        let mut at = class;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            if has_frames {
                *word |= 1 << (at % 64);
            } else {
                *word &= !(1 << (at % 64));
                if *word != 0 {
                    return;
                }
            }
            at /= 64;
        }
    }

    pub(crate) fn next(&self) -> Option<usize> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = level[at];
            if word == 0 {
                return None;
            }
            at = at * 64 + word.trailing_zeros() as usize;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::Priority;

    #[test]
    fn finds_the_least_of_many() {
        // Miri interprets each step.
        let most = if cfg!(miri) { 4_097 } else { 65_536 };
        for classes in [1, 64, 65, 4_096, 4_097, most] {
            let mut all = Priority::new(classes);
            assert_eq!(all.next(), None);
            for class in (0..classes).rev() {
                all.set(class, true);
                assert_eq!(all.next(), Some(class), "of {classes}");
            }
            for class in 0..classes {
                assert_eq!(all.next(), Some(class), "of {classes}");
                all.set(class, false);
            }
            assert_eq!(all.next(), None);
        }
    }
}
