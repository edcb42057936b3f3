//! [`Port`]: a host on a live interface beside the kernel's own host.
//!
//! The link opens two packet-filter ports. One takes the frames for the host's addresses, so
//! that the kernel does not answer them. The other gets copies of multicast frames and of ARP
//! and neighbour discovery requests for the host's addresses.

use super::claim::{TAKEN, claim};
use super::{Link, RxSink};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_broker::protocol::Event;
use weir_broker::{Bytes, Timeout};
use weir_stack::TxSink;
use weir_stack::iface::RxMeta;
use weir_wire::checksum::Sum;
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, EtherType, Protocol, ethernet, ipv4, ipv6};

/// How the packet-filter ports are opened.
#[derive(Clone, Debug, Default)]
pub struct PortOptions {
    /// Priority of the ports: a port of higher priority sees a frame earlier.
    pub priority: u16,
    /// The broker's socket; `None` is the default socket, or this process itself if it is root.
    pub broker: Option<PathBuf>,
}

/// Size of a port's receive queue, in bytes, if the grant has room for it.
const QUEUE: Bytes = Bytes(4 << 20);
/// Number of frames sent in one call.
const SENT_MAX: usize = 64;
/// Interval of the checks whether the interface still exists.
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Longest frame buffer, in bytes, that is reused for the next batch.
const REUSED_LEN_MAX: usize = 2048;

/// The packet-filter ports of one host on an interface.
pub struct Port {
    own: weir_broker::Port,
    all: weir_broker::Port,
    fd: OwnedFd,
    /// Buffers of frames to be sent; the first `count` are in use.
    sent: Vec<Vec<u8>>,
    count: usize,
    hardware: Address,
    /// When the interface was last checked.
    checked: Instant,
    refusals: Option<Refusals>,
    /// Claims of the addresses that the ports are for.
    claims: Vec<OwnedFd>,
    /// Those that another host of the interface has claimed before.
    shared: Vec<String>,
}

/// The callback for frames that the policy has refused.
struct Refusals {
    report: Box<dyn FnOnce(u64) + Send>,
    /// Whether frames were sent since the broker was last asked.
    has_sent: bool,
    /// When the broker is asked next, and the interval after that.
    next: Instant,
    pause: Duration,
}

/// First and longest interval at which the broker is asked for refusals after a frame was sent;
/// the interval doubles each time.
const REFUSALS_QUERY_INTERVAL: Duration = Duration::from_millis(500);
const REFUSALS_QUERY_INTERVAL_MAX: Duration = Duration::from_secs(60);

impl Port {
    /// Opens the ports for frames to these addresses at this hardware address, which may be the
    /// interface's own.
    ///
    /// # Errors
    /// If the ports are refused.
    pub fn open(
        interface: &str,
        hardware: Address,
        addresses: &[IpAddr],
        options: &PortOptions,
    ) -> io::Result<Port> {
        let to = |address: &IpAddr| match address {
            IpAddr::V4(address) => format!("ip dst host {address}"),
            IpAddr::V6(address) => format!("ip6 dst host {address}"),
        };
        let ours: Vec<String> = addresses.iter().map(to).collect();
        // What asks for our addresses, and what groups are sent.
        let all = "arp or ether multicast";
        let mut port = Port::of(interface, hardware, &ours.join(" or "), all, options)?;
        port.claim_all(interface, addresses.iter().map(IpAddr::to_string));
        Ok(port)
    }

    /// Opens the ports for all frames to a station of this hardware address, whatever its
    /// addresses; the kernel must have another hardware address.
    ///
    /// # Errors
    /// If the ports are refused.
    pub fn open_station(
        interface: &str,
        hardware: Address,
        options: &PortOptions,
    ) -> io::Result<Port> {
        let own = format!("ether dst {hardware}");
        let mut port = Port::of(interface, hardware, &own, "ether multicast", options)?;
        port.claim_all(interface, [hardware.to_string()].into_iter());
        Ok(port)
    }

    fn claim_all(&mut self, interface: &str, addresses: impl Iterator<Item = String>) {
        for address in addresses {
            match claim(interface, &address) {
                Ok(claim) => self.claims.push(claim),
                Err(TAKEN) => self.shared.push(address),
                // Without a descriptor it is not known.
                Err(_) => {}
            }
        }
    }

    /// The addresses of the host, IP addresses or the hardware address, that another host on ports of
    /// this interface has too, as far as they are in one network namespace. Either host takes some of the
    /// frames, and duplicate address detection finds nothing.
    pub fn shared_addresses(&self) -> impl Iterator<Item = &str> {
        self.shared.iter().map(String::as_str)
    }

    /// Opens a port that takes the frames of the first filter, and one that copies those of the
    /// second.
    fn of(
        interface: &str,
        hardware: Address,
        own: &str,
        all: &str,
        options: &PortOptions,
    ) -> io::Result<Port> {
        let (own, all) = both(interface, own, all, options)?;
        let fd = epoll::create(CreateFlags::CLOEXEC)?;
        for port in [&own, &all] {
            epoll::add(&fd, port, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Port {
            own,
            all,
            fd,
            sent: Vec::new(),
            count: 0,
            hardware,
            checked: Instant::now(),
            refusals: None,
            claims: Vec::new(),
            shared: Vec::new(),
        })
    }

    /// Calls `report` once, with their number, when the broker has refused sent frames, such as
    /// frames from an address that the policy does not grant.
    pub fn on_refusal(&mut self, report: impl FnOnce(u64) + Send + 'static) {
        self.refusals = Some(Refusals {
            report: Box::new(report),
            has_sent: false,
            next: Instant::now(),
            pause: REFUSALS_QUERY_INTERVAL,
        });
    }

    /// Asks the broker for refusals, if it is time.
    fn look_for_refusals(&mut self) {
        let now = Instant::now();
        let is_due = |one: &mut Refusals| one.has_sent && now >= one.next;
        let Some(mut refusals) = self.refusals.take_if(is_due) else {
            return;
        };
        let counters = self.own.counters().unwrap_or_default();
        if counters.refused > 0 {
            return (refusals.report)(counters.refused);
        }
        refusals.has_sent = false;
        refusals.next = now + refusals.pause;
        refusals.pause = REFUSALS_QUERY_INTERVAL_MAX.min(refusals.pause * 2);
        self.refusals = Some(refusals);
    }

    /// Fails if the port has ended, which received frames do not show.
    fn look(&mut self) -> io::Result<()> {
        if self.checked.elapsed() < LINK_CHECK_INTERVAL {
            return Ok(());
        }
        self.checked = Instant::now();
        self.look_for_refusals();
        let events = match self.own.events() {
            Err(error) if error.is_end_of_port() => return Err(io::Error::other(error)),
            // The ports of a broker that has ended continue to work.
            events => events.unwrap_or_default(),
        };
        match events.into_iter().find(Event::is_end) {
            Some(Event::Revoked { reason }) => {
                let reason = format!("the policy has changed: {reason}");
                Err(io::Error::new(io::ErrorKind::NetworkDown, reason))
            }
            Some(_) => Err(io::ErrorKind::NetworkDown.into()),
            None => Ok(()),
        }
    }
}

/// Opens the port that takes and the one that copies, with queues of [`QUEUE`] or, if the grant has no
/// room for one of them, of half of that room each.
fn both(
    interface: &str,
    own: &str,
    all: &str,
    options: &PortOptions,
) -> io::Result<(weir_broker::Port, weir_broker::Port)> {
    let mut taker = open(interface, own, true, QUEUE, options)?;
    let mut queue = taker.queue();
    if queue < QUEUE {
        queue = Bytes(queue.0 / 2);
        drop(taker);
        taker = open(interface, own, true, queue, options)?;
    }
    Ok((taker, open(interface, all, false, queue, options)?))
}

fn open(
    interface: &str,
    filter: &str,
    take: bool,
    queue: Bytes,
    options: &PortOptions,
) -> io::Result<weir_broker::Port> {
    let mut builder = weir_broker::Port::on(interface)
        .filter(filter)?
        .take(take)
        .priority(options.priority)
        .send(take)
        .queue_up_to(queue);
    if let Some(broker) = &options.broker {
        builder = builder.broker(broker);
    }
    let mut port = builder.open()?;
    port.set_latency_mode(true);
    Ok(port)
}

impl TxSink for Port {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.count == SENT_MAX {
            self.flush();
        }
        if self.sent.len() == self.count {
            self.sent.push(Vec::new());
        }
        let frame = &mut self.sent[self.count];
        frame.resize(len, 0);
        Some(frame)
    }

    fn submit(&mut self) {
        self.count += 1;
    }
}

impl Link for Port {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool> {
        self.look()?;
        let hardware = self.hardware;
        for port in [&mut self.own, &mut self.all] {
            // All queued frames are taken at once, so that the ring has room again.
            for frame in port.recv_batch(Timeout::NOW)? {
                // What this machine sends is not for us, nor a frame cut off.
                if frame.is_outgoing() || frame.is_cut() {
                    continue;
                }
                let bytes = frame.bytes();
                let received = RxMeta {
                    checksum_ok: is_partial(bytes) || frame.segment_size().is_some(),
                    ..RxMeta::default()
                };
                // In promiscuous mode the interface also receives frames for other stations.
                let ours = bytes
                    .first_chunk()
                    .is_some_and(|to: &[u8; 6]| *to == hardware.0 || Address(*to).is_multicast());
                if ours {
                    take(bytes, received);
                }
            }
        }
        Ok(false)
    }

    /// Sends the gathered frames; frames that the interface does not take are lost, as on a wire.
    fn flush(&mut self) {
        let mut frames: [&[u8]; SENT_MAX] = [&[]; SENT_MAX];
        let mut count = 0;
        for (slot, frame) in frames.iter_mut().zip(&self.sent[..self.count]) {
            *slot = frame;
            count += 1;
        }
        let mut from = 0;
        while from < count {
            match self.own.send_batch(&frames[from..count]) {
                Ok(sent @ 1..) => from += sent,
                _ => break,
            }
        }
        if let Some(refusals) = self.refusals.as_mut().filter(|_| count > 0) {
            refusals.has_sent = true;
        }
        self.count = 0;
        for frame in &mut self.sent {
            if frame.capacity() > REUSED_LEN_MAX {
                *frame = Vec::new();
            }
        }
    }

    fn arm(&mut self) -> bool {
        // Both ports are armed, whatever the first returns.
        let own = self.own.arm();
        self.all.arm() && own
    }

    fn next_arrival(&self) -> Option<Duration> {
        Some(LINK_CHECK_INTERVAL.saturating_sub(self.checked.elapsed()))
    }
}

/// Whether the sender, a kernel on this machine, has left the TCP or UDP checksum for a device
/// to complete. The checksum field then holds the sum of the pseudo-header; the frame was
/// never on a wire.
fn is_partial(frame: &[u8]) -> bool {
    let expected = |addresses, protocol: Protocol, payload: &[u8]| {
        let at = match protocol {
            Protocol::TCP => 16,
            Protocol::UDP => 6,
            _ => return false,
        };
        let Some(&[a, b]) = payload.get(at..at + 2) else {
            return false;
        };
        let len = payload.len() as u32;
        let sum = Sum::new().pseudo_header(addresses, protocol.0, len);
        sum.partial() == u16::from_be_bytes([a, b])
    };
    let Ok(ethernet) = ethernet::Frame::new(frame) else {
        return false;
    };
    match ethernet.ether_type() {
        EtherType::IPV4 => ipv4::Packet::new(ethernet.payload()).is_ok_and(|packet| {
            let addresses = AddrPair::V4(packet.src(), packet.dst());
            expected(addresses, packet.protocol(), packet.payload())
        }),
        EtherType::IPV6 => ipv6::Packet::new(ethernet.payload()).is_ok_and(|packet| {
            let addresses = AddrPair::V6(packet.src(), packet.dst());
            expected(addresses, packet.next_header(), packet.payload())
        }),
        _ => false,
    }
}
