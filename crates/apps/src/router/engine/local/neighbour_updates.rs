//! What neighbours have said, for the host's own protocols: they ask by
//! themselves, but the answers come to the router.

use crate::router::engine::rate_limit::RateLimit;
use crate::router::engine::table::routes::LinkId;
use std::collections::VecDeque;
use std::net::IpAddr;
use weir_wire::ethernet::Address;

/// Words in a second that the host is told, and how many at once: anybody may
/// answer what nobody asked.
pub const UPDATES_PER_SECOND: u32 = 1000;
/// See [`UPDATES_PER_SECOND`].
pub const UPDATE_BURST: u32 = 64;

/// What a neighbour has said of itself: an ARP reply (RFC 826), or a neighbour
/// advertisement (RFC 4861 §4.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourUpdate {
    /// The link that it is on.
    pub link: LinkId,
    /// Its address.
    pub address: IpAddr,
    /// Its hardware address.
    pub hardware: Address,
    /// It answers a question, and so hears us.
    pub solicited: bool,
    /// It stands in place of another hardware address.
    pub replaces: bool,
    /// It is a router.
    pub router: bool,
}

/// Words that were not told yet.
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
    /// Takes a word; drops it where there are too many.
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
