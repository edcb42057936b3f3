//! The UDP calls of [`Stack`].

use super::Stack;
use crate::iface::Channel;
use crate::udp::{
    BindError, Datagram, GroupError, IcmpCause, IcmpError, SendError, SendInfo, UdpAddrs, UdpBind,
    UdpId, UdpOptions,
};
use std::net::{IpAddr, SocketAddr};

impl Stack {
    /// Binds a UDP socket to a local address and transport port. The unspecified address
    /// stands for all addresses of its version, port 0 for any free port.
    ///
    /// # Errors
    /// If the address is not the host's, or the address and port are taken.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, BindError> {
        self.udp_bind_with(local, UdpBind::default())
    }

    /// As [`Stack::udp_bind`], with both IP versions or port sharing by `how`.
    ///
    /// # Errors
    /// As [`Stack::udp_bind`]; with both versions, also if the port is taken in either.
    pub fn udp_bind_with(&mut self, local: SocketAddr, how: UdpBind) -> Result<UdpId, BindError> {
        self.udp.bind(&self.interfaces, local, how)
    }

    /// Connects a UDP socket to one peer: the socket receives only the peer's datagrams, and
    /// reports ICMP errors about the peer. Returns the socket's addresses before.
    ///
    /// # Errors
    /// If no route leads to `remote`, or another socket is connected to it from the same
    /// address and transport port.
    pub fn udp_connect(
        &mut self,
        socket: UdpId,
        remote: SocketAddr,
    ) -> Result<UdpAddrs, BindError> {
        self.udp.connect(&self.interfaces, socket, remote)
    }

    /// Takes a UDP socket's peer away: the socket has the address again that it was bound to, and receives
    /// from all. Datagrams that wait stay. Returns the socket's addresses before.
    ///
    /// # Errors
    /// If another socket has the address now, or the socket is closed.
    pub fn udp_disconnect(&mut self, socket: UdpId) -> Result<UdpAddrs, BindError> {
        self.udp.disconnect(socket)
    }

    /// Undoes [`Stack::udp_connect`], with the addresses that it returned.
    ///
    /// # Errors
    /// If another socket is connected to the earlier peer, or the socket is closed.
    pub fn udp_restore(&mut self, socket: UdpId, before: UdpAddrs) -> Result<(), BindError> {
        self.udp.set_peer(socket, before).map(drop)
    }

    /// The local address and port of a UDP socket; `None` if it is closed.
    pub fn udp_local(&self, socket: UdpId) -> Option<SocketAddr> {
        self.udp.local(socket)
    }

    /// Sends a datagram, fragmented if the path requires it.
    ///
    /// # Errors
    /// Why the datagram was not sent; [`SendError::Full`] ends with the next poll.
    pub fn udp_send(
        &mut self,
        now_ns: u64,
        socket: UdpId,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        self.udp_send_with(now_ns, socket, to, &SendInfo::default(), bytes)
    }

    /// As [`Stack::udp_send`], with a source address, a link or options of this datagram alone.
    ///
    /// # Errors
    /// As [`Stack::udp_send`]; also if the address is not the host's, or there is no such link.
    pub fn udp_send_with(
        &mut self,
        now_ns: u64,
        socket: UdpId,
        to: SocketAddr,
        info: &SendInfo,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let hosts = &mut self.interfaces;
        self.udp.send(now_ns, hosts, socket, (to, info), bytes)
    }

    /// Takes the oldest datagram from a socket's receive queue; `None` if it is empty.
    pub fn udp_receive(&mut self, socket: UdpId) -> Option<Datagram> {
        self.udp.take(socket)
    }

    /// Appends a datagram that another stack of the same host has received to a socket's
    /// receive queue.
    pub fn udp_put(&mut self, socket: UdpId, datagram: Datagram) {
        self.udp.enqueue(socket, datagram);
    }

    /// The channel by which a link may hand over a connected socket's frames without a
    /// look-up; `None` if the socket is not connected.
    pub fn udp_channel(&self, socket: UdpId) -> Option<Channel> {
        self.udp.channel(socket)
    }

    /// The datagram that [`Stack::udp_receive`] would take.
    pub fn udp_peek(&self, socket: UdpId) -> Option<&Datagram> {
        self.udp.front(socket)
    }

    /// Number of datagrams in a socket's receive queue.
    pub fn udp_waiting(&self, socket: UdpId) -> usize {
        self.udp.waiting(socket)
    }

    /// Whether an ICMP error is pending, which the socket's next call reports.
    pub fn udp_has_pending_error(&self, socket: UdpId) -> bool {
        self.udp.has_pending_error(socket)
    }

    /// Takes the pending ICMP error, so that the next datagram is sent; `None` if there is none.
    pub fn udp_take_pending_error(&mut self, socket: UdpId) -> Option<IcmpCause> {
        self.udp.take_pending_error(socket)
    }

    /// Takes the oldest ICMP error about datagrams of a socket, if [`UdpOptions::icmp_errors`] asks
    /// for them; `None` if there is none. The pending error is then the next one in the queue.
    pub fn udp_take_icmp_error(&mut self, socket: UdpId) -> Option<IcmpError> {
        self.udp.take_icmp_error(socket)
    }

    /// Number of errors for [`Stack::udp_take_icmp_error`].
    pub fn udp_icmp_errors(&self, socket: UdpId) -> usize {
        self.udp.icmp_errors(socket)
    }

    /// Discards the errors for [`Stack::udp_take_icmp_error`].
    pub fn udp_discard_icmp_errors(&mut self, socket: UdpId) {
        self.udp.discard_icmp_errors(socket);
    }

    /// The address that a reply to a datagram is sent from: the destination of the datagram, or, if
    /// that is a group or a broadcast address, the link's address for the sender. `None` if there
    /// is none.
    pub fn udp_reply_source(&self, datagram: &Datagram) -> Option<IpAddr> {
        if self.interfaces.is_ours(datagram.to) {
            return Some(datagram.to);
        }
        let link = usize::from(datagram.arrival.link);
        let mut hosts = self.interfaces.iter().skip(link);
        hosts.next()?.routes.source_for(datagram.from.ip())
    }

    /// Takes the next UDP socket that has received a datagram or an ICMP error; `None` if
    /// there is none.
    pub fn udp_next_changed(&mut self) -> Option<UdpId> {
        self.udp.next_notified()
    }

    /// Closes a UDP socket and discards its receive queue.
    pub fn udp_close(&mut self, socket: UdpId) {
        self.udp.close(&mut self.interfaces, socket);
    }

    /// Joins a multicast group and reports the membership to routers (RFC 3376, RFC 3810).
    /// With several links the group is on the link of [`UdpOptions::group_link`].
    ///
    /// # Errors
    /// If `group` is not a group, the socket is a member already, or a limit is reached.
    pub fn udp_join(&mut self, socket: UdpId, group: IpAddr) -> Result<(), GroupError> {
        self.udp.join(&mut self.interfaces, socket, group, None)
    }

    /// As [`Stack::udp_join`], on a link of the caller's choice.
    ///
    /// # Errors
    /// As [`Stack::udp_join`]; also if the stack has no such link.
    pub fn udp_join_on(
        &mut self,
        socket: UdpId,
        group: IpAddr,
        link: u8,
    ) -> Result<(), GroupError> {
        self.udp
            .join(&mut self.interfaces, socket, group, Some(link))
    }

    /// Leaves a multicast group; closing the socket does so too.
    ///
    /// # Errors
    /// If the socket is not a member.
    pub fn udp_leave(&mut self, socket: UdpId, group: IpAddr) -> Result<(), GroupError> {
        self.udp.leave(&mut self.interfaces, socket, group, None)
    }

    /// As [`Stack::udp_leave`], on a link of the caller's choice.
    ///
    /// # Errors
    /// As [`Stack::udp_leave`].
    pub fn udp_leave_on(
        &mut self,
        socket: UdpId,
        group: IpAddr,
        link: u8,
    ) -> Result<(), GroupError> {
        self.udp
            .leave(&mut self.interfaces, socket, group, Some(link))
    }

    /// The options of a UDP socket, to be read and changed; `None` if it is closed.
    pub fn udp_options(&mut self, socket: UdpId) -> Option<&mut UdpOptions> {
        self.udp.options(socket)
    }
}
