//! DNS (RFC 1035), mDNS (RFC 6762), LLMNR (RFC 4795).

use super::fields::named;
use super::{Claim, Fields, Next, View, harmless};
use crate::frame_summary::{self, flag_names};

pub(super) const UDP: View = View {
    name: "DNS",
    claims: &[Claim::Udp(53), Claim::Udp(5353), Claim::Udp(5355)],
    looks_like: None,
    decode: |fields| message(fields, 0),
};

pub(super) const TCP: View = View {
    name: "DNS",
    claims: &[Claim::Tcp(53)],
    looks_like: None,
    decode: |fields| {
        let len = fields.half(0)?;
        fields.field(0..2, "Length", len);
        message(fields, 2)
    },
};

/// Largest number of records of one message.
const RECORDS_MAX: u16 = 200;

/// A message that begins at `start`, to which its compression pointers relate.
fn message(fields: &mut Fields<'_>, start: usize) -> Option<Next> {
    let (id, bits) = (fields.half(start)?, fields.half(start + 2)?);
    let is_answer = bits & 0x8000 != 0;
    let what = if is_answer { "answer" } else { "query" };
    fields.summary(format!("{what} {id}"));
    fields.field(start..start + 2, "Identifier", format!("{id:#06x}"));
    let names = [
        (0x8000, "answer"),
        (0x400, "authoritative"),
        (0x200, "truncated"),
        (0x100, "recursion desired"),
        (0x80, "recursion available"),
        (0x20, "authenticated"),
        (0x10, "checking disabled"),
    ];
    fields.field(
        start + 2..start + 4,
        "Flags",
        flag_names(bits.into(), &names),
    );
    let code = bits & 0xf;
    if is_answer {
        fields.field(
            start + 3..start + 4,
            "Response code",
            named(code, rcode(code)),
        );
    }
    let mut counts = [0; 4];
    for (number, name) in ["Questions", "Answers", "Authorities", "Additional"]
        .iter()
        .enumerate()
    {
        let at = start + 4 + 2 * number;
        counts[number] = fields.half(at)?;
        fields.field(at..at + 2, *name, counts[number]);
    }
    let mut at = start + 12;
    for number in 0..counts[0].min(RECORDS_MAX) {
        let (name, behind) = name(fields, start, at)?;
        let kind = fields.half(behind)?;
        let text = format!("{} {name}", kind_name(kind));
        if number == 0 {
            let failed = rcode(code).filter(|_| is_answer && code != 0);
            let failed = failed.map_or(String::new(), |code| format!(", {code}"));
            fields.summary(format!("{what} {id}: {text}{failed}"));
        }
        fields.field(at..behind + 4, "Question", text);
        at = behind + 4;
    }
    for (count, title) in [
        (counts[1], "Answer"),
        (counts[2], "Authority"),
        (counts[3], "Additional record"),
    ] {
        for _ in 0..count.min(RECORDS_MAX) {
            at = record(fields, start, at, title)?;
        }
    }
    fields.ends_at(at);
    Some(Next::End)
}

/// A resource record; returns where the next one begins.
fn record(fields: &mut Fields<'_>, start: usize, at: usize, title: &str) -> Option<usize> {
    let (owner, head) = name(fields, start, at)?;
    let (kind, len) = (fields.half(head)?, usize::from(fields.half(head + 8)?));
    let (data, end) = (head + 10, head + 10 + len);
    let value = match (kind, len) {
        (1, 4) => fields.ipv4(data)?.to_string(),
        (28, 16) => fields.ipv6(data)?.to_string(),
        (2 | 5 | 12, _) => name(fields, start, data)?.0,
        (15, _) => format!(
            "{} {}",
            fields.half(data)?,
            name(fields, start, data + 2)?.0
        ),
        (33, _) => format!(
            "{}:{}",
            name(fields, start, data + 6)?.0,
            fields.half(data + 4)?
        ),
        (16, _) => harmless(fields.slice(data, len)?),
        _ => format!("{len} bytes"),
    };
    fields.field(
        at..end,
        title,
        format!("{owner} {} {value}", kind_name(kind)),
    );
    // The pseudo-record of EDNS has other fields here (RFC 6891).
    if kind != 41 {
        let ttl = fields.word(head + 4)?;
        fields.under(|fields| {
            fields.field(head + 4..head + 8, "Time to live", format!("{ttl} s"));
            Some(())
        })?;
    }
    Some(end)
}

/// A name, and the offset behind it; the message begins at `start`.
fn name(fields: &Fields<'_>, start: usize, at: usize) -> Option<(String, usize)> {
    let message = fields.bytes().get(start..)?;
    let (name, behind) = frame_summary::dns::name(message, at.checked_sub(start)?)?;
    Some((name, start + behind))
}

fn rcode(code: u16) -> Option<&'static str> {
    Some(match code {
        0 => "no error",
        1 => "format error",
        2 => "server failure",
        3 => "no such name",
        4 => "not implemented",
        5 => "refused",
        _ => return None,
    })
}

fn kind_name(kind: u16) -> String {
    let name = match kind {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        41 => "OPT",
        43 => "DS",
        46 => "RRSIG",
        47 => "NSEC",
        48 => "DNSKEY",
        64 => "SVCB",
        65 => "HTTPS",
        252 => "AXFR",
        255 => "ANY",
        _ => return format!("TYPE{kind}"),
    };
    name.to_owned()
}
