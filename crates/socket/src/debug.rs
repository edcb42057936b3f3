//! Sockets in messages: where they are, as `std`'s say it.

use crate::{Net, TcpListener, TcpSocket, TcpStream, UdpSocket};
use std::fmt::{Debug, DebugStruct, Formatter, Result};
use std::io;
use std::net::SocketAddr;

/// Adds an address if there is one: `ENOTCONN` and the like say nothing here.
fn place(shown: &mut DebugStruct<'_, '_>, name: &str, at: io::Result<SocketAddr>) {
    if let Ok(at) = at {
        shown.field(name, &at);
    }
}

impl Debug for TcpStream {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut shown = f.debug_struct("TcpStream");
        place(&mut shown, "addr", self.local_addr());
        place(&mut shown, "peer", self.peer_addr());
        shown.finish()
    }
}

impl Debug for TcpListener {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut shown = f.debug_struct("TcpListener");
        place(&mut shown, "addr", self.local_addr());
        shown.finish()
    }
}

impl Debug for UdpSocket {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut shown = f.debug_struct("UdpSocket");
        place(&mut shown, "addr", self.local_addr());
        place(&mut shown, "peer", self.peer_addr());
        shown.finish()
    }
}

impl Debug for TcpSocket {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("TcpSocket").finish_non_exhaustive()
    }
}

impl Debug for Net {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut shown = f.debug_struct("Net");
        shown.field("addresses", &self.addresses());
        shown.finish_non_exhaustive()
    }
}
