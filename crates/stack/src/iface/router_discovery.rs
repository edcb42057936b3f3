//! Router discovery: routers and the networks, routes, MTU and DNS servers that they advertise
//! (RFC 4861 §6.3, RFC 4191, RFC 8106); addresses formed from advertisements (RFC 4862 §5.5,
//! RFC 7217); redirects (RFC 4861 §8).
//!
//! Only neighbours are believed: the source must be link-local and the hop limit 255.
//! Advertised hop limits and timers are ignored, because a forged advertisement could cut the
//! host off with them.

use super::address::after;
use super::routes::Entry;
use super::{
    DropReason, Event, Header, Incoming, Interface, Lifetimes, Origin, Prefix, RemovalReason,
};
use crate::rng::PrfRng;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr};
use weir_wire::ethernet::Address;
use weir_wire::icmp::Message;
use weir_wire::nd;
use weir_wire::nd::router::Preference;
use weir_wire::nd::router::{
    Advertisement, PrefixInformation, Redirect, RouterOption, emit_solicitation, solicitation_len,
};
use weir_wire::{AddrPair, Protocol};

/// Limit on default routers; further ones are not learnt.
pub const ROUTERS_MAX: usize = 16;
/// Limit on learnt networks of the link.
pub const PREFIXES_MAX: usize = 32;
/// Limit on routes that routers advertise.
pub const LEARNT_ROUTES_MAX: usize = 64;
/// Limit on addresses formed in advertised networks.
pub const AUTOMATIC_MAX: usize = 16;
/// Limit on redirects.
pub const REDIRECTS_MAX: usize = 64;
/// Limit on DNS servers.
pub const DNS_SERVERS_MAX: usize = 8;
/// Time for which a redirect is valid, in nanoseconds.
const REDIRECT_NS: u64 = 600_000_000_000;
/// Time from the first router solicitation to the second, and the longest time between later
/// ones, in nanoseconds (RFC 7559).
const RTR_SOLICIT_INITIAL_NS: u64 = 4_000_000_000;
const RTR_SOLICIT_MAX_NS: u64 = 3_600_000_000_000;
/// Least remaining lifetime, in nanoseconds, to which an advertisement can shorten an address's
/// longer lifetime (RFC 4862 §5.5.3 (e)).
const VALID_LIFETIME_MIN_NS: u64 = 7_200_000_000_000;

const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// The state of router discovery on one link.
pub(super) struct Discovery {
    enabled: bool,
    secret: Option<u128>,
    /// When the next solicitation is due; never once a router has answered.
    next_ns: u64,
    wait_ns: u64,
    rng: PrfRng,
    /// DNS servers, and the ends of their lifetimes.
    dns_servers: Vec<(IpAddr, u64)>,
    /// Whether a router has set the "managed" flag (addresses by DHCPv6).
    managed: bool,
}

impl Discovery {
    pub(super) fn new(enabled: bool, secret: Option<u128>, seed: u128) -> Discovery {
        let mut rng = PrfRng::new(seed, "discovery");
        let made = rng.wide();
        Discovery {
            enabled,
            secret: secret.or(enabled.then_some(made)),
            next_ns: u64::MAX,
            wait_ns: RTR_SOLICIT_INITIAL_NS,
            rng,
            dns_servers: Vec::new(),
            managed: false,
        }
    }

    pub(super) fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    pub(super) fn due_ns(&self) -> u64 {
        let resolvers = self.dns_servers.iter().map(|(_, until_ns)| *until_ns);
        resolvers.fold(self.next_ns, u64::min)
    }

    /// A stable, opaque address in the /64 network of `network` (RFC 7217 §5).
    pub(super) fn stable(&self, network: Ipv6Addr, hardware: Address, tries: u8) -> Ipv6Addr {
        let secret = self.secret.unwrap_or_default();
        let high = network.to_bits() >> 64;
        for skip in 0..=u8::MAX {
            let mut hasher = SipHasher24::new_with_keys(secret as u64, (secret >> 64) as u64);
            hasher.write(&(high as u64).to_be_bytes());
            hasher.write(&hardware.0);
            hasher.write(&[tries, skip]);
            let low = hasher.finish();
            if !is_reserved(low) {
                return Ipv6Addr::from_bits(high << 64 | u128::from(low));
            }
        }
        unreachable!("256 numbers of 64 bits are not all among the few that are reserved")
    }

    fn expire(&mut self, now_ns: u64) {
        self.dns_servers.retain(|(_, until_ns)| *until_ns > now_ns);
    }

    fn resolve(&mut self, address: IpAddr, until_ns: u64, now_ns: u64) {
        self.expire(now_ns);
        self.dns_servers.retain(|(other, _)| *other != address);
        if until_ns > now_ns && self.dns_servers.len() < DNS_SERVERS_MAX {
            self.dns_servers.push((address, until_ns));
        }
    }
}

/// Whether an interface identifier is reserved (RFC 5453).
fn is_reserved(low: u64) -> bool {
    low == 0
        || (0x0200_5eff_fe00_0000..=0x0200_5eff_fe00_5213).contains(&low)
        || (0xfdff_ffff_ffff_ff80..=0xfdff_ffff_ffff_ffff).contains(&low)
}

impl Interface {
    /// Starts to solicit routers.
    pub(super) fn begin_discovery(&mut self, now_ns: u64) {
        if self.discovery.enabled {
            let wait_ns = self.start_jitter();
            self.discovery.next_ns = now_ns.saturating_add(wait_ns);
        }
    }

    /// Sends a router solicitation if one is due, with exponential back-off (RFC 7559).
    pub(super) fn poll_discovery(&mut self, now_ns: u64) {
        if self.discovery.next_ns > now_ns {
            return;
        }
        self.solicit(now_ns);
        let discovery = &mut self.discovery;
        let wait_ns = discovery.wait_ns;
        // Randomised by 10 %.
        let tenth = (wait_ns / 5 / 1_000_000) as u32;
        let jitter_ns = u64::from(discovery.rng.below(tenth)) * 1_000_000;
        let jittered_ns = wait_ns - wait_ns / 10 + jitter_ns;
        discovery.next_ns = now_ns.saturating_add(jittered_ns);
        discovery.wait_ns = (2 * wait_ns).min(RTR_SOLICIT_MAX_NS);
    }

    fn solicit(&mut self, now_ns: u64) {
        let ours = self.routes.addresses().iter().filter(|one| one.is_ours());
        let mut link_local = ours.filter_map(|owned| match owned.prefix.address() {
            IpAddr::V6(address) if address.is_unicast_link_local() => Some((address, owned.state)),
            _ => None,
        });
        let found = link_local.next();
        let src = found.map_or(Ipv6Addr::UNSPECIFIED, |(address, _)| address);
        // RFC 4429 §3.2: an optimistic address sends no source link-layer address.
        let sure = found.is_some_and(|(_, stage)| stage == super::address::AddrState::Assigned);
        let hardware = sure.then_some(self.hardware);
        let addresses = AddrPair::V6(src, ALL_ROUTERS);
        let mut message = vec![0; solicitation_len(hardware)];
        emit_solicitation(&mut message, hardware, addresses);
        let header = Header {
            hop_limit: nd::HOP_LIMIT,
            ..Header::new(addresses, Protocol::ICMPV6)
        };
        self.send(now_ns, &header, &message);
    }

    /// Handles a router's message with a correct checksum; `None` for another message.
    pub(super) fn router_message(
        &mut self,
        now_ns: u64,
        incoming: &Incoming<'_>,
        message: &Message<'_>,
    ) -> Option<Result<(), DropReason>> {
        let AddrPair::V6(src, dst) = incoming.addresses else {
            return None;
        };
        let near = incoming.hop_limit == nd::HOP_LIMIT && src.is_unicast_link_local();
        if let Some(parsed) = Advertisement::parse(message) {
            return Some(match parsed {
                Ok(advertised) if near && self.discovery.enabled => {
                    self.advertised_by(now_ns, src, &advertised);
                    Ok(())
                }
                Ok(_) => Err(DropReason::RouterRefused),
                Err(_) => Err(DropReason::Malformed),
            });
        }
        let redirect = match Redirect::parse(message)? {
            Ok(redirect) => redirect,
            Err(_) => return Some(Err(DropReason::Malformed)),
        };
        Some(if near && !dst.is_multicast() {
            self.redirected(now_ns, src, &redirect)
        } else {
            Err(DropReason::RouterRefused)
        })
    }

    fn advertised_by(&mut self, now_ns: u64, router: Ipv6Addr, advertised: &Advertisement<'_>) {
        self.discovery.managed |= advertised.managed;
        let mut default = (advertised.preference, u32::from(advertised.lifetime_s));
        for option in advertised.options() {
            match option {
                RouterOption::Source(hardware) if !hardware.is_multicast() => {
                    let waited = self.neighbours.update(router.into(), hardware);
                    self.release(hardware, waited);
                }
                RouterOption::Source(_) => {}
                RouterOption::Mtu(mtu) => self.set_mtu_v6(mtu as usize),
                RouterOption::Prefix(prefix) => self.process_prefix(now_ns, &prefix),
                // Overrides the advertisement's own router lifetime (RFC 4191 §3.1).
                RouterOption::Route {
                    len: 0,
                    preference,
                    lifetime_s,
                    ..
                } => default = (preference, lifetime_s),
                RouterOption::Route {
                    to,
                    len,
                    preference,
                    lifetime_s,
                } => {
                    let Some(to) = Prefix::new(to.into(), len) else {
                        continue;
                    };
                    let mut entry =
                        Entry::new(to.network(), Some(router.into()), Origin::Advertised);
                    entry.preference = preference;
                    entry.until_ns = after(now_ns, lifetime_s);
                    self.learn(now_ns, entry, LEARNT_ROUTES_MAX, |other| {
                        other.gateway.is_some() && !other.to.is_empty()
                    });
                }
                RouterOption::Resolvers {
                    lifetime_s,
                    addresses,
                } => {
                    let until_ns = after(now_ns, lifetime_s);
                    for address in addresses {
                        let address = Ipv6Addr::from(*address).into();
                        self.discovery.resolve(address, until_ns, now_ns);
                    }
                }
            }
        }
        self.default_router(now_ns, router, default);
        self.reschedule();
    }

    fn default_router(
        &mut self,
        now_ns: u64,
        router: Ipv6Addr,
        (preference, lifetime_s): (Preference, u32),
    ) {
        let all = Prefix::new(Ipv6Addr::UNSPECIFIED.into(), 0).expect("no bits are few enough");
        let mut entry = Entry::new(all, Some(router.into()), Origin::Advertised);
        entry.preference = preference;
        entry.until_ns = after(now_ns, lifetime_s);
        let known = self.knows_router(router.into());
        let default = |other: &Entry| other.gateway.is_some() && other.to.is_empty();
        if self.learn(now_ns, entry, ROUTERS_MAX, default) && lifetime_s > 0 {
            // No further solicitations are needed.
            self.discovery.next_ns = u64::MAX;
            if !known {
                self.events.push(Event::Router(router.into()));
            }
        }
    }

    /// Adds or renews an advertised entry, or removes it if its lifetime is 0; returns whether it
    /// was added: there are at most `most`.
    fn learn(
        &mut self,
        now_ns: u64,
        entry: Entry,
        most: usize,
        like: impl Fn(&Entry) -> bool,
    ) -> bool {
        let learnt = |other: &&Entry| other.origin == entry.origin && like(other);
        let same = |other: &Entry| {
            (other.to, other.gateway, other.origin) == (entry.to, entry.gateway, entry.origin)
        };
        let known = self.routes.routes().iter().any(same);
        if entry.until_ns <= now_ns {
            self.routes.remove(same);
            return false;
        }
        if !known && self.routes.routes().iter().filter(learnt).count() >= most {
            self.counters.drop(DropReason::LearntTooMuch);
            return false;
        }
        self.routes.add(entry);
        true
    }

    /// Whether it is a default router that has advertised itself.
    fn knows_router(&self, router: IpAddr) -> bool {
        let its = |entry: &Entry| {
            entry.origin == Origin::Advertised
                && entry.gateway == Some(router)
                && entry.to.is_empty()
        };
        self.routes.routes().iter().any(its)
    }

    /// Handles a neighbour without the Router flag (RFC 4861 §7.2.5).
    pub(super) fn no_router(&mut self, neighbour: IpAddr) {
        let its =
            |entry: &Entry| entry.origin == Origin::Advertised && entry.gateway == Some(neighbour);
        if self.routes.routes().iter().any(its) {
            self.routes.remove(its);
            self.reschedule();
        }
    }

    fn process_prefix(&mut self, now_ns: u64, advertised: &PrefixInformation) {
        let Some(prefix) = Prefix::new(advertised.prefix.into(), advertised.len) else {
            return;
        };
        if advertised.prefix.is_unicast_link_local() || advertised.prefix.is_multicast() {
            return;
        }
        if advertised.on_link {
            let mut entry = Entry::new(prefix.network(), None, Origin::Advertised);
            entry.until_ns = after(now_ns, advertised.valid_s);
            self.learn(now_ns, entry, PREFIXES_MAX, |other| other.gateway.is_none());
        }
        if advertised.autonomous
            && advertised.len == 64
            && advertised.preferred_s <= advertised.valid_s
        {
            self.automatic(now_ns, advertised);
        }
    }

    /// Forms an address in an advertised network, or updates its lifetimes (RFC 4862 §5.5.3).
    fn automatic(&mut self, now_ns: u64, advertised: &PrefixInformation) {
        let valid_until_ns = after(now_ns, advertised.valid_s);
        let preferred_until_ns = after(now_ns, advertised.preferred_s);
        let network =
            Prefix::new(advertised.prefix.into(), 64).expect("64 bits are fewer than 128");
        let mut count = 0;
        for owned in self.routes.addresses_mut() {
            if owned.origin != Origin::Advertised {
                continue;
            }
            count += 1;
            if !network.contains(owned.prefix.address()) {
                continue;
            }
            owned.deprecated = preferred_until_ns <= now_ns;
            let life = &mut owned.lifetimes;
            let left_ns = life.valid_until_ns.saturating_sub(now_ns);
            let advertised_ns = valid_until_ns - now_ns;
            life.preferred_until_ns = preferred_until_ns;
            if advertised_ns > VALID_LIFETIME_MIN_NS || advertised_ns > left_ns {
                life.valid_until_ns = valid_until_ns;
            } else if left_ns > VALID_LIFETIME_MIN_NS {
                life.valid_until_ns = now_ns.saturating_add(VALID_LIFETIME_MIN_NS);
            }
            return;
        }
        if advertised.valid_s == 0 {
            return;
        }
        if count >= AUTOMATIC_MAX {
            self.counters.drop(DropReason::LearntTooMuch);
            return;
        }
        let life = Lifetimes {
            preferred_until_ns,
            valid_until_ns,
        };
        self.take_stable(now_ns, advertised.prefix, life, 0);
    }

    /// RFC 4861 §8.1: a redirect must come from the present first-hop router, and lead to a
    /// neighbour.
    fn redirected(
        &mut self,
        now_ns: u64,
        router: Ipv6Addr,
        redirect: &Redirect,
    ) -> Result<(), DropReason> {
        let (target, destination) = (redirect.target, redirect.destination);
        let to_itself = target == destination;
        let fits = (to_itself || target.is_unicast_link_local()) && !destination.is_multicast();
        let is_its = self.routes.next_hop(destination.into()) == Some(router.into());
        let ours = self.routes.is_ours(target.into()) || self.routes.is_ours(destination.into());
        if !fits || !is_its || ours || destination.is_unspecified() || router == target {
            return Err(DropReason::RouterRefused);
        }
        let to = Prefix::new(destination.into(), 128).expect("an address has 128 bits");
        let gateway = (!to_itself).then_some(target.into());
        // The new redirect replaces an existing one.
        self.routes
            .remove(|other| other.origin == Origin::Redirected && other.to == to);
        let mut entry = Entry::new(to, gateway, Origin::Redirected);
        entry.until_ns = now_ns.saturating_add(REDIRECT_NS);
        if !self.learn(now_ns, entry, REDIRECTS_MAX, |_| true) {
            // The existing one was counted.
            return Ok(());
        }
        if let Some(hardware) = redirect.hardware.filter(|one| !one.is_multicast()) {
            let waited = self.neighbours.update(target.into(), hardware);
            self.release(hardware, waited);
        }
        self.reschedule();
        Ok(())
    }

    /// Removes expired entries.
    pub(super) fn expire(&mut self, now_ns: u64) {
        for address in self.routes.expire(now_ns) {
            self.lose_address(address, RemovalReason::Expired);
        }
        self.discovery.expire(now_ns);
    }

    /// The DNS servers from advertisements and leases.
    pub(crate) fn resolvers(&self) -> impl Iterator<Item = IpAddr> {
        let leased = self.leased_dns_servers().iter().copied().map(IpAddr::V4);
        let advertised = self
            .discovery
            .dns_servers
            .iter()
            .map(|(address, _)| *address);
        leased.chain(advertised)
    }

    /// Whether a router has set the "managed" flag (addresses by DHCPv6).
    pub(crate) fn is_managed(&self) -> bool {
        self.discovery.managed
    }
}
