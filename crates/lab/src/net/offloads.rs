//! What a device leaves to later: checksums and segmentation.
#![allow(unsafe_code)] // The ioctl of ethtool.

use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::ffi::c_char;
use std::io;

/// Which work a device is trusted with that a network card would do.
///
/// Between two ends of a veth nobody does that work: a checksum left to the
/// device stays partial, a segment left whole arrives as one super-frame of
/// up to 64 KiB, and who looks at the frames sees what no wire carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Offloads {
    /// Transmit checksums. Without them the kernel computes every checksum
    /// before the device sees the frame; segmentation offload goes with it.
    pub tx_checksums: bool,
    /// TCP segmentation (TSO) by the device.
    pub tcp_segmentation: bool,
    /// Segmentation as late as possible (GSO), of TCP and UDP.
    pub generic_segmentation: bool,
    /// Joining what is received (GRO).
    pub generic_receive: bool,
}

impl Offloads {
    /// Frames as a wire would carry them: whole checksums, one segment each.
    pub const OFF: Offloads = Offloads {
        tx_checksums: false,
        tcp_segmentation: false,
        generic_segmentation: false,
        generic_receive: false,
    };

    /// What a new veth has: all but GRO, which is always on for TCP's own
    /// sake only where a driver polls.
    pub const VETH: Offloads = Offloads {
        tx_checksums: true,
        tcp_segmentation: true,
        generic_segmentation: true,
        generic_receive: false,
    };

    /// In the order in which they can be set: the later need the earlier.
    fn settings(self) -> [(Setting, bool); 4] {
        [
            (Setting::TX_CHECKSUMS, self.tx_checksums),
            (Setting::TCP_SEGMENTATION, self.tcp_segmentation),
            (Setting::GENERIC_SEGMENTATION, self.generic_segmentation),
            (Setting::GENERIC_RECEIVE, self.generic_receive),
        ]
    }
}

/// The commands of `linux/ethtool.h` that read and write one offload.
#[derive(Clone, Copy)]
struct Setting {
    read: u32,
    write: u32,
}

impl Setting {
    const TX_CHECKSUMS: Setting = Setting::at(0x16);
    const TCP_SEGMENTATION: Setting = Setting::at(0x1e);
    const GENERIC_SEGMENTATION: Setting = Setting::at(0x23);
    const GENERIC_RECEIVE: Setting = Setting::at(0x2b);

    const fn at(read: u32) -> Setting {
        Setting {
            read,
            write: read + 1,
        }
    }
}

/// Sets the offloads of a device of the calling thread's namespace.
pub(super) fn set(device: &str, offloads: Offloads) -> io::Result<()> {
    for (setting, on) in offloads.settings() {
        ethtool(device, setting.write, u32::from(on))?;
    }
    Ok(())
}

/// The offloads of a device of the calling thread's namespace.
pub(super) fn get(device: &str) -> io::Result<Offloads> {
    let read = |setting: Setting| Ok::<_, io::Error>(ethtool(device, setting.read, 0)? != 0);
    Ok(Offloads {
        tx_checksums: read(Setting::TX_CHECKSUMS)?,
        tcp_segmentation: read(Setting::TCP_SEGMENTATION)?,
        generic_segmentation: read(Setting::GENERIC_SEGMENTATION)?,
        generic_receive: read(Setting::GENERIC_RECEIVE)?,
    })
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    value: u32,
}

/// `struct ifreq`: a name and a union of 24 bytes, here a pointer.
#[repr(C)]
struct InterfaceRequest {
    name: [c_char; 16],
    value: *mut EthtoolValue,
    rest: [u64; 2],
}

fn ethtool(device: &str, command: u32, value: u32) -> io::Result<u32> {
    const SIOCETHTOOL: Opcode = 0x8946;
    let mut value = EthtoolValue { command, value };
    let mut request = InterfaceRequest {
        name: [0; 16],
        value: &raw mut value,
        rest: [0; 2],
    };
    // The last byte stays zero.
    for (to, from) in request.name[..15].iter_mut().zip(device.bytes()) {
        *to = from as c_char;
    }
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: this command takes a `struct ifreq` whose pointer leads to a
    // `struct ethtool_value` for each of the commands above.
    unsafe {
        let request = Updater::<SIOCETHTOOL, InterfaceRequest>::new(&mut request);
        ioctl(&socket, request)?;
    }
    Ok(value.value)
}
