//! Direct data placement: a blocking read whose bytes the link writes into the caller's buffer,
//! past the connection's receive buffer.

use crate::link::DirectReceiver;
use weir_stack::Stack;
use weir_stack::iface::RxMeta;
use weir_stack::tcp::TcpId;

/// Receives frames for a connection's reader; other frames take the standard path.
pub(in crate::net) struct DirectRead<'a> {
    pub(in crate::net) stack: &'a mut Stack,
    pub(in crate::net) now_ns: u64,
    /// The number of the link that is polled now.
    pub(in crate::net) link: u8,
    pub(in crate::net) connection: TcpId,
    /// The reader's buffer, and the number of bytes in it.
    pub(in crate::net) out: &'a mut [u8],
    pub(in crate::net) count: usize,
    /// Number of frames received.
    pub(in crate::net) frames: u64,
}

impl DirectRead<'_> {
    fn with_link(&self, received: RxMeta) -> RxMeta {
        let link = self.link;
        RxMeta { link, ..received }
    }
}

impl DirectReceiver for DirectRead<'_> {
    fn buffer(&mut self) -> (usize, &mut [u8]) {
        match self.stack.tcp_head_len(self.connection) {
            Some(head_len) => (head_len, &mut self.out[self.count..]),
            None => (0, &mut []),
        }
    }

    fn placed(&mut self, head: &[u8], count: usize, received: RxMeta) -> bool {
        let received = self.with_link(received);
        let (stack, now_ns) = (&mut *self.stack, self.now_ns);
        let placed = stack.receive_placed(now_ns, head, received, self.connection, count);
        if placed {
            self.count += count;
            self.frames += 1;
        }
        placed
    }

    fn receive(&mut self, frame: &[u8], received: RxMeta) {
        self.frames += 1;
        let received = self.with_link(received);
        self.stack.receive_with(self.now_ns, frame, received);
    }
}
