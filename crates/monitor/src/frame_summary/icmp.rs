//! ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443), with neighbour discovery
//! (RFC 4861) and MLD (RFC 3810).

use super::ip::Carried;
use super::{byte, chunk, half, word};
use std::net::{Ipv4Addr, Ipv6Addr};
use weir_wire::Protocol;

pub(super) fn v4(carried: &Carried<'_>) -> Option<String> {
    let bytes = carried.bytes;
    let (kind, code) = (byte(bytes, 0)?, byte(bytes, 1)?);
    let ip = |at| chunk::<4>(bytes, at).map(Ipv4Addr::from);
    let what = match kind {
        0 | 8 => {
            let way = if kind == 8 { "request" } else { "reply" };
            echo(way, bytes)?
        }
        3 => unreachable_v4(code, bytes),
        4 => "source quench".to_owned(),
        5 => {
            let (way, what) = match code {
                0 => ("redirect", "net "),
                1 => ("redirect", "host "),
                2 => ("redirect-tos", "net "),
                3 => ("redirect-tos", "host "),
                _ => ("redirect", ""),
            };
            let way = if code > 3 {
                format!("{way}-#{code}")
            } else {
                way.to_owned()
            };
            match (ip(24), ip(4)) {
                (Some(to), Some(router)) => format!("{way} {to} to {what}{router}"),
                _ => way,
            }
        }
        9 => router_advertisement(bytes)?,
        10 => "router solicitation".to_owned(),
        11 => match code {
            0 => "time exceeded in-transit".to_owned(),
            1 => "ip reassembly time exceeded".to_owned(),
            _ => format!("time exceeded-#{code}"),
        },
        12 => match code {
            0 => format!("parameter problem - octet {}", byte(bytes, 4)?),
            code => format!("parameter problem - code {code}"),
        },
        13 => {
            let (id, seq) = (half(bytes, 4)?, half(bytes, 6)?);
            format!("time stamp query id {id} seq {seq}")
        }
        14 => {
            let (id, seq) = (half(bytes, 4)?, half(bytes, 6)?);
            let time = |at| Some(time_of_day(word(bytes, at)?));
            let (sent, received, answered) = (time(8)?, time(12)?, time(16)?);
            format!(
                "time stamp reply id {id} seq {seq}: org {sent}, recv {received}, xmit {answered}"
            )
        }
        15 => "information request".to_owned(),
        16 => "information reply".to_owned(),
        17 => "address mask request".to_owned(),
        18 => format!("address mask is {:#010x}", word(bytes, 8)?),
        _ => format!("type-#{kind}"),
    };
    Some(described(carried, &format!("ICMP {what}")))
}

/// Milliseconds since midnight, as a time.
fn time_of_day(milliseconds: u32) -> String {
    let seconds = milliseconds / 1000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let (seconds, rest) = (seconds % 60, milliseconds % 1000);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{rest:03}")
}

/// RFC 1256: routers with their preferences.
fn router_advertisement(bytes: &[u8]) -> Option<String> {
    /// Largest number of routers shown of one message.
    const ROUTERS_MAX: usize = 16;
    let (count, words, lifetime) = (byte(bytes, 4)?, byte(bytes, 5)?, half(bytes, 6)?);
    let lifetime = match lifetime {
        seconds @ 0..60 => seconds.to_string(),
        seconds @ 60..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        seconds => format!(
            "{}:{:02}:{:02}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        ),
    };
    let mut text = format!("router advertisement lifetime {lifetime} {count}:");
    if words != 2 {
        return Some(format!("{text} [size {words}]"));
    }
    for number in 0..usize::from(count).min(ROUTERS_MAX) {
        let at = 8 + 8 * number;
        let (Some(router), Some(preference)) = (chunk::<4>(bytes, at), word(bytes, at + 4)) else {
            break;
        };
        text += &format!(" {{{} {preference}}}", Ipv4Addr::from(router));
    }
    Some(text)
}

fn described(carried: &Carried<'_>, what: &str) -> String {
    let Carried { src, dst, len, .. } = carried;
    format!("{src} > {dst} {what}, length {len}")
}

fn echo(way: &str, bytes: &[u8]) -> Option<String> {
    let (id, seq) = (half(bytes, 4)?, half(bytes, 6)?);
    Some(format!("echo {way}, id {id}, seq {seq}"))
}

/// The packet quoted in an error: protocol, destination, transport port.
fn unreachable_v4(code: u8, bytes: &[u8]) -> String {
    let Some(dst) = chunk::<4>(bytes, 24).map(Ipv4Addr::from) else {
        return format!("unreachable, code {code}");
    };
    let protocol = Protocol(byte(bytes, 17).unwrap_or_default());
    match code {
        0 => format!("net {dst} unreachable"),
        1 => format!("host {dst} unreachable"),
        2 => format!("{dst} protocol {} unreachable", protocol.0),
        3 => {
            let header_len = usize::from(byte(bytes, 8).unwrap_or_default() & 0xf) * 4;
            match (half(bytes, 8 + header_len + 2), transport(protocol)) {
                (Some(port), Some(name)) => format!("{dst} {name} port {port} unreachable"),
                (Some(port), None) => {
                    format!("{dst} protocol {} port {port} unreachable", protocol.0)
                }
                (None, _) => format!("{dst} protocol {} port unreachable", protocol.0),
            }
        }
        4 => match half(bytes, 6) {
            Some(mtu) if mtu > 0 => format!("{dst} unreachable - need to frag (mtu {mtu})"),
            _ => format!("{dst} unreachable - need to frag"),
        },
        5 => format!("{dst} unreachable - source route failed"),
        6 => format!("net {dst} unreachable - unknown"),
        7 => format!("host {dst} unreachable - unknown"),
        8 => format!("{dst} unreachable - source host isolated"),
        9 => format!("net {dst} unreachable - admin prohibited"),
        10 => format!("host {dst} unreachable - admin prohibited"),
        11 => format!("net {dst} unreachable - tos prohibited"),
        12 => format!("host {dst} unreachable - tos prohibited"),
        13 => format!("host {dst} unreachable - admin prohibited filter"),
        14 => format!("host {dst} unreachable - host precedence violation"),
        15 => format!("host {dst} unreachable - precedence cutoff"),
        code => format!("{dst} unreachable, code {code}"),
    }
}

fn transport(protocol: Protocol) -> Option<&'static str> {
    match protocol {
        Protocol::TCP => Some("tcp"),
        Protocol::UDP => Some("udp"),
        _ => None,
    }
}

pub(super) fn v6(carried: &Carried<'_>) -> Option<String> {
    let bytes = carried.bytes;
    let (kind, code) = (byte(bytes, 0)?, byte(bytes, 1)?);
    let ip = |at| chunk::<16>(bytes, at).map(Ipv6Addr::from);
    let what = match kind {
        1 => unreachable_v6(code, bytes)?,
        2 => format!("packet too big, mtu {}", word(bytes, 4)?),
        3 => match (code, ip(32)) {
            (0, Some(dst)) => format!("time exceeded in-transit for {dst}"),
            (0, None) => "time exceeded in-transit".to_owned(),
            (1, _) => "time exceeded in-transit (reassembly)".to_owned(),
            (code, _) => format!("time exceeded in-transit, unknown code ({code})"),
        },
        4 => {
            let octet = word(bytes, 4)?;
            let what = match code {
                0 => "erroneous".to_owned(),
                1 => "next header".to_owned(),
                2 => "option".to_owned(),
                3 => "incomplete header chain".to_owned(),
                code => format!("code-#{code}"),
            };
            format!("parameter problem, {what} - octet {octet}")
        }
        128 => echo("request", bytes)?,
        129 => echo("reply", bytes)?,
        130 => listener_query(carried)?,
        131 => format!("multicast listener report {}", listener(bytes)?),
        132 => format!("multicast listener done {}", listener(bytes)?),
        133 => "router solicitation".to_owned(),
        134 => "router advertisement".to_owned(),
        135 => format!("neighbor solicitation, who has {}", ip(8)?),
        136 => format!("neighbor advertisement, tgt is {}", ip(8)?),
        137 => format!("redirect, {} to {}", ip(24)?, ip(8)?),
        138 => "router renumbering".to_owned(),
        139 => "node information query".to_owned(),
        140 => "node information reply".to_owned(),
        144 => format!("ha discovery request, id {:#06x}", half(bytes, 4)?),
        145 => format!("ha discovery reply, id {:#06x}", half(bytes, 4)?),
        146 => format!("mobile router solicitation, id {:#06x}", half(bytes, 4)?),
        147 => format!("mobile router advertisement, id {:#06x}", half(bytes, 4)?),
        155 => {
            let what = match code & 0x7f {
                0 => "DODAG Information Solicitation".to_owned(),
                1 => "DODAG Information Object".to_owned(),
                2 => "Destination Advertisement Object".to_owned(),
                3 => "Destination Advertisement Object Ack".to_owned(),
                code => format!("code {code:#04x}"),
            };
            let secured = if code & 0x80 == 0 { "CLR" } else { "SEC" };
            format!("RPL, ({secured}){what}")
        }
        143 => {
            let groups = half(bytes, 6)?;
            format!("multicast listener report v2, {groups} group record(s)")
        }
        _ => format!("unknown type ({kind})"),
    };
    Some(described(carried, &format!("ICMPv6 {what}")))
}

/// The longest wait for an answer, and the group (RFC 2710).
fn listener(bytes: &[u8]) -> Option<String> {
    let (delay, group) = (half(bytes, 4)?, chunk::<16>(bytes, 8)?);
    let group = Ipv6Addr::from(group);
    Some(format!("max resp delay: {delay} addr: {group}"))
}

/// A query of MLD; one of version 2 is longer (RFC 3810 section 5.1).
fn listener_query(carried: &Carried<'_>) -> Option<String> {
    let bytes = carried.bytes;
    if carried.len < 28 {
        return Some(format!("multicast listener query {}", listener(bytes)?));
    }
    let group = Ipv6Addr::from(chunk::<16>(bytes, 8)?);
    let sources = match half(bytes, 26)? {
        0 => String::new(),
        sources => format!(", {sources} source(s)"),
    };
    Some(format!(
        "multicast listener query v2 [gaddr {group}{sources}]"
    ))
}

fn unreachable_v6(code: u8, bytes: &[u8]) -> Option<String> {
    let Some(dst) = chunk::<16>(bytes, 32).map(Ipv6Addr::from) else {
        return Some(format!("destination unreachable, code {code}"));
    };
    let why = match code {
        0 => "unreachable route",
        1 => "unreachable prohibited",
        2 => {
            let src = chunk::<16>(bytes, 16).map(Ipv6Addr::from)?;
            return Some(format!(
                "destination unreachable, beyond scope {dst}, source address {src}"
            ));
        }
        3 => "unreachable address",
        4 => {
            let protocol = Protocol(byte(bytes, 14).unwrap_or_default());
            return Some(match (half(bytes, 50), transport(protocol)) {
                (Some(port), Some(name)) => {
                    format!("destination unreachable, unreachable port, {dst} {name} port {port}")
                }
                _ => format!("destination unreachable, unreachable port, {dst}"),
            });
        }
        _ => {
            return Some(format!(
                "destination unreachable, unknown unreach code ({code}) {dst}"
            ));
        }
    };
    Some(format!("destination unreachable, {why} {dst}"))
}
