//! Creating and removing veth pairs.

use super::netlink::Netlink;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Creates a veth pair: `near` in the calling thread's namespace, `far` in
/// another. Both ends are down and get no automatic address.
pub(crate) fn veth(near: &str, far: &str, namespace: BorrowedFd<'_>, mtu: u32) -> io::Result<()> {
    let end = |name: &str| {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(mtu),
        ];
        message
    };
    let mut peer = end(far);
    peer.attributes
        .push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
    let mut message = end(near);
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    let request = RouteNetlinkMessage::NewLink(message);
    send(request, NLM_F_CREATE | NLM_F_EXCL)
}

/// Sets an interface up, without automatic IPv6 addresses.
pub(crate) fn up(ifindex: u32) -> io::Result<()> {
    up_by(&mut Netlink::open()?, ifindex)
}

/// As [`up`], in the namespace of this socket.
pub(crate) fn up_by(netlink: &mut Netlink, ifindex: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = ifindex;
    // A kernel without IPv6 refuses the setting, and creates no address either.
    let none = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    message.attributes = vec![LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(
        vec![none],
    )])];
    let _ = netlink.request(RouteNetlinkMessage::SetLink(message), 0);
    let mut message = LinkMessage::default();
    message.header.index = ifindex;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    netlink.request(RouteNetlinkMessage::SetLink(message), 0)?;
    Ok(())
}

/// Sets an interface down.
pub(crate) fn down(ifindex: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = ifindex;
    message.header.change_mask = LinkFlags::Up;
    send(RouteNetlinkMessage::SetLink(message), 0)
}

/// Removes an interface; with one end of a veth, also the other.
pub(crate) fn delete(name: &str) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    send(RouteNetlinkMessage::DelLink(message), 0)
}

fn send(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    Netlink::open()?.request(message, flags)?;
    Ok(())
}
