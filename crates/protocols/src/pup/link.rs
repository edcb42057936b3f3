//! A link that carries Pups: a 10 Mb/s Ethernet behind a port, or UDP.

use crate::station::{Station, StationError};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::time::Duration;
use weir_pup::datagram::PUP_LEN_MAX;
use weir_pup::link::{UDP_HEADER_LEN, emit_udp, parse_udp};
use weir_wire::EtherType;
use weir_wire::ethernet::Address;

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
}

/// A link of one Pup host.
#[derive(Debug)]
pub struct Link {
    host: u8,
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
    },
}

impl Link {
    /// A link on an Ethernet interface, for the Pups to `host` and to all hosts;
    /// through the broker at `broker`, if given.
    ///
    /// # Errors
    /// If the port is refused.
    pub fn on_port(interface: &str, broker: Option<&Path>, host: u8) -> Result<Link, LinkError> {
        // The destination host of a Pup.
        let filter = format!("ether[23] = {host} or ether[23] = 0");
        let station = Station::open(interface, broker, EtherType::PUP, &filter)?;
        let (station, hosts) = (Box::new(station), BTreeMap::new());
        Ok(Link {
            host,
            kind: Kind::Ethernet { station, hosts },
        })
    }

    /// A link over UDP: frames go to `peers`, a broadcast address or a host's, and
    /// come to the same UDP port of this host.
    ///
    /// # Errors
    /// If the UDP port is not free.
    pub fn on_udp(peers: SocketAddrV4, host: u8) -> Result<Link, LinkError> {
        let port = peers.port();
        let failed = |source| LinkError::Udp { port, source };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(failed)?;
        socket.set_broadcast(true).map_err(failed)?;
        Ok(Link {
            host,
            kind: Kind::Udp {
                socket,
                peers: peers.into(),
                timeout: None,
                buffer: vec![0; 2048],
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
            Kind::Udp { socket, peers, .. } => {
                let mut datagram = Vec::with_capacity(UDP_HEADER_LEN + PUP_LEN_MAX);
                datagram.resize(UDP_HEADER_LEN, 0);
                let Some(host) = write(&mut datagram) else {
                    return Ok(false);
                };
                emit_udp(host, self.host, &mut datagram);
                // What cannot be sent now is lost, as on a wire.
                let _ = socket.send_to(&datagram, *peers);
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
        let own = self.host;
        match &mut self.kind {
            Kind::Ethernet { station, hosts } => {
                station.receive(timeout, |from, pup| {
                    // The source host, of a Pup of the local net.
                    if let Some(&host) = pup.get(15)
                        && host != 0
                        && !from.is_multicast()
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
            } => {
                let port = peers.port();
                let failed = |source| LinkError::Udp { port, source };
                // Zero would wait without limit.
                let timeout = timeout.max(Duration::from_millis(1));
                if *set != Some(timeout) {
                    socket.set_read_timeout(Some(timeout)).map_err(failed)?;
                    *set = Some(timeout);
                }
                for count in 0..BATCH {
                    if count == 1 {
                        socket.set_nonblocking(true).map_err(failed)?;
                    }
                    // Errors tell of earlier datagrams that nobody received.
                    let Ok(len) = socket.recv(buffer) else {
                        break;
                    };
                    if let Some((src, dst, pup)) = parse_udp(&buffer[..len])
                        && src != own
                        && (dst == own || dst == 0)
                    {
                        take(pup);
                    }
                }
                socket.set_nonblocking(false).map_err(failed)
            }
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
}
