//! A routing netlink socket: one request at a time, each acknowledged
//! (RFC 3549).

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;

/// The longest datagram that the kernel answers with: it fills no more than
/// 32 KiB of a dump at once.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// A socket that stays in the namespace it was made in, whoever uses it.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// In the calling thread's namespace.
    pub(super) fn open() -> io::Result<Netlink> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // NETLINK_ROUTE is protocol 0
        )?;
        Ok(Netlink {
            socket,
            sequence: 0,
        })
    }

    /// Sends a request and gives what the kernel answers to it, up to its
    /// acknowledgement.
    pub(super) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        retry_on_intr(|| send(&self.socket, &bytes, SendFlags::empty()))?;
        self.replies()
    }

    fn replies(&self) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut replies = Vec::new();
        let mut buffer = vec![0; REPLY_BYTES_MAX];
        loop {
            let received = retry_on_intr(|| recv(&self.socket, &mut *buffer, RecvFlags::empty()));
            let (len, _) = received?;
            let mut rest = &buffer[..len];
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                // Messages are aligned to four bytes (RFC 3549 §2.3.2).
                let taken = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(taken..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(reply) => replies.push(reply),
                    NetlinkPayload::Done(_) => return Ok(replies),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(replies),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }
}
