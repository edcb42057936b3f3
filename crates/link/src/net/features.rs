//! What a driver does for the kernel, as ethtool tells it.
#![allow(unsafe_code)] // The ioctl of ethtool.

use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::ffi::c_char;
use std::io;

/// Work left to the device. What it is trusted with is not done yet when a
/// program at tc or a peer on a veth sees the frame: checksums are partial,
/// segments come whole, up to 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features {
    /// Transmit checksums.
    pub tx_checksums: bool,
    /// TCP segmentation (TSO).
    pub tcp_segmentation: bool,
    /// Segmentation as late as possible (GSO).
    pub generic_segmentation: bool,
    /// Joining of what is received (GRO): frames at tc ingress are longer
    /// than those on the wire.
    pub generic_receive: bool,
}

/// `ETHTOOL_GTXCSUM`, `ETHTOOL_GTSO`, `ETHTOOL_GGSO`, `ETHTOOL_GGRO`.
const COMMANDS: [u32; 4] = [0x16, 0x1e, 0x23, 0x2b];

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    value: u32,
}

/// `struct ifreq`: a name and a union of 24 bytes, here a pointer.
#[repr(C)]
struct Request {
    name: [c_char; 16],
    value: *mut Value,
    rest: [u64; 2],
}

/// Asks for the features of the interface of that name; what a driver does
/// not tell it does not do.
pub(super) fn of(name: &str) -> io::Result<Features> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut found = [false; COMMANDS.len()];
    for (found, command) in found.iter_mut().zip(COMMANDS) {
        const SIOCETHTOOL: Opcode = 0x8946;
        let mut value = Value { command, value: 0 };
        let mut request = Request {
            name: [0; 16],
            value: &raw mut value,
            rest: [0; 2],
        };
        // The last byte stays zero.
        for (to, from) in request.name[..15].iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        // SAFETY: the command takes a `struct ifreq` whose pointer leads to a
        // `struct ethtool_value`, for each of these four.
        let done = unsafe {
            let request = Updater::<SIOCETHTOOL, Request>::new(&mut request);
            ioctl(&socket, request)
        };
        match done {
            Ok(()) => *found = value.value != 0,
            Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let [
        tx_checksums,
        tcp_segmentation,
        generic_segmentation,
        generic_receive,
    ] = found;
    Ok(Features {
        tx_checksums,
        tcp_segmentation,
        generic_segmentation,
        generic_receive,
    })
}
