//! A ring of the kernel, mapped.
#![allow(unsafe_code)] // Mapped memory.

use crate::cursor::{HEADER_BYTES, Memory};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Where on the consumer page the reader keeps its own position: the kernel
/// uses the first 8 bytes and leaves the rest alone.
const NOTE_OFFSET: usize = 64;

/// The two mappings; see the drawing in the crate's documentation.
#[derive(Debug)]
pub(crate) struct RingbufMap {
    consumer: *mut c_void,
    producer: *mut c_void,
    page: usize,
    bytes: usize,
}

// SAFETY: the mappings belong to no thread. All that changes in them is
// accessed by atomics.
unsafe impl Send for RingbufMap {}

impl RingbufMap {
    /// Maps a ring of `bytes`, a power of two of at least a page.
    pub(crate) fn new(ring: BorrowedFd<'_>, bytes: usize) -> io::Result<RingbufMap> {
        let page = rustix::param::page_size();
        let read = ProtFlags::READ;
        // SAFETY: new mappings, in places of the kernel's choice.
        let (consumer, producer) = unsafe {
            let anywhere = std::ptr::null_mut();
            let shared = MapFlags::SHARED;
            let consumer = mmap(anywhere, page, read | ProtFlags::WRITE, shared, ring, 0)?;
            let len = page + 2 * bytes;
            let producer = mmap(anywhere, len, read, shared, ring, page as u64);
            if producer.is_err() {
                let _ = munmap(consumer, page);
            }
            (consumer, producer?)
        };
        Ok(RingbufMap {
            consumer,
            producer,
            page,
            bytes,
        })
    }

    /// The consumer position that the kernel has, and that of the last reader.
    pub(crate) fn left_at(&self) -> (u64, u64) {
        (
            self.consumer_word(0).load(Ordering::Acquire),
            self.consumer_word(NOTE_OFFSET).load(Ordering::Acquire),
        )
    }

    fn consumer_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside of the page (both offsets are constants), aligned,
        // and mapped as long as we are; other processes that hold the ring
        // may write it as well, which is why it is only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.consumer.cast::<u8>().add(offset).cast()) }
    }

    /// The bytes of the record at `position`, behind its header.
    ///
    /// # Safety
    /// A committed record of at least `len` bytes begins there, all of it before the producer's
    /// position, and while the result lives no position beyond `position` is published. Then the
    /// kernel does not write these bytes, and no process can: user space may map them for reading
    /// only.
    pub(crate) unsafe fn record(&self, position: u64, len: usize) -> &[u8] {
        let at = self.place(position) + HEADER_BYTES as usize;
        // SAFETY: a record is no longer than the ring, which is mapped twice
        // in a row, so that it ends inside; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.records().add(at), len) }
    }

    fn place(&self, position: u64) -> usize {
        (position as usize) & (self.bytes - 1)
    }

    fn records(&self) -> *const u8 {
        // SAFETY: the records begin a page behind the producer's.
        unsafe { self.producer.cast::<u8>().add(self.page) }
    }
}

impl Memory for RingbufMap {
    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn producer(&self) -> u64 {
        // SAFETY: mapped as long as we are, and aligned; only the kernel
        // writes it, and we only load.
        let word = unsafe { AtomicU64::from_ptr(self.producer.cast()) };
        word.load(Ordering::Acquire)
    }

    fn header(&self, position: u64) -> u32 {
        let at = self.place(position) & !(HEADER_BYTES as usize - 1);
        // SAFETY: inside of the records and aligned, since all are on
        // multiples of 8; only the kernel writes it, and we only load.
        let word = unsafe { AtomicU32::from_ptr(self.records().add(at).cast_mut().cast()) };
        word.load(Ordering::Acquire)
    }

    fn publish(&self, position: u64) {
        self.consumer_word(0).store(position, Ordering::Release);
    }

    fn note(&self, position: u64) {
        self.consumer_word(NOTE_OFFSET)
            .store(position, Ordering::Release);
    }

    fn barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Drop for RingbufMap {
    fn drop(&mut self) {
        // SAFETY: mapped by us with these lengths; nothing borrows them now.
        unsafe {
            let _ = munmap(self.consumer, self.page);
            let _ = munmap(self.producer, self.page + 2 * self.bytes);
        }
    }
}
