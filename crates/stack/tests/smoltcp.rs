//! TCP between our stack and smoltcp's: another reading of the same RFCs.

mod common;

use common::stream::{Talker, byte};
use common::{HARDWARE, V4, V6, config, ip};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use std::collections::VecDeque;
use std::net::SocketAddr;
use weir_lab::seeds::seeds;
use weir_link::mem::{End, Impairments, MemLink};
use weir_stack::Stack;
use weir_stack::rng::Rng;
use weir_stack::tcp::State;
use weir_wire::tcp::{Flags, Options, Segment};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// What lies between smoltcp and the link.
#[derive(Default)]
struct Queue {
    to_smoltcp: VecDeque<Vec<u8>>,
    from_smoltcp: Vec<Vec<u8>>,
}

struct Rx(Vec<u8>);
struct Tx<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let done = f(&mut frame);
        self.0.push(frame);
        done
    }
}

impl Device for Queue {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        let frame = self.to_smoltcp.pop_front()?;
        Some((Rx(frame), Tx(&mut self.from_smoltcp)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.from_smoltcp))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// smoltcp's host, at end 1.
struct Other {
    queue: Queue,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    to_send: usize,
    sent: usize,
    read: usize,
    to_read: usize,
    closed: bool,
    ended: bool,
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000) as i64)
}

impl Other {
    fn new(seed: u64, buffers: [usize; 2], to_send: usize, to_read: usize) -> Other {
        let mut queue = Queue::default();
        let mut config = Config::new(EthernetAddress(HARDWARE[1].0).into());
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut queue, instant(0));
        interface.update_ip_addrs(|addresses| {
            for (address, len) in [(V4[1], 24), (V6[1], 64)] {
                addresses
                    .push(IpCidr::new(IpAddress::from(ip(address)), len))
                    .unwrap();
            }
        });
        let [rx, tx] = buffers.map(|len| tcp::SocketBuffer::new(vec![0; len]));
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(tcp::Socket::new(rx, tx));
        Other {
            queue,
            interface,
            sockets,
            socket,
            to_send,
            sent: 0,
            read: 0,
            to_read,
            closed: false,
            ended: false,
        }
    }

    fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut::<tcp::Socket<'_>>(self.socket)
    }

    fn connect(&mut self, remote: SocketAddr, local_port: u16) {
        let context = self.interface.context();
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        socket
            .connect(
                context,
                (IpAddress::from(remote.ip()), remote.port()),
                local_port,
            )
            .unwrap();
    }

    fn talk(&mut self) {
        let (sent, to_send) = (self.sent, self.to_send);
        let socket = self.tcp();
        if socket.may_send() && sent < to_send && socket.can_send() {
            let end = to_send.min(sent + 10_000);
            let bytes: Vec<u8> = (sent..end).map(|at| byte(1, at)).collect();
            self.sent += self.tcp().send_slice(&bytes).unwrap();
        }
        if self.sent == to_send && !self.closed && self.tcp().may_send() {
            self.tcp().close();
            self.closed = true;
        }
        let mut buffer = [0; 4096];
        while self.tcp().can_recv() {
            let count = self.tcp().recv_slice(&mut buffer).unwrap();
            for (offset, value) in buffer[..count].iter().enumerate() {
                assert_eq!(
                    *value,
                    byte(0, self.read + offset),
                    "byte {} to smoltcp",
                    self.read + offset
                );
            }
            self.read += count;
        }
        if self.read == self.to_read && !self.tcp().may_recv() && self.closed {
            self.ended = true;
        }
    }

    fn poll(&mut self, now_ns: u64, link: &mut MemLink, numbers: &mut Numbers) -> Option<u64> {
        while let Some(frame) = link.receive(End::B, now_ns) {
            self.queue.to_smoltcp.push_back(frame.bytes);
        }
        let now = instant(now_ns);
        self.interface.poll(now, &mut self.queue, &mut self.sockets);
        self.talk();
        self.interface.poll(now, &mut self.queue, &mut self.sockets);
        for frame in self.queue.from_smoltcp.drain(..) {
            numbers.told(&frame);
            link.send(End::B, now_ns, &frame).ok();
        }
        let next = self.interface.poll_at(now, &self.sockets)?;
        Some((next.total_micros().max(0) as u64 * 1000).max(now_ns + 1000))
    }
}

/// The TCP segment in a frame, if that is one.
fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    let start = match (&frame[12..14], frame[14 + 9], frame[14 + 6]) {
        ([0x08, 0x00], 6, _) => 14 + 20,
        ([0x86, 0xdd], _, 6) => 14 + 40,
        _ => return None,
    };
    Some(Segment::new(&frame[start..]).unwrap())
}

/// What our segments are held to: our stream begins behind the SYN, its FIN comes
/// behind the last byte, and nothing is beyond the widest window that smoltcp advertised
/// but one byte, which asks for a closed one.
struct Numbers {
    /// Bytes of our stream, and the number of the first.
    bytes: u32,
    first: u32,
    scale: u8,
    /// How far the window reached, counted from our first byte.
    edge: u32,
}

impl Numbers {
    fn told(&mut self, frame: &[u8]) {
        let Some(segment) = segment(frame) else {
            return;
        };
        let shift = if segment.flags().contains(Flags::SYN) {
            let options = Options::parse(segment.options());
            self.scale = options.window_scale.unwrap_or(0);
            0
        } else {
            self.scale
        };
        if segment.flags().contains(Flags::ACK) {
            let window = u32::from(segment.window()) << shift;
            // Those of an attempt before are none of this one's.
            let arrived = segment.ack().wrapping_sub(self.first);
            if arrived <= self.bytes + 1 {
                self.edge = self.edge.max(arrived + window);
            }
        }
    }

    fn check(&mut self, frame: &[u8]) {
        let Some(segment) = segment(frame) else {
            return;
        };
        let flags = segment.flags();
        if flags.contains(Flags::SYN) {
            let first = segment.seq().wrapping_add(1);
            if first != self.first {
                (self.first, self.edge) = (first, 0);
            }
            return;
        }
        let len = segment.payload().len() as u32;
        let end = segment.seq().wrapping_sub(self.first).wrapping_add(len);
        assert!(
            len == 0 || end <= self.edge + 1,
            "{end} is beyond {}",
            self.edge
        );
        if flags.contains(Flags::FIN) {
            assert_eq!(end, self.bytes, "the FIN's place");
        }
    }
}

/// Whether our end has a connection that is over.
fn is_lost(ours: &Stack, talker: &Talker) -> bool {
    let state = talker.connection.and_then(|id| ours.tcp_state(id));
    state == Some(State::Closed)
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut ppm = |most: u32| {
        if rng.below(2) == 0 {
            0
        } else {
            rng.below(most)
        }
    };
    let (loss_ppm, duplicate_ppm, corrupt_ppm) = (ppm(100_000), ppm(50_000), ppm(20_000));
    let impairments = Impairments {
        loss_ppm,
        duplicate_ppm,
        corrupt_ppm,
        delay_ns: u64::from(rng.below(30)) * MS + 10_000,
        jitter_ns: u64::from(rng.below(2)) * u64::from(rng.below(10)) * MS,
        ..Impairments::default()
    };
    let mut link = MemLink::new(impairments, impairments, seed).unwrap();
    let bytes = [rng.below(150_000) as usize, rng.below(150_000) as usize];
    let buffers = [
        1000 + rng.below(60_000) as usize,
        1000 + rng.below(60_000) as usize,
    ];
    let at = if rng.below(2) == 0 { V4 } else { V6 };
    let we_open = rng.below(2) == 0;
    println!("seed {seed}: {impairments:?} {bytes:?} {buffers:?} {at:?}, we open: {we_open}");

    let mut ours = Stack::new(&config(0), u128::from(seed)).unwrap();
    let mut other = Other::new(seed, buffers, bytes[1], bytes[0]);
    let mut talker = Talker::new(0, bytes[0], bytes[1], 8000);
    let server = SocketAddr::new(ip(at[usize::from(we_open)]), 80);
    let mut listener = None;
    if we_open {
        other.tcp().listen(80).unwrap();
        talker.connection = Some(ours.tcp_connect(0, None, server).unwrap());
    } else {
        listener = Some(ours.tcp_listen(server, 5).unwrap());
        other.connect(server, 50_000);
    }
    let mut now_ns = 0;
    let mut numbers = Numbers {
        bytes: bytes[0] as u32,
        first: 0,
        scale: 0,
        edge: 0,
    };
    let mut opened = false;
    while !(talker.ended && talker.closed && other.ended) {
        while let Some(frame) = link.receive(End::A, now_ns) {
            ours.receive(now_ns, &frame.bytes);
        }
        if let Some(listener) = listener.filter(|_| talker.connection.is_none()) {
            talker.connection = ours.tcp_accept(now_ns, listener).ok();
        }
        // Three questions for the neighbour may be lost, or all SYNs: that ends
        // an attempt (RFC 4861 §7.2.2), and a person tries again.
        let state = talker.connection.and_then(|id| ours.tcp_state(id));
        opened |= !matches!(state, None | Some(State::SynSent | State::Closed));
        if is_lost(&ours, &talker) && we_open && !opened {
            talker = Talker::new(0, bytes[0], bytes[1], 8000);
            talker.connection = Some(ours.tcp_connect(now_ns, None, server).unwrap());
        }
        talker.talk(now_ns, &mut ours);
        let mut frames: Vec<Vec<u8>> = Vec::new();
        let ours_ns = ours.poll(now_ns, &mut frames);
        for frame in frames {
            numbers.check(&frame);
            link.send(End::A, now_ns, &frame).ok();
        }
        let other_ns = other.poll(now_ns, &mut link, &mut numbers);
        let arrivals = [End::A, End::B].map(|end| link.next_arrival_ns(end));
        let next = arrivals
            .into_iter()
            .chain([ours_ns, other_ns])
            .flatten()
            .min();
        // The side whose attempt has ended sends by itself.
        let again_ns = (is_lost(&ours, &talker) && !opened).then_some(now_ns + S);
        let next = next.into_iter().chain(again_ns).min();
        now_ns = next.expect("something is to come").max(now_ns);
        let state = talker
            .connection
            .and_then(|connection| ours.tcp_state(connection));
        let theirs = other.tcp().state();
        assert!(
            now_ns < 4000 * S,
            "not done: we read {}, {state:?}; smoltcp sent {} and read {}, {theirs:?}",
            talker.read,
            other.sent,
            other.read
        );
    }
}

/// Bytes that smoltcp sent again brought a later acknowledgment, and its window was not
/// taken with it.
#[test]
fn what_comes_again_tells_the_window_too() {
    run(50_350_167);
}

/// Either side opens, both send, over lossy links; `weir_lab::seeds` describes the
/// variables that ask for more runs.
#[test]
fn smoltcp_and_we_understand_each_other() {
    seeds(20).for_each(run);
}
