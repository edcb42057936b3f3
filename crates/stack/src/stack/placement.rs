//! Frames whose bytes go straight to who reads a connection.

use super::Stack;
use crate::iface::RxMeta;
use crate::ingress::Ingress;
use crate::tcp::TcpId;
use weir_wire::ethernet;

impl Stack {
    /// As [`Stack::receive_with`], for who waits to read of a connection: bytes of
    /// it that come in order go to `out`, if those of the frame fit there and none
    /// that came before are still to be read; gives how many. They are read then.
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

    /// As [`Stack::receive_into`], of a frame whose bytes of the connection, `count` of
    /// them, were put where they are read, behind the `head` that
    /// [`Stack::tcp_head_len`] told: whether they are what comes next. If not, nothing
    /// has changed, and the frame is to be taken whole.
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

    /// How many bytes of the next frame of a connection are headers, if it is as those
    /// before and all that came is read: for [`Stack::receive_placed`].
    pub fn tcp_head_len(&self, connection: TcpId) -> Option<usize> {
        Some(ethernet::Repr::LEN + self.tcp.head_len(connection)?)
    }
}
