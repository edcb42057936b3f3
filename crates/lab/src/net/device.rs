//! Devices of a host.

use super::error::{Error, failed};
use super::host::Host;
use super::offloads::{self, Offloads};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::RouteType;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::{Duration, Instant};
use weir_wire::ethernet::Address;

/// How long a device may take to come up. The kernel tells of carriers from a
/// work queue that may lag behind by a second.
const CARRIER_WAIT_MAX: Duration = Duration::from_secs(5);

/// A device of a host. It stays until it is [deleted](Device::delete) or the
/// host is gone; clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    host: Host,
    name: String,
    index: u32,
    mac: Address,
}

/// What a device has carried, and what it has dropped.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Frames received.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that came in and were dropped.
    pub rx_dropped: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that were to be sent and were dropped.
    pub tx_dropped: u64,
}

/// How a device is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceState {
    /// Its name, which may have been changed.
    pub name: String,
    /// Set up by its owner.
    pub is_up: bool,
    /// Up, and its other end too: frames pass.
    pub is_running: bool,
    /// Bytes of the longest packet, without the Ethernet header.
    pub mtu: u32,
    /// Its Ethernet address.
    pub mac: Address,
    /// What it has carried.
    pub counters: Counters,
}

impl Device {
    /// One that is yet to be made: its number, and with it its Ethernet
    /// address, is chosen here and differs from every other of the lab, so
    /// that a mistaken namespace or index is noticed.
    pub(super) fn planned(host: Host, name: String) -> Device {
        let index = host.next_number();
        let [high, low] = (index as u16).to_be_bytes();
        Device {
            host,
            name,
            index,
            mac: Address([0x02, 0, 0, 0, high, low]),
        }
    }

    /// The message that makes it, but for its kind.
    pub(super) fn creation(&self) -> LinkMessage {
        let mut message = self.message();
        message.attributes = vec![
            LinkAttribute::IfName(self.name.clone()),
            LinkAttribute::Address(self.mac.0.to_vec()),
        ];
        message
    }

    pub(super) fn existing(host: Host, name: &str) -> Result<Device, Error> {
        let what = format!("looking for device `{name}` on host `{}`", host.name());
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        let found = link(&host, message).map_err(failed(what))?;
        Ok(Device {
            name: name.to_owned(),
            index: found.header.index,
            mac: read_state(&found).mac,
            host,
        })
    }

    /// The host it belongs to.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The name it was made with, or got by [`Device::rename`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the host's namespace (`ifindex`).
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The Ethernet address it was made with.
    pub fn mac(&self) -> Address {
        self.mac
    }

    /// How it is now.
    ///
    /// # Errors
    /// If it is gone.
    pub fn state(&self) -> Result<DeviceState, Error> {
        let found = link(&self.host, self.message());
        Ok(read_state(&found.map_err(self.failed("asking about"))?))
    }

    /// What it has carried.
    ///
    /// # Errors
    /// If it is gone.
    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(self.state()?.counters)
    }

    /// Sets it up. A veth runs when both ends are up: see
    /// [`Device::wait_running`].
    ///
    /// # Errors
    /// If it is gone.
    pub fn up(&self) -> Result<(), Error> {
        self.flag(LinkFlags::Up, true, "setting up")
    }

    /// Sets it down.
    ///
    /// # Errors
    /// If it is gone.
    pub fn down(&self) -> Result<(), Error> {
        self.flag(LinkFlags::Up, false, "setting down")
    }

    /// Receives frames to any Ethernet address, or no longer.
    ///
    /// # Errors
    /// If it is gone.
    pub fn set_promiscuous(&self, on: bool) -> Result<(), Error> {
        self.flag(LinkFlags::Promisc, on, "making promiscuous")
    }

    /// Whether it receives frames to any Ethernet address, by whoever's wish.
    ///
    /// # Errors
    /// If it is gone.
    pub fn is_promiscuous(&self) -> Result<bool, Error> {
        let found = link(&self.host, self.message());
        let found = found.map_err(self.failed("asking about"))?;
        // The flag of rtnetlink(7) is the user's wish alone.
        let count = found
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Promiscuity(count) => Some(*count),
                _ => None,
            });
        Ok(count.unwrap_or(0) > 0)
    }

    /// Moves it to another host. What this device says afterwards is that it
    /// is gone.
    ///
    /// # Errors
    /// If it is gone already, or the other host has one of that name.
    pub fn move_to(&self, host: &Host) -> Result<(), Error> {
        let to = LinkAttribute::NetNsFd(host.as_fd().as_raw_fd());
        self.change(to, "moving")
    }

    /// Waits until frames pass.
    ///
    /// # Errors
    /// If they do not within some seconds, or it is gone.
    pub fn wait_running(&self) -> Result<(), Error> {
        let start = Instant::now();
        while !self.state()?.is_running {
            if start.elapsed() > CARRIER_WAIT_MAX {
                return Err(Error::NoCarrier {
                    name: self.name.clone(),
                    millis: start.elapsed().as_millis(),
                });
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Sets the longest packet it carries, in bytes without the Ethernet
    /// header.
    ///
    /// # Errors
    /// If the device does not carry so long or so short ones.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        self.change(LinkAttribute::Mtu(mtu), &format!("setting mtu {mtu} on"))
    }

    /// Gives it another name.
    ///
    /// # Errors
    /// If the name is taken, or longer than 15 bytes.
    pub fn rename(&mut self, name: &str) -> Result<(), Error> {
        self.change(LinkAttribute::IfName(name.to_owned()), "renaming")?;
        name.clone_into(&mut self.name);
        Ok(())
    }

    /// Makes it a port of a bridge of the same host.
    ///
    /// # Errors
    /// If that is no bridge of this host.
    pub fn attach_to(&self, bridge: &Device) -> Result<(), Error> {
        self.change(LinkAttribute::Controller(bridge.index), "attaching")
    }

    /// Takes it out of its bridge.
    ///
    /// # Errors
    /// If it is gone.
    pub fn detach(&self) -> Result<(), Error> {
        self.change(LinkAttribute::Controller(0), "detaching")
    }

    /// Removes it, and with a veth its other end.
    ///
    /// # Errors
    /// If it is gone already.
    pub fn delete(self) -> Result<(), Error> {
        let message = RouteNetlinkMessage::DelLink(self.message());
        let done = self.host.request(message, 0);
        done.map_err(self.failed("deleting")).map(drop)
    }

    /// Sets its offloads.
    ///
    /// # Errors
    /// If it lacks one of them.
    pub fn set_offloads(&self, offloads: Offloads) -> Result<(), Error> {
        let set = self.host.run(|| offloads::set(&self.name, offloads));
        set.map_err(self.failed("setting the offloads of"))
    }

    /// Its offloads.
    ///
    /// # Errors
    /// If it is gone.
    pub fn offloads(&self) -> Result<Offloads, Error> {
        let get = self.host.run(|| offloads::get(&self.name));
        get.map_err(self.failed("reading the offloads of"))
    }

    /// Gives it an address, usable at once, with the network it is in.
    ///
    /// # Errors
    /// If it has the address already.
    pub fn add_address(&self, address: impl Into<IpAddr>, prefix_len: u8) -> Result<(), Error> {
        let address = address.into();
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.header.index = self.index;
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes = vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
        ];
        let message = RouteNetlinkMessage::NewAddress(message);
        let added = self.host.request(message, NLM_F_CREATE | NLM_F_REPLACE);
        let what = format!("adding address {address}/{prefix_len} to");
        added.map_err(self.failed(&what)).map(drop)
    }

    /// Says for good which Ethernet address an address has: no ARP and no
    /// neighbour discovery for it.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn add_neighbour(&self, address: impl Into<IpAddr>, mac: Address) -> Result<(), Error> {
        let address = address.into();
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = self.index;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            NeighbourAttribute::Destination(address.into()),
            NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()),
        ];
        let message = RouteNetlinkMessage::NewNeighbour(message);
        let added = self.host.request(message, NLM_F_CREATE | NLM_F_REPLACE);
        let what = format!("adding neighbour {address} to");
        added.map_err(self.failed(&what)).map(drop)
    }

    /// Forgets which Ethernet address an address has: the next packet to it
    /// asks again.
    ///
    /// # Errors
    /// If it was not known.
    pub fn remove_neighbour(&self, address: impl Into<IpAddr>) -> Result<(), Error> {
        let address = address.into();
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = self.index;
        message.attributes = vec![NeighbourAttribute::Destination(address.into())];
        let removed = self
            .host
            .request(RouteNetlinkMessage::DelNeighbour(message), 0);
        let what = format!("removing neighbour {address} from");
        removed.map_err(self.failed(&what)).map(drop)
    }

    /// Makes a device for one VLAN (IEEE 802.1Q) above this one, up.
    ///
    /// # Errors
    /// [`Error::NoDeviceType`] where the kernel has no such devices.
    pub fn vlan(&self, name: &str, id: u16) -> Result<Device, Error> {
        let info = vec![
            LinkInfo::Kind(InfoKind::Vlan),
            LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(id)])),
        ];
        let attributes = vec![
            LinkAttribute::Link(self.index),
            LinkAttribute::LinkInfo(info),
        ];
        let device = self.host.make_device(name, "vlan", attributes)?;
        device.up()?;
        Ok(device)
    }

    fn flag(&self, flag: LinkFlags, on: bool, what: &str) -> Result<(), Error> {
        let mut message = self.message();
        message.header.change_mask = flag;
        if on {
            message.header.flags = flag;
        }
        self.set(message, what)
    }

    fn change(&self, attribute: LinkAttribute, what: &str) -> Result<(), Error> {
        let mut message = self.message();
        message.attributes.push(attribute);
        self.set(message, what)
    }

    fn set(&self, message: LinkMessage, what: &str) -> Result<(), Error> {
        let done = self.host.request(RouteNetlinkMessage::SetLink(message), 0);
        done.map_err(self.failed(what)).map(drop)
    }

    /// A message about this device that says nothing more.
    fn message(&self) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = self.index;
        message
    }

    fn failed(&self, what: &str) -> impl FnOnce(io::Error) -> Error + use<> {
        failed(format!(
            "{what} device `{}` on host `{}`",
            self.name,
            self.host.name()
        ))
    }
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn link(host: &Host, message: LinkMessage) -> io::Result<LinkMessage> {
    let replies = host.request(RouteNetlinkMessage::GetLink(message), 0)?;
    let mut links = replies.into_iter().filter_map(|reply| match reply {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    links.next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn read_state(message: &LinkMessage) -> DeviceState {
    let mut facts = DeviceState {
        name: String::new(),
        is_up: message.header.flags.contains(LinkFlags::Up),
        is_running: false,
        mtu: 0,
        mac: Address::default(),
        counters: Counters::default(),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => facts.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => facts.mtu = *mtu,
            LinkAttribute::OperState(state) => facts.is_running = *state == State::Up,
            LinkAttribute::Address(bytes) => {
                facts.mac = bytes.as_slice().try_into().map_or(facts.mac, Address);
            }
            LinkAttribute::Stats64(stats) => {
                facts.counters = Counters {
                    rx_frames: stats.rx_packets,
                    rx_bytes: stats.rx_bytes,
                    rx_dropped: stats.rx_dropped,
                    tx_frames: stats.tx_packets,
                    tx_bytes: stats.tx_bytes,
                    tx_dropped: stats.tx_dropped,
                };
            }
            _ => {}
        }
    }
    facts
}
