//! PCBs of connections that are over are kept for the next ones, with what a connection
//! has besides while it is in use: its headers, and the list of its segments in flight.
//! So one that begins asks for no memory.

use super::pcb::Pcb;

/// PCBs that are kept with their parts, a bit more than a kilobyte each.
const CACHE_MAX: usize = 64;

/// See the module.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they are large, and stay where they are")]
pub(super) struct PcbCache(Vec<Box<Pcb>>);

impl PcbCache {
    /// One for a connection that begins, if there is one.
    pub(super) fn get(&mut self) -> Option<Box<Pcb>> {
        self.0.pop()
    }

    /// Keeps one that is over.
    pub(super) fn put(&mut self, mut pcb: Box<Pcb>) {
        if self.0.len() < CACHE_MAX && pcb.headers.is_some() {
            pcb.scoreboard.clear();
            pcb.send.discard();
            pcb.receive.discard();
            if let Some(headers) = &mut pcb.headers {
                headers.forget();
            }
            self.0.push(pcb);
        }
    }
}
