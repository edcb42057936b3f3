//! The CHILD_SAs of strongSwan, from what VICI lists and from the keys in its log.
//!
//! VICI says everything about a CHILD_SA but its keys, and packages of strongSwan
//! lack the plugin `save-keys`. The log has them: at level 4 of `chd` the keys as
//! they are derived, and then the SPIs that get them, all on one thread:
//!
//! ```text
//!  10[ENC] parsed CREATE_CHILD_SA request 2 [ … ]      this end is the responder
//!  10[CHD] encryption initiator key => 36 bytes @ 0x7f5980005820
//!  10[CHD]    0: D6 81 40 18 …
//!  10[CHD] encryption responder key => 36 bytes @ 0x7f5980001f40
//!  10[CHD]    0: E0 5A 0B 43 …
//!  10[CHD] adding inbound ESP SA
//!  10[CHD]   SPI 0xb129729f, src 192.0.2.1 dst 192.0.2.2
//! ```

use crate::algorithm::{Algorithm, Keymat};
use crate::config::{Config, SAS_MAX};
use crate::negotiated::{
    ALL_PORTS, Ends, Mapper, NegotiatedPolicy, NegotiatedSa, Selector, Treatment,
};
use crate::policy::POLICIES_MAX;
use crate::replay::WINDOW_DEFAULT;
use crate::sa::{Lifetime, SaConfig};
use crate::tunnel::Mode;
use crate::vici::Section;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use zeroize::Zeroizing;

/// Threads of strongSwan whose lines are put together, at most.
const THREADS_MAX: usize = 1024;

/// Longest key that is read, in bytes.
const KEY_MAX: usize = 64;

/// Pairs of traffic selectors, at most: several times the policies that a gateway has.
const PAIRS_MAX: usize = 4 * POLICIES_MAX;

/// The keys that a log has said.
#[derive(Default)]
pub struct Keys {
    known: HashMap<(u32, IpAddr), Keymat>,
    order: VecDeque<(u32, IpAddr)>,
    /// The SAs that were listed last.
    listed: HashSet<(u32, IpAddr)>,
    threads: HashMap<String, Thread>,
}

/// What a thread has said last.
#[derive(Default)]
struct Thread {
    is_initiator: Option<bool>,
    /// The initiator's key, and the responder's.
    keys: [Zeroizing<Vec<u8>>; 2],
    /// The key whose bytes follow.
    reading: Option<usize>,
    /// Whether the SPI that follows is of the inbound SA.
    is_inbound: Option<bool>,
}

impl Keys {
    /// Reads a line of the log; returns whether it completes the key of an SA.
    pub fn line(&mut self, line: &str) -> bool {
        let groups = ["[CHD]", "[ENC]"].map(|group| line.split_once(group));
        match groups {
            [Some((before, text)), _] => self.of_child(&thread(before), text),
            [_, Some((before, text))] => {
                let words: Vec<&str> = text.split_whitespace().collect();
                if let Some(at) = words.iter().position(|word| *word == "parsed") {
                    let is_initiator = match words.get(at + 2) {
                        Some(&"response") => true,
                        Some(&"request") => false,
                        _ => return false,
                    };
                    let thread = self.thread(&thread(before));
                    *thread = Thread {
                        is_initiator: Some(is_initiator),
                        ..Thread::default()
                    };
                }
                false
            }
            _ => false,
        }
    }

    /// The key of an SA by its SPI and destination; `None` if the log has not said
    /// it.
    pub fn key(&self, spi: u32, dst: IpAddr) -> Option<&Keymat> {
        self.known.get(&(spi, dst))
    }

    /// The keys of these CHILD_SAs alone. Those of SAs that were listed before and
    /// are not now are forgotten.
    pub fn listed(&mut self, children: &[Child]) -> Keys {
        let now: HashSet<_> = children.iter().flat_map(Child::sas).collect();
        for gone in self.listed.difference(&now) {
            self.known.remove(gone);
        }
        self.order.retain(|key| self.known.contains_key(key));
        let of = |key| Some((key, self.known.get(&key)?.clone()));
        let known = now.iter().copied().filter_map(of).collect();
        self.listed = now;
        Keys {
            known,
            ..Keys::default()
        }
    }

    fn thread(&mut self, name: &str) -> &mut Thread {
        if self.threads.len() >= THREADS_MAX {
            self.threads.clear();
        }
        self.threads.entry(name.to_owned()).or_default()
    }

    fn of_child(&mut self, name: &str, text: &str) -> bool {
        let thread = self.thread(name);
        let text = text.trim();
        // With `ike_name` its name comes first.
        let text = match text.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
            Some((_, rest)) => rest.trim(),
            None => text,
        };
        for (number, side) in ["initiator", "responder"].into_iter().enumerate() {
            let head = format!("encryption {side} key => ");
            if text.starts_with(&head) {
                thread.keys[number] = Zeroizing::new(Vec::with_capacity(KEY_MAX));
                thread.reading = Some(number);
                return false;
            }
        }
        if let Some(number) = thread.reading
            && let Some(bytes) = dumped(text, thread.keys[number].len())
        {
            if thread.keys[number].len() + bytes.len() <= KEY_MAX {
                thread.keys[number].extend_from_slice(&bytes);
            }
            return false;
        }
        thread.reading = None;
        thread.is_inbound = match text {
            "adding inbound ESP SA" => Some(true),
            // A responder adds it, on another thread, when the old one is deleted.
            "adding outbound ESP SA" | "registering outbound ESP SA" => Some(false),
            _ => return self.of_spi(name, text),
        };
        false
    }

    /// Reads `SPI 0xb129729f, src 192.0.2.1 dst 192.0.2.2`.
    fn of_spi(&mut self, name: &str, text: &str) -> bool {
        let thread = self.thread(name);
        let Some(is_inbound) = thread.is_inbound.take() else {
            return false;
        };
        let read = || {
            let (spi, ends) = text.strip_prefix("SPI 0x")?.split_once(", src ")?;
            let (_, dst) = ends.split_once(" dst ")?;
            Some((u32::from_str_radix(spi, 16).ok()?, dst.trim().parse().ok()?))
        };
        let (Some(key), Some(is_initiator)) = (read(), thread.is_initiator) else {
            return false;
        };
        // The initiator sends by its own key.
        let bytes = std::mem::take(&mut thread.keys[usize::from(is_initiator == is_inbound)]);
        if bytes.is_empty() {
            return false;
        }
        if self.known.insert(key, Keymat::new(bytes)).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > SAS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
        true
    }
}

/// The number of the thread, which stands before the group.
fn thread(before: &str) -> String {
    let digits = before.bytes().rev().take_while(u8::is_ascii_digit).count();
    before[before.len() - digits..].to_owned()
}

/// The bytes of a line of a dump such as `16: FD B6 …`, if it begins at this
/// offset.
fn dumped(text: &str, at: usize) -> Option<Zeroizing<Vec<u8>>> {
    let (offset, digits) = text.split_once(": ")?;
    if offset.parse() != Ok(at) {
        return None;
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(16));
    // The same bytes as text follow two spaces.
    let digits = digits.split_once("  ").map_or(digits, |(digits, _)| digits);
    for pair in digits.split(' ').take(16) {
        if pair.len() != 2 {
            return None;
        }
        bytes.push(u8::from_str_radix(pair, 16).ok()?);
    }
    Some(bytes)
}

/// The state of a CHILD_SA as far as its use depends on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Use {
    /// It receives only: the peer deletes it.
    InboundOnly,
    /// It sends and receives.
    Both,
    /// Another one takes its place, but the peer may not have that yet: this one
    /// goes on sending.
    Replaced,
}

/// A CHILD_SA, as VICI lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Child {
    name: String,
    number: u64,
    usage: Use,
    ends: Ends,
    /// Why it is not used, if so.
    refused: Option<String>,
    spis: [u32; 2],
    ports: Option<(u16, u16)>,
    algorithm: Result<Algorithm, String>,
    is_extended: bool,
    local: Vec<String>,
    remote: Vec<String>,
}

/// A policy without a CHILD_SA: it lets pass or drops (`mode = pass`, `mode =
/// drop`), or it waits for a CHILD_SA (`start_action = trap`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shunt {
    passes: bool,
    waits: bool,
    local: Vec<String>,
    remote: Vec<String>,
}

/// The CHILD_SAs of an event `list-sa`: those that have SPIs.
pub fn children(message: &Section) -> Vec<Child> {
    let ikes = message.sections().filter_map(|(_, ike)| {
        let address = |name: &str| ike.value(name)?.parse::<IpAddr>().ok();
        let port = |name: &str| ike.value(name)?.parse::<u16>().ok();
        let ends = (address("local-host")?, address("remote-host")?);
        let ports = (port("local-port")?, port("remote-port")?);
        Some((ends, ports, ike.section("child-sas")?))
    });
    let mut made = Vec::new();
    for (ends, ports, list) in ikes {
        made.extend(list.sections().filter_map(|(_, sa)| child(ends, ports, sa)));
    }
    made
}

fn child(ends: (IpAddr, IpAddr), ports: (u16, u16), sa: &Section) -> Option<Child> {
    let spi = |name: &str| u32::from_str_radix(sa.value(name)?, 16).ok();
    let is_yes = |name: &str| sa.value(name) == Some("yes");
    let usage = match sa.value("state")? {
        "INSTALLING" | "INSTALLED" | "UPDATING" | "REKEYING" => Use::Both,
        "REKEYED" => Use::Replaced,
        "DELETING" | "DELETED" => Use::InboundOnly,
        _ => return None,
    };
    let name = sa.value("encr-alg").unwrap_or("none");
    let bits = sa.value("encr-keysize").unwrap_or("0");
    let algorithm = match (name, bits) {
        ("AES_GCM_16", "128") => Ok(Algorithm::Aes128Gcm),
        ("AES_GCM_16", "256") => Ok(Algorithm::Aes256Gcm),
        ("CHACHA20_POLY1305", _) => Ok(Algorithm::ChaCha20Poly1305),
        _ => Err(format!("algorithm {name} with a key of {bits} bits")),
    };
    let (mode, refused) = match (sa.value("mode")?, sa.value("protocol")?) {
        ("TUNNEL", "ESP") => (Mode::Tunnel, None),
        ("TRANSPORT", "ESP") => (Mode::Transport, None),
        (mode, protocol) => (
            Mode::Tunnel,
            Some(format!("mode {mode} of protocol {protocol}")),
        ),
    };
    Some(Child {
        name: sa.value("name").unwrap_or_default().to_owned(),
        number: sa.value("uniqueid")?.parse().ok()?,
        usage,
        ends: Ends {
            mode,
            local: ends.0,
            remote: ends.1,
            reqid: sa.value("reqid")?.parse().ok()?,
        },
        refused,
        spis: [spi("spi-in")?, spi("spi-out")?],
        ports: is_yes("encap").then_some(ports),
        algorithm,
        is_extended: is_yes("esn"),
        local: sa.list("local-ts").to_vec(),
        remote: sa.list("remote-ts").to_vec(),
    })
}

/// The policy of an event `list-policy`.
pub fn shunt(message: &Section) -> Option<Shunt> {
    let (_, policy) = message.sections().next()?;
    let mode = policy.value("mode")?;
    Some(Shunt {
        passes: mode == "PASS",
        waits: !matches!(mode, "PASS" | "DROP"),
        local: policy.list("local-ts").to_vec(),
        remote: policy.list("remote-ts").to_vec(),
    })
}

/// The gateway of these CHILD_SAs and policies. What none of them selects is
/// dropped: a CHILD_SA may be about to come.
pub fn config(
    mapper: &mut Mapper,
    children: &[Child],
    shunts: &[Shunt],
    keys: &Keys,
    mtu: usize,
) -> Config {
    let mut refused = Vec::new();
    let mut policies = Vec::new();
    let mut is_beyond = false;
    let mut add = |local: &[String], remote: &[String], treatment: &Treatment| {
        let count = local.len().saturating_mul(remote.len());
        is_beyond |= policies.len().saturating_add(count) > PAIRS_MAX;
        if !is_beyond {
            policies.extend(pairs(local, remote, treatment, &mut refused));
        }
    };
    let (waiting, others): (Vec<_>, Vec<_>) = shunts.iter().partition(|shunt| shunt.waits);
    for shunt in others {
        let treatment = if shunt.passes {
            Treatment::Bypass
        } else {
            Treatment::Discard
        };
        add(&shunt.local, &shunt.remote, &treatment);
    }
    let mut sas = Vec::new();
    let mut unused = Vec::new();
    let mut children: Vec<&Child> = children.iter().collect();
    children.sort_by_key(|child| (child.usage, child.number));
    for child in children {
        if let Some(why) = &child.refused {
            let why = format!("CHILD_SA {}: {why}", child.name);
            add(&child.local, &child.remote, &Treatment::Refuse(why));
            continue;
        }
        let treatment = Treatment::Protect(child.ends);
        add(&child.local, &child.remote, &treatment);
        for is_out in [false, true] {
            if is_out && child.usage == Use::InboundOnly {
                continue;
            }
            match child.sa(is_out, keys) {
                Ok(sa) => sas.push(sa),
                Err(why) => unused.push(why),
            }
        }
    }
    // Behind a CHILD_SA of the same selectors.
    for shunt in waiting {
        add(&shunt.local, &shunt.remote, &Treatment::Discard);
    }
    refused.append(&mut unused);
    if is_beyond {
        let why = format!("more than {PAIRS_MAX} pairs of traffic selectors");
        policies.extend(refusals(&why));
    }
    refuse_before_passing(&mut policies);
    let mut config = mapper.config(&policies, &sas, false, mtu);
    refused.dedup();
    config.refused.append(&mut refused);
    config
}

/// Policies that drop all.
fn refusals(why: &str) -> [NegotiatedPolicy; 2] {
    let all: [IpAddr; 2] = [[0; 4].into(), [0; 16].into()];
    all.map(|address| NegotiatedPolicy {
        selector: Selector {
            src: (address, 0),
            dst: (address, 0),
            protocol: None,
            src_ports: ALL_PORTS,
            dst_ports: ALL_PORTS,
        },
        priority: 0,
        treatment: Treatment::Refuse(why.to_owned()),
        spi: None,
    })
}

/// Sorts policies by their priorities; what is not understood is dropped before
/// any policy lets something pass.
fn refuse_before_passing(policies: &mut [NegotiatedPolicy]) {
    let passing = |policy: &&NegotiatedPolicy| policy.treatment == Treatment::Bypass;
    let first = policies.iter().filter(passing).map(|it| it.priority).min();
    let is_refused = |policy: &NegotiatedPolicy| matches!(policy.treatment, Treatment::Refuse(_));
    if let Some(first) = first {
        for policy in policies.iter_mut().filter(|policy| is_refused(policy)) {
            policy.priority = policy.priority.min(first);
        }
    }
    policies.sort_by_key(|policy| (policy.priority, !is_refused(policy)));
}

impl Child {
    /// SPI and destination of its SAs.
    fn sas(&self) -> [(u32, IpAddr); 2] {
        let [inbound, outbound] = self.spis;
        [(inbound, self.ends.local), (outbound, self.ends.remote)]
    }

    fn sa(&self, is_out: bool, keys: &Keys) -> Result<NegotiatedSa, String> {
        let Ends { local, remote, .. } = self.ends;
        let (src, dst) = if is_out {
            (local, remote)
        } else {
            (remote, local)
        };
        let spi = self.spis[usize::from(is_out)];
        let named = |why: &str| format!("SA {spi:#010x} of CHILD_SA {}: {why}", self.name);
        let algorithm = self.algorithm.as_ref();
        let algorithm = *algorithm.map_err(|why| named(why))?;
        let keymat = keys.key(spi, dst).ok_or_else(|| {
            named("the log has no key of it: have strongSwan rekey it (swanctl --rekey)")
        })?;
        Ok(NegotiatedSa {
            src,
            dst,
            mode: self.ends.mode,
            reqid: self.ends.reqid,
            udp: self.ports.map(
                |(here, there)| {
                    if is_out { (here, there) } else { (there, here) }
                },
            ),
            sa: SaConfig {
                spi,
                algorithm,
                keymat: keymat.clone(),
                is_extended: self.is_extended,
                window: WINDOW_DEFAULT,
                lifetime: Lifetime::UNLIMITED,
                sequence: 0,
            },
        })
    }
}

/// The policies of all pairs of traffic selectors, the narrowest first. A selector
/// that is not understood lets nothing pass, and otherwise drops as much as it may
/// select.
fn pairs(
    local: &[String],
    remote: &[String],
    treatment: &Treatment,
    refused: &mut Vec<String>,
) -> Vec<NegotiatedPolicy> {
    let mut made = Vec::new();
    let mut read = |texts: &[String]| -> Vec<TrafficSelector> {
        let each = texts.iter().flat_map(|text| {
            let read = traffic_selector(text);
            // Mapped policies name the others.
            if *treatment == Treatment::Bypass {
                refused.extend(read.iter().filter_map(|it| it.refused.clone()));
            }
            read
        });
        each.collect()
    };
    let (local, remote) = (read(local), read(remote));
    for src in &local {
        for dst in &remote {
            let protocols = [src.protocol, dst.protocol].into_iter().flatten();
            let protocol = protocols.max();
            let is_contrary = matches!((src.protocol, dst.protocol), (Some(a), Some(b)) if a != b);
            if src.net.0.is_ipv4() != dst.net.0.is_ipv4() || is_contrary {
                continue;
            }
            let treatment = match (src.refused.as_ref().or(dst.refused.as_ref()), treatment) {
                (None, treatment) => treatment.clone(),
                (Some(_), Treatment::Bypass) => continue,
                (Some(why), _) => Treatment::Refuse(why.clone()),
            };
            let selector = Selector {
                src: src.net,
                dst: dst.net,
                protocol,
                src_ports: src.ports,
                dst_ports: dst.ports,
            };
            let bits = 4 * (u32::from(src.net.1) + u32::from(dst.net.1))
                + 2 * u32::from(protocol.is_some())
                + u32::from(src.ports != ALL_PORTS || dst.ports != ALL_PORTS);
            made.push(NegotiatedPolicy {
                selector,
                priority: 4096 - bits,
                treatment,
                spi: None,
            });
        }
    }
    made
}

struct TrafficSelector {
    net: (IpAddr, u8),
    protocol: Option<u8>,
    ports: (u16, u16),
    /// What is not understood, if so; then it selects more than the text.
    refused: Option<String>,
}

/// Reads `10.1.0.0/16`, `10.1.0.0/16[tcp]`, `10.1.0.1/32[udp/53]` or
/// `10.1.0.1/32[6/1024-2047]`. If protocol or ports are not understood, those of the
/// network; otherwise those of all, of both versions of IP.
fn traffic_selector(text: &str) -> Vec<TrafficSelector> {
    let (net, rest) = text.split_once('[').unwrap_or((text, "]"));
    let whole = |net| TrafficSelector {
        net,
        protocol: None,
        ports: ALL_PORTS,
        refused: Some(format!("traffic selector `{text}` is not understood")),
    };
    let Some(net) = network(net) else {
        let all: [IpAddr; 2] = [[0; 4].into(), [0; 16].into()];
        return all.map(|address| whole((address, 0))).into();
    };
    vec![match protocol_and_ports(rest) {
        Some((protocol, ports)) => TrafficSelector {
            net,
            protocol,
            ports,
            refused: None,
        },
        None => whole(net),
    }]
}

fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, len) = text.split_once('/')?;
    let (address, len) = (address.parse::<IpAddr>().ok()?, len.parse::<u8>().ok()?);
    (len <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, len))
}

/// Reads `]`, `tcp]`, `udp/53]` or `6/1024-2047]`.
fn protocol_and_ports(text: &str) -> Option<(Option<u8>, (u16, u16))> {
    let inner = text.strip_suffix(']')?;
    let (protocol, ports) = match inner.split_once('/') {
        Some((protocol, ports)) => (protocol, Some(ports)),
        None => (inner, None),
    };
    let protocol = match protocol {
        "" | "0" => None,
        "icmp" => Some(1),
        "tcp" => Some(6),
        "udp" => Some(17),
        "ipv6-icmp" => Some(58),
        "sctp" => Some(132),
        number => Some(number.parse().ok()?),
    };
    let ports = match ports {
        None => ALL_PORTS,
        Some(ports) => {
            let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
            (first.parse().ok()?, last.parse().ok()?)
        }
    };
    (ports.0 <= ports.1).then_some((protocol, ports))
}
