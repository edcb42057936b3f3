//! [`SocketPair`]: the two sockets that identify a connection (RFC 9293 §3.3.1).

use crate::pcb::Key;
use std::net::SocketAddr;
use weir_wire::{AddrPair, ipv4, ipv6, tcp};

/// The local and the remote socket of a connection, and the link between them. Both addresses
/// are of one IP version, and nothing changes them while the connection exists.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct SocketPair {
    /// The link of the local address.
    pub(in crate::tcp) link: u8,
    pub(in crate::tcp) local: SocketAddr,
    pub(in crate::tcp) remote: SocketAddr,
}

impl SocketPair {
    /// The key of the connection in the table of connections.
    pub(in crate::tcp) fn key(&self) -> Key {
        Key::new(self.local, self.remote).expect("made of one version")
    }

    /// The addresses of sent packets: local, then remote.
    pub(in crate::tcp) fn addresses(&self) -> AddrPair {
        AddrPair::new(self.local.ip(), self.remote.ip()).expect("made of one version")
    }

    /// Whether these are the two sockets.
    pub(in crate::tcp) fn is_between(&self, local: &SocketAddr, remote: &SocketAddr) -> bool {
        self.local == *local && self.remote == *remote
    }

    /// Bytes of the IP header, without options or extension headers.
    pub(in crate::tcp) fn ip_header_len(&self) -> usize {
        match self.local {
            SocketAddr::V4(_) => ipv4::Repr::LEN,
            SocketAddr::V6(_) => ipv6::Repr::LEN,
        }
    }

    /// Bytes of the IP and TCP headers, without options.
    pub(in crate::tcp) fn headers_len(&self) -> usize {
        self.ip_header_len() + tcp::Repr::LEN_MIN
    }
}
