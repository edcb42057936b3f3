//! IPv4 (RFC 791).

use super::fields::named;
use super::{Claim, Fields, Next, View};
use crate::frame_summary::flag_names;
use crate::protocol::ip_protocol_name;

pub(super) const VIEW: View = View {
    name: "IPv4",
    claims: &[Claim::EtherType(0x0800), Claim::Ip(4)],
    looks_like: None,
    decode,
};

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let first = fields.byte(0)?;
    fields.field(0..1, "Version", first >> 4);
    let header_len = usize::from(first & 0xf) * 4;
    fields.field(0..1, "Header length", format!("{header_len} bytes"));
    let class = fields.byte(1)?;
    fields.field(1..2, "DSCP", class >> 2);
    fields.field(1..2, "ECN", class & 3);
    let total = fields.half(2)?;
    fields.field(2..4, "Total length", total);
    fields.field(4..6, "Identification", format!("{:#06x}", fields.half(4)?));
    let fragment = fields.half(6)?;
    let names = [
        (0x8000, "reserved"),
        (0x4000, "don't fragment"),
        (0x2000, "more fragments"),
    ];
    fields.field(6..7, "Flags", flag_names(fragment.into(), &names));
    let offset = usize::from(fragment & 0x1fff) * 8;
    fields.field(6..8, "Fragment offset", offset);
    fields.field(8..9, "Time to live", fields.byte(8)?);
    let protocol = fields.byte(9)?;
    fields.field(
        9..10,
        "Protocol",
        named(protocol, ip_protocol_name(protocol)),
    );
    fields.field(10..12, "Header checksum", checksum(fields, header_len)?);
    let (src, dst) = (fields.ipv4(12)?, fields.ipv4(16)?);
    fields.field(12..16, "Source", src);
    fields.field(16..20, "Destination", dst);
    fields.summary(format!("{src} > {dst}"));
    if header_len > 20 {
        fields.field(
            20..header_len,
            "Options",
            format!("{} bytes", header_len - 20),
        );
    }
    // A super-frame's length does not fit the field.
    if total > 0 {
        fields.ends_at(usize::from(total));
    }
    Some(match offset {
        0 => Next::Payload(header_len.max(20), [Some(Claim::Ip(protocol)), None]),
        _ => Next::Data(header_len.max(20)),
    })
}

/// The checksum, and whether the header has it (RFC 1071).
fn checksum(fields: &Fields<'_>, header_len: usize) -> Option<String> {
    let stated = fields.half(10)?;
    let Some(header) = fields.slice(0, header_len.max(20)) else {
        return Some(format!("{stated:#06x}"));
    };
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let verdict = if sum == 0xffff {
        "good"
    } else {
        "not the header's"
    };
    Some(format!("{stated:#06x}, {verdict}"))
}
