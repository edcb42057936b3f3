//! The calls for TCP Fast Open (RFC 7413): data in the SYN.

use super::Stack;
use crate::tcp::{FastOpenServer, ListenerId, TcpError, TcpId};
use std::net::{IpAddr, SocketAddr};

impl Stack {
    /// Opens a connection whose SYN carries the first of `bytes` (RFC 7413), if the server has
    /// given a cookie before; otherwise the SYN requests a cookie and carries no data. Returns
    /// how many bytes the SYN takes; the caller passes the rest to [`Stack::tcp_write`].
    ///
    /// Data in a SYN may be delivered twice, so that only idempotent requests are suitable.
    /// `without_cookie` sends data also without a cookie, for servers that accept this.
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

    /// Whether this server has given a cookie for [`Stack::tcp_connect_fast`].
    pub fn tcp_has_cookie(&self, server: IpAddr) -> bool {
        self.tcp.has_cookie(server)
    }

    /// Forgets all cookies that servers have given.
    pub fn tcp_clear_tfo_cookies(&mut self) {
        self.tcp.clear_tfo_cookies();
    }

    /// Sets whether and how a listener accepts data in a SYN (RFC 7413).
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
