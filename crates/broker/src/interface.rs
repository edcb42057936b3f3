//! What ports need to know of an interface.

use crate::protocol::Event;
use std::net::{IpAddr, Ipv4Addr};
use weir_link::net::Interface;
use weir_wire::LinkType;

/// The name of a device through which somebody sends what the broker checks: at
/// most 14 bytes, of which no other has the same.
pub(crate) fn path_name(random: u64) -> String {
    format!("w{:012x}", random >> 16)
}

/// Whether an interface's name is that of a device which a broker has made to
/// check frames that are sent.
pub fn is_path(name: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = name.strip_prefix('w');
    digits.is_some_and(|digits| digits.len() == 12 && digits.bytes().all(digit))
}

/// An interface's facts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceInfo {
    /// Its name.
    pub name: String,
    /// Its number.
    pub ifindex: u32,
    /// How its frames begin.
    pub linktype: LinkType,
    /// Bytes of the link-layer header.
    pub header_len: u32,
    /// Whether what is sent there comes in there.
    pub is_loopback: bool,
    /// Its link-layer address; empty without one.
    pub address: Vec<u8>,
    /// The link-layer address of all stations; empty without one.
    pub broadcast: Vec<u8>,
    /// The largest packet, in bytes without the link-layer header.
    pub mtu: u32,
    /// Its addresses, each with the length of its prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether it is switched on.
    pub is_up: bool,
    /// Whether the link has a partner, as far as the driver says.
    pub is_running: bool,
    /// Frames that came and were dropped, since it exists: for want of room,
    /// or of protocols that the host does not know.
    pub dropped: u64,
}

impl InterfaceInfo {
    /// The mask of its first IPv4 network.
    pub fn netmask(&self) -> Option<Ipv4Addr> {
        let v4 = |(address, len): &(IpAddr, u8)| address.is_ipv4().then_some(*len);
        let len = u32::from(self.addresses.iter().find_map(v4)?);
        let bits = u32::MAX.checked_shl(32 - len.min(32)).unwrap_or(0);
        Some(Ipv4Addr::from_bits(bits))
    }

    /// These, but with what [`events_since`](Self::events_since) tells of as
    /// it was: so that it is still told.
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

    /// What has happened since `before`.
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

/// Frames that begin in a way that weir does not know.
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
