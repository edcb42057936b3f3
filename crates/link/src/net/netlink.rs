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

/// Largest datagram that the kernel sends: a dump has parts of at most 32 KiB.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// Length at which a datagram of several requests is sent.
const DATAGRAM_BYTES: usize = 16 << 10;

/// A routing netlink socket: one request at a time, each acknowledged. The
/// socket stays in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the process has no free file descriptors.
    pub fn open() -> io::Result<Netlink> {
        Netlink::listening(0)
    }

    /// Opens a socket that receives the notifications of these `groups` (bits
    /// of `RTMGRP_*`).
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

    /// A socket that another process has opened for this one alone.
    pub(super) fn from_fd(socket: OwnedFd) -> Netlink {
        Netlink {
            socket,
            sequence: 0,
        }
    }

    /// Sends a request with additional `NLM_F_*` flags; returns the kernel's
    /// replies up to its acknowledgement.
    ///
    /// # Errors
    /// The kernel's reply, as the system's error number.
    pub fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send_request(message, NLM_F_ACK | flags)?;
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

    /// Sends many requests that have no reply but an acknowledgement, many in
    /// one datagram. Stops after the datagram with a request that fails.
    ///
    /// # Errors
    /// As for [`request`](Self::request), of the first request that fails.
    pub fn requests(
        &mut self,
        messages: impl IntoIterator<Item = RouteNetlinkMessage>,
        flags: u16,
    ) -> io::Result<()> {
        let mut messages = messages.into_iter().peekable();
        let mut bytes = Vec::new();
        while let Some(message) = messages.next() {
            // Only the last request of a datagram is acknowledged; a failing
            // request is reported before that.
            let is_last = bytes.len() >= DATAGRAM_BYTES || messages.peek().is_none();
            let ack = if is_last { NLM_F_ACK } else { 0 };
            self.append(message, ack | flags, &mut bytes);
            if is_last {
                retry_on_intr(|| send(&self.socket, &bytes, SendFlags::empty()))?;
                bytes.clear();
                self.acknowledged()?;
            }
        }
        Ok(())
    }

    /// Waits for the acknowledgement of the last request; returns the first
    /// error of the requests before it.
    fn acknowledged(&self) -> io::Result<()> {
        let mut first = Ok(());
        loop {
            for message in self.receive(RecvFlags::empty())? {
                let NetlinkPayload::Error(error) = message.payload else {
                    continue;
                };
                if error.code.is_some() {
                    first = first.and(Err(error.to_io()));
                }
                if message.header.sequence_number == self.sequence {
                    return first;
                }
            }
        }
    }

    /// Sends a request; its replies are read by [`receive`](Self::receive).
    pub(super) fn send_request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.append(message, flags, &mut bytes);
        retry_on_intr(|| send(&self.socket, &bytes, SendFlags::empty()))?;
        Ok(())
    }

    /// Appends a request to the datagram.
    fn append(&mut self, message: RouteNetlinkMessage, flags: u16, bytes: &mut Vec<u8>) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let begin = bytes.len().next_multiple_of(4);
        bytes.resize(begin + message.buffer_len(), 0);
        message.serialize(&mut bytes[begin..]);
    }

    /// The messages of one datagram. Messages that the library cannot parse are
    /// skipped: newer kernels send more than it knows.
    pub(super) fn receive(
        &self,
        flags: RecvFlags,
    ) -> io::Result<Vec<NetlinkMessage<RouteNetlinkMessage>>> {
        let mut buffer = vec![0; REPLY_BYTES_MAX];
        let (len, _) = retry_on_intr(|| recv(&self.socket, &mut *buffer, flags))?;
        let mut messages = Vec::new();
        let mut rest = &buffer[..len];
        // Each message begins with its length, at a multiple of four (RFC 3549
        // §2.3.2).
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
