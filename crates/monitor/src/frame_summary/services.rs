//! Services of UDP by their ports: NTP (RFC 5905), PTP (IEEE 1588), syslog (RFC 5424), TFTP (RFC 1350,
//! RFC 2347), NetBIOS (RFC 1002), sFlow, NetFlow and IPFIX (RFC 7011), STUN (RFC 8489), QUIC
//! (RFC 9000); and PPTP (RFC 2637), OpenFlow and Kerberos by their messages' names.

use super::{byte, chunk, flag_letters, half, harmless, hex, word};
use std::net::Ipv4Addr;

/// NTP's version and mode (RFC 5905 section 7.3).
pub(super) fn ntp(payload: &[u8]) -> Option<String> {
    let (first, len) = (byte(payload, 0)?, payload.len());
    let mode = match first & 7 {
        0 => "unspecified",
        1 => "symmetric active",
        2 => "symmetric passive",
        3 => "Client",
        4 => "Server",
        5 => "Broadcast",
        6 => "Control Message",
        _ => "Reserved",
    };
    let stratum = match (first & 7, byte(payload, 1)) {
        (1..=5, Some(stratum)) => format!(", stratum {stratum}"),
        _ => String::new(),
    };
    Some(format!(
        "NTPv{}, {mode}{stratum}, length {len}",
        first >> 3 & 7
    ))
}

/// PTP's version 2: type, domain, clock, sequence number.
pub(super) fn ptp(payload: &[u8]) -> Option<String> {
    let (kind, version, len) = (
        byte(payload, 0)? & 0xf,
        byte(payload, 1)? & 0xf,
        half(payload, 2)?,
    );
    let (domain, flags) = (byte(payload, 4)?, half(payload, 6)?);
    let (clock, port, seq) = (
        u64::from_be_bytes(chunk(payload, 20)?),
        half(payload, 28)?,
        half(payload, 30)?,
    );
    let correction = u64::from_be_bytes(chunk(payload, 8)?) >> 16;
    let interval = byte(payload, 33)?.cast_signed();
    let name = match kind {
        0 => "sync",
        1 => "delay req",
        2 => "peer delay req",
        3 => "peer delay resp",
        8 => "follow up",
        9 => "delay resp",
        10 => "peer delay fup",
        11 => "announce",
        12 => "signalling",
        13 => "management",
        _ => "unknown",
    };
    let mut text = format!(
        "PTPv{version}, {name} msg, domain {domain}, flags {flags:#06x}, correction {correction}, \
         clock {clock:#x} port {port}, seq {seq}, log interval {interval}"
    );
    if let (Some(high), Some(seconds), Some(nanoseconds)) =
        (half(payload, 34), word(payload, 36), word(payload, 40))
    {
        let seconds = u64::from(high) << 32 | u64::from(seconds);
        text += &format!(", time {seconds} s {nanoseconds} ns");
    }
    Some(format!("{text}, length {len}"))
}

/// A message's facility and severity, and its beginning.
pub(super) fn syslog(payload: &[u8]) -> Option<String> {
    const FACILITIES: [&str; 24] = [
        "kernel", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron",
        "authpriv", "ftp", "ntp", "security", "console", "cron", "local0", "local1", "local2",
        "local3", "local4", "local5", "local6", "local7",
    ];
    const SEVERITIES: [&str; 8] = [
        "emergency",
        "alert",
        "critical",
        "error",
        "warning",
        "notice",
        "info",
        "debug",
    ];
    let end = payload.iter().take(5).position(|byte| *byte == b'>')?;
    let digits = std::str::from_utf8(payload.get(1..end)?).ok()?;
    let priority: usize = digits.parse().ok().filter(|_| payload[0] == b'<')?;
    let (facility, severity) = (FACILITIES.get(priority / 8)?, SEVERITIES[priority % 8]);
    let message = harmless(&payload[end + 1..]);
    let len = payload.len();
    Some(format!(
        "SYSLOG {facility}.{severity}, length {len}, {message}"
    ))
}

/// A file's name, options, a block, or an error.
pub(super) fn tftp(payload: &[u8]) -> Option<String> {
    const ERRORS: [&str; 9] = [
        "EUNDEF",
        "ENOTFOUND",
        "EACCESS",
        "ENOSPACE",
        "EBADOP",
        "EBADID",
        "EEXISTS",
        "ENOUSER",
        "EOPTNEG",
    ];
    /// Largest number of texts shown of one packet.
    const TEXTS_MAX: usize = 16;
    let texts = |from: usize| {
        let rest = payload.get(from..).unwrap_or_default();
        let texts = rest.split(|byte| *byte == 0).take(TEXTS_MAX);
        texts
            .filter(|text| !text.is_empty())
            .map(|text| harmless(text).into_owned())
            .collect::<Vec<String>>()
    };
    let what = match half(payload, 0)? {
        kind @ (1 | 2) => {
            let name = if kind == 1 { "RRQ" } else { "WRQ" };
            match texts(2).split_first() {
                Some((file, rest)) => format!("{name} \"{file}\" {}", rest.join(" ")),
                None => name.to_owned(),
            }
        }
        3 => format!("DATA block {}", half(payload, 2)?),
        4 => format!("ACK block {}", half(payload, 2)?),
        5 => {
            let code = half(payload, 2)?;
            let name = match ERRORS.get(usize::from(code)) {
                Some(name) => (*name).to_owned(),
                None => code.to_string(),
            };
            format!("ERROR {name} \"{}\"", texts(4).join(" "))
        }
        6 => format!("OACK {}", texts(2).join(" ")),
        _ => return None,
    };
    let len = payload.len();
    Some(format!("TFTP, length {len}, {}", what.trim_end()))
}

/// A name of NetBIOS: 32 letters, each half a byte; the last byte is the name's type.
fn netbios_name(bytes: &[u8], at: usize) -> Option<String> {
    if byte(bytes, at)? != 32 {
        return None;
    }
    let letters = bytes.get(at + 1..at + 33)?;
    let halves = letters.iter().map(|letter| letter.wrapping_sub(b'A'));
    let halves: Vec<u8> = halves.filter(|half| *half < 16).collect();
    let name: Vec<u8> = halves
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect();
    let (kind, name) = name.split_last().filter(|_| name.len() == 16)?;
    Some(format!("{}<{kind:02x}>", harmless(name.trim_ascii_end())))
}

/// NetBIOS' name service.
pub(super) fn netbios_names(payload: &[u8]) -> Option<String> {
    let (id, flags) = (half(payload, 0)?, half(payload, 2)?);
    let operation = match flags >> 11 & 0xf {
        0 => "query".to_owned(),
        5 => "registration".to_owned(),
        6 => "release".to_owned(),
        7 => "wack".to_owned(),
        8 | 9 => "refresh".to_owned(),
        other => format!("operation {other}"),
    };
    let way = if flags & 0x8000 == 0 {
        "request".to_owned()
    } else {
        format!("response, code {}", flags & 0xf)
    };
    let name = netbios_name(payload, 12).map_or_else(String::new, |name| format!(", {name}"));
    Some(format!("NetBIOS {operation} {way}, id {id}{name}"))
}

/// NetBIOS' datagram service: the source, and both names.
pub(super) fn netbios_datagram(payload: &[u8]) -> Option<String> {
    const NAMES: usize = 14;
    let (kind, id) = (byte(payload, 0)?, half(payload, 2)?);
    let (source, port) = (Ipv4Addr::from(chunk::<4>(payload, 4)?), half(payload, 8)?);
    let names = || {
        let from = netbios_name(payload, NAMES)?;
        let to = netbios_name(payload, NAMES + 34)?;
        Some(format!(", {from} > {to}"))
    };
    let names = names().unwrap_or_default();
    Some(format!(
        "NetBIOS datagram {kind:#04x}, id {id}, of {source}:{port}{names}"
    ))
}

pub(super) fn sflow(payload: &[u8]) -> Option<String> {
    let (version, kind) = (word(payload, 0)?, word(payload, 4)?);
    let (agent, rest) = match kind {
        1 => {
            let agent = Ipv4Addr::from(chunk::<4>(payload, 8)?);
            (format!("IPv4 agent {agent}"), payload.get(12..)?)
        }
        2 => {
            let agent = std::net::Ipv6Addr::from(chunk::<16>(payload, 8)?);
            (format!("IPv6 agent {agent}"), payload.get(24..)?)
        }
        _ => return None,
    };
    let (id, seq, samples) = (word(rest, 0)?, word(rest, 4)?, word(rest, 12)?);
    let len = payload.len();
    Some(format!(
        "sFlowv{version}, {agent}, agent-id {id}, seq {seq}, {samples} samples, length {len}"
    ))
}

/// NetFlow's versions 5 and 9, and IPFIX.
pub(super) fn netflow(payload: &[u8]) -> Option<String> {
    let (version, count) = (half(payload, 0)?, half(payload, 2)?);
    Some(match version {
        5 => format!("NetFlow v5, {count} records, seq {}", word(payload, 16)?),
        9 => format!("NetFlow v9, {count} records, seq {}", word(payload, 12)?),
        10 => format!("IPFIX, length {count}, seq {}", word(payload, 8)?),
        _ => return None,
    })
}

/// STUN, by its magic cookie.
pub(super) fn stun(payload: &[u8]) -> Option<String> {
    const COOKIE: u32 = 0x2112_a442;
    let kind = half(payload, 0).filter(|kind| *kind < 0x4000)?;
    if word(payload, 4)? != COOKIE {
        return None;
    }
    let class = match kind & 0x0110 {
        0 => "request",
        0x0010 => "indication",
        0x0100 => "success response",
        _ => "error response",
    };
    let method = match kind & !0x0110 {
        1 => "Binding".to_owned(),
        3 => "Allocate".to_owned(),
        4 => "Refresh".to_owned(),
        6 => "Send".to_owned(),
        7 => "Data".to_owned(),
        8 => "CreatePermission".to_owned(),
        9 => "ChannelBind".to_owned(),
        other => format!("method {other:#x}"),
    };
    Some(format!("STUN {method} {class}"))
}

/// The long header of QUIC: its packet's type, version and connection identifiers.
pub(super) fn quic(payload: &[u8]) -> Option<String> {
    const LONG: u8 = 0xc0;
    /// Bytes of an identifier (RFC 9000 section 17.2).
    const ID_LEN_MAX: usize = 20;
    let first = byte(payload, 0).filter(|first| first & LONG == LONG)?;
    let version = word(payload, 1)?;
    let id = |at: usize| {
        let len = usize::from(byte(payload, at)?);
        let id = payload.get(at + 1..at + 1 + len)?;
        (len <= ID_LEN_MAX).then_some((hex(id), at + 1 + len))
    };
    let (dcid, at) = id(5)?;
    let (scid, _) = id(at)?;
    let name = match (version, first >> 4 & 3) {
        (0, _) => "Version Negotiation",
        (1, 0) => "Initial",
        (1, 1) => "0-RTT",
        (1, 2) => "Handshake",
        (1, _) => "Retry",
        _ => "packet",
    };
    Some(format!(
        "QUIC {name}, version {version:#x}, dcid {dcid}, scid {scid}"
    ))
}

/// PPTP's control messages.
pub(super) fn pptp(payload: &[u8]) -> Option<String> {
    const COOKIE: u32 = 0x1a2b_3c4d;
    if word(payload, 4)? != COOKIE {
        return None;
    }
    let name = match half(payload, 8)? {
        1 => "SCCRQ".to_owned(),
        2 => "SCCRP".to_owned(),
        3 => "StopCCRQ".to_owned(),
        4 => "StopCCRP".to_owned(),
        5 => "ECHORQ".to_owned(),
        6 => "ECHORP".to_owned(),
        7 => "OCRQ".to_owned(),
        8 => "OCRP".to_owned(),
        9 => "ICRQ".to_owned(),
        10 => "ICRP".to_owned(),
        11 => "ICCN".to_owned(),
        12 => "CCRQ".to_owned(),
        13 => "CDN".to_owned(),
        14 => "WEN".to_owned(),
        15 => "SLI".to_owned(),
        kind => format!("message {kind}"),
    };
    let more = match half(payload, 8)? {
        1 | 2 => pptp_start(payload),
        7..=13 => half(payload, 12).map(|call| format!(" call {call}")),
        _ => None,
    };
    Some(format!("PPTP {name}{}", more.unwrap_or_default()))
}

/// The hosts' abilities and names in the first two messages.
fn pptp_start(payload: &[u8]) -> Option<String> {
    let [major, minor] = half(payload, 12)?.to_be_bytes();
    let framing = flag_letters(byte(payload, 19)?, &[(1, "A"), (2, "S")]);
    let bearer = flag_letters(byte(payload, 23)?, &[(2, "D"), (1, "A")]);
    let (channels, firmware) = (half(payload, 24)?, half(payload, 26)?);
    let text = |at: usize| {
        let field = payload.get(at..at + 64)?;
        Some(harmless(field.split(|byte| *byte == 0).next()?))
    };
    let (host, vendor) = (text(28)?, text(92)?);
    Some(format!(
        ", version {major}.{minor}, framing {framing}, bearer {bearer}, channels {channels}, \
         firmware {firmware}, host {host}, vendor {vendor}"
    ))
}

pub(super) fn openflow(payload: &[u8]) -> Option<String> {
    let (version, kind) = (byte(payload, 0)?, byte(payload, 1)?);
    let (len, id) = (half(payload, 2)?, word(payload, 4)?);
    let version = match version {
        1..=6 => format!("1.{}", version - 1),
        version => format!("{version:#04x}"),
    };
    let name = match kind {
        0 => "HELLO".to_owned(),
        1 => "ERROR".to_owned(),
        2 => "ECHO_REQUEST".to_owned(),
        3 => "ECHO_REPLY".to_owned(),
        5 => "FEATURES_REQUEST".to_owned(),
        6 => "FEATURES_REPLY".to_owned(),
        10 => "PACKET_IN".to_owned(),
        13 => "PACKET_OUT".to_owned(),
        14 => "FLOW_MOD".to_owned(),
        kind => kind.to_string(),
    };
    Some(format!(
        "OpenFlow version {version}, type {name}, length {len}, xid {id:#010x}"
    ))
}

/// Kerberos' version 5 by the application tag of its message (RFC 4120 section 5.10).
pub(super) fn kerberos(payload: &[u8]) -> Option<String> {
    let name = match byte(payload, 0)? {
        0x6a => "AS-REQ",
        0x6b => "AS-REP",
        0x6c => "TGS-REQ",
        0x6d => "TGS-REP",
        0x6e => "AP-REQ",
        0x6f => "AP-REP",
        0x7e => "KRB-ERROR",
        _ => return None,
    };
    Some(format!("Kerberos v5 {name}"))
}
