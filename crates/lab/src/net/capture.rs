//! Every frame of a host, as tcpdump would see it.

use super::Host;
use super::error::{Error, failed};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

/// Bytes that wait to be read, with what the kernel has besides for each
/// frame; what comes beyond is lost.
const UNREAD_BYTES_MAX: usize = 64 << 20;

/// `ETH_P_ALL`, in network order.
const ALL: u32 = 0x0003_u16.to_be() as u32;

impl Host {
    /// A packet socket that sees every frame of the host's devices from now
    /// on, both ways; it does not wait for one.
    ///
    /// # Errors
    /// Without privilege.
    pub fn capture(&self) -> Result<OwnedFd, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let all = NonZeroU32::new(ALL).map(Protocol::from_raw);
        let open = || {
            let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, all)?;
            set_socket_recv_buffer_size_force(&socket, UNREAD_BYTES_MAX)?;
            Ok(socket)
        };
        self.run(open)
            .map_err(|error: rustix::io::Errno| failed("seeing a host's frames")(error.into()))
    }
}
