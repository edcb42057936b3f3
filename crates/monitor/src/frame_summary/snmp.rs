//! SNMP (RFC 1157, RFC 3416, RFC 3412) in BER: community, PDU and variables, as far as they are not
//! encrypted.

use super::{chunk, flag_letters, harmless, hex};
use std::fmt::Write;
use std::net::Ipv4Addr;

/// Largest number of variables shown of one message, and of the parts of an object's identifier.
const VARIABLES_MAX: usize = 32;
const PARTS_MAX: usize = 128;

/// Types of BER and of SMI.
const INTEGER: u8 = 2;
const OCTETS: u8 = 4;
const NULL: u8 = 5;
const OBJECT: u8 = 6;
const SEQUENCE: u8 = 0x30;
const TRAP_V1: u8 = 0xa4;
const BULK: u8 = 0xa5;

/// An element: its type, its content as far as it was captured, its stated length, and what follows.
struct Element<'a> {
    kind: u8,
    content: &'a [u8],
    len: usize,
    rest: &'a [u8],
}

fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (kind, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match *first {
        len @ 0..=0x7f => (usize::from(len), rest),
        form @ 0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(form & 0x7f))?;
            let len = digits
                .iter()
                .fold(0, |sum, digit| sum << 8 | usize::from(*digit));
            (len, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at(len.min(rest.len()));
    Some(Element {
        kind: *kind,
        content,
        len,
        rest,
    })
}

/// The element if it is of that type.
fn of_kind(bytes: &[u8], kind: u8) -> Option<Element<'_>> {
    element(bytes).filter(|found| found.kind == kind)
}

fn integer(content: &[u8]) -> Option<i64> {
    let (first, rest) = content.split_first().filter(|_| content.len() <= 8)?;
    let first = i64::from(first.cast_signed());
    Some(
        rest.iter()
            .fold(first, |sum, byte| sum << 8 | i64::from(*byte)),
    )
}

fn unsigned(content: &[u8]) -> Option<u64> {
    let digits = content.strip_prefix(&[0]).unwrap_or(content);
    (digits.len() <= 8).then(|| {
        digits
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    })
}

pub(super) fn message(payload: &[u8]) -> Option<String> {
    let message = of_kind(payload, SEQUENCE)?;
    let version = of_kind(message.content, INTEGER)?;
    let name = match integer(version.content)? {
        0 => "v1",
        1 => "v2c",
        3 => return version_3(version.rest),
        _ => return None,
    };
    let community = of_kind(version.rest, OCTETS)?;
    let community_text = harmless(community.content);
    let pdu = pdu(community.rest)?;
    Some(format!("SNMP{name} C=\"{community_text}\" {pdu}"))
}

/// User and flags; the PDU if it is not encrypted.
fn version_3(bytes: &[u8]) -> Option<String> {
    const FLAGS: [(u8, &str); 3] = [(1, "a"), (2, "p"), (4, "r")];
    let header = of_kind(bytes, SEQUENCE)?;
    let id = of_kind(header.content, INTEGER)?;
    let size = of_kind(id.rest, INTEGER)?;
    let flags = *of_kind(size.rest, OCTETS)?.content.first()?;
    let parameters = of_kind(header.rest, OCTETS)?;
    let security = of_kind(parameters.content, SEQUENCE)?;
    let engine = of_kind(security.content, OCTETS)?;
    let boots = of_kind(engine.rest, INTEGER)?;
    let time = of_kind(boots.rest, INTEGER)?;
    let user = of_kind(time.rest, OCTETS)?;
    let marks = flag_letters(flags, &FLAGS);
    let mut text = format!("SNMPv3 F={marks} U=\"{}\"", harmless(user.content));
    match element(parameters.rest)? {
        scoped if scoped.kind == SEQUENCE => {
            let engine = of_kind(scoped.content, OCTETS)?;
            let context = of_kind(engine.rest, OCTETS)?;
            let (engine_id, name) = (hex(engine.content), harmless(context.content));
            let _ = write!(text, " E={engine_id} C=\"{name}\" {}", pdu(context.rest)?);
        }
        encrypted => {
            let _ = write!(text, " encrypted, length {}", encrypted.len);
        }
    }
    Some(text)
}

fn pdu(bytes: &[u8]) -> Option<String> {
    let pdu = element(bytes)?;
    let name = match pdu.kind {
        0xa0 => "GetRequest",
        0xa1 => "GetNextRequest",
        0xa2 => "GetResponse",
        0xa3 => "SetRequest",
        TRAP_V1 => "Trap",
        BULK => "GetBulk",
        0xa6 => "Inform",
        0xa7 => "V2Trap",
        0xa8 => "Report",
        _ => return None,
    };
    let mut text = format!("{name}({})", pdu.len);
    if pdu.kind == TRAP_V1 {
        return Some(text + &trap_v1(pdu.content).unwrap_or_default());
    }
    let _ = write!(text, "{}", request(&pdu).unwrap_or_default());
    Some(text)
}

/// A PDU of three numbers and variables.
fn request(pdu: &Element<'_>) -> Option<String> {
    let id = of_kind(pdu.content, INTEGER)?;
    let second = of_kind(id.rest, INTEGER)?;
    let third = of_kind(second.rest, INTEGER)?;
    let mut text = format!(" id {}", integer(id.content)?);
    let (status, index) = (integer(second.content)?, integer(third.content)?);
    match (pdu.kind, status) {
        (BULK, _) => text += &format!(" N={status} M={index}"),
        (_, 0) => {}
        _ => text += &format!(" {}@{index}", error_name(status)),
    }
    // A request has no values.
    let has_values = !matches!(pdu.kind, 0xa0 | 0xa1 | BULK);
    Some(text + &variables(third.rest, has_values))
}

fn error_name(status: i64) -> String {
    const NAMES: [&str; 19] = [
        "noError",
        "tooBig",
        "noSuchName",
        "badValue",
        "readOnly",
        "genErr",
        "noAccess",
        "wrongType",
        "wrongLength",
        "wrongEncoding",
        "wrongValue",
        "noCreation",
        "inconsistentValue",
        "resourceUnavailable",
        "commitFailed",
        "undoFailed",
        "authorizationError",
        "notWritable",
        "inconsistentName",
    ];
    let name = usize::try_from(status).ok().and_then(|at| NAMES.get(at));
    name.map_or_else(|| format!("error {status}"), |name| (*name).to_owned())
}

/// Enterprise, agent, what happened, when.
fn trap_v1(content: &[u8]) -> Option<String> {
    const ENTERPRISE_SPECIFIC: i64 = 6;
    let enterprise = of_kind(content, OBJECT)?;
    let agent = element(enterprise.rest)?;
    let generic = of_kind(agent.rest, INTEGER)?;
    let specific = of_kind(generic.rest, INTEGER)?;
    let time = element(specific.rest)?;
    let agent_address = Ipv4Addr::from(chunk::<4>(agent.content, 0)?);
    let what = match integer(generic.content)? {
        0 => "coldStart".to_owned(),
        1 => "warmStart".to_owned(),
        2 => "linkDown".to_owned(),
        3 => "linkUp".to_owned(),
        4 => "authenticationFailure".to_owned(),
        5 => "egpNeighborLoss".to_owned(),
        ENTERPRISE_SPECIFIC => format!("enterpriseSpecific s={}", integer(specific.content)?),
        other => format!("trap {other}"),
    };
    let (name, time_ticks) = (object(enterprise.content), unsigned(time.content)?);
    let variables = variables(time.rest, true);
    Some(format!(
        " {name} {agent_address} {what} {time_ticks}{variables}"
    ))
}

fn variables(bytes: &[u8], has_values: bool) -> String {
    let mut text = String::new();
    let Some(list) = of_kind(bytes, SEQUENCE) else {
        return text;
    };
    let mut rest = list.content;
    for _ in 0..VARIABLES_MAX {
        let Some(pair) = of_kind(rest, SEQUENCE) else {
            break;
        };
        let Some(name) = of_kind(pair.content, OBJECT) else {
            break;
        };
        let _ = write!(text, " {}", object(name.content));
        if has_values && let Some(value) = element(name.rest) {
            let _ = write!(text, "={}", value_text(&value));
        }
        rest = pair.rest;
    }
    text
}

fn value_text(value: &Element<'_>) -> String {
    let content = value.content;
    let number = |number: Option<u64>| number.map_or_else(|| hex(content), |it| it.to_string());
    match value.kind {
        INTEGER => integer(content).map_or_else(|| hex(content), |it| it.to_string()),
        OCTETS if content.iter().all(|byte| (b' '..=b'~').contains(byte)) => {
            format!("\"{}\"", harmless(content))
        }
        // As tcpdump writes them.
        OCTETS => hex(content)
            .as_bytes()
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).into_owned())
            .collect::<Vec<String>>()
            .join("_"),
        NULL => String::new(),
        OBJECT => object(content),
        0x40 => {
            chunk::<4>(content, 0).map_or_else(|| hex(content), |it| Ipv4Addr::from(it).to_string())
        }
        // Counter32, Gauge32, TimeTicks, Counter64.
        0x41..=0x43 | 0x46 => number(unsigned(content)),
        0x80 => "[noSuchObject]".to_owned(),
        0x81 => "[noSuchInstance]".to_owned(),
        0x82 => "[endOfMibView]".to_owned(),
        _ => hex(content),
    }
}

/// An object's identifier with a leading dot (X.690 section 8.19).
fn object(content: &[u8]) -> String {
    let mut text = String::new();
    let mut part = 0_u64;
    let mut is_first = true;
    for byte in content.iter().take(PARTS_MAX) {
        part = part << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        if is_first {
            let top = (part / 40).min(2);
            let _ = write!(text, ".{top}.{}", part - 40 * top);
            is_first = false;
        } else {
            let _ = write!(text, ".{part}");
        }
        part = 0;
    }
    text
}
