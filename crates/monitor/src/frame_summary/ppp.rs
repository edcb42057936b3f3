//! PPPoE (RFC 2516) and PPP (RFC 1661): control protocols with their options, PAP (RFC 1334), CHAP
//! (RFC 1994), and what a session carries.

use super::link::eap;
use super::{byte, chunk, half, harmless, hex, ip, mpls, word};
use std::net::Ipv4Addr;

/// Largest number of tags or options shown of one packet.
const OPTIONS_MAX: usize = 32;

/// A discovery frame, with its tags.
pub(super) fn discovery(payload: &[u8]) -> Option<String> {
    let (code, session) = (byte(payload, 1)?, half(payload, 2)?);
    let name = match code {
        0x07 => "PADO".to_owned(),
        0x09 => "PADI".to_owned(),
        0x0a => "PADG".to_owned(),
        0x0b => "PADC".to_owned(),
        0x0c => "PADQ".to_owned(),
        0x19 => "PADR".to_owned(),
        0x65 => "PADS".to_owned(),
        0xa7 => "PADT".to_owned(),
        code => format!("code {code:#04x}"),
    };
    let mut text = format!("PPPoE {name}");
    if session != 0 {
        text += &format!(", session {session:#x}");
    }
    let len = usize::from(half(payload, 4)?);
    let mut rest = payload.get(6..payload.len().min(6 + len))?;
    for _ in 0..OPTIONS_MAX {
        let (Some(kind), Some(len)) = (half(rest, 0), half(rest, 2)) else {
            break;
        };
        let Some(value) = rest.get(4..4 + usize::from(len)) else {
            text += " [|pppoe]";
            break;
        };
        let name = match kind {
            0x0000 => break,
            0x0101 => "Service-Name".to_owned(),
            0x0102 => "AC-Name".to_owned(),
            0x0103 => "Host-Uniq".to_owned(),
            0x0104 => "AC-Cookie".to_owned(),
            0x0105 => "Vendor-Specific".to_owned(),
            0x0110 => "Relay-Session-ID".to_owned(),
            0x0120 => "PPP-Max-Payload".to_owned(),
            0x0201 => "Service-Name-Error".to_owned(),
            0x0202 => "AC-System-Error".to_owned(),
            0x0203 => "Generic-Error".to_owned(),
            kind => format!("tag {kind:#06x}"),
        };
        text += &format!(", {name}");
        if !value.is_empty() {
            text += &format!(" {}", text_or_hex(value));
        }
        rest = &rest[4 + value.len()..];
    }
    Some(text)
}

/// Printable bytes in quotes, others in hexadecimal.
fn text_or_hex(value: &[u8]) -> String {
    if value.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        format!("\"{}\"", harmless(value))
    } else {
        format!("0x{}", hex(value))
    }
}

/// A session's frame.
pub(super) fn session(payload: &[u8], depth: usize) -> Option<String> {
    let (session, len) = (half(payload, 2)?, usize::from(half(payload, 4)?));
    let text = format!("PPPoE session {session:#x}");
    let captured = payload.get(6..payload.len().min(6 + len));
    Some(match captured.and_then(|bytes| packet(bytes, len, depth)) {
        Some(inner) => format!("{text} {inner}"),
        None => format!("{text} [|ppp]"),
    })
}

/// A packet of `len` bytes, with or without HDLC's address and control bytes and with a protocol
/// field of one or two bytes (RFC 1661 sections 6.5 and 6.6).
pub(super) fn packet(bytes: &[u8], len: usize, depth: usize) -> Option<String> {
    let (bytes, len) = match bytes {
        [0xff, 0x03, rest @ ..] => (rest, len.saturating_sub(2)),
        _ => (bytes, len),
    };
    let (protocol, payload) = match *bytes.first()? {
        first if first & 1 == 1 => (u16::from(first), bytes.get(1..)?),
        _ => (half(bytes, 0)?, bytes.get(2..)?),
    };
    let name = match protocol {
        0x0021 | 0x0057 => {
            return ip::packet(payload, depth.checked_sub(1)?).or(Some("[|ip]".to_owned()));
        }
        0x0281 | 0x0283 => return mpls::packet(payload, depth.checked_sub(1)?),
        0x003d => return Some(format!("MLPPP, length {len}")),
        0xc023 => return pap(payload),
        0xc223 => return chap(payload),
        0xc227 => return eap(payload),
        0xc021 => "LCP",
        0x8021 => "IPCP",
        0x8057 => "IPv6CP",
        0x80fd => "CCP",
        0x8053 => "ECP",
        0x8281 => "MPLSCP",
        0x8023 => "OSICP",
        0x8031 => "BCP",
        0xc02b => "BACP",
        0xc025 => "LQR",
        _ => return Some(format!("PPP protocol {protocol:#06x}, length {len}")),
    };
    control(protocol, name, payload, len)
}

/// A packet of LCP or a network control protocol; `len` is the PPP packet's.
fn control(protocol: u16, name: &str, bytes: &[u8], len: usize) -> Option<String> {
    const LCP: u16 = 0xc021;
    let (code, id) = (byte(bytes, 0)?, byte(bytes, 1)?);
    let what = match code {
        0 => "Vendor",
        1 => "Conf-Request",
        2 => "Conf-Ack",
        3 => "Conf-Nack",
        4 => "Conf-Reject",
        5 => "Term-Request",
        6 => "Term-Ack",
        7 => "Code-Reject",
        8 => "Prot-Reject",
        9 => "Echo-Request",
        10 => "Echo-Reply",
        11 => "Disc-Req",
        12 => "Ident",
        13 => "Time-Rem",
        14 => "Reset-Req",
        15 => "Reset-Ack",
        _ => "code",
    };
    let mut text = format!("{name}, {what} ({code:#04x}), id {id}, length {len}");
    let data = half(bytes, 2).and_then(|len| bytes.get(4..bytes.len().min(usize::from(len))));
    let data = data.unwrap_or_default();
    match code {
        1..=4 => text += &options(protocol, data),
        8 if protocol == LCP => {
            if let Some(rejected) = half(data, 0) {
                text += &format!(", protocol {rejected:#06x}");
            }
        }
        9..=13 if protocol == LCP => {
            if let Some(magic) = word(data, 0) {
                text += &format!(", magic {magic:#010x}");
            }
            if code == 12 && data.len() > 4 {
                text += &format!(", \"{}\"", harmless(&data[4..]));
            }
        }
        _ => {}
    }
    Some(text)
}

/// The options of a Configure packet.
fn options(protocol: u16, mut rest: &[u8]) -> String {
    let mut text = String::new();
    for _ in 0..OPTIONS_MAX {
        let (Some(kind), Some(len)) = (byte(rest, 0), byte(rest, 1)) else {
            break;
        };
        let Some(option) = rest.get(..usize::from(len)).filter(|_| len >= 2) else {
            text += " [|ppp]";
            break;
        };
        let shown = option_text(protocol, kind, &option[2..]);
        text += &format!(
            ", {}",
            shown.unwrap_or_else(|| format!("option {kind} of {len}"))
        );
        rest = &rest[option.len()..];
    }
    text
}

fn option_text(protocol: u16, kind: u8, value: &[u8]) -> Option<String> {
    let address = || chunk::<4>(value, 0).map(Ipv4Addr::from);
    Some(match (protocol, kind) {
        // RFC 1661 section 6.
        (0xc021, 1) => format!("mru {}", half(value, 0)?),
        (0xc021, 2) => format!("accm {:#010x}", word(value, 0)?),
        (0xc021, 3) => match (half(value, 0)?, byte(value, 2)) {
            (0xc023, _) => "auth PAP".to_owned(),
            (0xc223, Some(5)) => "auth CHAP-MD5".to_owned(),
            (0xc223, Some(0x80)) => "auth MS-CHAP".to_owned(),
            (0xc223, Some(0x81)) => "auth MS-CHAPv2".to_owned(),
            (0xc223, _) => "auth CHAP".to_owned(),
            (0xc227, _) => "auth EAP".to_owned(),
            (other, _) => format!("auth {other:#06x}"),
        },
        (0xc021, 5) => format!("magic {:#010x}", word(value, 0)?),
        (0xc021, 7) => "pfc".to_owned(),
        (0xc021, 8) => "acfc".to_owned(),
        (0xc021, 17) => format!("mrru {}", half(value, 0)?),
        // RFC 1332, RFC 1877.
        (0x8021, 3) => format!("address {}", address()?),
        (0x8021, 129) => format!("dns {}", address()?),
        (0x8021, 131) => format!("second dns {}", address()?),
        (0x8021, 130 | 132) => format!("nbns {}", address()?),
        // RFC 5072.
        (0x8057, 1) => {
            let parts = [0, 2, 4, 6].map(|at| half(value, at));
            let [a, b, c, d] = [parts[0]?, parts[1]?, parts[2]?, parts[3]?];
            format!("interface id {a:04x}:{b:04x}:{c:04x}:{d:04x}")
        }
        _ => return None,
    })
}

/// The bytes behind a length byte, and what follows.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = usize::from(*bytes.first()?);
    bytes.get(1..)?.split_at_checked(len)
}

fn pap(bytes: &[u8]) -> Option<String> {
    let (code, id) = (byte(bytes, 0)?, byte(bytes, 1)?);
    let name = match code {
        1 => "Auth-Req",
        2 => "Auth-ACK",
        3 => "Auth-NACK",
        _ => "code",
    };
    let mut text = format!("PAP, {name} ({code:#04x}), id {id}");
    let data = bytes.get(4..bytes.len().min(usize::from(half(bytes, 2)?)));
    let Some((first, rest)) = data.and_then(counted) else {
        return Some(text);
    };
    text += &match (code, counted(rest)) {
        (1, Some((password, _))) => {
            let (peer, password) = (harmless(first), harmless(password));
            format!(", Peer {peer}, Password {password}")
        }
        (1, None) => format!(", Peer {}", harmless(first)),
        _ => format!(", Msg {}", harmless(first)),
    };
    Some(text)
}

fn chap(bytes: &[u8]) -> Option<String> {
    let (code, id) = (byte(bytes, 0)?, byte(bytes, 1)?);
    let name = match code {
        1 => "Challenge",
        2 => "Response",
        3 => "Success",
        4 => "Fail",
        _ => "code",
    };
    let text = format!("CHAP, {name} ({code:#04x}), id {id}");
    let data = bytes.get(4..bytes.len().min(usize::from(half(bytes, 2)?)));
    let data = data.unwrap_or_default();
    Some(match (code, counted(data)) {
        (1 | 2, Some((value, name))) => {
            let name = harmless(name);
            format!("{text}, Value {}, Name {name}", hex(value))
        }
        (3 | 4, _) => format!("{text}, Msg {}", harmless(data)),
        _ => text,
    })
}
