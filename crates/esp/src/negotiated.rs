//! SAs and policies that another program keeps, such as the kernel's databases
//! or an IKE daemon's, as a configuration of a gateway.
//!
//! What is not understood never makes a packet pass: a policy becomes one that
//! discards what it selects, and an SA is not used. Both are named in
//! [`Config::refused`].

use crate::config::{Config, Direction, SAS_MAX, SaEntry, TUNNELS_MAX};
use crate::policy::{self, Action, POLICIES_MAX, Policy};
use crate::sa::SaConfig;
use crate::tunnel::{DontFragment, Mode, Tunnel, UdpPorts};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use weir_filter::ir::Program;
use weir_filter::lang::expr::NoNames;

/// Interval of keepalives (RFC 3948 §4), in ns.
const KEEPALIVE: u64 = 20_000_000_000;

/// Programs of policies that are kept for the next configuration, at most.
const PROGRAMS_MAX: usize = 4 * POLICIES_MAX;

/// The packets of a policy, as they leave (RFC 4301 §4.4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Selector {
    /// Source address and length of its prefix.
    pub src: (IpAddr, u8),
    /// Destination address and length of its prefix.
    pub dst: (IpAddr, u8),
    /// The protocol; `None` for all.
    pub protocol: Option<u8>,
    /// The first and the last source port.
    pub src_ports: (u16, u16),
    /// The first and the last destination port.
    pub dst_ports: (u16, u16),
}

/// All ports.
pub const ALL_PORTS: (u16, u16) = (0, u16::MAX);

impl Selector {
    /// The same packets of the other direction.
    pub fn exchanged(self) -> Selector {
        Selector {
            src: self.dst,
            dst: self.src,
            src_ports: self.dst_ports,
            dst_ports: self.src_ports,
            ..self
        }
    }

    /// The expression of the addresses alone.
    fn addresses(&self) -> String {
        let is_v6 = self.src.0.is_ipv6();
        let mut text = String::from(if is_v6 { "ip6" } else { "ip" });
        for (side, (address, len)) in [("src", self.src), ("dst", self.dst)] {
            let address = masked(address, len);
            if len > 0 {
                let _ = write!(text, " and {side} net {address}/{len}");
            }
        }
        text
    }

    /// The expression; `None` if the language has none for its ports.
    fn expression(&self) -> Option<String> {
        let mut text = self.addresses();
        let Some(protocol) = self.protocol else {
            return (self.src_ports == ALL_PORTS && self.dst_ports == ALL_PORTS).then_some(text);
        };
        let is_v6 = self.src.0.is_ipv6();
        let _ = write!(
            text,
            " and {} proto {protocol}",
            if is_v6 { "ip6" } else { "ip" }
        );
        for (side, ports) in [("src", self.src_ports), ("dst", self.dst_ports)] {
            if ports != ALL_PORTS {
                if !matches!(protocol, 6 | 17 | 132) {
                    return None;
                }
                let _ = write!(text, " and {side} portrange {}-{}", ports.0, ports.1);
            }
        }
        Some(text)
    }

    /// The expression of IPv6 packets of these addresses that an expression of a
    /// protocol does not read: those with extension headers.
    fn unread(&self) -> Option<String> {
        (self.protocol.is_some() && self.src.0.is_ipv6()).then(|| {
            let addresses = self.addresses();
            format!("{addresses} and (ip6[6] = 0 or ip6[6] = 43 or ip6[6] = 44 or ip6[6] = 60)")
        })
    }
}

fn masked(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(it) => {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(len.min(32)))
                .unwrap_or(0);
            IpAddr::V4((it.to_bits() & mask).into())
        }
        IpAddr::V6(it) => {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(len.min(128)))
                .unwrap_or(0);
            IpAddr::V6((it.to_bits() & mask).into())
        }
    }
}

/// Two ends whose SAs a policy uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ends {
    /// The content of ESP packets.
    pub mode: Mode,
    /// This end.
    pub local: IpAddr,
    /// The peer.
    pub remote: IpAddr,
    /// The number by which policy and SAs find each other.
    pub reqid: u32,
}

/// A policy's treatment of a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Treatment {
    /// Protects it by SAs of these ends.
    Protect(Ends),
    /// Lets it pass as it is.
    Bypass,
    /// Drops it.
    Discard,
    /// Drops it, because the policy is not understood: for this reason.
    Refuse(String),
}

/// A policy of another program.
#[derive(Clone, Debug)]
pub struct NegotiatedPolicy {
    /// Its packets, as they leave.
    pub selector: Selector,
    /// Its order: the least is the first.
    pub priority: u32,
    /// What it does.
    pub treatment: Treatment,
    /// The outbound SA, if the policy names one.
    pub spi: Option<u32>,
}

/// An SA of another program.
#[derive(Clone, Debug)]
pub struct NegotiatedSa {
    /// Source of its packets.
    pub src: IpAddr,
    /// Their destination.
    pub dst: IpAddr,
    /// The content of its packets.
    pub mode: Mode,
    /// The number by which policies find it.
    pub reqid: u32,
    /// Source and destination port of UDP encapsulation.
    pub udp: Option<(u16, u16)>,
    /// Its parameters.
    pub sa: SaConfig,
}

/// Makes configurations of what another program keeps.
#[derive(Default)]
pub struct Mapper {
    /// The programs of expressions: a new SA compiles none anew.
    programs: HashMap<String, Arc<Program>>,
}

impl Mapper {
    /// A configuration of policies, in the order of their priorities, and of SAs,
    /// the newest last. What no policy selects passes as it is, if
    /// `passes`. `mtu` is the MTU of the paths to the peers.
    pub fn config<'a>(
        &mut self,
        policies: impl IntoIterator<Item = &'a NegotiatedPolicy>,
        sas: impl IntoIterator<Item = &'a NegotiatedSa>,
        passes: bool,
        mtu: usize,
    ) -> Config {
        if self.programs.len() > PROGRAMS_MAX {
            self.programs.clear();
        }
        let mut made = Making {
            config: Config {
                is_negotiated: true,
                ..Config::default()
            },
            numbers: HashMap::new(),
            spis: HashMap::new(),
            mtu,
        };
        let mut seen = HashSet::new();
        for policy in policies {
            if let (Treatment::Protect(ends), Some(spi)) = (&policy.treatment, policy.spi) {
                made.spis.insert(*ends, spi);
            }
            if seen.insert((policy.priority, policy.selector, &policy.treatment)) {
                made.policy(policy, self);
            }
        }
        let passing = if passes {
            Action::Bypass
        } else {
            Action::Discard
        };
        if let Some(filter) = self.program("") {
            let action = if made.is_full() {
                Action::Discard
            } else {
                passing
            };
            made.config.policies.push(Policy { filter, action });
        }
        made.sas(sas.into_iter().collect());
        made.config
    }

    fn program(&mut self, text: &str) -> Option<Arc<Program>> {
        if let Some(program) = self.programs.get(text) {
            return Some(Arc::clone(program));
        }
        let program = Arc::new(policy::program(text, &NoNames).ok()?);
        self.programs.insert(text.to_owned(), Arc::clone(&program));
        Some(program)
    }
}

/// A configuration that is being made.
struct Making {
    config: Config,
    /// The numbers of tunnels.
    numbers: HashMap<Ends, usize>,
    /// The outbound SAs that policies name.
    spis: HashMap<Ends, u32>,
    mtu: usize,
}

impl Making {
    fn refuse(&mut self, why: String) {
        if self.config.refused.len() < SAS_MAX + POLICIES_MAX {
            self.config.refused.push(why);
        }
    }

    /// Whether there is no room for a further policy and its companions.
    fn is_full(&self) -> bool {
        self.config.policies.len() + 3 > POLICIES_MAX
    }

    fn policy(&mut self, policy: &NegotiatedPolicy, mapper: &mut Mapper) {
        let selector = &policy.selector;
        let name = || format!("policy `{}`", selector.addresses());
        if self.is_full() {
            let why = format!("{}: more than {POLICIES_MAX} policies", name());
            return self.refuse(why);
        }
        let mut action = match &policy.treatment {
            Treatment::Bypass => Action::Bypass,
            Treatment::Discard => Action::Discard,
            Treatment::Refuse(why) => {
                self.refuse(format!("{}: {why}: what it selects is dropped", name()));
                Action::Discard
            }
            Treatment::Protect(ends) => match self.tunnel(*ends) {
                Some(number) => Action::Protect(number),
                None => {
                    let why = format!("{}: more than {TUNNELS_MAX} pairs of ends", name());
                    self.refuse(why);
                    Action::Discard
                }
            },
        };
        let text = selector.expression().unwrap_or_else(|| {
            let why = "no expression has its ports: what its addresses select is dropped";
            self.refuse(format!("{}: {why}", name()));
            action = Action::Discard;
            selector.addresses()
        });
        let unread = selector.unread().filter(|_| action != Action::Bypass);
        for (text, action) in [(Some(text), action), (unread, Action::Discard)] {
            let Some(text) = text else {
                continue;
            };
            let (filter, action) = match mapper.program(&text) {
                Some(filter) => (Some(filter), action),
                None => {
                    let why = "its expression does not compile: all is dropped";
                    self.refuse(format!("{}: {why}", name()));
                    (mapper.program(""), Action::Discard)
                }
            };
            if let Some(filter) = filter {
                self.config.policies.push(Policy { filter, action });
            }
        }
    }

    /// The number of the tunnel of these ends.
    fn tunnel(&mut self, ends: Ends) -> Option<usize> {
        if let Some(number) = self.numbers.get(&ends) {
            return Some(*number);
        }
        let number = self.config.tunnels.len();
        if number == TUNNELS_MAX {
            return None;
        }
        self.numbers.insert(ends, number);
        self.config.tunnels.push(Tunnel {
            name: format!("{}-{}-{}", ends.local, ends.remote, ends.reqid),
            mode: ends.mode,
            local: ends.local,
            remote: ends.remote,
            udp: None,
            dscp: None,
            dont_fragment: DontFragment::Copy,
            mtu: self.mtu,
            keepalive: KEEPALIVE,
        });
        Some(number)
    }

    /// The tunnel and direction of an SA; `None` if no policy uses it.
    fn place(&self, sa: &NegotiatedSa) -> Option<(Ends, usize, Direction)> {
        let ways = [
            (sa.src, sa.dst, Direction::Out),
            (sa.dst, sa.src, Direction::In),
        ];
        ways.into_iter().find_map(|(local, remote, direction)| {
            let ends = Ends {
                mode: sa.mode,
                local,
                remote,
                reqid: sa.reqid,
            };
            Some((ends, *self.numbers.get(&ends)?, direction))
        })
    }

    fn sas(&mut self, sas: Vec<&NegotiatedSa>) {
        let mut keys = HashSet::new();
        let mut spis = HashSet::new();
        let mut placed: Vec<_> = sas
            .into_iter()
            .filter_map(|sa| Some((self.place(sa)?, sa)))
            .collect();
        // The SA that a policy names is used, and no other one in its place.
        let named = |(ends, _, direction): &(Ends, usize, Direction)| match direction {
            Direction::Out => self.spis.get(ends).copied(),
            Direction::In => None,
        };
        let found: HashSet<Ends> = placed
            .iter()
            .filter(|(place, sa)| named(place) == Some(sa.sa.spi))
            .map(|(place, _)| place.0)
            .collect();
        placed.retain(|(place, _)| named(place).is_none() || found.contains(&place.0));
        placed.sort_by_key(|(place, sa)| named(place) == Some(sa.sa.spi));
        for ((_, number, direction), sa) in placed {
            let why = if sa.udp.is_some() && sa.mode == Mode::Transport {
                "UDP encapsulation of mode transport"
            } else if !keys.insert(sa.sa.keymat.fingerprint()) {
                "another SA has the same key"
            } else if direction == Direction::In && !spis.insert(sa.sa.spi) {
                "another inbound SA has the same SPI"
            } else if sa.sa.keymat.len() != sa.sa.algorithm.keymat_len() {
                "its key has another length than its algorithm's"
            } else if self.config.sas.len() >= SAS_MAX {
                "there are too many SAs"
            } else {
                self.add(number, direction, sa);
                continue;
            };
            self.refuse(format!("SA {:#010x} to {}: {why}", sa.sa.spi, sa.dst));
        }
    }

    fn add(&mut self, number: usize, direction: Direction, sa: &NegotiatedSa) {
        let tunnel = &mut self.config.tunnels[number];
        let udp = sa.udp.map(|(src, dst)| match direction {
            Direction::Out => UdpPorts {
                local: src,
                remote: dst,
            },
            Direction::In => UdpPorts {
                local: dst,
                remote: src,
            },
        });
        // The newest outbound SA says where the peer is now.
        if direction == Direction::Out || tunnel.udp.is_none() {
            tunnel.udp = udp;
        }
        self.config.sas.push(SaEntry {
            tunnel: number,
            direction,
            sa: sa.sa.clone(),
        });
    }
}
