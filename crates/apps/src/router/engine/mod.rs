//! A router without I/O on Ethernet links: IPv4 by RFC 1812, IPv6 by RFC 8200
//! and RFC 4443. [`Router::process`] changes frames in place and returns a
//! [`Verdict`] for each. The caller passes the time.
//!
//! ```text
//!  frame ─► check ─► look up ─┬─► forward: TTL, options, redirect ─► neighbour ─► Forward
//!           (batch)  (batch)  ├─► fragments, ICMP errors ──────────► queue ─► next_output
//!                             ├─► ours: ARP, ND, echo ─────────────► Forward, back
//!                             └─► Done, counted by its Reason
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | [`fib`] | longest-prefix match |
//! | [`Routes`] | the target of each prefix, by origin |
//! | [`config`] | `router.toml` |
//!
//! All input is untrusted: each table has a limit, stated at its constant, and
//! each dropped frame has a [`Reason`]. The router does not implement multicast
//! routing and IGMP; router advertisements; reassembly (an echo request in
//! fragments is not answered); jumbograms; hop-by-hop options, which a router
//! forwards unread (RFC 8200 §4.3).

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

/// Length of an Ethernet header, in bytes.
const ETHERNET: usize = weir_wire::ethernet::Repr::LEN;

/// Number of frames that are looked up together.
pub const BATCH_MAX: usize = 64;

/// Largest number of links of one router: that of a tap.
pub const LINKS_MAX: usize = 8;

/// Smallest MTU, which every IPv4 link supports (RFC 791), in bytes.
pub(crate) const MTU_MIN: usize = 68;

/// The decision on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Send its first `len` bytes on this link.
    Forward {
        /// The link.
        link: LinkId,
        /// Number of bytes to send; padding is cut off.
        len: usize,
    },
    /// Nothing: the frame was dropped, or the router stored a copy for later.
    Done,
}

/// The configuration of a router.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// The links; a link's number is its index here.
    pub links: Vec<LinkSettings>,
    /// Static neighbours, which are not solicited.
    pub neighbours: Vec<(LinkId, IpAddr, Address)>,
    /// Largest number of neighbours, on all links together.
    pub neighbours_max: usize,
    /// Largest number of routes of each version of IP, bounded by
    /// [`ROUTES_V4_MAX`] and [`ROUTES_V6_MAX`].
    pub routes_max: usize,
    /// Number of ICMP errors and redirects per second; 0 for none.
    pub icmp_per_second: u32,
    /// Largest burst of them.
    pub icmp_burst: u32,
    /// Whether the router sends redirects to hosts with a better first hop.
    pub redirects: bool,
    /// Whether the host's own protocols use the links, too, and get neighbour
    /// updates: see [`Router::next_neighbour_update`].
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

/// An IP router without I/O; see the [module](self).
pub struct Router {
    links: Vec<Link>,
    routes: Routes,
    neighbours: Neighbours,
    output: Output,
    limit: RateLimit,
    counters: Counters,
    /// The router's addresses, sorted.
    own_v4: Vec<Ipv4Addr>,
    own_v6: Vec<Ipv6Addr>,
    /// Seed of the hash that chooses among hops.
    seed: u64,
    /// The time of day in milliseconds, and the clock at that moment.
    clock: Option<(u32, u64)>,
    redirects: bool,
    is_turned: bool,
    neighbour_updates: Option<UpdateQueue>,
    /// The link on which the frames being processed arrived.
    arrived: LinkId,
    /// The mask of cacheable frames, see [`Router::cacheable`]; and the flag of
    /// the present frame.
    cacheable: u64,
    is_cacheable: bool,
    /// Routes or links have changed since `take_changed`.
    changed: bool,
}

/// The classification of a frame.
#[derive(Clone, Copy)]
enum PacketClass {
    /// An IPv4 packet with a valid header; the index of its key.
    V4(usize),
    /// An IPv6 packet with a valid header; the index of its key.
    V6(usize),
    Arp,
    Other(Reason),
}

impl Router {
    /// Makes a router with routes to the networks of its links.
    ///
    /// # Errors
    /// If there are more routes or links than fit.
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
            is_turned: false,
            neighbour_updates: settings.host.then(UpdateQueue::default),
            arrived: 0,
            cacheable: 0,
            is_cacheable: false,
            changed: false,
        })
    }

    /// The router's routes.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// The routes, for changes. Each change takes effect at once, except for
    /// short prefixes: those take effect within the next calls of
    /// [`Router::poll`].
    pub fn routes_mut(&mut self) -> &mut Routes {
        self.changed = true;
        &mut self.routes
    }

    /// The router's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of neighbours, resolved or being solicited.
    pub fn neighbours(&self) -> usize {
        self.neighbours.len()
    }

    /// Sets whether a link carries frames. The router sends nothing on a link
    /// that does not.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) {
        self.changed = true;
        if let Some(link) = self.links.get_mut(usize::from(link)) {
            link.up = up;
        }
    }

    /// Sets a link's MTU in bytes. A value below the IPv4 minimum of 68 (RFC
    /// 791) counts as that.
    pub fn set_mtu(&mut self, link: LinkId, mtu: usize) {
        let mtu = mtu.max(MTU_MIN);
        if let Some(link) = self.links.get_mut(usize::from(link))
            && link.mtu != mtu
        {
            link.mtu = mtu;
            self.changed = true;
        }
    }

    /// Replaces the router's addresses on a link.
    ///
    /// # Errors
    /// If there is no room for some of the routes to them; these are added as
    /// soon as there is room.
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

    /// Sets whether the next packets were turned: sent from the inside to an
    /// address that a translator maps to the inside. Their source may be an
    /// address of the router's, and their sender gets no redirect.
    pub fn set_turned(&mut self, is_turned: bool) {
        self.is_turned = is_turned;
    }

    /// The router's hardware address on a link, and the link's MTU in bytes.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn link(&self, link: LinkId) -> (Address, usize) {
        let link = &self.links[usize::from(link)];
        (link.hardware, link.mtu)
    }

    /// Sets the time of day in UTC, in milliseconds since midnight, for
    /// timestamp options (RFC 791).
    pub fn set_clock(&mut self, now_ns: u64, day_ms: u32) {
        self.clock = Some((day_ms, now_ns));
    }

    /// Processes frames that arrived on a link and writes a verdict for each,
    /// in order.
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
        self.process_to(now_ns, link, frames, &[], verdicts);
    }

    /// As [`Router::process`], with the next hops that the caller has chosen for packets of IPv4,
    /// whatever their destinations: neighbours on the router's links. `next_hops` has a place for
    /// each frame, or none. A packet whose next hop is behind a gateway, or the router itself, has
    /// no route. A router with such a caller sends no redirects: they would lead senders past it.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn process_to<F: AsMut<[u8]>>(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frames: &mut [F],
        next_hops: &[Option<Ipv4Addr>],
        verdicts: &mut Vec<Verdict>,
    ) {
        verdicts.clear();
        let mut next_hops = next_hops.chunks(BATCH_MAX);
        for frames in frames.chunks_mut(BATCH_MAX) {
            let next_hops = next_hops.next().unwrap_or_default();
            self.process_some(now_ns, link, frames, next_hops, verdicts);
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
        next_hops: &[Option<Ipv4Addr>],
        verdicts: &mut Vec<Verdict>,
    ) {
        self.arrived = link;
        let next_hop = |place: usize| next_hops.get(place).copied().flatten();
        let mut classes = [PacketClass::Arp; BATCH_MAX];
        let (mut keys_v4, mut keys_v6) = ([0u32; BATCH_MAX], [0u128; BATCH_MAX]);
        let (mut count_v4, mut count_v6) = (0, 0);
        let mut bytes = 0;
        for (place, (frame, class)) in frames.iter_mut().zip(&mut classes).enumerate() {
            let frame = frame.as_mut();
            bytes += frame.len();
            *class = match self.classify(link, frame) {
                Ok(Key::V4(key)) => {
                    keys_v4[count_v4] = next_hop(place).map_or(key, Ipv4Addr::to_bits);
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
                PacketClass::V4(slot) => {
                    self.forward_v4(now_ns, link, frame, found_v4[slot], next_hop(place))
                }
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

    /// Classifies a frame and checks its headers.
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

    /// Performs due work: updates the forwarding tables, repeats solicitations,
    /// and gives up neighbours that do not answer.
    pub fn poll(&mut self, now_ns: u64) {
        let lacked = self.routes.own_lacking();
        self.changed |= !self.routes.is_up_to_date();
        self.routes.rebuild_some();
        // While these routes wait, nothing changes, and cached decisions stay
        // valid.
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

    /// The latest time for [`Router::poll`], [`Router::next_output`] or
    /// [`Router::next_neighbour_update`], in ns: 0 (at once) while tables are
    /// being updated, or frames or updates wait. `None` if nothing is due.
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

    /// The next frame that the router itself sends, with its link: fragments,
    /// ICMP, ARP, neighbour discovery, and frames that waited for a neighbour.
    /// `None` if there is none.
    pub fn next_output(&mut self) -> Option<(LinkId, Vec<u8>)> {
        let (link, frame) = self.output.pop()?;
        let counts = &mut self.counters.links[usize::from(link)];
        counts.tx_frames += 1;
        counts.tx_bytes += frame.len() as u64;
        Some((link, frame))
    }

    /// The next neighbour update for the host's own protocols; `None` if there
    /// is none. The host sends its solicitations past the router, but the
    /// answers come to the router.
    pub fn next_neighbour_update(&mut self) -> Option<NeighbourUpdate> {
        self.neighbour_updates.as_mut()?.pop()
    }

    /// Counts frames that a link did not accept, from a verdict or from
    /// [`Router::next_output`].
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

    /// The hop for an answer to the present frame; `None` if there is no route.
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

    /// Resolves a route for a flow.
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

    /// The hop of a flow among those whose link is up; `None` if there is none.
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

/// The result of resolving a route.
enum FibResult {
    Hop(Hop),
    Local,
    Broadcast,
    Refused(Reason),
}

impl FibResult {
    /// The way to a neighbour, by the route to its address; refused if it is none.
    fn directly_to(self, neighbour: IpAddr) -> FibResult {
        match self {
            FibResult::Hop(Hop {
                link,
                gateway: None,
            }) => FibResult::Hop(Hop {
                link,
                gateway: Some(neighbour),
            }),
            FibResult::Refused(reason) => FibResult::Refused(reason),
            _ => FibResult::Refused(Reason::NoRoute),
        }
    }
}

/// The key of a frame's look-up.
enum Key {
    V4(u32),
    V6(u128),
    Arp,
}

/// The addresses of all links, sorted, without link-local addresses.
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

/// The prefix that contains only one address.
fn host_prefix(address: IpAddr) -> Prefix {
    let len = if address.is_ipv4() { 32 } else { 128 };
    Prefix::new(address, len).expect("as many bits as the address has")
}
