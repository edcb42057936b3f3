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

    /// Words for shapes numbered up to `shape`, with room for some more once
    /// there are many: all sets move when there are more words.
    pub(super) fn words_for(shape: u32) -> usize {
        match place(shape).0 + 1 {
            words @ 0..=16 => words,
            words => words.next_multiple_of(4),
        }
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
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

    /// Whether it has `count` in common with `other`, at least.
    #[inline]
    pub(super) fn shares(&self, other: &Shapes, count: usize) -> bool {
        let mut left = count;
        for (word, other) in self.words.iter().zip(&other.words) {
            let mut both = word & other;
            while both != 0 {
                left -= 1;
                if left == 0 {
                    return true;
                }
                both &= both - 1;
            }
        }
        false
    }

    pub(super) fn add(&mut self, words: &[u64]) {
        for (word, more) in self.words.iter_mut().zip(words) {
            *word |= more;
        }
    }

    pub(super) fn subtract(&mut self, gone: &Shapes) {
        for (word, gone) in self.words.iter_mut().zip(&gone.words) {
            *word &= !gone;
        }
    }

    /// Keeps what is in `kept` or not in `judged`.
    #[inline]
    pub(super) fn keep(&mut self, kept: &[u64], judged: &Shapes) {
        let others = kept.iter().zip(&judged.words);
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

/// Many small sets of shapes, by number.
#[derive(Clone, Default)]
pub(super) struct SetTable {
    /// Words of one set.
    stride: usize,
    words: Vec<u64>,
    /// How many shapes each set has.
    counts: Vec<u32>,
    free: Vec<u32>,
}

impl SetTable {
    pub(super) fn with_words(stride: usize) -> SetTable {
        SetTable {
            stride,
            ..SetTable::default()
        }
    }

    /// Makes each set longer; never shorter.
    pub(super) fn grow(&mut self, stride: usize) {
        if stride <= self.stride {
            return;
        }
        let mut words = vec![0; self.counts.len() * stride];
        for number in 0..self.counts.len() {
            let start = number * stride;
            words[start..start + self.stride].copy_from_slice(self.get(number as u32));
        }
        (self.words, self.stride) = (words, stride);
    }

    /// A new, empty set.
    pub(super) fn make(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.words.resize(self.words.len() + self.stride, 0);
            self.counts.push(0);
            self.counts.len() as u32 - 1
        })
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> &[u64] {
        let start = number as usize * self.stride;
        &self.words[start..start + self.stride]
    }

    #[inline]
    pub(super) fn count(&self, number: u32) -> u32 {
        self.counts[number as usize]
    }

    /// Adds a shape that is not in the set.
    pub(super) fn insert(&mut self, number: u32, shape: u32) {
        let (at, bit) = place(shape);
        self.words[number as usize * self.stride + at] |= bit;
        self.counts[number as usize] += 1;
    }

    /// Removes a shape that is in the set; an empty set is freed, and `true`
    /// returned.
    pub(super) fn remove(&mut self, number: u32, shape: u32) -> bool {
        let (at, bit) = place(shape);
        self.words[number as usize * self.stride + at] &= !bit;
        self.counts[number as usize] -= 1;
        let is_empty = self.count(number) == 0;
        if is_empty {
            self.free.push(number);
        }
        is_empty
    }
}
