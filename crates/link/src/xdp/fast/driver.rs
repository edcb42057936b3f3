//! Whether a driver takes frames that programs redirect to it, as the kernel
//! tells by the generic netlink family `netdev`
//! (`Documentation/netlink/specs/netdev.yaml`, Linux 6.3). To one that does
//! not, redirected frames are lost.

use rustix::io::retry_on_intr;
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
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_NDO_XMIT`.
const NDO_XMIT: u64 = 1 << 2;

const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// Of `struct nlmsghdr`, and of `struct genlmsghdr`.
const HEADER: usize = 16;
const GENERIC: usize = 4;

/// Whether the interface, of the calling thread's network namespace, takes
/// frames that a program at another one redirects to it. A veth does while its
/// other end has a program at XDP or joins what it receives (GRO).
///
/// # Errors
/// What the system says; kernels before 6.3 do not tell.
pub fn takes_redirected(ifindex: u32) -> io::Result<bool> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    let protocol = Some(netlink::GENERIC);
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let family = ask(&socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name)?;
    let family = find(&family, CTRL_ATTR_FAMILY_ID)
        .and_then(|id| Some(u16::from_ne_bytes(*id.first_chunk()?)))
        .ok_or(io::ErrorKind::Unsupported)?;
    let index = attribute(NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
    let device = ask(&socket, family, NETDEV_CMD_DEV_GET, &index)?;
    let features = find(&device, NETDEV_A_DEV_XDP_FEATURES)
        .and_then(|bits| Some(u64::from_ne_bytes(*bits.first_chunk()?)))
        .ok_or(io::ErrorKind::Unsupported)?;
    Ok(features & NDO_XMIT != 0)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = (4 + value.len()) as u16;
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Sends a request and gives the attributes of its one answer.
fn ask(socket: &OwnedFd, family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
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
    let kind = answer.get(4..6).and_then(|kind| kind.first_chunk());
    if kind.map(|kind| u16::from_ne_bytes(*kind)) == Some(NLMSG_ERROR) {
        let code = answer.get(HEADER..).and_then(|code| code.first_chunk());
        let code = code.map_or(0, |code| i32::from_ne_bytes(*code));
        return Err(io::Error::from_raw_os_error(-code));
    }
    let attributes = answer.get(HEADER + GENERIC..);
    Ok(attributes.unwrap_or_default().to_vec())
}

/// The value of the first attribute of that kind.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let [l0, l1, k0, k1] = *attributes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = attributes.get(4..len)?;
        if u16::from_ne_bytes([k0, k1]) & 0x3fff == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}
