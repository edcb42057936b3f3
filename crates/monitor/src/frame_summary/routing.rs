//! Routing and redundancy: OSPF (RFC 2328, RFC 5340), EIGRP (RFC 7868), RIP (RFC 2453), RIPng
//! (RFC 2080), BGP (RFC 4271), RSVP (RFC 2205), VRRP (RFC 9568), HSRP (RFC 2281), BFD (RFC 5880).

use super::ip::Carried;
use super::{byte, chunk, flag_names, half, word};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Largest number of routes or messages shown of one packet.
const ROUTES_MAX: usize = 32;

fn ipv4(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    chunk::<4>(bytes, at).map(Ipv4Addr::from)
}

pub(super) fn ospf(bytes: &[u8], len: usize) -> Option<String> {
    let (version, kind) = (byte(bytes, 0)?, byte(bytes, 1)?);
    let (router, area) = (ipv4(bytes, 4)?, ipv4(bytes, 8)?);
    let name = match kind {
        1 => "Hello",
        2 => "Database Description",
        3 => "LS-Request",
        4 => "LS-Update",
        5 => "LS-Ack",
        _ => "type",
    };
    let number = if name == "type" {
        format!(" {kind}")
    } else {
        String::new()
    };
    Some(format!(
        "OSPFv{version}, {name}{number}, router {router}, area {area}, length {len}"
    ))
}

pub(super) fn eigrp(bytes: &[u8], len: usize) -> Option<String> {
    let code = byte(bytes, 1)?;
    let name = match code {
        1 => "Update".to_owned(),
        2 => "Request".to_owned(),
        3 => "Query".to_owned(),
        4 => "Reply".to_owned(),
        5 => "Hello".to_owned(),
        6 => "IPX SAP".to_owned(),
        8 => "Ack".to_owned(),
        10 => "SIA Query".to_owned(),
        11 => "SIA Reply".to_owned(),
        code => format!("opcode {code}"),
    };
    let (system, seq, ack) = (half(bytes, 18)?, word(bytes, 8)?, word(bytes, 12)?);
    Some(format!(
        "EIGRP {name}, AS {system}, seq {seq}, ack {ack}, length {len}"
    ))
}

pub(super) fn rsvp(bytes: &[u8], len: usize) -> Option<String> {
    let name = match byte(bytes, 1)? {
        1 => "Path".to_owned(),
        2 => "Resv".to_owned(),
        3 => "PathErr".to_owned(),
        4 => "ResvErr".to_owned(),
        5 => "PathTear".to_owned(),
        6 => "ResvTear".to_owned(),
        7 => "ResvConf".to_owned(),
        12 => "Bundle".to_owned(),
        13 => "ACK".to_owned(),
        15 => "Summary Refresh".to_owned(),
        20 => "Hello".to_owned(),
        kind => format!("type {kind}"),
    };
    let version = byte(bytes, 0)? >> 4;
    Some(format!("RSVPv{version} {name} Message, length {len}"))
}

/// Command, and the routes of the packet.
pub(super) fn rip(payload: &[u8]) -> Option<String> {
    let (command, version) = (byte(payload, 0)?, byte(payload, 1)?);
    let name = match command {
        1 => "Request".to_owned(),
        2 => "Response".to_owned(),
        9 => "Update Request".to_owned(),
        10 => "Update Response".to_owned(),
        command => format!("command {command}"),
    };
    let mut text = format!("RIPv{version}, {name}, length {}", payload.len());
    for entry in payload.get(4..)?.chunks_exact(20).take(ROUTES_MAX) {
        let (family, metric) = (half(entry, 0)?, word(entry, 16)?);
        let (net, mask) = (ipv4(entry, 4)?, word(entry, 8)?);
        match (family, version) {
            (2, 1) => text += &format!(", {net} ({metric})"),
            (2, _) => text += &format!(", {net}/{} ({metric})", mask.leading_ones()),
            (0, _) if command == 1 => text += ", dump",
            _ => {}
        }
    }
    Some(text)
}

pub(super) fn ripng(payload: &[u8]) -> Option<String> {
    let name = match byte(payload, 0)? {
        1 => "ripng-req",
        2 => "ripng-resp",
        _ => return None,
    };
    let entries = payload.get(4..)?.chunks_exact(20);
    let mut text = format!("{name} {}", entries.len());
    for entry in entries.take(ROUTES_MAX) {
        let net = Ipv6Addr::from(chunk::<16>(entry, 0)?);
        let (len, metric) = (byte(entry, 18)?, byte(entry, 19)?);
        text += &match (metric, len) {
            (16, 0) if name == "ripng-req" && net.is_unspecified() => ", dump".to_owned(),
            (0xff, _) => format!(", next hop {net}"),
            _ => format!(", {net}/{len} ({metric})"),
        };
    }
    Some(text)
}

/// The names of a segment's messages, as far as they begin in it.
pub(super) fn bgp(payload: &[u8]) -> Option<String> {
    const HEADER_LEN: usize = 19;
    let mut text = String::from("BGP");
    let mut rest = payload;
    for number in 0..ROUTES_MAX {
        if !rest.starts_with(&[0xff; 16]) {
            break;
        }
        let (Some(len), Some(kind)) = (half(rest, 16), byte(rest, 18)) else {
            break;
        };
        text += if number == 0 { " " } else { ", " };
        text += &match kind {
            1 => bgp_open(rest).unwrap_or("Open".to_owned()),
            2 => "Update".to_owned(),
            3 => match (byte(rest, 19), byte(rest, 20)) {
                (Some(code), Some(subcode)) => format!("Notification {code}/{subcode}"),
                _ => "Notification".to_owned(),
            },
            4 => "Keepalive".to_owned(),
            5 => "Route Refresh".to_owned(),
            kind => format!("message {kind}"),
        };
        let len = usize::from(len).max(HEADER_LEN);
        let Some(behind) = rest.get(len..) else {
            break;
        };
        rest = behind;
    }
    Some(text)
}

fn bgp_open(message: &[u8]) -> Option<String> {
    let (system, hold) = (half(message, 20)?, half(message, 22)?);
    let id = ipv4(message, 24)?;
    Some(format!("Open AS {system} id {id} hold {hold}s"))
}

/// VRRP, and CARP (version 2 with a hash of 20 bytes, of BSD).
pub(super) fn vrrp(carried: &Carried<'_>) -> Option<String> {
    let (bytes, len) = (carried.bytes, carried.len);
    let first = byte(bytes, 0)?;
    let (version, kind) = (first >> 4, first & 0xf);
    let (id, priority, count) = (byte(bytes, 1)?, byte(bytes, 2)?, byte(bytes, 3)?);
    let name = match kind {
        1 => "Advertisement".to_owned(),
        kind => format!("type {kind}"),
    };
    let timing = match version {
        2 => {
            let (auth, interval) = (byte(bytes, 4)?, byte(bytes, 5)?);
            let auth = match auth {
                0 => "none".to_owned(),
                1 => "simple".to_owned(),
                2 => "ah".to_owned(),
                auth => auth.to_string(),
            };
            format!("authtype {auth}, intvl {interval}s")
        }
        _ => format!("intvl {}cs", half(bytes, 4)? & 0xfff),
    };
    // A packet from beyond the link has a lower one.
    let ttl = match carried.ttl {
        255 => String::new(),
        ttl => format!("(ttl {ttl}), "),
    };
    let mut text =
        format!("VRRPv{version}, {name}, {ttl}vrid {id}, prio {priority}, {timing}, length {len}");
    for number in 0..usize::from(count).min(ROUTES_MAX) {
        let address = if carried.src.is_ipv4() {
            ipv4(bytes, 8 + 4 * number).map(|address| address.to_string())
        } else {
            chunk::<16>(bytes, 8 + 16 * number).map(|address| Ipv6Addr::from(address).to_string())
        };
        let Some(address) = address else {
            break;
        };
        text += &format!(", {address}");
    }
    Some(text)
}

pub(super) fn hsrp(payload: &[u8]) -> Option<String> {
    let (version, code, state) = (byte(payload, 0)?, byte(payload, 1)?, byte(payload, 2)?);
    let (priority, group) = (byte(payload, 5)?, byte(payload, 6)?);
    let name = match code {
        0 => "hello",
        1 => "coup",
        2 => "resign",
        _ => "op",
    };
    let state = match state {
        0 => "initial".to_owned(),
        1 => "learn".to_owned(),
        2 => "listen".to_owned(),
        4 => "speak".to_owned(),
        8 => "standby".to_owned(),
        16 => "active".to_owned(),
        state => state.to_string(),
    };
    let (address, len) = (ipv4(payload, 16)?, payload.len());
    Some(format!(
        "HSRPv{version}-{name}, state={state}, group={group}, addr={address}, prio {priority}, \
         length {len}"
    ))
}

/// A control packet; the echo's content is the sender's own.
pub(super) fn bfd(payload: &[u8], port: u16) -> Option<String> {
    /// Transport ports (RFC 5881, RFC 5883).
    const ECHO: u16 = 3785;
    const MULTIHOP: u16 = 4784;
    const STATES: [&str; 4] = ["AdminDown", "Down", "Init", "Up"];
    const FLAGS: [(u8, &str); 6] = [
        (0x20, "Poll"),
        (0x10, "Final"),
        (0x08, "Control Plane Independent"),
        (0x04, "Authentication Present"),
        (0x02, "Demand"),
        (0x01, "Multipoint"),
    ];
    const DIAGNOSTICS: [&str; 9] = [
        "No Diagnostic",
        "Control Detection Time Expired",
        "Echo Function Failed",
        "Neighbor Signaled Session Down",
        "Forwarding Plane Reset",
        "Path Down",
        "Concatenated Path Down",
        "Administratively Down",
        "Reverse Concatenated Path Down",
    ];
    let len = payload.len();
    let kind = match port {
        ECHO => return Some(format!("BFD, Echo, length {len}")),
        MULTIHOP => "Multihop",
        _ => "Control",
    };
    let (first, second) = (byte(payload, 0)?, byte(payload, 1)?);
    let (version, diagnostic) = (first >> 5, first & 0x1f);
    let state = STATES[usize::from(second >> 6)];
    let flags = flag_names(second & 0x3f, &FLAGS);
    let why = DIAGNOSTICS
        .get(usize::from(diagnostic))
        .unwrap_or(&"Unknown");
    let (mine, yours) = (word(payload, 4)?, word(payload, 8)?);
    Some(format!(
        "BFDv{version}, {kind}, State {state}, Flags [{flags}], Diagnostic {why} \
         ({diagnostic:#04x}), discriminators {mine:#010x} {yours:#010x}, length {len}"
    ))
}

/// OLSR (RFC 3626): the packet's sequence number.
pub(super) fn olsr(payload: &[u8], is_v6: bool) -> Option<String> {
    let (len, seq) = (half(payload, 0)?, half(payload, 2)?);
    let version = if is_v6 { 6 } else { 4 };
    Some(format!("OLSRv{version}, seq {seq:#06x}, length {len}"))
}

/// MSDP (RFC 3618): the types of the messages.
pub(super) fn msdp(payload: &[u8]) -> Option<String> {
    let name = match byte(payload, 0)? {
        1 => "SA",
        2 => "SA-Request",
        3 => "SA-Response",
        4 => "Keepalive",
        5 => "Notification",
        kind => return Some(format!("MSDP type {kind}")),
    };
    Some(format!("MSDP {name}"))
}
