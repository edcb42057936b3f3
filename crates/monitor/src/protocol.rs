//! The rows of the protocol table.

use crate::digest::Digest;
use crate::services::service_name;
use std::fmt;

/// A protocol, as far as the headers name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Protocol {
    /// The EtherType; 0 without one.
    pub ether_type: u16,
    /// The IP protocol.
    pub ip_protocol: Option<u8>,
    /// The transport port of a known service; 0 without one.
    pub service: u16,
}

impl Protocol {
    /// The protocol of a frame.
    #[inline]
    pub fn of(digest: &Digest) -> Protocol {
        let service = match digest.ip_protocol {
            Some(6 | 17 | 132) => {
                let (low, high) = (
                    digest.src_port.min(digest.dst_port),
                    digest.src_port.max(digest.dst_port),
                );
                let known = [low, high]
                    .into_iter()
                    .find(|port| service_name(*port).is_some());
                known.unwrap_or(0)
            }
            _ => 0,
        };
        Protocol {
            ether_type: digest.ether_type,
            ip_protocol: digest.ip_protocol,
            service,
        }
    }
}

/// The name of an EtherType; `None` if it is not known here.
pub(crate) fn ether_type_name(number: u16) -> Option<&'static str> {
    Some(match number {
        0x0800 => "IPv4",
        0x0806 => "ARP",
        0x0842 => "Wake-on-LAN",
        0x8035 => "RARP",
        0x86dd => "IPv6",
        0x8100 => "802.1Q",
        0x8808 => "Ethernet flow control",
        0x8809 => "LACP",
        0x8847 | 0x8848 => "MPLS",
        0x8863 => "PPPoE discovery",
        0x8864 => "PPPoE session",
        0x888e => "EAPOL",
        0x88a8 => "802.1ad",
        0x88b5 | 0x88b6 => "local experimental",
        0x88cc => "LLDP",
        0x88e5 => "MACsec",
        0x88f7 => "PTP",
        0x9000 => "loopback test",
        _ => return None,
    })
}

/// The name of an IP protocol; `None` if it is not known here.
pub(crate) fn ip_protocol_name(number: u8) -> Option<&'static str> {
    Some(match number {
        0 => "hop-by-hop options",
        1 => "ICMP",
        2 => "IGMP",
        4 => "IPv4 in IP",
        6 => "TCP",
        17 => "UDP",
        33 => "DCCP",
        41 => "IPv6 in IP",
        43 => "routing header",
        44 => "fragment header",
        46 => "RSVP",
        47 => "GRE",
        50 => "ESP",
        51 => "AH",
        58 => "ICMPv6",
        59 => "no next header",
        60 => "destination options",
        88 => "EIGRP",
        89 => "OSPF",
        103 => "PIM",
        112 => "VRRP",
        115 => "L2TP",
        132 => "SCTP",
        136 => "UDP-Lite",
        _ => return None,
    })
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ether = match (self.ether_type, ether_type_name(self.ether_type)) {
            (0, _) => "no EtherType".to_owned(),
            (_, Some(name)) => name.to_owned(),
            (number, None) => format!("type {number:#06x}"),
        };
        f.write_str(&ether)?;
        if let Some(number) = self.ip_protocol {
            match ip_protocol_name(number) {
                Some(name) => write!(f, "/{name}")?,
                None => write!(f, "/protocol {number}")?,
            }
        }
        match service_name(self.service) {
            Some(name) => write!(f, "/{name}"),
            None => Ok(()),
        }
    }
}
