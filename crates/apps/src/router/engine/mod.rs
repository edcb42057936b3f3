//! A router without I/O: IPv4 by RFC 1812, IPv6 by RFC 8200 and RFC 4443, on
//! Ethernet links. Frames go in and are changed in place; for each comes a
//! [`Verdict`]. Time is passed in.
//!
//! ```text
//!  frame ─► check ─► look up ─┬─► forward: TTL, options, redirect ─► neighbour ─► Forward
//!           (batch)  (batch)  ├─► fragments, ICMP errors ──────────► queue ─► next_own
//!                             ├─► ours: ARP, ND, echo ─────────────► Forward, back
//!                             └─► Done, counted by its Reason
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`fib`] | longest-prefix match |
//! | [`Routes`] | where each prefix leads, by whom we know |
//! | [`config`] | `router.toml` |
//!
//! Everything that comes is hostile: each table has a limit, stated where it
//! is set, and what is dropped has a [`Reason`]. Not here: multicast routing
//! and IGMP; router advertisements; reassembly (an echo request in fragments
//! is not answered); jumbograms; hop-by-hop options, which a router passes on
//! unread (RFC 8200 §4.3).

pub mod config;
mod counters;
mod forward;
mod hash;
mod link;
mod local;
mod output;
mod rate_limit;
mod table;

pub use counters::{Counters, LinkCounts, Reason};
pub use forward::cacheable::NextHop;
pub use link::LinkSettings;
pub use local::neighbour_updates::{NeighbourUpdate, UPDATE_BURST, UPDATES_PER_SECOND};
pub use output::QUEUE_MAX;
pub use table::fib;
pub use table::neighbours::UNRESOLVED_ALL_MAX;
pub use table::routes::{
    HOPS_MAX, Hop, LinkId, Origin, ROUTES_V4_MAX, ROUTES_V6_MAX, RouteError, Routes, TARGETS_MAX,
    Target,
};

use link::Link;
use local::neighbour_updates::UpdateQueue;
use output::Output;
use rate_limit::RateLimit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use table::neighbours::Neighbours;
use weir_stack::Prefix;
use weir_wire::EtherType;
use weir_wire::ethernet::Address;
use weir_wire::field::read_u16;

/// Bytes of an Ethernet header.
const ETHERNET: usize = weir_wire::ethernet::Repr::LEN;

/// Frames that are looked up together.
pub const BATCH_MAX: usize = 64;

/// Links of one router: as many as one tap has.
pub const LINKS_MAX: usize = 8;

/// Bytes of the longest packet that every link takes (RFC 791).
pub(crate) const MTU_MIN: usize = 68;

/// What to do with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Send its first `len` bytes on this link.
    Forward {
        /// The link.
        link: LinkId,
        /// Bytes to send: padding is left behind.
        len: usize,
    },
    /// Nothing: it was dropped, or its bytes are kept for later.
    Done,
}

/// What a router is made of.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// Its links; their numbers are their places here.
    pub links: Vec<LinkSettings>,
    /// Neighbours that are told, not asked for.
    pub neighbours: Vec<(LinkId, IpAddr, Address)>,
    /// Neighbours that are known at once, on all links.
    pub neighbours_max: usize,
    /// Routes of each version of IP, as far as they fit: see
    /// [`ROUTES_V4_MAX`] and [`ROUTES_V6_MAX`].
    pub routes_max: usize,
    /// ICMP errors and redirects that may go out in a second; 0 for none.
    pub icmp_per_second: u32,
    /// How many of them at once.
    pub icmp_burst: u32,
    /// Whether hosts are told of a better first hop.
    pub redirects: bool,
    /// Whether the host's own protocols use the links, too, and are told what
    /// neighbours say: see [`Router::next_neighbour_update`].
    pub host: bool,
}

impl Default for RouterConfig {
    fn default() -> RouterConfig {
        RouterConfig {
            links: Vec::new(),
            neighbours: Vec::new(),
            neighbours_max: 8192,
            routes_max: ROUTES_V4_MAX,
            icmp_per_second: 1000,
            icmp_burst: 50,
            redirects: true,
            host: false,
        }
    }
}

/// See the module.
pub struct Router {
    links: Vec<Link>,
    routes: Routes,
    neighbours: Neighbours,
    output: Output,
    limit: RateLimit,
    counters: Counters,
    /// Its addresses, in order.
    own_v4: Vec<Ipv4Addr>,
    own_v6: Vec<Ipv6Addr>,
    /// Where the choice among hops begins.
    seed: u64,
    /// The day's time in milliseconds, and when it was that.
    clock: Option<(u32, u64)>,
    redirects: bool,
    neighbour_updates: Option<UpdateQueue>,
    /// The link of the frames that are being processed.
    arrived: LinkId,
    /// Which of them were forwarded as their like is; and the one in hand.
    cacheable: u64,
    is_cacheable: bool,
    /// Routes or links have changed.
    changed: bool,
}

/// What a frame turned out to be.
#[derive(Clone, Copy)]
enum PacketClass {
    /// An IPv4 packet whose header is good; the slot of its key.
    V4(usize),
    /// An IPv6 packet, likewise.
    V6(usize),
    Arp,
    Other(Reason),
}

impl Router {
    /// A router with routes to its links' own networks.
    ///
    /// # Errors
    /// If more routes or links are given than fit.
    pub fn new(settings: &RouterConfig, seed: u64) -> Result<Router, RouteError> {
        if settings.links.len() > LINKS_MAX {
            return Err(RouteError::Full { max: LINKS_MAX });
        }
        let mut neighbours = Neighbours::new(settings.neighbours_max, seed);
        for &(link, ip, hardware) in &settings.neighbours {
            neighbours.set_static((link, ip), hardware);
        }
        let links: Vec<Link> = settings.links.iter().map(Link::new).collect();
        let mut routes = Routes::with_room(settings.routes_max);
        routes.set_own(own_routes(&links))?;
        while routes.rebuild_some() {}
        let (own_v4, own_v6) = own_addresses(&links);
        Ok(Router {
            own_v4,
            own_v6,
            counters: Counters::new(links.len()),
            limit: RateLimit::new(settings.icmp_per_second, settings.icmp_burst),
            output: Output::new(links.len(), seed),
            links,
            routes,
            neighbours,
            seed,
            clock: None,
            redirects: settings.redirects,
            neighbour_updates: settings.host.then(UpdateQueue::default),
            arrived: 0,
            cacheable: 0,
            is_cacheable: false,
            changed: false,
        })
    }

    /// Its routes.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Its routes, to be changed: each change takes effect at once, those of
    /// short prefixes within the next calls of [`Router::poll`].
    pub fn routes_mut(&mut self) -> &mut Routes {
        self.changed = true;
        &mut self.routes
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many neighbours are known or asked for.
    pub fn neighbours(&self) -> usize {
        self.neighbours.len()
    }

    /// Tells whether a link carries frames. Nothing is sent over one that
    /// does not.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) {
        self.changed = true;
        if let Some(link) = self.links.get_mut(usize::from(link)) {
            link.up = up;
        }
    }

    /// Tells how many bytes the longest packet of a link has, from now on. Less
    /// than IPv4 allows (RFC 791, 68) counts as that.
    pub fn set_mtu(&mut self, link: LinkId, mtu: usize) {
        let mtu = mtu.max(MTU_MIN);
        if let Some(link) = self.links.get_mut(usize::from(link))
            && link.mtu != mtu
        {
            link.mtu = mtu;
            self.changed = true;
        }
    }

    /// Gives the router these addresses on a link, and those alone.
    ///
    /// # Errors
    /// If there is no room for some of the routes to them: these follow as soon
    /// as there is.
    pub fn set_addresses(
        &mut self,
        link: LinkId,
        addresses: Vec<Prefix>,
    ) -> Result<(), RouteError> {
        let Some(link) = self.links.get_mut(usize::from(link)) else {
            return Ok(());
        };
        if link.addresses == addresses {
            return Ok(());
        }
        link.set_addresses(addresses);
        self.changed = true;
        (self.own_v4, self.own_v6) = own_addresses(&self.links);
        self.routes.set_own(own_routes(&self.links))
    }

    /// The router's station on a link, and the bytes of its longest packet.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn link(&self, link: LinkId) -> (Address, usize) {
        let link = &self.links[usize::from(link)];
        (link.hardware, link.mtu)
    }

    /// Tells the time of day in UTC, in milliseconds since midnight, for
    /// packets that ask for it (RFC 791, timestamps).
    pub fn set_clock(&mut self, now_ns: u64, day_ms: u32) {
        self.clock = Some((day_ms, now_ns));
    }

    /// Takes frames that came on a link and says what to do with each, in
    /// order.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn process<F: AsMut<[u8]>>(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frames: &mut [F],
        verdicts: &mut Vec<Verdict>,
    ) {
        verdicts.clear();
        for frames in frames.chunks_mut(BATCH_MAX) {
            self.process_some(now_ns, link, frames, verdicts);
        }
        if self.neighbours.has_solicits() {
            self.send_solicits();
        }
    }

    fn process_some<F: AsMut<[u8]>>(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frames: &mut [F],
        verdicts: &mut Vec<Verdict>,
    ) {
        self.arrived = link;
        let mut classes = [PacketClass::Arp; BATCH_MAX];
        let (mut keys_v4, mut keys_v6) = ([0u32; BATCH_MAX], [0u128; BATCH_MAX]);
        let (mut count_v4, mut count_v6) = (0, 0);
        let mut bytes = 0;
        for (frame, class) in frames.iter_mut().zip(&mut classes) {
            let frame = frame.as_mut();
            bytes += frame.len();
            *class = match self.classify(link, frame) {
                Ok(Key::V4(key)) => {
                    keys_v4[count_v4] = key;
                    count_v4 += 1;
                    PacketClass::V4(count_v4 - 1)
                }
                Ok(Key::V6(key)) => {
                    keys_v6[count_v6] = key;
                    count_v6 += 1;
                    PacketClass::V6(count_v6 - 1)
                }
                Ok(Key::Arp) => PacketClass::Arp,
                Err(reason) => PacketClass::Other(reason),
            };
        }
        let counts = &mut self.counters.links[usize::from(link)];
        counts.rx_frames += frames.len() as u64;
        counts.rx_bytes += bytes as u64;
        let (mut found_v4, mut found_v6) = ([0; BATCH_MAX], [0; BATCH_MAX]);
        self.routes
            .v4()
            .lookup_batch(&keys_v4[..count_v4], &mut found_v4);
        self.routes
            .v6()
            .lookup_batch(&keys_v6[..count_v6], &mut found_v6);
        self.cacheable = 0;
        for (place, (frame, class)) in frames.iter_mut().zip(classes).enumerate() {
            let frame = frame.as_mut();
            self.is_cacheable = false;
            let done = match class {
                PacketClass::V4(slot) => self.forward_v4(now_ns, link, frame, found_v4[slot]),
                PacketClass::V6(slot) => self.forward_v6(now_ns, link, frame, found_v6[slot]),
                PacketClass::Arp => self.arp(now_ns, link, frame),
                PacketClass::Other(reason) => Err(reason),
            };
            let goes = matches!(done, Ok(Verdict::Forward { .. }));
            self.cacheable |= u64::from(goes && self.is_cacheable) << place;
            verdicts.push(self.verdict(done));
        }
    }

    fn verdict(&mut self, done: Result<Verdict, Reason>) -> Verdict {
        match done {
            Ok(Verdict::Forward { link, len }) => {
                let counts = &mut self.counters.links[usize::from(link)];
                counts.tx_frames += 1;
                counts.tx_bytes += len as u64;
                Verdict::Forward { link, len }
            }
            Ok(verdict) => verdict,
            Err(reason) => {
                self.counters.drop(reason, 1);
                Verdict::Done
            }
        }
    }

    /// What a frame is, and that its headers are good.
    fn classify(&self, link: LinkId, frame: &[u8]) -> Result<Key, Reason> {
        if frame.len() < ETHERNET {
            return Err(Reason::Malformed);
        }
        let to_us = frame[..6] == self.links[usize::from(link)].hardware.0;
        if !to_us && frame[0] & 1 == 0 {
            return Err(Reason::OtherStation);
        }
        match EtherType(read_u16(frame, 12)) {
            EtherType::IPV4 => forward::ipv4::check(&frame[ETHERNET..]).map(Key::V4),
            EtherType::IPV6 => forward::ipv6::check(&frame[ETHERNET..]).map(Key::V6),
            EtherType::ARP => Ok(Key::Arp),
            kind if kind.is_tag() => Err(Reason::Tagged),
            _ => Err(Reason::EtherTypeUnknown),
        }
    }

    /// Does what is due: brings routes up to date, asks neighbours again,
    /// gives up those that never answer.
    pub fn poll(&mut self, now_ns: u64) {
        let lacked = self.routes.own_lacking();
        self.changed |= !self.routes.is_up_to_date();
        self.routes.rebuild_some();
        // While they wait, nothing changes, and what is remembered holds.
        self.changed |= self.routes.own_lacking() != lacked;
        if self.neighbours.next_ns().is_some_and(|due| due <= now_ns) {
            let silent = self.neighbours.poll(now_ns);
            for (link, frame) in silent {
                self.counters.drop(Reason::NeighbourUnresolved, 1);
                self.report_silent(now_ns, link, &frame);
            }
        }
        if self.neighbours.has_solicits() {
            self.send_solicits();
        }
    }

    /// When [`Router::poll`], [`Router::next_output`] or [`Router::next_neighbour_update`] is
    /// due at the latest: at once while routes are being brought up to date,
    /// or frames or words wait.
    pub fn next_ns(&self) -> Option<u64> {
        let has_heard = self
            .neighbour_updates
            .as_ref()
            .is_some_and(|heard| !heard.is_empty());
        if self.routes.is_up_to_date() && self.output.is_empty() && !has_heard {
            self.neighbours.next_ns()
        } else {
            Some(0)
        }
    }

    /// The next frame that the router itself sends, and on which link:
    /// fragments, ICMP, ARP, neighbour discovery, and what waited for a
    /// neighbour.
    pub fn next_output(&mut self) -> Option<(LinkId, Vec<u8>)> {
        let (link, frame) = self.output.pop()?;
        let counts = &mut self.counters.links[usize::from(link)];
        counts.tx_frames += 1;
        counts.tx_bytes += frame.len() as u64;
        Some((link, frame))
    }

    /// The next word of a neighbour that the host's own protocols are to hear,
    /// since their questions go out past the router and the answers come to it.
    pub fn next_neighbour_update(&mut self) -> Option<NeighbourUpdate> {
        self.neighbour_updates.as_mut()?.pop()
    }

    /// Tells that a link did not take frames that a verdict or
    /// [`Router::next_output`] gave it.
    pub fn tx_dropped(&mut self, link: LinkId, frames: u64, bytes: u64) {
        let counts = &mut self.counters.links[usize::from(link)];
        counts.tx_frames = counts.tx_frames.saturating_sub(frames);
        counts.tx_bytes = counts.tx_bytes.saturating_sub(bytes);
        self.counters.drop(Reason::LinkFull, frames);
    }

    /// Whether an address is one of the router's own, as seen from a link.
    fn is_ours(&self, link: LinkId, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(ip) => self.is_ours_v4(ip),
            IpAddr::V6(ip) => self.is_ours_v6(link, ip),
        }
    }

    /// Where an answer to the frame in hand goes.
    fn reverse_hop(&self, to: IpAddr) -> Option<Hop> {
        let number = match to {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                return Some(Hop {
                    link: self.arrived,
                    gateway: None,
                });
            }
            IpAddr::V6(ip) => self.routes.v6().lookup(ip.to_bits()),
            IpAddr::V4(ip) => self.routes.v4().lookup(ip.to_bits()),
        };
        match self.select_hop(number, || 0) {
            FibResult::Hop(hop) => Some(hop),
            _ => None,
        }
    }

    /// Where a route leads for this flow.
    fn select_hop(&self, number: u32, flow: impl FnOnce() -> u64) -> FibResult {
        match self.routes.target(number) {
            None => FibResult::Refused(Reason::NoRoute),
            Some(Target::Local) => FibResult::Local,
            Some(Target::Broadcast) => FibResult::Broadcast,
            Some(Target::Blackhole) => FibResult::Refused(Reason::Blackhole),
            Some(Target::Unreachable) => FibResult::Refused(Reason::Unreachable),
            Some(Target::Prohibit) => FibResult::Refused(Reason::Prohibited),
            Some(Target::Forward(hops)) => match self.choose(hops, flow) {
                Some(hop) => FibResult::Hop(hop),
                None => FibResult::Refused(Reason::LinkDown),
            },
        }
    }

    /// The hop that a flow keeps to, of those whose link is up.
    fn choose(&self, hops: &[Hop], flow: impl FnOnce() -> u64) -> Option<Hop> {
        let is_up = |hop: &&Hop| {
            let link = self.links.get(usize::from(hop.link));
            link.is_some_and(|link| link.up)
        };
        if let [hop] = hops {
            return Some(hop).filter(is_up).copied();
        }
        let up = hops.iter().filter(is_up).count() as u64;
        let chosen = hash::mixed(flow() ^ self.seed).checked_rem(up)?;
        hops.iter().filter(is_up).nth(chosen as usize).copied()
    }
}

/// Where a packet goes.
enum FibResult {
    Hop(Hop),
    Local,
    Broadcast,
    Refused(Reason),
}

/// What a frame is looked up by.
enum Key {
    V4(u32),
    V6(u128),
    Arp,
}

/// The addresses of all links, in order, but for those of a link alone.
fn own_addresses(links: &[Link]) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    let mut own_v4 = Vec::new();
    let mut own_v6 = Vec::new();
    for prefix in links.iter().flat_map(|link| &link.addresses) {
        match prefix.address() {
            IpAddr::V4(ip) => own_v4.push(ip),
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {}
            IpAddr::V6(ip) => own_v6.push(ip),
        }
    }
    own_v4.sort_unstable();
    own_v6.sort_unstable();
    (own_v4, own_v6)
}

/// The routes to the networks and addresses of all links.
fn own_routes(links: &[Link]) -> Vec<(Prefix, Target)> {
    let links = links.iter().zip(0..);
    links
        .flat_map(|(link, number)| link.own_routes(number))
        .collect()
}

/// The prefix of one address alone.
fn host_prefix(address: IpAddr) -> Prefix {
    let len = if address.is_ipv4() { 32 } else { 128 };
    Prefix::new(address, len).expect("as many bits as the address has")
}
