//! Links: a veth pair, with one end in each host.

use super::device::Device;
use super::error::{Error, failed};
use super::host::Host;
use super::offloads::Offloads;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

/// The settings of a link; [`LinkBuilder::connect`] creates it.
#[derive(Debug)]
#[must_use = "a link is made by `connect`"]
pub struct LinkBuilder<'a> {
    hosts: [&'a Host; 2],
    names: [Option<String>; 2],
    addresses: Vec<([IpAddr; 2], u8)>,
    offloads: Offloads,
    mtu: u32,
    queues: u32,
    neighbours: bool,
}

impl<'a> LinkBuilder<'a> {
    pub(super) fn new(a: &'a Host, b: &'a Host) -> LinkBuilder<'a> {
        LinkBuilder {
            hosts: [a, b],
            names: [None, None],
            addresses: Vec::new(),
            offloads: Offloads::OFF,
            mtu: 1500,
            queues: 1,
            neighbours: false,
        }
    }

    /// Names of the two devices, at most 15 bytes. By default each host numbers
    /// its own: `eth0`, `eth1` and so on.
    pub fn names(mut self, a: &str, b: &str) -> Self {
        self.names = [Some(a.to_owned()), Some(b.to_owned())];
        self
    }

    /// An address for each end, both IPv4 or both IPv6, with a common prefix
    /// length. Can be repeated.
    pub fn addresses(mut self, a: impl Into<IpAddr>, b: impl Into<IpAddr>, prefix_len: u8) -> Self {
        self.addresses.push(([a.into(), b.into()], prefix_len));
        self
    }

    /// The offloads of both ends; by default [`Offloads::OFF`].
    pub fn offloads(mut self, offloads: Offloads) -> Self {
        self.offloads = offloads;
        self
    }

    /// The MTU in bytes; by default 1500.
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Number of queues in each direction at both ends; by default one. XDP
    /// redirection needs one for each CPU.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Adds permanent neighbour entries at both ends, so that there are no ARP
    /// and neighbour discovery frames.
    pub fn neighbours(mut self) -> Self {
        self.neighbours = true;
        self
    }

    /// Creates the link, with both ends up and running.
    ///
    /// # Errors
    /// If a name is in use, or the kernel refuses a setting.
    pub fn connect(self) -> Result<(Device, Device), Error> {
        let ends = self.make()?;
        for (end, device) in ends.iter().enumerate() {
            device.set_offloads(self.offloads)?;
            device.up()?;
            for (addresses, prefix_len) in &self.addresses {
                device.add_address(addresses[end], *prefix_len)?;
                if self.neighbours {
                    device.add_neighbour(addresses[1 - end], ends[1 - end].mac())?;
                }
            }
        }
        for device in &ends {
            device.wait_running()?;
        }
        let [a, b] = ends;
        Ok((a, b))
    }

    /// Creates both devices, down.
    fn make(&self) -> Result<[Device; 2], Error> {
        let plan = |end: usize| {
            let host = self.hosts[end];
            let name = self.names[end].clone();
            Device::planned(host.clone(), name.unwrap_or_else(|| host.next_name()))
        };
        let ends = [plan(0), plan(1)];
        let mut peer = ends[1].creation();
        peer.attributes.extend(self.attributes());
        let namespace = self.hosts[1].as_fd().as_raw_fd();
        peer.attributes.push(LinkAttribute::NetNsFd(namespace));
        let mut message = ends[0].creation();
        message.attributes.extend(self.attributes());
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        let what = format!("linking {:?} and {:?}", self.hosts[0], self.hosts[1]);
        self.hosts[0].create(message).map_err(failed(what))?;
        Ok(ends)
    }

    fn attributes(&self) -> [LinkAttribute; 3] {
        [
            LinkAttribute::Mtu(self.mtu),
            LinkAttribute::NumTxQueues(self.queues),
            LinkAttribute::NumRxQueues(self.queues),
        ]
    }
}
