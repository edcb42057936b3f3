//! Neighbour updates for the host's own protocols: the host sends its
//! solicitations itself, but the answers come to the router.

use crate::router::engine::rate_limit::RateLimit;
use crate::router::engine::table::routes::LinkId;
use std::collections::VecDeque;
use std::net::IpAddr;
use weir_wire::ethernet::Address;

/// Number of updates per second passed to the host. Any station may send
/// unsolicited answers, hence the limit; [`UPDATE_BURST`] is the largest burst.
pub const UPDATES_PER_SECOND: u32 = 1000;
/// Largest burst of updates, and so the length of the queue.
pub const UPDATE_BURST: u32 = 64;

/// The contents of an ARP reply (RFC 826) or of a neighbour advertisement (RFC
/// 4861 §4.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourUpdate {
    /// The neighbour's link.
    pub link: LinkId,
    /// The neighbour's IP address.
    pub address: IpAddr,
    /// The neighbour's hardware address.
    pub hardware: Address,
    /// The message answers a solicitation, so the neighbour is reachable both
    /// ways.
    pub solicited: bool,
    /// The override flag: the message replaces another hardware address.
    pub replaces: bool,
    /// The router flag.
    pub router: bool,
}

/// The updates that wait to be passed to the host.
pub(in crate::router::engine) struct UpdateQueue {
    updates: VecDeque<NeighbourUpdate>,
    limit: RateLimit,
}

impl Default for UpdateQueue {
    fn default() -> UpdateQueue {
        UpdateQueue {
            updates: VecDeque::new(),
            limit: RateLimit::new(UPDATES_PER_SECOND, UPDATE_BURST),
        }
    }
}

impl UpdateQueue {
    /// Adds an update; drops it beyond the rate limit or if the queue is full.
    pub(in crate::router::engine) fn push(&mut self, now_ns: u64, word: NeighbourUpdate) {
        if self.updates.len() < UPDATE_BURST as usize && self.limit.allows(now_ns) {
            self.updates.push_back(word);
        }
    }

    pub(in crate::router::engine) fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    pub(in crate::router::engine) fn pop(&mut self) -> Option<NeighbourUpdate> {
        self.updates.pop_front()
    }
}
