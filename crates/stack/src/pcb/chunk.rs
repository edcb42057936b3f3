//! The memory of our table, 2 MiB at a time.

use super::bucket::Bucket;
use std::alloc::{Layout, handle_alloc_error};
use std::io;
use std::sync::Arc;
use weir_ring::Zeroed;

/// Buckets of a segment.
pub(super) const BUCKETS: usize = 1 << 15;
/// Buckets whose pages are asked for together: 16 KiB.
pub(super) const STEP: usize = 256;
type Buckets = [Bucket; BUCKETS];

/// Hands a segment over that was made ahead, or none if there is none at this moment: who
/// asks should not wait. Asked by an insert, twice for some 49,000 connections at most, the
/// first time with 16,384.
pub type ChunkSource = Arc<dyn Fn() -> Option<TableChunk> + Send + Sync>;

/// Memory for 32,768 buckets of [`Weir`](super::Weir): 2 MiB, a large page of most
/// machines. Where a table is spread over small ones, half of a look-up beyond the caches
/// is spent on finding the page; but the kernel clears a large one in one piece, for which
/// no insert should wait. So that is done ahead, elsewhere: see [`ChunkSource`].
pub struct TableChunk {
    buckets: Zeroed<Buckets>,
    /// All pages are there.
    is_ready: bool,
}

impl TableChunk {
    /// All of the memory, ready to be written: one large page if the system has one (from
    /// Linux 6.7 on), else many small ones. Takes the kernel some 0.1 ms, or 0.5 ms.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn ready() -> io::Result<TableChunk> {
        let buckets = Zeroed::populated()?;
        let is_ready = true;
        Ok(TableChunk { buckets, is_ready })
    }

    /// Memory whose pages are there when they are first written: for tables that are small,
    /// and where nothing was made ahead.
    pub(super) fn lazy() -> TableChunk {
        let Ok(buckets) = Zeroed::lazy() else {
            handle_alloc_error(Layout::new::<Buckets>());
        };
        let is_ready = false;
        TableChunk { buckets, is_ready }
    }

    /// Has the pages of the next [`STEP`] buckets be there. A fault for each costs more (3 %
    /// of connections opened and closed), and all together are too long for one insert.
    pub(super) fn step(&mut self, from: usize) {
        if !self.is_ready {
            let bucket = size_of::<Bucket>();
            self.buckets.populate(from * bucket..(from + STEP) * bucket);
        }
    }

    #[inline]
    pub(super) fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    #[inline]
    pub(super) fn buckets_mut(&mut self) -> &mut Buckets {
        &mut self.buckets
    }
}
