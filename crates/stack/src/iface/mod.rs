//! `Interface`: the link and IP layers of one host on one Ethernet link. These are ARP
//! (RFC 826), neighbour discovery (RFC 4861), IPv4, IPv6, reassembly, ICMP and DHCP.
//!
//! ```text
//!  frame ─► input ─┬─► arp, nd ──► neighbours ──┐
//!                  ├─► reassembly ─► input      │
//!                  ├─► icmp ─► echo, errors     ▼
//!                  └─► UDP, TCP ─► output ─► routes ─► queue ─► frame
//! ```
//!
//! All input may be hostile: each table has a limit, stated at its constant, and each dropped
//! frame has a [`DropReason`].

mod address;
mod arp;
mod config;
mod counters;
mod dad;
mod dhcp;
mod event;
mod ext_header;
mod header_cache;
mod icmp;
mod input;
mod membership;
mod nd;
mod neighbours;
mod offload;
mod output;
mod pmtu;
mod prefix;
mod rate_limit;
mod reassembly;
mod router_discovery;
mod routes;

pub use address::Origin;
pub use config::{ADDRESSES_MAX, Config, ConfigError, DadMode, MTU, Mode, ROUTES_MAX};
pub use counters::{Counters, DropReason};
pub use dhcp::Lease;
pub use event::{EVENTS_MAX, Event, RemovalReason};
pub use membership::{ANSWER_MIN_NS, GROUPS_MAX};
pub use neighbours::{
    DELAY_FIRST_PROBE_NS, NEIGHBOURS_MAX, REACHABLE_NS, RETRANS_TIMER_NS, SOLICITS_MAX,
    UNRESOLVED_ALL_MAX, UNRESOLVED_MAX, UNRESOLVED_MIN,
};
pub use offload::{BURST_MAX, BurstFrame, Channel, Gso, Offload, RxMeta, TxMeta};
pub use output::{HOP_LIMIT, QUEUE_MAX};
pub use pmtu::{PATHS_MAX, PMTU_AGE_NS};
pub use prefix::{Prefix, PrefixError};
pub use reassembly::{BYTES_MAX, DATAGRAMS_MAX, FRAGMENTS_MAX, TIMEOUT_NS};
pub use router_discovery::{
    AUTOMATIC_MAX, DNS_SERVERS_MAX, LEARNT_ROUTES_MAX, PREFIXES_MAX, REDIRECTS_MAX, ROUTERS_MAX,
};
pub use routes::Route;

pub(crate) use address::Lifetimes;
pub(crate) use ext_header::walk;
pub(crate) use header_cache::HeaderCache;
pub(crate) use icmp::{
    Problem, Report, ReportKind, UnreachableKind, quoted_by, unreachable_report,
};
pub(crate) use input::{Incoming, Input};
pub(crate) use output::Header;
pub(crate) use routes::Routes;

use crate::rng::PrfRng;
use dhcp::Dhcp;
use event::Events;
use membership::Groups;
use neighbours::Neighbours;
use pmtu::PmtuCache;
use rate_limit::RateLimit;
use reassembly::Reassembly;
use router_discovery::Discovery;
use std::collections::VecDeque;
use weir_wire::ethernet::Address;
use weir_wire::{EtherType, ethernet};

/// The link and IP layers of one link.
pub(crate) struct Interface {
    /// The link's number in the stack.
    pub(crate) link: u8,
    /// The link is gone: no frame is sent or received any more.
    pub(crate) is_gone: bool,
    hardware: Address,
    mtu: usize,
    /// Longest packet in bytes, as routers and servers announce it, for each IP version.
    interface_mtu: [usize; 2],
    detect: DadMode,
    pub(crate) offload: Offload,
    /// The link returns frames to the host itself.
    hairpin: bool,
    /// The host itself has sent the frame that is being received.
    pub(crate) looped: bool,
    pub(crate) mode: Mode,
    pub(crate) routes: Routes,
    neighbours: Neighbours,
    groups: Groups,
    discovery: Discovery,
    dhcp: Dhcp,
    events: Events,
    /// Frames for neighbours that never answered; the senders get an error.
    unreached: Vec<Vec<u8>>,
    /// An address was lost, which header filters may still expect.
    has_lost: bool,
    /// An address was added, which another link may have as well.
    has_taken: bool,
    /// When the timers of addresses, routes and groups are next due.
    slow_ns: u64,
    reassembly: Reassembly,
    paths: PmtuCache,
    /// The headers that were resolved last, for packets with the same IP header.
    latest_header_cache: Option<(Header, HeaderCache)>,
    limit: RateLimit,
    /// Frames to be sent.
    queue: VecDeque<Vec<u8>>,
    rng: PrfRng,
    pub(crate) counters: Counters,
}

/// The addresses and routes of one link, to be copied to another stack of the same host. The
/// stack that manages them also ends them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LinkAddressing {
    routes: Routes,
    interface_mtu: [usize; 2],
}

impl Interface {
    pub(crate) fn new(config: &Config, link: u8, seed: u128) -> Result<Interface, ConfigError> {
        config.check()?;
        let mut rng = PrfRng::new(seed, "host");
        let mut host = Interface {
            link,
            is_gone: false,
            hardware: config.hardware,
            mtu: config.mtu,
            interface_mtu: [config.mtu; 2],
            detect: config.dad_mode,
            offload: config.offload,
            hairpin: config.hairpin,
            looped: false,
            mode: config.mode,
            routes: Routes::new(config),
            neighbours: Neighbours::default(),
            groups: Groups::new(seed),
            discovery: Discovery::new(config.autoconf, config.secret, seed),
            dhcp: Dhcp::new(seed),
            events: Events::default(),
            unreached: Vec::new(),
            has_lost: false,
            has_taken: false,
            slow_ns: 0,
            reassembly: Reassembly::default(),
            paths: PmtuCache::default(),
            latest_header_cache: None,
            limit: RateLimit::new(rng.bits()),
            queue: VecDeque::new(),
            rng,
            counters: Counters::default(),
        };
        // Time starts anywhere, so the first timers are due at the first poll.
        host.begin_addresses(0, config);
        host.begin_discovery(0);
        if config.dhcp {
            host.begin_dhcp(0);
        }
        host.reschedule();
        Ok(host)
    }

    /// The link's hardware address.
    pub(crate) fn hardware(&self) -> Address {
        self.hardware
    }

    /// Whether a poll has work to do; mostly it has not, which this test finds cheaply.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        let asks = self.neighbours.has_solicits();
        asks | self.has_changes() | self.has_frames() || self.due_ns() <= now_ns
    }

    /// Runs the timers that are due.
    pub(crate) fn poll(&mut self, now_ns: u64) {
        if self.slow_ns <= now_ns {
            self.poll_slow(now_ns);
        }
        for (neighbour, frames) in self.neighbours.poll(now_ns) {
            self.routes.demote(neighbour);
            let waited = frames.len() as u64;
            self.counters
                .drop_many(DropReason::NeighbourUnresolved, waited);
            self.unreached.extend(frames);
        }
        let late = self.reassembly.expire(now_ns);
        self.counters.drop_many(DropReason::ReassemblyTimeout, late);
        self.send_solicits(now_ns);
    }

    /// Runs the timers of addresses, routes and groups, which change seldom.
    fn poll_slow(&mut self, now_ns: u64) {
        self.expire(now_ns);
        self.poll_groups(now_ns);
        self.poll_detection(now_ns);
        self.poll_discovery(now_ns);
        self.poll_dhcp(now_ns);
        self.reschedule();
    }

    /// Computes anew when those timers are due.
    fn reschedule(&mut self) {
        self.neighbours.invalidate_cached_hops();
        let due = [
            self.routes.due_ns(),
            self.groups.due_ns(),
            self.discovery.due_ns(),
            self.dhcp.due_ns(),
        ];
        self.slow_ns = due.into_iter().min().unwrap_or(u64::MAX);
    }

    /// When [`Interface::poll`] is due; `u64::MAX` if no timer runs.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        let neighbours_ns = self.neighbours.next_ns().unwrap_or(u64::MAX);
        let reassembly_ns = self.reassembly.next_ns().unwrap_or(u64::MAX);
        self.slow_ns.min(neighbours_ns).min(reassembly_ns)
    }

    /// A version number of addresses and routes: it differs after each change.
    pub(crate) fn addressing_epoch(&self) -> u32 {
        self.neighbours.epoch()
    }

    /// The link's addresses and routes, for another stack of the same host.
    pub(crate) fn addressing(&self) -> LinkAddressing {
        LinkAddressing {
            routes: self.routes.lasting(),
            interface_mtu: self.interface_mtu,
        }
    }

    /// Takes over the addresses and routes that another stack of the same host manages.
    pub(crate) fn follow(&mut self, addressing: &LinkAddressing) {
        let mut ours = self.routes.addresses().iter().filter(|one| one.is_ours());
        self.has_lost |= ours.any(|one| !addressing.routes.is_ours(one.prefix.address()));
        self.routes = addressing.routes.clone();
        self.interface_mtu = addressing.interface_mtu;
        self.reschedule();
    }

    /// The packet in an Ethernet frame to this host.
    pub(crate) fn framed(&self, packet: &[u8]) -> Vec<u8> {
        let ether_type = match packet.first().map(|first| first >> 4) {
            Some(6) => EtherType::IPV6,
            _ => EtherType::IPV4,
        };
        let header = ethernet::Repr {
            dst: self.hardware,
            src: self.hardware,
            ether_type,
        };
        let mut frame = vec![0; ethernet::Repr::LEN];
        header.emit(&mut frame);
        frame.extend_from_slice(packet);
        frame
    }

    /// Takes a frame that no neighbour took, whose Ethernet header is not filled in.
    pub(crate) fn next_unreached(&mut self) -> Option<Vec<u8>> {
        self.unreached.pop()
    }

    /// Whether [`Interface::take_removed`], [`Interface::take_added`] or
    /// [`Interface::next_unreached`] may have a result.
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        self.has_lost | self.has_taken | !self.unreached.is_empty()
    }

    /// Whether an address was lost since the last call.
    #[inline]
    pub(crate) fn take_removed(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    /// Whether an address was added since the last call.
    #[inline]
    pub(crate) fn take_added(&mut self) -> bool {
        std::mem::take(&mut self.has_taken)
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the oldest event of addresses and routes.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.next()
    }
}
