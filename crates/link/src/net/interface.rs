//! Properties of network interfaces.

use super::features::{self, Features};
use super::netlink::Netlink;
use netlink_packet_core::{NLM_F_DUMP, Nla};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
    XdpAttached,
};
use std::fmt;
use std::io;
use std::net::IpAddr;
use weir_wire::LinkType;

/// Why the properties of an interface are not available.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// No interface has that name or number.
    #[error("there is no interface `{which}` here; there are {}", there.join(", "))]
    Missing {
        /// The name or number.
        which: String,
        /// The names of the existing interfaces.
        there: Vec<String>,
    },
    /// The kernel's answer could not be read.
    #[error("cannot read the interfaces from the kernel ({source})")]
    System {
        /// The system's error.
        source: io::Error,
    },
}

impl From<io::Error> for InterfaceError {
    fn from(source: io::Error) -> InterfaceError {
        InterfaceError::System { source }
    }
}

/// A network address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Length of the network prefix, in bits.
    pub prefix_len: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_len)
    }
}

/// The mode of an attached XDP program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// Behind the driver.
    Generic,
    /// In hardware, or in several modes.
    Other,
}

/// An interface's XDP program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Xdp {
    /// The mode.
    pub mode: XdpMode,
    /// The program's id, if the kernel reports one.
    pub program_id: Option<u32>,
}

/// An interface's properties at the time of the query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The interface's number. It stays when the interface is renamed, and is
    /// rarely reused.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The link-layer header type; `None` if weir does not support it.
    pub linktype: Option<LinkType>,
    /// The link-layer address; empty if there is none, 6 bytes on Ethernet.
    pub address: Vec<u8>,
    /// The link-layer broadcast address, of the same length.
    pub broadcast: Vec<u8>,
    /// Bytes of the longest packet, without the link-layer header.
    pub mtu: u32,
    /// Whether the interface is administratively up (`IFF_UP`).
    pub up: bool,
    /// Whether it is up and has a carrier (`IFF_RUNNING`).
    pub running: bool,
    /// Whether it is a loopback interface.
    pub loopback: bool,
    /// Whether it is a TAP or TUN interface (driver of `/dev/net/tun`).
    pub tun: bool,
    /// Its network addresses.
    pub addresses: Vec<Address>,
    /// The attached XDP program.
    pub xdp: Option<Xdp>,
    /// Received frames that were dropped since the interface exists, as the
    /// kernel counts them: no buffer in the device or in the host's queue, or
    /// an unknown protocol.
    pub dropped: u64,
}

impl Interface {
    /// The interface with that name.
    ///
    /// # Errors
    /// [`InterfaceError::Missing`] lists the existing interfaces.
    pub fn named(name: &str) -> Result<Interface, InterfaceError> {
        Interfaces::open()?.named(name)
    }

    /// The interface with that number.
    ///
    /// # Errors
    /// As for [`named`](Self::named).
    pub fn numbered(index: u32) -> Result<Interface, InterfaceError> {
        Interfaces::open()?.numbered(index)
    }

    /// Bytes of the link-layer header.
    pub fn header_bytes(&self) -> usize {
        match self.linktype {
            Some(LinkType::EN10MB) => 14,
            _ => 0,
        }
    }

    /// The driver's offloads, by name in the calling thread's namespace; none
    /// if the interface is gone.
    pub fn features(&self) -> Features {
        features::of(&self.name).unwrap_or_default()
    }

    /// Bytes of the longest frame on the wire.
    pub fn frame_bytes_max(&self) -> usize {
        self.mtu as usize + self.header_bytes()
    }

    pub(super) fn read(message: &LinkMessage) -> Interface {
        let flags = message.header.flags;
        let mut interface = Interface {
            index: message.header.index,
            name: String::new(),
            linktype: linktype(message.header.link_layer_type),
            address: Vec::new(),
            broadcast: Vec::new(),
            mtu: 0,
            up: flags.contains(LinkFlags::Up),
            running: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
            loopback: flags.contains(LinkFlags::Loopback),
            tun: false,
            addresses: Vec::new(),
            xdp: None,
            dropped: 0,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => interface.name.clone_from(name),
                LinkAttribute::Address(bytes) => interface.address.clone_from(bytes),
                LinkAttribute::Broadcast(bytes) => interface.broadcast.clone_from(bytes),
                LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
                LinkAttribute::Stats64(counts) => {
                    interface.dropped = counts.rx_dropped + counts.rx_missed_errors;
                }
                LinkAttribute::Xdp(facts) => interface.xdp = xdp(facts),
                LinkAttribute::LinkInfo(infos) => interface.tun = infos.iter().any(is_tun),
                _ => {}
            }
        }
        interface
    }
}

/// An interface's own counts since its creation (`struct rtnl_link_stats64`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InterfaceCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
}

/// Queries the interfaces of the network namespace in which this value was
/// opened.
#[derive(Debug)]
pub struct Interfaces(Netlink);

impl Interfaces {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    /// If the process has no free file descriptors.
    pub fn open() -> io::Result<Interfaces> {
        Netlink::open().map(Interfaces)
    }

    /// The interfaces of a socket's namespace.
    pub(crate) fn of(netlink: Netlink) -> Interfaces {
        Interfaces(netlink)
    }

    /// The socket.
    pub(crate) fn netlink(&mut self) -> &mut Netlink {
        &mut self.0
    }

    /// All interfaces, ordered by number.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn all(&mut self) -> io::Result<Vec<Interface>> {
        let mut interfaces = self.links()?;
        for (owner, address) in self.addresses()? {
            if let Some(owner) = interfaces.iter_mut().find(|one| one.index == owner) {
                owner.addresses.push(address);
            }
        }
        Ok(interfaces)
    }

    /// The interface with that name or alternative name (`ip link property`).
    ///
    /// # Errors
    /// [`InterfaceError::Missing`] lists the existing interfaces.
    pub fn named(&mut self, name: &str) -> Result<Interface, InterfaceError> {
        let link = self.link(by_name(name), name)?;
        self.with_addresses(&link)
    }

    /// The interface with that number.
    ///
    /// # Errors
    /// As for [`named`](Self::named).
    pub fn numbered(&mut self, index: u32) -> Result<Interface, InterfaceError> {
        let link = self.link(by_index(index), &index.to_string())?;
        self.with_addresses(&link)
    }

    /// The counts of the interface with that number.
    ///
    /// # Errors
    /// As for [`named`](Self::named).
    pub fn counters(&mut self, index: u32) -> Result<InterfaceCounters, InterfaceError> {
        let link = self.link(by_index(index), &index.to_string())?;
        let stats = link.attributes.iter().find_map(|one| match one {
            LinkAttribute::Stats64(stats) => Some(InterfaceCounters {
                rx_frames: stats.rx_packets,
                rx_bytes: stats.rx_bytes,
                tx_frames: stats.tx_packets,
                tx_bytes: stats.tx_bytes,
            }),
            _ => None,
        });
        Ok(stats.unwrap_or_default())
    }

    /// As [`all`](Self::all), without network addresses.
    pub(super) fn links(&mut self) -> io::Result<Vec<Interface>> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let replies = self.0.request(request, NLM_F_DUMP)?.into_iter();
        let links = replies.filter_map(|reply| match reply {
            RouteNetlinkMessage::NewLink(message) => Some(Interface::read(&message)),
            _ => None,
        });
        let mut links: Vec<Interface> = links.collect();
        links.sort_by_key(|interface| interface.index);
        Ok(links)
    }

    /// All network addresses, each with its interface's number.
    fn addresses(&mut self) -> io::Result<Vec<(u32, Address)>> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let replies = self.0.request(request, NLM_F_DUMP)?.into_iter();
        let addresses = replies.filter_map(|reply| match reply {
            RouteNetlinkMessage::NewAddress(message) => {
                let ip = own_address(&message)?;
                let prefix_len = message.header.prefix_len;
                Some((message.header.index, Address { ip, prefix_len }))
            }
            _ => None,
        });
        Ok(addresses.collect())
    }

    /// Queries one interface; `which` names it in the error.
    fn link(&mut self, wanted: LinkMessage, which: &str) -> Result<LinkMessage, InterfaceError> {
        let replies = self.0.request(RouteNetlinkMessage::GetLink(wanted), 0);
        let found = match replies {
            Ok(replies) => replies.into_iter().find_map(|reply| match reply {
                RouteNetlinkMessage::NewLink(message) => Some(message),
                _ => None,
            }),
            Err(error) => match error.raw_os_error() {
                // No interface has this number or name, or none can have it.
                Some(libc::ENODEV | libc::EINVAL | libc::ERANGE) => None,
                _ => return Err(error.into()),
            },
        };
        match found {
            Some(found) => Ok(found),
            None => Err(InterfaceError::Missing {
                which: which.to_owned(),
                there: self.links()?.into_iter().map(|one| one.name).collect(),
            }),
        }
    }

    fn with_addresses(&mut self, link: &LinkMessage) -> Result<Interface, InterfaceError> {
        let mut interface = Interface::read(link);
        let all = self.addresses()?.into_iter();
        let own = all.filter(|(owner, _)| *owner == interface.index);
        interface.addresses = own.map(|(_, address)| address).collect();
        Ok(interface)
    }
}

fn by_name(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    message
}

fn by_index(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

/// All interfaces, ordered by number.
///
/// # Errors
/// If the kernel does not answer.
pub fn interfaces() -> Result<Vec<Interface>, InterfaceError> {
    Ok(Interfaces::open()?.all()?)
}

/// Received frames that the device or the kernel dropped for lack of buffers,
/// since the interface exists. Frames dropped later are counted by the port
/// that loses them.
///
/// # Errors
/// [`InterfaceError::Missing`] if no interface has that number.
pub fn drops(ifindex: u32) -> Result<u64, InterfaceError> {
    let mut interfaces = Interfaces::open()?;
    let link = interfaces.link(by_index(ifindex), &ifindex.to_string())?;
    Ok(Interface::read(&link).dropped)
}

/// Number of files, of all processes, open at the queues of a multi-queue TAP
/// interface; 0 if there is no such interface.
pub(super) fn tap_queues(name: &str) -> io::Result<u32> {
    let link = match Interfaces::open()?.link(by_name(name), name) {
        Ok(link) => link,
        Err(InterfaceError::Missing { .. }) => return Ok(0),
        Err(InterfaceError::System { source }) => return Err(source),
    };
    let infos = link.attributes.into_iter().filter_map(|one| match one {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    let facts = infos.flatten().filter_map(|info| match info {
        LinkInfo::Data(InfoData::Tun(facts)) => Some(facts),
        _ => None,
    });
    /// `IFLA_TUN_NUM_QUEUES`, and `IFLA_TUN_NUM_DISABLED_QUEUES`.
    const COUNTS: [u16; 2] = [8, 9];
    let counts = facts.flatten().map(|fact| {
        let mut count = [0; 4];
        if COUNTS.contains(&fact.kind()) && fact.value_len() == count.len() {
            fact.emit_value(&mut count);
        }
        u32::from_ne_bytes(count)
    });
    Ok(counts.sum())
}

/// The number of the interface with that name, in the calling thread's
/// namespace.
pub(crate) fn find_index(name: &str) -> io::Result<u32> {
    find_index_by(&mut Interfaces::open()?, name)
}

/// As [`find_index`], in the namespace of these interfaces.
pub(crate) fn find_index_by(interfaces: &mut Interfaces, name: &str) -> io::Result<u32> {
    match interfaces.link(by_name(name), name) {
        Ok(message) => Ok(message.header.index),
        Err(InterfaceError::Missing { .. }) => Err(io::ErrorKind::NotFound.into()),
        Err(InterfaceError::System { source }) => Err(source),
    }
}

/// The interface's own address: on a point-to-point link `IFA_ADDRESS` is the
/// peer's.
fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => return Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            _ => {}
        }
    }
    address
}

/// Whether it is a TAP or TUN interface.
fn is_tun(info: &LinkInfo) -> bool {
    matches!(info, LinkInfo::Kind(InfoKind::Tun))
}

fn linktype(hardware: LinkLayerType) -> Option<LinkType> {
    match hardware {
        LinkLayerType::Ether | LinkLayerType::Loopback => Some(LinkType::EN10MB),
        // A frame is an IP packet, without a link-layer header.
        LinkLayerType::None
        | LinkLayerType::Rawip
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ppp => Some(LinkType::RAW),
        _ => None,
    }
}

fn xdp(facts: &[LinkXdp]) -> Option<Xdp> {
    let attached = facts.iter().find_map(|fact| match fact {
        LinkXdp::Attached(attached) => Some(*attached),
        _ => None,
    });
    let mode = match attached? {
        XdpAttached::None => return None,
        XdpAttached::Driver => XdpMode::Native,
        XdpAttached::SocketBuffer => XdpMode::Generic,
        _ => XdpMode::Other,
    };
    let program_id = facts.iter().find_map(|fact| match fact {
        LinkXdp::ProgId(id) => Some(*id),
        _ => None,
    });
    Some(Xdp { mode, program_id })
}
