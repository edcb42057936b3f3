//! `AF_PACKET` sockets: plain ones with a filter, and `TPACKET_V3`'s ring.
#![allow(unsafe_code)] // Options and a ring that no safe library has.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use weir_filter::lang::cbpf::Insn;

const BLOCK_BYTES: u32 = 1 << 18;
const FRAME_BYTES: u32 = 2048;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn option<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: the value is read for its whole length.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.cast(), len) };
    check(result).map(drop)
}

/// A socket that gets nothing until it is bound.
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, that is ours alone.
    unsafe {
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let fd = check(libc::socket(libc::AF_PACKET, flags, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn bind(socket: &OwnedFd, ifindex: u32) -> io::Result<()> {
    // SAFETY: an all-zero address is one; it is read for its whole length.
    let result = unsafe {
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = ifindex as i32;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
    };
    check(result).map(drop)
}

/// A plain socket with a filter.
pub(crate) fn filtered(ifindex: u32, filter: &[Insn]) -> io::Result<OwnedFd> {
    let socket = socket()?;
    let mut insns: Vec<libc::sock_filter> = filter
        .iter()
        .map(|insn| libc::sock_filter {
            code: insn.code,
            jt: insn.jt,
            jf: insn.jf,
            k: insn.k,
        })
        .collect();
    let program = libc::sock_fprog {
        len: insns.len() as u16,
        filter: insns.as_mut_ptr(),
    };
    option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    bind(&socket, ifindex)?;
    Ok(socket)
}

/// `struct tpacket_req3`
#[repr(C)]
struct Request {
    block_bytes: u32,
    blocks: u32,
    frame_bytes: u32,
    frames: u32,
    retire_ms: u32,
    private_bytes: u32,
    features: u32,
}

/// A socket with a ring of `ring_bytes` that all frames of a device go to.
pub(crate) fn ring(ifindex: u32, ring_bytes: u32) -> io::Result<OwnedFd> {
    const TPACKET_V3: i32 = 2;
    const PACKET_VERSION: i32 = 10;
    const PACKET_RX_RING: i32 = 5;
    let socket = socket()?;
    option(&socket, libc::SOL_PACKET, PACKET_VERSION, &TPACKET_V3)?;
    let request = Request {
        block_bytes: BLOCK_BYTES,
        blocks: ring_bytes / BLOCK_BYTES,
        frame_bytes: FRAME_BYTES,
        frames: ring_bytes / FRAME_BYTES,
        retire_ms: 10,
        private_bytes: 0,
        features: 0,
    };
    option(&socket, libc::SOL_PACKET, PACKET_RX_RING, &request)?;
    bind(&socket, ifindex)?;
    Ok(socket)
}

/// Reads a ring until stopped, as libpcap does: a block at a time, and
/// `poll` when there is none.
pub(crate) fn read(socket: &OwnedFd, ring_bytes: u32, stop: &AtomicBool, count: &AtomicU64) -> u64 {
    const USER: u32 = 1;
    let bytes = ring_bytes as usize;
    // SAFETY: a new mapping in a place of the kernel's choice.
    let start = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = socket.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let (mut sum, mut block) = (0_u64, 0);
    while !stop.load(Ordering::Relaxed) {
        // SAFETY: each block begins with its header (version, offset, then
        // `struct tpacket_hdr_v1`: status, packets, offset of the first); the
        // kernel leaves it alone while it is the user's. Packets lie within.
        unsafe {
            let at = start.cast::<u8>().add(block * BLOCK_BYTES as usize);
            let status = AtomicU32::from_ptr(at.add(8).cast());
            if status.load(Ordering::Acquire) & USER == 0 {
                let mut fd = libc::pollfd {
                    fd: socket.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                };
                libc::poll(&raw mut fd, 1, 20);
                continue;
            }
            let packets = at.add(12).cast::<u32>().read();
            let mut packet = at.add(at.add(16).cast::<u32>().read() as usize);
            for _ in 0..packets {
                // `struct tpacket3_hdr`: next, …; the frame at offset 24.
                let frame = packet.add(packet.add(24).cast::<u16>().read().into());
                sum += u64::from(frame.add(12).read());
                packet = packet.add(packet.cast::<u32>().read() as usize);
            }
            status.store(0, Ordering::Release);
            count.fetch_add(packets.into(), Ordering::Relaxed);
        }
        block = (block + 1) % (ring_bytes / BLOCK_BYTES) as usize;
    }
    // SAFETY: mapped above, and nothing borrows it.
    unsafe { libc::munmap(start, bytes) };
    sum
}
