//! ICMP (RFC 792) and ICMPv6 (RFC 4443, RFC 4861).

use super::fields::named;
use super::{Claim, Fields, Next, View};

pub(super) const V4: View = View {
    name: "ICMP",
    claims: &[Claim::Ip(1)],
    looks_like: None,
    decode: v4,
};

pub(super) const V6: View = View {
    name: "ICMPv6",
    claims: &[Claim::Ip(58)],
    looks_like: None,
    decode: v6,
};

fn v4(fields: &mut Fields<'_>) -> Option<Next> {
    let kind = fields.byte(0)?;
    let name = match kind {
        0 => Some("echo reply"),
        3 => Some("destination unreachable"),
        4 => Some("source quench"),
        5 => Some("redirect"),
        8 => Some("echo request"),
        9 => Some("router advertisement"),
        10 => Some("router solicitation"),
        11 => Some("time exceeded"),
        12 => Some("parameter problem"),
        13 => Some("timestamp request"),
        14 => Some("timestamp reply"),
        _ => None,
    };
    let code = head(fields, kind, name)?;
    match kind {
        0 | 8 => echo(fields, name.unwrap_or_default()),
        3..=5 | 11 | 12 => {
            if kind == 3 {
                let why = match code {
                    0 => "network unreachable",
                    1 => "host unreachable",
                    2 => "protocol unreachable",
                    3 => "port unreachable",
                    4 => "fragmentation needed",
                    9..=13 => "prohibited",
                    _ => "destination unreachable",
                };
                fields.summary(why);
                if code == 4 {
                    fields.field(6..8, "MTU of the next hop", fields.half(6)?);
                }
            }
            if kind == 5 {
                fields.field(4..8, "Gateway", fields.ipv4(4)?);
            }
            // The packet that the message is about.
            Some(Next::Payload(8, [Some(Claim::EtherType(0x0800)), None]))
        }
        _ => Some(Next::Data(8)),
    }
}

fn v6(fields: &mut Fields<'_>) -> Option<Next> {
    let kind = fields.byte(0)?;
    let name = match kind {
        1 => Some("destination unreachable"),
        2 => Some("packet too big"),
        3 => Some("time exceeded"),
        4 => Some("parameter problem"),
        128 => Some("echo request"),
        129 => Some("echo reply"),
        130 => Some("multicast listener query"),
        131 => Some("multicast listener report"),
        132 => Some("multicast listener done"),
        133 => Some("router solicitation"),
        134 => Some("router advertisement"),
        135 => Some("neighbor solicitation"),
        136 => Some("neighbor advertisement"),
        137 => Some("redirect"),
        143 => Some("multicast listener report v2"),
        _ => None,
    };
    head(fields, kind, name)?;
    match kind {
        128 | 129 => echo(fields, name.unwrap_or_default()),
        1..=4 => {
            if kind == 2 {
                fields.field(4..8, "MTU", fields.word(4)?);
            }
            Some(Next::Payload(8, [Some(Claim::EtherType(0x86dd)), None]))
        }
        134 => {
            fields.field(4..5, "Hop limit", fields.byte(4)?);
            fields.field(6..8, "Router lifetime", format!("{} s", fields.half(6)?));
            options(fields, 16)
        }
        135 | 136 => {
            let target = fields.ipv6(8)?;
            fields.field(8..24, "Target", target);
            fields.summary(format!("{} {target}", name.unwrap_or_default()));
            options(fields, 24)
        }
        133 => options(fields, 8),
        _ => Some(Next::Data(8)),
    }
}

/// Type, code and checksum; returns the code.
fn head(fields: &mut Fields<'_>, kind: u8, name: Option<&str>) -> Option<u8> {
    fields.summary(name.map_or_else(|| format!("type {kind}"), str::to_owned));
    fields.field(0..1, "Type", named(kind, name));
    let code = fields.byte(1)?;
    fields.field(1..2, "Code", code);
    fields.field(2..4, "Checksum", format!("{:#06x}", fields.half(2)?));
    Some(code)
}

fn echo(fields: &mut Fields<'_>, name: &str) -> Option<Next> {
    let (id, sequence) = (fields.half(4)?, fields.half(6)?);
    fields.field(4..6, "Identifier", id);
    fields.field(6..8, "Sequence number", sequence);
    fields.summary(format!("{name}, id {id}, seq {sequence}"));
    Some(Next::Data(8))
}

/// Options of neighbor discovery (RFC 4861 section 4.6).
fn options(fields: &mut Fields<'_>, mut at: usize) -> Option<Next> {
    while at < fields.bytes().len() {
        let (kind, len) = (fields.byte(at)?, usize::from(fields.byte(at + 1)?) * 8);
        if len == 0 {
            return Some(Next::Data(at));
        }
        match kind {
            1 | 2 if len == 8 => {
                let name = ["Source station", "Target station"][usize::from(kind - 1)];
                fields.field(at..at + len, name, fields.mac(at + 2)?);
            }
            3 if len == 32 => {
                let prefix = format!("{}/{}", fields.ipv6(at + 16)?, fields.byte(at + 2)?);
                fields.field(at..at + len, "Prefix", prefix);
            }
            5 if len == 8 => fields.field(at..at + len, "MTU", fields.word(at + 4)?),
            _ => fields.field(
                at..at + len,
                format!("Option {kind}"),
                format!("{len} bytes"),
            ),
        }
        at += len;
    }
    Some(Next::End)
}
