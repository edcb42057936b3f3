//! TCP (RFC 9293).

use super::fields::named;
use super::{Claim, Fields, Next, View};
use crate::frame_summary::flag_names;
use crate::services::service_name;

pub(super) const VIEW: View = View {
    name: "TCP",
    claims: &[Claim::Ip(6)],
    looks_like: None,
    decode,
};

const FLAGS: [(u32, &str); 9] = [
    (0x100, "AE"),
    (0x80, "CWR"),
    (0x40, "ECE"),
    (0x20, "URG"),
    (0x10, "ACK"),
    (0x08, "PSH"),
    (0x04, "RST"),
    (0x02, "SYN"),
    (0x01, "FIN"),
];

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let (src, dst) = (fields.half(0)?, fields.half(2)?);
    fields.summary(format!("{src} > {dst}"));
    fields.field(0..2, "Source port", named(src, service_name(src)));
    fields.field(2..4, "Destination port", named(dst, service_name(dst)));
    let seq = fields.word(4)?;
    fields.field(4..8, "Sequence number", seq);
    fields.field(8..12, "Acknowledgment number", fields.word(8)?);
    let bits = fields.half(12)?;
    let header_len = usize::from(bits >> 12) * 4;
    fields.field(12..13, "Header length", format!("{header_len} bytes"));
    let set = flag_names(u32::from(bits & 0x1ff), &FLAGS);
    fields.summary(format!("{src} > {dst}, {set}, seq {seq}"));
    fields.field(12..14, "Flags", set);
    fields.field(14..16, "Window", fields.half(14)?);
    fields.field(16..18, "Checksum", format!("{:#06x}", fields.half(16)?));
    fields.field(18..20, "Urgent pointer", fields.half(18)?);
    let header_len = header_len.max(20);
    let mut at = 20;
    while at < header_len {
        let kind = fields.byte(at)?;
        let len = match kind {
            0 | 1 => 1,
            _ => usize::from(fields.byte(at + 1)?),
        };
        if kind == 0 || len == 0 || at + len > header_len {
            break;
        }
        if kind != 1 {
            option(fields, kind, at, len)?;
        }
        at += len;
    }
    let claims = [Some(Claim::Tcp(dst)), Some(Claim::Tcp(src))];
    Some(Next::Payload(header_len, claims))
}

fn option(fields: &mut Fields<'_>, kind: u8, at: usize, len: usize) -> Option<()> {
    let place = at..at + len;
    match (kind, len) {
        (2, 4) => fields.field(place, "Maximum segment size", fields.half(at + 2)?),
        (3, 3) => fields.field(place, "Window scale", fields.byte(at + 2)?),
        (4, 2) => fields.field(place, "SACK permitted", "yes"),
        (5, _) => {
            let mut blocks = Vec::new();
            for block in (at + 2..at + len)
                .step_by(8)
                .filter(|block| block + 8 <= at + len)
            {
                blocks.push(format!(
                    "{}:{}",
                    fields.word(block)?,
                    fields.word(block + 4)?
                ));
            }
            fields.field(place, "SACK", blocks.join(", "));
        }
        (8, 10) => {
            let value = format!("{}, echo of {}", fields.word(at + 2)?, fields.word(at + 6)?);
            fields.field(place, "Timestamp", value);
        }
        _ => fields.field(place, format!("Option {kind}"), format!("{len} bytes")),
    }
    Some(())
}
