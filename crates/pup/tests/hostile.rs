//! Hostile peers: bounded memory, bounded answers, no panic.

#[path = "common/tape.rs"]
mod tape;

use std::time::Duration;
use weir_pup::Host;
use weir_pup::datagram::{Port, Pup, error, kind, socket};
use weir_pup::host::CONNECTIONS_MAX;
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

#[test]
fn requests_for_connections_are_bounded() {
    let mut host = Host::new(1, 2, 5);
    host.listen(socket::FTP);
    let now = Duration::ZERO;
    let mut refused = 0;
    for number in 0..2000_u32 {
        let peer = Port {
            net: 1,
            host: 3,
            socket: number + 1,
        };
        let port = [&[1, 3][..], &peer.socket.to_be_bytes()].concat();
        let request = Pup::new(kind::RFC, number, host.port(socket::FTP), peer, &port);
        // Twice: a repetition opens no second one.
        host.handle(now, request.clone());
        host.handle(now, request);
        let mut bytes = Vec::new();
        while host.poll_transmit(now, &mut bytes).is_some() {
            let answer = Pup::parse(&bytes).unwrap();
            bytes.clear();
            if let Some((code, _)) = answer
                .error_reason()
                .filter(|_| answer.head.pup_type == kind::ERROR)
            {
                assert_eq!(code, error::NO_ROOM);
                refused += 1;
            }
        }
    }
    let accepted = std::iter::from_fn(|| host.poll_accepted()).count();
    assert_eq!(accepted, CONNECTIONS_MAX);
    assert_eq!(refused, 2 * (2000 - CONNECTIONS_MAX));
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
