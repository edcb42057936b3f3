//! An Ethernet station on a port.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;
use weir_broker::protocol::Event;
use weir_broker::{Bytes, Port, PortError, Timeout};
use weir_wire::EtherType;
use weir_wire::ethernet::{self, Address};

/// Size of a port's receive queue: at least 600 full frames, and what a policy
/// grants by default.
const QUEUE: Bytes = Bytes(1 << 20);
/// Busy polling before a station sleeps: an answer takes less time than waking up does. In `weir
/// experiment vmtp` a minimal operation takes a third of the time so, and bulk a quarter less.
const BUSY_POLL: Duration = Duration::from_micros(50);
/// Frames that are sent in one call.
const BATCH_FRAMES: usize = 64;

/// Why a station fails.
#[derive(Debug, thiserror::Error)]
pub enum StationError {
    /// The port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The interface has no Ethernet address.
    #[error("{0} is not an Ethernet interface")]
    NoEthernet(String),
    /// The interface ended.
    #[error("interface {0} is gone")]
    Gone(String),
    /// The policy changed.
    #[error("the policy has changed: {0}")]
    Revoked(String),
    /// The policy allows no frames of this EtherType.
    #[error(
        "the policy lets no frames of EtherType {ether_type:#06x} be sent on {interface}: \
         the grant needs send = {{ ethertypes = [{ether_type:#06x}] }}"
    )]
    Refused {
        /// The interface.
        interface: String,
        /// The EtherType of the protocol.
        ether_type: u16,
    },
}

/// A port of one EtherType, with frames that wait to be sent.
#[derive(Debug)]
pub struct Station {
    port: Port,
    interface: String,
    address: Address,
    ip: Option<Ipv4Addr>,
    ether_type: EtherType,
    /// Frames to send, of which `count` are; the others are kept for later.
    frames: Vec<Vec<u8>>,
    count: usize,
    /// Frames to receive in one call.
    batch: usize,
}

impl Station {
    /// Opens a port for the frames of `ether_type` that `filter` accepts; through
    /// the broker at `broker`, if given.
    ///
    /// # Errors
    /// If the port is refused, or the interface is not an Ethernet.
    pub fn open(
        interface: &str,
        broker: Option<&Path>,
        ether_type: EtherType,
        filter: &str,
    ) -> Result<Station, StationError> {
        let of_type = format!("{} and ({filter})", type_filter(ether_type));
        let mut builder = Port::on(interface)
            .filter(&of_type)?
            .queue(QUEUE)
            .send(true);
        if let Some(socket) = broker {
            builder = builder.broker(socket);
        }
        let mut port = builder.open()?;
        port.set_latency_mode(true);
        port.set_busy_poll(BUSY_POLL);
        let status = port.status()?;
        let address = status.address.parse();
        let address = address.map_err(|_| StationError::NoEthernet(interface.to_owned()))?;
        let ip = status.addresses.iter().find_map(|(ip, _)| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        });
        let mut station = Station {
            port,
            interface: interface.to_owned(),
            address,
            ip,
            ether_type,
            frames: Vec::new(),
            count: 0,
            batch: usize::MAX,
        };
        station.set_filter(filter)?;
        Ok(station)
    }

    /// The station's address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// The first IPv4 address of the interface.
    pub fn ip(&self) -> Option<Ipv4Addr> {
        self.ip
    }

    /// Replaces the filter. A port sees what its interface sends, too: what this station sends is
    /// left out in the kernel, where it costs no copy into the queue.
    ///
    /// # Errors
    /// If it is refused.
    pub fn set_filter(&mut self, filter: &str) -> Result<(), StationError> {
        let (ether_type, address) = (type_filter(self.ether_type), self.address);
        let filter = format!("{ether_type} and not ether src {address} and ({filter})");
        Ok(self.port.set_filter(&filter)?)
    }

    /// Sets how many frames one call receives at most; without limit by default.
    pub fn set_batch(&mut self, frames: usize) {
        self.batch = frames.max(1);
    }

    /// Queues a frame whose payload `write` appends and whose destination it
    /// returns; `false` if it returns none.
    ///
    /// # Errors
    /// If the queue is full, and cannot be sent.
    pub fn queue_with(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Option<Address>,
    ) -> Result<bool, StationError> {
        if self.count == self.frames.len() {
            self.frames.push(Vec::with_capacity(1514));
        }
        let frame = &mut self.frames[self.count];
        frame.clear();
        frame.resize(ethernet::Repr::LEN, 0);
        let Some(dst) = write(frame) else {
            return Ok(false);
        };
        let header = ethernet::Repr {
            dst,
            src: self.address,
            ether_type: self.ether_type,
        };
        header.emit(frame);
        // Minimum length of an Ethernet frame, without its FCS.
        if frame.len() < 60 {
            frame.resize(60, 0);
        }
        self.count += 1;
        if self.count == BATCH_FRAMES {
            self.flush()?;
        }
        Ok(true)
    }

    /// Sends the queued frames, in one system call if the socket takes them.
    ///
    /// # Errors
    /// If the first frame that remains cannot be sent.
    pub fn flush(&mut self) -> Result<(), StationError> {
        let mut sent = 0;
        while sent < self.count {
            let frames: Vec<&[u8]> = self.frames[sent..self.count]
                .iter()
                .map(Vec::as_slice)
                .collect();
            match self.port.send_batch(&frames) {
                // The rest is lost, as on a wire: the protocols repeat it.
                Ok(0) => break,
                Ok(more) => sent += more,
                Err(error) if error.is_queue_full() => break,
                Err(error) => {
                    self.count = 0;
                    return Err(error.into());
                }
            }
        }
        self.count = 0;
        Ok(())
    }

    /// Gives `take` the source and the payload of each frame that arrives within
    /// `timeout`, and of those that are queued with it. A frame whose source is a
    /// group address is left out.
    ///
    /// # Errors
    /// If the ring is damaged.
    pub fn receive(
        &mut self,
        timeout: Duration,
        mut take: impl FnMut(Address, &[u8]),
    ) -> Result<(), StationError> {
        let frames = self
            .port
            .recv_at_most(self.batch, Timeout::after(timeout))?;
        for frame in frames {
            if let Some((from, payload)) = sent_by_station(frame.bytes()) {
                take(from, payload);
            }
        }
        Ok(())
    }

    /// Prepares to wait for the station's [descriptor](AsFd); returns `false` if frames are
    /// already there.
    pub fn arm(&mut self) -> bool {
        self.port.arm()
    }

    /// Fails if the interface is gone, the policy has changed, or the port has ended with its broker.
    ///
    /// # Errors
    /// If so.
    pub fn check(&mut self) -> Result<(), StationError> {
        let events = match self.port.events() {
            Err(error) if error.is_end_of_port() => return Err(error.into()),
            // Without a broker the port goes on.
            events => events.unwrap_or_default(),
        };
        for event in events {
            match event {
                Event::Gone => return Err(StationError::Gone(self.interface.clone())),
                Event::Revoked { reason } => return Err(StationError::Revoked(reason)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Fails if the policy has refused frames that were sent.
    ///
    /// # Errors
    /// If so.
    pub fn check_refusals(&mut self) -> Result<(), StationError> {
        match self.port.counters() {
            Ok(counters) if counters.refused > 0 => Err(StationError::Refused {
                interface: self.interface.clone(),
                ether_type: self.ether_type.0,
            }),
            _ => Ok(()),
        }
    }
}

impl AsFd for Station {
    /// Readable when there are frames, after [`arm`](Station::arm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}

/// The source and the payload of a frame; `None` if the source is a group address,
/// which no station has (IEEE 802.3 §3.2.3): answers to the frame would go to all.
fn sent_by_station(bytes: &[u8]) -> Option<(Address, &[u8])> {
    let frame = ethernet::Frame::new(bytes).ok()?;
    (!frame.src().is_multicast()).then(|| (frame.src(), frame.payload()))
}

/// The filter of an EtherType's frames. That of Pup is below 1,536: `ether proto`
/// would take it for a length.
fn type_filter(ether_type: EtherType) -> String {
    format!("ether[12:2] = {:#06x}", ether_type.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_address_sends_nothing() {
        let frame = |src: [u8; 6]| {
            let header = ethernet::Repr {
                dst: Address([2, 0, 0, 0, 0, 1]),
                src: Address(src),
                ether_type: EtherType(0x805b),
            };
            let mut bytes = vec![7; 60];
            header.emit(&mut bytes);
            bytes
        };
        let station = [2, 0, 0, 0, 0, 2];
        let bytes = frame(station);
        let expected = (Address(station), &[7; 46][..]);
        assert_eq!(sent_by_station(&bytes), Some(expected));
        for group in [[0xff; 6], [1, 0, 0x5e, 0, 1, 0], [3, 0, 0, 0, 0, 2]] {
            assert_eq!(sent_by_station(&frame(group)), None, "{group:?}");
        }
        assert_eq!(sent_by_station(&bytes[..13]), None);
    }
}
