//! TCP segments (RFC 9293), and the first line of their content.

use super::ip::Carried;
use super::{byte, dns, half, harmless, word};
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
        (34, _) => {
            let cookie: String = option[2..]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("tfo  cookie {cookie}")
        }
        _ => return None,
    })
}

/// The summary of a segment's data: DNS, TLS or HTTP.
fn payload_of(carried: &Carried<'_>, payload: &[u8]) -> Option<String> {
    let is_of = |port| half(carried.bytes, 0) == Some(port) || half(carried.bytes, 2) == Some(port);
    if is_of(53) {
        // Behind its length field (RFC 1035 section 4.2.2).
        return dns::message(payload.get(2..)?, false).map(|summary| format!(", DNS {summary}"));
    }
    if let Some(summary) = tls(payload) {
        return Some(format!(", TLS {summary}"));
    }
    let line = payload
        .split(|byte| *byte == b'\r' || *byte == b'\n')
        .next()?;
    let is_http = line.starts_with(b"HTTP/1.") || line.windows(8).any(|some| some == b" HTTP/1.");
    is_http.then(|| format!(", HTTP {}", harmless(line)))
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
