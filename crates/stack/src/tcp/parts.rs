//! What a connection has besides while it is in use: its headers, and the list of its
//! segments in flight. Those of connections that are over are kept for the next ones,
//! so that one that begins asks for no memory but its PCB's.

use super::pcb::Pcb;

/// PCBs that are kept with their parts, a bit more than a kilobyte each.
const KEPT_MAX: usize = 64;

/// See the module. They stay in their PCBs until they are needed: what was written
/// just before is not moved well.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they are large, and stay where they are")]
pub(super) struct Parts(Vec<Box<Pcb>>);

impl Parts {
    /// Gives parts to a connection that begins, if there are some.
    pub(super) fn give(&mut self, pcb: &mut Pcb) {
        if let Some(mut over) = self.0.pop() {
            pcb.board = std::mem::take(&mut over.board);
            pcb.headers = over.headers.take();
            if let Some(headers) = &mut pcb.headers {
                headers.forget();
            }
        }
    }

    /// Keeps those of one that is over.
    pub(super) fn keep(&mut self, mut pcb: Box<Pcb>) {
        if self.0.len() < KEPT_MAX && pcb.headers.is_some() {
            pcb.board.clear();
            pcb.send.discard();
            pcb.receive.discard();
            self.0.push(pcb);
        }
    }
}
