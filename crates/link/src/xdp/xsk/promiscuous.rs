//! Receiving frames to any station: as long as a socket is open that anybody
//! may hold, or until it is taken back. The latter outlives the process, so
//! that links which the kernel joins for a dead one go on; who sets it notes
//! so in the shared page, and who ends the tap takes it back.
#![allow(unsafe_code)] // The ioctl of interface flags.

use crate::net::ifreq::{Flags, Request};
use crate::net::set_option;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::OwnedFd;

/// A socket that receives nothing; as long as it is open, the interface
/// receives frames to any station (packet(7)).
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

/// Sets the flag of an interface of the calling thread's namespace, or takes
/// it away; tells whether that was a change.
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
    // SAFETY: the command takes a `struct ifreq`, whose size this has, and
    // writes the flags into it.
    unsafe { ioctl(&socket, Updater::<GET, Request<Flags>>::new(&mut request))? };
    let flag = libc::IFF_PROMISC as i16;
    let before = request.value.flags;
    request.value.flags = if on { before | flag } else { before & !flag };
    if request.value.flags == before {
        return Ok(false);
    }
    // SAFETY: the command takes a `struct ifreq`, whose size this has.
    unsafe { ioctl(&socket, Setter::<SET, Request<Flags>>::new(request))? };
    Ok(true)
}
