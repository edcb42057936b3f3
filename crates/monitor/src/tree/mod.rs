//! The fields of one frame: layers, each decoded by its protocol's view.
//!
//! A view is one file beside this one: a [`View`] with a name, the numbers that lead to it, and a
//! function that reads its header from [`Fields`]. To add a protocol, write such a file and add its
//! view to [`VIEWS`]; `docs/how-to/add-a-protocol-view.md` has an example.
//!
//! Frames are untrusted and may end anywhere. A read beyond the captured bytes is `None`, which ends
//! the layer with the mark "cut"; nothing here can panic on a frame's bytes. A tree has at most
//! [`LAYERS_MAX`] layers and [`FIELDS_MAX`] fields.

mod arp;
mod dhcp;
mod dns;
mod ethernet;
mod fields;
mod http;
mod icmp;
mod ipv4;
mod ipv6;
mod sll;
mod tcp;
mod tls;
mod udp;
mod vlan;

pub use fields::{Fields, harmless};

use std::ops::Range;
use weir_wire::LinkType;

/// Largest number of layers of a frame.
pub const LAYERS_MAX: usize = 16;
/// Largest number of fields of a frame.
pub const FIELDS_MAX: usize = 2_000;

/// All views, in the order in which they are asked.
pub const VIEWS: [&View; 15] = [
    &ethernet::VIEW,
    &sll::VIEW,
    &vlan::VIEW,
    &arp::VIEW,
    &ipv4::VIEW,
    &ipv6::VIEW,
    &icmp::V4,
    &icmp::V6,
    &tcp::VIEW,
    &udp::VIEW,
    &dns::UDP,
    &dns::TCP,
    &dhcp::VIEW,
    &tls::VIEW,
    &http::VIEW,
];

/// A number by which a header says what follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// The frame's link-layer header type.
    Link(LinkType),
    /// An EtherType.
    EtherType(u16),
    /// An IP protocol.
    Ip(u8),
    /// A transport port of TCP.
    Tcp(u16),
    /// A transport port of UDP.
    Udp(u16),
}

/// How a protocol is recognised and shown.
#[derive(Debug)]
pub struct View {
    /// The protocol's name.
    pub name: &'static str,
    /// The numbers that lead to it.
    pub claims: &'static [Claim],
    /// Whether a payload begins like this protocol. A view of TCP's or UDP's payload that has this
    /// test is found by it at any port, and is not used at its own port for a payload that fails.
    pub looks_like: Option<fn(&[u8]) -> bool>,
    /// Reads the header; `None` if it is cut.
    pub decode: fn(&mut Fields<'_>) -> Option<Next>,
}

/// The content behind a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing.
    End,
    /// Bytes that no view is asked for.
    Data(usize),
    /// A payload from an offset in the layer on, named by these numbers; the first that leads to a
    /// view counts.
    Payload(usize, [Option<Claim>; 2]),
}

/// A header of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// The protocol's name.
    pub name: &'static str,
    /// The header in one line.
    pub summary: String,
    /// Its place in the frame.
    pub range: Range<usize>,
    /// Its fields, in order.
    pub fields: Vec<Field>,
    /// Whether it was cut short by the end of the captured bytes.
    pub is_cut: bool,
}

/// A field of a header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// How deep it lies: 0 for a field of the header itself, 1 for a part of that, and so on.
    pub depth: u8,
    /// Its name.
    pub name: String,
    /// Its value, without control characters.
    pub value: String,
    /// Its place in the frame.
    pub range: Range<usize>,
}

/// The headers that carry other protocols' payloads: what follows the last of them is a payload for a
/// view of the user's own.
const CARRIERS: [&View; 7] = [
    &ethernet::VIEW,
    &sll::VIEW,
    &vlan::VIEW,
    &ipv4::VIEW,
    &ipv6::VIEW,
    &tcp::VIEW,
    &udp::VIEW,
];

/// Decodes a frame.
pub fn decode(bytes: &[u8], linktype: LinkType) -> Vec<Layer> {
    walk(bytes, linktype, |_| true).0
}

/// Where the payload of a frame's link, IP, UDP and TCP headers lies, without padding; empty if a
/// header is cut, or nothing follows.
pub fn payload(bytes: &[u8], linktype: LinkType) -> Range<usize> {
    let is_carrier = |view: &View| CARRIERS.iter().any(|carrier| carrier.name == view.name);
    walk(bytes, linktype, is_carrier).1
}

/// Decodes a frame by the views that `wants` selects; returns the layers, and the place of what
/// follows the last one that such a view has decoded.
fn walk(
    bytes: &[u8],
    linktype: LinkType,
    wants: impl Fn(&View) -> bool,
) -> (Vec<Layer>, Range<usize>) {
    let mut layers: Vec<Layer> = Vec::new();
    let mut left = FIELDS_MAX;
    let mut claims = match linktype {
        LinkType::IPV4 => [Some(Claim::EtherType(0x0800)), None],
        LinkType::IPV6 => [Some(Claim::EtherType(0x86dd)), None],
        LinkType::RAW if bytes.first().is_some_and(|first| first >> 4 == 6) => {
            [Some(Claim::EtherType(0x86dd)), None]
        }
        LinkType::RAW => [Some(Claim::EtherType(0x0800)), None],
        other => [Some(Claim::Link(other)), None],
    };
    let (mut at, mut end) = (0, bytes.len());
    while at < end && layers.len() < LAYERS_MAX {
        let rest = &bytes[at..end];
        let view = find(&claims, rest).filter(|view| wants(view));
        let Some(view) = view.filter(|_| layers.len() + 1 < LAYERS_MAX) else {
            layers.push(data(at..end));
            break;
        };
        let mut fields = Fields::new(rest, at, left);
        let next = (view.decode)(&mut fields);
        let is_cut = next.is_none();
        let (layer, payload_end) = fields.layer(view.name, next, is_cut);
        left = left.saturating_sub(layer.fields.len());
        let header_end = layer.range.end;
        layers.push(layer);
        end = end.min(payload_end).max(header_end);
        at = header_end;
        claims = match next {
            Some(Next::Payload(_, claims)) => claims,
            Some(Next::Data(_)) => [None, None],
            // Padding behind a short packet is not shown.
            Some(Next::End) | None => {
                at = end;
                break;
            }
        };
    }
    (layers, at..end)
}

/// Bytes without a view.
fn data(range: Range<usize>) -> Layer {
    Layer {
        name: "Data",
        summary: format!("{} bytes", range.len()),
        range,
        fields: Vec::new(),
        is_cut: false,
    }
}

/// The view that one of the claims leads to, for this payload.
fn find(claims: &[Option<Claim>; 2], payload: &[u8]) -> Option<&'static View> {
    let fits = |view: &View| view.looks_like.is_none_or(|looks_like| looks_like(payload));
    for claim in claims.iter().flatten() {
        let mut views = VIEWS.iter();
        if let Some(view) = views.find(|view| view.claims.contains(claim) && fits(view)) {
            return Some(view);
        }
    }
    let is_tcp = |claim: &Claim| matches!(claim, Claim::Tcp(_));
    let is_udp = |claim: &Claim| matches!(claim, Claim::Udp(_));
    let (by_tcp, by_udp) = (
        claims.iter().flatten().any(is_tcp),
        claims.iter().flatten().any(is_udp),
    );
    let mut views = VIEWS.iter().copied();
    views.find(|view| {
        let is_of = view
            .claims
            .iter()
            .any(|claim| is_tcp(claim) && by_tcp || is_udp(claim) && by_udp);
        is_of
            && view
                .looks_like
                .is_some_and(|looks_like| looks_like(payload))
    })
}

/// The name of the server that the first bytes of a TCP connection ask for: of TLS' ClientHello
/// (RFC 6066), or of an HTTP request's `Host`.
pub fn server_name(payload: &[u8]) -> Option<String> {
    match payload.first()? {
        22 => tls::server_name(payload),
        b'A'..=b'Z' => http::host(payload),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
