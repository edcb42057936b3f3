//! Detection of `fork(2)` without a system call.
//!
//! A child made by `fork(2)` or `clone(2)` has copies of its parent's objects, but the
//! arena's shared pages still belong to the parent. Neither process number nor address
//! distinguishes the two: in its own PID namespace a child may have its parent's
//! number. A page marked `MADV_WIPEONFORK` does, since the kernel replaces it by zeros
//! in a child with memory of its own. A child of `vfork(2)` shares its parent's
//! memory, hence the page and the arena too.

#![expect(unsafe_code, reason = "owns a mapping and the pointer into it")]

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// A mark that exists only in the memory of the process that made it.
#[derive(Debug)]
pub(super) struct ForkGuard {
    mark: NonNull<AtomicU32>,
}

// SAFETY: the page belongs to the process, not to a thread, and is accessed only
// atomically.
unsafe impl Send for ForkGuard {}

impl ForkGuard {
    /// Bytes to map; the kernel rounds up to pages.
    const BYTES: usize = size_of::<AtomicU32>();

    /// Marks this process's memory. Requires Linux 4.14.
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

    /// Whether this is the memory in which the mark was made.
    pub(super) fn is_here(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, dropped once, and no pointer into it remains.
        let _ = unsafe { munmap(self.mark.as_ptr().cast(), Self::BYTES) };
    }
}
