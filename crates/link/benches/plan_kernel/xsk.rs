//! An `AF_XDP` socket in copy mode, read with `poll`.
#![allow(unsafe_code)] // Mapped memory.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use rustix::time::Timespec;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const CHUNK_BYTES: usize = 2048;

/// A socket with its rings.
pub(crate) struct Xsk {
    pub(crate) socket: OwnedFd,
    memory: *mut u8,
    chunks: u32,
    rx: Ring,
    fill: Ring,
}

// SAFETY: the mappings are the socket's alone, and go nowhere else.
unsafe impl Send for Xsk {}

struct Ring {
    producer: *mut u32,
    consumer: *mut u32,
    entries: *mut u8,
    mask: u32,
}

impl Ring {
    fn map(
        socket: &OwnedFd,
        at: u64,
        offset: &XdpRingOffset,
        entry: usize,
        count: u32,
    ) -> io::Result<Ring> {
        let bytes = offset.desc as usize + entry * count as usize;
        // SAFETY: a new mapping; the offsets are the kernel's own.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::POPULATE;
            let start: *mut u8 =
                mmap(std::ptr::null_mut(), bytes, access, flags, socket, at)?.cast();
            Ok(Ring {
                producer: start.add(offset.producer as usize).cast(),
                consumer: start.add(offset.consumer as usize).cast(),
                entries: start.add(offset.desc as usize),
                mask: count - 1,
            })
        }
    }
}

impl Xsk {
    /// Bound to queue 0 of a device of the calling thread's namespace.
    pub(crate) fn new(ifindex: u32, memory_bytes: usize) -> io::Result<Xsk> {
        const RX_RING: u64 = 0;
        const FILL_RING: u64 = 0x1_0000_0000;
        let socket = socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let chunks = (memory_bytes / CHUNK_BYTES) as u32;
        // SAFETY: a new mapping in a place of the kernel's choice.
        let memory = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
            mmap_anonymous(std::ptr::null_mut(), memory_bytes, access, flags)?
        };
        let umem = XdpUmemReg {
            addr: memory as u64,
            len: memory_bytes as u64,
            chunk_size: CHUNK_BYTES as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&socket, umem)?;
        sockopt::set_xdp_umem_fill_ring_size(&socket, chunks)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, 64)?;
        sockopt::set_xdp_rx_ring_size(&socket, chunks)?;
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let rx = Ring::map(&socket, RX_RING, &offsets.rx, 16, chunks)?;
        let fill = Ring::map(&socket, FILL_RING, &offsets.fr, 8, chunks)?;
        let flags = SocketAddrXdpFlags::XDP_COPY;
        bind(&socket, &SocketAddrXdp::new(flags, ifindex, 0))?;
        let xsk = Xsk {
            socket,
            memory: memory.cast(),
            chunks,
            rx,
            fill,
        };
        for chunk in 0..chunks {
            xsk.give(chunk, u64::from(chunk) * CHUNK_BYTES as u64);
        }
        xsk.publish(chunks);
        Ok(xsk)
    }

    fn give(&self, place: u32, address: u64) {
        // SAFETY: the place is taken modulo the ring's size.
        unsafe {
            self.fill
                .entries
                .cast::<u64>()
                .add((place & self.fill.mask) as usize)
                .write(address)
        };
    }

    fn publish(&self, place: u32) {
        // SAFETY: the ring is mapped as long as this lives.
        unsafe { AtomicU32::from_ptr(self.fill.producer).store(place, Ordering::Release) };
    }

    /// Reads until stopped.
    pub(crate) fn read(&self, stop: &AtomicBool, count: &AtomicU64) -> u64 {
        let (mut sum, mut given) = (0_u64, self.chunks);
        // SAFETY: the ring is mapped as long as this lives.
        let (producer, consumer) = unsafe {
            (
                AtomicU32::from_ptr(self.rx.producer),
                AtomicU32::from_ptr(self.rx.consumer),
            )
        };
        let mut at = consumer.load(Ordering::Relaxed);
        while !stop.load(Ordering::Relaxed) {
            let end = producer.load(Ordering::Acquire);
            if end == at {
                let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
                let time = Timespec {
                    tv_sec: 0,
                    tv_nsec: 20_000_000,
                };
                let _ = poll(&mut fds, Some(&time));
                continue;
            }
            let frames = end.wrapping_sub(at).min(256);
            for _ in 0..frames {
                // SAFETY: an entry that the kernel has published, and the
                // chunk that it names.
                unsafe {
                    let entry = self.rx.entries.add((at & self.rx.mask) as usize * 16);
                    let address = entry.cast::<u64>().read();
                    sum += u64::from(self.memory.add(address as usize + 12).read());
                    self.give(given, address & !(CHUNK_BYTES as u64 - 1));
                }
                given = given.wrapping_add(1);
                at = at.wrapping_add(1);
            }
            consumer.store(at, Ordering::Release);
            self.publish(given);
            count.fetch_add(frames.into(), Ordering::Relaxed);
        }
        sum
    }
}

impl Drop for Xsk {
    fn drop(&mut self) {
        let bytes = self.chunks as usize * CHUNK_BYTES;
        // SAFETY: mapped by us; nothing borrows it. The rings' mappings go
        // with the process.
        let _ = unsafe { munmap(self.memory.cast(), bytes) };
    }
}
