//! Persistent TAP and TUN interfaces of a host, as created by `ip tuntap add`.
#![allow(unsafe_code)] // The driver's commands.

use super::device::Device;
use super::error::{Error, failed};
use super::host::Host;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

impl Host {
    /// Creates a persistent TAP interface, down, that the user `owner` may
    /// open.
    ///
    /// # Errors
    /// Without the driver (`/dev/net/tun`), or if the name is in use.
    pub fn tap(&self, name: &str, owner: u32) -> Result<Device, Error> {
        self.tun_of(name, libc::IFF_TAP, Some(owner))
    }

    /// Creates a persistent TUN interface, down, that any user with the
    /// privilege may open; its frames are IP packets.
    ///
    /// # Errors
    /// As for [`Host::tap`].
    pub fn tun(&self, name: &str) -> Result<Device, Error> {
        self.tun_of(name, libc::IFF_TUN, None)
    }

    fn tun_of(&self, name: &str, kind: i32, owner: Option<u32>) -> Result<Device, Error> {
        let what = format!("making `{name}` on host `{}`", self.name());
        self.run(|| make(name, kind, owner)).map_err(failed(what))?;
        self.device(name)
    }
}

/// In the calling thread's namespace.
fn make(name: &str, kind: i32, owner: Option<u32>) -> io::Result<()> {
    let too_long = name.len() >= libc::IFNAMSIZ;
    if too_long {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // SAFETY: `struct ifreq` consists of integers, for which all zeros is
    // valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let exclusive = libc::IFF_TUN_EXCL;
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI | exclusive) as libc::c_short;
    let checked = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the command takes a `struct ifreq`, which outlives the call.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    if let Some(owner) = owner {
        let owner = libc::c_ulong::from(owner);
        // SAFETY: the command takes an integer.
        checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOWNER as _, owner) })?;
    }
    let stays: libc::c_ulong = 1;
    // SAFETY: the command takes an integer.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST as _, stays) })
}
