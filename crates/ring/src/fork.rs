//! Distinguishes a process from one that was forked from it.
#![allow(unsafe_code)] // Mapped memory.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the mapping: the kernel rounds up to a page.
const BYTES: usize = 4;

/// A word that the kernel sets to zero in a forked process
/// (`MADV_WIPEONFORK`): a look at it takes no system call.
#[derive(Debug)]
pub(crate) struct Fork(*mut c_void);

// SAFETY: the mapping belongs to no thread, and its word is only accessed by
// atomics.
unsafe impl Send for Fork {}
// SAFETY: as above.
unsafe impl Sync for Fork {}

impl Fork {
    /// This process is the parent.
    ///
    /// # Errors
    /// If memory is missing.
    pub(crate) fn new() -> io::Result<Fork> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping in a place of the kernel's choice.
        let start = unsafe { mmap_anonymous(null_mut(), BYTES, access, MapFlags::PRIVATE)? };
        let fork = Fork(start);
        // SAFETY: the whole of our mapping, and no byte of it changes here.
        unsafe { madvise(start, BYTES, Advice::LinuxWipeOnFork)? };
        fork.word().store(1, Ordering::Relaxed);
        Ok(fork)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped as long as we are, and aligned; in a forked process
        // it is mapped at the same place.
        unsafe { AtomicU32::from_ptr(self.0.cast()) }
    }

    /// Whether this process was forked after [`Fork::new`].
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; nothing borrows it now.
        unsafe {
            let _ = munmap(self.0, BYTES);
        }
    }
}
