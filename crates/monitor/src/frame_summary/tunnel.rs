//! Tunnels: GRE (RFC 2784, RFC 2890, RFC 2637), VXLAN (RFC 7348), Geneve (RFC 8926), L2TP (RFC 2661),
//! GTP (3GPP TS 29.060, 29.274, 29.281), EtherIP (RFC 3378).

use super::{byte, carried, flag_letters, half, ip, of_ethernet, ppp, word};
use weir_wire::EtherType;

/// The text with what the tunnel carries.
fn with_inner(text: String, inner: Option<String>) -> String {
    match inner {
        Some(inner) => format!("{text}: {inner}"),
        None => text,
    }
}

/// What is behind an EtherType; an Ethernet frame has one of its own.
fn inner_of(ether_type: u16, bytes: &[u8], depth: usize) -> Option<String> {
    /// Transparent Ethernet bridging.
    const ETHERNET: u16 = 0x6558;
    let depth = depth.checked_sub(1)?;
    match ether_type {
        ETHERNET => of_ethernet(bytes, depth),
        other => carried(EtherType(other), bytes, depth),
    }
}

pub(super) fn gre(bytes: &[u8], len: usize, depth: usize) -> Option<String> {
    const CHECKSUM: u16 = 0x8000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const ACKNOWLEDGMENT: u16 = 0x0080;
    const PPP: u16 = 0x880b;
    let (flags, protocol) = (half(bytes, 0)?, half(bytes, 2)?);
    let version = flags & 7;
    let mut text = format!("GREv{version}");
    let mut at = 4;
    let mut next_word = || {
        at += 4;
        word(bytes, at - 4)
    };
    let has = |flag: u16| flags & flag != 0;
    if has(CHECKSUM) || has(ROUTING) {
        let offset = next_word()? & 0xffff;
        text += &format!(", off {offset:#x}");
    }
    let mut has_payload = true;
    if has(KEY) {
        let key = next_word()?;
        match version {
            // The enhanced GRE of PPTP: a length, and the call.
            1 => {
                has_payload = key >> 16 > 0;
                text += &format!(", call {}", key & 0xffff);
            }
            _ => text += &format!(", key={key:#x}"),
        }
    }
    if has(SEQUENCE) {
        text += &format!(", seq {}", next_word()?);
    }
    if version == 1 && has(ACKNOWLEDGMENT) {
        text += &format!(", ack {}", next_word()?);
    }
    if !has_payload || (version == 1 && !has(SEQUENCE)) {
        return Some(format!("{text}, no-payload, length {len}"));
    }
    text += &format!(", length {len}");
    let payload = bytes.get(at..)?;
    let inner = match protocol {
        PPP => ppp::packet(payload, len.saturating_sub(at), depth),
        // ERSPAN (draft-foschiano-erspan): type I without a header, type II with one of 8 bytes.
        0x88be if has(SEQUENCE) => {
            let session = half(payload, 2)? & 0x3ff;
            let frame = payload
                .get(8..)
                .and_then(|rest| inner_of(0x6558, rest, depth));
            let text = format!("ERSPAN session {session}");
            Some(with_inner(text, frame))
        }
        0x88be => inner_of(0x6558, payload, depth),
        protocol => inner_of(protocol, payload, depth),
    };
    let inner = inner.unwrap_or_else(|| format!("type {protocol:#06x}"));
    Some(format!("{text}: {inner}"))
}

/// EtherIP: two bytes, and a frame.
pub(super) fn etherip(bytes: &[u8], len: usize, depth: usize) -> Option<String> {
    let version = byte(bytes, 0)? >> 4;
    let text = format!("EtherIP version {version}, length {len}");
    Some(with_inner(text, inner_of(0x6558, bytes.get(2..)?, depth)))
}

/// VXLAN, also with a group policy.
pub(super) fn vxlan(payload: &[u8], depth: usize) -> Option<String> {
    const HAS_VNI: u8 = 8;
    let (flags, network) = (byte(payload, 0)?, word(payload, 4)? >> 8);
    let valid = if flags & HAS_VNI == 0 { "." } else { "I" };
    let text = format!("VXLAN, flags [{valid}] ({flags:#04x}), vni {network}");
    let inner = inner_of(0x6558, payload.get(8..)?, depth);
    Some(with_inner(text, inner))
}

/// VXLAN-GPE (draft-ietf-nvo3-vxlan-gpe), which names what it carries.
pub(super) fn vxlan_gpe(payload: &[u8], depth: usize) -> Option<String> {
    const FLAGS: [(u8, &str); 4] = [(8, "I"), (4, "P"), (2, "B"), (1, "O")];
    let flags = byte(payload, 0)?;
    let network = word(payload, 4)? >> 8;
    let marks = flag_letters(flags, &FLAGS);
    let inner = payload.get(8..).and_then(|rest| match byte(payload, 3)? {
        1 => inner_of(0x0800, rest, depth),
        2 => inner_of(0x86dd, rest, depth),
        3 => inner_of(0x6558, rest, depth),
        5 => inner_of(0x8847, rest, depth),
        other => Some(format!("protocol {other:#04x}")),
    });
    Some(with_inner(
        format!("VXLAN-GPE, flags [{marks}], vni {network}"),
        inner,
    ))
}

pub(super) fn geneve(payload: &[u8], depth: usize) -> Option<String> {
    const CONTROL: u8 = 0x80;
    const CRITICAL: u8 = 0x40;
    let (first, flags) = (byte(payload, 0)?, byte(payload, 1)?);
    if first >> 6 != 0 {
        return Some(format!("Geneve version {}", first >> 6));
    }
    let options = usize::from(first & 0x3f) * 4;
    let (protocol, network) = (half(payload, 2)?, word(payload, 4)? >> 8);
    let marks = match (flags & CONTROL != 0, flags & CRITICAL != 0) {
        (true, true) => "OC",
        (true, false) => "O",
        (false, true) => "C",
        (false, false) => "none",
    };
    let mut text = format!("Geneve, Flags [{marks}], vni {network:#x}");
    if options > 0 {
        text += &format!(", options [{options} bytes]");
    }
    let rest = payload.get(8 + options..)?;
    let inner = inner_of(protocol, rest, depth).unwrap_or_else(|| format!("type {protocol:#06x}"));
    Some(with_inner(text, Some(inner)))
}

/// L2TP version 2: its control messages by name, and PPP.
pub(super) fn l2tp(payload: &[u8], depth: usize) -> Option<String> {
    const CONTROL: u16 = 0x8000;
    const LENGTH: u16 = 0x4000;
    const SEQUENCE: u16 = 0x0800;
    const OFFSET: u16 = 0x0200;
    const PRIORITY: u16 = 0x0100;
    const FLAGS: [(u16, &str); 5] = [
        (CONTROL, "T"),
        (LENGTH, "L"),
        (SEQUENCE, "S"),
        (OFFSET, "O"),
        (PRIORITY, "P"),
    ];
    let flags = half(payload, 0)?;
    if flags & 0xf != 2 {
        return Some(format!("L2TPv{}, length {}", flags & 0xf, payload.len()));
    }
    let marks = flag_letters(flags, &FLAGS);
    let mut at = if flags & LENGTH == 0 { 2 } else { 4 };
    let (tunnel, session) = (half(payload, at)?, half(payload, at + 2)?);
    at += 4;
    let mut text = format!("L2TP [{marks}], tunnel/session {tunnel}/{session}");
    if flags & SEQUENCE != 0 {
        let (sent, expected) = (half(payload, at)?, half(payload, at + 2)?);
        text += &format!(", Ns={sent}, Nr={expected}");
        at += 4;
    }
    if flags & OFFSET != 0 {
        at += 2 + usize::from(half(payload, at)?);
    }
    let rest = payload.get(at..)?;
    if flags & CONTROL != 0 {
        return Some(format!("{text}, {}", l2tp_message(rest)));
    }
    let inner = ppp::packet(rest, rest.len(), depth);
    Some(with_inner(text, inner))
}

/// The type of a control message: its first attribute.
fn l2tp_message(rest: &[u8]) -> String {
    if rest.is_empty() {
        return "ZLB".to_owned();
    }
    let is_type = half(rest, 2) == Some(0) && half(rest, 4) == Some(0);
    let Some(kind) = half(rest, 6).filter(|_| is_type) else {
        return "control message".to_owned();
    };
    let name = match kind {
        1 => "SCCRQ",
        2 => "SCCRP",
        3 => "SCCCN",
        4 => "StopCCN",
        6 => "HELLO",
        7 => "OCRQ",
        8 => "OCRP",
        9 => "OCCN",
        10 => "ICRQ",
        11 => "ICRP",
        12 => "ICCN",
        14 => "CDN",
        15 => "WEN",
        16 => "SLI",
        kind => return format!("MSGTYPE {kind}"),
    };
    format!("MSGTYPE {name}")
}

/// GTP: the user plane with its packet, control messages by name.
pub(super) fn gtp(payload: &[u8], depth: usize) -> Option<String> {
    const PACKET: u8 = 255;
    let (first, kind, len) = (byte(payload, 0)?, byte(payload, 1)?, half(payload, 2)?);
    let version = first >> 5;
    let name = match (version, kind) {
        (_, 1) => "Echo Request",
        (_, 2) => "Echo Response",
        (1, 16) => "Create PDP Context Request",
        (1, 17) => "Create PDP Context Response",
        (1, 18) => "Update PDP Context Request",
        (1, 19) => "Update PDP Context Response",
        (1, 20) => "Delete PDP Context Request",
        (1, 21) => "Delete PDP Context Response",
        (1, 26) => "Error Indication",
        (1, 254) => "End Marker",
        (1, PACKET) => "G-PDU",
        (2, 32) => "Create Session Request",
        (2, 33) => "Create Session Response",
        (2, 34) => "Modify Bearer Request",
        (2, 35) => "Modify Bearer Response",
        (2, 36) => "Delete Session Request",
        (2, 37) => "Delete Session Response",
        _ => "message",
    };
    let mut text = format!("GTPv{version} {name} ({kind})");
    let has_teid = version == 1 || first & 8 != 0;
    if has_teid {
        text += &format!(", teid {:#010x}", word(payload, 4)?);
    }
    text += &format!(", length {len}");
    if version != 1 || kind != PACKET {
        return Some(text);
    }
    // Sequence number, N-PDU number and type of an extension, if any of them is there.
    let mut at = 8;
    if first & 7 != 0 {
        let mut extension = byte(payload, 11)?;
        at = 12;
        for _ in 0..depth {
            if extension == 0 {
                break;
            }
            let len = 4 * usize::from(byte(payload, at)?).max(1);
            extension = byte(payload, at + len - 1)?;
            at += len;
        }
    }
    let inner = ip::packet(payload.get(at..)?, depth.checked_sub(1)?);
    Some(with_inner(text, inner))
}
