//! Which driver an interface has, as ethtool tells it.
#![allow(unsafe_code)] // The ioctl of ethtool.

use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::ffi::c_char;
use std::io;

/// `ETHTOOL_GDRVINFO`.
const GET_DRIVER: u32 = 3;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    rest: [u8; 160],
}

/// `struct ifreq`: a name and a union of 24 bytes, here a pointer.
#[repr(C)]
struct Request {
    name: [c_char; 16],
    value: *mut Driver,
    rest: [u64; 2],
}

/// The name of the driver of an interface of the calling thread's namespace,
/// such as `veth` or `ixgbe`.
///
/// # Errors
/// If there is no such interface, or its driver does not tell.
pub fn driver(interface: &str) -> io::Result<String> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut found = Driver {
        command: GET_DRIVER,
        name: [0; 32],
        rest: [0; 160],
    };
    let mut request = Request {
        name: [0; 16],
        value: &raw mut found,
        rest: [0; 2],
    };
    // The last byte stays zero.
    for (to, from) in request.name[..15].iter_mut().zip(interface.bytes()) {
        *to = from as c_char;
    }
    const SIOCETHTOOL: Opcode = 0x8946;
    // SAFETY: the command takes a `struct ifreq` whose pointer leads to a
    // `struct ethtool_drvinfo`, of 196 bytes, which this one has.
    unsafe { ioctl(&socket, Updater::<SIOCETHTOOL, Request>::new(&mut request))? };
    let name = found.name.split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}
