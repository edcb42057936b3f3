//! How connections are closed, and what is set on them.

mod common;

use common::{V4, V6, bad_nets, bytes, ip};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};
use weir_link::mem::Impairments;
use weir_socket::{Net, TcpListener, TcpSocket, TcpStream};
use weir_stack::tcp::{State, TcpConfig, TcpOptions};

/// One way of the link.
const DELAY: Duration = Duration::from_millis(15);
const LEN: usize = 30_000;

/// A connection on a long link. A server that is `narrow` has room for less
/// than is sent.
fn connected(narrow: bool) -> (Net, Net, TcpStream, TcpStream) {
    let impairments = Impairments {
        delay_ns: DELAY.as_nanos() as u64,
        ..Impairments::default()
    };
    let (a, b) = bad_nets(impairments, 1);
    if narrow {
        b.tcp_configure(TcpConfig {
            receive_buffer: 2000,
            ..TcpConfig::default()
        });
    }
    let listener = TcpListener::bind(&b, (V4[1], 7)).unwrap();
    let client = TcpStream::connect(&a, (V4[1], 7)).unwrap();
    let server = listener.accept().unwrap().0;
    (a, b, client, server)
}

/// How long dropping a connection takes on which all of this was written.
fn close(mut client: TcpStream, linger: Duration) -> Duration {
    client.set_linger(Some(linger));
    assert_eq!(client.linger(), Some(linger));
    client.write_all(&bytes(LEN)).unwrap();
    let began = Instant::now();
    drop(client);
    began.elapsed()
}

/// What a server reads: all of it and the end, or a reset.
fn heard(mut server: TcpStream) -> Result<Vec<u8>, ErrorKind> {
    let patience = Duration::from_secs(10);
    server.set_read_timeout(Some(patience)).unwrap();
    let mut heard = Vec::new();
    let read = server.read_to_end(&mut heard);
    read.map(|_| heard).map_err(|error| error.kind())
}

#[test]
fn closing_waits_until_all_has_arrived() {
    let (_a, _b, client, server) = connected(false);
    let reader = std::thread::spawn(|| heard(server));
    let took = close(client, Duration::from_secs(60));
    assert!(took >= 2 * DELAY, "{took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(reader.join().unwrap() == Ok(bytes(LEN)));
}

/// A net that is dropped waits for the peer's acknowledgment, and no longer.
#[test]
fn a_net_ends_when_its_peers_have_all() {
    let (a, _b, mut client, server) = connected(false);
    // Its end is not for the client's net, which is gone by then.
    server.set_linger(Some(Duration::ZERO));
    client.write_all(&bytes(LEN)).unwrap();
    let reader = std::thread::spawn(|| heard(server));
    let began = Instant::now();
    drop((client, a));
    let took = began.elapsed();
    assert!(took >= 2 * DELAY, "{took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(reader.join().unwrap() == Ok(bytes(LEN)));
}

#[test]
fn closing_waits_no_longer_than_it_is_to_and_resets() {
    let (_a, _b, client, server) = connected(true);
    let linger = Duration::from_millis(300);
    let took = close(client, linger);
    assert!(took >= linger, "{took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    std::thread::sleep(3 * DELAY);
    assert_eq!(heard(server), Err(ErrorKind::ConnectionReset));
}

/// A connection that does not wait for its close, and is let go with bytes that
/// its peer has no room for; and when that was.
fn let_go(linger: Duration) -> (Net, Net, TcpStream, Instant) {
    let (a, b, client, server) = connected(true);
    client.set_nonblocking(true).unwrap();
    client.set_linger(Some(linger));
    (&client).write_all(&bytes(LEN)).unwrap();
    let began = Instant::now();
    drop(client);
    (a, b, server, began)
}

/// What must not wait does not: the time is longer than any machine needs to
/// let go, and goes on after it.
#[test]
fn a_nonblocking_socket_does_not_wait_for_the_close() {
    let linger = Duration::from_secs(600);
    let (_a, _b, server, began) = let_go(linger);
    assert!(began.elapsed() < linger / 2, "{:?}", began.elapsed());
    assert!(heard(server) == Ok(bytes(LEN)));
}

/// And the net resets the connection when the time is over, not before.
#[test]
fn an_orphan_is_reset_in_time() {
    let linger = Duration::from_millis(400);
    let (_a, _b, mut server, began) = let_go(linger);
    // Nothing is read until then, or all would arrive.
    while server.info().unwrap().state != State::Closed {
        assert!(began.elapsed() < Duration::from_secs(60), "it is not reset");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(began.elapsed() >= linger, "{:?}", began.elapsed());
    let twin = server.try_clone().unwrap();
    assert_eq!(heard(twin), Err(ErrorKind::ConnectionReset));
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

/// As programs on Linux know it: the time is waited, and what has not arrived
/// goes on arriving.
#[test]
fn waiting_and_closing_are_two_calls() {
    let (_a, _b, mut client, server) = connected(true);
    client.write_all(&bytes(LEN)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let patience = Duration::from_millis(200);
    let began = Instant::now();
    let error = client.wait_all_acked(Some(patience)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(began.elapsed() >= patience);
    drop(client);
    assert!(heard(server) == Ok(bytes(LEN)));
}

#[test]
fn waiting_ends_when_the_connection_does() {
    let (_a, _b, mut client, server) = connected(true);
    client.wait_all_acked(None).unwrap();
    client.write_all(&bytes(LEN)).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.wait_all_acked(None));
        std::thread::sleep(DELAY);
        server.reset();
        let error = waiter.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[tokio::test]
async fn tasks_wait_for_what_they_wrote() {
    let (_a, _b, client, server) = connected(false);
    let began = Instant::now();
    (&client).write_all(&bytes(LEN)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let arrived = std::future::poll_fn(|context| client.poll_all_acked(context));
    tokio::time::timeout(Duration::from_secs(20), arrived)
        .await
        .expect("it is told")
        .unwrap();
    assert!(began.elapsed() >= 2 * DELAY);
    // Who was polled does not hold up the runtime.
    client.set_linger(Some(Duration::from_secs(60)));
    drop(client);
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(heard(server) == Ok(bytes(LEN)));
}

#[test]
fn options_hold_from_listener_and_socket_on() {
    let (a, b) = bad_nets(Impairments::default(), 2);
    let [ours, theirs] = [(9, 0x28), (1, 0xb8)].map(|(hop_limit, traffic_class)| TcpOptions {
        hop_limit,
        traffic_class,
        ..TcpOptions::default()
    });
    for at in [V4[1], V6[1]] {
        let at = SocketAddr::new(ip(at), 80);
        let mut socket = TcpSocket::new(&b);
        socket.set_options(theirs).unwrap();
        socket.bind(at).unwrap();
        let listener = socket.listen(1).unwrap();
        assert_eq!(listener.options().unwrap(), theirs);
        let mut socket = TcpSocket::new(&a);
        socket.set_options(ours).unwrap();
        assert_eq!(socket.options(), ours);
        let client = socket.connect(at, None).unwrap();
        assert_eq!(client.options().unwrap(), ours);
        let server = listener.accept().unwrap().0;
        assert_eq!(server.options().unwrap(), theirs);
        // The bits of congestion are TCP's.
        let marked = TcpOptions {
            traffic_class: 0x2b,
            ..ours
        };
        server.set_options(marked).unwrap();
        assert_eq!(server.options().unwrap(), ours);
        listener.set_options(ours).unwrap();
        assert_eq!(listener.options().unwrap(), ours);
        // Data that no application will read is refused.
        let none = TcpOptions {
            hop_limit: 0,
            ..ours
        };
        let wrong = [
            client.set_options(none),
            listener.set_options(none),
            TcpSocket::new(&a).set_options(none),
        ];
        for wrong in wrong {
            assert_eq!(wrong.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
