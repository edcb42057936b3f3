//! What a connection has besides while it is in use: its headers, and the list of its
//! segments in flight. Those of connections that are over are kept for the next ones,
//! so that one that begins asks for no memory but its PCB's.

use super::pcb::{Headers, Pcb};
use super::scoreboard::Scoreboard;

/// Parts that are kept of so many connections, about 400 bytes each.
const KEPT_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Parts(Vec<(Box<Headers>, Scoreboard)>);

impl Parts {
    /// Gives parts to a connection that begins, if there are some.
    pub(super) fn give(&mut self, pcb: &mut Pcb) {
        if let Some((headers, board)) = self.0.pop() {
            (pcb.headers, pcb.board) = (Some(headers), board);
        }
    }

    /// Keeps those of one that is over.
    pub(super) fn keep(&mut self, pcb: &mut Pcb) {
        if self.0.len() < KEPT_MAX
            && let Some(mut headers) = pcb.headers.take()
        {
            headers.forget();
            pcb.board.clear();
            self.0.push((headers, std::mem::take(&mut pcb.board)));
        }
    }
}
