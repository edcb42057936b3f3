//! Direct data placement: payload that goes straight to the reader of a connection.

use super::Stack;
use crate::iface::RxMeta;
use crate::ingress::Ingress;
use crate::tcp::TcpId;
use weir_wire::ethernet;

impl Stack {
    /// As [`Stack::receive_with`], for a frame whose payload of `count` bytes the link has
    /// written to the buffer of a reader of `connection`. `head` are the frame's first bytes, as
    /// many as [`Stack::tcp_head_len`] returned. Returns whether the payload is the connection's
    /// next data, which then counts as read. If false, nothing has changed, and the caller must
    /// pass in the whole frame.
    ///
    /// Through a TAP interface on one core this is worth 10 % of the rate (bench `tap`, `kernel
    /// to weir`); a copy from the frame to the reader, past the buffer, was worth nothing more.
    pub fn receive_placed(
        &mut self,
        now_ns: u64,
        head: &[u8],
        received: RxMeta,
        connection: TcpId,
        count: usize,
    ) -> bool {
        let (tcp, udp) = (&mut self.tcp, &mut self.udp);
        let Some(host) = self.interfaces.get_mut(received.link) else {
            return false;
        };
        let mut ingress = Ingress {
            iface: host,
            tcp,
            udp,
        };
        let placed = ingress.frame_placed(now_ns, head, received, (connection, count));
        placed.is_some()
    }

    /// Length of the headers of the connection's next frame, for [`Stack::receive_placed`];
    /// `None` unless the next frame is predictable and all received data is read.
    pub fn tcp_head_len(&self, connection: TcpId) -> Option<usize> {
        Some(ethernet::Repr::LEN + self.tcp.head_len(connection)?)
    }
}
