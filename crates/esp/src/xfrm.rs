//! The kernel's databases of SAs and policies, from the messages of its socket
//! `NETLINK_XFRM` (`linux/xfrm.h`).
//!
//! The messages are read here and not by the crate `netlink-packet-xfrm`: its
//! types show keys in `Debug` texts and do not erase them, and a replay state of
//! an odd length makes it panic.
//!
//! All lengths and numbers count as hostile. A message that is cut short is
//! skipped.

use crate::algorithm::{Algorithm, Keymat};
use crate::config::{Config, SAS_MAX};
use crate::negotiated::{
    ALL_PORTS, Ends, Mapper, NegotiatedPolicy, NegotiatedSa, Selector, Treatment,
};
use crate::policy::POLICIES_MAX;
use crate::replay::{WINDOW_DEFAULT, WINDOW_MAX};
use crate::sa::{Lifetime, SaConfig};
use crate::tunnel::Mode;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use weir_wire::field::{array, read_u16, read_u32};
use zeroize::Zeroizing;

/// `XFRM_MSG_NEWSA`.
pub const NEWSA: u16 = 0x10;
/// `XFRM_MSG_DELSA`.
pub const DELSA: u16 = 0x11;
/// `XFRM_MSG_NEWPOLICY`.
pub const NEWPOLICY: u16 = 0x13;
/// `XFRM_MSG_DELPOLICY`.
pub const DELPOLICY: u16 = 0x14;
/// `XFRM_MSG_EXPIRE`.
pub const EXPIRE: u16 = 0x18;
/// `XFRM_MSG_UPDPOLICY`.
pub const UPDPOLICY: u16 = 0x19;
/// `XFRM_MSG_UPDSA`.
pub const UPDSA: u16 = 0x1a;
/// `XFRM_MSG_POLEXPIRE`.
pub const POLEXPIRE: u16 = 0x1b;
/// `XFRM_MSG_FLUSHSA`.
pub const FLUSHSA: u16 = 0x1c;
/// `XFRM_MSG_FLUSHPOLICY`.
pub const FLUSHPOLICY: u16 = 0x1d;
/// `XFRM_MSG_GETDEFAULT`.
pub const GETDEFAULT: u16 = 0x28;

// Attributes, `XFRMA_*`.
const ALG_AUTH: u16 = 1;
const ALG_CRYPT: u16 = 2;
const ALG_COMP: u16 = 3;
const ENCAP: u16 = 4;
const TMPL: u16 = 5;
const SEC_CTX: u16 = 8;
const POLICY: u16 = 7;
const REPLAY_VAL: u16 = 10;
const COADDR: u16 = 14;
const POLICY_TYPE: u16 = 16;
const ALG_AEAD: u16 = 18;
const ALG_AUTH_TRUNC: u16 = 20;
const MARK: u16 = 21;
const REPLAY_ESN_VAL: u16 = 23;
const SET_MARK: u16 = 29;
const IF_ID: u16 = 31;

/// Lengths of the kernel's structures, in bytes.
const SELECTOR: usize = 56;
const USERSA_INFO: usize = 224;
const USERSA_ID: usize = 24;
const USERPOLICY_INFO: usize = 168;
const USERPOLICY_ID: usize = 64;
const USER_TMPL: usize = 64;
const ALGO_AEAD: usize = 72;

/// `XFRM_STATE_ESN`.
const FLAG_ESN: u8 = 128;

/// `IPPROTO_ESP`.
const ESP: u8 = 50;

/// `UDP_ENCAP_ESPINUDP`.
const ESPINUDP: u16 = 2;

/// `XFRM_USERPOLICY_BLOCK`.
const BLOCK: u8 = 1;

/// Directions of policies, `XFRM_POLICY_*`; further ones are of sockets.
const OUT: u8 = 1;
const FWD: u8 = 2;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(array(bytes, at))
}

fn address(bytes: &[u8], at: usize, family: u16) -> Option<IpAddr> {
    match family {
        2 => Some(IpAddr::from(array::<4>(bytes, at))),
        10 => Some(IpAddr::from(array::<16>(bytes, at))),
        _ => None,
    }
}

/// The attributes behind a message's structure; each with its type.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest.get(..4)?, 0));
        let kind = u16_at(rest, 2) & 0x3fff;
        let content = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

/// An SA that the kernel has, or why it is not used.
struct KnownSa {
    added: (u64, u64),
    sa: Result<Box<NegotiatedSa>, String>,
}

/// A policy that the kernel has.
struct KnownPolicy {
    arrival: u64,
    /// `XFRM_POLICY_TYPE_*`: 0 of the usual ones.
    kind: u8,
    policy: NegotiatedPolicy,
}

/// The databases; see the [module](self).
#[derive(Default)]
pub struct Database {
    sas: HashMap<(IpAddr, u32, u8), KnownSa>,
    policies: HashMap<u32, KnownPolicy>,
    /// Whether packets without a policy are dropped.
    is_blocked: bool,
    arrivals: u64,
    /// Messages of SAs and policies beyond their limits.
    overflow: bool,
}

impl Database {
    /// Takes a message of this type, without its netlink header. Returns whether
    /// it changes something.
    pub fn take(&mut self, kind: u16, message: &[u8]) -> bool {
        let taken = match kind {
            NEWSA | UPDSA => self.new_sa(message),
            DELSA => self.delete_sa(message),
            EXPIRE => self.expire(message),
            FLUSHSA => message.first().map(|protocol| self.flush(*protocol)),
            NEWPOLICY | UPDPOLICY => self.new_policy(message),
            DELPOLICY => self.delete_policy(message),
            POLEXPIRE => {
                let is_hard = message.get(USERPOLICY_INFO).is_some_and(|hard| *hard > 0);
                is_hard.then(|| self.forget_policy(message))
            }
            FLUSHPOLICY => Some(self.flush_policies(policy_type(message))),
            GETDEFAULT => message.first_chunk().map(|defaults: &[u8; 3]| {
                let is_blocked = defaults.contains(&BLOCK);
                std::mem::replace(&mut self.is_blocked, is_blocked) != is_blocked
            }),
            _ => None,
        };
        taken.unwrap_or(false)
    }

    /// The gateway that does what the databases say; `mtu` is the MTU of the paths
    /// to the peers.
    pub fn config(&self, mapper: &mut Mapper, mtu: usize) -> Config {
        let mut sas: Vec<&KnownSa> = self.sas.values().collect();
        sas.sort_unstable_by_key(|known| known.added);
        let mut policies: Vec<&KnownPolicy> = self.policies.values().collect();
        policies.sort_unstable_by_key(|known| (known.policy.priority, known.arrival));
        let mut config = mapper.config(
            policies.into_iter().map(|known| &known.policy),
            sas.iter().filter_map(|known| known.sa.as_deref().ok()),
            !self.is_blocked && !self.overflow,
            mtu,
        );
        let refused: BTreeSet<&String> = sas
            .iter()
            .filter_map(|known| known.sa.as_ref().err())
            .collect();
        config.refused.extend(refused.into_iter().cloned());
        if self.overflow {
            let why = format!("more than {SAS_MAX} SAs or {POLICIES_MAX} policies: start anew");
            config.refused.push(why);
        }
        config
    }

    fn arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    fn new_sa(&mut self, message: &[u8]) -> Option<bool> {
        let (key, added, sa) = usersa(message)?;
        let arrival = self.arrival();
        if self.sas.len() >= SAS_MAX && !self.sas.contains_key(&key) {
            self.overflow = true;
            return Some(true);
        }
        let before = self.sas.get(&key).map(|known| known.added.1);
        let added = (added, before.unwrap_or(arrival));
        self.sas.insert(key, KnownSa { added, sa });
        Some(true)
    }

    fn delete_sa(&mut self, message: &[u8]) -> Option<bool> {
        let id = message.get(..USERSA_ID)?;
        let dst = address(id, 0, u16_at(id, 20))?;
        Some(self.sas.remove(&(dst, read_u32(id, 16), id[22])).is_some())
    }

    fn expire(&mut self, message: &[u8]) -> Option<bool> {
        if *message.get(USERSA_INFO)? == 0 {
            return None;
        }
        Some(self.sas.remove(&sa_key(message)?).is_some())
    }

    /// Removes the SAs of a protocol, or of all (0, and 255 of IPsec's).
    fn flush(&mut self, protocol: u8) -> bool {
        let before = self.sas.len();
        self.sas
            .retain(|key, _| !matches!(protocol, 0 | 255) && key.2 != protocol);
        self.sas.len() < before
    }

    /// Removes the policies of a type.
    fn flush_policies(&mut self, kind: u8) -> bool {
        let before = self.policies.len();
        self.policies.retain(|_, known| known.kind != kind);
        self.policies.len() < before
    }

    fn new_policy(&mut self, message: &[u8]) -> Option<bool> {
        let (index, policy) = userpolicy(message)?;
        let Some(policy) = policy else {
            return Some(self.policies.remove(&index).is_some());
        };
        let arrival = self.arrival();
        if self.policies.len() >= 3 * POLICIES_MAX && !self.policies.contains_key(&index) {
            self.overflow = true;
            return Some(true);
        }
        let known = KnownPolicy {
            arrival,
            kind: policy_type(&message[USERPOLICY_INFO..]),
            policy,
        };
        self.policies.insert(index, known);
        Some(true)
    }

    fn delete_policy(&mut self, message: &[u8]) -> Option<bool> {
        let id = message.get(..USERPOLICY_ID)?;
        let mut rest = attributes(&message[USERPOLICY_ID..]);
        match rest.find(|(kind, _)| *kind == POLICY) {
            Some((_, policy)) => Some(self.forget_policy(policy)),
            None => Some(self.policies.remove(&u32_at(id, SELECTOR)).is_some()),
        }
    }

    /// Removes the policy of an `xfrm_userpolicy_info`.
    fn forget_policy(&mut self, info: &[u8]) -> bool {
        let index = info.get(..USERPOLICY_INFO).map(|info| u32_at(info, 156));
        index.is_some_and(|index| self.policies.remove(&index).is_some())
    }
}

/// The type of policies that these attributes say; 0 without one.
fn policy_type(rest: &[u8]) -> u8 {
    let mut kinds = attributes(rest).filter(|(kind, _)| *kind == POLICY_TYPE);
    let content = kinds.next().and_then(|(_, content)| content.first());
    content.copied().unwrap_or(0)
}

/// Destination, SPI and protocol of an `xfrm_usersa_info`.
fn sa_key(message: &[u8]) -> Option<(IpAddr, u32, u8)> {
    let info = message.get(..USERSA_INFO)?;
    let dst = address(info, SELECTOR, u16_at(info, 212))?;
    Some((dst, read_u32(info, 72), info[76]))
}

type UserSa = ((IpAddr, u32, u8), u64, Result<Box<NegotiatedSa>, String>);

/// Reads an `xfrm_usersa_info` with its attributes: its key, the time when it was
/// added, and the SA. `None` of one that has no algorithm yet: an SPI is reserved.
fn usersa(message: &[u8]) -> Option<UserSa> {
    let key @ (dst, spi, protocol) = sa_key(message)?;
    let (info, rest) = message.split_at(USERSA_INFO);
    let has_algorithm = attributes(rest).any(|(kind, _)| {
        matches!(
            kind,
            ALG_AUTH | ALG_CRYPT | ALG_COMP | ALG_AEAD | ALG_AUTH_TRUNC
        )
    });
    if !has_algorithm {
        return None;
    }
    let sa = understood(info, rest, dst, spi)
        .map(Box::new)
        .map_err(|why| format!("SA {spi:#010x} to {dst} of protocol {protocol}: {why}"));
    Some((key, u64_at(info, 176), sa))
}

/// The SA.
///
/// # Errors
/// What is not understood.
fn understood(info: &[u8], rest: &[u8], dst: IpAddr, spi: u32) -> Result<NegotiatedSa, String> {
    if info[76] != ESP {
        return Err("only ESP is understood".into());
    }
    let mode = mode(info[214]).ok_or_else(|| format!("mode {}", info[214]))?;
    let family = u16_at(info, 212);
    let src = address(info, 80, family).ok_or("an address of no known family")?;
    let selects = |at: usize| info[at] > 0;
    if selects(44) || u16_at(info, 34) > 0 || u16_at(info, 38) > 0 || u32_at(info, 48) > 0 {
        return Err("a selector of protocol, ports or interface".into());
    }
    if mode == Mode::Tunnel && (selects(42) || selects(43)) {
        return Err("a selector of mode tunnel".into());
    }
    let mut aead = None;
    let mut udp = None;
    let (mut window, mut last, mut highest) = (u32::from(info[215]), 0, 0);
    for (kind, content) in attributes(rest) {
        match kind {
            ALG_AEAD => aead = Some(algorithm(content)?),
            ALG_AUTH | ALG_CRYPT | ALG_COMP | ALG_AUTH_TRUNC => {
                let name = name(content);
                return Err(format!(
                    "algorithm {name}: only rfc4106(gcm(aes)) and rfc7539esp(chacha20,poly1305)"
                ));
            }
            ENCAP => udp = Some(encapsulation(content)?),
            REPLAY_VAL if content.len() >= 12 && highest == 0 && last == 0 => {
                (last, highest) = (u32_at(content, 0).into(), u32_at(content, 4).into());
            }
            REPLAY_ESN_VAL if content.len() >= 24 => {
                let whole = |high, low| {
                    u64::from(u32_at(content, high)) << 32 | u64::from(u32_at(content, low))
                };
                (last, highest) = (whole(12, 4), whole(16, 8));
                window = u32_at(content, 20);
            }
            MARK if content.iter().any(|byte| *byte > 0) => return Err("a mark".into()),
            IF_ID if content.iter().any(|byte| *byte > 0) => return Err("an if_id".into()),
            SET_MARK if content.iter().any(|byte| *byte > 0) => return Err("an output mark".into()),
            SEC_CTX | COADDR => return Err(format!("attribute {kind}")),
            _ => {}
        }
    }
    let (algorithm, keymat) = aead.ok_or("no AEAD algorithm")?;
    // The direction is not known here: a new SA has 0 of both.
    let is_extended = info[216] & FLAG_ESN > 0;
    let limit = |at: usize| u64_at(info, at);
    Ok(NegotiatedSa {
        src,
        dst,
        mode,
        reqid: u32_at(info, 208),
        udp,
        sa: SaConfig {
            spi,
            algorithm,
            keymat,
            is_extended,
            window: match window {
                0 => WINDOW_DEFAULT,
                window => window.min(WINDOW_MAX),
            },
            lifetime: Lifetime {
                bytes_max: limit(104),
                packets_max: limit(120),
                // The kernel says when its time is over.
                age_max: u64::MAX,
            },
            sequence: last.max(highest),
        },
    })
}

fn mode(mode: u8) -> Option<Mode> {
    match mode {
        0 => Some(Mode::Transport),
        1 => Some(Mode::Tunnel),
        _ => None,
    }
}

/// The name in front of an algorithm's attribute.
fn name(content: &[u8]) -> String {
    let name = &content[..content.len().min(64)];
    let end = name.iter().position(|byte| *byte == 0);
    let name = &name[..end.unwrap_or(name.len())];
    name.escape_ascii().to_string()
}

/// Algorithm and key of an `xfrm_algo_aead`.
fn algorithm(content: &[u8]) -> Result<(Algorithm, Keymat), String> {
    let name = name(content);
    let header = content.get(..ALGO_AEAD).ok_or("an algorithm cut short")?;
    let (key_bits, icv_bits) = (u32_at(header, 64), u32_at(header, 68));
    let algorithm = match (&*name, key_bits) {
        ("rfc4106(gcm(aes))", 160) => Algorithm::Aes128Gcm,
        ("rfc4106(gcm(aes))", 288) => Algorithm::Aes256Gcm,
        ("rfc7539esp(chacha20,poly1305)", 288) => Algorithm::ChaCha20Poly1305,
        _ => return Err(format!("algorithm {name} with a key of {key_bits} bits")),
    };
    if icv_bits != 128 {
        return Err(format!("algorithm {name} with an ICV of {icv_bits} bits"));
    }
    let key = content.get(ALGO_AEAD..ALGO_AEAD + key_bits as usize / 8);
    let key = key.ok_or("a key cut short")?;
    if key.iter().all(|byte| *byte == 0) {
        return Err("the kernel hides its key (lockdown)".into());
    }
    Ok((algorithm, Keymat::new(Zeroizing::new(key.to_vec()))))
}

/// The ports of an `xfrm_encap_tmpl`.
fn encapsulation(content: &[u8]) -> Result<(u16, u16), String> {
    let content = content.get(..8).ok_or("an encapsulation cut short")?;
    match u16_at(content, 0) {
        ESPINUDP => Ok((read_u16(content, 2), read_u16(content, 4))),
        other => Err(format!("encapsulation {other}")),
    }
}

/// Reads an `xfrm_userpolicy_info` with its attributes: index and policy, as of
/// packets that leave. `None` of a socket's policy. A policy of what enters has no
/// part in what passes as it is: the policy `out` says that.
fn userpolicy(message: &[u8]) -> Option<(u32, Option<NegotiatedPolicy>)> {
    let info = message.get(..USERPOLICY_INFO)?;
    let direction = info[160];
    if direction > FWD {
        return None;
    }
    let (selector, is_exact) = selector(info)?;
    let mut spi = None;
    let treatment = treatment(info, &message[USERPOLICY_INFO..], &selector, &mut spi);
    let treatment = match treatment {
        Ok(Treatment::Bypass) if direction != OUT => return Some((u32_at(info, 156), None)),
        Ok(_) if !is_exact => Treatment::Refuse("its ports or interface".into()),
        Ok(Treatment::Protect(ends)) if direction != OUT => Treatment::Protect(Ends {
            local: ends.remote,
            remote: ends.local,
            ..ends
        }),
        Ok(treatment) => treatment,
        Err(why) => Treatment::Refuse(why),
    };
    let policy = NegotiatedPolicy {
        selector: match direction {
            OUT => selector,
            _ => selector.exchanged(),
        },
        priority: u32_at(info, 152),
        treatment,
        spi: spi.filter(|_| direction == OUT),
    };
    Some((u32_at(info, 156), Some(policy)))
}

/// The selector of an `xfrm_userpolicy_info`, and whether it selects no more than
/// the kernel's.
fn selector(info: &[u8]) -> Option<(Selector, bool)> {
    let family = match u16_at(info, 40) {
        0 => 2,
        family => family,
    };
    let protocol = Some(info[44]).filter(|protocol| *protocol > 0);
    // Masks of single bits: the low ones that are 0 make a range.
    let ports = |at: usize| {
        let (port, mask) = (read_u16(info, at), read_u16(info, at + 2));
        let is_range = mask.leading_ones() + mask.trailing_zeros() == 16;
        is_range.then_some((port & mask, port & mask | !mask))
    };
    let (dst_ports, src_ports) = (ports(32), ports(36));
    let is_exact = dst_ports.is_some() && src_ports.is_some() && u32_at(info, 48) == 0;
    let selector = Selector {
        src: (address(info, 16, family)?, info[43]),
        dst: (address(info, 0, family)?, info[42]),
        protocol,
        src_ports: src_ports.unwrap_or(ALL_PORTS),
        dst_ports: dst_ports.unwrap_or(ALL_PORTS),
    };
    Some((selector, is_exact))
}

/// What a policy does.
///
/// # Errors
/// What is not understood.
fn treatment(
    info: &[u8],
    rest: &[u8],
    selector: &Selector,
    spi: &mut Option<u32>,
) -> Result<Treatment, String> {
    let mut templates: &[u8] = &[];
    for (kind, content) in attributes(rest) {
        match kind {
            TMPL => templates = content,
            MARK if content.iter().any(|byte| *byte > 0) => return Err("a mark".into()),
            IF_ID if content.iter().any(|byte| *byte > 0) => return Err("an if_id".into()),
            SEC_CTX => return Err("a security context".into()),
            _ => {}
        }
    }
    if policy_type(rest) > 0 {
        return Err("a policy of type sub".into());
    }
    if info[161] > 0 {
        return Ok(Treatment::Discard);
    }
    if templates.is_empty() {
        return Ok(Treatment::Bypass);
    }
    if templates.len() != USER_TMPL {
        return Err("other than one template".into());
    }
    if templates[20] != ESP {
        return Err(format!(
            "protocol {}: only ESP is understood",
            templates[20]
        ));
    }
    let mode = mode(templates[48]).ok_or_else(|| format!("mode {}", templates[48]))?;
    *spi = Some(read_u32(templates, 16)).filter(|spi| *spi > 0);
    let family = u16_at(templates, 24);
    let end = |at: usize, selected: (IpAddr, u8)| match address(templates, at, family) {
        Some(end) if !end.is_unspecified() => Ok(end),
        // Of mode transport the packet's own, if there is one.
        _ if mode == Mode::Transport && selected.1 == host_len(selected.0) => Ok(selected.0),
        _ => Err("a template without addresses".to_owned()),
    };
    Ok(Treatment::Protect(Ends {
        mode,
        local: end(28, selector.src)?,
        remote: end(0, selector.dst)?,
        reqid: u32_at(templates, 44),
    }))
}

/// The length of the prefix of one address.
fn host_len(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}
