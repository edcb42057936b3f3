//! The fast path of connected sockets: datagrams with the headers that the
//! socket's filter expects (Biersack and Rütsche 1996, §3.2).

use super::{Arrival, Sockets};
use crate::header_filter::{HeaderFilter, ParsedPacket};
use crate::iface::{DropReason, RxMeta};
use crate::links::{Interfaces, with_zone};
use crate::slab::Handle;
use weir_wire::checksum::Sum;
use weir_wire::{Protocol, udp};

impl Sockets {
    /// Disarms the filters of sockets whose address was lost.
    pub(crate) fn disarm(&mut self, hosts: &Interfaces) {
        for socket in self.sockets.iter_mut() {
            if !hosts.at(socket.link).routes.is_ours(socket.local.ip()) {
                socket.filter = HeaderFilter::default();
            }
        }
    }

    /// Receives a unicast IP packet, if it is one for the fast path.
    pub(crate) fn direct(
        &mut self,
        now_ns: u64,
        packet: &[u8],
        received: RxMeta,
    ) -> Option<Result<(), DropReason>> {
        let name = match received.channel {
            Some(channel) => Handle::from_bits(channel.udp()?),
            None => self.last_socket?,
        };
        let socket = self.sockets.get(name)?;
        let remote = socket.remote.filter(|_| socket.filter.accepts(packet))?;
        if socket.link != received.link {
            return None;
        }
        let local = socket.local;
        let parts = ParsedPacket::of(packet)?;
        let datagram = udp::Datagram::new(parts.transport).ok()?;
        if datagram.length() != parts.transport.len() {
            return None;
        }
        if !parts.header_is_right() {
            return Some(Err(DropReason::ChecksumWrong));
        }
        let sum = || {
            let pseudo = parts.pseudo(Protocol::UDP.0);
            pseudo.and(Sum::new().bytes(parts.transport)).finish()
        };
        let unsummed = parts.transport[6..8] == [0; 2];
        if unsummed && local.is_ipv6() {
            return None;
        }
        if !unsummed && !received.checksum_ok && sum() != 0 {
            return Some(Err(DropReason::ChecksumWrong));
        }
        let (hop_limit, traffic_class) = parts.hop_limit_and_class();
        let arrival = Arrival {
            link: received.link,
            hop_limit,
            traffic_class,
            at_ns: now_ns,
        };
        Some(self.deliver(
            name,
            (with_zone(remote, received.link), local.ip()),
            arrival,
            datagram.payload(),
        ))
    }
}
