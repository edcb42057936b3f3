//! A plain program that says for each frame which cell counts it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use weir_filter::lang::expr::NoNames;
use weir_link::xdp::MirrorUp;
use weir_meter::parse::{Addresses, Headers};
use weir_meter::services::{Filters, Services};
use weir_meter::{Direction, Key};
use weir_wire::LinkType;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Owner {
    Row(u32),
    Unknown(Key),
    Overflow,
}

/// Packets and bytes by owner, class and direction.
pub(crate) type Counts = BTreeMap<(Owner, u16, u8), (u64, u64)>;

pub(crate) struct Oracle<'a> {
    services: &'a Services,
    filters: Filters,
    keys: BTreeMap<Key, u32>,
    counts_ip: bool,
}

impl<'a> Oracle<'a> {
    pub(crate) fn new(services: &'a Services, keys: &[(Key, u32)], counts_ip: bool) -> Oracle<'a> {
        let (filters, refused) = services.compile_each(LinkType::EN10MB, &NoNames);
        assert!(refused.is_empty());
        Oracle {
            services,
            filters,
            keys: keys.iter().copied().collect(),
            counts_ip,
        }
    }

    pub(crate) fn count(&self, counts: &mut Counts, frame: &[u8], direction: Direction) {
        let len = frame.len() as u32;
        let headers = Headers::parse(frame, len, LinkType::EN10MB);
        let class = self
            .filters
            .classify(self.services, headers.transport, frame, len);
        let owner = self.owner(&headers, direction);
        let (packets, bytes) = counts
            .entry((owner, class, direction as u8))
            .or_insert((0, 0));
        *packets += 1;
        *bytes += u64::from(if self.counts_ip {
            headers.ip_bytes
        } else {
            headers.wire_bytes
        });
    }

    /// Which way a frame goes that a mirror port has.
    pub(crate) fn direction(&self, up: &MirrorUp, frame: &[u8]) -> Direction {
        let len = frame.len() as u32;
        let headers = Headers::parse(frame, len, LinkType::EN10MB);
        let source: Option<IpAddr> = headers.addresses.map(|addresses| match addresses {
            Addresses::V4(src, _) => src.into(),
            Addresses::V6(src, _) => src.into(),
        });
        let is_up = match up {
            MirrorUp::Sessions => matches!(self.owner(&headers, Direction::Up), Owner::Row(_)),
            MirrorUp::Prefixes(prefixes) => {
                let is_in = |key: &Key| source.is_some_and(|source| key.covers(source));
                prefixes.iter().any(is_in)
            }
            MirrorUp::Filter(text) => {
                let program = weir_meter::services::compile(text, LinkType::EN10MB, &NoNames);
                weir_filter::backend::interp::run(&program.unwrap(), frame, len) != 0
            }
        };
        if is_up {
            Direction::Up
        } else {
            Direction::Down
        }
    }

    fn owner(&self, headers: &Headers, direction: Direction) -> Owner {
        let up = direction == Direction::Up;
        let mut tried = Vec::new();
        tried.extend(headers.pppoe.map(Key::Pppoe));
        if let Some((outer, inner)) = headers.vlan {
            tried.extend(inner.map(|inner| Key::Vlan(outer, Some(inner))));
            tried.push(Key::Vlan(outer, None));
        }
        let mac = if up { headers.src_mac } else { headers.dst_mac };
        tried.extend(mac.map(Key::Mac));
        let address: Option<IpAddr> = headers.addresses.map(|addresses| match addresses {
            Addresses::V4(src, dst) => if up { src } else { dst }.into(),
            Addresses::V6(src, dst) => if up { src } else { dst }.into(),
        });
        let exact = address.map(|address| match address {
            IpAddr::V4(address) => Key::Ipv4(address),
            IpAddr::V6(address) => Key::Ipv6(address),
        });
        tried.extend(exact);
        if let Some(address) = address {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            tried.extend((0..=bits).rev().map(|len| prefix(address, len)));
        }
        let found = tried.into_iter().find_map(|key| self.keys.get(&key));
        match (found, exact, mac) {
            (Some(row), ..) => Owner::Row(*row),
            (None, Some(key), _) => Owner::Unknown(key),
            (None, None, Some(mac)) => Owner::Unknown(Key::Mac(mac)),
            (None, None, None) => Owner::Overflow,
        }
    }
}

/// The prefix of an address.
pub(crate) fn prefix(address: IpAddr, len: u8) -> Key {
    let network = match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            std::net::Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            std::net::Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    };
    Key::Prefix(network, len)
}
