//! Direct server return: a packet goes to its server unchanged, whose interface has the service's
//! address, and the server answers the client itself. Linux' IPVS calls this direct routing.
//!
//! The stage sees the clients' half of a session alone, so it takes the client's word for the rest: a
//! second packet without SYN says that the server has answered, FIN or RST that the session ends.
//! Nothing is translated, so packets without a flow of their own can follow a session: fragments, and
//! ICMP errors about what a server has sent.

use super::Balance;
use crate::flow::Direction;
use crate::fragments::FragmentKey;
use crate::nat::icmp;
use crate::packet::Packet;
use std::net::{IpAddr, Ipv4Addr};
use weir_wire::Protocol;

impl Balance {
    /// A packet to the service's address that has no flow, see [`Packet::flow`].
    pub(super) fn share_other(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
    ) -> Result<(), &'static str> {
        if self.config.direct_return.is_none() {
            return Ok(());
        }
        let Some((IpAddr::V4(src), IpAddr::V4(dst))) = packet.addresses() else {
            return Ok(());
        };
        if dst != self.config.service.0 {
            return Ok(());
        }
        match packet.protocol() {
            Some(Protocol::ICMPV4) => self.share_error(packet),
            Some(protocol) if protocol == self.config.protocol => {
                self.share_fragment(now, packet, (src, dst))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// An ICMP error goes to the server of the session that it is about: path MTU discovery needs it.
    fn share_error(&self, packet: &mut Packet<'_>) {
        let config = &self.config;
        let Some((protocol, server, client)) = icmp::quoted(packet) else {
            return;
        };
        if protocol != config.protocol || server != config.service {
            return;
        }
        if let Some(&at) = self.by_client.get(&client)
            && let Some((server, _)) = self.server(at)
        {
            packet.set_next_hop(server);
        }
    }

    /// The first fragment has the ports; later ones follow it, and pass if they come before. A packet
    /// with IP options goes here, too.
    fn share_fragment(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        (src, dst): (Ipv4Addr, Ipv4Addr),
    ) -> Result<(), &'static str> {
        let fragment = packet.fragment();
        let key = fragment.map(|fragment| FragmentKey {
            direction: Direction::Inward,
            src: src.into(),
            dst: dst.into(),
            protocol: self.config.protocol.0,
            id: fragment.id.into(),
        });
        if let Some(key) = key.filter(|_| fragment.is_some_and(|it| it.offset > 0)) {
            let Some(IpAddr::V4(server)) = self.fragments.find(now, &key) else {
                // Of another service at this address, or before its first one.
                return Ok(());
            };
            packet.set_next_hop(server);
            return Ok(());
        }
        let Some((src_port, _)) = packet
            .ports()
            .filter(|ports| ports.1 == self.config.service.1)
        else {
            return Ok(());
        };
        let at = self.session(now, (src, src_port), packet)?;
        if let Some((key, (server, _))) = key.zip(self.server(at)) {
            self.fragments.first(now, key, server.into());
        }
        self.hit(now, at, Direction::Inward, packet)
    }
}
