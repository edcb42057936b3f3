//! Shared memory of this process, accessed by copies and atomics.
#![allow(unsafe_code)] // Mapped memory.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A mapping to read and write. Places in it are byte offsets, compared with
/// its length on every access.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: it belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives atomics and copies only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of a file or socket from `offset` on, all pages at once.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Mapping> {
        Mapping::with(fd, offset, bytes, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// Maps `bytes` of a file; its pages come when they are first used.
    pub(crate) fn lazy(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        Mapping::with(fd, 0, bytes, MapFlags::SHARED)
    }

    fn with(fd: BorrowedFd<'_>, offset: u64, bytes: usize, flags: MapFlags) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping in a place of the kernel's choice.
        let start = unsafe {
            let anywhere = std::ptr::null_mut();
            mmap(anywhere, bytes, protection, flags, fd, offset)?
        };
        Ok(Mapping { start, bytes })
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.cast()
    }

    /// Copies bytes into it.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(
            at + bytes.len() <= self.bytes,
            "chunks lie inside the memory"
        );
        // SAFETY: inside of the mapping, as just compared. A copy to raw memory, to which no
        // reference is made: a process or the kernel that reads or writes there meanwhile finds or
        // leaves other bytes and nothing else.
        unsafe {
            let to = self.start.cast::<u8>().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Copies `len` bytes from a place behind what is in `to`.
    pub(crate) fn read(&self, at: usize, len: usize, to: &mut Vec<u8>) {
        assert!(at + len <= self.bytes, "chunks lie inside the memory");
        to.reserve(len);
        // SAFETY: inside of the mapping, as just compared, and there is room for as many bytes
        // behind those of the vector, which are written before it gets their addresses. A copy from
        // raw memory, to which no reference is made: a process that writes there meanwhile changes
        // bytes of the copy and nothing else.
        unsafe {
            let end = to.as_mut_ptr().add(to.len());
            std::ptr::copy_nonoverlapping(self.start().add(at), end, len);
            to.set_len(to.len() + len);
        }
    }

    /// Copies the bytes from a place on.
    pub(crate) fn read_to(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.bytes, "bytes lie inside the memory");
        // SAFETY: inside of the mapping, as just compared. A copy from raw memory, to which no
        // reference is made: a process that writes there meanwhile changes bytes of the copy and
        // nothing else.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start().add(at), to.as_mut_ptr(), to.len());
        }
    }

    /// Writes the 32-bit number at a place; releases what was written before.
    #[inline]
    pub(crate) fn write_u32(&self, at: usize, value: u32) {
        if write_allowed() {
            self.atomic_u32(at).store(value, Ordering::Release);
        }
    }

    /// Replaces the 32-bit number at an offset if it is `from`; returns whether it
    /// was.
    #[inline]
    pub(crate) fn compare_exchange_u32(&self, at: usize, from: u32, to: u32) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        write_allowed()
            && self
                .atomic_u32(at)
                .compare_exchange(from, to, success, failure)
                .is_ok()
    }

    /// Writes the 64-bit number at a place, in no order with others.
    #[inline]
    pub(crate) fn write_u64(&self, at: usize, value: u64) {
        if write_allowed() {
            self.atomic_u64(at).store(value, Ordering::Relaxed);
        }
    }

    /// The 32-bit number at a place.
    #[inline]
    pub(crate) fn atomic_u32(&self, at: usize) -> &AtomicU32 {
        assert!(
            at.is_multiple_of(4) && at + 4 <= self.bytes,
            "a word lies inside the memory"
        );
        // SAFETY: inside of the mapping and aligned, as just compared; only
        // accessed by atomics.
        unsafe { AtomicU32::from_ptr(self.start.cast::<u8>().add(at).cast()) }
    }

    /// The 64-bit number at a place.
    #[inline]
    pub(crate) fn atomic_u64(&self, at: usize) -> &AtomicU64 {
        assert!(
            at.is_multiple_of(8) && at + 8 <= self.bytes,
            "a word lies inside the memory"
        );
        // SAFETY: inside of the mapping and aligned, as just compared; only
        // accessed by atomics.
        unsafe { AtomicU64::from_ptr(self.start.cast::<u8>().add(at).cast()) }
    }
}

/// Tests have processes die between any two writes.
#[cfg(test)]
use crate::fault_injection::write_allowed;

#[cfg(not(test))]
#[inline(always)]
fn write_allowed() -> bool {
    true
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; nothing borrows it now.
        unsafe {
            let _ = munmap(self.start, self.bytes);
        }
    }
}
