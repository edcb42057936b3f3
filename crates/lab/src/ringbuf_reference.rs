//! A simple reader of BPF ring buffers: the oracle for the fast reader of
//! `weir_ring`.
#![allow(unsafe_code)] // Mapped memory.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a record's header: its length, with two flags in the upper bits.
const HEADER_BYTES: usize = 8;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// The only reader of a ring buffer.
#[derive(Debug)]
pub struct Records {
    /// Address of the consumer page, followed by the producer page and the
    /// data, mapped twice.
    consumer: *mut u8,
    producer: *mut u8,
    page: usize,
    ring_bytes: usize,
}

impl Records {
    /// Maps the ring buffer of `ring_bytes` bytes with that descriptor.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub fn new(ring: impl AsFd, ring_bytes: usize) -> io::Result<Records> {
        let page = rustix::param::page_size();
        let nowhere = std::ptr::null_mut();
        // SAFETY: new mappings at addresses of the kernel's choice.
        let (consumer, producer) = unsafe {
            let both = ProtFlags::READ | ProtFlags::WRITE;
            let consumer = mmap(nowhere, page, both, MapFlags::SHARED, &ring, 0)?;
            let behind = page + 2 * ring_bytes;
            let at = page as u64;
            let read = ProtFlags::READ;
            (
                consumer,
                mmap(nowhere, behind, read, MapFlags::SHARED, &ring, at)?,
            )
        };
        Ok(Records {
            consumer: consumer.cast(),
            producer: producer.cast(),
            page,
            ring_bytes,
        })
    }

    /// Takes all records out of the ring buffer.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        // SAFETY: the positions are at the start of their pages, which are
        // mapped.
        let (consumer, producer) = unsafe {
            let producer = AtomicU64::from_ptr(self.producer.cast());
            (AtomicU64::from_ptr(self.consumer.cast()), producer)
        };
        let mut at = consumer.load(Ordering::Acquire);
        let mut records = Vec::new();
        while at < producer.load(Ordering::Acquire) {
            let place = (at as usize) & (self.ring_bytes - 1);
            // SAFETY: a record's header is inside the data, aligned to 8; the
            // data is mapped twice, so that every record is contiguous.
            let (header, bytes) = unsafe {
                let data = self.producer.add(self.page);
                let header = AtomicU32::from_ptr(data.add(place).cast()).load(Ordering::Acquire);
                let len = (header & !(BUSY | DISCARDED)) as usize;
                let bytes = data.add(place + HEADER_BYTES);
                (header, std::slice::from_raw_parts(bytes, len))
            };
            if header & BUSY != 0 {
                break;
            }
            if header & DISCARDED == 0 {
                records.push(bytes.to_vec());
            }
            at += (HEADER_BYTES + bytes.len()).next_multiple_of(8) as u64;
            consumer.store(at, Ordering::Release);
        }
        records
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with these lengths; no reference to them
        // exists.
        unsafe {
            let _ = munmap(self.consumer.cast(), self.page);
            let _ = munmap(self.producer.cast(), self.page + 2 * self.ring_bytes);
        }
    }
}
