//! DNS messages (RFC 1035), abbreviated as by tcpdump.

use super::{byte, chunk, half, harmless};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Largest number of records shown of one message.
const RECORDS_MAX: usize = 32;
/// Largest number of character strings shown of one TXT record.
const TEXTS_MAX: usize = 16;
/// Flags that have no meaning in a query: all but QR, opcode, RD, AD and CD.
const ODD_IN_QUERY: u16 = 0x06cf;
/// The opcode IQUERY.
const INVERSE_QUERY: u16 = 1;
/// Largest number of bytes of a name (RFC 1035 section 2.3.4).
const NAME_MAX: usize = 255;
/// Largest number of labels and compression pointers in one name.
const LABELS_MAX: usize = 128;
const JUMPS_MAX: usize = 16;

/// Questions or answers; with `is_multicast` (mDNS) one bit of the class has a
/// special meaning (RFC 6762 section 5.4).
pub(super) fn message(bytes: &[u8], is_multicast: bool) -> Option<String> {
    let (id, flags) = (half(bytes, 0)?, half(bytes, 2)?);
    let counts = [4, 6, 8, 10].map(|at| half(bytes, at));
    let [
        Some(questions),
        Some(answers),
        Some(authorities),
        Some(more),
    ] = counts
    else {
        return None;
    };
    let set = |bit: u16, mark: &'static str| if flags & bit != 0 { mark } else { "" };
    let mut text = id.to_string() + &opcode(flags >> 11 & 0xf);
    let is_answer = flags & 0x8000 != 0;
    let mut at = 12;
    if is_answer {
        text += &rcode(flags & 0xf);
        text += set(0x0400, "*");
        text += if flags & 0x0080 == 0 { "-" } else { "" };
        text += set(0x0200, "|");
        text += set(0x0020, "$");
        if questions != 1 {
            let _ = write!(text, " [{questions}q]");
        }
        for _ in 0..questions.min(RECORDS_MAX as u16) {
            at = name(bytes, at)?.1 + 4;
        }
        let _ = write!(text, " {answers}/{authorities}/{more}");
        for number in 0..usize::from(answers).min(RECORDS_MAX) {
            let Some((record, next)) = record(bytes, at) else {
                break;
            };
            text += if number == 0 { " " } else { ", " };
            text += &record;
            at = next;
        }
        return Some(text);
    }
    text += set(0x0100, "+");
    text += set(0x0010, "%");
    if flags & ODD_IN_QUERY != 0 {
        let _ = write!(text, " [b2&3={flags:#x}]");
    }
    // An inverse query has an answer in place of a question.
    let (usual_questions, usual_answers) = match flags >> 11 & 0xf {
        INVERSE_QUERY => (0, 1),
        _ => (1, 0),
    };
    if questions != usual_questions {
        let _ = write!(text, " [{questions}q]");
    }
    for (count, usual, unit) in [
        (answers, usual_answers, "a"),
        (authorities, 0, "n"),
        (more, 0, "au"),
    ] {
        if count != usual {
            let _ = write!(text, " [{count}{unit}]");
        }
    }
    for _ in 0..usize::from(questions).min(RECORDS_MAX) {
        let Some((name, next)) = name(bytes, at) else {
            break;
        };
        let (Some(kind), Some(class)) = (half(bytes, next), half(bytes, next + 2)) else {
            break;
        };
        text.push(' ');
        let how = match (is_multicast, class & 0x8000 != 0) {
            (true, true) => " (QU)",
            (true, false) => " (QM)",
            (false, _) => "",
        };
        let class = match class & 0x7fff {
            1 => String::new(),
            class => format!(" {}", class_name(class)),
        };
        let _ = write!(text, "{}{class}{how}? {name}", kind_name(kind));
        at = next + 4;
    }
    Some(text)
}

fn opcode(number: u16) -> String {
    match number {
        0 => "",
        1 => " inv_q",
        2 => " stat",
        4 => " notify",
        5 => " update",
        number => return format!(" op{number}"),
    }
    .to_owned()
}

fn rcode(number: u16) -> String {
    match number {
        0 => "",
        1 => " FormErr",
        2 => " ServFail",
        3 => " NXDomain",
        4 => " NotImp",
        5 => " Refused",
        6 => " YXDomain",
        7 => " YXRRSet",
        8 => " NXRRSet",
        9 => " NotAuth",
        10 => " NotZone",
        15 => " NoChange",
        number => return format!(" Resp{number}"),
    }
    .to_owned()
}

fn class_name(class: u16) -> String {
    match class {
        2 => "CS",
        3 => "CHAOS",
        4 => "HS",
        255 => "ANY",
        class => return format!("(Class {class})"),
    }
    .to_owned()
}

fn kind_name(kind: u16) -> String {
    match kind {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        10 => "NULL",
        12 => "PTR",
        13 => "HINFO",
        15 => "MX",
        16 => "TXT",
        17 => "RP",
        18 => "AFSDB",
        24 => "SIG",
        25 => "KEY",
        28 => "AAAA",
        29 => "LOC",
        32 => "NIMLOC",
        33 => "SRV",
        35 => "NAPTR",
        36 => "KX",
        37 => "CERT",
        39 => "DNAME",
        41 => "OPT",
        43 => "DS",
        44 => "SSHFP",
        45 => "IPSECKEY",
        46 => "RRSIG",
        47 => "NSEC",
        48 => "DNSKEY",
        50 => "NSEC3",
        51 => "NSEC3PARAM",
        52 => "TLSA",
        53 => "SMIMEA",
        59 => "CDS",
        60 => "CDNSKEY",
        61 => "OPENPGPKEY",
        62 => "CSYNC",
        64 => "SVCB",
        65 => "HTTPS",
        99 => "SPF",
        100 => "UINFO",
        108 => "EUI48",
        249 => "TKEY",
        250 => "TSIG",
        251 => "IXFR",
        252 => "AXFR",
        253 => "MAILB",
        254 => "MAILA",
        255 => "ANY",
        256 => "URI",
        257 => "CAA",
        _ => return format!("Type{kind}"),
    }
    .to_owned()
}

/// A name with its final dot, and the offset behind it.
pub(crate) fn name(bytes: &[u8], start: usize) -> Option<(String, usize)> {
    let (mut text, mut at, mut behind) = (String::new(), start, None);
    let (mut jumps, mut name_len) = (0, 0);
    for _ in 0..LABELS_MAX {
        let len = byte(bytes, at)?;
        match len {
            0 => {
                let text = if text.is_empty() {
                    ".".to_owned()
                } else {
                    text
                };
                return Some((text, behind.unwrap_or(at + 1)));
            }
            1..0x40 => {
                let label = bytes.get(at + 1..at + 1 + usize::from(len))?;
                name_len += label.len() + 1;
                if name_len > NAME_MAX {
                    return None;
                }
                text += &harmless(label);
                text.push('.');
                at += 1 + usize::from(len);
            }
            0xc0.. => {
                jumps += 1;
                if jumps > JUMPS_MAX {
                    return None;
                }
                behind = behind.or(Some(at + 2));
                at = usize::from(half(bytes, at)? & 0x3fff);
            }
            _ => return None,
        }
    }
    None
}

/// A resource record: type and data, and the offset of the next one.
fn record(bytes: &[u8], at: usize) -> Option<(String, usize)> {
    let (_, at) = name(bytes, at)?;
    let (kind, len) = (half(bytes, at)?, usize::from(half(bytes, at + 8)?));
    // OPT and TSIG use the class for other things; mDNS, its first bit.
    let class = match half(bytes, at + 2)? & 0x7fff {
        _ if [41, 250].contains(&kind) => String::new(),
        1 => String::new(),
        class => class_name(class) + " ",
    };
    let start = at + 10;
    let name_at = |at| name(bytes, at).map(|(name, _)| name);
    let data = match kind {
        1 => Some(Ipv4Addr::from(chunk::<4>(bytes, start)?).to_string()),
        28 => Some(Ipv6Addr::from(chunk::<16>(bytes, start)?).to_string()),
        2 | 5 | 12 | 39 => name_at(start),
        15 => Some(format!("{} {}", name_at(start + 2)?, half(bytes, start)?)),
        33 => {
            let part = |at| half(bytes, start + at);
            let (port, priority, weight) = (part(4)?, part(0)?, part(2)?);
            Some(format!(
                "{}:{port} {priority} {weight}",
                name_at(start + 6)?
            ))
        }
        16 => {
            let mut texts = Vec::new();
            let mut rest = bytes.get(start..start + len)?;
            while let Some((len, behind)) = rest.split_first() {
                if texts.len() >= TEXTS_MAX {
                    break;
                }
                let (text, behind) = behind.split_at_checked((*len).into())?;
                texts.push(format!("\"{}\"", harmless(text)));
                rest = behind;
            }
            Some(texts.join(" "))
        }
        _ => None,
    };
    let data = data.map_or_else(String::new, |data| format!(" {data}"));
    Some((class + &kind_name(kind) + &data, start + len))
}
