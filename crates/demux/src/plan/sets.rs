//! Sets of shapes.

const WORD_BITS: u32 = u64::BITS;

fn place(shape: u32) -> (usize, u64) {
    let word = (shape / WORD_BITS) as usize;
    (word, 1 << (shape % WORD_BITS))
}

/// A set of shapes: one bit each. Sets that work together have the same
/// number of words.
#[derive(Clone, Default, Debug)]
pub(crate) struct Shapes {
    words: Vec<u64>,
}

impl Shapes {
    pub(super) fn with_words(words: usize) -> Shapes {
        Shapes {
            words: vec![0; words],
        }
    }

    /// Words for shapes numbered up to `shape`.
    pub(super) fn words_for(shape: u32) -> usize {
        place(shape).0 + 1
    }

    pub(super) fn word_count(&self) -> usize {
        self.words.len()
    }

    /// Makes room; never takes any.
    pub(super) fn grow(&mut self, words: usize) {
        self.words.resize(words.max(self.words.len()), 0);
    }

    pub(super) fn insert(&mut self, shape: u32) {
        let (at, bit) = place(shape);
        if let Some(word) = self.words.get_mut(at) {
            *word |= bit;
        }
    }

    pub(super) fn remove(&mut self, shape: u32) {
        let (at, bit) = place(shape);
        if let Some(word) = self.words.get_mut(at) {
            *word &= !bit;
        }
    }

    pub(super) fn contains(&self, shape: u32) -> bool {
        let (at, bit) = place(shape);
        self.words.get(at).is_some_and(|word| word & bit != 0)
    }

    /// Empties it, with as many words as `other` has.
    pub(super) fn clear_as(&mut self, other: &Shapes) {
        self.words.clear();
        self.words.resize(other.words.len(), 0);
    }

    pub(super) fn copy_from(&mut self, other: &Shapes) {
        self.words.clone_from(&other.words);
    }

    /// Whether there are `count` at least.
    pub(super) fn has(&self, count: usize) -> bool {
        let mut left = count;
        for &word in &self.words {
            let mut word = word;
            while word != 0 {
                left -= 1;
                if left == 0 {
                    return true;
                }
                word &= word - 1;
            }
        }
        false
    }

    pub(super) fn add(&mut self, few: &Few) {
        let mut add = |(at, bits): (u32, u64)| {
            if let Some(word) = self.words.get_mut(at as usize) {
                *word |= bits;
            }
        };
        add(few.first);
        for &part in &few.rest {
            add(part);
        }
    }

    pub(super) fn subtract(&mut self, gone: &Shapes) {
        for (word, gone) in self.words.iter_mut().zip(&gone.words) {
            *word &= !gone;
        }
    }

    /// Keeps what is in `kept` or not in `judged`.
    pub(super) fn keep(&mut self, kept: &Shapes, judged: &Shapes) {
        let others = kept.words.iter().zip(&judged.words);
        for (word, (kept, judged)) in self.words.iter_mut().zip(others) {
            *word &= kept | !judged;
        }
    }

    /// Calls `each` with every shape in the set.
    #[inline]
    pub(super) fn for_each(&self, mut each: impl FnMut(u32)) {
        for (at, word) in self.words.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                each(at as u32 * WORD_BITS + word.trailing_zeros());
                word &= word - 1;
            }
        }
    }
}

/// A set that mostly has few shapes: its words that are not zero, with their
/// places.
#[derive(Clone, Default, Debug)]
pub(super) struct Few {
    first: (u32, u64),
    rest: Vec<(u32, u64)>,
    count: u32,
}

impl Few {
    /// Adds a shape that is not in it.
    pub(super) fn insert(&mut self, shape: u32) {
        let (at, bit) = place(shape);
        let at = at as u32;
        self.count += 1;
        if self.first.1 == 0 || self.first.0 == at {
            self.first = (at, self.first.1 | bit);
        } else if let Some(part) = self.rest.iter_mut().find(|part| part.0 == at) {
            part.1 |= bit;
        } else {
            self.rest.push((at, bit));
        }
    }

    /// Removes a shape that is in it.
    pub(super) fn remove(&mut self, shape: u32) {
        let (at, bit) = place(shape);
        let at = at as u32;
        self.count -= 1;
        if self.first.0 == at {
            self.first.1 &= !bit;
        }
        for part in self.rest.iter_mut().filter(|part| part.0 == at) {
            part.1 &= !bit;
        }
        self.rest.retain(|part| part.1 != 0);
        if self.first.1 == 0 {
            self.first = self.rest.pop().unwrap_or_default();
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.count
    }
}
