//! Whose memory this is: told from a child's without a system call.
//!
//! A child that `fork(2)` or `clone(2)` makes has copies of its parent's
//! objects, and the arena's shared pages are still the parent's. Neither
//! process number nor address tells the two apart: in a process namespace of
//! its own the child may have its parent's number. But the kernel hands a child
//! with memory of its own a page of zeros for one that was marked so
//! (`MADV_WIPEONFORK`). A child that shares its parent's memory, as `vfork(2)`
//! makes it, shares the page too, and then the arena is its own as well.

#![expect(unsafe_code, reason = "owns a mapping and the pointer into it")]

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// A mark that only the memory it was made in has.
#[derive(Debug)]
pub(super) struct ForkGuard {
    mark: NonNull<AtomicU32>,
}

// SAFETY: the page belongs to the process, not to a thread, and is only
// accessed atomically.
unsafe impl Send for ForkGuard {}

impl ForkGuard {
    /// Bytes to map; the kernel rounds up to its pages.
    const BYTES: usize = size_of::<AtomicU32>();

    /// A mark of this process's memory. Needs Linux 4.14.
    pub(super) fn new() -> Result<ForkGuard, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no mapping in use is
        // replaced.
        let page = unsafe { mmap_anonymous(null_mut(), Self::BYTES, access, MapFlags::PRIVATE)? };
        let owner = ForkGuard {
            mark: NonNull::new(page.cast()).expect("a mapping is not at zero"),
        };
        // SAFETY: the page was mapped above and holds nothing yet.
        unsafe { madvise(page, Self::BYTES, Advice::LinuxWipeOnFork)? };
        owner.word().store(1, Ordering::Relaxed);
        Ok(owner)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped, aligned and initialised (with zeros) for
        // as long as `self` lives.
        unsafe { self.mark.as_ref() }
    }

    /// Whether this is the memory that the mark was made in.
    pub(super) fn is_here(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, dropped once, and nothing points into it.
        let _ = unsafe { munmap(self.mark.as_ptr().cast(), Self::BYTES) };
    }
}
