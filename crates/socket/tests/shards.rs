//! Hosts of several stacks: each connection belongs to one stack, and peers do not notice that
//! there is more than one.

mod common;

use common::{Through, V4, V6, config, ip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Lab};
use weir_lab::testenv;
use weir_lab::wait::WAIT_MAX;
use weir_socket::link::{self, Link, Mem, RxSink};
use weir_socket::{Net, TcpListener, TcpSocket, TcpStream};
use weir_stack::iface::{DadMode, Event};
use weir_stack::{Config, Shards, TxSink};
use weir_wire::{AddrPair, EtherType, Protocol, ethernet, ipv4, ipv6, tcp};

const COUNTS: [usize; 3] = [1, 2, 4];
/// Enough that each of four shards has some, for almost every seed.
const CONNECTIONS: usize = 40;
const SEED: u128 = 0x5eed_05a4;

fn start(link: impl Link + 'static, n: usize, shards: usize) -> Net {
    let builder = Net::builder().link(link, &config(n)).shards(shards);
    builder.seed(SEED + n as u128).start().unwrap()
}

/// Two hosts of this many stacks, on a link that one stack of each holds.
fn nets(shards: usize) -> (Net, Net) {
    let (a, b) = link::mem().unwrap();
    (start(a, 0, shards), start(b, 1, shards))
}

/// What one connection carries one way: no other carries the same.
fn text(connection: usize, way: usize, len: usize) -> Vec<u8> {
    let first = (2 * connection + way) as u32;
    let word = |at: u32| (first << 20 | at & 0xf_ffff).wrapping_mul(0x9e37_79b1);
    (0..len as u32 / 4)
        .flat_map(|at| word(at).to_be_bytes())
        .collect()
}

/// Sends its text and hears the other's, to the end. Who accepts learns which
/// connection it is by the first word.
fn talk(mut stream: impl Read + Write, which: usize, way: usize, end: impl FnOnce(), len: usize) {
    stream.write_all(&(which as u32).to_be_bytes()).unwrap();
    stream.write_all(&text(which, way, len)).unwrap();
    end();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert!(heard == text(which, 1 - way, len), "connection {which}");
}

fn answer(mut stream: impl Read + Write, end: impl FnOnce(), len: usize) {
    let mut which = [0; 4];
    stream.read_exact(&mut which).unwrap();
    let which = u32::from_be_bytes(which) as usize;
    let mut heard = vec![0; len];
    stream.read_exact(&mut heard).unwrap();
    assert!(heard == text(which, 0, len), "connection {which}");
    stream.write_all(&text(which, 1, len)).unwrap();
    end();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "connection {which}");
}

fn ours(stream: TcpStream, which: Option<usize>, len: usize) {
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let end = || stream.shutdown(Shutdown::Write).unwrap();
    match which {
        Some(which) => talk(&stream, which, 0, end, len),
        None => answer(&stream, end, len),
    }
}

fn theirs(stream: std::net::TcpStream, which: Option<usize>, len: usize) {
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let end = || stream.shutdown(Shutdown::Write).unwrap();
    match which {
        Some(which) => talk(&stream, which, 0, end, len),
        None => answer(&stream, end, len),
    }
}

/// Each shard has some of them, and only what `spread` says it has.
fn check_spread(net: &Net, streams: &[TcpStream]) {
    let mut counts = vec![0; net.shards()];
    streams
        .iter()
        .for_each(|stream| counts[stream.shard()] += 1);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    for (shard, count) in counts.into_iter().enumerate() {
        let there = net.with_shard(shard, |stack| stack.tcp_connections());
        assert_eq!(there, Some(count), "shard {shard}");
    }
}

/// Talks over connections between pairs, all at once.
fn converse(clients: Vec<TcpStream>, servers: Vec<TcpStream>, len: usize) {
    thread::scope(|scope| {
        for (which, client) in clients.into_iter().enumerate() {
            scope.spawn(move || ours(client, Some(which), len));
        }
        for server in servers {
            scope.spawn(move || ours(server, None, len));
        }
    });
}

fn connect(a: &Net, listener: &TcpListener, count: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let at = listener.local_addr().unwrap();
    let pair = |_| {
        let client = TcpStream::connect(a, at).unwrap();
        (client, listener.accept().unwrap().0)
    };
    (0..count).map(pair).unzip()
}

#[test]
fn connections_spread_over_all_shards_and_carry_their_own_bytes() {
    for shards in COUNTS {
        for at in [V4[1], V6[1]] {
            let (a, b) = nets(shards);
            let listener = TcpListener::bind(&b, SocketAddr::new(ip(at), 80)).unwrap();
            let (clients, servers) = connect(&a, &listener, CONNECTIONS);
            check_spread(&a, &clients);
            check_spread(&b, &servers);
            converse(clients, servers, 40_000);
            let counted = [a.stats(), b.stats()];
            assert!(counted.iter().all(|one| one.forwarded_lost == 0));
            assert!(
                counted
                    .iter()
                    .all(|one| (one.forwarded > 0) == (shards > 1))
            );
        }
    }
}

/// A kernel at the other end of a TAP interface of this many queues.
fn with_kernel(shards: usize, queues: usize) -> (Lab, Host, Net) {
    let lab = Lab::new();
    let host = lab.host("linux").unwrap();
    let queues = match queues {
        0 => vec![Box::new(host.run(|| link::Tap::open("tap0")).unwrap()) as Box<dyn Link>],
        count => host.run(|| link::Tap::queues("tap0", count)).unwrap(),
    };
    let device = host.device("tap0").unwrap();
    device.up().unwrap();
    device.add_address(ip(V4[1]), 24).unwrap();
    device.add_address(ip(V6[1]), 64).unwrap();
    let config = config(0).route("203.0.113.0/24".parse().unwrap(), ip(V4[1]));
    let builder = Net::builder().queues(queues, &config).shards(shards);
    (lab, host, builder.seed(SEED).start().unwrap())
}

#[test]
fn a_kernel_connects_and_is_connected_to() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    // As many queues as stacks, fewer, and one that the kernel knows of no
    // others.
    for (shards, queues) in [(1, 1), (2, 2), (4, 2), (4, 0)] {
        let (_lab, host, net) = with_kernel(shards, queues);
        for version in [V4, V6] {
            let (here, there) = (SocketAddr::new(ip(version[0]), 80), ip(version[1]));
            let listener = TcpListener::bind(&net, here).unwrap();
            let clients: Vec<_> = host.run(|| {
                let connect = |_| std::net::TcpStream::connect(here).unwrap();
                (0..CONNECTIONS).map(connect).collect()
            });
            let servers: Vec<_> = (0..CONNECTIONS)
                .map(|_| listener.accept().unwrap().0)
                .collect();
            let at = SocketAddr::new(there, 0);
            let kernels = host.run(|| std::net::TcpListener::bind(at).unwrap());
            let at = kernels.local_addr().unwrap();
            let outgoing: Vec<_> = (0..CONNECTIONS)
                .map(|_| TcpStream::connect(&net, at).unwrap())
                .collect();
            for streams in [&servers, &outgoing] {
                let mut shared: Vec<_> = streams.iter().map(TcpStream::shard).collect();
                shared.sort_unstable();
                shared.dedup();
                assert_eq!(shared.len(), shards);
            }
            let len = 100_000;
            thread::scope(|scope| {
                for (which, client) in clients.into_iter().enumerate() {
                    scope.spawn(move || theirs(client, Some(which), len));
                }
                for (which, client) in outgoing.into_iter().enumerate() {
                    scope.spawn(move || ours(client, Some(CONNECTIONS + which), len));
                }
                for server in servers {
                    scope.spawn(move || ours(server, None, len));
                }
                for _ in 0..CONNECTIONS {
                    let server = weir_lab::wait::accept(&kernels).unwrap().0;
                    scope.spawn(move || theirs(server, None, len));
                }
            });
        }
        assert_eq!(net.stats().forwarded_lost, 0);
    }
}

#[test]
fn errors_about_connections_reach_their_shard() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let Some(mut route) = testenv::program("ip") else {
        return;
    };
    let (_lab, host, net) = with_kernel(4, 2);
    host.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
    host.set_sysctl("net.ipv4.icmp_ratelimit", "0").unwrap();
    route.args(["route", "add", "unreachable", "203.0.113.0/24"]);
    assert!(host.output(route).unwrap().status.success());
    // Each of the four opens two.
    for last in 1..=8 {
        let at = SocketAddr::new(ip(&format!("203.0.113.{last}")), 80);
        let error = TcpStream::connect_timeout(&net, &at, WAIT_MAX);
        let error = error.err().unwrap().raw_os_error();
        assert_eq!(error, Some(Errno::HOSTUNREACH.raw_os_error()), "{at}");
    }
}

/// Receives TCP's packets as if they had been cut into fragments.
fn cutting(link: &mut Mem, take: &mut RxSink<'_>) -> std::io::Result<bool> {
    link.receive(&mut |frame, received| {
        for piece in cut(frame) {
            take(&piece, received);
        }
    })
}

/// In fragments of 504 bytes, the last first, if it is a longer packet of TCP.
fn cut(frame: &[u8]) -> Vec<Vec<u8>> {
    const LEN: usize = 504;
    let ethernet = ethernet::Frame::new(frame).unwrap();
    let (head, packet) = frame.split_at(ethernet::Repr::LEN);
    let v4 = ethernet.ether_type() == EtherType::IPV4;
    let header_len = if v4 { ipv4::Repr::LEN } else { ipv6::Repr::LEN };
    let is_tcp = match packet.get(if v4 { 9 } else { 6 }) {
        Some(protocol) => Protocol(*protocol) == Protocol::TCP,
        None => false,
    };
    let ip = matches!(ethernet.ether_type(), EtherType::IPV4 | EtherType::IPV6);
    if !ip || !is_tcp || packet.len() <= header_len + LEN {
        return vec![frame.to_vec()];
    }
    let (header, payload) = packet.split_at(header_len);
    // Others than before, as hosts count them.
    let identification = u16::from_be_bytes([payload[6], payload[7]]) ^ payload.len() as u16;
    let pieces = payload.chunks(LEN).enumerate().map(|(at, bytes)| {
        let offset = at * LEN;
        let more = offset + bytes.len() < payload.len();
        let mut piece = head.to_vec();
        if v4 {
            let packet = ipv4::Packet::new(packet).unwrap();
            let repr = ipv4::Repr {
                identification,
                dont_fragment: false,
                payload_len: bytes.len(),
                ..ipv4::Repr::parse(&packet).unwrap()
            };
            let mut header = vec![0; header_len];
            repr.emit_fragment(&mut header, offset, more);
            piece.extend(header);
        } else {
            let fragment = ipv6::FragmentRepr {
                next_header: Protocol::TCP,
                offset,
                more,
                identification: identification.into(),
            };
            let mut between = vec![0; ipv6::FragmentRepr::LEN];
            fragment.emit(&mut between);
            let mut header = header.to_vec();
            header[4..6].copy_from_slice(&((between.len() + bytes.len()) as u16).to_be_bytes());
            header[6] = Protocol::IPV6_FRAGMENT.0;
            piece.extend(header);
            piece.extend(between);
        }
        piece.extend(bytes);
        piece
    });
    let mut pieces: Vec<_> = pieces.collect();
    pieces.reverse();
    pieces
}

#[test]
fn what_came_in_fragments_reaches_its_shard() {
    for shards in COUNTS {
        for at in [V4[1], V6[1]] {
            let (a, b) = link::mem().unwrap();
            let (a, b) = (start(a, 0, shards), start(Through(b, cutting), 1, shards));
            let listener = TcpListener::bind(&b, SocketAddr::new(ip(at), 80)).unwrap();
            let (clients, servers) = connect(&a, &listener, 12);
            converse(clients, servers, 20_000);
        }
    }
}

#[test]
fn what_finds_no_room_is_lost_and_counted() {
    let (near, mut far) = link::mem().unwrap();
    let net = start(near, 0, 2);
    let shards = Shards::new(2, SEED).unwrap();
    let (here, there) = (SocketAddr::new(ip(V4[0]), 80), ip(V4[1]));
    let ours = |port: &u16| shards.owner(here, SocketAddr::new(there, *port)) == 1;
    let src_port = (1..).find(ours).unwrap();
    // A segment without a connection, longer than the link's frames.
    let addresses = AddrPair::new(there, here.ip()).unwrap();
    let AddrPair::V4(src, dst) = addresses else {
        unreachable!()
    };
    let repr = tcp::Repr {
        src_port,
        dst_port: here.port(),
        seq: 1,
        ack: 1,
        flags: tcp::Flags::ACK,
        window: 1,
        urgent: 0,
        options: tcp::Options::default(),
    };
    let mut segment = vec![0; 60_000];
    repr.emit(&mut segment, addresses);
    let ip = ipv4::Repr {
        src,
        dst,
        protocol: Protocol::TCP,
        ttl: 64,
        traffic_class: 0,
        identification: 1,
        dont_fragment: true,
        payload_len: segment.len(),
    };
    let ethernet = ethernet::Repr {
        dst: config(0).hardware,
        src: config(1).hardware,
        ether_type: EtherType::IPV4,
    };
    let mut frame = vec![0; ethernet::Repr::LEN + ipv4::Repr::LEN];
    ethernet.emit(&mut frame);
    ip.emit(&mut frame[ethernet::Repr::LEN..]);
    frame.extend(segment);
    let mut send = || {
        far.reserve(frame.len()).unwrap().copy_from_slice(&frame);
        far.submit();
    };
    let (release, held) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (reached, is_held) = mpsc::channel();
        let holder = net.clone();
        // The second stack stands still.
        scope.spawn(move || {
            holder.with_shard(1, |_| {
                reached.send(()).unwrap();
                let _ = held.recv();
            })
        });
        is_held.recv().unwrap();
        let began = Instant::now();
        while net.forwarded().1 == 0 {
            send();
            assert!(began.elapsed() < WAIT_MAX, "{:?}", net.forwarded());
        }
        drop(release);
    });
    // All that found room comes to it; what it answers is handed back.
    let began = Instant::now();
    let sent = || {
        net.with_shard(1, |stack| stack.counters().frames_out)
            .unwrap()
    };
    let came = || {
        net.with_shard(1, |stack| stack.counters().frames_in)
            .unwrap()
    };
    let quiet = || {
        let before = net.stats().received;
        thread::sleep(Duration::from_millis(20));
        before == net.stats().received
    };
    while !quiet() || came() + sent() != net.stats().forwarded {
        assert!(
            began.elapsed() < WAIT_MAX,
            "{} of {:?}",
            came(),
            net.stats()
        );
    }
    let (before, lost) = (came(), net.stats().forwarded_lost);
    send();
    while came() == before {
        assert!(began.elapsed() < WAIT_MAX, "{:?}", net.stats());
    }
    assert_eq!(net.stats().forwarded_lost, lost);
}

#[test]
fn the_last_bytes_arrive_when_all_is_dropped() {
    for shards in COUNTS {
        let (a, b) = nets(shards);
        let listener = TcpListener::bind(&b, (V4[1], 80)).unwrap();
        let (clients, servers) = connect(&a, &listener, 8);
        thread::scope(|scope| {
            for (which, mut server) in servers.into_iter().enumerate() {
                server.set_read_timeout(Some(WAIT_MAX)).unwrap();
                scope.spawn(move || {
                    let mut heard = Vec::new();
                    server.read_to_end(&mut heard).unwrap();
                    assert!(heard == text(which, 0, 200_000), "{}", heard.len());
                });
            }
            for (which, mut client) in clients.into_iter().enumerate() {
                client.write_all(&text(which, 0, 200_000)).unwrap();
            }
            drop(a);
        });
    }
}

fn is_readable(fd: BorrowedFd<'_>, time: Duration) -> bool {
    let time = Timespec::try_from(time).unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&time)).unwrap() > 0
}

#[test]
fn a_listener_is_ready_while_one_shard_has_a_connection() {
    for shards in COUNTS {
        let (a, b) = nets(shards);
        let listener = TcpListener::bind(&b, (V4[1], 0)).unwrap();
        let at = listener.local_addr().unwrap();
        assert!(!is_readable(listener.ready_fd().unwrap(), Duration::ZERO));
        listener.set_nonblocking(true).unwrap();
        let mut met = vec![0; shards];
        for round in 0..3 {
            let connect = |_| TcpStream::connect(&a, at).unwrap();
            let clients: Vec<_> = (0..10).map(connect).collect();
            for _ in 0..clients.len() {
                assert!(is_readable(listener.ready_fd().unwrap(), WAIT_MAX));
                let (server, _) = listener.accept().unwrap();
                met[server.shard()] += 1;
            }
            assert!(!is_readable(listener.ready_fd().unwrap(), Duration::ZERO));
            let error = listener.accept().err().unwrap();
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "round {round}");
        }
        assert!(met.iter().all(|met| *met > 0), "{met:?}");
        listener.set_nonblocking(false).unwrap();
        listener
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let error = listener.accept().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        // A connection that comes while it is waited for.
        listener.set_read_timeout(Some(WAIT_MAX)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10 {
                    listener.accept().unwrap();
                }
            });
            for _ in 0..10 {
                TcpStream::connect(&a, at).unwrap();
            }
        });
    }
}

#[test]
fn places_are_one_hosts() {
    let (a, b) = nets(4);
    let any = TcpListener::bind(&b, "0.0.0.0:80").unwrap();
    let error = TcpListener::bind(&b, "0.0.0.0:80").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    for _ in 0..20 {
        let place = TcpListener::bind(&b, "0.0.0.0:81").unwrap();
        assert_eq!(place.local_addr().unwrap().port(), 81);
    }
    // From a transport port of the caller's choice it is the one shard's whose
    // the ends are.
    let mut met = vec![0; 4];
    for port in 2000..2060 {
        let mut socket = TcpSocket::new(&a);
        socket.bind(SocketAddr::new(ip("0.0.0.0"), port)).unwrap();
        let to = SocketAddr::new(ip(V4[1]), 80);
        let again = socket.clone();
        let stream = socket.connect(to, Some(WAIT_MAX)).unwrap();
        assert_eq!(
            stream.local_addr().unwrap(),
            SocketAddr::new(ip(V4[0]), port)
        );
        met[stream.shard()] += 1;
        let error = again.connect(to, Some(WAIT_MAX)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
        any.accept().unwrap();
    }
    assert!(met.iter().all(|met| *met > 0), "{met:?}");
    let refused = TcpStream::connect(&a, (V4[1], 82)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(Net::builder().shards(65).start().is_err());
    let (one, _) = link::mem().unwrap();
    let (two, _) = link::mem().unwrap();
    let queues: Vec<Box<dyn Link>> = vec![Box::new(one), Box::new(two)];
    let error = Net::builder().queues(queues, &config(0)).start();
    assert!(
        error
            .err()
            .unwrap()
            .to_string()
            .contains("2 queues for 1 shards")
    );
}

#[test]
fn an_address_that_comes_later_is_all_shards() {
    let (a, b) = link::mem().unwrap();
    let mut config = Config::new(config(0).hardware);
    config.addresses = vec![format!("{}/64", V6[0]).parse().unwrap()];
    config.dad_mode = DadMode::Blocking;
    let late = Net::builder().link(a, &config).shards(4);
    let late = late.seed(SEED).start().unwrap();
    let near = start(b, 1, 2);
    let at = SocketAddr::new(ip(V6[0]), 80);
    let early = TcpListener::bind(&late, at).map(drop);
    let mut events = late.events();
    // The bind came late, and the address was announced before.
    let wait = if early.is_ok() {
        Duration::ZERO
    } else {
        WAIT_MAX
    };
    loop {
        let event = events.next_timeout(wait).expect("it is nobody else's");
        if matches!(event, Event::Address(prefix, _) if prefix.address() == at.ip()) {
            break;
        }
    }
    let listener = TcpListener::bind(&late, at).unwrap();
    let (clients, servers) = connect(&near, &listener, 20);
    check_spread(&late, &servers);
    converse(clients, servers, 1000);
    let back = TcpListener::bind(&near, (V6[1], 81)).unwrap();
    let (clients, servers) = connect(&late, &back, 8);
    converse(clients, servers, 1000);
}
