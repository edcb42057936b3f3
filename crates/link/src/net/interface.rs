//! What an interface is.

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

/// Why an interface was not found out about.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// There is none of that name or number.
    #[error("there is no interface `{which}` here; there are {}", there.join(", "))]
    Missing {
        /// Which was asked for.
        which: String,
        /// The names of those there are.
        there: Vec<String>,
    },
    /// The kernel did not say.
    #[error("the kernel does not tell of its interfaces ({source})")]
    System {
        /// What the system said.
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
    /// How many bits of it are the network's.
    pub prefix_len: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_len)
    }
}

/// How an XDP program is attached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// Behind the driver.
    Generic,
    /// In the hardware, or at several of these places.
    Other,
}

/// The XDP program of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Xdp {
    /// Where it runs.
    pub mode: XdpMode,
    /// The kernel's number for it, if it says.
    pub program_id: Option<u32>,
}

/// An interface, at the moment it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its number: stays when it is renamed, and is not given again soon.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// How its frames begin; `None` where weir does not know.
    pub linktype: Option<LinkType>,
    /// Its link-layer address, empty where there are none; 6 bytes for
    /// Ethernet.
    pub address: Vec<u8>,
    /// The link-layer address of all, as long as `address`.
    pub broadcast: Vec<u8>,
    /// Bytes of the longest packet, without the link-layer header.
    pub mtu: u32,
    /// Set up by its owner.
    pub up: bool,
    /// Up, and something at the other end: frames pass.
    pub running: bool,
    /// What is sent there comes in there.
    pub loopback: bool,
    /// It is made by the driver of `/dev/net/tun`: a TAP or TUN interface.
    pub tun: bool,
    /// Its network addresses.
    pub addresses: Vec<Address>,
    /// The XDP program on it.
    pub xdp: Option<Xdp>,
    /// Frames that came and were dropped, since it exists, as the kernel
    /// counts: those that the device or the host's queue had no room for, and
    /// those of protocols that the host does not know.
    pub dropped: u64,
}

impl Interface {
    /// The interface of that name.
    ///
    /// # Errors
    /// [`InterfaceError::Missing`] names those there are.
    pub fn named(name: &str) -> Result<Interface, InterfaceError> {
        Interfaces::open()?.named(name)
    }

    /// The interface of that number.
    ///
    /// # Errors
    /// As for [`named`](Self::named).
    pub fn numbered(index: u32) -> Result<Interface, InterfaceError> {
        Interfaces::open()?.numbered(index)
    }

    /// Bytes before the packet in each frame.
    pub fn header_bytes(&self) -> usize {
        match self.linktype {
            Some(LinkType::EN10MB) => 14,
            _ => 0,
        }
    }

    /// What its driver does; nothing if it has gone since. In the calling
    /// thread's namespace.
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

/// Asks for the interfaces of the network namespace that it was opened in.
#[derive(Debug)]
pub struct Interfaces(Netlink);

impl Interfaces {
    /// Those of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn open() -> io::Result<Interfaces> {
        Netlink::open().map(Interfaces)
    }

    /// Every interface, by number.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn all(&mut self) -> io::Result<Vec<Interface>> {
        let mut interfaces = self.links()?;
        for (owner, address) in self.addresses()? {
            if let Some(owner) = interfaces.iter_mut().find(|one| one.index == owner) {
                owner.addresses.push(address);
            }
        }
        Ok(interfaces)
    }

    /// The interface of that name, or other name (`ip link property`).
    ///
    /// # Errors
    /// [`InterfaceError::Missing`] names those there are.
    pub fn named(&mut self, name: &str) -> Result<Interface, InterfaceError> {
        let link = self.link(by_name(name), name)?;
        self.with_addresses(&link)
    }

    /// The interface of that number.
    ///
    /// # Errors
    /// As for [`named`](Self::named).
    pub fn numbered(&mut self, index: u32) -> Result<Interface, InterfaceError> {
        let link = self.link(by_index(index), &index.to_string())?;
        self.with_addresses(&link)
    }

    /// As [`all`](Self::all), without addresses.
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

    /// Asks for one; `which` is what to call it.
    fn link(&mut self, wanted: LinkMessage, which: &str) -> Result<LinkMessage, InterfaceError> {
        let replies = self.0.request(RouteNetlinkMessage::GetLink(wanted), 0);
        let found = match replies {
            Ok(replies) => replies.into_iter().find_map(|reply| match reply {
                RouteNetlinkMessage::NewLink(message) => Some(message),
                _ => None,
            }),
            Err(error) => match error.raw_os_error() {
                // No such one, or none can have that number or name.
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

/// Every interface, by number.
///
/// # Errors
/// When the kernel does not say.
pub fn interfaces() -> Result<Vec<Interface>, InterfaceError> {
    Ok(Interfaces::open()?.all()?)
}

/// Frames that came to an interface and were dropped before anybody saw them,
/// by the device for want of buffers or by the kernel, since it is there.
/// What is lost later is lost by a port, which counts it itself.
///
/// # Errors
/// [`InterfaceError::Missing`] if there is none of that number.
pub fn drops(ifindex: u32) -> Result<u64, InterfaceError> {
    let mut interfaces = Interfaces::open()?;
    let link = interfaces.link(by_index(ifindex), &ifindex.to_string())?;
    Ok(Interface::read(&link).dropped)
}

/// How many files are open at the queues of a TAP interface that may have
/// several, of all programs; none if there is no such interface.
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

/// The number of the interface of that name, in the calling thread's
/// namespace.
pub(crate) fn find_index(name: &str) -> io::Result<u32> {
    match Interfaces::open()?.link(by_name(name), name) {
        Ok(message) => Ok(message.header.index),
        Err(InterfaceError::Missing { .. }) => Err(io::ErrorKind::NotFound.into()),
        Err(InterfaceError::System { source }) => Err(source),
    }
}

/// The interface's own address: on a point-to-point link `IFA_ADDRESS` is the
/// other end's.
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

/// Whether the kernel's driver of TAP and TUN interfaces made it.
fn is_tun(info: &LinkInfo) -> bool {
    matches!(info, LinkInfo::Kind(InfoKind::Tun))
}

fn linktype(hardware: LinkLayerType) -> Option<LinkType> {
    match hardware {
        LinkLayerType::Ether | LinkLayerType::Loopback => Some(LinkType::EN10MB),
        // A frame is an IP packet, and nothing before it.
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
