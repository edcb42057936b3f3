//! Traces of packets that match rules.

use super::{FiveTuple, Ports, Prefix, Rule, TCP, UDP};
use crate::rng::Rng;

/// A seeded, endless trace of packets that match the rules, with locality
/// (bursts of one flow, skewed choice of rules) or without, and of random
/// packets.
#[derive(Clone, Debug)]
pub struct Trace<'r> {
    rules: &'r [Rule],
    rng: Rng,
    /// Remaining packets of the present burst.
    burst: usize,
    flow: FiveTuple,
    local: bool,
}

impl<'r> Trace<'r> {
    /// Bursts of about eight packets of one flow, with skew: half of all bursts
    /// match the most popular sixteenth of the rules.
    pub fn local(rules: &'r [Rule], seed: u64) -> Trace<'r> {
        Trace::new(rules, seed, true)
    }

    /// Every packet is a new flow, and rules are chosen uniformly.
    pub fn even(rules: &'r [Rule], seed: u64) -> Trace<'r> {
        Trace::new(rules, seed, false)
    }

    fn new(rules: &'r [Rule], seed: u64, local: bool) -> Trace<'r> {
        let mut rng = Rng::new(seed);
        let flow = random(&mut rng);
        Trace {
            rules,
            rng,
            burst: 0,
            flow,
            local,
        }
    }
}

impl Iterator for Trace<'_> {
    type Item = FiveTuple;

    fn next(&mut self) -> Option<FiveTuple> {
        if self.burst > 0 {
            self.burst -= 1;
            return Some(self.flow);
        }
        let count = self.rules.len();
        let index = if self.local {
            self.burst = 1 + self.rng.below(14);
            // The fourth power of a uniform number: half of the results are
            // below 1/16.
            let draw = self.rng.below(1 << 20) as f64 / f64::from(1 << 20);
            (draw.powi(4) * count as f64) as usize
        } else {
            self.rng.below(count)
        };
        self.flow = match self.rules.get(index) {
            Some(rule) => inside(&mut self.rng, rule),
            None => random(&mut self.rng),
        };
        Some(self.flow)
    }
}

/// A random tuple, which most likely matches only wildcards.
pub(super) fn random(rng: &mut Rng) -> FiveTuple {
    FiveTuple {
        src: rng.word(),
        dst: rng.word(),
        src_port: rng.word() as u16,
        dst_port: rng.word() as u16,
        protocol: *rng.choose(&[TCP, UDP, 1, 47]),
    }
}

/// A tuple that the rule matches.
fn inside(rng: &mut Rng, rule: &Rule) -> FiveTuple {
    let address = |rng: &mut Rng, prefix: Prefix| {
        let host_bits = u32::MAX.checked_shr(u32::from(prefix.len())).unwrap_or(0);
        prefix.address() | (rng.word() & host_bits)
    };
    let port = |rng: &mut Rng, ports: &Ports| {
        rng.within(u32::from(*ports.start())..u32::from(*ports.end()) + 1) as u16
    };
    FiveTuple {
        src: address(rng, rule.src),
        dst: address(rng, rule.dst),
        src_port: port(rng, &rule.src_ports),
        dst_port: port(rng, &rule.dst_ports),
        protocol: rule.protocol.unwrap_or(TCP),
    }
}
