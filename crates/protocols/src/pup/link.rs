//! A link that carries Pups: a 10 Mb/s Ethernet behind a port, or UDP.

use crate::station::{Station, StationError};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;
use weir_pup::datagram::{PUP_LEN_MAX, Port, Pup};
use weir_pup::link::{UDP_HEADER_LEN, emit_udp, parse_udp};
use weir_wire::EtherType;
use weir_wire::ethernet::Address;
use weir_wire::pup::Repr;

/// Datagrams of one receive call.
const BATCH: usize = 64;

/// Why a link fails.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The port.
    #[error(transparent)]
    Station(#[from] StationError),
    /// The UDP socket.
    #[error("cannot use UDP port {port}: {source}")]
    Udp {
        /// The UDP port.
        port: u16,
        /// The system's error.
        source: io::Error,
    },
    /// A Pup over UDP was not sent.
    #[error("cannot send to {peers}: {source}")]
    Unsent {
        /// Where the link's Pups go.
        peers: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// A link of one Pup host.
#[derive(Debug)]
pub struct Link {
    /// The host's net, 0 if it is not known, and number.
    own: Port,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Ethernet {
        station: Box<Station>,
        /// The Ethernet address of each host that has sent.
        hosts: BTreeMap<u8, Address>,
    },
    Udp {
        socket: UdpSocket,
        peers: SocketAddr,
        timeout: Option<Duration>,
        buffer: Vec<u8>,
        /// Why the last Pup was not sent.
        unsent: Option<io::Error>,
    },
}

impl Link {
    /// A link on an Ethernet interface, for the Pups to the host `own` and to all hosts;
    /// through the broker at `broker`, if given.
    ///
    /// # Errors
    /// If the port is refused.
    pub fn on_port(interface: &str, broker: Option<&Path>, own: Port) -> Result<Link, LinkError> {
        // The destination host of a Pup.
        let filter = format!("ether[23] = {} or ether[23] = 0", own.host);
        Link::on_station(interface, broker, own, &filter)
    }

    /// A link of a gateway on an Ethernet interface: also for the Pups to other nets than the
    /// one of `own`.
    ///
    /// # Errors
    /// If the port is refused.
    pub fn of_gateway(
        interface: &str,
        broker: Option<&Path>,
        own: Port,
    ) -> Result<Link, LinkError> {
        let Port { net, host, .. } = own;
        // The destination net and host of a Pup; net 0 is the link's. What was sent to another
        // station, which a promiscuous interface receives, is for that one to forward.
        let filter = format!(
            "ether[23] = {host} or ether[23] = 0 or (ether[22] != {net} and ether[22] != 0)"
        );
        let mut link = Link::on_station(interface, broker, own, &filter)?;
        if let Kind::Ethernet { station, .. } = &mut link.kind {
            let address = station.address();
            station.set_filter(&format!(
                "({filter}) and (ether dst {address} or ether broadcast)"
            ))?;
        }
        Ok(link)
    }

    fn on_station(
        interface: &str,
        broker: Option<&Path>,
        own: Port,
        filter: &str,
    ) -> Result<Link, LinkError> {
        let station = Station::open(interface, broker, EtherType::PUP, filter)?;
        let (station, hosts) = (Box::new(station), BTreeMap::new());
        Ok(Link {
            own,
            kind: Kind::Ethernet { station, hosts },
        })
    }

    /// A link over UDP of the host `own`: frames go to `peers`, a broadcast address or a host's,
    /// and come to the same UDP port of this host.
    ///
    /// # Errors
    /// If the UDP port is not free.
    pub fn on_udp(peers: SocketAddrV4, own: Port) -> Result<Link, LinkError> {
        let port = peers.port();
        let failed = |source| LinkError::Udp { port, source };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(failed)?;
        socket.set_broadcast(true).map_err(failed)?;
        Ok(Link {
            own,
            kind: Kind::Udp {
                socket,
                peers: peers.into(),
                timeout: None,
                buffer: vec![0; 2048],
                unsent: None,
            },
        })
    }

    /// Sets how many Pups one call receives at most; without limit by default.
    pub fn set_batch(&mut self, pups: usize) {
        if let Kind::Ethernet { station, .. } = &mut self.kind {
            station.set_batch(pups);
        }
    }

    /// Queues a Pup that `write` appends and whose destination host it returns, 0
    /// for all; `false` if it returns none.
    ///
    /// # Errors
    /// If the queue is full, and cannot be sent.
    pub fn queue_with(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Option<u8>,
    ) -> Result<bool, LinkError> {
        match &mut self.kind {
            Kind::Ethernet { station, hosts } => {
                let write = |frame: &mut Vec<u8>| {
                    let host = write(frame)?;
                    Some(*hosts.get(&host).unwrap_or(&Address::BROADCAST))
                };
                Ok(station.queue_with(write)?)
            }
            Kind::Udp {
                socket,
                peers,
                unsent,
                ..
            } => {
                let mut datagram = Vec::with_capacity(UDP_HEADER_LEN + PUP_LEN_MAX);
                datagram.resize(UDP_HEADER_LEN, 0);
                let Some(host) = write(&mut datagram) else {
                    return Ok(false);
                };
                emit_udp(host, self.own.host, &mut datagram);
                // What cannot be sent now is lost, as on a wire.
                *unsent = socket.send_to(&datagram, *peers).err();
                Ok(true)
            }
        }
    }

    /// Sends what is queued.
    ///
    /// # Errors
    /// If it cannot be sent.
    pub fn flush(&mut self) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Ethernet { station, .. } => Ok(station.flush()?),
            Kind::Udp { .. } => Ok(()),
        }
    }

    /// Gives `take` each Pup that arrives within `timeout`, and those that are
    /// queued with it, without their link's header.
    ///
    /// # Errors
    /// If the link fails.
    pub fn receive(
        &mut self,
        timeout: Duration,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), LinkError> {
        let own = self.own;
        match &mut self.kind {
            Kind::Ethernet { station, hosts } => {
                station.receive(timeout, |from, pup| {
                    if let Some(host) = neighbour(pup, own.net)
                        && !from.is_multicast()
                        && hosts.get(&host) != Some(&from)
                        && Pup::parse(pup).is_some()
                    {
                        hosts.insert(host, from);
                    }
                    take(pup);
                })?;
                Ok(())
            }
            Kind::Udp {
                socket,
                peers,
                timeout: set,
                buffer,
                ..
            } => {
                let port = peers.port();
                let failed = |source| LinkError::Udp { port, source };
                let waits = !timeout.is_zero();
                if waits && *set != Some(timeout) {
                    socket.set_read_timeout(Some(timeout)).map_err(failed)?;
                    *set = Some(timeout);
                }
                for count in 0..BATCH {
                    if count == usize::from(waits) {
                        socket.set_nonblocking(true).map_err(failed)?;
                    }
                    // Errors are of earlier datagrams that no socket received.
                    let Ok(len) = socket.recv(buffer) else {
                        break;
                    };
                    if let Some((src, dst, pup)) = parse_udp(&buffer[..len])
                        && src != own.host
                        && (dst == own.host || dst == 0)
                    {
                        take(pup);
                    }
                }
                socket.set_nonblocking(false).map_err(failed)
            }
        }
    }

    /// Prepares to wait for the link's [descriptor](AsFd); returns `false` if Pups are
    /// already there.
    pub fn arm(&mut self) -> bool {
        match &mut self.kind {
            Kind::Ethernet { station, .. } => station.arm(),
            Kind::Udp { .. } => true,
        }
    }

    /// Fails if the interface is gone, or the policy has changed.
    ///
    /// # Errors
    /// If so.
    pub fn check(&mut self) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Ethernet { station, .. } => Ok(station.check()?),
            Kind::Udp { .. } => Ok(()),
        }
    }

    /// Fails if the policy has refused Pups that were sent.
    ///
    /// # Errors
    /// If so.
    pub fn check_refusals(&mut self) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Ethernet { station, .. } => Ok(station.check_refusals()?),
            Kind::Udp { .. } => Ok(()),
        }
    }

    /// Fails if what was sent cannot arrive: as [`check_refusals`](Link::check_refusals), or the
    /// network has not taken the last Pup over UDP. For clients: a server waits until it does.
    ///
    /// # Errors
    /// If so.
    pub fn check_sent(&mut self) -> Result<(), LinkError> {
        self.check_refusals()?;
        if let Kind::Udp { peers, unsent, .. } = &mut self.kind
            && let Some(source) = unsent.take()
        {
            let peers = *peers;
            return Err(LinkError::Unsent { peers, source });
        }
        Ok(())
    }
}

/// The source host of a Pup, if it is one of the link's net, and no gateway has sent the Pup on.
fn neighbour(pup: &[u8], own_net: u8) -> Option<u8> {
    let (head, _) = pup.split_at_checked(Repr::LEN)?;
    let (hops, net, host) = (head[2] >> 4, head[14], head[15]);
    let is_local = hops == 0 && (net == 0 || own_net == 0 || net == own_net);
    (is_local && host != 0).then_some(host)
}

impl AsFd for Link {
    /// Readable when there are Pups, after [`arm`](Link::arm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Ethernet { station, .. } => station.as_fd(),
            Kind::Udp { socket, .. } => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_of_the_links_net() {
        let port = |net, host| Port {
            net,
            host,
            socket: 5,
        };
        let pup = |src: Port, hops: u8| {
            let mut pup = Pup::new(1, 1, port(1, 2), src, b"x");
            pup.head.control = hops << 4;
            let mut bytes = Vec::new();
            pup.emit(&mut bytes);
            bytes
        };
        assert_eq!(neighbour(&pup(port(1, 3), 0), 1), Some(3));
        assert_eq!(neighbour(&pup(port(0, 3), 0), 1), Some(3));
        assert_eq!(neighbour(&pup(port(9, 3), 0), 0), Some(3));
        // Of another net, by a gateway, every host, and too short.
        assert_eq!(neighbour(&pup(port(9, 3), 0), 1), None);
        assert_eq!(neighbour(&pup(port(1, 3), 1), 1), None);
        assert_eq!(neighbour(&pup(port(1, 0), 0), 1), None);
        assert_eq!(neighbour(&pup(port(1, 3), 0)[..15], 1), None);
    }
}
