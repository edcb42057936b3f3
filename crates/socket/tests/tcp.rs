//! TCP sockets, as those of `std` behave.

mod common;

use common::{V4, V6, bad_nets, bytes, ip, nets};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};
use weir_link::mem::Impairments;
use weir_socket::{Net, TcpListener, TcpSocket, TcpStream};
use weir_stack::tcp::TcpConfig;

/// Sends this many bytes each way at once and checks them.
fn exchange(a: &Net, b: &Net, at: SocketAddr, len: usize) {
    let listener = TcpListener::bind(b, at).unwrap();
    let at = listener.local_addr().unwrap();
    let talk = |stream: TcpStream| {
        let sent = bytes(len);
        let mut heard = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                (&stream).write_all(&sent).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
            (&stream).read_to_end(&mut heard).unwrap();
        });
        assert!(heard == sent, "{} of {} bytes", heard.len(), sent.len());
    };
    thread::scope(|scope| {
        scope.spawn(|| talk(listener.accept().unwrap().0));
        talk(TcpStream::connect(a, at).unwrap());
    });
}

#[test]
fn both_sides_send_over_both_versions() {
    let (a, b) = nets();
    for at in [V4[1], V6[1]] {
        for len in [0, 1, 100_000, 3_000_000] {
            exchange(&a, &b, SocketAddr::new(ip(at), 0), len);
        }
    }
}

#[test]
fn nothing_is_lost_over_a_bad_link() {
    let seed = 0x50c4e7;
    println!("seed {seed}");
    let impairments = Impairments {
        loss_ppm: 30_000,
        duplicate_ppm: 10_000,
        corrupt_ppm: 5_000,
        delay_ns: 300_000,
        jitter_ns: 300_000,
        ..Impairments::default()
    };
    let (a, b) = bad_nets(impairments, seed);
    exchange(&a, &b, SocketAddr::new(ip(V4[1]), 80), 1_000_000);
}

fn connected() -> (Net, Net, TcpStream, TcpStream) {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, "0.0.0.0:80").unwrap();
    let client = TcpStream::connect(&a, (V4[1], 80)).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
    (a, b, client, server)
}

#[test]
fn nobody_listens() {
    let (a, _b) = nets();
    let error = TcpStream::connect(&a, (V4[1], 81)).err().unwrap();
    assert_eq!(error.raw_os_error(), Some(rustix_errno("CONNREFUSED")));
    let error = TcpStream::connect(&a, "198.51.100.1:80").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
    let began = Instant::now();
    let nobody = SocketAddr::new(ip("192.0.2.77"), 80);
    let error = TcpStream::connect_timeout(&a, &nobody, Duration::from_millis(100))
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(began.elapsed() >= Duration::from_millis(100));
}

fn rustix_errno(name: &str) -> i32 {
    match name {
        "CONNREFUSED" => rustix::io::Errno::CONNREFUSED.raw_os_error(),
        other => panic!("{other}"),
    }
}

#[test]
fn places_are_taken_once() {
    let (_a, b) = nets();
    let first = TcpListener::bind(&b, "0.0.0.0:80").unwrap();
    let error = TcpListener::bind(&b, "0.0.0.0:80").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let error = TcpListener::bind(&b, "198.51.100.1:80").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    drop(first);
    TcpListener::bind(&b, "0.0.0.0:80").unwrap();
}

#[test]
fn time_outs_and_calls_that_do_not_block() {
    let (_a, _b, mut client, server) = connected();
    let mut byte = [0];
    client.set_nonblocking(true).unwrap();
    let error = client.read(&mut byte).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    client.set_nonblocking(false).unwrap();
    let patience = Duration::from_millis(50);
    client.set_read_timeout(Some(patience)).unwrap();
    assert_eq!(client.read_timeout().unwrap(), Some(patience));
    let began = Instant::now();
    let error = client.read(&mut byte).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(began.elapsed() >= patience);
    assert!(client.set_read_timeout(Some(Duration::ZERO)).is_err());
    // A writer is as patient, once the buffers are full.
    client.set_write_timeout(Some(patience)).unwrap();
    let block = vec![7; 1 << 20];
    let mut written = 0;
    let error = loop {
        match client.write(&block) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(written >= 1 << 20, "{written}");
    drop(server);
}

#[test]
fn peeks_and_reads_without_copies() {
    let (_a, _b, mut client, server) = connected();
    client.write_all(b"hello, world").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut heard = [0; 5];
    while server.peek(&mut heard).unwrap() < 5 {}
    assert_eq!(&heard, b"hello");
    let mut all = Vec::new();
    loop {
        let count = server
            .read_with(|bytes| {
                all.extend_from_slice(&bytes[..bytes.len().min(3)]);
                3
            })
            .unwrap();
        if count == 0 {
            break;
        }
    }
    assert_eq!(all, b"hello, world");
}

/// The receive buffer begins with few KiB, whose end the bytes cross.
#[test]
fn peeks_at_all_that_has_come() {
    let (_a, _b, mut client, mut server) = connected();
    let sent = bytes(4_100);
    client.write_all(&sent[..4_000]).unwrap();
    server.read_exact(&mut [0; 3_100]).unwrap();
    client.write_all(&sent[4_000..]).unwrap();
    let mut seen = [0; 2_000];
    let began = Instant::now();
    let mut count = 0;
    while count < 1_000 {
        assert!(began.elapsed() < Duration::from_secs(10), "{count} bytes");
        count = server.peek(&mut seen).unwrap();
    }
    assert!(seen[..count] == sent[3_100..]);
}

#[test]
fn ends_as_posix_has_them() {
    let (_a, _b, mut client, mut server) = connected();
    // The peer's end is read as such, again and again; writing still works.
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(
        client.write(b"x").unwrap_err().kind(),
        ErrorKind::BrokenPipe
    );
    assert_eq!(server.read(&mut [0; 9]).unwrap(), 0);
    assert_eq!(server.read(&mut [0; 9]).unwrap(), 0);
    server.write_all(b"late").unwrap();
    let mut late = [0; 4];
    client.read_exact(&mut late).unwrap();
    assert_eq!(&late, b"late");
    // A reset is an error once, then the end; and nothing can be written.
    server.reset();
    let error = client.read(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
    assert!(client.take_error().unwrap().is_none());
    assert_eq!(
        client.shutdown(Shutdown::Both).unwrap_err().kind(),
        ErrorKind::NotConnected
    );
}

#[test]
fn what_is_over_both_ways_is_not_shut_down_again() {
    let (a, _b, mut client, mut server) = connected();
    let (at, from) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
    let shown = format!("TcpStream {{ addr: {from:?}, peer: {at:?} }}");
    assert_eq!(format!("{client:?}"), shown);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0; 9]).unwrap(), 0);
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
    client.wait_all_acked(None).unwrap();
    let error = client.shutdown(Shutdown::Both).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    // As std has it, too.
    let at = SocketAddr::new(ip(V4[1]), 7);
    let error = TcpStream::connect_timeout(&a, &at, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn reading_is_shut_down_here() {
    let (_a, _b, mut client, mut server) = connected();
    client.shutdown(Shutdown::Read).unwrap();
    assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
    client.write_all(b"on").unwrap();
    let mut heard = [0; 2];
    server.read_exact(&mut heard).unwrap();
}

#[test]
fn what_was_written_arrives_though_the_net_is_dropped() {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, "0.0.0.0:80").unwrap();
    let mut client = TcpStream::connect(&a, (V4[1], 80)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let sent = bytes(500_000);
    client.write_all(&sent).unwrap();
    let ending = thread::spawn(move || drop((client, a)));
    let mut heard = Vec::new();
    server.read_to_end(&mut heard).unwrap();
    assert!(heard == sent);
    ending.join().unwrap();
}

#[test]
fn a_socket_is_bound_and_opens_while_others_go_on() {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, "0.0.0.0:80").unwrap();
    let mut socket = TcpSocket::new(&a);
    assert!(socket.bind("198.51.100.1:0".parse().unwrap()).is_err());
    socket.bind(SocketAddr::new(ip(V4[0]), 4000)).unwrap();
    let client = socket.start(SocketAddr::new(ip(V4[1]), 80)).unwrap();
    let (_server, peer) = listener.accept().unwrap();
    assert_eq!(peer, SocketAddr::new(ip(V4[0]), 4000));
    assert!(client.take_error().unwrap().is_none());
    client.set_nodelay(true).unwrap();
    client.set_keepalive(Some(Duration::from_secs(60))).unwrap();
}

#[test]
fn many_connections_at_once() {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, "0.0.0.0:80").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming().take(200) {
                let mut stream = stream.unwrap();
                scope.spawn(move || {
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).unwrap();
                    stream.write_all(&all).unwrap();
                });
            }
        });
        for n in 0..200_usize {
            let a = &a;
            scope.spawn(move || {
                let mut stream = TcpStream::connect(a, (V4[1], 80)).unwrap();
                let sent = bytes(n * 37);
                stream.write_all(&sent).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut heard = Vec::new();
                stream.read_to_end(&mut heard).unwrap();
                assert!(heard == sent, "{n}");
            });
        }
    });
}

/// Who waits to write is woken by a part of the connection's own buffer.
#[test]
fn writers_go_on_with_little_room() {
    for own in [true, false] {
        let (a, b) = nets();
        if !own {
            a.tcp_configure(TcpConfig {
                send_initial: 3000,
                ..TcpConfig::default()
            });
        }
        let listener = TcpListener::bind(&b, (V4[1], 7)).unwrap();
        let mut client = TcpStream::connect(&a, (V4[1], 7)).unwrap();
        if own {
            client.set_send_buffer(3000).unwrap();
        }
        let (mut server, _) = listener.accept().unwrap();
        let patience = Some(Duration::from_secs(10));
        client.set_write_timeout(patience).unwrap();
        server.set_read_timeout(patience).unwrap();
        let sent = bytes(100_000);
        thread::scope(|scope| {
            scope.spawn(|| {
                client.write_all(&sent).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            });
            let mut heard = Vec::new();
            server.read_to_end(&mut heard).unwrap();
            assert!(heard == sent);
        });
    }
}

#[test]
fn what_is_corked_waits_to_be_full() {
    let (_a, _b, mut client, mut server) = connected();
    client.set_cork(true).unwrap();
    client.write_all(b"hel").unwrap();
    server
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let mut heard = [0; 5];
    let error = server.read(&mut heard).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    client.write_all(b"lo").unwrap();
    client.set_cork(false).unwrap();
    server
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    server.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
}

#[test]
fn closing_resets_if_it_is_to() {
    for reset in [false, true] {
        let (a, b) = nets();
        let listener = TcpListener::bind(&b, (V4[1], 7)).unwrap();
        let client = TcpStream::connect(&a, (V4[1], 7)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.set_linger(reset.then_some(Duration::ZERO));
        drop(client);
        let read = server.read(&mut [0; 9]);
        if reset {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset)
        } else {
            assert_eq!(read.unwrap(), 0)
        }
    }
}
