//! Protocols between neighbours on a link: IEEE 802.1D and 802.1Q spanning trees, LLDP (802.1AB),
//! LACP and OAM (802.3), EAPOL (802.1X) with EAP (RFC 3748), CDP, IS-IS, and others by their names.

use super::{byte, carried, chunk, half, harmless, hex, ppp, word};
use std::net::Ipv4Addr;
use weir_wire::EtherType;
use weir_wire::ethernet::Address;

/// Largest number of TLVs that are looked at.
const TLVS_MAX: usize = 64;

/// The content behind an EtherType of a protocol between neighbours.
pub(super) fn control(ether_type: EtherType, payload: &[u8]) -> Option<String> {
    let len = payload.len();
    match ether_type.0 {
        0x8863 => ppp::discovery(payload),
        0x888e => eapol(payload),
        0x88cc => lldp(payload),
        0x8809 => slow(payload),
        0x8808 => Some(
            match half(payload, 0)? {
                1 => format!("MAC control, Pause {}", half(payload, 2)?),
                0x0101 => "MAC control, priority flow control".to_owned(),
                code => format!("MAC control, Opcode {code:#06x}"),
            } + &format!(", length {len}"),
        ),
        0x88e5 => {
            const FLAGS: [(u8, &str); 5] = [
                (0x08, "E"),
                (0x04, "C"),
                (0x40, "S"),
                (0x10, "B"),
                (0x20, "I"),
            ];
            let (tci, packet) = (byte(payload, 0)?, word(payload, 2)?);
            let channel = match tci & 0x20 {
                0 => String::new(),
                _ => format!(", sci {}", hex(&chunk::<8>(payload, 6)?)),
            };
            let (number, flags) = (tci & 3, super::flag_letters(tci, &FLAGS));
            Some(format!(
                "802.1AE MACsec, an {number}, pn {packet}, flags {flags}{channel}, length {len}"
            ))
        }
        0x88f7 => super::services::ptp(payload),
        0x8902 => {
            let (level, code) = (byte(payload, 0)?, byte(payload, 1)?);
            let name = match code {
                1 => "Continuity Check Message".to_owned(),
                2 => "Loopback Reply".to_owned(),
                3 => "Loopback Message".to_owned(),
                4 => "Linktrace Reply".to_owned(),
                5 => "Linktrace Message".to_owned(),
                code => format!("opcode {code}"),
            };
            let (level, version) = (level >> 5, level & 0x1f);
            Some(format!(
                "CFMv{version} {name}, MD Level {level}, length {len}"
            ))
        }
        0x9000 => {
            // Numbers of this protocol are little-endian.
            let number = |at| half(payload, at).map(u16::swap_bytes);
            let (skip, function) = (number(0)?, number(2)?);
            Some(match function {
                1 => format!(
                    "Loopback, skipCount {skip}, Reply, receipt number {}, data ({} octets)",
                    number(4)?,
                    len.saturating_sub(6)
                ),
                2 => format!(
                    "Loopback, skipCount {skip}, Forward data, forwarding address {}",
                    Address(chunk(payload, 4)?)
                ),
                function => format!("Loopback, skipCount {skip}, function {function:#x}"),
            })
        }
        _ => None,
    }
}

/// EAPOL (IEEE 802.1X).
fn eapol(payload: &[u8]) -> Option<String> {
    let (version, kind, len) = (byte(payload, 0)?, byte(payload, 1)?, half(payload, 2)?);
    let name = match kind {
        0 => "packet",
        1 => "start",
        2 => "logoff",
        3 => "key",
        4 => "encapsulated asf alert",
        5 => "mka",
        _ => "type",
    };
    let text = format!("EAPOL {name} ({kind}) v{version}, len {len}");
    let body = payload.get(4..payload.len().min(4 + usize::from(len)));
    Some(match (kind, body.and_then(eap)) {
        (0, Some(inner)) => format!("{text}, {inner}"),
        _ => text,
    })
}

/// An EAP packet, with an identity in clear text.
pub(super) fn eap(bytes: &[u8]) -> Option<String> {
    const IDENTITY: u8 = 1;
    let (code, id, len) = (byte(bytes, 0)?, byte(bytes, 1)?, half(bytes, 2)?);
    let name = match code {
        1 => "Request",
        2 => "Response",
        3 => "Success",
        4 => "Failure",
        _ => "code",
    };
    let mut text = format!("EAP {name} ({code}), id {id}, length {len}");
    let body = bytes.get(4..bytes.len().min(usize::from(len)));
    if let Some([kind, data @ ..]) = body {
        let name = match kind {
            1 => "Identity",
            2 => "Notification",
            3 => "Nak",
            4 => "MD5-challenge",
            5 => "OTP",
            6 => "GTC",
            13 => "TLS",
            17 => "LEAP",
            18 => "SIM",
            21 => "TTLS",
            23 => "AKA",
            25 => "PEAP",
            26 => "MS-CHAPv2",
            43 => "FAST",
            52 => "PWD",
            55 => "TEAP",
            _ => "Type",
        };
        text += &format!(", {name} ({kind})");
        if *kind == IDENTITY && !data.is_empty() {
            text += &format!(", identity {}", harmless(data));
        }
    }
    Some(text)
}

/// LLDP's mandatory TLVs, and the system's name.
fn lldp(payload: &[u8]) -> Option<String> {
    let mut text = format!("LLDP, length {}", payload.len());
    let mut rest = payload;
    for _ in 0..TLVS_MAX {
        let Some(head) = half(rest, 0) else {
            break;
        };
        let (kind, len) = (head >> 9, usize::from(head & 0x1ff));
        let Some(value) = rest.get(2..2 + len).filter(|_| kind != 0) else {
            break;
        };
        match kind {
            1 => text += &format!(", chassis {}", lldp_id(value, 4, 5)),
            2 => text += &format!(", port {}", lldp_id(value, 3, 4)),
            3 => text += &format!(", ttl {}", half(value, 0)?),
            5 => text += &format!(", system {}", harmless(value)),
            _ => {}
        }
        rest = &rest[2 + len..];
    }
    Some(text)
}

/// An identifier whose first byte says whether it is a MAC address, a network address, or text.
fn lldp_id(value: &[u8], mac: u8, network: u8) -> String {
    match value {
        [kind, a, b, c, d, e, f] if *kind == mac => Address([*a, *b, *c, *d, *e, *f]).to_string(),
        [kind, 1, a, b, c, d] if *kind == network => Ipv4Addr::new(*a, *b, *c, *d).to_string(),
        [_, text @ ..] => harmless(text).into_owned(),
        [] => String::new(),
    }
}

/// Slow protocols (IEEE 802.3 annex 57A).
fn slow(payload: &[u8]) -> Option<String> {
    let len = payload.len();
    let version = byte(payload, 1)?;
    Some(match byte(payload, 0)? {
        1 => {
            let mut text = format!("LACPv{version}, length {len}");
            for (at, name) in [(2, "actor"), (22, "partner")] {
                let Some(state) = byte(payload, at + 16) else {
                    break;
                };
                let system = Address(chunk(payload, at + 4)?);
                let (key, port) = (half(payload, at + 10)?, half(payload, at + 14)?);
                text += &format!(", {name} {system} key {key} port {port} state {state:#04x}");
            }
            text
        }
        2 => format!("MARKERv{version}, length {len}"),
        3 => {
            let name = match byte(payload, 3) {
                Some(0) => " information",
                Some(1) => " event notification",
                Some(4) => " loopback control",
                _ => "",
            };
            format!("OAM{name}, length {len}")
        }
        subtype => format!("slow protocol {subtype}, length {len}"),
    })
}

/// A frame with a length in place of its type (IEEE 802.2).
pub(super) fn llc(payload: &[u8], length: u16, depth: usize) -> Option<String> {
    let payload = &payload[..payload.len().min(length.into())];
    match payload {
        [0x42, 0x42, 3, bpdu @ ..] => spanning_tree(bpdu, length.saturating_sub(3)),
        [0xfe, 0xfe, 3, rest @ ..] => isis(rest, length.saturating_sub(3)),
        [0xaa, 0xaa, 3, snap @ ..] => self::snap(snap, length, depth),
        [0xff, 0xff, ..] => Some(format!("IPX, length {length}")),
        [dsap, ssap, control, ..] => Some(unnamed_llc(*dsap, *ssap, *control, payload, length)),
        _ => None,
    }
}

/// An LLC header of a protocol that is not shown itself: access points, and the kind of PDU.
fn unnamed_llc(dsap: u8, ssap: u8, control: u8, payload: &[u8], length: u16) -> String {
    const RESPONSE: u8 = 1;
    let name = match dsap & !1 {
        0x04 => "SNA",
        0x06 => "IP",
        0x7e => "X.25",
        0x80 => "3Com",
        0xe0 => "IPX",
        0xf0 => "NetBeui",
        0xf4 => "IBM management",
        0xfe => "OSI",
        _ => "802.2",
    };
    let (kind, polls) = match control & 3 {
        3 => {
            let name = match control & 0xef {
                0x03 => "ui",
                0x0f => "dm",
                0x43 => "disc",
                0x63 => "ua",
                0x6f => "sabme",
                0x87 => "frmr",
                0xaf => "xid",
                0xe3 => "test",
                _ => "unknown",
            };
            (format!("Unnumbered, {name}"), control & 0x10 != 0)
        }
        low => {
            let next = payload.get(3).copied().unwrap_or_default();
            let received = next >> 1;
            let kind = match (low, control >> 2 & 3) {
                (1, 0) => format!("Supervisory, Receiver Ready, rcv seq {received}"),
                (1, 1) => format!("Supervisory, Receiver not Ready, rcv seq {received}"),
                (1, _) => format!("Supervisory, Reject, rcv seq {received}"),
                _ => format!("Information, send seq {}, rcv seq {received}", control >> 1),
            };
            (kind, next & 1 != 0)
        }
    };
    let flags = match (ssap & RESPONSE != 0, polls) {
        (false, false) => "Command",
        (false, true) => "Poll",
        (true, false) => "Response",
        (true, true) => "Final",
    };
    format!("{name} (dsap {dsap:#04x}, ssap {ssap:#04x}) {kind}, Flags [{flags}], length {length}")
}

/// SNAP: an organisation, and its type.
fn snap(snap: &[u8], length: u16, depth: usize) -> Option<String> {
    const ETHERNET: [u8; 3] = [0, 0, 0];
    const CISCO: [u8; 3] = [0, 0, 0xc];
    let (organisation, kind) = (chunk::<3>(snap, 0)?, half(snap, 3)?);
    let payload = snap.get(5..)?;
    let len = length.saturating_sub(8);
    match (organisation, kind) {
        (ETHERNET, kind) => carried(EtherType(kind), payload, depth)
            .or_else(|| control(EtherType(kind), payload))
            .or_else(|| Some(format!("SNAP type {kind:#06x}, length {len}"))),
        (CISCO, 0x2000) => cdp(payload, len),
        (CISCO, 0x2003) => vtp(payload, len),
        (CISCO, 0x2004) => Some(format!("DTPv{}, length {len}", byte(payload, 0)?)),
        (CISCO, 0x0111) => {
            const FLAGS: [(u8, &str); 2] = [(1, "RT"), (2, "RSY")];
            let (code, flags) = (byte(payload, 0)?, byte(payload, 1)?);
            let (version, code) = (code >> 5, code & 0x1f);
            let name = match code {
                1 => "Probe message",
                2 => "Echo message",
                3 => "Flush message",
                _ => "Reserved",
            };
            let names = super::flag_names(flags, &FLAGS);
            Some(format!(
                "UDLDv{version}, Code {name} ({code}), Flags [{names}] ({flags:#04x}), length {len}"
            ))
        }
        // A spanning tree of each VLAN.
        (CISCO, 0x010b) => {
            let tree = spanning_tree(payload, len)?;
            // Behind the BPDU: type 0, length 2, VLAN.
            let is_vlan = |at: &usize| word(payload, *at) == Some(0x0000_0002);
            let vlan = [35, 36].into_iter().find(is_vlan);
            let vlan = vlan.and_then(|at| half(payload, at + 4));
            Some(vlan.map_or(tree.clone(), |vlan| format!("{tree}, vlan {vlan}")))
        }
        (organisation, kind) => Some(format!(
            "SNAP oui {}, type {kind:#06x}, length {len}",
            hex(&organisation)
        )),
    }
}

/// CDP's names of device, port and platform.
fn cdp(payload: &[u8], len: u16) -> Option<String> {
    let (version, ttl) = (byte(payload, 0)?, byte(payload, 1)?);
    let mut text = format!("CDPv{version}, ttl {ttl}s");
    let mut rest = payload.get(4..)?;
    for _ in 0..TLVS_MAX {
        let (Some(kind), Some(len)) = (half(rest, 0), half(rest, 2)) else {
            break;
        };
        let Some(value) = rest.get(4..usize::from(len)) else {
            break;
        };
        match kind {
            1 => text += &format!(", Device-ID '{}'", harmless(value)),
            3 => text += &format!(", Port-ID '{}'", harmless(value)),
            6 => text += &format!(", Platform '{}'", harmless(value)),
            _ => {}
        }
        rest = &rest[usize::from(len)..];
    }
    Some(format!("{text}, length {len}"))
}

fn vtp(payload: &[u8], len: u16) -> Option<String> {
    let (version, code) = (byte(payload, 0)?, byte(payload, 1)?);
    let name = match code {
        1 => "Summary advertisement",
        2 => "Subset advertisement",
        3 => "Advertisement request",
        4 => "Join message",
        _ => "code",
    };
    let domain = usize::from(byte(payload, 3)?).min(32);
    let domain = harmless(payload.get(4..4 + domain)?);
    Some(format!(
        "VTPv{version}, Message {name} ({code:#04x}), domain {domain}, length {len}"
    ))
}

/// `priority.address`, as tcpdump writes a bridge's identifier.
fn bridge(bytes: &[u8], at: usize) -> Option<String> {
    let (priority, address) = (half(bytes, at)?, Address(chunk(bytes, at + 2)?));
    Some(format!("{priority:04x}.{address}"))
}

/// A BPDU (IEEE 802.1D section 9.3, 802.1Q section 14).
fn spanning_tree(bpdu: &[u8], len: u16) -> Option<String> {
    const CONFIG: [(u8, &str); 2] = [(0x01, "Topology change"), (0x80, "Topology change ACK")];
    const RAPID: [(u8, &str); 6] = [
        (0x01, "Topology change"),
        (0x02, "Proposal"),
        (0x10, "Learn"),
        (0x20, "Forward"),
        (0x40, "Agreement"),
        (0x80, "Topology change ACK"),
    ];
    let (version, kind) = (byte(bpdu, 2)?, byte(bpdu, 3)?);
    let standard = match version {
        0 => "802.1d",
        2 => "802.1w",
        3 => "802.1s",
        4 => "802.1aq",
        _ => "802.1",
    };
    let (kind, names) = match kind {
        0x80 => return Some(format!("STP {standard}, Topology Change")),
        0 => ("Config", &CONFIG[..]),
        2 => ("Rapid STP", &RAPID[..]),
        kind => return Some(format!("STP {standard}, type {kind:#04x}, length {len}")),
    };
    let flags = super::flag_names(byte(bpdu, 4)?, names);
    let (root, cost) = (bridge(bpdu, 5)?, word(bpdu, 13)?);
    let tree = if version >= 3 { " CIST" } else { "" };
    // In the tree of 802.1s these are the regional root and its identifier.
    let (bridge, port) = (bridge(bpdu, 17)?, half(bpdu, 25)?);
    Some(format!(
        "STP {standard}, {kind},{tree} Flags [{flags}], bridge-id {bridge}.{port:04x}, root {root}, \
         cost {cost}, length {len}"
    ))
}

/// `6 bytes` in groups of two, as ISO system identifiers are written.
fn system(bytes: &[u8], at: usize) -> Option<String> {
    let [a, b, c, d, e, f] = chunk::<6>(bytes, at)?;
    Some(format!("{a:02x}{b:02x}.{c:02x}{d:02x}.{e:02x}{f:02x}"))
}

/// IS-IS (ISO 10589), and other protocols of ISO by their identifiers.
fn isis(bytes: &[u8], len: u16) -> Option<String> {
    let name = match byte(bytes, 0)? {
        0x83 => "IS-IS",
        0x82 => return Some(format!("ES-IS, length {len}")),
        0x81 => return Some(format!("CLNP, length {len}")),
        other => return Some(format!("OSI NLPID {other:#04x}, length {len}")),
    };
    let kind = byte(bytes, 4)? & 0x1f;
    let level = |first: u8| if kind == first { "L1" } else { "L2" };
    let what = match kind {
        15 | 16 => {
            let (source, lan) = (system(bytes, 9)?, system(bytes, 20)?);
            let (priority, number) = (byte(bytes, 19)? & 0x7f, byte(bytes, 26)?);
            format!(
                "{} Lan IIH, src-id {source}, lan-id {lan}.{number:02x}, prio {priority}",
                level(15)
            )
        }
        17 => format!("p2p IIH, src-id {}", system(bytes, 9)?),
        18 | 20 => {
            let (lifetime, sequence) = (half(bytes, 10)?, word(bytes, 20)?);
            let (source, node, part) = (system(bytes, 12)?, byte(bytes, 18)?, byte(bytes, 19)?);
            format!(
                "{} LSP, lsp-id {source}.{node:02x}-{part:02x}, seq {sequence:#010x}, \
                 lifetime {lifetime}s",
                level(18)
            )
        }
        24..=27 => {
            let (source, node) = (system(bytes, 10)?, byte(bytes, 16)?);
            let level = if kind % 2 == 0 { "L1" } else { "L2" };
            let name = if kind < 26 { "CSNP" } else { "PSNP" };
            format!("{level} {name}, src-id {source}.{node:02x}")
        }
        kind => format!("PDU type {kind}"),
    };
    Some(format!("{name}, {what}, length {len}"))
}
