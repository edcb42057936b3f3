//! A routing netlink socket (RFC 3549).

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::retry_on_intr;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest datagram that the kernel sends: a dump comes in pieces of
/// 32 KiB at most.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// A routing netlink socket: one request at a time, each acknowledged. It
/// stays in the network namespace that it was opened in, whoever uses it.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// In the calling thread's network namespace.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn open() -> io::Result<Netlink> {
        Netlink::listening(0)
    }

    /// One that hears of these `groups` (bits of `RTMGRP_*`).
    pub(super) fn listening(groups: u32) -> io::Result<Netlink> {
        let flags = SocketFlags::CLOEXEC;
        let protocol = None; // NETLINK_ROUTE is 0
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Netlink {
            socket,
            sequence: 0,
        })
    }

    /// Sends a request, with these `NLM_F_*` flags besides, and gives what the
    /// kernel answers to it, up to its acknowledgement.
    ///
    /// # Errors
    /// What the kernel answers, as the system's error number.
    pub fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.ask(message, NLM_F_ACK | flags)?;
        let mut replies = Vec::new();
        loop {
            for message in self.receive(RecvFlags::empty())? {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(reply) => replies.push(reply),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(replies),
                    _ => {}
                }
            }
        }
    }

    /// Sends a request, and leaves the answers to be [received](Self::receive).
    pub(super) fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        retry_on_intr(|| send(&self.socket, &bytes, SendFlags::empty()))?;
        Ok(())
    }

    /// The messages of one datagram. One that the library cannot read is left
    /// out: newer kernels say more than it knows.
    pub(super) fn receive(
        &self,
        flags: RecvFlags,
    ) -> io::Result<Vec<NetlinkMessage<RouteNetlinkMessage>>> {
        let mut buffer = vec![0; REPLY_BYTES_MAX];
        let (len, _) = retry_on_intr(|| recv(&self.socket, &mut *buffer, flags))?;
        let mut messages = Vec::new();
        let mut rest = &buffer[..len];
        // Each begins with its length, on a multiple of four (RFC 3549 §2.3.2).
        while let Some((len, _)) = rest.split_first_chunk() {
            let len = u32::from_ne_bytes(*len) as usize;
            let Some(bytes) = rest.get(..len) else { break };
            rest = rest
                .get(len.next_multiple_of(4).max(4)..)
                .unwrap_or_default();
            messages.extend(NetlinkMessage::deserialize(bytes));
        }
        Ok(messages)
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
