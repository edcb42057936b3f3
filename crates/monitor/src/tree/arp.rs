//! ARP (RFC 826).

use super::fields::named;
use super::{Claim, Fields, Next, View};

pub(super) const VIEW: View = View {
    name: "ARP",
    claims: &[Claim::EtherType(0x0806), Claim::EtherType(0x8035)],
    looks_like: None,
    decode,
};

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    fields.field(0..2, "Hardware type", fields.half(0)?);
    fields.field(2..4, "Protocol type", format!("{:#06x}", fields.half(2)?));
    let (hardware_len, protocol_len) = (fields.byte(4)?, fields.byte(5)?);
    fields.field(4..5, "Hardware length", hardware_len);
    fields.field(5..6, "Protocol length", protocol_len);
    let operation = fields.half(6)?;
    let name = match operation {
        1 => Some("request"),
        2 => Some("reply"),
        3 => Some("reverse request"),
        4 => Some("reverse reply"),
        _ => None,
    };
    fields.field(6..8, "Operation", named(operation, name));
    fields.summary(name.unwrap_or("unknown operation"));
    let len = 8 + 2 * (usize::from(hardware_len) + usize::from(protocol_len));
    fields.ends_at(len);
    if (hardware_len, protocol_len) == (6, 4) {
        let (sender, target) = (fields.ipv4(14)?, fields.ipv4(24)?);
        fields.field(8..14, "Sender station", fields.mac(8)?);
        fields.field(14..18, "Sender address", sender);
        fields.field(18..24, "Target station", fields.mac(18)?);
        fields.field(24..28, "Target address", target);
        fields.summary(match operation {
            1 => format!("who has {target}? tell {sender}"),
            2 => format!("{sender} is at {}", fields.mac(8)?),
            _ => format!(
                "{}: {sender}, {target}",
                name.unwrap_or("unknown operation")
            ),
        });
    }
    Some(Next::End)
}
