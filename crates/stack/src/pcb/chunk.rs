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

/// Returns a chunk that was allocated ahead, or `None` if there is none at the moment: an insert
/// should not wait. An insert asks twice for about 49,000 connections, first with 16,384.
pub type ChunkSource = Arc<dyn Fn() -> Option<TableChunk> + Send + Sync>;

/// Memory for 32,768 buckets of [`Weir`](super::Weir): 2 MiB, a large page of most machines. In a
/// table of small pages, half of the time of a look-up beyond the caches is spent on the page
/// tables. The kernel clears a large page in one piece, for which no insert should wait: a
/// [`ChunkSource`] does that ahead, on another thread.
pub struct TableChunk {
    buckets: Zeroed<Buckets>,
    /// All pages are present.
    is_ready: bool,
}

impl TableChunk {
    /// Memory whose pages are all present: one large page if the system has one (from Linux 6.7
    /// on), else many small ones. Takes the kernel some 0.1 ms, or 0.5 ms.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn ready() -> io::Result<TableChunk> {
        let buckets = Zeroed::populated()?;
        let is_ready = true;
        Ok(TableChunk { buckets, is_ready })
    }

    /// Memory whose pages become present when they are first written: for small tables, and without
    /// a chunk allocated ahead.
    pub(super) fn lazy() -> TableChunk {
        let Ok(buckets) = Zeroed::lazy() else {
            handle_alloc_error(Layout::new::<Buckets>());
        };
        let is_ready = false;
        TableChunk { buckets, is_ready }
    }

    /// Makes the pages of the next [`STEP`] buckets present. A fault for each page costs more (3 %
    /// of connections opened and closed), and all pages together take too long for one insert.
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
