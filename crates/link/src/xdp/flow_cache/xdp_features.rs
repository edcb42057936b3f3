//! Whether a driver accepts redirected frames (`ndo_xdp_xmit`), from the
//! generic netlink family `netdev` (`Documentation/netlink/specs/netdev.yaml`,
//! Linux 6.3). Frames redirected to any other driver are lost.
//!
//! A query takes the lock of all network configuration (RTNL), which other
//! processes may hold for long; receiving notifications takes no lock.

use crate::net::set_option;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_CMD_DEV_CHANGE_NTF: u8 = 4;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_NDO_XMIT`.
const NDO_XMIT: u64 = 1 << 2;

const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// Bytes of `struct nlmsghdr` and of `struct genlmsghdr`.
const HEADER: usize = 16;
const GENERIC: usize = 4;

/// Whether the interface, of the calling thread's network namespace, accepts
/// frames that a program at another interface redirects to it. A veth does
/// while its peer has an XDP program or GRO enabled.
///
/// # Errors
/// The system's error; kernels before 6.3 lack the query.
pub fn supports_ndo_xmit(ifindex: u32) -> io::Result<bool> {
    let socket = open()?;
    let family = family(&socket)?;
    let family = number(find(&family, CTRL_ATTR_FAMILY_ID)).ok_or(io::ErrorKind::Unsupported)?;
    let index = attribute(NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
    let device = request(&socket, family, NETDEV_CMD_DEV_GET, &index)?;
    let (_, takes) = device_of(&device).ok_or(io::ErrorKind::Unsupported)?;
    Ok(takes)
}

/// Receives notifications of drivers that start or stop accepting redirected
/// frames.
#[derive(Debug)]
pub struct XdpFeatureMonitor {
    socket: OwnedFd,
}

/// A notification of [`XdpFeatureMonitor`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpFeatureEvent {
    /// Whether an interface now [accepts redirected frames](supports_ndo_xmit).
    Changed {
        /// The interface.
        ifindex: u32,
        /// Whether it accepts redirected frames.
        supports_ndo_xmit: bool,
    },
    /// Notifications were lost: the state of every interface is unknown.
    Missed,
}

impl XdpFeatureMonitor {
    /// Receives notifications of the calling thread's network namespace.
    ///
    /// # Errors
    /// The system's error; kernels before 6.3 lack these notifications.
    pub fn open() -> io::Result<XdpFeatureMonitor> {
        let socket = open()?;
        let family = family(&socket)?;
        let groups = find(&family, CTRL_ATTR_MCAST_GROUPS).unwrap_or_default();
        let group = attributes(groups).find_map(|(_, group)| {
            let name = find(group, CTRL_ATTR_MCAST_GRP_NAME)?;
            let id = *find(group, CTRL_ATTR_MCAST_GRP_ID)?.first_chunk()?;
            (name == b"mgmt\0").then_some(u32::from_ne_bytes(id))
        });
        let group = group.ok_or(io::ErrorKind::Unsupported)?;
        let (level, option) = (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP);
        set_option(&socket, level, option, &group)?;
        Ok(XdpFeatureMonitor { socket })
    }

    /// The next notification; `None` if there is none now.
    pub fn next_event(&self) -> Option<XdpFeatureEvent> {
        let mut message = [0; 1024];
        loop {
            let received = retry_on_intr(|| recv(&self.socket, &mut message, RecvFlags::DONTWAIT));
            let len = match received {
                Ok((len, _)) => len,
                Err(Errno::NOBUFS) => return Some(XdpFeatureEvent::Missed),
                Err(_) => return None,
            };
            let Some(body) = message.get(HEADER..len) else {
                continue;
            };
            let changed = body.get(GENERIC..).and_then(device_of);
            if let (Some(&NETDEV_CMD_DEV_CHANGE_NTF), Some((ifindex, supports_ndo_xmit))) =
                (body.first(), changed)
            {
                return Some(XdpFeatureEvent::Changed {
                    ifindex,
                    supports_ndo_xmit,
                });
            }
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    let protocol = Some(netlink::GENERIC);
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

/// Queries the attributes of the family `netdev`.
fn family(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    request(socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name)
}

/// An interface's number, and whether it accepts redirected frames.
fn device_of(attributes: &[u8]) -> Option<(u32, bool)> {
    let index = *find(attributes, NETDEV_A_DEV_IFINDEX)?.first_chunk()?;
    let features = *find(attributes, NETDEV_A_DEV_XDP_FEATURES)?.first_chunk()?;
    let takes = u64::from_ne_bytes(features) & NDO_XMIT != 0;
    Some((u32::from_ne_bytes(index), takes))
}

fn number(value: Option<&[u8]>) -> Option<u16> {
    Some(u16::from_ne_bytes(*value?.first_chunk()?))
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = (4 + value.len()) as u16;
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Sends a request and returns the attributes of its one reply.
fn request(socket: &OwnedFd, family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
    let len = (HEADER + GENERIC + attributes.len()) as u32;
    let mut message = len.to_ne_bytes().to_vec();
    message.extend(family.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    retry_on_intr(|| send(socket, &message, SendFlags::empty()))?;
    let mut answer = vec![0; 8192];
    let (len, _) = retry_on_intr(|| recv(socket, &mut *answer, RecvFlags::empty()))?;
    let answer = answer.get(..len).unwrap_or_default();
    if number(answer.get(4..6)) == Some(NLMSG_ERROR) {
        let code = answer.get(HEADER..).and_then(|code| code.first_chunk());
        let code = code.map_or(0, |code| i32::from_ne_bytes(*code));
        return Err(io::Error::from_raw_os_error(-code));
    }
    let attributes = answer.get(HEADER + GENERIC..);
    Ok(attributes.unwrap_or_default().to_vec())
}

/// Types and values, up to the first invalid attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(number(bytes.get(..2))?);
        let kind = number(bytes.get(2..4))? & 0x3fff;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute with that type.
fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(is, value)| (is == kind).then_some(value))
}
