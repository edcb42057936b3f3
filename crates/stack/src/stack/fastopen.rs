//! Bytes in the SYN of a connection: TCP Fast Open (RFC 7413).

use super::Stack;
use crate::tcp::{FastOpenServer, ListenerId, TcpError, TcpId};
use std::net::{IpAddr, SocketAddr};

impl Stack {
    /// Opens a connection whose SYN carries the first of `bytes` (RFC 7413), if
    /// the server has given us a cookie before; otherwise it asks for one.
    /// Gives how many bytes went along: the rest is for [`Stack::tcp_write`].
    ///
    /// They may come twice: send what may be asked twice. `without_cookie` is
    /// for servers that take bytes without.
    ///
    /// # Errors
    /// As [`Stack::tcp_connect`].
    pub fn tcp_connect_fast(
        &mut self,
        now_ns: u64,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        bytes: &[u8],
        without_cookie: bool,
    ) -> Result<(TcpId, usize), TcpError> {
        let ends = (local, remote);
        self.tcp
            .connect_fast(now_ns, &self.interfaces, ends, bytes, without_cookie)
    }

    /// Whether a server has given us a cookie for [`Stack::tcp_connect_fast`].
    pub fn tcp_has_cookie(&self, server: IpAddr) -> bool {
        self.tcp.has_cookie(server)
    }

    /// Forgets the cookies of servers.
    pub fn tcp_clear_tfo_cookies(&mut self) {
        self.tcp.clear_tfo_cookies();
    }

    /// Lets connections to a listener begin with bytes (RFC 7413), or not.
    ///
    /// # Errors
    /// If the listener is closed.
    pub fn tcp_set_fast_open(
        &mut self,
        listener: ListenerId,
        server: Option<FastOpenServer>,
    ) -> Result<(), TcpError> {
        self.tcp.set_fast_open(listener, server)
    }
}
