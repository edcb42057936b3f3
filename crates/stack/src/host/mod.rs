//! The link and IP layers of one host on one Ethernet: ARP and neighbour
//! discovery, IPv4 and IPv6 in and out, fragments, ICMP.
//!
//! ```text
//!  frame ─► input ─┬─► arp, nd ──► neighbours ──┐
//!                  ├─► reassembly ─► input      │
//!                  ├─► icmp ─► echo, errors     ▼
//!                  └─► UDP, TCP ─► output ─► routes ─► queue ─► frame
//! ```
//!
//! Everything that comes is hostile: each table has a limit, stated where it
//! is set, and what is dropped has a [`DropReason`].

mod arp;
mod config;
mod counters;
mod extension;
mod icmp;
mod input;
mod limit;
mod nd;
mod neighbours;
mod offload;
mod output;
mod paths;
mod prefix;
mod reassembly;
mod routes;
mod way;

pub use config::{ADDRESSES_MAX, Config, ConfigError, MTU, Mode, ROUTES_MAX};
pub use counters::{Counters, DropReason};
pub use neighbours::{ASK_EACH_NS, ASKS_MAX, DELAY_NS, NEIGHBOURS_MAX, REACHABLE_NS, WAITING_MAX};
pub use offload::{Channel, Gso, Offload, Partial, Received};
pub use output::QUEUE_MAX;
pub use paths::{NARROW_NS, PATHS_MAX};
pub use prefix::{Prefix, PrefixError};
pub use reassembly::{BYTES_MAX, DATAGRAMS_MAX, PIECES_MAX, TIMEOUT_NS};
pub use routes::Route;

pub(crate) use icmp::{Problem, Report};
pub(crate) use input::{Incoming, Input};
pub(crate) use output::Header;
pub(crate) use routes::Routes;
pub(crate) use way::Way;

use crate::due::earlier;
use crate::rng::Keyed;
use limit::RateLimit;
use neighbours::Neighbours;
use paths::Paths;
use reassembly::Reassembly;
use std::collections::VecDeque;
use weir_wire::ethernet::Address;

/// See the module.
pub(crate) struct Host {
    hardware: Address,
    mtu: usize,
    pub(crate) offload: Offload,
    pub(crate) mode: Mode,
    pub(crate) routes: Routes,
    neighbours: Neighbours,
    reassembly: Reassembly,
    paths: Paths,
    limit: RateLimit,
    /// Frames to be sent.
    queue: VecDeque<Vec<u8>>,
    rng: Keyed,
    pub(crate) counters: Counters,
}

impl Host {
    pub(crate) fn new(config: &Config, seed: u128) -> Result<Host, ConfigError> {
        config.check()?;
        let mut rng = Keyed::new(seed, "host");
        Ok(Host {
            hardware: config.hardware,
            mtu: config.mtu,
            offload: config.offload,
            mode: config.mode,
            routes: Routes::new(config),
            neighbours: Neighbours::default(),
            reassembly: Reassembly::default(),
            paths: Paths::default(),
            limit: RateLimit::new(rng.bits()),
            queue: VecDeque::new(),
            rng,
            counters: Counters::default(),
        })
    }

    /// Does what is due.
    pub(crate) fn poll(&mut self, now_ns: u64) {
        let silent = self.neighbours.poll(now_ns);
        self.counters
            .drop_many(DropReason::NeighbourUnresolved, silent);
        let late = self.reassembly.expire(now_ns);
        self.counters.drop_many(DropReason::ReassemblyTimeout, late);
        self.send_asks(now_ns);
    }

    /// When [`Host::poll`] is due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        earlier(self.neighbours.next_ns(), self.reassembly.next_ns())
    }
}
