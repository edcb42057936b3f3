//! The values of an array map, mapped into this process.
#![allow(unsafe_code)] // Mapped memory.

use super::map::{Map, MapError};
use super::map_spec::MapType;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The values of an array map, shared with the programs that use the map,
/// without system calls. Each value begins at a multiple of 8 bytes.
///
/// Both sides may write at any time, so all shared access is atomic.
#[derive(Debug)]
pub struct MapMemory {
    start: *mut libc::c_void,
    bytes: usize,
    stride: usize,
    entries: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to no thread, and all access is atomic.
unsafe impl Send for MapMemory {}
// SAFETY: as above.
unsafe impl Sync for MapMemory {}

impl Map {
    /// Maps the values of an array created with `mmapable`, for reading and
    /// optionally for writing.
    ///
    /// # Errors
    /// For other maps, for read-only descriptors, and for writing if the map is
    /// frozen.
    pub fn map_memory(&self, writable: bool) -> Result<MapMemory, MapError> {
        let failed = |source| MapError::System {
            what: "map a map into memory (it must be an array made for that)",
            source,
        };
        if self.map_type() != Some(MapType::Array) {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let stride = self.value_bytes().next_multiple_of(8);
        let entries = self.entries_max() as usize;
        let bytes = stride * entries;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let fd = self.as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice; the
        // kernel refuses more bytes than the map has, rounded up to pages.
        let start = unsafe {
            let anywhere = std::ptr::null_mut();
            libc::mmap(anywhere, bytes, protection, libc::MAP_SHARED, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(failed(io::Error::last_os_error()));
        }
        Ok(MapMemory {
            start,
            bytes,
            stride,
            entries,
            writable,
        })
    }
}

impl MapMemory {
    /// The 64-bit number at byte `offset` (a multiple of 8) of value `index`;
    /// `None` if out of range.
    pub fn load_u64(&self, index: usize, offset: usize) -> Option<u64> {
        let at = self.offset_checked(index, offset, 8)?;
        // SAFETY: inside of the mapping and aligned; all access is atomic.
        let cell = unsafe { AtomicU64::from_ptr(at.cast()) };
        Some(cell.load(Ordering::Acquire))
    }

    /// As [`load_u64`](Self::load_u64), for 32 bits; `offset` is a multiple of
    /// 4.
    pub fn load_u32(&self, index: usize, offset: usize) -> Option<u32> {
        let at = self.offset_checked(index, offset, 4)?;
        // SAFETY: inside of the mapping and aligned; all access is atomic.
        let cell = unsafe { AtomicU32::from_ptr(at.cast()) };
        Some(cell.load(Ordering::Acquire))
    }

    /// The number of [`load_u64`](Self::load_u64), for writing; `None` also if
    /// the memory was mapped read-only.
    pub fn u64(&self, index: usize, offset: usize) -> Option<&AtomicU64> {
        let at = self
            .offset_checked(index, offset, 8)
            .filter(|_| self.writable)?;
        // SAFETY: inside the mapping, aligned and writable; the reference lives
        // no longer than the mapping, and all access is atomic.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// As [`u64`](Self::u64), for 32 bits.
    pub fn u32(&self, index: usize, offset: usize) -> Option<&AtomicU32> {
        let at = self
            .offset_checked(index, offset, 4)
            .filter(|_| self.writable)?;
        // SAFETY: as above.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// Copies `bytes` to byte `offset` of value `index`; `false` if out of
    /// range or mapped read-only. A program that reads at the same time may see
    /// a mixture of old and new bytes.
    #[inline]
    pub fn write(&mut self, index: usize, offset: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.address(index, offset, bytes.len()) else {
            return false;
        };
        // SAFETY: the range was just checked to be inside the mapping, which is
        // writable. `&mut self` excludes other references to the mapping in
        // this process, and `bytes` is not part of it. Concurrent reads by
        // kernel programs are outside the compiler's memory model.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// The address of `bytes` bytes at byte `offset` of value `index`; `None`
    /// if out of range or mapped read-only.
    pub(crate) fn address(&self, index: usize, offset: usize, bytes: usize) -> Option<*mut u8> {
        let fits = offset.checked_add(bytes)? <= self.stride;
        self.offset_checked(index, offset, 1)
            .filter(|_| self.writable && fits)
    }

    /// Number of values.
    pub fn entries(&self) -> usize {
        self.entries
    }

    fn offset_checked(&self, index: usize, offset: usize, size: usize) -> Option<*mut u8> {
        let fits = offset.is_multiple_of(size) && offset.checked_add(size)? <= self.stride;
        if index >= self.entries || !fits {
            return None;
        }
        // SAFETY: `index` and `offset` were checked against the mapping's size.
        Some(unsafe { self.start.cast::<u8>().add(index * self.stride + offset) })
    }
}

impl Drop for MapMemory {
    fn drop(&mut self) {
        // SAFETY: this process mapped the range with this length, and no
        // reference to it remains.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}
