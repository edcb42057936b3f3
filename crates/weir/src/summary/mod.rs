//! A frame in a line.

use std::net::IpAddr;
use weir_wire::{EtherType, LinkType, Protocol, arp, ethernet, ipv4, ipv6, tcp};

/// From whom to whom and what, as far as the headers say.
pub(crate) fn summary(bytes: &[u8], linktype: LinkType) -> String {
    match linktype {
        LinkType::EN10MB => of_ethernet(bytes),
        LinkType::RAW => match bytes.first().map(|byte| byte >> 4) {
            Some(4) => carried(EtherType::IPV4, bytes),
            Some(6) => carried(EtherType::IPV6, bytes),
            _ => None,
        },
        _ => None,
    }
    .unwrap_or_else(|| linktype.to_string())
}

fn of_ethernet(bytes: &[u8]) -> Option<String> {
    let frame = ethernet::Frame::new(bytes).ok()?;
    let (mut ether_type, mut payload) = (frame.ether_type(), frame.payload());
    let mut tags = String::new();
    while ether_type.is_tag() {
        let Ok(tag) = ethernet::Tag::new(payload) else {
            break;
        };
        tags += &format!("vlan {} ", ethernet::TagRepr::parse(&tag).vlan);
        (ether_type, payload) = (tag.ether_type(), tag.payload());
    }
    let what = carried(ether_type, payload).unwrap_or_else(|| {
        let EtherType(number) = ether_type;
        format!("{} > {} type {number:#06x}", frame.src(), frame.dst())
    });
    Some(tags + &what)
}

fn carried(ether_type: EtherType, payload: &[u8]) -> Option<String> {
    match ether_type {
        EtherType::ARP => {
            let packet = arp::Packet::new(payload).ok()?;
            let arp = arp::Repr::parse(&packet);
            Some(match arp.operation {
                arp::Operation::REQUEST => {
                    format!("{} asks who has {}", arp.sender_ip, arp.target_ip)
                }
                arp::Operation::REPLY => format!("{} is at {}", arp.sender_ip, arp.sender),
                arp::Operation(number) => format!("ARP operation {number}"),
            })
        }
        EtherType::IPV4 => {
            let header_len = usize::from(payload.first()? & 0xf) * 4;
            let address = |at: usize| {
                let bytes: &[u8; 4] = payload.get(at..)?.first_chunk()?;
                Some(IpAddr::from(*bytes))
            };
            let protocol = Protocol(*payload.get(9)?);
            let fragment = u16::from_be_bytes(*payload.get(6..)?.first_chunk()?) & 0x1fff;
            let inner = payload.get(header_len.max(ipv4::Repr::LEN)..)?;
            let inner = if fragment == 0 { inner } else { &[] };
            Some(spoken(address(12)?, address(16)?, protocol, inner))
        }
        EtherType::IPV6 => {
            let packet = ipv6::Packet::new(payload).ok()?;
            let (src, dst) = (packet.src().into(), packet.dst().into());
            Some(spoken(src, dst, packet.next_header(), packet.payload()))
        }
        _ => None,
    }
}

fn spoken(src: IpAddr, dst: IpAddr, protocol: Protocol, inner: &[u8]) -> String {
    let port = |at: usize| {
        let bytes = inner.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map(|bytes| u16::from_be_bytes(*bytes))
    };
    let with = |address: IpAddr, port: u16| std::net::SocketAddr::new(address, port);
    match (protocol, port(0), port(2)) {
        (Protocol::TCP | Protocol::UDP, Some(from), Some(to)) => {
            let segment = tcp::Segment::new(inner).ok();
            let segment = segment.filter(|_| protocol == Protocol::TCP);
            let flags = segment.map_or(String::new(), |segment| flags(segment.flags()));
            format!("{} > {} {protocol}{flags}", with(src, from), with(dst, to))
        }
        _ => format!("{src} > {dst} {protocol}"),
    }
}

/// The names of those that are set, each behind a blank.
fn flags(flags: tcp::Flags) -> String {
    const NAMES: [(tcp::Flags, &str); 4] = [
        (tcp::Flags::SYN, " SYN"),
        (tcp::Flags::FIN, " FIN"),
        (tcp::Flags::RST, " RST"),
        (tcp::Flags::ACK, " ACK"),
    ];
    let set = NAMES.iter().filter(|(flag, _)| flags.contains(*flag));
    set.map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp() -> Vec<u8> {
        let mut frame = vec![0; 60];
        (frame[12], frame[14], frame[23]) = (8, 0x45, 17);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[34..38].copy_from_slice(&[4, 0, 0, 53]);
        frame
    }

    #[test]
    fn a_datagram_shows_its_ports() {
        let frame = udp();
        assert_eq!(
            summary(&frame, LinkType::EN10MB),
            "10.0.0.1:1024 > 10.0.0.2:53 UDP"
        );
        assert_eq!(
            summary(&frame[14..], LinkType::RAW),
            "10.0.0.1:1024 > 10.0.0.2:53 UDP"
        );
    }

    #[test]
    fn a_later_fragment_has_no_ports() {
        let mut frame = udp();
        frame[21] = 1;
        assert_eq!(summary(&frame, LinkType::EN10MB), "10.0.0.1 > 10.0.0.2 UDP");
    }

    #[test]
    fn tags_and_strange_types_are_named() {
        let mut frame = vec![0; 12];
        frame.extend([0x81, 0, 0, 7, 0x88, 0xb5, 0, 0]);
        assert_eq!(
            summary(&frame, LinkType::EN10MB),
            "vlan 7 00:00:00:00:00:00 > 00:00:00:00:00:00 type 0x88b5"
        );
    }

    #[test]
    fn no_cut_frame_is_too_short() {
        let frame = udp();
        for len in 0..frame.len() {
            for linktype in [LinkType::EN10MB, LinkType::RAW, LinkType(9999)] {
                assert!(!summary(&frame[..len], linktype).is_empty());
            }
        }
    }
}
