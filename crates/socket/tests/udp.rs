//! UDP sockets, as those of `std` behave.

mod common;

use common::{V4, V6, bytes, nets};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};
use weir_socket::UdpSocket;
use weir_stack::udp::SendInfo;

const WAIT_MAX: Option<Duration> = Some(Duration::from_secs(10));

#[test]
fn datagrams_arrive_whole_by_both_versions() {
    let (a, b) = nets();
    for (from, to) in [(V4[0], V4[1]), (V6[0], V6[1])] {
        let server = UdpSocket::bind(&b, (to, 7)).unwrap();
        let client = UdpSocket::bind(&a, (from, 0)).unwrap();
        server.set_read_timeout(WAIT_MAX).unwrap();
        // In one frame, in fragments, and the most there can be.
        for len in [0, 1, 1472, 1473, 20_000, 65_507] {
            let sent = bytes(len);
            assert_eq!(client.send_to(&sent, (to, 7)).unwrap(), len);
            let mut heard = vec![0; 65_536];
            assert_eq!(server.peek_from(&mut heard).unwrap().0, len);
            let (count, peer) = server.recv_from(&mut heard).unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
            assert!(heard[..count] == sent);
        }
        let error = client.send_to(&bytes(65_536), (to, 7)).unwrap_err();
        assert_eq!(
            error.raw_os_error(),
            Some(rustix::io::Errno::MSGSIZE.raw_os_error())
        );
    }
}

#[test]
fn a_connected_socket_receives_from_its_peer_alone() {
    let (a, b) = nets();
    let client = UdpSocket::bind(&a, "0.0.0.0:0").unwrap();
    client.set_read_timeout(WAIT_MAX).unwrap();
    assert!(client.send(b"x").is_err() && client.peer_addr().is_err());
    client.connect((V4[1], 7)).unwrap();
    client.send(b"to nobody").unwrap();
    let error = client.recv(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let stranger = UdpSocket::bind(&b, "0.0.0.0:8").unwrap();
    let server = UdpSocket::bind(&b, "0.0.0.0:7").unwrap();
    let at = client.local_addr().unwrap();
    stranger.send_to(b"stranger", at).unwrap();
    server.send_to(b"peer", at).unwrap();
    let mut heard = [0; 20];
    assert_eq!(client.recv(&mut heard).unwrap(), 4);
}

#[test]
fn time_outs_and_calls_that_do_not_block() {
    let (a, _b) = nets();
    let socket = UdpSocket::bind(&a, "0.0.0.0:0").unwrap();
    let began = Instant::now();
    socket
        .set_read_timeout(Some(Duration::from_millis(40)))
        .unwrap();
    let error = socket.recv(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(began.elapsed() >= Duration::from_millis(40));
    socket.set_nonblocking(true).unwrap();
    assert_eq!(
        socket.recv_owned().unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    let error = socket.send_to(b"x", "198.51.100.1:7").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
}

#[test]
fn a_thread_that_waits_is_woken() {
    let (a, b) = nets();
    let server = UdpSocket::bind(&b, "0.0.0.0:7").unwrap();
    let client = UdpSocket::bind(&a, "0.0.0.0:0").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.recv_owned().unwrap());
        std::thread::sleep(Duration::from_millis(30));
        client.send_to(b"now", (V4[1], 7)).unwrap();
        assert_eq!(waiting.join().unwrap().0, b"now");
    });
}

#[test]
fn a_datagram_is_sent_and_received_with_what_is_beside_it() {
    let (a, b) = nets();
    for (from, to) in [(V4[0], V4[1]), (V6[0], V6[1])] {
        let server = UdpSocket::bind(&b, (to, 7)).unwrap();
        let client = UdpSocket::bind(&a, (from, 0)).unwrap();
        server.set_read_timeout(WAIT_MAX).unwrap();
        let info = SendInfo {
            from: Some(common::ip(from)),
            hop_limit: Some(5),
            ..SendInfo::default()
        };
        let began = SystemTime::now();
        let to = SocketAddr::new(common::ip(to), 7);
        client.send_with(b"beside", Some(to), &info).unwrap();
        assert_eq!(server.peek_datagram().unwrap().bytes, b"beside");
        let came = server.recv_datagram().unwrap();
        assert_eq!((came.to, came.arrival.hop_limit), (to.ip(), 5));
        assert_eq!(server.reply_source(&came), Some(to.ip()));
        let at = server.system_time(came.arrival.at_ns);
        let slack = Duration::from_millis(100);
        assert!(at + slack >= began && at <= SystemTime::now() + slack);
        let wrong = SendInfo {
            from: Some(to.ip()),
            ..info
        };
        let error = client.send_with(b"x", Some(to), &wrong).unwrap_err();
        let expected = match to {
            SocketAddr::V4(_) => ErrorKind::NetworkUnreachable,
            SocketAddr::V6(_) => ErrorKind::InvalidInput,
        };
        assert_eq!(error.kind(), expected);
        let error = client.send_with(b"x", None, &info).unwrap_err();
        let expected = rustix::io::Errno::DESTADDRREQ.raw_os_error();
        assert_eq!(error.raw_os_error(), Some(expected));
    }
}
