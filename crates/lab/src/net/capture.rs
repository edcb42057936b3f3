//! Captures every frame of a host, as tcpdump does.

use super::Host;
use super::error::{Error, failed};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

/// Receive buffer in bytes, including the kernel's overhead for each frame;
/// further frames are lost.
const UNREAD_BYTES_MAX: usize = 64 << 20;

/// `ETH_P_ALL`, in network order.
const ALL: u32 = 0x0003_u16.to_be() as u32;

impl Host {
    /// A non-blocking packet socket that receives every frame of the host's
    /// devices from now on, in both directions.
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
