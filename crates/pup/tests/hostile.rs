//! Hostile peers: bounded memory, bounded answers, no panic.

#[path = "common/tape.rs"]
mod tape;

use std::time::Duration;
use weir_pup::Host;
use weir_pup::datagram::{Port, Pup, error, kind, socket};
use weir_pup::host::{CONNECTIONS_MAX, CONNECTIONS_OF_PEER_MAX};
use weir_wire::rng::SplitMix64;

#[test]
fn tapes_of_random_bytes_do_no_harm() {
    for seed in 0..200 {
        let mut rng = SplitMix64::new(seed);
        let len = rng.bits() % 2000;
        let data: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
        tape::run(&data);
    }
}

fn port(host: u8, socket: u32) -> Port {
    Port {
        net: 1,
        host,
        socket,
    }
}

/// A request of a host's socket for a connection to 1#2#, or what it sends on one.
fn pup(kind: u8, id: u32, from: Port, to: u32) -> Pup {
    let payload = match kind {
        kind::RFC => [&[from.net, from.host][..], &from.socket.to_be_bytes()].concat(),
        _ => vec![1; 10],
    };
    Pup::new(kind, id, port(2, to), from, &payload)
}

/// The socket of the connection that the host has accepted; `None` if it has refused.
fn answer(host: &mut Host) -> Option<u32> {
    let (mut bytes, mut socket) = (Vec::new(), None);
    while host.poll_transmit(Duration::ZERO, &mut bytes).is_some() {
        let answer = Pup::parse(&bytes).unwrap();
        bytes.clear();
        match answer.head.pup_type {
            kind::RFC => socket = answer.payload[2..].first_chunk().copied(),
            kind::ERROR => assert_eq!(answer.error_reason().unwrap().0, error::NO_ROOM),
            _ => {}
        }
    }
    socket.map(u32::from_be_bytes)
}

/// Opens a connection from a host; on it data arrives if `proven`.
fn open(host: &mut Host, now: Duration, from: Port, proven: bool) -> Option<u32> {
    host.handle(now, pup(kind::RFC, from.socket, from, socket::FTP));
    let number = answer(host)?;
    if proven {
        host.handle(now, pup(kind::DATA, from.socket, from, number));
    }
    Some(number)
}

#[test]
fn requests_for_connections_are_bounded() {
    let mut host = Host::new(1, 2, 5);
    host.listen(socket::FTP);
    let now = Duration::ZERO;
    // A peer that uses its connections gets that number; repetitions open no second ones.
    for number in 0..2 * CONNECTIONS_OF_PEER_MAX as u32 {
        let of_limit = number < CONNECTIONS_OF_PEER_MAX as u32;
        for _ in 0..2 {
            let opened = open(&mut host, now, port(3, 1000 + number), true);
            assert_eq!(opened.is_some(), of_limit, "{number}");
        }
    }
    // And all peers together get the limit of all.
    let mut opened = CONNECTIONS_OF_PEER_MAX;
    for from in 4..=100 {
        opened += usize::from(open(&mut host, now, port(from, 7), true).is_some());
    }
    for number in 0..1000 {
        let from = port(101 + (number % 100) as u8, number);
        opened += usize::from(open(&mut host, now, from, true).is_some());
    }
    assert_eq!(opened, CONNECTIONS_MAX);
}

/// Requests of peers that send nothing more do not keep out one that does.
#[test]
fn forged_requests_lock_no_client_out() {
    let mut host = Host::new(1, 2, 5);
    host.listen(socket::FTP);
    let ms = Duration::from_millis;
    let honest = open(&mut host, ms(0), port(3, 9), true).unwrap();
    for number in 0..2000 {
        let from = port(10 + (number % 200) as u8, number);
        assert!(open(&mut host, ms(number.into()), from, false).is_some());
    }
    let later = open(&mut host, ms(2000), port(4, 9), true).unwrap();
    for number in [honest, later] {
        assert!(host.connection(number).unwrap().is_proven());
    }
}

/// A connection that has ended but for the dally makes room, and repeated ends do not prolong it.
#[test]
fn ended_connections_keep_no_client_out() {
    let mut host = Host::new(1, 2, 5);
    host.listen(socket::FTP);
    let mut now = Duration::ZERO;
    let mut dallying = Vec::new();
    for from in 10..10 + CONNECTIONS_MAX as u32 {
        let from = port(10 + (from % 200) as u8, from);
        let number = open(&mut host, now, from, true).unwrap();
        host.handle(now, pup(kind::END, from.socket, from, number));
        dallying.push((from, number));
    }
    assert!(open(&mut host, now, port(3, 9), true).is_some());
    for _ in 0..5 {
        now += Duration::from_secs(4);
        for (from, number) in &dallying {
            host.handle(now, pup(kind::END, from.socket, *from, *number));
        }
        host.handle_timeout(now);
        host.forget_finished(|_| false);
        while host.poll_transmit(now, &mut Vec::new()).is_some() {}
    }
    host.forget_finished(|_| false);
    for (_, number) in dallying {
        assert!(host.connection(number).is_none(), "after {now:?}");
    }
}

/// A request names a port of its sender, not of a third host.
#[test]
fn requests_in_the_name_of_others_are_refused() {
    let mut host = Host::new(1, 2, 5);
    host.listen(socket::FTP);
    let mut request = pup(kind::RFC, 9, port(3, 9), socket::FTP);
    request.payload[1] = 4;
    host.handle(Duration::ZERO, request);
    assert_eq!(answer(&mut host), None);
    assert_eq!(host.poll_accepted(), None);
}

/// A grant of as many Pups of one byte as its fields hold.
#[test]
fn pups_in_flight_are_bounded_whatever_is_granted() {
    use weir_pup::bsp::Connection;
    let port = |host, socket| Port {
        net: 1,
        host,
        socket,
    };
    let (local, asked, peer) = (port(2, 77), port(2, 3), port(3, 9));
    let own = [&[1, 3][..], &peer.socket.to_be_bytes()].concat();
    let request = Pup::new(kind::RFC, 500, asked, peer, &own);
    let now = Duration::ZERO;
    let mut connection = Connection::accept(now, local, &request).unwrap();
    assert!(connection.poll_transmit(now).is_some(), "the answer");
    assert_eq!(connection.write(&[1; 60_000]), 60_000);
    let grant = [0, 1, 0xff, 0xff, 0xff, 0xff];
    connection.handle(now, &Pup::new(kind::ACK, 500, local, peer, &grant));
    let sent = std::iter::from_fn(|| connection.poll_transmit(now)).count();
    assert!((100..=256).contains(&sent), "{sent} Pups");
}

#[test]
fn errors_are_not_answered() {
    let mut host = Host::new(1, 2, 5);
    let peer = Port {
        net: 1,
        host: 3,
        socket: 9,
    };
    let pup = Pup::new(kind::ECHO_ME, 1, host.port(0o777), peer, b"");
    let error = pup
        .error(error::NO_SOCKET, "loop")
        .reply(kind::ERROR, &[0; 30]);
    host.handle(Duration::ZERO, error);
    assert!(
        host.poll_transmit(Duration::ZERO, &mut Vec::new())
            .is_none()
    );
    // Nor is what goes to all hosts.
    let mut broadcast = pup;
    broadcast.head.dst.host = 0;
    host.handle(Duration::ZERO, broadcast);
    assert!(
        host.poll_transmit(Duration::ZERO, &mut Vec::new())
            .is_none()
    );
}
