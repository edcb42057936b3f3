//! The security policy database (RFC 4301 §4.4.1): policies in order, of which
//! the first one that accepts a packet decides. What none accepts is discarded.
//!
//! A policy's expression reads a packet as it leaves, from the IP header on. For
//! a packet that enters, source and destination are exchanged first, so one
//! expression is for both directions.
//!
//! A later fragment has no transport ports: it is treated as the first one of
//! its packet was (RFC 4301 §7.3).

use crate::config::Direction;
use crate::ip::{self, Headers};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use weir_demux::{BindError, Binding, Filter, Plan, Target, Verdict};
use weir_filter::ir::Program;
use weir_filter::lang::expr::{self, Context, Names};
use weir_filter::opt;
use weir_wire::LinkType;

/// Number of policies, at most.
pub const POLICIES_MAX: usize = 1024;

/// Number of packets whose further fragments are awaited, at most; the oldest
/// one gives way.
pub const FRAGMENTED_MAX: usize = 4096;

/// Time for which further fragments are awaited, in ns (RFC 8200 §4.5 has 60 s).
const FRAGMENTS_AWAITED: u64 = 60_000_000_000;

/// A policy's treatment of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Protects it by the SAs of this tunnel.
    Protect(usize),
    /// Lets it pass as it is.
    Bypass,
    /// Drops it.
    Discard,
}

/// A policy.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The filter of its packets.
    pub filter: Arc<Program>,
    /// Its action.
    pub action: Action,
}

/// Compiles an expression for packets from the IP header on.
///
/// # Errors
/// If the language refuses the text.
pub fn program(text: &str, names: &dyn Names) -> Result<Program, expr::Error> {
    let context = Context {
        netmask: Some(Ipv4Addr::UNSPECIFIED),
        ..Context::new(LinkType::RAW).with_names(names)
    };
    let mut program = expr::compile(text, &context)?;
    opt::optimise(&mut program);
    Ok(program)
}

/// The policies, and what was decided on packets in fragments.
pub(crate) struct Policies {
    plan: Plan,
    actions: Vec<Action>,
    verdict: Verdict,
    fragmented: Fragmented,
}

type FragmentKey = (Direction, IpAddr, IpAddr, u8, u32);

/// The actions for packets whose first fragment came.
#[derive(Default)]
struct Fragmented {
    known: HashMap<FragmentKey, (Action, u64)>,
    order: VecDeque<(FragmentKey, u64)>,
}

/// A decision on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    By(Action),
    /// No policy accepts the packet.
    NoPolicy,
    /// A fragment of a packet whose first one has not come.
    UnknownFragment,
}

impl Policies {
    pub(crate) fn new(policies: &[Policy], seed: u128) -> Result<Policies, BindError> {
        let mut plan = Plan::new(seed);
        for (number, policy) in policies.iter().enumerate() {
            plan.bind(Binding {
                filter: Filter::new(Arc::clone(&policy.filter)),
                priority: 0,
                copy: false,
                target: Target::Port(0),
                tag: number as u32,
            })?;
        }
        Ok(Policies {
            plan,
            actions: policies.iter().map(|policy| policy.action).collect(),
            verdict: Verdict::new(),
            fragmented: Fragmented::default(),
        })
    }

    /// The decision on a packet; it is changed while it is read, and then is as
    /// before.
    pub(crate) fn decide(
        &mut self,
        now: u64,
        direction: Direction,
        headers: &Headers,
        packet: &mut [u8],
    ) -> Decision {
        let key = headers.fragment.map(|fragment| {
            let protocol = if headers.is_v6 { 0 } else { headers.protocol.0 };
            (direction, headers.src, headers.dst, protocol, fragment.id)
        });
        let is_later = headers.fragment.is_some_and(|fragment| !fragment.is_first);
        if let (Some(key), true) = (key, is_later) {
            return match self.fragmented.action(now, &key) {
                Some(action) => Decision::By(action),
                None => Decision::UnknownFragment,
            };
        }
        let packet = &mut packet[..headers.len];
        if direction == Direction::In {
            ip::exchange(headers, packet);
        }
        let wire_len = packet.len() as u32;
        self.plan.run(packet, wire_len, &mut self.verdict);
        if direction == Direction::In {
            ip::exchange(headers, packet);
        }
        let taker = self.verdict.taker();
        let action = taker.and_then(|taker| self.actions.get(taker.tag as usize));
        let Some(&action) = action else {
            return Decision::NoPolicy;
        };
        if let Some(key) = key {
            self.fragmented.note(now, key, action);
        }
        Decision::By(action)
    }
}

impl Fragmented {
    fn action(&self, now: u64, key: &FragmentKey) -> Option<Action> {
        let (action, until) = self.known.get(key)?;
        (now < *until).then_some(*action)
    }

    fn note(&mut self, now: u64, key: FragmentKey, action: Action) {
        let until = now.saturating_add(FRAGMENTS_AWAITED);
        if self.known.insert(key, (action, until)).is_none() {
            self.order.push_back((key, until));
        }
        while let Some((oldest, began)) = self.order.front()
            && (self.order.len() > FRAGMENTED_MAX || *began <= now)
        {
            self.known.remove(oldest);
            self.order.pop_front();
        }
    }
}
