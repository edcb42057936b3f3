//! Datagrams with what recvmsg(2) and sendmsg(2) carry beside them: how each was received, the source
//! and options of a single one, and ICMP errors.

use super::{UdpSocket, check, try_send, udp};
use rustix::io::Errno;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use weir_stack::udp::{Datagram, IcmpError, SendInfo};

use crate::net::Interest;

impl UdpSocket {
    /// Waits for a datagram and returns it by value, with its destination, link, hop limit, traffic
    /// class and time.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_datagram(&self) -> io::Result<Datagram> {
        let datagram = self.read(|core, state| {
            let id = check(core, state)?;
            state.stack.udp_receive(id).ok_or(Errno::AGAIN)
        })?;
        self.parts.took();
        Ok(datagram)
    }

    /// As [`UdpSocket::recv_datagram`], and leaves the datagram in the queue.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek_datagram(&self) -> io::Result<Datagram> {
        self.read(|core, state| {
            let id = check(core, state)?;
            state.stack.udp_peek(id).cloned().ok_or(Errno::AGAIN)
        })
    }

    /// As [`UdpSocket::recv_datagram`], for a task.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn poll_recv_datagram(&self, context: &mut Context<'_>) -> Poll<io::Result<Datagram>> {
        self.poll_read(context, |core, state| {
            let id = check(core, state)?;
            state.stack.udp_receive(id).ok_or(Errno::AGAIN)
        })
    }

    /// Sends a datagram, to the connected peer if `to` is `None`, with the source address, link,
    /// hop limit and traffic class of `info`.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`] and [`UdpSocket::send`]; if the source address is not the net's,
    /// `ENETUNREACH` for IPv4 and `EINVAL` for IPv6, as in Linux; `ENODEV` if the net has no such
    /// link.
    pub fn send_with(
        &self,
        bytes: &[u8],
        to: Option<SocketAddr>,
        info: &SendInfo,
    ) -> io::Result<usize> {
        let (core, to) = match to {
            Some(to) => {
                self.check_family(to)?;
                (&self.parts.shards()[self.shard_of(to)], to)
            }
            None => {
                let to = self.lock_peer().ok_or(Errno::DESTADDRREQ)?;
                (self.main(), to)
            }
        };
        core.wait(Interest::Write, |state, now_ns| {
            try_send(core, state, now_ns, (to, info), bytes)
        })
    }

    /// As [`UdpSocket::send_with`], for a task.
    ///
    /// # Errors
    /// As [`UdpSocket::send_with`].
    pub fn poll_send_with(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        to: SocketAddr,
        info: &SendInfo,
    ) -> Poll<io::Result<usize>> {
        if let Err(error) = self.check_family(to) {
            return Poll::Ready(Err(error.into()));
        }
        let core = &self.parts.shards()[self.shard_of(to)];
        core.poll(context, Interest::Write, |state, now_ns| {
            try_send(core, state, now_ns, (to, info), bytes)
        })
    }

    /// Takes the oldest ICMP error about datagrams of the socket, if
    /// [`UdpOptions::icmp_errors`](weir_stack::udp::UdpOptions::icmp_errors) asks for them
    /// (`MSG_ERRQUEUE`). Does not wait.
    ///
    /// # Errors
    /// `EAGAIN` if there is none.
    pub fn recv_icmp_error(&self) -> io::Result<IcmpError> {
        let mut parts = self.parts.shards().iter();
        let taken = parts.find_map(|core| {
            let id = udp(core).ok()?;
            core.call(|state, _| state.stack.udp_take_icmp_error(id))
        });
        taken.ok_or_else(|| Errno::AGAIN.into())
    }

    /// The address that a reply to a datagram is sent from: its destination, or, for a group or a
    /// broadcast, the link's address for the sender (`ipi_spec_dst` of ip(7)).
    pub fn reply_source(&self, datagram: &Datagram) -> Option<IpAddr> {
        let core = self.parts.first();
        core.look(|state| state.stack.udp_reply_source(datagram))
    }

    /// The time of day of a time by the stack's clock, such as that of a datagram's arrival.
    pub fn system_time(&self, at_ns: u64) -> SystemTime {
        let age_ns = self.parts.net().first().now_ns().saturating_sub(at_ns);
        let now = SystemTime::now();
        now.checked_sub(Duration::from_nanos(age_ns)).unwrap_or(now)
    }
}
