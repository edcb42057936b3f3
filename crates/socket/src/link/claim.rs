//! [`claim`]: which host of this machine has an address on an interface.
//!
//! Hosts on ports of one interface do not hear each other's probes of duplicate address detection
//! (RFC 5227, RFC 4862 §5.4): a port's host takes frames that this machine has sent for its own. So a host
//! binds an abstract Unix socket with the name of the address.

use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::os::fd::OwnedFd;

/// The error if another host of this network namespace has the address.
pub(super) const TAKEN: Errno = Errno::ADDRINUSE;

/// Claims an address, of IP or Ethernet, on an interface of this network namespace, as long as the result
/// lives.
///
/// # Errors
/// [`TAKEN`], or another error of the system.
pub(super) fn claim(interface: &str, address: &str) -> Result<OwnedFd> {
    let name = format!("weir/host/{interface}/{address}");
    let at = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    bind(&socket, &at)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_owner_on_a_link_at_a_time() {
        let link = format!("test{}", std::process::id());
        let first = claim(&link, "192.0.2.9").unwrap();
        assert_eq!(claim(&link, "192.0.2.9").unwrap_err(), TAKEN);
        claim(&link, "192.0.2.10").expect("another address");
        claim("other0", "192.0.2.9").expect("another link");
        drop(first);
        claim(&link, "192.0.2.9").expect("it is free again");
    }
}
