//! Receiving frames to any station. The setting outlives the process, so
//! that links which the kernel joins for a dead one go on; who sets it notes
//! so in the shared page, and who ends the tap takes it back.
#![allow(unsafe_code)] // The ioctl of interface flags.

use rustix::ioctl::{Opcode, Setter, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::ffi::c_char;
use std::io;

/// `struct ifreq`: a name and a union of 24 bytes, here flags.
#[repr(C)]
struct Request {
    name: [c_char; 16],
    flags: i16,
    rest: [u8; 22],
}

/// Sets the flag of an interface of the calling thread's namespace, or takes
/// it away; tells whether that was a change.
pub(super) fn set(name: &str, on: bool) -> io::Result<bool> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut request = Request {
        name: [0; 16],
        flags: 0,
        rest: [0; 22],
    };
    for (to, from) in request.name[..15].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    const GET: Opcode = libc::SIOCGIFFLAGS as Opcode;
    const SET: Opcode = libc::SIOCSIFFLAGS as Opcode;
    // SAFETY: the command takes a `struct ifreq`, whose size this has, and
    // writes the flags into it.
    unsafe { ioctl(&socket, Updater::<GET, Request>::new(&mut request))? };
    let flag = libc::IFF_PROMISC as i16;
    let before = request.flags;
    request.flags = if on { before | flag } else { before & !flag };
    if request.flags == before {
        return Ok(false);
    }
    // SAFETY: the command takes a `struct ifreq`, whose size this has.
    unsafe { ioctl(&socket, Setter::<SET, Request>::new(request))? };
    Ok(true)
}
