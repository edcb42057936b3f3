//! A gateway: policies, tunnels and their SAs (RFC 4301).

mod counters;
mod one_armed;

pub use counters::Counters;

use crate::config::{Config, ConfigError, Direction, SAS_MAX};
use crate::icmp::{self, RateLimit};
use crate::ip::{self, ESP, Headers};
use crate::path_mtu::{self, Report};
use crate::policy::{Action, Decision, Policies};
use crate::reassembly::{Reassembled, Reassembly};
use crate::sa::{InboundSa, Opened, OutboundSa, payload_max};
use crate::tunnel::{Mode, Tunnel, decapsulate_ecn};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use weir_wire::field::{read_u16, read_u32};
use weir_wire::{Protocol, udp};

/// The outcome of a packet that leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outward {
    /// It goes on as it is.
    Pass,
    /// These ESP packets go in its place: several, if it had to be fragmented.
    Protected(Vec<Vec<u8>>),
    /// It is dropped, for this reason. Its sender gets the ICMP error, if there
    /// is one.
    Drop(&'static str, Option<Vec<u8>>),
}

/// A packet that was in an ESP packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inner {
    /// The first bytes, this many, of the memory of the packet that carried it.
    InPlace(usize),
    /// Bytes of its own: the packet that carried it came in fragments.
    Own(Vec<u8>),
}

/// The outcome of a packet that enters. An opened packet is where it was, or, as
/// [`into_owned`](Inward::into_owned) has it, in bytes of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inward<T = Inner> {
    /// It goes on as it is.
    Pass,
    /// This packet goes on in its place.
    Opened(T),
    /// It was for the gateway itself: a keepalive, or a dummy packet (RFC 4303
    /// §2.6).
    Consumed,
    /// It is dropped, for this reason.
    Drop(&'static str),
    /// It is dropped, as no SA has its SPI: the packet as it came, or this one, which
    /// was made whole of fragments.
    NoSa(Option<Vec<u8>>),
}

impl Inward {
    /// With an opened packet in bytes of its own; `packet` is the memory of the
    /// packet that entered.
    pub fn into_owned(self, packet: &[u8]) -> Inward<Vec<u8>> {
        match self {
            Inward::Pass => Inward::Pass,
            Inward::Opened(Inner::InPlace(len)) => Inward::Opened(packet[..len].to_vec()),
            Inward::Opened(Inner::Own(bytes)) => Inward::Opened(bytes),
            Inward::Consumed => Inward::Consumed,
            Inward::Drop(reason) => Inward::Drop(reason),
            Inward::NoSa(whole) => Inward::NoSa(whole),
        }
    }
}

/// A tunnel and its outbound SA.
struct Side {
    tunnel: Tunnel,
    outbound: Vec<OutboundSa>,
    /// The identification of the next outer header.
    id: u16,
    /// When something was last sent.
    sent_at: u64,
    /// The MTU of the path that an ICMP error has reported, and until when it
    /// counts.
    reported: Option<(usize, u64)>,
}

impl Side {
    /// The MTU of the path.
    fn mtu(&self, now: u64) -> usize {
        match self.reported {
            Some((mtu, until)) if now < until => mtu.min(self.tunnel.mtu),
            _ => self.tunnel.mtu,
        }
    }

    /// Whether the ends are the same.
    fn has_ends_of(&self, other: &Side) -> bool {
        let ends = |it: &Side| (it.tunnel.local, it.tunnel.remote, it.tunnel.udp);
        ends(self) == ends(other)
    }
}

/// An inbound SA and the number of its tunnel.
struct Inbound {
    sa: InboundSa,
    tunnel: usize,
}

/// MTU that every link of IPv6 has, in bytes (RFC 8200 §5).
const IPV6_MTU_MIN: usize = 1280;

/// Number of keys without an SA that a gateway remembers, at most.
pub const RETIRED_MAX: usize = 65_536;

/// Where the keys are whose SAs were removed: should one come again, its
/// sequence goes on.
#[derive(Clone, Default)]
struct Retired {
    /// Number of configurations so far.
    generation: u64,
    /// Generation; last number sent, and mask of the IV.
    outbound: HashMap<[u8; 32], (u64, (u64, u64))>,
    /// Generation; highest number that came.
    inbound: HashMap<[u8; 32], (u64, u64)>,
}

// The keys of SAs that are there now, which are the newest, must be in the half that stays: their
// numbers would begin anew.
const _: () = assert!(SAS_MAX < RETIRED_MAX / 2);

/// Forgets the older half of keys, if there are too many.
fn evict<T>(keys: &mut HashMap<[u8; 32], (u64, T)>) {
    if keys.len() <= RETIRED_MAX {
        return;
    }
    let mut generations: Vec<u64> = keys.values().map(|(generation, _)| *generation).collect();
    let middle = generations.len() / 2;
    let (_, middle, _) = generations.select_nth_unstable(middle);
    keys.retain(|_, (generation, _)| *generation > *middle);
}

/// A gateway; see the [module](self).
pub struct Gateway {
    policies: Policies,
    sides: Vec<Side>,
    /// The addresses of this end, each once: most packets have another one.
    locals: Vec<IpAddr>,
    inbound: HashMap<u32, Inbound>,
    retired: Retired,
    reassembly: Reassembly,
    limit: RateLimit,
    counters: Counters,
    seed: u64,
    is_negotiated: bool,
    is_one_armed: bool,
    /// With one link, the ICMP errors to hosts that are about to leave, from the ICMP header on.
    errors: VecDeque<Vec<u8>>,
    /// Bytes before each ESP packet that is made.
    headroom: usize,
    /// Memory of ESP packets that were sent.
    spare: Vec<Vec<u8>>,
}

/// Number of ESP packets whose memory is kept for further ones, at most.
const SPARE_MAX: usize = 256;

impl Gateway {
    /// A gateway of this configuration. `seed` is a random number that peers
    /// cannot predict.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(config: &Config, now: u64, seed: u64) -> Result<Gateway, ConfigError> {
        config.check()?;
        let policies = Policies::new(&config.policies, seed.into());
        let policies = policies.map_err(|error| ConfigError::whole(error.to_string()))?;
        let mut locals: Vec<IpAddr> = config.tunnels.iter().map(|it| it.local).collect();
        locals.sort_unstable();
        locals.dedup();
        let sides = config.tunnels.iter().map(|tunnel| Side {
            tunnel: tunnel.clone(),
            outbound: Vec::new(),
            id: seed as u16,
            sent_at: now,
            reported: None,
        });
        let mut gateway = Gateway {
            policies,
            sides: sides.collect(),
            locals,
            inbound: HashMap::new(),
            retired: Retired::default(),
            reassembly: Reassembly::default(),
            limit: RateLimit::new(),
            counters: Counters {
                refused: config.refused.len() as u64,
                ..Counters::default()
            },
            seed,
            is_negotiated: config.is_negotiated,
            is_one_armed: false,
            errors: VecDeque::new(),
            headroom: 0,
            spare: Vec::new(),
        };
        for sa in &config.sas {
            let wrong = || ConfigError::whole("a key has another length than its algorithm's");
            match sa.direction {
                Direction::Out => {
                    let made =
                        OutboundSa::new(&sa.sa, now, seed.rotate_left(17) ^ u64::from(sa.sa.spi));
                    gateway.sides[sa.tunnel]
                        .outbound
                        .push(made.ok_or_else(wrong)?);
                }
                Direction::In => {
                    let made = Inbound {
                        sa: InboundSa::new(&sa.sa, now).ok_or_else(wrong)?,
                        tunnel: sa.tunnel,
                    };
                    gateway.inbound.insert(sa.sa.spi, made);
                }
            }
        }
        Ok(gateway)
    }

    /// Changes the configuration. An SA whose key was there before goes on where
    /// it is, with its sequence number, window, use and age; so an SA is added
    /// or removed without loss at the others.
    ///
    /// # Errors
    /// If the configuration contradicts itself; then nothing changes.
    pub fn reload(&mut self, config: &Config, now: u64) -> Result<(), ConfigError> {
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut new = Gateway::new(config, now, seed)?;
        let retired = self.retired(config.is_negotiated);
        if retired.outbound.len().max(retired.inbound.len()) > RETIRED_MAX {
            let message = format!("more than {RETIRED_MAX} keys since the start: start anew");
            return Err(ConfigError::whole(message));
        }
        for sa in new.sides.iter_mut().flat_map(|side| &mut side.outbound) {
            let key = sa.common.fingerprint;
            let mut old = self.sides.iter().flat_map(|side| &side.outbound);
            if let Some(old) = old.find(|old| old.common.fingerprint == key) {
                sa.common.follow(&old.common);
            }
            if let Some((_, (sequence, iv_mask))) = retired.outbound.get(&key) {
                sa.resume(*sequence, *iv_mask);
            }
        }
        for (spi, now) in &mut new.inbound {
            let key = now.sa.common.fingerprint;
            match self.inbound.remove(spi) {
                Some(old) if old.sa.common.fingerprint == key => now.sa.follow(old.sa),
                _ => {
                    if let Some((_, top)) = retired.inbound.get(&key) {
                        now.sa.resume(*top);
                    }
                }
            }
        }
        for side in &mut new.sides {
            let old = self.sides.iter().find(|old| old.has_ends_of(side));
            side.reported = old.and_then(|old| old.reported);
        }
        new.reassembly = std::mem::take(&mut self.reassembly);
        new.retired = retired;
        new.counters = Counters {
            refused: new.counters.refused,
            ..self.counters
        };
        new.limit = self.limit;
        new.headroom = self.headroom;
        new.is_one_armed = self.is_one_armed;
        new.spare = std::mem::take(&mut self.spare);
        *self = new;
        Ok(())
    }

    /// Where the keys are of the SAs that were removed, or are there now. If there are
    /// too many of a key exchange, the oldest ones are forgotten.
    fn retired(&self, is_negotiated: bool) -> Retired {
        let mut retired = self.retired.clone();
        let generation = retired.generation;
        let outbound = self.sides.iter().flat_map(|side| &side.outbound);
        retired.outbound.extend(outbound.map(|sa| {
            let place = (sa.sequence, sa.iv_mask());
            (sa.common.fingerprint, (generation, place))
        }));
        let inbound = self.inbound.values().map(|inbound| &inbound.sa);
        retired
            .inbound
            .extend(inbound.map(|sa| (sa.common.fingerprint, (generation, sa.sequence()))));
        retired.generation += 1;
        if is_negotiated {
            evict(&mut retired.outbound);
            evict(&mut retired.inbound);
        }
        retired
    }

    /// Whether the SAs are of a key exchange; see [`Config::is_negotiated`].
    pub fn is_negotiated(&self) -> bool {
        self.is_negotiated
    }

    /// Leaves this many bytes, of value 0, before each ESP packet that is made: for
    /// the header of the link.
    #[must_use]
    pub fn with_headroom(mut self, bytes: usize) -> Gateway {
        self.headroom = bytes;
        self
    }

    /// Takes back the memory of an ESP packet that was sent.
    pub fn recycle(&mut self, packet: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(packet);
        }
    }

    /// The counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Each SA: name of its tunnel, direction, and how it was used.
    pub fn sas(&self, mut each: impl FnMut(&str, Direction, SaState)) {
        for side in &self.sides {
            for sa in &side.outbound {
                let state = SaState {
                    spi: sa.spi(),
                    sequence: sa.sequence(),
                    packets: sa.usage().packets,
                    bytes: sa.usage().bytes,
                };
                each(&side.tunnel.name, Direction::Out, state);
            }
        }
        for inbound in self.inbound.values() {
            let state = SaState {
                spi: inbound.sa.spi(),
                sequence: inbound.sa.sequence(),
                packets: inbound.sa.usage().packets,
                bytes: inbound.sa.usage().bytes,
            };
            each(
                &self.sides[inbound.tunnel].tunnel.name,
                Direction::In,
                state,
            );
        }
    }

    /// Processes a packet that leaves, from the IP header on. `packet` is as
    /// before, unless it was protected.
    pub fn outward(&mut self, now: u64, packet: &mut [u8]) -> Outward {
        let Some(headers) = Headers::of(packet) else {
            return Outward::Drop("malformed", None);
        };
        if headers.is_discovery(packet) || self.is_own(&headers, packet) {
            return Outward::Pass;
        }
        let decision = self.policies.decide(now, Direction::Out, &headers, packet);
        let is_protected = matches!(decision, Decision::By(Action::Protect(_)));
        if self.is_one_armed && self.protects(now, Direction::In, &headers, packet) {
            if is_protected {
                return Outward::Drop("both-ways", None);
            }
            // None but what a peer protected has come here.
            return Outward::Pass;
        }
        if decision == Decision::NoPolicy && self.is_own_error(&headers, packet) {
            return Outward::Pass;
        }
        match decision {
            Decision::By(Action::Bypass) => {
                self.counters.bypassed += 1;
                Outward::Pass
            }
            Decision::By(Action::Discard) => Outward::Drop("policy", None),
            Decision::NoPolicy => Outward::Drop("no-policy", None),
            Decision::UnknownFragment => Outward::Drop("fragment-unknown", None),
            Decision::By(Action::Protect(tunnel)) => {
                self.protect(now, tunnel, &headers, &packet[..headers.len])
            }
        }
    }

    /// Whether a packet is one that the gateway has sealed already: it waited
    /// for a neighbour.
    fn is_own(&self, headers: &Headers, packet: &[u8]) -> bool {
        self.locals.contains(&headers.src)
            && self.sides.iter().any(|side| {
                side.tunnel.sent_spi(headers, packet).is_some_and(|spi| {
                    // 0 stands for a keepalive.
                    spi == 0 && headers.len == side.tunnel.outer_len() + 1
                        || side.outbound.iter().any(|sa| sa.spi() == spi)
                })
            })
    }

    fn protect(&mut self, now: u64, tunnel: usize, headers: &Headers, packet: &[u8]) -> Outward {
        let side = &self.sides[tunnel];
        let mtu = side.mtu(now);
        let inner_mtu = match side.tunnel.mode {
            Mode::Tunnel => side.tunnel.inner_mtu(mtu),
            Mode::Transport => headers.payload + payload_max(mtu.saturating_sub(headers.payload)),
        };
        if packet.len() <= inner_mtu {
            return self.seal(now, tunnel, headers, &[packet]);
        }
        if headers.is_v6 && packet.len() <= IPV6_MTU_MIN {
            // Every link of IPv6 carries it: routers of IPv4 may cut the ESP packet.
            let headers = Headers {
                dont_fragment: false,
                ..*headers
            };
            return self.seal(now, tunnel, &headers, &[packet]);
        }
        if headers.dont_fragment {
            let local = side.tunnel.local;
            let inner_mtu = if headers.is_v6 {
                inner_mtu.max(IPV6_MTU_MIN)
            } else {
                inner_mtu
            };
            let error = if self.limit.take(now) {
                icmp::too_big(packet, headers, inner_mtu, local)
            } else {
                None
            };
            self.counters.too_big += u64::from(error.is_some());
            if let Some(error) = &error {
                self.note_error(error);
            }
            return Outward::Drop("too-big", error);
        }
        if side.tunnel.mode == Mode::Transport {
            // Routers cut the ESP packet (RFC 4303 §3.3.4).
            return self.seal(now, tunnel, headers, &[packet]);
        }
        let pieces = ip::fragments(packet, headers, inner_mtu);
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        self.counters.fragmented += 1;
        self.seal(now, tunnel, headers, &pieces)
    }

    /// The ESP packets of these packets, which have these headers, by the newest
    /// SA.
    fn seal(&mut self, now: u64, tunnel: usize, headers: &Headers, packets: &[&[u8]]) -> Outward {
        let side = &mut self.sides[tunnel];
        let Some(sa) = side.outbound.last_mut() else {
            return Outward::Drop("no-outbound-sa", None);
        };
        let mut sealed = Vec::with_capacity(packets.len());
        let headroom = self.headroom;
        for packet in packets {
            let mut out = self.spare.pop().unwrap_or_default();
            out.clear();
            let made = match side.tunnel.mode {
                Mode::Tunnel => {
                    let next = if headers.is_v6 { 41 } else { 4 };
                    let outer_len = side.tunnel.outer_len();
                    out.reserve(headroom + outer_len + packet.len() + 64);
                    out.resize(headroom + outer_len, 0);
                    let made = sa.seal(now, packet, next, &mut out);
                    made.map(|()| {
                        let outer = &mut out[headroom..];
                        side.tunnel.outer(Some(headers), side.id, outer);
                        out
                    })
                }
                Mode::Transport => {
                    if let Some(reason) = no_transport(&side.tunnel, headers) {
                        return Outward::Drop(reason, None);
                    }
                    out.resize(headroom, 0);
                    out.extend_from_slice(&packet[..headers.payload]);
                    let payload = headers.payload(packet);
                    let made = sa.seal(now, payload, headers.protocol.0, &mut out);
                    made.map(|()| {
                        ip::state_payload(&mut out[headroom..], ESP);
                        out
                    })
                }
            };
            match made {
                Ok(out) => {
                    side.id = side.id.wrapping_add(1);
                    self.counters.sealed += 1;
                    self.counters.sealed_bytes += packet.len() as u64;
                    sealed.push(out);
                }
                Err(error) => return Outward::Drop(error.name(), None),
            }
        }
        side.sent_at = now;
        Outward::Protected(sealed)
    }

    /// Processes a packet that enters, from the IP header on. Unless it passes or has
    /// no SA, its bytes are undefined afterwards, but for those of an opened packet.
    pub fn inward(&mut self, now: u64, packet: &mut [u8]) -> Inward {
        let Some(headers) = Headers::of(packet) else {
            return Inward::Drop("malformed");
        };
        if headers.is_discovery(packet) {
            return Inward::Pass;
        }
        let Some(fragment) = headers.fragment.filter(|_| self.is_of_peer(&headers)) else {
            return self.whole_inward(now, &headers, packet);
        };
        match self.reassembly.add(now, &headers, &fragment, packet) {
            Reassembled::Waits => Inward::Consumed,
            Reassembled::Drop(reason) => Inward::Drop(reason),
            Reassembled::Whole(mut whole) => {
                self.counters.reassembled += 1;
                let Some(headers) = Headers::of(&whole) else {
                    return Inward::Drop("malformed");
                };
                match self.whole_inward(now, &headers, &mut whole) {
                    Inward::Pass => Inward::Opened(Inner::Own(whole)),
                    Inward::Opened(Inner::InPlace(len)) => {
                        whole.truncate(len);
                        Inward::Opened(Inner::Own(whole))
                    }
                    Inward::NoSa(_) => Inward::NoSa(Some(whole)),
                    other => other,
                }
            }
        }
    }

    /// Whether a fragment may be one of an ESP packet from a peer.
    fn is_of_peer(&self, headers: &Headers) -> bool {
        self.locals.contains(&headers.dst)
            && self.sides.iter().any(|Side { tunnel, .. }| {
                let protocol = if tunnel.udp.is_some() {
                    Protocol::UDP
                } else {
                    ESP
                };
                (tunnel.remote, tunnel.local) == (headers.src, headers.dst)
                    && headers.protocol == protocol
            })
    }

    /// Notes the MTU that an ICMP error reports; returns whether the error is
    /// about an ESP packet of ours.
    fn note_mtu(&mut self, now: u64, report: &Report) -> bool {
        let sides = self.sides.iter_mut().filter(|side| {
            let ports = side.tunnel.udp.map(|udp| (udp.local, udp.remote));
            (side.tunnel.local, side.tunnel.remote, ports)
                == (report.local, report.remote, report.ports)
                && side.outbound.iter().any(|sa| sa.spi() == report.spi)
        });
        let mut is_ours = false;
        for side in sides {
            is_ours = true;
            if report.mtu < side.mtu(now) {
                side.reported = Some((report.mtu, now.saturating_add(path_mtu::BELIEVED)));
                self.counters.path_mtu_lowered += 1;
            }
        }
        is_ours
    }

    /// Processes a packet that enters and is none of a peer's fragments.
    fn whole_inward(&mut self, now: u64, headers: &Headers, packet: &mut [u8]) -> Inward {
        if self.locals.contains(&headers.dst)
            && let Some(report) = path_mtu::report(headers, packet)
            && self.note_mtu(now, &report)
        {
            return Inward::Consumed;
        }
        if let Some(at) = self.esp_at(headers, packet) {
            if headers.fragment.is_some() {
                return Inward::Drop("esp-fragment");
            }
            let at = match at {
                EspAt::Esp(at) => at,
                EspAt::Keepalive => {
                    self.counters.keepalives_received += 1;
                    return Inward::Consumed;
                }
            };
            return match self.open(now, headers, packet, at) {
                Ok(Some(len)) => {
                    self.counters.opened += 1;
                    self.counters.opened_bytes += len as u64;
                    Inward::Opened(Inner::InPlace(len))
                }
                Ok(None) => {
                    self.counters.dummies += 1;
                    Inward::Consumed
                }
                Err(NotOpened::NoSa) => Inward::NoSa(None),
                Err(NotOpened::Drop(reason)) => Inward::Drop(reason),
            };
        }
        let decision = self.policies.decide(now, Direction::In, headers, packet);
        if self.is_one_armed && self.protects(now, Direction::Out, headers, packet) {
            if matches!(decision, Decision::By(Action::Protect(_))) {
                return Inward::Drop("both-ways");
            }
            // A host's, which is protected when it leaves.
            return Inward::Pass;
        }
        match decision {
            Decision::By(Action::Bypass) => {
                self.counters.bypassed += 1;
                Inward::Pass
            }
            Decision::By(Action::Protect(_)) => Inward::Drop("unprotected"),
            Decision::By(Action::Discard) => Inward::Drop("policy"),
            Decision::NoPolicy => Inward::Drop("no-policy"),
            Decision::UnknownFragment => Inward::Drop("fragment-unknown"),
        }
    }

    /// Where ESP begins in a packet to an end of ours; `None` of other packets,
    /// and of those with a non-ESP marker (RFC 3948 §2.2), which are IKE's.
    fn esp_at(&self, headers: &Headers, packet: &[u8]) -> Option<EspAt> {
        if !self.locals.contains(&headers.dst) {
            return None;
        }
        let mut here = self.sides.iter().map(|side| &side.tunnel);
        if headers.protocol == ESP {
            let is_here =
                here.any(|tunnel| tunnel.udp.is_none() && tunnel.is_here(headers, packet));
            return is_here.then_some(EspAt::Esp(headers.payload));
        }
        let is_later = headers.fragment.is_some_and(|fragment| !fragment.is_first);
        if headers.protocol != Protocol::UDP
            || is_later
            || !here.any(|tunnel| tunnel.udp.is_some() && tunnel.is_here(headers, packet))
        {
            return None;
        }
        let datagram = headers.payload(packet);
        let len = usize::from(read_u16(datagram, 4)).clamp(udp::Repr::LEN, datagram.len());
        match &datagram[udp::Repr::LEN..len] {
            [0xff] => Some(EspAt::Keepalive),
            [0, 0, 0, 0, ..] => None,
            _ => Some(EspAt::Esp(headers.payload + udp::Repr::LEN)),
        }
    }

    /// Moves the packet in the ESP packet at `at` to the front, and returns its length;
    /// `None` of a dummy packet.
    fn open(
        &mut self,
        now: u64,
        outer: &Headers,
        packet: &mut [u8],
        at: usize,
    ) -> Result<Option<usize>, NotOpened> {
        let end = esp_end(outer, packet, at);
        if end - at < 8 {
            return Err("esp-malformed".into());
        }
        let spi = read_u32(packet, at);
        let inbound = self.inbound.get_mut(&spi).ok_or(NotOpened::NoSa)?;
        let number = inbound.tunnel;
        let tunnel = &self.sides[number].tunnel;
        let is_udp = outer.protocol == Protocol::UDP;
        if !tunnel.is_here(outer, packet) || tunnel.udp.is_some() != is_udp {
            return Err(NotOpened::NoSa);
        }
        let opened = inbound.sa.open(now, &mut packet[at..end]);
        let Opened {
            payload,
            next_header,
        } = opened.map_err(|error| error.name())?;
        if next_header == Protocol::IPV6_NO_NEXT_HEADER.0 {
            return Ok(None);
        }
        let payload = at + payload.start..at + payload.end;
        let inner = match tunnel.mode {
            Mode::Tunnel => {
                let version = packet[payload.clone()].first().map(|byte| byte >> 4);
                match (next_header, version) {
                    (4, Some(4)) | (41, Some(6)) => {}
                    _ => return Err("next-header".into()),
                }
                let len = payload.len();
                packet.copy_within(payload, 0);
                &mut packet[..len]
            }
            Mode::Transport => {
                if (outer.src, outer.dst) != (tunnel.remote, tunnel.local) {
                    return Err("transport-address".into());
                }
                let len = at + payload.len();
                packet.copy_within(payload, at);
                let whole = &mut packet[..len];
                ip::state_payload(whole, Protocol(next_header));
                whole
            }
        };
        let headers = Headers::of(inner).ok_or("inner-malformed")?;
        // What follows the packet is traffic flow confidentiality padding.
        let inner = &mut inner[..headers.len];
        match self.policies.decide(now, Direction::In, &headers, inner) {
            Decision::By(Action::Protect(wanted)) if wanted == number => {}
            Decision::UnknownFragment => return Err("fragment-unknown".into()),
            _ => return Err("policy-mismatch".into()),
        }
        if tunnel.mode == Mode::Tunnel && !decapsulate_ecn(outer.traffic_class, inner, &headers) {
            return Err("congestion".into());
        }
        Ok(Some(headers.len))
    }

    /// The keepalives that are due (RFC 3948 §4).
    pub fn poll(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut due = Vec::new();
        for side in &mut self.sides {
            let every = side.tunnel.keepalive;
            if every == 0 || now.saturating_sub(side.sent_at) < every {
                continue;
            }
            if let Some(packet) = side.tunnel.keepalive(side.id) {
                side.id = side.id.wrapping_add(1);
                side.sent_at = now;
                self.counters.keepalives_sent += 1;
                due.push(packet);
            }
        }
        due
    }

    /// The next time for [`poll`](Self::poll); `None` if there is none.
    pub fn next_deadline(&self) -> Option<u64> {
        let sides = self.sides.iter();
        let sides = sides.filter(|side| side.tunnel.keepalive > 0 && side.tunnel.udp.is_some());
        sides
            .map(|side| side.sent_at.saturating_add(side.tunnel.keepalive))
            .min()
    }
}

/// How an SA was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaState {
    /// Its SPI.
    pub spi: u32,
    /// The last sequence number sent, or the highest received.
    pub sequence: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

enum EspAt {
    Esp(usize),
    Keepalive,
}

/// Why an ESP packet is not opened.
enum NotOpened {
    NoSa,
    Drop(&'static str),
}

impl From<&'static str> for NotOpened {
    fn from(reason: &'static str) -> NotOpened {
        NotOpened::Drop(reason)
    }
}

/// The end of an ESP packet: that of the IP packet, or of the UDP datagram.
fn esp_end(outer: &Headers, packet: &[u8], at: usize) -> usize {
    if outer.protocol != Protocol::UDP {
        return outer.len;
    }
    let len = usize::from(read_u16(packet, outer.payload + 4));
    (outer.payload + len).clamp(at, outer.len)
}

/// Why a packet cannot be protected in transport mode, if so: it carries no
/// fragments (RFC 4303 §3.3.4), and only what the ends themselves send.
fn no_transport(tunnel: &Tunnel, headers: &Headers) -> Option<&'static str> {
    if (headers.src, headers.dst) != (tunnel.local, tunnel.remote) {
        return Some("transport-address");
    }
    headers.fragment.map(|_| "transport-fragment")
}
