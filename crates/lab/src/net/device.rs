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

/// Time limit for a device to come up. The kernel reports carriers from a work
/// queue that may lag by a second.
const CARRIER_WAIT_MAX: Duration = Duration::from_secs(5);

/// A device of a host. It exists until it is [deleted](Device::delete) or the
/// host ends; clones refer to the same device.
#[derive(Clone, Debug)]
pub struct Device {
    host: Host,
    name: String,
    index: u32,
    mac: Address,
}

/// Frame counters of a device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Frames received.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Received frames that were dropped.
    pub rx_dropped: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that were dropped instead of sent.
    pub tx_dropped: u64,
}

/// The state of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceState {
    /// Its name, which may have changed.
    pub name: String,
    /// Administratively up.
    pub is_up: bool,
    /// Up, and its peer too: frames pass.
    pub is_running: bool,
    /// The MTU, in bytes.
    pub mtu: u32,
    /// Its Ethernet address.
    pub mac: Address,
    /// The frame counters.
    pub counters: Counters,
}

impl Device {
    /// A device to be created. Its number, and thus its MAC address, is chosen
    /// here and unique in the lab, so that a mistaken namespace or index is
    /// noticed.
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

    /// The netlink message that creates it, without its kind.
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

    /// The name of its creation, or the one set by [`Device::rename`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the host's namespace (`ifindex`).
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The MAC address of its creation.
    pub fn mac(&self) -> Address {
        self.mac
    }

    /// The present state.
    ///
    /// # Errors
    /// If it is gone.
    pub fn state(&self) -> Result<DeviceState, Error> {
        let found = link(&self.host, self.message());
        Ok(read_state(&found.map_err(self.failed("asking about"))?))
    }

    /// The frame counters.
    ///
    /// # Errors
    /// If it is gone.
    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(self.state()?.counters)
    }

    /// Sets the device up. A veth is running when both ends are up: see
    /// [`Device::wait_running`].
    ///
    /// # Errors
    /// If it is gone.
    pub fn up(&self) -> Result<(), Error> {
        self.flag(LinkFlags::Up, true, "setting up")
    }

    /// Sets the device down.
    ///
    /// # Errors
    /// If it is gone.
    pub fn down(&self) -> Result<(), Error> {
        self.flag(LinkFlags::Up, false, "setting down")
    }

    /// Enables or disables promiscuous mode.
    ///
    /// # Errors
    /// If it is gone.
    pub fn set_promiscuous(&self, on: bool) -> Result<(), Error> {
        self.flag(LinkFlags::Promisc, on, "making promiscuous")
    }

    /// Whether it is promiscuous, for whatever reason.
    ///
    /// # Errors
    /// If it is gone.
    pub fn is_promiscuous(&self) -> Result<bool, Error> {
        let found = link(&self.host, self.message());
        let found = found.map_err(self.failed("asking about"))?;
        // The flag in rtnetlink(7) only shows the administrator's setting.
        let count = found
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Promiscuity(count) => Some(*count),
                _ => None,
            });
        Ok(count.unwrap_or(0) > 0)
    }

    /// Moves the device to another host. Afterwards this value refers to a
    /// device that is gone.
    ///
    /// # Errors
    /// If the device is gone, or the other host has one with that name.
    pub fn move_to(&self, host: &Host) -> Result<(), Error> {
        let to = LinkAttribute::NetNsFd(host.as_fd().as_raw_fd());
        self.change(to, "moving")
    }

    /// Waits until the device is running.
    ///
    /// # Errors
    /// If it is not running within some seconds, or is gone.
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

    /// Sets the MTU, in bytes.
    ///
    /// # Errors
    /// If the device does not support it.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        self.change(LinkAttribute::Mtu(mtu), &format!("setting mtu {mtu} on"))
    }

    /// Renames the device.
    ///
    /// # Errors
    /// If the name is in use, or longer than 15 bytes.
    pub fn rename(&mut self, name: &str) -> Result<(), Error> {
        self.change(LinkAttribute::IfName(name.to_owned()), "renaming")?;
        name.clone_into(&mut self.name);
        Ok(())
    }

    /// Adds the device to a bridge of the same host.
    ///
    /// # Errors
    /// If `bridge` is not a bridge of this host.
    pub fn attach_to(&self, bridge: &Device) -> Result<(), Error> {
        self.change(LinkAttribute::Controller(bridge.index), "attaching")
    }

    /// Removes the device from its bridge.
    ///
    /// # Errors
    /// If it is gone.
    pub fn detach(&self) -> Result<(), Error> {
        self.change(LinkAttribute::Controller(0), "detaching")
    }

    /// Deletes the device, and with a veth its peer.
    ///
    /// # Errors
    /// If it is already gone.
    pub fn delete(self) -> Result<(), Error> {
        let message = RouteNetlinkMessage::DelLink(self.message());
        let done = self.host.request(message, 0);
        done.map_err(self.failed("deleting")).map(drop)
    }

    /// Sets its offloads.
    ///
    /// # Errors
    /// If the device lacks one of them.
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

    /// Adds an address, usable at once, and the route to its network.
    ///
    /// # Errors
    /// If the device already has the address.
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

    /// Adds a permanent neighbour entry: no ARP and no neighbour discovery for
    /// the address.
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

    /// Removes a neighbour entry: the next packet to the address is resolved
    /// again.
    ///
    /// # Errors
    /// If there was no entry.
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

    /// Creates a VLAN device (IEEE 802.1Q) on this device, up.
    ///
    /// # Errors
    /// [`Error::NoDeviceType`] if the kernel lacks VLAN devices.
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

    /// A netlink message with this device's number only.
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
