//! A host that reaches its own addresses, by links that return its frames.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown};
use std::thread;
use std::time::Duration;
use weir_lab::wait;
use weir_socket::link::Hairpin;
use weir_socket::{Net, TcpListener, TcpStream, UdpSocket, link};
use weir_stack::Config;
use weir_wire::ethernet::Address;

/// More than all buffers between the ends.
const LEN: usize = 20_000_000;

fn net() -> Net {
    let (near, _far) = link::mem().unwrap();
    let (own, loops) = (Address([2, 0, 0, 0, 0, 5]), Address([2, 0, 0, 0, 0, 1]));
    let mut config = Config::new(own)
        .address("192.0.2.5/24".parse().unwrap())
        .address("2001:db8::5/64".parse().unwrap());
    config.hairpin = true;
    let mut loopback = Config::new(loops)
        .address("127.0.0.1/8".parse().unwrap())
        .address("::1/128".parse().unwrap());
    (loopback.hairpin, loopback.mtu) = (true, 65_535);
    let builder = Net::builder().link(Hairpin::new(Box::new(near), own), &config);
    let builder = builder.link(Hairpin::loopback(loops).unwrap(), &loopback);
    builder.start().unwrap()
}

#[test]
fn a_host_reaches_its_own_addresses() {
    wait::limit_this_test();
    let net = net();
    for at in ["192.0.2.5", "2001:db8::5", "127.0.0.1", "::1"] {
        let at: IpAddr = at.parse().unwrap();
        let listener = TcpListener::bind(&net, (at, 0)).unwrap();
        let mut client = TcpStream::connect(&net, listener.local_addr().unwrap()).unwrap();
        let (mut server, peer) = listener.accept().unwrap();
        assert_eq!((peer, peer.ip()), (client.local_addr().unwrap(), at));
        let byte = |at: usize| ((at * 7) >> 3) as u8;
        thread::scope(|scope| {
            scope.spawn(|| {
                let all: Vec<u8> = (0..LEN).map(byte).collect();
                client.write_all(&all).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            assert!(got.len() == LEN && got.iter().enumerate().all(|(at, one)| *one == byte(at)));
        });
        let a = UdpSocket::bind(&net, (at, 0)).unwrap();
        a.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let b = UdpSocket::bind(&net, (at, 0)).unwrap();
        b.send_to(&[7; 3000], a.local_addr().unwrap()).unwrap();
        let mut bytes = [0; 4000];
        let from = b.local_addr().unwrap();
        assert_eq!(a.recv_from(&mut bytes).unwrap(), (3000, from), "{at}");
        let refused = TcpStream::connect(&net, (at, 1)).unwrap_err();
        assert_eq!(
            refused.kind(),
            std::io::ErrorKind::ConnectionRefused,
            "{at}"
        );
    }
}

/// Without such a link the host's own addresses have no route.
#[test]
fn other_links_lead_to_others_only() {
    let (near, _far) = link::mem().unwrap();
    let config = Config::new(Address([2, 0, 0, 0, 0, 5]));
    let config = config.address("192.0.2.5/24".parse().unwrap());
    let net = Net::new(near, &config).unwrap();
    let error = TcpStream::connect(&net, "192.0.2.5:7").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable);
    let loopback = config.address("127.0.0.1/8".parse().unwrap());
    let (near, _far) = link::mem().unwrap();
    assert!(Net::new(near, &loopback).is_err());
}
