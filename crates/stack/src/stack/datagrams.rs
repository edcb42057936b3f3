//! The UDP calls of [`Stack`].

use super::Stack;
use crate::iface::Channel;
use crate::udp::{
    BindError, Datagram, GroupError, SendError, UdpAddrs, UdpBind, UdpId, UdpOptions,
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
        self.udp
            .send(now_ns, &mut self.interfaces, socket, to, bytes)
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

    /// Whether an ICMP error has reported that the connected peer's port is closed.
    pub fn udp_is_refused(&self, socket: UdpId) -> bool {
        self.udp.is_port_unreachable(socket)
    }

    /// As [`Stack::udp_is_refused`], and clears the error, so that the next datagram is sent.
    pub fn udp_take_refused(&mut self, socket: UdpId) -> bool {
        self.udp.take_port_unreachable(socket)
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
