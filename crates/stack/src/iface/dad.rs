//! Duplicate address detection for IPv6 (RFC 4862 §5.4, RFC 4429), and address conflict
//! detection for IPv4 (RFC 5227).
//!
//! ```text
//!              probes, silence            announcements (IPv4)
//!  Tentative ──────────────────► Settled ───────────────────► Settled
//!  or Optimistic ──► another has it: lost       another has it: defended, or,
//!                                               of a leased one, lost
//! ```

use super::address::{AddrState, LocalAddress, Probe};
use super::routes::{from_hardware, solicited_node};
use super::{Config, DadMode, Event, Interface, Lifetimes, Origin, Prefix, RemovalReason};
use std::net::{IpAddr, Ipv6Addr};
use weir_wire::arp::Operation;
use weir_wire::ethernet::Address;

/// Number of probes before an address is in use, for IPv4 (RFC 5227: PROBE_NUM) and IPv6
/// (RFC 4862: DupAddrDetectTransmits).
const PROBE_NUM: [u8; 2] = [3, 1];
/// Shortest and longest time between probes, in nanoseconds (RFC 5227: PROBE_MIN, PROBE_MAX).
const PROBE_INTERVAL_NS: [u64; 2] = [1_000_000_000, 2_000_000_000];
/// Longest wait for an answer to an IPv6 probe, in nanoseconds (RFC 4861: RETRANS_TIMER).
const ANSWER_V6_NS: u64 = 1_000_000_000;
/// Wait after the last IPv4 probe, and between the two announcements, in nanoseconds (RFC 5227:
/// ANNOUNCE_WAIT, ANNOUNCE_INTERVAL).
const ANNOUNCE_INTERVAL_NS: u64 = 2_000_000_000;
/// Longest random delay before the first probe, in nanoseconds (RFC 5227: PROBE_WAIT; RFC 4861:
/// MAX_RTR_SOLICITATION_DELAY), so that hosts switched on together do not all probe at once.
pub(super) const START_JITTER_NS: u64 = 1_000_000_000;
/// Shortest time between two defences of an address, in nanoseconds (RFC 5227:
/// DEFEND_INTERVAL).
const DEFEND_INTERVAL_NS: u64 = 10_000_000_000;
/// How often another address is formed instead of a duplicate one (RFC 7217 §7:
/// IDGEN_RETRIES).
const TRIES_MAX: u8 = 3;

impl Interface {
    /// The addresses of the configuration begin.
    pub(super) fn begin_addresses(&mut self, now_ns: u64, config: &Config) {
        let all: Vec<LocalAddress> = self.routes.addresses().to_vec();
        for owned in all {
            self.routes.disown(owned.prefix.address());
            self.take_address(now_ns, owned);
        }
        if config.autoconf {
            self.take_link_local(now_ns, 0);
        }
    }

    /// An address is to be ours: others are asked for it, if so configured.
    pub(super) fn take_address(&mut self, now_ns: u64, mut owned: LocalAddress) {
        let address = owned.prefix.address();
        owned.state = match self.detect {
            DadMode::Off => AddrState::Assigned,
            DadMode::Optimistic => AddrState::Optimistic,
            DadMode::Blocking => AddrState::Tentative,
        };
        if self.detect != DadMode::Off {
            let wait_ns = self.start_jitter();
            owned.probe = Some(Probe {
                sent: 0,
                next_ns: now_ns.saturating_add(wait_ns),
            });
        }
        if let IpAddr::V6(address) = address {
            let silently = self.detect == DadMode::Off;
            self.groups.join(solicited_node(address).into(), silently);
        }
        if owned.is_ours() {
            self.events.push(Event::Address(owned.prefix, owned.origin));
        }
        self.routes.own(owned);
        self.has_taken = true;
        self.reschedule();
    }

    /// A wait at random where many may begin at once; none where an address is
    /// used meanwhile.
    pub(super) fn start_jitter(&mut self) -> u64 {
        match self.detect {
            DadMode::Blocking => u64::from(self.rng.below(START_JITTER_NS as u32)),
            DadMode::Optimistic | DadMode::Off => 0,
        }
    }

    /// The link-local address, the `tries`th that is tried.
    fn take_link_local(&mut self, now_ns: u64, tries: u8) {
        let base = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
        let address = if self.discovery.has_secret() {
            self.discovery.stable(base, self.hardware, tries)
        } else {
            from_hardware(self.hardware.0)
        };
        let prefix = Prefix::new(address.into(), 64).expect("64 bits are fewer than 128");
        let mut owned = LocalAddress::new(prefix, Origin::LinkLocal);
        owned.tries = tries;
        self.take_address(now_ns, owned);
    }

    /// An address is no longer ours.
    pub(super) fn lose_address(
        &mut self,
        address: IpAddr,
        why: RemovalReason,
    ) -> Option<LocalAddress> {
        let owned = self.routes.disown(address)?;
        if let IpAddr::V6(address) = address {
            let silently = self.detect == DadMode::Off;
            self.groups.leave(solicited_node(address).into(), silently);
        }
        // Nothing has been sent from an address that was only tried: a host that
        // answers each try must not have all connections looked through.
        self.has_lost |= owned.is_ours();
        self.events.push(Event::Lost(owned.prefix, why));
        self.reschedule();
        Some(owned)
    }

    /// Sends the probes and announcements that are due.
    pub(super) fn poll_detection(&mut self, now_ns: u64) {
        let due = |owned: &&LocalAddress| owned.probe.is_some_and(|probe| probe.next_ns <= now_ns);
        let due = self.routes.addresses().iter().filter(due);
        let due: Vec<IpAddr> = due.map(|owned| owned.prefix.address()).collect();
        for address in due {
            self.step(now_ns, address);
        }
    }

    fn step(&mut self, now_ns: u64, address: IpAddr) {
        let v6 = address.is_ipv6();
        let probes = PROBE_NUM[usize::from(v6)];
        let [least_ns, most_ns] = PROBE_INTERVAL_NS;
        let between_ns = least_ns + u64::from(self.rng.below((most_ns - least_ns) as u32));
        let Some(owned) = self.routes.find_mut(address) else {
            return;
        };
        let Some(probe) = &mut owned.probe else {
            return;
        };
        let sent = probe.sent;
        probe.sent += 1;
        let wait_ns = match (v6, sent + 1 < probes) {
            (true, _) => ANSWER_V6_NS,
            (false, true) => between_ns,
            (false, false) => ANNOUNCE_INTERVAL_NS,
        };
        probe.next_ns = now_ns.saturating_add(wait_ns);
        if sent < probes {
            self.send_dad_probe(now_ns, address);
            return;
        }
        // Nobody has it.
        let announces = sent - probes;
        if v6 || announces > 0 {
            owned.probe = None;
        }
        if owned.state == AddrState::Tentative {
            let event = Event::Address(owned.prefix, owned.origin);
            self.events.push(event);
        }
        owned.state = AddrState::Assigned;
        if let IpAddr::V4(address) = address {
            self.announce(address);
        }
    }

    fn send_dad_probe(&mut self, now_ns: u64, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.probe_arp(address),
            IpAddr::V6(address) => {
                // RFC 4862 §5.4.2: routers that pass groups on know of it.
                self.poll_groups(now_ns);
                self.probe_nd(now_ns, address);
            }
        }
    }

    /// Tells all that an address is ours (RFC 5227 §2.3).
    fn announce(&mut self, address: std::net::Ipv4Addr) {
        let to = (Address::default(), address);
        self.send_arp(Address::BROADCAST, Operation::REQUEST, address, to);
    }

    /// Another station has an address of ours; who, if it is known.
    pub(super) fn conflict(&mut self, now_ns: u64, address: IpAddr, by: Option<Address>) {
        if self.detect == DadMode::Off {
            return;
        }
        let Some(owned) = self.routes.find_mut(address) else {
            return;
        };
        if owned.state == AddrState::Assigned {
            let IpAddr::V4(v4) = address else {
                // RFC 4862 asks before, not after.
                return;
            };
            let lately = |at_ns: u64| now_ns < at_ns.saturating_add(DEFEND_INTERVAL_NS);
            if !owned.defended_ns.is_some_and(lately) {
                owned.defended_ns = Some(now_ns);
                self.announce(v4);
                return;
            }
            // RFC 5227 §2.4: what was given is given up; what somebody wrote
            // down is kept.
            if owned.origin != Origin::Leased {
                return;
            }
        }
        self.abandon(now_ns, address, RemovalReason::Duplicate(by));
    }

    /// An address that cannot be ours is let go, and another looked for.
    pub(crate) fn abandon(&mut self, now_ns: u64, address: IpAddr, why: RemovalReason) {
        let Some(owned) = self.lose_address(address, why) else {
            return;
        };
        match (owned.origin, address) {
            (Origin::Leased, _) => self.decline(now_ns),
            (_, IpAddr::V6(_)) if owned.tries >= TRIES_MAX || !self.discovery.has_secret() => {}
            (Origin::LinkLocal, IpAddr::V6(_)) => self.take_link_local(now_ns, owned.tries + 1),
            (Origin::Advertised, IpAddr::V6(address)) => {
                let life = owned.lifetimes;
                self.take_stable(now_ns, address, life, owned.tries + 1);
            }
            _ => {}
        }
    }

    /// An address in a network of 64 bits, the `tries`th that is tried (RFC
    /// 7217).
    pub(super) fn take_stable(
        &mut self,
        now_ns: u64,
        network: Ipv6Addr,
        life: Lifetimes,
        tries: u8,
    ) {
        let address = self.discovery.stable(network, self.hardware, tries);
        let prefix = Prefix::new(address.into(), 64).expect("64 bits are fewer than 128");
        let mut owned = LocalAddress::new(prefix, Origin::Advertised);
        (owned.lifetimes, owned.tries) = (life, tries);
        self.take_address(now_ns, owned);
    }

    /// Whether an address of ours is asked for at the moment.
    pub(super) fn addr_state(&self, address: IpAddr) -> Option<AddrState> {
        self.routes.find(address).map(|owned| owned.state)
    }
}
