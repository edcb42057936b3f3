//! Properties of an interface that ports need.

use crate::protocol::Event;
use std::net::{IpAddr, Ipv4Addr};
use weir_link::net::Interface;
use weir_wire::LinkType;

/// A unique name for the device of an egress path: `w` and 12 hexadecimal
/// digits.
pub(crate) fn path_name(random: u64) -> String {
    format!("w{:012x}", random >> 16)
}

/// Whether an interface's name is that of an egress path's device.
pub fn is_path(name: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = name.strip_prefix('w');
    digits.is_some_and(|digits| digits.len() == 12 && digits.bytes().all(digit))
}

/// The properties of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceInfo {
    /// The interface's name.
    pub name: String,
    /// The interface's number (ifindex).
    pub ifindex: u32,
    /// The link type of its frames.
    pub linktype: LinkType,
    /// Length of the link-layer header, in bytes.
    pub header_len: u32,
    /// Whether the interface is a loopback: frames sent on it are received on
    /// it.
    pub is_loopback: bool,
    /// The link-layer address; empty if it has none.
    pub address: Vec<u8>,
    /// The link-layer broadcast address; empty if it has none.
    pub broadcast: Vec<u8>,
    /// The MTU: bytes of the largest packet without the link-layer header.
    pub mtu: u32,
    /// The IP addresses, each with its prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether the interface is administratively up.
    pub is_up: bool,
    /// Whether the link has carrier, as far as the driver reports it.
    pub is_running: bool,
    /// Number of received frames dropped since the interface exists: for lack
    /// of room, or of protocols unknown to the host.
    pub dropped: u64,
}

impl InterfaceInfo {
    /// The mask of the first IPv4 network; `None` if there is none.
    pub fn netmask(&self) -> Option<Ipv4Addr> {
        let v4 = |(address, len): &(IpAddr, u8)| address.is_ipv4().then_some(*len);
        let len = u32::from(self.addresses.iter().find_map(v4)?);
        let bits = u32::MAX.checked_shl(32 - len.min(32)).unwrap_or(0);
        Some(Ipv4Addr::from_bits(bits))
    }

    /// These properties, with those that [`events_since`](Self::events_since)
    /// reports taken from `before`, so that the changes are still reported.
    #[must_use]
    pub fn as_reported(self, before: &InterfaceInfo) -> InterfaceInfo {
        InterfaceInfo {
            name: before.name.clone(),
            mtu: before.mtu,
            is_up: before.is_up,
            is_running: before.is_running,
            ..self
        }
    }

    /// The changes since `before`.
    pub fn events_since(&self, before: &InterfaceInfo) -> Vec<Event> {
        let mut events = Vec::new();
        if self.name != before.name {
            let name = self.name.clone();
            events.push(Event::Renamed { name });
        }
        if self.mtu != before.mtu {
            events.push(Event::Mtu { mtu: self.mtu });
        }
        let works = |facts: &InterfaceInfo| facts.is_up && facts.is_running;
        match (works(before), works(self)) {
            (false, true) => events.push(Event::Up),
            (true, false) => events.push(Event::Down),
            _ => {}
        }
        events
    }
}

/// The error for an interface with an unsupported link type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "interface {name} is neither Ethernet nor plain IP: weir does not know how its frames begin"
)]
pub struct UnknownLinkType {
    /// The interface.
    pub name: String,
}

impl TryFrom<Interface> for InterfaceInfo {
    type Error = UnknownLinkType;

    fn try_from(interface: Interface) -> Result<InterfaceInfo, UnknownLinkType> {
        let Some(linktype) = interface.linktype else {
            let name = interface.name;
            return Err(UnknownLinkType { name });
        };
        let addresses = interface.addresses.iter();
        Ok(InterfaceInfo {
            header_len: u32::try_from(interface.header_bytes()).unwrap_or(u32::MAX),
            addresses: addresses.map(|one| (one.ip, one.prefix_len)).collect(),
            name: interface.name,
            ifindex: interface.index,
            linktype,
            is_loopback: interface.loopback,
            address: interface.address,
            broadcast: interface.broadcast,
            mtu: interface.mtu,
            is_up: interface.up,
            is_running: interface.running,
            dropped: interface.dropped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_link::net::Address;

    #[test]
    fn the_broker_s_own_devices_are_known_by_their_names() {
        for random in [0, 1 << 16, u64::MAX] {
            let name = path_name(random);
            assert!(is_path(&name) && name.len() == 13, "{name}");
        }
        for name in [
            "w0",
            "wlan0",
            "wlx00c0ca123456",
            "W00c0ca123456",
            "w00c0ca12345g",
        ] {
            assert!(!is_path(name), "{name}");
        }
    }

    fn interface(linktype: Option<LinkType>) -> Interface {
        Interface {
            index: 3,
            name: "x0".into(),
            linktype,
            address: Vec::new(),
            broadcast: Vec::new(),
            mtu: 1500,
            up: true,
            running: true,
            loopback: false,
            tun: false,
            addresses: vec![Address {
                ip: IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)),
                prefix_len: 20,
            }],
            xdp: None,
            dropped: 0,
        }
    }

    #[test]
    fn an_interface_of_unknown_frames_is_refused_by_name() {
        let facts = InterfaceInfo::try_from(interface(Some(LinkType::RAW))).unwrap();
        assert_eq!(facts.header_len, 0);
        assert_eq!(facts.netmask(), Some(Ipv4Addr::new(255, 255, 240, 0)));
        let refused = InterfaceInfo::try_from(interface(None)).unwrap_err();
        assert!(refused.to_string().contains("x0"), "{refused}");
    }
}
