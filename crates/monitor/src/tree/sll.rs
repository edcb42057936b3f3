//! Linux "cooked" captures, version 1 (LINKTYPE_LINUX_SLL).

use super::ethernet::ether_type;
use super::fields::named;
use super::{Claim, Fields, Next, View};
use weir_wire::LinkType;

pub(super) const VIEW: View = View {
    name: "Linux cooked",
    claims: &[Claim::Link(LinkType::LINUX_SLL)],
    looks_like: None,
    decode,
};

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let way = fields.half(0)?;
    let name = match way {
        0 => Some("to this host"),
        1 => Some("broadcast"),
        2 => Some("multicast"),
        3 => Some("to another host"),
        4 => Some("from this host"),
        _ => None,
    };
    fields.summary(name.unwrap_or_default());
    fields.field(0..2, "Packet type", named(way, name));
    fields.field(2..4, "Hardware type", fields.half(2)?);
    let len = usize::from(fields.half(4)?).min(8);
    if len == 6 {
        fields.field(6..12, "Source", fields.mac(6)?);
    }
    let number = ether_type(fields, 14)?;
    Some(Next::Payload(16, [Some(Claim::EtherType(number)), None]))
}
