//! Egress rules: the frames that an unprivileged user may send, as a filter.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_filter::ir::Program;
use weir_filter::lang::expr::{self, Context};
use weir_filter::opt::optimise;
use weir_wire::{EtherType, LinkType};

/// The rules of one sender: a frame is sent if its Ethernet source is `source`,
/// `predicate` accepts it, and it is one of these:
///
/// - ARP: the sender addresses are `source` and one of `addresses`, or 0.0.0.0
///   in a probe for one of `addresses` (RFC 5227);
/// - IPv4: the source is one of `addresses` and there are no options. The
///   protocol is harmless (see below), ICMP of a harmless type, or an IGMP
///   report, which may have the router alert option;
/// - IPv6: the source is one of `addresses`. The next header is harmless, ICMPv6
///   of a harmless type, or a Fragment or Authentication header with a harmless
///   next header. A neighbour discovery message (RFC 4861) is not fragmented
///   (RFC 6980) and has at most one option, the link-layer address `source`, so
///   that it redirects no traffic of these addresses. A neighbour advertisement
///   is for one of `addresses`, and without the Router flag. An MLD report
///   follows its router alert. The source may be `::` for MLD reports and for
///   probes for one of `addresses` (RFC 4862);
/// - a frame with one of `ethertypes`.
///
/// The harmless protocols are TCP, UDP, UDP-Lite, SCTP, DCCP and ESP; for IPv6
/// also No Next Header (RFC 8200 section 4.7). Everything else is refused, so
/// that an unknown extension header cannot hide a router advertisement (RFC
/// 7113).
///
/// Frames with a VLAN tag and 802.3 frames (with a length in place of the type)
/// are always refused: the rules cannot see what they carry.
///
/// With `any_source`, `predicate` is the only condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EgressRules {
    /// The Ethernet address.
    pub source: [u8; 6],
    /// The network addresses.
    pub addresses: Vec<IpAddr>,
    /// Further Ethernet types, at least 0x600, or Pup's 0x200. A type that
    /// encapsulates others (VLAN, MPLS, PPPoE) allows any inner source address.
    pub ethertypes: Vec<u16>,
    /// A further filter in pcap-filter(7)'s language; empty for none.
    pub predicate: String,
    /// Whether frames may have any source and any type; then the predicate
    /// alone decides.
    pub any_source: bool,
}

/// IP protocols that affect only the receiver's own sockets: TCP, UDP, DCCP,
/// ESP, SCTP, UDP-Lite.
const HARMLESS: [u8; 6] = [6, 17, 33, 50, 132, 136];

/// IPv6 next headers that affect only the receiver's own sockets: the protocols
/// of [`HARMLESS`] and No Next Header.
const HARMLESS_NEXT: [u8; 7] = [6, 17, 33, 50, 59, 132, 136];

/// ICMP types: echo, destination unreachable, time exceeded, parameter problem
/// and timestamp. Redirects and router advertisements are refused.
const ICMP_TYPES: [u8; 7] = [0, 3, 8, 11, 12, 13, 14];

/// ICMPv6 types that are allowed with any content: errors and echo.
const ICMP6_TYPES: [u8; 6] = [1, 2, 3, 4, 128, 129];

/// ICMPv6 types that may be fragmented: echo.
const ICMP6_FRAGMENT_TYPES: [u8; 2] = [128, 129];

/// IGMP types: reports of versions 1 to 3, and leave.
const IGMP_TYPES: [u8; 4] = [0x12, 0x16, 0x17, 0x22];

/// MLD types: reports of both versions, and done.
const MLD_TYPES: [u8; 3] = [131, 132, 143];

/// Largest number of addresses of one sender.
const ADDRESSES_MAX: usize = 64;

/// Largest number of further Ethernet types.
const ETHERTYPES_MAX: usize = 64;

/// Ethernet types that have rules of their own.
const FIXED: [u16; 3] = [0x0800, 0x0806, 0x86dd];

/// Why rules are not valid.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// A list is too long.
    #[error("{found} {what} for one sender, at most {max}")]
    TooMany {
        /// The list.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The largest length.
        max: usize,
    },
    /// The Ethernet type cannot be listed.
    #[error(
        "Ethernet type {ethertype:#06x} cannot be allowed by number: IPv4, ARP and IPv6 have their own rules, and below 0x600 it is a length, but for Pup's 0x200"
    )]
    EtherType {
        /// The Ethernet type.
        ethertype: u16,
    },
    /// The predicate is not a valid filter.
    #[error("the sender's predicate is not a filter: {0}")]
    Predicate(expr::Error),
    /// No frame satisfies both the rules and the predicate.
    #[error(
        "nothing could be sent: with {addresses} network addresses the sender's predicate accepts no frame ({reason})"
    )]
    Nothing {
        /// Number of addresses.
        addresses: usize,
        /// The filter compiler's error.
        reason: expr::Error,
    },
}

impl EgressRules {
    /// The rules as the text of one filter.
    ///
    /// # Errors
    /// See [`RulesError`].
    pub fn text(&self) -> Result<String, RulesError> {
        self.check()?;
        if self.any_source {
            self.compile_predicate()?;
            return Ok(self.predicate.clone());
        }
        let [a, b, c, d, e, f] = self.source;
        let mut kinds = Vec::new();
        let (high, low) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, f]));
        let v4 = self.addresses.iter().filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        let v4: Vec<Ipv4Addr> = v4.collect();
        let v6 = self.addresses.iter().filter_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        });
        let v6: Vec<Ipv6Addr> = v6.collect();
        if !v4.is_empty() {
            let sources = any(v4.iter().map(|address| format!("src host {address}")));
            kinds.push(format!("(ip and ({sources}) and ({}))", harmless_ip()));
        }
        let probed = v4.iter().map(|address| address.to_bits());
        // Without addresses there is no address to probe, so 0.0.0.0 is not a
        // valid sender.
        let probed = any(probed
            .chain([0])
            .map(|word| format!("arp[24:4] = {word:#x}")));
        let senders = v4.iter().map(|address| format!("arp src host {address}"));
        let senders = any(senders.chain([format!("(arp[14:4] = 0 and ({probed}))")]));
        kinds.push(format!(
            "(arp and arp[8:4] = {high:#x} and arp[12:2] = {low:#x} and ({senders}))"
        ));
        if !v6.is_empty() {
            let sources = any(v6.iter().map(|address| format!("src host {address}")));
            let targets = any(v6.iter().map(|address| words(address, 48)));
            let harmless = harmless_ip6(&targets, self.source);
            kinds.push(format!("(ip6 and ({sources}) and ({harmless}))"));
            let unspecified = harmless_unspecified(&targets);
            kinds.push(format!("(ip6 and src host :: and ({unspecified}))"));
            let report = mld_report();
            kinds.push(format!("(ip6 and ({sources} or src host ::) and {report})"));
        }
        kinds.extend(
            self.ethertypes
                .iter()
                .map(|number| match EtherType(*number) {
                    // `ether proto` takes it for a length.
                    EtherType::PUP => format!("ether[12:2] = {number:#x}"),
                    _ => format!("ether proto {number:#x}"),
                }),
        );
        let mut text = format!(
            "ether src {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} and ({})",
            any(kinds)
        );
        if !self.predicate.trim().is_empty() {
            // The predicate is compiled separately first: text such as `a) or
            // (b` would otherwise escape its parentheses.
            self.compile_predicate()?;
            let _ = write!(text, " and ({})", self.predicate);
        }
        Ok(text)
    }

    /// The rules as a compiled program.
    ///
    /// # Errors
    /// See [`RulesError`].
    pub fn program(&self) -> Result<Program, RulesError> {
        let context = Context::new(LinkType::EN10MB);
        let program = expr::compile(&self.text()?, &context);
        // The predicate alone is the filter.
        let mut program = program.map_err(|reason| RulesError::Nothing {
            addresses: self.addresses.len(),
            reason,
        })?;
        optimise(&mut program);
        Ok(program)
    }

    fn compile_predicate(&self) -> Result<(), RulesError> {
        let compiled = expr::compile(&self.predicate, &Context::new(LinkType::EN10MB));
        compiled.map(drop).map_err(RulesError::Predicate)
    }

    fn check(&self) -> Result<(), RulesError> {
        let limits = [
            ("addresses", self.addresses.len(), ADDRESSES_MAX),
            ("Ethernet types", self.ethertypes.len(), ETHERTYPES_MAX),
        ];
        for (what, found, max) in limits {
            if found > max {
                return Err(RulesError::TooMany { what, found, max });
            }
        }
        let is_length = |number: u16| number < 0x600 && number != EtherType::PUP.0;
        let odd = |number: &&u16| is_length(**number) || FIXED.contains(number);
        match self.ethertypes.iter().find(odd) {
            Some(&ethertype) => Err(RulesError::EtherType { ethertype }),
            None => Ok(()),
        }
    }
}

fn any(tests: impl IntoIterator<Item = String>) -> String {
    tests.into_iter().collect::<Vec<String>>().join(" or ")
}

/// Text that tests whether `field` equals one of the values.
fn among(field: &str, values: &[u8]) -> String {
    any(values.iter().map(|value| format!("{field} = {value}")))
}

/// Text that accepts harmless IPv4 packets. A later fragment does not contain
/// the transport header, where the types are.
fn harmless_ip() -> String {
    let protocols = among("ip[9]", &HARMLESS);
    let behind = among("ip[20]", &HARMLESS);
    let icmp = among("ip[20]", &ICMP_TYPES);
    let (igmp, alerted) = (among("ip[20]", &IGMP_TYPES), among("ip[24]", &IGMP_TYPES));
    format!(
        "(ip[0] = 0x45 and ({protocols} \
         or (ip[9] = 51 and ip[6:2] & 0x1fff = 0 and ({behind})) \
         or (ip[9] = 1 and (ip[6:2] & 0x1fff != 0 or {icmp})) \
         or (ip[9] = 2 and ip[6:2] & 0x3fff = 0 and ({igmp})))) \
         or (ip[0] = 0x46 and ip[20:4] = 0x94040000 \
         and ip[9] = 2 and ip[6:2] & 0x3fff = 0 and ({alerted}))"
    )
}

/// Text that accepts harmless IPv6 packets; `targets` tests that a neighbour
/// advertisement's target is one of the sender's addresses, and `source` is the
/// sender's link-layer address.
///
/// Receivers use the next header of the first fragment only (RFC 8200 section
/// 4.5), and the rules check every first fragment.
fn harmless_ip6(targets: &str, source: [u8; 6]) -> String {
    let (next, behind) = (
        among("ip6[6]", &HARMLESS_NEXT),
        among("ip6[40]", &HARMLESS_NEXT),
    );
    let (types, in_fragment) = (
        among("ip6[40]", &ICMP6_TYPES),
        among("ip6[48]", &ICMP6_FRAGMENT_TYPES),
    );
    let discovery = discovery(targets, source);
    format!(
        "{next} \
         or (ip6[6] = 58 and ({types} or {discovery})) \
         or ((ip6[6] = 44 or ip6[6] = 51) and ({behind})) \
         or (ip6[6] = 44 and ip6[40] = 58 and (ip6[42:2] & 0xfff8 != 0 or {in_fragment}))"
    )
}

/// Text that accepts router solicitations, neighbour solicitations and
/// neighbour advertisements (RFC 4861 sections 4.1, 4.3, 4.4) that advertise
/// only the sender's link-layer address: the payload length allows at most one
/// option. An advertisement must not have the Router flag, which would make
/// receivers keep a route.
fn discovery(targets: &str, source: [u8; 6]) -> String {
    const SOURCE_OPTION: u8 = 1;
    const TARGET_OPTION: u8 = 2;
    let router = ends_or_has(8, &link_layer_option(48, SOURCE_OPTION, source));
    let solicits = ends_or_has(24, &link_layer_option(64, SOURCE_OPTION, source));
    let advertises = ends_or_has(24, &link_layer_option(64, TARGET_OPTION, source));
    format!(
        "(ip6[40] = 133 and {router}) \
         or (ip6[40] = 135 and {solicits}) \
         or (ip6[40] = 136 and ip6[44] & 0x80 = 0 and ({targets}) and {advertises})"
    )
}

/// A payload of `len` bytes, or of 8 more bytes that match `option`.
fn ends_or_has(len: usize, option: &str) -> String {
    let longer = len + 8;
    format!("(ip6[4:2] = {len} or (ip6[4:2] = {longer} and {option}))")
}

/// The option at `offset` of an IPv6 packet is a link-layer address option of 6
/// address bytes (RFC 4861 section 4.6.1) with the address `source`.
fn link_layer_option(offset: usize, kind: u8, source: [u8; 6]) -> String {
    let [a, b, c, d, e, f] = source;
    let high = u32::from_be_bytes([kind, 1, a, b]);
    let low = u32::from_be_bytes([c, d, e, f]);
    let next = offset + 4;
    format!("ip6[{offset}:4] = {high:#x} and ip6[{next}:4] = {low:#x}")
}

/// Text that accepts harmless packets from `::`: probes for one of the sender's
/// addresses, without options or with a nonce (RFC 7527), which Linux sends.
fn harmless_unspecified(targets: &str) -> String {
    let end = ends_or_has(24, "ip6[64:2] = 0x0e01");
    format!("ip6[6] = 58 and ip6[40] = 135 and ({targets}) and {end}")
}

/// Text that accepts an MLD report behind hop-by-hop options that are exactly
/// the router alert and padding, in either order (RFC 2711, RFC 3810 section
/// 5).
fn mld_report() -> String {
    let types = among("ip6[48]", &MLD_TYPES);
    format!(
        "(ip6[6] = 0 and ip6[40:2] = 0x3a00 and ((ip6[42:4] = 0x05020000 and ip6[46:2] = 0x0100) \
         or (ip6[42:2] = 0x0100 and ip6[44:4] = 0x05020000)) and ({types}))"
    )
}

/// Text that compares the 16 bytes at `offset` of an IPv6 packet with an
/// address.
fn words(address: &Ipv6Addr, offset: usize) -> String {
    let tests = address
        .octets()
        .chunks(4)
        .enumerate()
        .map(|(index, word)| {
            let word = word
                .iter()
                .fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
            format!("ip6[{}:4] = {word:#x}", offset + 4 * index)
        })
        .collect::<Vec<String>>();
    format!("({})", tests.join(" and "))
}
