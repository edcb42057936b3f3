//! Our stack as one end.

use super::{End, Transport};
use std::net::{Ipv4Addr, SocketAddr};
use weir_stack::TxSink;
use weir_stack::iface::{Channel, Mode, RxMeta};
use weir_stack::tcp::TcpId;
use weir_stack::udp::UdpId;
use weir_stack::{Config, Prefix, Stack};
use weir_wire::ethernet::Address;

const CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 7000);
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 7);
/// Turns in which two hosts have met and opened a connection.
const TURNS_MAX: usize = 64;

/// A host of ours, with one socket.
pub struct WeirHost {
    stack: Stack,
    socket: Socket,
    /// The channel that its frames come by.
    channel: Option<Channel>,
    sent: Sent,
}

#[derive(Clone, Copy)]
enum Socket {
    None,
    Tcp(TcpId),
    Udp(UdpId),
}

/// Frames that the link has been handed; their storage is used again.
#[derive(Default)]
struct Sent {
    frames: Vec<Vec<u8>>,
    count: usize,
}

impl TxSink for Sent {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.frames.len() == self.count {
            self.frames.push(Vec::new());
        }
        let frame = &mut self.frames[self.count];
        frame.resize(len, 0);
        Some(frame)
    }

    fn submit(&mut self) {
        self.count += 1;
    }
}

/// Client and server, tied to each other. By [`Mode::Opt`] the link has a
/// channel for the connection and names it with each frame, as the paper's
/// adapter does; by [`Mode::Mux`] it has one for all.
pub fn pair(mode: Mode, transport: Transport, seed: u64, now_ns: u64) -> (WeirHost, WeirHost) {
    let host = |local: SocketAddr, last| {
        let prefix = Prefix::new(local.ip(), 24).expect("24 bits of 32");
        let mut config = Config::new(Address([2, 0, 0, 0, 0, last])).address(prefix);
        config.mode = mode;
        let seed = u128::from(seed) << 8 | u128::from(last);
        WeirHost {
            stack: Stack::new(&config, seed).expect("one address is no contradiction"),
            socket: Socket::None,
            channel: None,
            sent: Sent::default(),
        }
    };
    let (mut client, mut server) = (host(CLIENT, 1), host(SERVER, 2));
    match transport {
        Transport::Tcp => connect(&mut client, &mut server, now_ns),
        Transport::Udp => {
            client.bind(CLIENT, SERVER);
            server.bind(SERVER, CLIENT);
            // Both learn one another's hardware address.
            client.write(now_ns, &[0]);
            meet(&mut client, &mut server, now_ns);
            while server.read(now_ns, &mut [0]) > 0 {}
        }
    }
    if mode == Mode::Opt {
        client.channel = client.own_channel();
        server.channel = server.own_channel();
    }
    (client, server)
}

fn connect(client: &mut WeirHost, server: &mut WeirHost, now_ns: u64) {
    let listener = server.stack.tcp_listen(SERVER, 1).expect("it is free");
    let opened = client.stack.tcp_connect(now_ns, Some(CLIENT), SERVER);
    let opened = opened.expect("its ends are free");
    meet(client, server, now_ns);
    let accepted = server.stack.tcp_accept(now_ns, listener);
    let accepted = accepted.expect("the link loses nothing");
    for (host, id) in [(client, opened), (server, accepted)] {
        let set = host.stack.tcp_set_nodelay(id, true);
        set.expect("it is open");
        host.socket = Socket::Tcp(id);
    }
}

/// Frames go both ways.
fn meet(client: &mut WeirHost, server: &mut WeirHost, now_ns: u64) {
    for _ in 0..TURNS_MAX {
        client.run(now_ns);
        client.leave(&mut |frame| server.arrive(now_ns, frame));
        server.run(now_ns);
        server.leave(&mut |frame| client.arrive(now_ns, frame));
    }
}

impl WeirHost {
    fn bind(&mut self, local: SocketAddr, remote: SocketAddr) {
        let socket = self.stack.udp_bind(local).expect("it is free");
        let tied = self.stack.udp_connect(socket, remote);
        tied.expect("a route leads there");
        self.socket = Socket::Udp(socket);
    }

    fn own_channel(&self) -> Option<Channel> {
        match self.socket {
            Socket::None => None,
            Socket::Tcp(id) => self.stack.tcp_channel(id),
            Socket::Udp(socket) => self.stack.udp_channel(socket),
        }
    }

    fn peer(&self, socket: UdpId) -> SocketAddr {
        match self.stack.udp_local(socket) {
            Some(CLIENT) => SERVER,
            _ => CLIENT,
        }
    }

    /// Segments that took the fast path, and the standard one.
    pub fn segments(&self) -> (u64, u64) {
        let counters = self.stack.counters();
        (counters.segments_fast, counters.segments_standard)
    }
}

impl End for WeirHost {
    fn write(&mut self, now_ns: u64, bytes: &[u8]) -> usize {
        match self.socket {
            Socket::None => 0,
            Socket::Tcp(id) => self.stack.tcp_write(id, bytes).unwrap_or(0),
            Socket::Udp(socket) => {
                let peer = self.peer(socket);
                let sent = self.stack.udp_send(now_ns, socket, peer, bytes);
                sent.map_or(0, |()| bytes.len())
            }
        }
    }

    fn read(&mut self, _now_ns: u64, out: &mut [u8]) -> usize {
        match self.socket {
            Socket::None => 0,
            Socket::Tcp(id) => self.stack.tcp_read(id, out).unwrap_or(0),
            Socket::Udp(socket) => self.stack.udp_receive(socket).map_or(0, |datagram| {
                let count = datagram.bytes.len().min(out.len());
                out[..count].copy_from_slice(&datagram.bytes[..count]);
                count
            }),
        }
    }

    fn run(&mut self, now_ns: u64) {
        // It stops after some time, and asks to be called again.
        while (self.stack.poll(now_ns, &mut self.sent)).is_some_and(|next_ns| next_ns <= now_ns) {}
    }

    fn arrive(&mut self, now_ns: u64, frame: &[u8]) {
        let received = RxMeta {
            channel: self.channel,
            ..RxMeta::default()
        };
        self.stack.receive_with(now_ns, frame, received);
    }

    fn leave(&mut self, give: &mut dyn FnMut(&[u8])) {
        for frame in &self.sent.frames[..self.sent.count] {
            give(frame);
        }
        self.sent.count = 0;
    }
}
