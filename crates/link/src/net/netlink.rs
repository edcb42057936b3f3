//! A routing netlink socket (RFC 3549).

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;

/// The longest datagram that the kernel sends.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// A socket of the calling thread's namespace, that hears of these `groups`
/// (bits of `RTMGRP_*`).
pub(super) fn open(groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let protocol = None; // NETLINK_ROUTE is 0
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Sends a request and gives the answers to it.
pub(super) fn request(
    socket: &OwnedFd,
    message: RouteNetlinkMessage,
    flags: u16,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = 1;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    send(socket, &bytes, SendFlags::empty())?;
    let mut replies = Vec::new();
    loop {
        let (found, end) = receive(socket, RecvFlags::empty())?;
        replies.extend(found);
        if end {
            return Ok(replies);
        }
    }
}

/// One datagram: its messages, and whether it ends an answer. A message that
/// the library cannot read is left out: newer kernels say more than it knows.
pub(super) fn receive(
    socket: &OwnedFd,
    flags: RecvFlags,
) -> io::Result<(Vec<RouteNetlinkMessage>, bool)> {
    let mut buffer = vec![0; REPLY_BYTES_MAX];
    let (len, _) = recv(socket, &mut buffer, flags)?;
    let (mut messages, mut end) = (Vec::new(), false);
    let mut rest = &buffer[..len];
    // Each begins with its length, on a multiple of four (RFC 3549 §2.3.2).
    while let Some((len, _)) = rest.split_first_chunk() {
        let len = u32::from_ne_bytes(*len) as usize;
        let Some(bytes) = rest.get(..len) else { break };
        rest = rest
            .get(len.next_multiple_of(4).max(4)..)
            .unwrap_or_default();
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) else {
            continue;
        };
        let in_parts = message.header.flags & netlink_packet_core::NLM_F_MULTIPART != 0;
        match message.payload {
            NetlinkPayload::InnerMessage(message) => {
                messages.push(message);
                end |= !in_parts;
            }
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => end = true,
            _ => {}
        }
    }
    Ok((messages, end))
}
