//! A gateway with one link, for its hosts and its peers: the direction of policies says on which
//! side a packet is.

use super::Gateway;
use crate::config::Direction;
use crate::ip::Headers;
use crate::policy::{Action, Decision};

/// ICMP errors that are about to leave, at most; the oldest one gives way.
const ERRORS_MAX: usize = 64;

impl Gateway {
    /// Has one link for the hosts and the peers. Then a packet that enters may be one of
    /// a host, which leaves afterwards; and one that leaves may have come out of a
    /// tunnel. A policy protects both by the direction of its expression: a packet
    /// that it would protect either way is dropped.
    #[must_use]
    pub fn one_armed(mut self) -> Gateway {
        self.is_one_armed = true;
        self
    }

    /// Whether a packet of this direction is to be protected.
    pub(super) fn protects(
        &mut self,
        now: u64,
        direction: Direction,
        headers: &Headers,
        packet: &mut [u8],
    ) -> bool {
        let decision = self.policies.decide(now, direction, headers, packet);
        matches!(decision, Decision::By(Action::Protect(_)))
    }

    /// Whether a packet is an ICMP error that this gateway has just made about a packet of a host:
    /// with one link, it leaves where ESP does. Errors of others may quote what was in a tunnel.
    pub(super) fn is_own_error(&mut self, headers: &Headers, packet: &[u8]) -> bool {
        let message = headers.payload(packet);
        let at = self.errors.iter().position(|error| error == message);
        at.is_some_and(|at| self.errors.remove(at).is_some())
    }

    pub(super) fn note_error(&mut self, error: &[u8]) {
        let Some(headers) = Headers::of(error).filter(|_| self.is_one_armed) else {
            return;
        };
        if self.errors.len() == ERRORS_MAX {
            self.errors.pop_front();
        }
        self.errors.push_back(headers.payload(error).to_vec());
    }
}
