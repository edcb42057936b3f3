//! IEEE 802.1Q tags.

use super::ethernet::ether_type;
use super::{Claim, Fields, Next, View};

pub(super) const VIEW: View = View {
    name: "802.1Q",
    claims: &[
        Claim::EtherType(0x8100),
        Claim::EtherType(0x88a8),
        Claim::EtherType(0x9100),
    ],
    looks_like: None,
    decode,
};

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let tag = fields.half(0)?;
    fields.summary(format!("VLAN {}", tag & 0xfff));
    fields.field(0..1, "Priority", tag >> 13);
    fields.field(0..1, "Drop eligible", tag >> 12 & 1);
    fields.field(0..2, "VLAN", tag & 0xfff);
    let number = ether_type(fields, 2)?;
    Some(Next::Payload(4, [Some(Claim::EtherType(number)), None]))
}
