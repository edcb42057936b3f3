//! Generates rules from the distributions of a profile.

use std::collections::HashSet;

use super::{ANY_PORTS, Ports, Prefix, Rule, TCP, UDP};
use crate::rng::Rng;

/// ClassBench's kinds of filter sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Router access control lists: exact destinations and services.
    Acl,
    /// Firewalls: many wildcards, and source ports.
    Firewall,
    /// Linux IP chains: between the two others.
    IpChain,
}

/// The distributions of a profile, as weights.
struct Weights {
    /// TCP, UDP, any, ICMP, other.
    protocols: [u32; 5],
    /// Any, low, high, a range, exact.
    src_ports: [u32; 5],
    /// As for `src_ports`.
    dst_ports: [u32; 5],
    /// Prefix lengths: 0, 1–15, 16, 17–23, 24, 25–31, 32.
    src_lens: [u32; 7],
    /// As for `src_lens`.
    dst_lens: [u32; 7],
}

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 3] = [Profile::Acl, Profile::Firewall, Profile::IpChain];

    fn weights(self) -> Weights {
        match self {
            Profile::Acl => Weights {
                protocols: [75, 15, 5, 4, 1],
                src_ports: [98, 0, 1, 0, 1],
                dst_ports: [25, 1, 9, 15, 50],
                src_lens: [15, 3, 8, 14, 25, 10, 25],
                dst_lens: [2, 1, 4, 8, 20, 15, 50],
            },
            Profile::Firewall => Weights {
                protocols: [55, 25, 14, 4, 2],
                src_ports: [70, 1, 14, 2, 13],
                dst_ports: [30, 2, 10, 8, 50],
                src_lens: [40, 3, 5, 5, 12, 5, 30],
                dst_lens: [25, 3, 5, 7, 15, 10, 35],
            },
            Profile::IpChain => Weights {
                protocols: [48, 28, 18, 4, 2],
                src_ports: [75, 1, 8, 4, 12],
                dst_ports: [45, 2, 8, 7, 38],
                src_lens: [20, 4, 8, 10, 20, 8, 30],
                dst_lens: [12, 4, 7, 10, 22, 10, 35],
            },
        }
    }
}

/// `count` distinct rules of the profile; the same for the same seed.
pub fn generate(profile: Profile, seed: u64, count: usize) -> Vec<Rule> {
    let mut rng = Rng::new(seed ^ profile as u64);
    let weights = profile.weights();
    let sites = Sites::new(&mut rng, count);
    let services = services(&mut rng, count);
    let mut seen = HashSet::new();
    let mut rules = Vec::with_capacity(count);
    while rules.len() < count {
        let rule = draw(&mut rng, &weights, &sites, &services);
        if seen.insert(rule.clone()) {
            rules.push(rule);
        }
    }
    rules
}

fn draw(rng: &mut Rng, weights: &Weights, sites: &Sites, services: &[u16]) -> Rule {
    let protocol = match rng.weighted(&weights.protocols) {
        0 => Some(TCP),
        1 => Some(UDP),
        2 => None,
        3 => Some(1),
        _ => Some(*rng.choose(&[47, 50, 51, 89, 132])),
    };
    let ported = matches!(protocol, Some(TCP | UDP));
    let mut ports = |classes: &[u32; 5]| {
        if ported {
            ports(rng, classes, services)
        } else {
            ANY_PORTS
        }
    };
    let (src_ports, dst_ports) = (ports(&weights.src_ports), ports(&weights.dst_ports));
    Rule {
        src: prefix(rng, &weights.src_lens, sites),
        dst: prefix(rng, &weights.dst_lens, sites),
        src_ports,
        dst_ports,
        protocol,
    }
}

fn ports(rng: &mut Rng, classes: &[u32; 5], services: &[u16]) -> Ports {
    match rng.weighted(classes) {
        0 => ANY_PORTS,
        1 => 0..=1023,
        2 => 1024..=u16::MAX,
        3 => {
            let first = *rng.choose(services);
            first..=first.saturating_add(rng.within(1..200) as u16)
        }
        _ => {
            let port = *rng.choose(services);
            port..=port
        }
    }
}

/// Exact ports to draw from: often well-known ones; other ports more often the
/// larger the set is.
fn services(rng: &mut Rng, count: usize) -> Vec<u16> {
    let known = [80, 443, 53, 22, 25, 21, 23, 110, 123, 161, 389, 1433, 3306];
    let mut services: Vec<u16> = known.repeat(4);
    services.extend((0..count / 20).map(|_| rng.within(1..65536) as u16));
    services
}

fn prefix(rng: &mut Rng, classes: &[u32; 7], sites: &Sites) -> Prefix {
    let len = match rng.weighted(classes) {
        0 => return Prefix::ANY,
        1 => rng.within(8..16),
        2 => 16,
        3 => rng.within(17..24),
        4 => 24,
        5 => rng.within(25..32),
        _ => 32,
    };
    Prefix::of(sites.address(rng), len as u8)
}

/// A tree of addresses: the fewer branches below a network, the more prefixes
/// nest. Halving the probability at each level gives the skew that ClassBench
/// measured.
struct Sites {
    networks: Vec<u32>,
    hosts_each: usize,
}

impl Sites {
    fn new(rng: &mut Rng, count: usize) -> Sites {
        let networks = (0..4 + count / 16).map(|_| {
            // Unicast addresses: 1.0.0.0 to 223.255.255.0, without loopback.
            let first = rng.within(1..223);
            let first = if first == 127 { 223 } else { first };
            (first << 24) | (rng.word() & 0x00ff_ff00)
        });
        Sites {
            networks: networks.collect(),
            hosts_each: 4 + count / 64,
        }
    }

    fn address(&self, rng: &mut Rng) -> u32 {
        let mut span = self.networks.len();
        while span > 1 && rng.chance(40) {
            span = span.div_ceil(2);
        }
        let network = self.networks[rng.below(span)];
        network | rng.below(self.hosts_each.min(256)) as u32
    }
}
