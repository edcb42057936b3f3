//! DHCP of IPv4 (RFC 2131) and of IPv6 (RFC 8415).

use super::{byte, chunk, word};
use std::net::Ipv4Addr;
use weir_wire::ethernet::Address;

/// Largest number of options that are parsed.
const OPTIONS_MAX: usize = 64;

pub(super) fn v4(payload: &[u8]) -> Option<String> {
    /// Offset of the options, behind the magic cookie.
    const OPTIONS: usize = 240;
    const COOKIE: u32 = 0x6382_5363;
    const REQUESTED: u8 = 50;
    const MESSAGE: u8 = 53;
    let what = match byte(payload, 0)? {
        1 => "Request from",
        2 => "Reply to",
        _ => return None,
    };
    let client = Address(chunk(payload, 28)?);
    let mut text = String::from("DHCP");
    let mut requested = None;
    if word(payload, 236) == Some(COOKIE) {
        let mut rest = payload.get(OPTIONS..)?;
        for _ in 0..OPTIONS_MAX {
            let Some(kind) = byte(rest, 0).filter(|kind| *kind != 255) else {
                break;
            };
            if kind == 0 {
                rest = &rest[1..];
                continue;
            }
            let Some(len) = byte(rest, 1).map(usize::from) else {
                break;
            };
            let Some(value) = rest.get(2..2 + len) else {
                break;
            };
            match (kind, value) {
                (MESSAGE, [number]) => text += message_name(*number),
                (REQUESTED, _) => requested = chunk::<4>(value, 0).map(Ipv4Addr::from),
                _ => {}
            }
            rest = &rest[2 + len..];
        }
    } else {
        text = "BOOTP".to_owned();
    }
    text += &format!(", {what} {client}");
    let yours = Ipv4Addr::from(chunk::<4>(payload, 16)?);
    if let Some(requested) = requested {
        text += &format!(", asks for {requested}");
    }
    if !yours.is_unspecified() {
        text += &format!(", gives {yours}");
    }
    Some(text)
}

fn message_name(number: u8) -> &'static str {
    match number {
        1 => " Discover",
        2 => " Offer",
        3 => " Request",
        4 => " Decline",
        5 => " ACK",
        6 => " NACK",
        7 => " Release",
        8 => " Inform",
        _ => "",
    }
}

pub(super) fn v6(payload: &[u8]) -> Option<String> {
    let name = match byte(payload, 0)? {
        1 => "solicit",
        2 => "advertise",
        3 => "request",
        4 => "confirm",
        5 => "renew",
        6 => "rebind",
        7 => "reply",
        8 => "release",
        9 => "decline",
        10 => "reconfigure",
        11 => "inf-req",
        12 => "relay-fwd",
        13 => "relay-reply",
        14 => "leasequery",
        15 => "leasequery-reply",
        16 => "leasequery-done",
        17 => "leasequery-data",
        18 => "reconfigure-request",
        19 => "reconfigure-reply",
        20 => "dhcp4-query",
        21 => "dhcp4-response",
        _ => return None,
    };
    let transaction = chunk::<4>(payload, 0).filter(|_| !name.starts_with("relay"));
    Some(match transaction {
        Some([_, a, b, c]) => format!("dhcp6 {name}, xid {a:02x}{b:02x}{c:02x}"),
        None => format!("dhcp6 {name}"),
    })
}
