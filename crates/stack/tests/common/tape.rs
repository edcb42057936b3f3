//! A tape drives a whole stack: frames of a peer, as they are, again, changed
//! or made up, with calls and time between them. For tests and for fuzzing.

#![allow(dead_code, reason = "each includer uses its part")]

#[path = "packet.rs"]
mod packet;

use std::net::SocketAddr;
use weir_stack::iface::DadMode;
use weir_stack::tcp::{ListenerId, TcpConfig, TcpId};
use weir_stack::udp::UdpId;
use weir_stack::{Config, Stack};
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, Protocol, checksum, ethernet, ipv4, ipv6};

/// Frames of the past that may come again.
const HISTORY: usize = 16;
/// Frames that a stack may send for one step of a tape.
const ANSWERS_MAX: usize = 2000;
/// Connections that one side opens.
const CONNECTIONS: usize = 20;

struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

struct World {
    /// The one that is tried, and its peer.
    stacks: [Stack; 2],
    frames: [Vec<Vec<u8>>; 2],
    history: Vec<Vec<u8>>,
    listeners: [ListenerId; 2],
    /// Of the one that is tried.
    socket: UdpId,
    connections: [Vec<TcpId>; 2],
    now_ns: u64,
}

/// Runs a tape to its end, and then until nothing is left to be done.
pub(crate) fn run(tape: &[u8]) {
    let mut tape = Tape(tape);
    let mut world = World::new(tape.byte());
    while !tape.0.is_empty() {
        world.step(&mut tape);
    }
    for end in 0..2 {
        for id in world.connections[end].clone() {
            world.stacks[end].tcp_abort(world.now_ns, id);
        }
        world.stacks[end].tcp_unlisten(world.now_ns, world.listeners[end]);
    }
    // Whatever came, nothing stays for ever.
    for _ in 0..100 {
        world.now_ns += 120_000_000_000;
        world.poll(0);
    }
    assert_eq!(world.stacks[0].tcp_connections(), 0);
}

impl World {
    fn new(options: u8) -> World {
        let host = |number: u8| {
            let mut config = Config::new(Address([2, 0, 0, 0, 0, number]))
                .address(format!("192.0.2.{number}/24").parse().unwrap())
                .address(format!("2001:db8::{number}/64").parse().unwrap());
            if number == 1 {
                config.dad_mode = match options >> 4 & 3 {
                    0 | 1 => DadMode::Off,
                    2 => DadMode::Optimistic,
                    _ => DadMode::Blocking,
                };
                (config.autoconf, config.dhcp) = (options & 0x40 != 0, options & 0x80 != 0);
            }
            let mut stack = Stack::new(&config, number.into()).unwrap();
            stack.tcp_configure(TcpConfig {
                receive_buffer: if options & 1 == 0 { 65_536 } else { 3000 },
                timestamps: options & 2 == 0,
                sack: options & 4 == 0,
                ..TcpConfig::default()
            });
            stack
        };
        let mut stacks = [host(1), host(2)];
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let mut sockets = Vec::new();
        let listeners = [0, 1].map(|end: usize| {
            let any = if options & 8 == 0 {
                "0.0.0.0:80"
            } else {
                "[::]:80"
            };
            sockets.push(stacks[end].udp_bind(at("0.0.0.0:7")).unwrap());
            stacks[end].tcp_listen(at(any), 8).unwrap()
        });
        let mut world = World {
            stacks,
            frames: Default::default(),
            history: Vec::new(),
            listeners,
            socket: sockets[0],
            connections: Default::default(),
            now_ns: 1,
        };
        let peers = if options & 8 == 0 {
            ["192.0.2.2:80", "192.0.2.1:80"]
        } else {
            ["[2001:db8::2]:80", "[2001:db8::1]:80"]
        };
        for (end, peer) in peers.into_iter().enumerate() {
            world.open(end, at(peer));
        }
        world
    }

    fn open(&mut self, end: usize, to: SocketAddr) {
        if self.connections[end].len() < CONNECTIONS
            && let Ok(id) = self.stacks[end].tcp_connect(self.now_ns, None, to)
        {
            self.connections[end].push(id);
            self.stacks[end].tcp_write(id, b"hello").unwrap();
        }
        self.poll(end);
    }

    fn poll(&mut self, end: usize) {
        let mut frames: Vec<Vec<u8>> = Vec::new();
        self.stacks[end].poll(self.now_ns, &mut frames);
        assert!(frames.len() <= ANSWERS_MAX, "{} frames", frames.len());
        for frame in &frames {
            assert!(frame.len() <= 1514, "{} bytes", frame.len());
        }
        self.frames[end].extend(frames);
        self.frames[end].truncate(ANSWERS_MAX);
    }

    /// A frame comes to an end; it answers.
    fn deliver(&mut self, end: usize, frame: &[u8]) {
        self.stacks[end].receive(self.now_ns, frame);
        self.poll(end);
        while let Ok(id) = self.stacks[end].tcp_accept(self.now_ns, self.listeners[end]) {
            self.connections[end].push(id);
        }
    }

    /// The next frame from the peer, which is remembered.
    fn next_frame(&mut self) -> Option<Vec<u8>> {
        if self.frames[1].is_empty() {
            return None;
        }
        let frame = self.frames[1].remove(0);
        if self.history.len() == HISTORY {
            self.history.remove(0);
        }
        self.history.push(frame.clone());
        Some(frame)
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.byte() % 16 {
            0 | 1 => {
                while let Some(frame) = self.next_frame() {
                    self.deliver(0, &frame);
                }
            }
            2 | 3 => {
                for frame in std::mem::take(&mut self.frames[0]) {
                    self.deliver(1, &frame);
                }
            }
            4 | 5 => {
                if let Some(mut frame) = self.next_frame() {
                    change(&mut frame, tape);
                    self.deliver(0, &frame);
                }
            }
            6 => {
                let which = usize::from(tape.byte());
                if let Some(mut frame) = self.history.get(which % HISTORY).cloned() {
                    change(&mut frame, tape);
                    self.deliver(0, &frame);
                }
            }
            7 => {
                let ether_type = [[8, 0], [0x86, 0xdd], [8, 6]][usize::from(tape.byte() % 3)];
                let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
                frame.extend(ether_type);
                let len = tape.byte().into();
                frame.extend(tape.bytes(len));
                repair(&mut frame);
                self.deliver(0, &frame);
            }
            8 => {
                self.now_ns += 1 << (tape.byte() % 38);
                self.poll(0);
                self.poll(1);
            }
            9 | 10 => self.call(tape),
            11 => {
                let to = ["192.0.2.1:80", "192.0.2.1:9", "[2001:db8::1]:80"];
                let to = to[usize::from(tape.byte() % 3)];
                self.open(1, to.parse().unwrap());
            }
            12 => self.open(0, "192.0.2.2:80".parse().unwrap()),
            13 => {
                let frame = neighbourly(tape);
                self.deliver(0, &frame);
            }
            14 => {
                if let Some(frame) = self.leased(tape) {
                    self.deliver(0, &frame);
                }
            }
            _ => {
                let group = [224, 1, 1, tape.byte() % 4].into();
                match tape.byte() % 2 {
                    0 => _ = self.stacks[0].udp_join(self.socket, group),
                    _ => _ = self.stacks[0].udp_leave(self.socket, group),
                }
                self.poll(0);
            }
        }
    }

    /// What a DHCP server may answer to what was asked last, its options from
    /// the tape.
    fn leased(&mut self, tape: &mut Tape<'_>) -> Option<Vec<u8>> {
        let asks = self.frames[0].iter().rev();
        let ask = asks.filter_map(|frame| {
            let ports = frame.get(34..38)?;
            (frame[12..14] == [8, 0] && ports == [0, 68, 0, 67]).then(|| frame.get(42..282))?
        });
        let mut message = ask.map(<[u8]>::to_vec).next()?;
        message[0] = 2;
        message[16..20].copy_from_slice(&[192, 0, 2, 1 + tape.byte() % 4]);
        message.extend([53, 1, tape.byte() % 8, 54, 4, 192, 0, 2, 2]);
        let len = tape.byte().into();
        message.extend(tape.bytes(len));
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 2, 8, 0]);
        let mut packet = vec![0; ipv4::Repr::LEN];
        ipv4::Repr {
            src: [192, 0, 2, 2].into(),
            dst: [255; 4].into(),
            protocol: Protocol::UDP,
            ttl: 64,
            traffic_class: 0,
            identification: 0,
            dont_fragment: true,
            payload_len: 8 + message.len(),
        }
        .emit(&mut packet);
        frame.extend(packet);
        frame.extend([0, 67, 0, 68]);
        frame.extend(((8 + message.len()) as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(message);
        repair(&mut frame);
        Some(frame)
    }

    /// An application does something with a connection.
    fn call(&mut self, tape: &mut Tape<'_>) {
        let end = usize::from(tape.byte() % 2);
        let which = usize::from(tape.byte());
        let connections = &self.connections[end];
        let Some(&id) = connections.get(which % connections.len().max(1)) else {
            return;
        };
        let stack = &mut self.stacks[end];
        let mut buffer = [0; 5000];
        match tape.byte() % 8 {
            0 | 1 => _ = stack.tcp_write(id, &buffer[..usize::from(tape.byte()) * 16]),
            2..=4 => _ = stack.tcp_read(id, &mut buffer),
            5 => _ = stack.tcp_shutdown(self.now_ns, id),
            6 => stack.tcp_close(self.now_ns, id),
            _ => _ = stack.tcp_set_keep_alive(self.now_ns, id, Some(1 << (tape.byte() % 38))),
        }
        self.poll(end);
    }
}

/// A message of IPv6 among neighbours: of routers, of groups, about addresses.
fn neighbourly(tape: &mut Tape<'_>) -> Vec<u8> {
    let kinds = [134, 134, 137, 135, 136, 130, 131, 143];
    let kind = kinds[usize::from(tape.byte() % 8)];
    let groups = matches!(kind, 130 | 131 | 143);
    let len = tape.byte().into();
    let mut message = vec![kind, 0, 0, 0];
    message.extend(tape.bytes(len));
    let ends = [
        Address([0x33, 0x33, 0, 0, 0, 1]),
        Address([2, 0, 0, 0, 0, 2]),
    ];
    let addresses = ("fe80::2".parse().unwrap(), "ff02::1".parse().unwrap());
    let alert: &[u8] = if groups { &packet::ALERT } else { &[] };
    let next = if groups {
        Protocol::IPV6_HOP_BY_HOP
    } else {
        Protocol::ICMPV6
    };
    let hop_limit = if groups { 1 } else { 255 };
    let payload = [alert, &message].concat();
    let mut frame = packet::v6(ends, addresses, next, hop_limit, &payload);
    repair(&mut frame);
    frame
}

/// Changes some bytes behind the Ethernet header, perhaps the length, and
/// makes the checksums right again, mostly.
fn change(frame: &mut Vec<u8>, tape: &mut Tape<'_>) {
    let how = tape.byte();
    for _ in 0..how % 4 {
        let at = ethernet::Repr::LEN + usize::from(tape.byte()) % 100;
        let value = tape.byte();
        if let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
    }
    if how & 0x10 != 0 {
        frame.truncate(14 + usize::from(tape.byte()));
    }
    if how & 0xe0 != 0 {
        repair(frame);
    }
}

/// Makes the checksums right of a frame with a transport behind its IP header.
fn repair(frame: &mut [u8]) {
    let Some(ip) = frame.get_mut(ethernet::Repr::LEN..) else {
        return;
    };
    let (addresses, mut start, mut protocol) = if let Ok(packet) = ipv4::Packet::new(ip) {
        let (addresses, protocol) = (AddrPair::V4(packet.src(), packet.dst()), packet.protocol());
        let len = packet.header_len();
        ip[10..12].fill(0);
        let sum = checksum::internet_checksum(&ip[..len]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        (addresses, len, protocol.0)
    } else if let Ok(packet) = ipv6::Packet::new(ip) {
        let addresses = AddrPair::V6(packet.src(), packet.dst());
        (addresses, ipv6::Repr::LEN, ip[6])
    } else {
        return;
    };
    if protocol == Protocol::IPV6_HOP_BY_HOP.0 && ip[start..].starts_with(&packet::ALERT) {
        (start, protocol) = (start + packet::ALERT.len(), packet::ALERT[0]);
    }
    let transport = &mut ip[start..];
    let at = match protocol {
        6 => 16,
        17 => 6,
        1 | 2 | 58 => 2,
        _ => return,
    };
    if transport.len() < at + 2 {
        return;
    }
    transport[at..at + 2].fill(0);
    let sum = checksum::Sum::new();
    let sum = match protocol {
        1 | 2 => sum,
        _ => sum.pseudo_header(addresses, protocol, transport.len() as u32),
    };
    let sum = sum.bytes(transport).finish();
    transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
