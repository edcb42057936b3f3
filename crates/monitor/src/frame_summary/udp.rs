//! UDP datagrams (RFC 768), and contents recognised by their ports.

use super::ip::Carried;
use super::{byte, dhcp, dns, half, word};

pub(super) fn datagram(carried: &Carried<'_>, depth: usize) -> Option<String> {
    /// Bytes of the header.
    const HEADER_LEN: usize = 8;
    let ends = carried.ends()?;
    let said = half(carried.bytes, 4);
    let len = match said {
        // Truncated, or longer than the field allows.
        None | Some(0) => carried.len,
        Some(len) => usize::from(len),
    };
    let text = format!("{ends} UDP, length {}", len.saturating_sub(HEADER_LEN));
    let payload = carried
        .bytes
        .get(HEADER_LEN..carried.bytes.len().min(len.max(HEADER_LEN)));
    let summary = payload.and_then(|payload| payload_of(carried, payload, depth));
    Some(text + &summary.map_or_else(String::new, |summary| format!(", {summary}")))
}

fn payload_of(carried: &Carried<'_>, payload: &[u8], depth: usize) -> Option<String> {
    let ports = [half(carried.bytes, 0)?, half(carried.bytes, 2)?];
    let is_of = |one: &[u16]| ports.iter().any(|port| one.contains(port));
    if is_of(&[53, 5353, 5355]) {
        let is_multicast = is_of(&[5353]);
        return dns::message(payload, is_multicast).map(|summary| format!("DNS {summary}"));
    }
    if is_of(&[67, 68]) {
        return dhcp::v4(payload);
    }
    if is_of(&[546, 547]) {
        return dhcp::v6(payload);
    }
    if is_of(&[123]) {
        return ntp(payload);
    }
    // MPLS (RFC 7510).
    if is_of(&[6635]) {
        return super::mpls(payload, depth.checked_sub(1)?);
    }
    // VXLAN (RFC 7348).
    if is_of(&[4789]) && byte(payload, 0)? & 8 != 0 {
        let network = word(payload, 4)? >> 8;
        let inner = super::of_ethernet(payload.get(8..)?, depth.checked_sub(1)?)?;
        return Some(format!("VXLAN vni {network} {inner}"));
    }
    None
}

/// NTP's version and mode (RFC 5905 section 7.3).
fn ntp(payload: &[u8]) -> Option<String> {
    let first = byte(payload, 0)?;
    let mode = match first & 7 {
        1 => "symmetric active",
        2 => "symmetric passive",
        3 => "Client",
        4 => "Server",
        5 => "Broadcast",
        6 => "Control Message",
        _ => return None,
    };
    Some(format!("NTPv{}, {mode}", first >> 3 & 7))
}
