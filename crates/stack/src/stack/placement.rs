//! Direct data placement: payload that goes straight to the reader of a connection.

use super::Stack;
use crate::iface::RxMeta;
use crate::ingress::Ingress;
use crate::tcp::TcpId;
use weir_wire::ethernet;

impl Stack {
    /// As [`Stack::receive_with`], with a reader of `connection`. In-order payload is copied
    /// straight to `out` and counts as read, provided that the frame's payload fits and no
    /// earlier bytes are unread. Returns the number of bytes copied.
    pub fn receive_into(
        &mut self,
        now_ns: u64,
        frame: &[u8],
        received: RxMeta,
        connection: TcpId,
        out: &mut [u8],
    ) -> usize {
        let (tcp, udp) = (&mut self.tcp, &mut self.udp);
        let host = self.interfaces.get_mut(received.link);
        let count = host.and_then(|host| {
            let mut ingress = Ingress {
                iface: host,
                tcp,
                udp,
            };
            ingress.frame_into(now_ns, frame, received, (connection, out))
        });
        count.unwrap_or_else(|| {
            self.receive_with(now_ns, frame, received);
            0
        })
    }

    /// As [`Stack::receive_into`], for a frame whose payload of `count` bytes is already in the
    /// reader's buffer. `head` are the frame's first bytes, as many as
    /// [`Stack::tcp_head_len`] returned. Returns whether the payload is the connection's next
    /// data. If false, nothing has changed, and the caller must pass in the whole frame.
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
