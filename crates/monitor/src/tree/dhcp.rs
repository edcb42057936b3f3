//! DHCP of IPv4 (RFC 2131, options of RFC 2132).

use super::fields::named;
use super::{Claim, Fields, Next, View, harmless};
use std::net::Ipv4Addr;

pub(super) const VIEW: View = View {
    name: "DHCP",
    claims: &[Claim::Udp(67), Claim::Udp(68)],
    looks_like: None,
    decode,
};

const COOKIE: u32 = 0x6382_5363;

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let operation = fields.byte(0)?;
    let name = match operation {
        1 => Some("request"),
        2 => Some("reply"),
        _ => None,
    };
    fields.summary(name.unwrap_or("unknown operation"));
    fields.field(0..1, "Operation", named(operation, name));
    fields.field(4..8, "Transaction", format!("{:#010x}", fields.word(4)?));
    fields.field(8..10, "Seconds", fields.half(8)?);
    fields.field(10..12, "Flags", format!("{:#06x}", fields.half(10)?));
    for (at, name) in [
        (12, "Client address"),
        (16, "Address given"),
        (20, "Next server"),
        (24, "Relay agent"),
    ] {
        fields.field(at..at + 4, name, fields.ipv4(at)?);
    }
    let client = fields.mac(28)?;
    fields.field(28..34, "Client station", client);
    if fields.word(236)? != COOKIE {
        return Some(Next::Data(236));
    }
    let mut at = 240;
    while let Some(kind) = fields.byte(at).filter(|kind| *kind != 255) {
        if kind == 0 {
            at += 1;
            continue;
        }
        let len = usize::from(fields.byte(at + 1)?);
        let value = fields.slice(at + 2, len)?;
        let (name, text) = option(kind, value);
        if kind == 53 {
            fields.summary(format!("{text}, {client}"));
        }
        fields.field(at..at + 2 + len, name, text);
        at += 2 + len;
    }
    Some(Next::End)
}

fn option(kind: u8, value: &[u8]) -> (String, String) {
    let word = || value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let seconds = || word().map_or_else(String::new, |word| format!("{word} s"));
    let (name, text) = match kind {
        1 => ("Subnet mask", addresses(value)),
        3 => ("Routers", addresses(value)),
        6 => ("DNS servers", addresses(value)),
        12 => ("Host name", harmless(value)),
        15 => ("Domain", harmless(value)),
        28 => ("Broadcast address", addresses(value)),
        42 => ("NTP servers", addresses(value)),
        50 => ("Requested address", addresses(value)),
        51 => ("Lease time", seconds()),
        53 => ("Message", message(value.first().copied().unwrap_or(0))),
        54 => ("Server", addresses(value)),
        55 => ("Requested options", list(value)),
        56 => ("Text", harmless(value)),
        58 => ("Renewal time", seconds()),
        59 => ("Rebinding time", seconds()),
        60 => ("Vendor class", harmless(value)),
        _ => return (format!("Option {kind}"), format!("{} bytes", value.len())),
    };
    (name.to_owned(), text)
}

fn addresses(value: &[u8]) -> String {
    let parts = value
        .chunks_exact(4)
        .filter_map(|part| part.first_chunk::<4>());
    let parts: Vec<String> = parts
        .map(|part| Ipv4Addr::from(*part).to_string())
        .collect();
    parts.join(", ")
}

fn list(value: &[u8]) -> String {
    let numbers: Vec<String> = value.iter().map(u8::to_string).collect();
    numbers.join(", ")
}

fn message(number: u8) -> String {
    let name = match number {
        1 => "Discover",
        2 => "Offer",
        3 => "Request",
        4 => "Decline",
        5 => "ACK",
        6 => "NAK",
        7 => "Release",
        8 => "Inform",
        _ => return format!("message {number}"),
    };
    name.to_owned()
}
