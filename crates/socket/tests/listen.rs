//! How listeners and UDP sockets are at their places: for both versions of IP,
//! several at one, with bytes in SYNs; on one stack and on several.

mod common;

use common::{V4, V6, config, ip, nets};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use weir_socket::{Net, TcpListener, TcpSocket, TcpStream, UdpSocket, link};

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(common::ip(ip), port)
}

/// A client, and a server of this many stacks.
fn sharded(shards: usize) -> (Net, Net) {
    let (a, b) = link::mem().unwrap();
    let server = Net::builder().link(b, &config(1)).shards(shards);
    (Net::new(a, &config(0)).unwrap(), server.start().unwrap())
}

fn both(net: &Net, place: &str) -> std::io::Result<TcpListener> {
    let mut socket = TcpSocket::new(net);
    socket.bind(place.parse().unwrap())?;
    socket.set_only_v6(false);
    socket.listen(100)
}

#[test]
fn a_listener_takes_both_versions_if_it_says_so() {
    for shards in [1, 3] {
        let (client, server) = sharded(shards);
        let listener = both(&server, "[::]:80").unwrap();
        for to in [V4[1], V6[1]] {
            let mut stream = TcpStream::connect(&client, (to, 80)).unwrap();
            let (mut accepted, from) = listener.accept().unwrap();
            assert_eq!(from, stream.local_addr().unwrap());
            assert_eq!(accepted.local_addr().unwrap(), at(to, 80));
            stream.write_all(b"x").unwrap();
            accepted.read_exact(&mut [0]).unwrap();
        }
        // Its place is both versions'.
        for taken in ["0.0.0.0:80", "[::]:80"] {
            let error = TcpListener::bind(&server, taken).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::AddrInUse, "{taken}");
        }
        drop(listener);
        let v4 = TcpListener::bind(&server, "0.0.0.0:80").unwrap();
        let error = both(&server, "[::]:80").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        // Neither is taken now; and without the option it is one version's.
        let _v6 = TcpListener::bind(&server, "[::]:80").unwrap();
        drop(v4);
        let error = TcpStream::connect(&client, (V4[1], 80)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let any = both(&server, "[::]:0").unwrap();
        let port = any.local_addr().unwrap().port();
        TcpStream::connect(&client, (V4[1], port)).unwrap();
    }
}

#[test]
fn a_udp_socket_is_at_both_versions_if_it_says_so() {
    let (client, server) = nets();
    let echo = UdpSocket::bind_both(&server, 7).unwrap();
    for (here, there) in [(V4[0], V4[1]), (V6[0], V6[1])] {
        let asks = UdpSocket::bind(&client, (here, 0)).unwrap();
        asks.send_to(b"who?", (there, 7)).unwrap();
        let mut bytes = [0; 100];
        let (count, from) = echo.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..count], from.ip()), (&b"who?"[..], ip(here)));
        echo.send_to(b"me", from).unwrap();
        let (count, from) = asks.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..count], from), (&b"me"[..], at(there, 7)));
    }
    for taken in ["0.0.0.0:7", "[::]:7"] {
        let error = UdpSocket::bind(&server, taken).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{taken}");
    }
    // Tied to a peer of IPv4 it is that one's alone.
    let asks = UdpSocket::bind(&client, (V4[0], 5000)).unwrap();
    echo.connect((V4[0], 5000)).unwrap();
    echo.send(b"you").unwrap();
    assert_eq!(asks.recv_from(&mut [0; 10]).unwrap().1, at(V4[1], 7));
    assert!(UdpSocket::bind(&server, "[::]:7").is_ok());
}

fn shared(net: &Net) -> std::io::Result<TcpListener> {
    let mut socket = TcpSocket::new(net);
    socket.bind("0.0.0.0:80".parse().unwrap())?;
    socket.set_reuse_port(true);
    socket.listen(100)
}

/// How many of this many connections each listener gets.
fn dealt(client: &Net, listeners: &[TcpListener], count: usize) -> Vec<usize> {
    let streams: Vec<TcpStream> = (0..count)
        .map(|_| TcpStream::connect(client, (V4[1], 80)).unwrap())
        .collect();
    let mut got = vec![0; listeners.len()];
    let began = Instant::now();
    while got.iter().sum::<usize>() < count {
        for (listener, got) in listeners.iter().zip(&mut got) {
            listener.set_nonblocking(true).unwrap();
            *got += usize::from(listener.accept().is_ok());
        }
        assert!(began.elapsed().as_secs() < 60, "{got:?} of {count}");
        std::thread::sleep(Duration::from_micros(100));
    }
    drop(streams);
    got
}

#[test]
fn listeners_that_agree_share_a_place() {
    for shards in [1, 2] {
        let (client, server) = sharded(shards);
        let mut listeners: Vec<TcpListener> = (0..3).map(|_| shared(&server).unwrap()).collect();
        let error = TcpListener::bind(&server, "0.0.0.0:80").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        // 60 tosses leave one of three out once in ten thousand million times.
        let got = dealt(&client, &listeners, 60);
        assert!(got.iter().all(|count| *count > 0), "{got:?}");
        // The first goes, and the others have its connections.
        listeners.remove(0);
        let got = dealt(&client, &listeners, 60);
        assert!(got.iter().all(|count| *count > 0), "{got:?}");
        listeners.remove(1);
        assert_eq!(dealt(&client, &listeners, 10), [10]);
        listeners.push(shared(&server).unwrap());
        listeners.clear();
        let error = TcpStream::connect(&client, (V4[1], 80)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // A listener without sharing shares with no other.
        let _alone = TcpListener::bind(&server, "0.0.0.0:80").unwrap();
        assert_eq!(shared(&server).err().unwrap().kind(), ErrorKind::AddrInUse);
    }
}

/// Asks "hello", and reads the answer; gives how many bytes went in the SYN.
fn ask(client: &Net, to: &str) -> (TcpStream, usize) {
    let socket = TcpSocket::new(client);
    let (mut stream, taken) = socket.start_fast(at(to, 80), b"hello").unwrap();
    stream.write_all(&b"hello"[taken..]).unwrap();
    (stream, taken)
}

fn answer(listener: &TcpListener) -> TcpStream {
    let (mut accepted, _) = listener.accept().unwrap();
    let mut bytes = [0; 5];
    accepted.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    accepted.write_all(b"world").unwrap();
    accepted
}

fn fast(server: &Net, place: &str) -> TcpListener {
    let mut socket = TcpSocket::new(server);
    socket.bind(place.parse().unwrap()).unwrap();
    socket.set_fast_open(Some(10));
    socket.listen(100).unwrap()
}

/// Asks and answers; whether bytes went in the SYN, whether they were taken, and
/// by which shard.
fn talk(client: &Net, listener: &TcpListener, to: &str) -> (bool, bool, usize) {
    let (mut stream, sent) = ask(client, to);
    let accepted = answer(listener);
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"world");
    let took = |end: &TcpStream| end.info().unwrap().syn_data_acked;
    assert_eq!(took(&stream), took(&accepted));
    assert!(sent == 0 || sent == 5, "{sent}");
    (sent > 0, took(&accepted), accepted.shard())
}

/// A cookie that one of the server's stacks has given is good for all of them.
#[test]
fn bytes_in_a_syn_are_taken_by_every_shard() {
    for (shards, to, place) in [
        (1, V4[1], "0.0.0.0:80"),
        (1, V6[1], "[::]:80"),
        (4, V4[1], "0.0.0.0:80"),
    ] {
        let (client, server) = sharded(shards);
        let listener = fast(&server, place);
        // The first asks for a cookie.
        let (sent, took, _) = talk(&client, &listener, to);
        assert!(!sent && !took);
        let mut left: Vec<usize> = (0..shards).collect();
        for number in 0.. {
            assert!(number < 1000, "no connection comes to {left:?}");
            let (sent, took, shard) = talk(&client, &listener, to);
            assert!(sent && took, "{number}, shard {shard}");
            left.retain(|one| *one != shard);
            if left.is_empty() {
                break;
            }
        }
    }
}

/// Servers with the same key take each other's cookies.
#[test]
fn cookies_are_made_with_the_given_key() {
    let (client, server) = sharded(2);
    for (key, good) in [(1, false), (1, true), (2, false), (2, true), (1, false)] {
        server.set_fast_open_key([key; 16]);
        let listener = fast(&server, "0.0.0.0:80");
        // What is refused in a SYN comes after it, and with a new cookie.
        for good in [good, true] {
            let (_, took, _) = talk(&client, &listener, V4[1]);
            assert_eq!(took, good, "key {key}");
        }
    }
}
