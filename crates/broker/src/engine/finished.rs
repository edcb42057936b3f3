//! Finished requests. A request finishes at once, or when its ring is ready and
//! the kernel has bound its port.

use super::ports::{Engine, Finished};
use super::{Backend, InterfaceDemux, Owner, Reserved};
use crate::protocol::Refusal;

/// A ring that is ready, or the error, for a port that is yet to be bound.
pub(super) struct Ready {
    pub(super) ifindex: u32,
    port: u32,
    result: Result<Reserved, Refusal>,
}

impl<F: Backend> Engine<F> {
    /// The requests that have finished since the last call.
    pub fn poll_finished(&mut self) -> Vec<Finished> {
        let mut all = self.take_done();
        while let Some(finished) = self.finish_next(|_| true) {
            all.push(finished);
        }
        all
    }

    /// The finished requests that need no more work; ports with ready rings are
    /// left to [`finish_next`](Self::finish_next).
    pub fn take_done(&mut self) -> Vec<Finished> {
        let mut all = std::mem::take(&mut self.done);
        self.attach_ready_paths(&mut all);
        for (ifindex, interface) in &mut self.interfaces {
            let ready = interface.divider.reserved().into_iter();
            let ready = ready.map(|(port, result)| Ready {
                ifindex: *ifindex,
                port,
                result,
            });
            self.ready.extend(ready);
        }
        for one in std::mem::take(&mut self.ready) {
            if self.ports.contains_key(&one.port) {
                self.ready.push_back(one)
            } else {
                self.forget_ready(one)
            }
        }
        all
    }

    /// Binds one port with a ready ring: the first whose owner passes `may`. The
    /// kernel may have to verify the programs of all ports for it. `None` if no
    /// such port waits.
    pub fn finish_next(&mut self, may: impl Fn(&Owner) -> bool) -> Option<Finished> {
        let owner = |one: &Ready| self.ports.get(&one.port).map(|port| &port.owner);
        let is_next = |one: &Ready| owner(one).is_some_and(&may);
        let at = self.ready.iter().position(is_next)?;
        let Ready { port, result, .. } = self.ready.remove(at)?;
        let owner = self.ports.get(&port)?.owner.clone();
        let result = result.and_then(|reserved| self.finish(port, reserved));
        if result.is_err() {
            self.remove(port);
            self.ghosts.made(port, None);
        }
        Some(Finished {
            port,
            owner,
            result,
        })
    }

    /// Whether ports with ready rings wait to be bound.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Releases the ring of a port that was closed meanwhile.
    fn forget_ready(&mut self, one: Ready) {
        match one.result {
            Ok(reserved) => {
                self.ghosts.made(one.port, Some(reserved.ring));
                if let Some(interface) = self.interfaces.get_mut(&one.ifindex) {
                    interface.divider.release(reserved.slot);
                }
            }
            Err(_) => self.ghosts.made(one.port, None),
        }
    }
}
