//! A socket's descriptor in `poll` and `epoll`, beside the kernel's.

mod common;

use common::{V4, nets};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use weir_socket::{Net, TcpListener, TcpSocket, TcpStream, UdpSocket};

const ALL: PollFlags = PollFlags::IN.union(PollFlags::OUT).union(PollFlags::RDHUP);

/// What `poll` says at once.
fn now(fd: BorrowedFd<'_>) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, ALL)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents()
}

/// Waits until `poll` says that, which it must soon.
fn until(fd: BorrowedFd<'_>, flags: PollFlags) {
    let began = Instant::now();
    while now(fd) != flags {
        assert!(
            began.elapsed().as_secs() < 10,
            "{:?} is not {flags:?}",
            now(fd)
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn connected() -> (Net, Net, TcpStream, TcpStream) {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, "0.0.0.0:80").unwrap();
    assert_eq!(now(listener.ready_fd().unwrap()), PollFlags::empty());
    let client = TcpSocket::new(&a).start((V4[1], 80).into_addr()).unwrap();
    // The connection opens while we wait for its descriptor.
    until(client.ready_fd().unwrap(), PollFlags::OUT);
    assert!(client.take_error().unwrap().is_none());
    until(listener.ready_fd().unwrap(), PollFlags::IN);
    let (server, _) = listener.accept().unwrap();
    assert_eq!(now(listener.ready_fd().unwrap()), PollFlags::empty());
    (a, b, client, server)
}

trait IntoAddr {
    fn into_addr(self) -> std::net::SocketAddr;
}

impl IntoAddr for (&str, u16) {
    fn into_addr(self) -> std::net::SocketAddr {
        std::net::SocketAddr::new(common::ip(self.0), self.1)
    }
}

#[test]
fn a_stream_is_readable_and_writable_as_it_is() {
    let (_a, _b, mut client, mut server) = connected();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let (at_client, at_server) = (client.clone(), server.clone());
    let (at_client, at_server) = (at_client.ready_fd().unwrap(), at_server.ready_fd().unwrap());
    assert_eq!(
        (now(at_client), now(at_server)),
        (PollFlags::OUT, PollFlags::OUT)
    );
    client.write_all(b"hello").unwrap();
    until(at_server, PollFlags::IN | PollFlags::OUT);
    // By level: it stays so while a byte is left.
    server.read_exact(&mut [0; 4]).unwrap();
    assert_eq!(now(at_server), PollFlags::IN | PollFlags::OUT);
    server.read_exact(&mut [0; 1]).unwrap();
    assert_eq!(now(at_server), PollFlags::OUT);
    // Neither, while the buffers are full; then again.
    let block = vec![0; 1 << 20];
    let began = Instant::now();
    loop {
        match client.write(&block) {
            Ok(_) => {}
            Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
            // What is on its way makes room for a while.
            Err(_)
                if now(at_client) == PollFlags::empty()
                    && now(at_server).contains(PollFlags::IN) =>
            {
                std::thread::sleep(Duration::from_millis(50));
                if now(at_client) == PollFlags::empty() {
                    break;
                }
            }
            Err(_) => assert!(began.elapsed().as_secs() < 10),
        }
    }
    let mut out = vec![0; 1 << 20];
    while now(at_client) != PollFlags::OUT {
        let _ = server.read(&mut out);
    }
    assert!(client.write(b"x").unwrap() == 1);
}

#[test]
fn ends_are_seen() {
    let (_a, _b, client, server) = connected();
    let at_server = server.ready_fd().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    until(at_server, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP);
    server.shutdown(Shutdown::Write).unwrap();
    let over = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP | PollFlags::HUP;
    until(at_server, over);
    until(client.ready_fd().unwrap(), over);
}

#[test]
fn errors_are_seen() {
    let (a, _b, client, server) = connected();
    let failed =
        PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let at_client = client.ready_fd().unwrap();
    server.reset();
    until(at_client, failed);
    let error = client.take_error().unwrap().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // One that never opens.
    let refused = TcpSocket::new(&a).start((V4[1], 81).into_addr()).unwrap();
    until(refused.ready_fd().unwrap(), failed);
    let error = refused.take_error().unwrap().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn epoll_tells_by_edge_beside_kernel_sockets() {
    let (_a, _b, mut client, mut server) = connected();
    let (mut kernel, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(
        &set,
        server.ready_fd().unwrap(),
        epoll::EventData::new_u64(1),
        edges,
    )
    .unwrap();
    epoll::add(&set, &other, epoll::EventData::new_u64(2), edges).unwrap();
    let wait = |ms: i64| {
        let mut events = Vec::with_capacity(4);
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: ms * 1_000_000,
        };
        epoll::wait(
            &set,
            rustix::buffer::spare_capacity(&mut events),
            Some(&time),
        )
        .unwrap();
        let mut found: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
        found.sort_unstable();
        found
    };
    assert!(wait(0).is_empty());
    client.write_all(b"a").unwrap();
    assert_eq!(wait(900), [1]);
    assert!(wait(20).is_empty());
    server.read_exact(&mut [0]).unwrap();
    client.write_all(b"b").unwrap();
    assert_eq!(wait(900), [1]);
    kernel.write_all(b"c").unwrap();
    assert_eq!(wait(900), [2]);
}

#[test]
fn a_udp_socket_is_readable_while_a_datagram_waits() {
    let (a, b) = nets();
    let server = UdpSocket::bind(&b, "0.0.0.0:7").unwrap();
    let client = UdpSocket::bind(&a, "0.0.0.0:0").unwrap();
    let at_server = server.ready_fd().unwrap();
    assert_eq!(now(at_server), PollFlags::OUT);
    client.send_to(b"one", (V4[1], 7)).unwrap();
    client.send_to(b"two", (V4[1], 7)).unwrap();
    until(at_server, PollFlags::IN | PollFlags::OUT);
    server.recv_owned().unwrap();
    server.recv_owned().unwrap();
    assert_eq!(now(at_server), PollFlags::OUT);
}

/// Also beside a datagram, and until the last error was read.
#[test]
fn an_icmp_error_is_an_error_of_a_datagram_sockets_descriptor() {
    let (a, b) = nets();
    let socket = UdpSocket::bind(&a, (V4[0], 9)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut options = socket.options().unwrap();
    options.icmp_errors = true;
    socket.set_options(options).unwrap();
    let server = UdpSocket::bind(&b, (V4[1], 7)).unwrap();
    let fd = socket.ready_fd().unwrap();
    let (rest, failed) = (PollFlags::OUT, PollFlags::OUT | PollFlags::ERR);
    for _ in 0..3 {
        assert_eq!(now(fd), rest);
        for text in [b"first", b"other"] {
            socket.send_to(text, (V4[1], 4)).unwrap();
            until(fd, failed);
            let began = Instant::now();
            // The second error comes while the first one is queued.
            while socket.recv(&mut [0; 9]).unwrap_err().kind() != ErrorKind::ConnectionRefused {
                assert!(began.elapsed().as_secs() < 10, "{text:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(now(fd), failed);
        }
        server.send_to(b"data", (V4[0], 9)).unwrap();
        until(fd, failed | PollFlags::IN);
        assert_eq!(socket.recv(&mut [0; 9]).unwrap(), 4);
        assert_eq!(now(fd), failed);
        for text in [b"first", b"other"] {
            assert_eq!(now(fd), failed);
            assert_eq!(socket.recv_icmp_error().unwrap().bytes, text);
        }
        let error = socket.recv_icmp_error().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    // Without the option the queue is discarded.
    socket.send_to(b"last", (V4[1], 4)).unwrap();
    until(fd, failed);
    options.icmp_errors = false;
    socket.set_options(options).unwrap();
    assert!(socket.take_error().unwrap().is_some());
    assert_eq!(now(fd), rest);
}
