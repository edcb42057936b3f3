//! UDP (RFC 768).

use super::fields::named;
use super::{Claim, Fields, Next, View};
use crate::services::service_name;

pub(super) const VIEW: View = View {
    name: "UDP",
    claims: &[Claim::Ip(17)],
    looks_like: None,
    decode,
};

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let (src, dst) = (fields.half(0)?, fields.half(2)?);
    fields.summary(format!("{src} > {dst}"));
    fields.field(0..2, "Source port", named(src, service_name(src)));
    fields.field(2..4, "Destination port", named(dst, service_name(dst)));
    let len = fields.half(4)?;
    fields.field(4..6, "Length", len);
    fields.field(6..8, "Checksum", format!("{:#06x}", fields.half(6)?));
    if len >= 8 {
        fields.ends_at(len.into());
    }
    let claims = [Some(Claim::Udp(dst)), Some(Claim::Udp(src))];
    Some(Next::Payload(8, claims))
}
