//! The whole stack of one host on one link.

use crate::host::{
    Config, ConfigError, Counters, DropReason, Host, Incoming, Input, Problem, Report,
};
use crate::udp::{self, BindError, Datagram, SendError, UdpId};
use std::net::{IpAddr, SocketAddr};
use weir_wire::{Addresses, Protocol};

/// Where frames go out.
///
/// Each frame is written in place: what [`Outlet::reserve`] gave is filled
/// and goes out with [`Outlet::submit`].
pub trait Outlet {
    /// Room for the next frame, of exactly `len` bytes; `None` if the link
    /// takes no more now. What was there before is undefined.
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]>;

    /// The frame reserved last is complete and goes out.
    fn submit(&mut self);
}

/// An outlet without a limit, which keeps frames in memory.
impl Outlet for Vec<Vec<u8>> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.push(vec![0; len]);
        self.last_mut().map(Vec::as_mut_slice)
    }

    fn submit(&mut self) {}
}

/// A TCP/IP stack without I/O: frames, calls and the time go in, frames and
/// answers come out. Time is in nanoseconds from any start and does not go
/// back.
///
/// ```
/// use weir_stack::{Config, Stack};
/// use weir_wire::ethernet::Address;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let address = "192.0.2.5/24".parse()?;
/// let config = Config::new(Address([2, 0, 0, 0, 0, 5])).address(address);
/// let mut stack = Stack::new(&config, 42)?;
/// let socket = stack.udp_bind("0.0.0.0:7".parse()?)?;
/// stack.udp_send(0, socket, "192.0.2.9:7".parse()?, b"hello")?;
/// let mut frames: Vec<Vec<u8>> = Vec::new();
/// let next_ns = stack.poll(0, &mut frames);
/// // Who has 192.0.2.9? The datagram waits for the answer.
/// assert_eq!((frames.len(), next_ns), (1, Some(1_000_000_000)));
/// # Ok(())
/// # }
/// ```
pub struct Stack {
    host: Host,
    udp: udp::Sockets,
}

impl Stack {
    /// A stack with these addresses and routes. Peers must not know the seed:
    /// sequence numbers, transport ports and hashes come from it.
    ///
    /// # Errors
    /// If the configuration contradicts itself or exceeds a limit.
    pub fn new(config: &Config, seed: u128) -> Result<Stack, ConfigError> {
        Ok(Stack {
            host: Host::new(config, (seed >> 64) as u64 ^ seed as u64)?,
            udp: udp::Sockets::new(seed),
        })
    }

    /// Takes a frame from the link, without its check sequence.
    pub fn receive(&mut self, now_ns: u64, frame: &[u8]) {
        let done = match self.host.frame(now_ns, frame) {
            Ok(Some((packet, to_group))) => self.packet(now_ns, packet, to_group),
            Ok(None) => Ok(()),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = done {
            self.host.counters.drop(reason);
        }
    }

    fn packet(&mut self, now_ns: u64, bytes: &[u8], to_group: bool) -> Result<(), DropReason> {
        match self.host.packet(now_ns, bytes, to_group)? {
            Input::Datagram(incoming) => self.datagram(now_ns, &incoming),
            Input::Partial => Ok(()),
            Input::Whole(whole) => match self.host.packet(now_ns, &whole, to_group)? {
                Input::Datagram(incoming) => self.datagram(now_ns, &incoming),
                // Fragments of fragments: nobody honest makes them.
                Input::Partial | Input::Whole(_) => Err(DropReason::FragmentMalformed),
            },
        }
    }

    fn datagram(&mut self, now_ns: u64, incoming: &Incoming<'_>) -> Result<(), DropReason> {
        let done = match (incoming.protocol, incoming.addresses) {
            (Protocol::ICMPV4, Addresses::V4(..)) | (Protocol::ICMPV6, Addresses::V6(..)) => {
                let report = self.host.icmp(now_ns, incoming)?;
                report.map_or(Ok(()), |report| self.report(now_ns, report))
            }
            (Protocol::UDP, _) => self.udp.receive(incoming),
            _ => Err(DropReason::ProtocolUnknown),
        };
        match done {
            Err(DropReason::PortUnknown) => self.host.send_error(now_ns, incoming, Problem::Port),
            Err(DropReason::ProtocolUnknown) => {
                self.host.send_error(now_ns, incoming, Problem::Protocol);
            }
            _ => {}
        }
        done
    }

    /// An ICMP error is believed only about something that we can have sent.
    fn report(&mut self, now_ns: u64, report: Report<'_>) -> Result<(), DropReason> {
        let (Report::Unreachable {
            addresses,
            protocol,
            transport,
            ..
        }
        | Report::TooBig {
            addresses,
            protocol,
            transport,
            ..
        }) = report;
        let port = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
        let (src, dst): (IpAddr, IpAddr) = match addresses {
            Addresses::V4(src, dst) => (src.into(), dst.into()),
            Addresses::V6(src, dst) => (src.into(), dst.into()),
        };
        if !self.host.routes.is_ours(src) {
            return Err(DropReason::IcmpUnrelated);
        }
        let (local, remote) = (SocketAddr::new(src, port(0)), SocketAddr::new(dst, port(2)));
        let hard = matches!(report, Report::Unreachable { hard: true, .. });
        let related = match protocol {
            Protocol::UDP => self.udp.unreachable(local, remote, hard),
            _ => false,
        };
        if !related {
            return Err(DropReason::IcmpUnrelated);
        }
        if let Report::TooBig { mtu, .. } = report {
            self.host.narrow_path(now_ns, dst, mtu);
        }
        Ok(())
    }

    /// Does what is due and sends what is ready, as far as the link takes it;
    /// gives when it is to be called again if nothing happens before. A frame
    /// that came, or a call, makes it due at once; so does a link that was
    /// full and takes frames again.
    pub fn poll(&mut self, now_ns: u64, out: &mut dyn Outlet) -> Option<u64> {
        self.host.poll(now_ns);
        while let Some(frame) = self.host.next_frame() {
            let Some(room) = out.reserve(frame.len()) else {
                break;
            };
            room.copy_from_slice(frame);
            out.submit();
            self.host.frame_sent();
        }
        self.host.next_ns()
    }

    /// What the stack has counted.
    pub fn counters(&self) -> &Counters {
        &self.host.counters
    }

    /// Our addresses, the link-local one of IPv6 included.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.host
            .routes
            .addresses()
            .iter()
            .map(crate::host::Prefix::address)
    }

    /// Makes a UDP socket at a local address and transport port; the
    /// unspecified address is any of its version, port 0 any that is free.
    ///
    /// # Errors
    /// If the address is not ours, or the place is taken.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, BindError> {
        self.udp.bind(&self.host.routes, local)
    }

    /// Ties a UDP socket to one peer: it hears no other, and learns when
    /// nobody is there.
    ///
    /// # Errors
    /// If no route leads there, or another socket is tied to it from the same
    /// address and transport port.
    pub fn udp_connect(&mut self, socket: UdpId, remote: SocketAddr) -> Result<(), BindError> {
        self.udp.connect(&self.host.routes, socket, remote)
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
        self.udp.send(now_ns, &mut self.host, socket, to, bytes)
    }

    /// The next datagram that came to a UDP socket.
    pub fn udp_receive(&mut self, socket: UdpId) -> Option<Datagram> {
        self.udp.take(socket)
    }

    /// Closes a UDP socket; what waits in it is gone.
    pub fn udp_close(&mut self, socket: UdpId) {
        self.udp.close(socket);
    }
}
