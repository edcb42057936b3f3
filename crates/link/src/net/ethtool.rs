//! ethtool(8) queries and settings of drivers.
#![allow(unsafe_code)] // The ioctl of ethtool.

use super::ifreq::Request;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
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

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    value: u32,
}

/// The pointer member of `struct ifreq`'s union.
#[repr(C)]
struct Pointer<T> {
    argument: *mut T,
    rest: [u64; 2],
}

/// Runs a command for an interface of the calling thread's namespace.
///
/// # Safety
/// The argument is the structure of `linux/ethtool.h` that the command in its
/// first word takes.
unsafe fn run<T>(interface: &str, argument: &mut T) -> Result<(), Errno> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let rest = [0; 2];
    let mut request = Request::of(interface, Pointer { argument, rest });
    const SIOCETHTOOL: Opcode = 0x8946;
    // SAFETY: the command takes a `struct ifreq` whose pointer refers to the
    // structure that the caller promises.
    unsafe {
        ioctl(
            &socket,
            Updater::<SIOCETHTOOL, Request<Pointer<T>>>::new(&mut request),
        )
    }
}

/// The name of the driver of an interface of the calling thread's namespace,
/// such as `veth` or `ixgbe`.
///
/// # Errors
/// If there is no such interface, or its driver does not report a name.
pub fn driver(interface: &str) -> io::Result<String> {
    let mut found = Driver {
        command: GET_DRIVER,
        name: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: the command takes a `struct ethtool_drvinfo`, of 196 bytes,
    // which this one has.
    unsafe { run(interface, &mut found)? };
    let name = found.name.split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

/// Offloads to the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Feature {
    /// Transmit checksums.
    TxChecksums,
    /// TCP segmentation (TSO).
    TcpSegmentation,
    /// Generic segmentation offload (GSO).
    GenericSegmentation,
    /// Generic receive offload (GRO).
    GenericReceive,
}

impl Feature {
    /// `ETHTOOL_GTXCSUM`, `ETHTOOL_GTSO`, `ETHTOOL_GGSO`, `ETHTOOL_GGRO`; the
    /// command that sets each is the following number.
    fn command(self) -> u32 {
        match self {
            Feature::TxChecksums => 0x16,
            Feature::TcpSegmentation => 0x1e,
            Feature::GenericSegmentation => 0x23,
            Feature::GenericReceive => 0x2b,
        }
    }

    /// Whether the offload is enabled on an interface of the calling thread's
    /// namespace; `false` if the driver does not report it.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn get(self, interface: &str) -> io::Result<bool> {
        let mut value = Value {
            command: self.command(),
            value: 0,
        };
        // SAFETY: these four commands take a `struct ethtool_value`.
        match unsafe { run(interface, &mut value) } {
            Ok(()) => Ok(value.value != 0),
            Err(Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Enables or disables the offload.
    ///
    /// # Errors
    /// If there is no such interface, its driver lacks the offload, or the
    /// caller lacks privilege.
    pub fn set(self, interface: &str, on: bool) -> io::Result<()> {
        let mut value = Value {
            command: self.command() + 1,
            value: u32::from(on),
        };
        // SAFETY: the four setting commands also take a `struct ethtool_value`.
        Ok(unsafe { run(interface, &mut value) }?)
    }
}
