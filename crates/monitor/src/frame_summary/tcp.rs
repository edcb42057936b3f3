//! TCP segments (RFC 9293), and what their content begins with.

use super::ip::Carried;
use super::{byte, chunk, dns, half, harmless, hex, mpls, routing, rpc, services, text, word};
use std::fmt::Write;
use weir_wire::tcp::Flags;

/// Names of the flags, in the order of output.
const NAMES: [(Flags, &str); 8] = [
    (Flags::SYN, " SYN"),
    (Flags::FIN, " FIN"),
    (Flags::RST, " RST"),
    (Flags::ACK, " ACK"),
    (Flags::PSH, " PSH"),
    (Flags::URG, " URG"),
    (Flags::ECE, " ECE"),
    (Flags::CWR, " CWR"),
];

pub(super) fn segment(carried: &Carried<'_>) -> Option<String> {
    let bytes = carried.bytes;
    let mut text = format!("{} TCP", carried.ends()?);
    let (Some(seq), Some(ack), Some(offset), Some(flags), Some(window)) = (
        word(bytes, 4),
        word(bytes, 8),
        byte(bytes, 12),
        byte(bytes, 13),
        half(bytes, 14),
    ) else {
        return Some(text);
    };
    let header_len = usize::from(offset >> 4) * 4;
    if header_len < 20 || header_len > carried.len {
        let _ = write!(text, ", bad header length {header_len}");
        return Some(text);
    }
    let flags = Flags(flags);
    for (_, name) in NAMES.iter().filter(|(flag, _)| flags.contains(*flag)) {
        text += name;
    }
    let len = carried.len - header_len;
    let ends = Flags(flags.0 & (Flags::SYN | Flags::FIN | Flags::RST).0);
    match (len, ends.0) {
        (0, 0) => {}
        (0, _) => text += &format!(", seq {seq}"),
        _ => text += &format!(", seq {seq}:{}", seq.wrapping_add(len as u32)),
    }
    if flags.contains(Flags::ACK) {
        let _ = write!(text, ", ack {ack}");
    }
    let _ = write!(text, ", win {window}");
    if flags.contains(Flags::URG) {
        let _ = write!(text, ", urg {}", half(bytes, 18).unwrap_or_default());
    }
    let options = bytes.get(20..header_len).unwrap_or_default();
    if !options.is_empty() {
        let _ = write!(text, ", options [{}]", option_names(options).join(","));
    }
    let _ = write!(text, ", length {len}");
    if let Some(payload) = bytes
        .get(header_len..)
        .filter(|payload| !payload.is_empty())
        && let Some(inner) = payload_of(carried, payload)
    {
        text += &inner;
    }
    Some(text)
}

/// Options, by tcpdump's names.
fn option_names(mut rest: &[u8]) -> Vec<String> {
    let mut summary = Vec::new();
    while let Some(kind) = byte(rest, 0) {
        if kind < 2 {
            summary.push(if kind == 0 { "eol" } else { "nop" }.to_owned());
            if kind == 0 {
                break;
            }
            rest = &rest[1..];
            continue;
        }
        let len = usize::from(byte(rest, 1).unwrap_or_default());
        let Some(option) = rest.get(..len).filter(|option| option.len() >= 2) else {
            summary.push("cut".to_owned());
            break;
        };
        rest = &rest[len..];
        summary.push(option_name(kind, option).unwrap_or_else(|| format!("kind {kind} of {len}")));
    }
    summary
}

fn option_name(kind: u8, option: &[u8]) -> Option<String> {
    Some(match (kind, option.len()) {
        (2, 4) => format!("mss {}", half(option, 2)?),
        (3, 3) => format!("wscale {}", byte(option, 2)?),
        (4, 2) => "sackOK".to_owned(),
        (5, len) if len > 2 && (len - 2).is_multiple_of(8) => {
            let blocks = option[2..].chunks_exact(8).filter_map(|block| {
                let (start, end) = (word(block, 0)?, word(block, 4)?);
                Some(format!("{{{start}:{end}}}"))
            });
            format!("sack {} {}", (len - 2) / 8, blocks.collect::<String>())
        }
        (8, 10) => format!("TS val {} ecr {}", word(option, 2)?, word(option, 6)?),
        (34, 2) => "tfo  cookiereq".to_owned(),
        (34, _) => format!("tfo  cookie {}", hex(&option[2..])),
        // RFC 2385, RFC 5925, RFC 5482, RFC 8684.
        (19, 18) => format!("md5 {}", hex(&option[2..])),
        (29, 4..) => {
            let (key, next) = (option[2], option[3]);
            let mac = hex(&option[4..]);
            format!("tcp-ao keyid {key} rnextkeyid {next} mac 0x{mac}")
        }
        (28, 4) => {
            let value = half(option, 2)?;
            // In minutes if the first bit is set.
            let unit = if value & 0x8000 == 0 { 1 } else { 60 };
            let seconds = u32::from(value & 0x7fff) * unit;
            format!("uto {value:#x} {seconds}")
        }
        (30, 4..) => mptcp(option)?,
        (_, len) if len > 2 => format!("unknown-{kind} 0x{}", hex(&option[2..])),
        _ => return None,
    })
}

/// An option of Multipath TCP (RFC 8684 section 3).
fn mptcp(option: &[u8]) -> Option<String> {
    let long = |at: usize| chunk::<8>(option, at).map(u64::from_be_bytes);
    let (len, subtype, low) = (option.len(), option[2] >> 4, option[2] & 0xf);
    let flags = option[3];
    let what = match subtype {
        0 => {
            let checksum = if flags & 0x80 == 0 { "" } else { " csum" };
            let keys = [long(4), long(12)].into_iter().flatten();
            let keys: Vec<String> = keys.map(|key| format!("{key:#x}")).collect();
            let keys = match keys.as_slice() {
                [] => String::new(),
                keys => format!(" {{{}}}", keys.join(",")),
            };
            format!("capable v{low}{checksum}{keys}")
        }
        1 => {
            let backup = if low & 1 == 0 { "" } else { " backup" };
            match len {
                12 => {
                    let (token, nonce) = (word(option, 4)?, word(option, 8)?);
                    format!("join{backup} id {flags} token {token:#x} nonce {nonce:#x}")
                }
                16 => {
                    let (hmac, nonce) = (long(4)?, word(option, 12)?);
                    format!("join{backup} id {flags} hmac {hmac:#x} nonce {nonce:#x}")
                }
                _ => format!("join hmac 0x{}", hex(&option[4..])),
            }
        }
        2 => dss(option, flags)?,
        3 => format!("add-addr id {flags} 0x{}", hex(&option[4..])),
        4 => format!("rem-addr id {flags}"),
        5 => format!("prio{}", if low & 1 == 0 { "" } else { " backup" }),
        6 => format!("fail {}", long(4)?),
        7 => format!("fast-close key {:#x}", long(4)?),
        8 => format!("reset {flags:#04x}"),
        subtype => format!("subtype {subtype}"),
    };
    Some(format!("mptcp {len} {what}"))
}

/// The data sequence signal: an acknowledgment, and the mapping of a segment.
fn dss(option: &[u8], flags: u8) -> Option<String> {
    let mut at = 4;
    let mut number = |is_long: bool| {
        let start = at;
        at += if is_long { 8 } else { 4 };
        if is_long {
            chunk::<8>(option, start).map(u64::from_be_bytes)
        } else {
            word(option, start).map(u64::from)
        }
    };
    let mut text = String::from("dss");
    if flags & 0x10 != 0 {
        text += " fin";
    }
    if flags & 1 != 0 {
        text += &format!(" ack {}", number(flags & 2 != 0)?);
    }
    if flags & 4 != 0 {
        let (seq, subflow) = (number(flags & 8 != 0)?, number(false)?);
        text += &format!(" seq {seq} subseq {subflow} len {}", half(option, at)?);
        if let Some(checksum) = half(option, at + 2) {
            text += &format!(" csum {checksum:#x}");
        }
    }
    Some(text)
}

/// The summary of a segment's data, by its transport port or its first bytes.
fn payload_of(carried: &Carried<'_>, payload: &[u8]) -> Option<String> {
    let ports = [half(carried.bytes, 0)?, half(carried.bytes, 2)?];
    let is_of = |port| ports.contains(&port);
    let by_port = ports
        .into_iter()
        .find_map(|port| of_port(port, payload))
        .or_else(|| tls(payload).map(|summary| format!("TLS {summary}")))
        .or_else(|| text::of_segment(payload, is_of));
    by_port.map(|summary| format!(", {summary}"))
}

fn of_port(port: u16, payload: &[u8]) -> Option<String> {
    match port {
        // Behind its length field (RFC 1035 section 4.2.2).
        53 => {
            let (len, summary) = (half(payload, 0)?, dns::message(payload.get(2..)?, false)?);
            Some(format!("DNS {summary}, length {len}"))
        }
        111 | 2049 => rpc::in_segment(payload, port),
        139 | 445 => rpc::smb(payload),
        179 => routing::bgp(payload),
        323 => Some("RPKI-RTR".to_owned()),
        639 => routing::msdp(payload),
        646 => mpls::ldp(payload),
        1723 => services::pptp(payload),
        6633 | 6653 => services::openflow(payload),
        _ => None,
    }
}

/// A TLS hello (RFC 8446 section 4.1), with the server name that a client
/// requests (RFC 6066 section 3).
fn tls(payload: &[u8]) -> Option<String> {
    /// Types of handshake messages, and extensions.
    const CLIENT_HELLO: u8 = 1;
    const SERVER_HELLO: u8 = 2;
    const SERVER_NAME: u16 = 0;
    if byte(payload, 0)? != 22 || byte(payload, 1)? != 3 {
        return None;
    }
    match byte(payload, 5)? {
        CLIENT_HELLO => {}
        SERVER_HELLO => return Some("server hello".to_owned()),
        _ => return None,
    }
    let name = || {
        // Version and random bytes, then session, cipher suites, compression.
        let mut rest = payload.get(9 + 34..)?;
        rest = rest.get(1 + usize::from(byte(rest, 0)?)..)?;
        rest = rest.get(2 + usize::from(half(rest, 0)?)..)?;
        rest = rest.get(1 + usize::from(byte(rest, 0)?)..)?;
        rest = rest.get(2..)?;
        loop {
            let (kind, len) = (half(rest, 0)?, usize::from(half(rest, 2)?));
            if kind == SERVER_NAME {
                // A list with a name of type 0.
                let len = usize::from(half(rest, 7)?);
                return rest.get(9..9 + len);
            }
            rest = rest.get(4 + len..)?;
        }
    };
    Some(match name() {
        Some(name) => format!("client hello for {}", harmless(name)),
        None => "client hello".to_owned(),
    })
}
