//! Runs of equal-typed values in one vector, freed and reused by size class.

/// Number of size classes: 1, 2, 4 … 64 values.
const SIZES: usize = 7;

/// An arena of runs of 1 to 64 values. A run occupies the next power of two of
/// values, so that a freed run fits later requests of its class.
#[derive(Debug)]
pub(in crate::router::engine) struct SizeClassArena<T> {
    values: Vec<T>,
    free: [Vec<u32>; SIZES],
}

impl<T: Copy + Default> SizeClassArena<T> {
    pub(in crate::router::engine) fn new() -> SizeClassArena<T> {
        SizeClassArena {
            values: Vec::new(),
            free: std::array::from_fn(|_| Vec::new()),
        }
    }

    /// Allocates a run of `len` values with unspecified content; returns its
    /// start index.
    pub(in crate::router::engine) fn take(&mut self, len: usize) -> u32 {
        if len == 0 {
            return 0;
        }
        let size = class(len);
        if let Some(start) = self.free[size].pop() {
            return start;
        }
        let start = self.values.len();
        self.values.resize(start + (1 << size), T::default());
        u32::try_from(start).expect("fewer than 2^31 places: routes are limited")
    }

    /// Frees a run.
    pub(in crate::router::engine) fn give(&mut self, start: u32, len: usize) {
        if len > 0 {
            self.free[class(len)].push(start);
        }
    }

    pub(in crate::router::engine) fn get(&self, at: u32) -> &T {
        &self.values[at as usize]
    }

    pub(in crate::router::engine) fn set(&mut self, at: u32, value: T) {
        self.values[at as usize] = value;
    }

    /// Bytes of all values, free runs included.
    pub(in crate::router::engine) fn bytes(&self) -> usize {
        self.values.len() * size_of::<T>()
    }
}

fn class(len: usize) -> usize {
    assert!((1..=64).contains(&len), "a run of {len}");
    len.next_power_of_two().trailing_zeros() as usize
}
