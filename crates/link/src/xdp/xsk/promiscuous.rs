//! Promiscuous mode: by an open socket, or by the interface's flag. The flag
//! outlives the process, so that links which the kernel joins after the
//! process's death still work; the process that sets the flag records that in
//! the shared page, and the process that ends the tap clears the flag.
#![allow(unsafe_code)] // The ioctl of interface flags.

use crate::net::ifreq::{Flags, Request};
use crate::net::set_option;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::OwnedFd;

/// A socket that receives nothing; while it is open, the interface is
/// promiscuous (packet(7)).
pub(in crate::xdp) fn promiscuous_socket(ifindex: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
    let member = libc::packet_mreq {
        mr_ifindex: i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP);
    set_option(&socket, level, option, &member)?;
    Ok(socket)
}

/// Sets or clears the flag of an interface of the calling thread's namespace;
/// returns whether that was a change.
pub(in crate::xdp) fn set(name: &str, on: bool) -> io::Result<bool> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut request = Request::of(name, Flags::of(0));
    const GET: Opcode = libc::SIOCGIFFLAGS as Opcode;
    const SET: Opcode = libc::SIOCSIFFLAGS as Opcode;
    // SAFETY: the command takes a `struct ifreq`, which has this size, and
    // writes the flags into it.
    unsafe { ioctl(&socket, Updater::<GET, Request<Flags>>::new(&mut request))? };
    let flag = libc::IFF_PROMISC as i16;
    let before = request.value.flags;
    request.value.flags = if on { before | flag } else { before & !flag };
    if request.value.flags == before {
        return Ok(false);
    }
    // SAFETY: the command takes a `struct ifreq`, which has this size.
    unsafe { ioctl(&socket, Setter::<SET, Request<Flags>>::new(request))? };
    Ok(true)
}
