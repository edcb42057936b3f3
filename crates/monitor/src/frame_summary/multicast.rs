//! IGMP (RFC 3376, RFC 1112) with what else has its number (DVMRP, PIM version 1), and PIM (RFC 7761).

use super::ip::Carried;
use super::{byte, chunk, half};
use std::net::Ipv4Addr;

pub(super) fn igmp(carried: &Carried<'_>) -> Option<String> {
    let bytes = carried.bytes;
    let kind = byte(bytes, 0)?;
    let group = || chunk::<4>(bytes, 4).map(Ipv4Addr::from);
    let what = match kind {
        0x11 => query(bytes, carried.len, group()?)?,
        0x12 => format!("v1 report {}", group()?),
        0x16 => format!("v2 report {}", group()?),
        0x17 => format!("leave {}", group()?),
        0x22 => format!("v3 report, {} group record(s)", half(bytes, 6)?),
        0x13 => {
            let code = byte(bytes, 1)?;
            let name = match code {
                1 => "Probe",
                2 => "Report",
                3 => "Neighbor-query",
                4 => "Neighbors",
                5 => "Neighbor-query2",
                6 => "Neighbors2",
                7 => "Prune",
                8 => "Graft",
                9 => "Graft-ACK",
                _ => "code",
            };
            format!("dvmrp {name}")
        }
        0x14 => {
            let code = byte(bytes, 1)?;
            let name = match code {
                0 => match byte(bytes, 8).map(|modes| modes >> 4) {
                    Some(0) => "Query Dense-mode",
                    Some(1) => "Query Sparse-mode",
                    Some(2) => "Query Sparse-Dense-mode",
                    _ => "Query",
                },
                1 => "Register",
                2 => "Register-Stop",
                3 => "Join/Prune",
                4 => "RP-Reachable",
                5 => "Assert",
                6 => "Graft",
                7 => "Graft-ACK",
                8 => "Mode",
                _ => "type",
            };
            format!("pimv1 {name}")
        }
        0x1e => "mtrace response".to_owned(),
        0x1f => "mtrace query".to_owned(),
        kind => format!("type {kind:#04x}"),
    };
    let Carried { src, dst, .. } = carried;
    Some(format!("{src} > {dst} igmp {what}"))
}

fn query(bytes: &[u8], len: usize, group: Ipv4Addr) -> Option<String> {
    let code = byte(bytes, 1)?;
    if len < 12 {
        let version = if code == 0 { "v1" } else { "v2" };
        // In tenths of a second; 10 s unless stated otherwise.
        let time = match code {
            0 | 100 => String::new(),
            tenths => format!(" [max resp time {tenths}]"),
        };
        let group = if group.is_unspecified() {
            String::new()
        } else {
            format!(" [gaddr {group}]")
        };
        return Some(format!("query {version}{time}{group}"));
    }
    // Beyond 127 a number with an exponent (RFC 3376 section 4.1.1).
    let tenths = match u32::from(code) {
        code @ 0..128 => code,
        code => (code & 0xf | 0x10) << ((code >> 4 & 7) + 3),
    };
    let time = match tenths {
        100 => String::new(),
        tenths if tenths < 10 => format!(" [max resp time {}ms]", tenths * 100),
        tenths => format!(" [max resp time {}.{}s]", tenths / 10, tenths % 10),
    };
    let sources = half(bytes, 10)?;
    let group = match (group.is_unspecified(), sources) {
        (true, 0) => String::new(),
        (_, 0) => format!(" [gaddr {group}]"),
        (_, sources) => format!(" [gaddr {group}, {sources} source(s)]"),
    };
    Some(format!("query v3{time}{group}"))
}

pub(super) fn pim(bytes: &[u8], len: usize) -> Option<String> {
    let first = byte(bytes, 0)?;
    let version = first >> 4;
    let name = match first & 0xf {
        0 => "Hello".to_owned(),
        1 => "Register".to_owned(),
        2 => "Register Stop".to_owned(),
        3 => "Join / Prune".to_owned(),
        4 => "Bootstrap".to_owned(),
        5 => "Assert".to_owned(),
        6 => "Graft".to_owned(),
        7 => "Graft-ACK".to_owned(),
        8 => "Candidate RP Advertisement".to_owned(),
        9 => "State Refresh".to_owned(),
        10 => "DF Election".to_owned(),
        kind => format!("type {kind}"),
    };
    Some(format!("PIMv{version}, {name}, length {len}"))
}
