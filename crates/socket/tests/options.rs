//! What is set on sockets means what it means of a kernel's.

mod common;

use common::{V4, bytes, ip, nets};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use weir_socket::{TcpListener, TcpStream};

#[test]
fn a_peer_that_is_gone_is_waited_for_as_long_as_asked() {
    let time = Duration::from_millis(700);
    let (a, b) = nets();
    let at = SocketAddr::new(ip(V4[1]), 80);
    let listener = TcpListener::bind(&b, at).unwrap();
    let mut client = TcpStream::connect(&a, at).unwrap();
    let server = listener.accept().unwrap().0;
    assert_eq!(client.user_timeout().unwrap(), None);
    client.set_user_timeout(Some(time)).unwrap();
    assert_eq!(client.user_timeout().unwrap(), Some(time));
    for wrong in [Duration::ZERO, Duration::from_secs(1 << 40)] {
        let wrong = client.set_user_timeout(Some(wrong)).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::InvalidInput);
    }
    // The peer reads nothing, so that its window closes; what it has not taken
    // waits for it, and no longer.
    server.set_receive_buffer(5000).unwrap();
    let began = Instant::now();
    let error = loop {
        if let Err(error) = client.write_all(&[7; 100_000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(began.elapsed() >= time);
}

#[test]
fn a_receive_buffer_holds_the_sender_up_and_loses_nothing() {
    let (a, b) = nets();
    let at = SocketAddr::new(ip(V4[1]), 80);
    let listener = TcpListener::bind(&b, at).unwrap();
    let client = TcpStream::connect(&a, at).unwrap();
    let mut server = listener.accept().unwrap().0;
    // The first window is granted already.
    let before = server.info().unwrap().rcv_wnd;
    server.set_receive_buffer(4000).unwrap();
    let wrong = server.set_receive_buffer(0).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidInput);
    client.set_send_buffer(100_000).unwrap();
    const LEN: usize = 3 << 19;
    let writer = std::thread::spawn(move || (&client).write_all(&bytes(LEN)).map(|()| client));
    let mut heard = vec![0; LEN];
    // Beyond that window no more waits than was asked for.
    server.read_exact(&mut heard[..before]).unwrap();
    for part in heard[before..].chunks_mut(2000) {
        server.read_exact(part).unwrap();
        let waits = server.info().unwrap().readable;
        assert!(waits <= 4000, "{waits} bytes wait");
    }
    assert!(heard == bytes(LEN));
    writer.join().unwrap().unwrap();
}

/// `MSG_OOB` and `SIOCATMARK`.
#[test]
fn urgent_bytes_stay_in_order_and_are_known_of() {
    let (a, b) = nets();
    let at = SocketAddr::new(ip(V4[1]), 80);
    let listener = TcpListener::bind(&b, at).unwrap();
    let mut client = TcpStream::connect(&a, at).unwrap();
    let mut server = listener.accept().unwrap().0;
    client.write_all(b"plain").unwrap();
    assert_eq!(client.send_urgent(b"now!").unwrap(), 4);
    client.write_all(b"later").unwrap();
    server
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut heard = [0; 14];
    // The urgent bytes went behind these, perhaps later.
    server.read_exact(&mut heard[..6]).unwrap();
    assert_eq!(server.urgent(), Some(3));
    server.read_exact(&mut heard[6..8]).unwrap();
    assert_eq!(server.urgent(), Some(1), "at the mark");
    server.read_exact(&mut heard[8..]).unwrap();
    assert_eq!(server.urgent(), None);
    assert_eq!(&heard, b"plainnow!later");
    assert_eq!(client.urgent(), None);
}
