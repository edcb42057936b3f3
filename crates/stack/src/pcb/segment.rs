//! The memory of our table, 2 MiB at a time.

use super::bucket::Bucket;
use std::alloc::{Layout, handle_alloc_error};
use std::io;
use std::sync::Arc;
use weir_ring::Zeroed;

/// Buckets of a segment.
pub(super) const BUCKETS: usize = 1 << 15;
type Buckets = [Bucket; BUCKETS];

/// Hands a segment over that was made ahead, or none if there is none at this moment: who
/// asks should not wait. Asked by an insert, twice for some 49,000 connections at most, the
/// first time with 16,384.
pub type Supply = Arc<dyn Fn() -> Option<Segment> + Send + Sync>;

/// Memory for 32,768 buckets of [`Weir`](super::Weir): 2 MiB, a large page of most
/// machines. Where a table is spread over small ones, half of a look-up beyond the caches
/// is spent on finding the page; but the kernel clears a large one in one piece, for which
/// no insert should wait. So that is done ahead, elsewhere: see [`Supply`].
pub struct Segment(Zeroed<Buckets>);

impl Segment {
    /// All of the memory, ready to be written: one large page if the system has one (from
    /// Linux 6.7 on), else many small ones. Takes the kernel some 0.1 ms, or 0.5 ms.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn ready() -> io::Result<Segment> {
        Zeroed::at_once().map(Segment)
    }

    /// Memory whose pages are there when they are first written, each in a microsecond:
    /// for tables that are small, and where nothing was made ahead. 64 KiB are there at
    /// once: 1,024 connections should not pay for sixteen page faults.
    pub(super) fn bit_by_bit() -> Segment {
        match Zeroed::bit_by_bit() {
            Ok(memory) => Segment(memory),
            Err(_) => handle_alloc_error(Layout::new::<Buckets>()),
        }
    }

    #[inline]
    pub(super) fn buckets(&self) -> &Buckets {
        &self.0
    }

    #[inline]
    pub(super) fn buckets_mut(&mut self) -> &mut Buckets {
        &mut self.0
    }
}
