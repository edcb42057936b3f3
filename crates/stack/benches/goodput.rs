//! How fast bytes go between two hosts in memory, on one core, in frames of
//! 1,500 bytes: our stack and smoltcp, each against itself, in turn.
//!
//! ```sh
//! cargo bench -p weir-stack --bench goodput
//! ```
//!
//! Both write, checksum, carry, check and read the same bytes over the same
//! queues; the best of several rounds counts, so the ratio is good even where
//! the times are not.

use smoltcp::iface::{Config as OtherConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as OtherInstant;
use smoltcp::wire::{EthernetAddress, IpCidr};
use std::collections::VecDeque;
use std::time::Instant;
use weir_stack::{Config, Outlet, Stack};
use weir_wire::ethernet::Address;

/// Bytes of one round.
const BYTES: usize = 16 << 20;
const ROUNDS: usize = 200;
/// Bytes that are written or read at a time, and of each buffer.
const PIECE: usize = 64 << 10;
const BUFFER: usize = 512 << 10;

/// Frames from one host to the other; spent ones are used again.
#[derive(Default)]
struct Wire {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Wire {
    fn frame(&mut self, len: usize) -> Vec<u8> {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.resize(len, 0);
        frame
    }
}

struct Out<'a> {
    wire: &'a mut Wire,
    frame: Vec<u8>,
}

impl Outlet for Out<'_> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame = self.wire.frame(len);
        Some(&mut self.frame)
    }

    fn submit(&mut self) {
        self.wire.frames.push_back(std::mem::take(&mut self.frame));
    }
}

/// Seconds that our stack takes.
fn ours() -> f64 {
    let hosts = ["192.0.2.1/24", "192.0.2.2/24"];
    let mut stacks: Vec<Stack> = hosts
        .iter()
        .zip(1..)
        .map(|(address, number)| {
            let config =
                Config::new(Address([2, 0, 0, 0, 0, number])).address(address.parse().unwrap());
            let mut stack = Stack::new(&config, number.into()).unwrap();
            let tcp = weir_stack::tcp::TcpConfig {
                receive_buffer: BUFFER,
                send_buffer: BUFFER,
                ..Default::default()
            };
            stack.tcp_configure(tcp);
            stack
        })
        .collect();
    let mut wires = [Wire::default(), Wire::default()];
    let server = "192.0.2.2:80".parse().unwrap();
    let listener = stacks[1].tcp_listen(server, 1).unwrap();
    let client = stacks[0].tcp_connect(0, None, server).unwrap();
    let (mut accepted, mut written, mut read) = (None, 0, 0);
    let (bytes, mut buffer) = (vec![7; PIECE], vec![0; PIECE]);
    let start = Instant::now();
    while read < BYTES {
        let now_ns = start.elapsed().as_nanos() as u64;
        while written < BYTES {
            match stacks[0].tcp_write(client, &bytes[..PIECE.min(BYTES - written)]) {
                Ok(count) => written += count,
                Err(_) => break,
            }
        }
        for end in 0..2 {
            while let Some(frame) = wires[1 - end].frames.pop_front() {
                stacks[end].receive(now_ns, &frame);
                wires[1 - end].spare.push(frame);
            }
            if end == 1 {
                accepted = accepted.or_else(|| stacks[1].tcp_accept(now_ns, listener).ok());
                while let Some(count) =
                    accepted.and_then(|id| stacks[1].tcp_read(id, &mut buffer).ok())
                {
                    read += count;
                }
            }
            let wire = &mut wires[end];
            let frame = Vec::new();
            stacks[end].poll(now_ns, &mut Out { wire, frame });
        }
    }
    start.elapsed().as_secs_f64()
}

struct Ends<'a> {
    from: &'a mut Wire,
    to: &'a mut Wire,
}

struct Rx<'a>(Vec<u8>, &'a mut Vec<Vec<u8>>);
struct Tx<'a>(&'a mut Wire);

impl RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let done = f(&self.0);
        self.1.push(self.0);
        done
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = self.0.frame(len);
        let done = f(&mut frame);
        self.0.frames.push_back(frame);
        done
    }
}

impl Device for Ends<'_> {
    type RxToken<'b>
        = Rx<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Tx<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: OtherInstant) -> Option<(Rx<'_>, Tx<'_>)> {
        let frame = self.from.frames.pop_front()?;
        Some((Rx(frame, &mut self.from.spare), Tx(self.to)))
    }

    fn transmit(&mut self, _: OtherInstant) -> Option<Tx<'_>> {
        Some(Tx(self.to))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

struct Other {
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
}

impl Other {
    fn new(number: u8, ends: &mut Ends<'_>) -> Other {
        let config = OtherConfig::new(EthernetAddress([2, 0, 0, 0, 0, number]).into());
        let mut interface = Interface::new(config, ends, OtherInstant::ZERO);
        let address: IpCidr = format!("192.0.2.{number}/24").parse().unwrap();
        interface.update_ip_addrs(|addresses| addresses.push(address).unwrap());
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Other {
            interface,
            sockets,
            socket,
        }
    }

    fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut::<tcp::Socket<'_>>(self.socket)
    }
}

/// Seconds that smoltcp takes.
fn smoltcp() -> f64 {
    let [mut there, mut back] = [Wire::default(), Wire::default()];
    let mut client = Other::new(
        1,
        &mut Ends {
            from: &mut back,
            to: &mut there,
        },
    );
    let mut server = Other::new(
        2,
        &mut Ends {
            from: &mut there,
            to: &mut back,
        },
    );
    server.tcp().listen(80).unwrap();
    let context = client.interface.context();
    let socket = client.sockets.get_mut::<tcp::Socket<'_>>(client.socket);
    let remote: std::net::SocketAddr = "192.0.2.2:80".parse().unwrap();
    socket.connect(context, remote, 50_000).unwrap();
    let (mut written, mut read) = (0, 0);
    let (bytes, mut buffer) = (vec![7; PIECE], vec![0; PIECE]);
    let start = Instant::now();
    while read < BYTES {
        let now = OtherInstant::from_micros(start.elapsed().as_micros() as i64);
        while written < BYTES && client.tcp().can_send() {
            written += client
                .tcp()
                .send_slice(&bytes[..PIECE.min(BYTES - written)])
                .unwrap();
        }
        let mut ends = Ends {
            from: &mut back,
            to: &mut there,
        };
        client.interface.poll(now, &mut ends, &mut client.sockets);
        let mut ends = Ends {
            from: &mut there,
            to: &mut back,
        };
        server.interface.poll(now, &mut ends, &mut server.sockets);
        while server.tcp().can_recv() {
            read += server.tcp().recv_slice(&mut buffer).unwrap();
        }
    }
    start.elapsed().as_secs_f64()
}

fn main() {
    let best = |run: fn() -> f64, best: f64| best.min(run());
    let (mut us, mut other) = (f64::MAX, f64::MAX);
    let alone = std::env::args().any(|argument| argument == "weir");
    for _ in 0..ROUNDS {
        us = best(ours, us);
        if alone {
            continue;
        }
        other = best(smoltcp, other);
    }
    let rate = |seconds: f64| BYTES as f64 * 8.0 / 1e9 / seconds;
    println!("weir    {:6.2} Gb/s", rate(us));
    println!("smoltcp {:6.2} Gb/s", rate(other));
    println!("ratio   {:6.2}", other / us);
}
