//! ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443), with neighbour discovery
//! (RFC 4861) and MLD (RFC 3810); and IGMP (RFC 3376).

use super::ip::Carried;
use super::{byte, chunk, half, word};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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
            let what = ["net", "host", "tos net", "tos host"];
            let what = what.get(usize::from(code)).copied().unwrap_or("route");
            match (ip(24), ip(4)) {
                (Some(to), Some(router)) => format!("redirect {to} to {what} {router}"),
                _ => "redirect".to_owned(),
            }
        }
        9 => "router advertisement".to_owned(),
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
        13 => "time stamp query".to_owned(),
        14 => "time stamp reply".to_owned(),
        _ => format!("type-#{kind}"),
    };
    Some(described(carried, &format!("ICMP {what}")))
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
        9 => format!("host {dst} unreachable - net admin prohibited"),
        10 => format!("host {dst} unreachable - admin prohibited"),
        13 => format!("host {dst} unreachable - admin prohibited filter"),
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
        1 => unreachable_v6(code, bytes),
        2 => format!("packet too big, mtu {}", word(bytes, 4)?),
        3 => match ip(32) {
            Some(dst) if code == 0 => format!("time exceeded in-transit for {dst}"),
            Some(_) => "ip reassembly time exceeded".to_owned(),
            None => "time exceeded".to_owned(),
        },
        4 => "parameter problem".to_owned(),
        128 => echo("request", bytes)?,
        129 => echo("reply", bytes)?,
        130 => "multicast listener query".to_owned(),
        131 => format!("multicast listener report {}", ip(8)?),
        132 => format!("multicast listener done {}", ip(8)?),
        133 => "router solicitation".to_owned(),
        134 => "router advertisement".to_owned(),
        135 => format!("neighbor solicitation, who has {}", ip(8)?),
        136 => format!("neighbor advertisement, tgt is {}", ip(8)?),
        137 => format!("redirect, {} to {}", ip(24)?, ip(8)?),
        143 => {
            let groups = half(bytes, 6)?;
            format!("multicast listener report v2, {groups} group record(s)")
        }
        _ => format!("type-#{kind}"),
    };
    Some(described(carried, &format!("ICMPv6 {what}")))
}

fn unreachable_v6(code: u8, bytes: &[u8]) -> String {
    let Some(dst) = chunk::<16>(bytes, 32).map(Ipv6Addr::from) else {
        return format!("destination unreachable, code {code}");
    };
    let why = match code {
        0 => "unreachable route",
        1 => "unreachable prohibited",
        2 => "beyond scope",
        3 => "unreachable address",
        4 => {
            let protocol = Protocol(byte(bytes, 14).unwrap_or_default());
            return match (half(bytes, 50), transport(protocol)) {
                (Some(port), Some(name)) => {
                    format!("destination unreachable, unreachable port, {dst} {name} port {port}")
                }
                _ => format!("destination unreachable, unreachable port, {dst}"),
            };
        }
        _ => return format!("destination unreachable, code {code}, {dst}"),
    };
    format!("destination unreachable, {why} {dst}")
}

pub(super) fn igmp(carried: &Carried<'_>) -> Option<String> {
    let bytes = carried.bytes;
    let group = IpAddr::from(chunk::<4>(bytes, 4)?);
    let what = match byte(bytes, 0)? {
        0x11 => {
            let version = match (carried.len, byte(bytes, 1)?) {
                (12.., _) => "v3",
                (_, 0) => "v1",
                _ => "v2",
            };
            if group.is_unspecified() {
                format!("query {version}")
            } else {
                format!("query {version} [gaddr {group}]")
            }
        }
        0x12 => format!("v1 report {group}"),
        0x16 => format!("v2 report {group}"),
        0x17 => format!("leave {group}"),
        0x22 => format!("v3 report, {} group record(s)", half(bytes, 6)?),
        kind => format!("type {kind:#04x}"),
    };
    let Carried { src, dst, .. } = carried;
    Some(format!("{src} > {dst} igmp {what}"))
}
