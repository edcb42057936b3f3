//! UDP datagrams (RFC 768), and contents recognised by their ports.

use super::ip::Carried;
use super::{dhcp, dns, half, ike, mpls, radius, routing, rpc, services, snmp, text, tunnel};

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

/// Recognised by the transport port; a few by their first bytes, at any.
fn payload_of(carried: &Carried<'_>, payload: &[u8], depth: usize) -> Option<String> {
    let ports = [half(carried.bytes, 0)?, half(carried.bytes, 2)?];
    // The port of a service is more often the lower one.
    let in_order = [ports[0].min(ports[1]), ports[0].max(ports[1])];
    in_order
        .into_iter()
        .find_map(|port| of_port(port, carried, payload, depth))
        .or_else(|| services::stun(payload))
}

fn of_port(port: u16, carried: &Carried<'_>, payload: &[u8], depth: usize) -> Option<String> {
    match port {
        53 | 5353 | 5355 => {
            dns::message(payload, port == 5353).map(|summary| format!("DNS {summary}"))
        }
        67 | 68 => dhcp::v4(payload),
        69 => services::tftp(payload),
        88 => services::kerberos(payload),
        111 | 2049 => rpc::message(payload, payload.len(), port),
        123 => services::ntp(payload),
        137 => services::netbios_names(payload),
        138 => services::netbios_datagram(payload),
        161 | 162 => snmp::message(payload),
        319 | 320 => services::ptp(payload),
        443 => services::quic(payload),
        500 => ike::message(payload),
        514 => services::syslog(payload),
        520 => routing::rip(payload),
        521 => routing::ripng(payload),
        546 | 547 => dhcp::v6(payload),
        646 => mpls::ldp(payload),
        698 => routing::olsr(payload, carried.src.is_ipv6()),
        1645 | 1646 | 1812 | 1813 | 1700 | 3799 => radius::packet(payload),
        1701 => tunnel::l2tp(payload, depth),
        1985 => routing::hsrp(payload),
        2055 | 4739 => services::netflow(payload),
        2123 | 2152 => tunnel::gtp(payload, depth),
        3784 | 3785 | 4784 => routing::bfd(payload, port),
        4500 => ike::nat_traversal(payload),
        4789 | 8472 => tunnel::vxlan(payload, depth),
        4790 => tunnel::vxlan_gpe(payload, depth),
        5060 => text::sip(payload),
        6081 => tunnel::geneve(payload, depth),
        6343 => services::sflow(payload),
        // RFC 7510.
        6635 => mpls::packet(payload, depth.checked_sub(1)?),
        _ => None,
    }
}
