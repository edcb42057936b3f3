//! IPv6 and its extension headers (RFC 8200).

use super::fields::named;
use super::{Claim, Fields, Next, View};
use crate::protocol::ip_protocol_name;

pub(super) const VIEW: View = View {
    name: "IPv6",
    claims: &[Claim::EtherType(0x86dd), Claim::Ip(41)],
    looks_like: None,
    decode,
};

/// Largest number of extension headers.
const EXTENSIONS_MAX: usize = 8;

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let first = fields.word(0)?;
    fields.field(0..1, "Version", first >> 28);
    fields.field(0..2, "Traffic class", first >> 20 & 0xff);
    fields.field(1..4, "Flow label", format!("{:#07x}", first & 0xf_ffff));
    let payload_len = fields.half(4)?;
    fields.field(4..6, "Payload length", payload_len);
    let mut next = fields.byte(6)?;
    fields.field(6..7, "Next header", named(next, ip_protocol_name(next)));
    fields.field(7..8, "Hop limit", fields.byte(7)?);
    let (src, dst) = (fields.ipv6(8)?, fields.ipv6(24)?);
    fields.field(8..24, "Source", src);
    fields.field(24..40, "Destination", dst);
    fields.summary(format!("{src} > {dst}"));
    // 0 is a jumbogram's, or a super-frame's.
    if payload_len > 0 {
        fields.ends_at(40 + usize::from(payload_len));
    }
    let mut at = 40;
    for _ in 0..EXTENSIONS_MAX {
        let len = match next {
            0 | 43 | 60 => 8 * (usize::from(fields.byte(at + 1)?) + 1),
            44 => 8,
            51 => 4 * (usize::from(fields.byte(at + 1)?) + 2),
            _ => break,
        };
        let name = ip_protocol_name(next).unwrap_or_default();
        fields.field(
            at..at + len,
            format!("Extension: {name}"),
            format!("{len} bytes"),
        );
        let behind = fields.byte(at)?;
        let mut offset = 0;
        fields.under(|fields| {
            fields.field(
                at..at + 1,
                "Next header",
                named(behind, ip_protocol_name(behind)),
            );
            if next == 44 {
                let place = fields.half(at + 2)?;
                offset = place & 0xfff8;
                fields.field(at + 2..at + 4, "Fragment offset", offset);
                fields.field(at + 3..at + 4, "More fragments", place & 1);
                fields.field(
                    at + 4..at + 8,
                    "Identification",
                    format!("{:#010x}", fields.word(at + 4)?),
                );
            }
            Some(())
        })?;
        next = behind;
        at += len;
        if offset > 0 {
            return Some(Next::Data(at));
        }
    }
    Some(Next::Payload(at, [Some(Claim::Ip(next)), None]))
}
