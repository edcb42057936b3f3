//! VMTP on ports, directly on Ethernet.
//!
//! A port's filter selects the packets of its entity: clients and servers of
//! several processes share a link, and the kernel demultiplexes. A peer's
//! station is learnt from its packets; the first packet to it goes to the
//! Ethernet multicast address of the managers, or of the peer's group.

mod client;
mod server;

pub use client::{CallError, Client};
pub use server::Server;

use crate::station::{Station, StationError};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::Ipv4Addr;
use std::path::Path;
use weir_vmtp::packet::ETHER_TYPE;
use weir_vmtp::{Destination, Entity};
use weir_wire::EtherType;
use weir_wire::ethernet::Address;

/// The Ethernet address of an IP host group (RFC 1112 §6.4).
fn multicast(group: Ipv4Addr) -> Address {
    let [_, b, c, d] = group.octets();
    Address([0x01, 0x00, 0x5e, b & 0x7f, c, d])
}

/// The station that a packet goes to.
pub fn station_of(destination: Destination<Address>) -> Address {
    match destination {
        Destination::Known(station) => station,
        Destination::Group(group) => multicast(group),
    }
}

/// A filter of the packets whose client or server is this entity.
pub fn filter_of(entity: Entity) -> String {
    format!("{} or {}", field(14, entity), field(38, entity))
}

/// A filter of the packets that have an entity at this offset of the frame.
fn field(at: usize, entity: Entity) -> String {
    let (high, low) = (entity.0 >> 32, entity.0 & 0xffff_ffff);
    format!(
        "(ether[{at}:4] = {high:#x} and ether[{}:4] = {low:#x})",
        at + 4
    )
}

/// Opens a station whose entity has this number on its host, and returns both.
/// The host's address is the interface's; without one, the end of its Ethernet
/// address stands for it.
fn open(
    interface: &str,
    broker: Option<&Path>,
    number: u32,
) -> Result<(Station, Entity), StationError> {
    // The entity is known once the interface is.
    let nothing = "ether[14:4] = 0xffffffff and ether[38:4] = 0xffffffff";
    let mut station = Station::open(interface, broker, EtherType(ETHER_TYPE), nothing)?;
    let [_, _, c, d, e, f] = station.address().0;
    let host = station.ip().unwrap_or(Ipv4Addr::new(c, d, e, f));
    let entity = Entity::process(number, host);
    station.set_filter(&filter_of(entity))?;
    Ok((station, entity))
}

/// A number that differs from process to process.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_addresses_of_rfc_1112() {
        let managers = multicast(Entity::MANAGERS.host());
        assert_eq!(managers.to_string(), "01:00:5e:00:01:00");
        assert_eq!(
            multicast([232, 200, 4, 21].into()).to_string(),
            "01:00:5e:48:04:15"
        );
    }

    #[test]
    fn a_filter_names_both_fields() {
        let entity = Entity::process(7, [10, 0, 0, 1].into());
        assert_eq!(
            filter_of(entity),
            "(ether[14:4] = 0x7 and ether[18:4] = 0xa000001) \
             or (ether[38:4] = 0x7 and ether[42:4] = 0xa000001)"
        );
    }
}
