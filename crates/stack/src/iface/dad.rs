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
    /// Adds the addresses of the configuration.
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

    /// Adds an address, with duplicate address detection if configured.
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

    /// A random delay, since many hosts may start at once; 0 if the address is already in use.
    pub(super) fn start_jitter(&mut self) -> u64 {
        match self.detect {
            DadMode::Blocking => u64::from(self.rng.below(START_JITTER_NS as u32)),
            DadMode::Optimistic | DadMode::Off => 0,
        }
    }

    /// Adds the link-local address; `tries` counts the attempts.
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

    /// Removes an address from the host.
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
        // Nothing was sent from a tentative address: a host that answers each probe must not cause
        // a search of all connections.
        self.has_lost |= owned.is_ours();
        self.events.push(Event::Lost(owned.prefix, why));
        self.reschedule();
        Some(owned)
    }

    /// Sends due probes and announcements.
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
        // No station has the address.
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
                // RFC 4862 §5.4.2: join the solicited-node group first, so that multicast routers
                // and switches forward the answers.
                self.poll_groups(now_ns);
                self.probe_nd(now_ns, address);
            }
        }
    }

    /// Announces an address to all stations (RFC 5227 §2.3).
    fn announce(&mut self, address: std::net::Ipv4Addr) {
        let to = (Address::default(), address);
        self.send_arp(Address::BROADCAST, Operation::REQUEST, address, to);
    }

    /// Handles a conflict: another station has one of the host's addresses; `by` is its MAC
    /// address, if known.
    pub(super) fn conflict(&mut self, now_ns: u64, address: IpAddr, by: Option<Address>) {
        if self.detect == DadMode::Off {
            return;
        }
        let Some(owned) = self.routes.find_mut(address) else {
            return;
        };
        if owned.state == AddrState::Assigned {
            let IpAddr::V4(v4) = address else {
                // RFC 4862 detects duplicates only before an address is used.
                return;
            };
            let lately = |at_ns: u64| now_ns < at_ns.saturating_add(DEFEND_INTERVAL_NS);
            if !owned.defended_ns.is_some_and(lately) {
                owned.defended_ns = Some(now_ns);
                self.announce(v4);
                return;
            }
            // RFC 5227 §2.4: an assigned address is given up, a configured one is kept.
            if owned.origin != Origin::Leased {
                return;
            }
        }
        self.abandon(now_ns, address, RemovalReason::Duplicate(by));
    }

    /// Gives up an address, and forms another one if possible.
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

    /// Adds a stable address in a /64 network (RFC 7217); `tries` counts the attempts.
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

    /// The state of an address; `None` if it is not the host's.
    pub(super) fn addr_state(&self, address: IpAddr) -> Option<AddrState> {
        self.routes.find(address).map(|owned| owned.state)
    }
}
