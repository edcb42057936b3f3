//! UDP's calls.

use super::Stack;
use crate::iface::Channel;
use crate::udp::{
    BindError, Datagram, GroupError, SendError, UdpAddrs, UdpBind, UdpId, UdpOptions,
};
use std::net::{IpAddr, SocketAddr};

impl Stack {
    /// Makes a UDP socket at a local address and transport port; the
    /// unspecified address is any of its version, port 0 any that is free.
    ///
    /// # Errors
    /// If the address is not ours, or the place is taken.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, BindError> {
        self.udp_bind_with(local, UdpBind::default())
    }

    /// As [`Stack::udp_bind`], perhaps for both versions, or beside others.
    ///
    /// # Errors
    /// As there; of both versions, if the place is taken of either.
    pub fn udp_bind_with(&mut self, local: SocketAddr, how: UdpBind) -> Result<UdpId, BindError> {
        self.udp.bind(&self.interfaces, local, how)
    }

    /// Ties a UDP socket to one peer: it hears no other, and learns when
    /// nobody is there. Gives what it was before.
    ///
    /// # Errors
    /// If no route leads there, or another socket is tied to it from the same
    /// address and transport port.
    pub fn udp_connect(
        &mut self,
        socket: UdpId,
        remote: SocketAddr,
    ) -> Result<UdpAddrs, BindError> {
        self.udp.connect(&self.interfaces, socket, remote)
    }

    /// Undoes a [`Stack::udp_connect`].
    ///
    /// # Errors
    /// If another socket is tied to the peer that it had, or it is closed.
    pub fn udp_restore(&mut self, socket: UdpId, before: UdpAddrs) -> Result<(), BindError> {
        self.udp.set_peer(socket, before).map(drop)
    }

    /// Where a UDP socket is; `None` if it is closed.
    pub fn udp_local(&self, socket: UdpId) -> Option<SocketAddr> {
        self.udp.local(socket)
    }

    /// Sends a datagram, in fragments if the path asks for it.
    ///
    /// # Errors
    /// Why it was not sent; [`SendError::Full`] passes with the next poll.
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

    /// The next datagram that came to a UDP socket.
    pub fn udp_receive(&mut self, socket: UdpId) -> Option<Datagram> {
        self.udp.take(socket)
    }

    /// Lets a datagram wait in a UDP socket as if it had come: one that another
    /// stack of the same host has taken.
    pub fn udp_put(&mut self, socket: UdpId, datagram: Datagram) {
        self.udp.enqueue(socket, datagram);
    }

    /// The channel by which a link may hand over a connected socket's frames
    /// without their being looked up; `None` if it is not connected.
    pub fn udp_channel(&self, socket: UdpId) -> Option<Channel> {
        self.udp.channel(socket)
    }

    /// The datagram that [`Stack::udp_receive`] would give.
    pub fn udp_peek(&self, socket: UdpId) -> Option<&Datagram> {
        self.udp.front(socket)
    }

    /// How many datagrams wait in a UDP socket.
    pub fn udp_waiting(&self, socket: UdpId) -> usize {
        self.udp.waiting(socket)
    }

    /// Whether a connected UDP socket has learnt that nobody is at its peer.
    pub fn udp_is_refused(&self, socket: UdpId) -> bool {
        self.udp.is_port_unreachable(socket)
    }

    /// As [`Stack::udp_is_refused`], and forgets it: the next datagram is
    /// sent again.
    pub fn udp_take_refused(&mut self, socket: UdpId) -> bool {
        self.udp.take_port_unreachable(socket)
    }

    /// A UDP socket that got a datagram, or learnt that nobody is at its
    /// peer, since it was last named.
    pub fn udp_next_changed(&mut self) -> Option<UdpId> {
        self.udp.next_notified()
    }

    /// Closes a UDP socket; what waits in it is gone.
    pub fn udp_close(&mut self, socket: UdpId) {
        self.udp.close(&mut self.interfaces, socket);
    }

    /// Lets a UDP socket hear what is sent to a group, and tells routers
    /// (RFC 3376, RFC 3810); on several links, on the one that its datagrams to
    /// groups go out by ([`UdpOptions::group_link`]).
    ///
    /// # Errors
    /// If it is no group, the socket is in it, or there is no room.
    pub fn udp_join(&mut self, socket: UdpId, group: IpAddr) -> Result<(), GroupError> {
        self.udp.join(&mut self.interfaces, socket, group, None)
    }

    /// As [`Stack::udp_join`], on a link of the caller's choice.
    ///
    /// # Errors
    /// As there; if the stack has no such link.
    pub fn udp_join_on(
        &mut self,
        socket: UdpId,
        group: IpAddr,
        link: u8,
    ) -> Result<(), GroupError> {
        self.udp
            .join(&mut self.interfaces, socket, group, Some(link))
    }

    /// Takes a UDP socket out of a group; closing it does so too.
    ///
    /// # Errors
    /// If it is not in it.
    pub fn udp_leave(&mut self, socket: UdpId, group: IpAddr) -> Result<(), GroupError> {
        self.udp.leave(&mut self.interfaces, socket, group, None)
    }

    /// As [`Stack::udp_leave`], on a link of the caller's choice.
    ///
    /// # Errors
    /// As there.
    pub fn udp_leave_on(
        &mut self,
        socket: UdpId,
        group: IpAddr,
        link: u8,
    ) -> Result<(), GroupError> {
        self.udp
            .leave(&mut self.interfaces, socket, group, Some(link))
    }

    /// How a UDP socket's datagrams go out, to be looked at and changed; `None`
    /// if it is closed.
    pub fn udp_options(&mut self, socket: UdpId) -> Option<&mut UdpOptions> {
        self.udp.options(socket)
    }
}
