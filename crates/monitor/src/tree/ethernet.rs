//! Ethernet II and IEEE 802.3 frames.

use super::fields::named;
use super::{Claim, Fields, Next, View};
use crate::protocol::ether_type_name;
use weir_wire::LinkType;

/// Length of an Ethernet header, in bytes.
const HEADER: usize = weir_wire::ethernet::Repr::LEN;

pub(super) const VIEW: View = View {
    name: "Ethernet",
    claims: &[Claim::Link(LinkType::EN10MB)],
    looks_like: None,
    decode,
};

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let (dst, src) = (fields.mac(0)?, fields.mac(6)?);
    fields.summary(format!("{src} > {dst}"));
    fields.field(0..6, "Destination", dst);
    fields.field(6..12, "Source", src);
    let number = fields.half(12)?;
    if number < 0x600 {
        fields.field(12..14, "Length", number);
        fields.ends_at(HEADER + usize::from(number));
        return Some(Next::Data(HEADER));
    }
    ether_type(fields, 12)?;
    Some(Next::Payload(
        HEADER,
        [Some(Claim::EtherType(number)), None],
    ))
}

/// Adds the field of an EtherType.
pub(super) fn ether_type(fields: &mut Fields<'_>, at: usize) -> Option<u16> {
    let number = fields.half(at)?;
    let value = named(format!("{number:#06x}"), ether_type_name(number));
    fields.field(at..at + 2, "Type", value);
    Some(number)
}
