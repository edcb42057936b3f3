//! Hostile peers: bounded memory, bounded answers, no panic.

#[path = "common/tape.rs"]
mod tape;

use std::time::Duration;
use weir_vmtp::packet::{Flags, HEADER_LEN, Packet, Repr};
use weir_vmtp::server::Limits;
use weir_vmtp::{Destination, Entity, Reply, Request, Server};
use weir_wire::rng::SplitMix64;

const SERVER: Entity = Entity(0x0000_0002_0a00_0002);

fn request(client: u64, transaction: u32, size: u32, delivery: u32) -> Vec<u8> {
    let repr = Repr {
        client: Entity(client),
        transaction,
        delivery,
        server: SERVER,
        code: 5,
        segment_size: size,
        ..Repr::default()
    };
    let mut bytes = Vec::new();
    repr.emit(&vec![0; size as usize], &mut bytes);
    bytes
}

/// Answers the server's probes as a client does that awaits `transaction`.
fn answer_probes(server: &mut Server<u8>, now: Duration, transaction: u32) -> usize {
    let mut count = 0;
    let mut bytes = Vec::new();
    while server.poll_transmit(&mut bytes).is_some() {
        let head = Repr::parse(&Packet::new(&bytes).unwrap());
        bytes.clear();
        count += 1;
        if head.code == weir_vmtp::packet::manager::PROBE {
            let answer = Repr {
                response: true,
                user_data: [transaction, 1, 0],
                ..head
            };
            answer.emit(&[], &mut bytes);
            server.handle(now, 1, &bytes);
            bytes.clear();
        }
    }
    count
}

#[test]
fn tapes_of_random_bytes_do_no_harm() {
    for seed in 0..400 {
        let mut rng = SplitMix64::new(seed);
        let len = rng.bits() % 3000;
        let data: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
        tape::run(&data);
    }
}

#[test]
fn packets_that_contradict_themselves_are_refused() {
    let good = request(7, 1, 1000, 0b11);
    assert!(Packet::new(&good).is_ok());
    for len in 0..good.len() {
        assert!(Packet::new(&good[..len]).is_err(), "{len} bytes");
    }
    // Version, domain, EPG, length, streaming, delivery, MDM, segment size, checksum.
    for (at, value) in [
        (8, 0x20),
        (9, 2),
        (10, 0x40),
        (11, 1),
        (12, 0x80),
        (12, 0x20),
        (12, 0x10),
        (12, 0x03),
        (23, 0b111),
        (32, Flags::SPARSE.0),
        (61, 1),
        (63, 0),
        (good.len() - 1, 1),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(Packet::new(&bad).is_err(), "byte {at} = {value}");
    }
    assert_eq!(Packet::new(&good).unwrap().data().len(), 1000);
    assert_eq!(good.len(), HEADER_LEN + 1000 + 4);
}

#[test]
fn strangers_do_not_displace_clients() {
    let limits = Limits {
        clients: 16,
        ..Limits::default()
    };
    let mut server = Server::<u8>::with_limits(SERVER, 0, limits);
    let now = Duration::ZERO;
    // A client that is there, and whose request is executed.
    server.handle(now, 1, &request(7, 50, 0, 0));
    answer_probes(&mut server, now, 50);
    let incoming = server.poll_request().unwrap();
    assert!(server.respond(now, &incoming, Reply::default()));
    // Ten thousand that answer no probe.
    let mut answers = 0;
    for client in 100..10_100 {
        server.handle(now, 2, &request(client, 1, 16_384, u32::MAX));
        let mut bytes = Vec::new();
        while server.poll_transmit(&mut bytes).is_some() {
            answers += 1;
        }
        assert!(server.poll_request().is_none());
        assert!(server.clients() <= 16);
    }
    // One answer to a packet at most, and the response of before.
    assert!(answers <= 10_001, "{answers}");
    server.handle(now, 1, &request(7, 50, 0, 0));
    assert!(server.poll_request().is_none(), "executed again");
}

#[test]
fn a_full_table_of_clients_says_busy() {
    let limits = Limits {
        clients: 4,
        ..Limits::default()
    };
    let mut server = Server::<u8>::with_limits(SERVER, 0, limits);
    let now = Duration::ZERO;
    for client in 1..=4 {
        server.handle(now, 1, &request(client, 9, 0, 0));
        answer_probes(&mut server, now, 9);
        let incoming = server.poll_request().unwrap();
        server.respond(now, &incoming, Reply::default());
    }
    while server.poll_transmit(&mut Vec::new()).is_some() {}
    server.handle(now, 1, &request(5, 9, 0, 0));
    let mut bytes = Vec::new();
    assert_eq!(
        server.poll_transmit(&mut bytes),
        Some(Destination::Known(1))
    );
    let head = Repr::parse(&Packet::new(&bytes).unwrap());
    assert_eq!(head.user_data[0], weir_vmtp::packet::code::BUSY);
    // Once no duplicate can be under way, there is room.
    let later = now + Duration::from_secs(100);
    server.handle_timeout(later);
    server.handle_timeout(later + Duration::from_secs(100));
    server.handle(later, 1, &request(5, 9, 0, 0));
    answer_probes(&mut server, later, 9);
    assert!(server.poll_request().is_some());
}

#[test]
fn an_old_duplicate_of_a_forgotten_client_is_not_executed() {
    let mut server = Server::<u8>::new(SERVER, 0);
    server.handle(Duration::ZERO, 1, &request(7, 50, 0, 0));
    // The client has gone on since.
    answer_probes(&mut server, Duration::ZERO, 53);
    assert!(server.poll_request().is_none());
    server.handle(Duration::ZERO, 1, &request(7, 53, 0, 0));
    assert_eq!(server.poll_request().unwrap().transaction, 53);
}

#[test]
fn a_client_cannot_have_a_response_sent_for_ever() {
    let mut server = Server::<u8>::new(SERVER, 0);
    let now = Duration::ZERO;
    server.handle(now, 1, &request(7, 50, 0, 0));
    answer_probes(&mut server, now, 50);
    let incoming = server.poll_request().unwrap();
    let reply = Reply {
        segment: vec![0; 16_384],
        ..Reply::default()
    };
    server.respond(now, &incoming, reply);
    let mut ask = request(7, 50, 0, 0);
    ask[12] = 0x40; // APG
    let mut sent = 0;
    for _ in 0..10_000 {
        server.handle(now, 1, &ask);
        while server.poll_transmit(&mut Vec::new()).is_some() {
            sent += 1;
        }
    }
    assert!(sent < 1000, "{sent}");
}

/// Whatever a server says, and however often: a call ends.
#[test]
fn a_server_cannot_keep_a_client_for_ever() {
    use weir_vmtp::client::CALL_TIME_MAX;
    use weir_vmtp::packet::{code, manager};
    use weir_vmtp::{Client, Event, Failure};
    let step = Duration::from_millis(5);
    let about = |head: Repr| Repr {
        acknowledge: false,
        flags: Flags::PUBLIC.with(Flags::CO_RESIDENT),
        code: manager::NOTIFY_CLIENT,
        co_resident: head.client,
        ..head
    };
    let says: [(&str, &dyn Fn(Repr) -> Repr); 4] = [
        ("it is at work", &|head| Repr {
            user_data: [code::OK, 0, 0],
            ..about(head)
        }),
        ("it is busy", &|head| Repr {
            user_data: [code::BUSY, 0, 0],
            ..about(head)
        }),
        ("it needs all again", &|head| Repr {
            user_data: [code::RETRY_ALL, 0, 0],
            ..about(head)
        }),
        ("the same part of a response", &|head| Repr {
            response: true,
            code: 0,
            delivery: 1,
            segment_size: 1024,
            ..head
        }),
    ];
    for (what, say) in says {
        let mut client = Client::<u8>::new(Entity(7), 1);
        let mut now = Duration::ZERO;
        client.call(now, Request::new(SERVER, 5)).unwrap();
        let mut bytes = Vec::new();
        assert!(client.poll_transmit(&mut bytes).is_some());
        let head = say(Repr::parse(&Packet::new(&bytes).unwrap()));
        let mut said = Vec::new();
        head.emit(&vec![0; head.segment_size as usize], &mut said);
        let event = loop {
            client.handle(now, 1, &said);
            while client.poll_transmit(&mut Vec::new()).is_some() {}
            now += step;
            if client.next_timeout().is_some_and(|due| due <= now) {
                client.handle_timeout(now);
            }
            if let Some(event) = client.poll_event() {
                break event;
            }
            assert!(now <= CALL_TIME_MAX + step, "it goes on: {what}");
        };
        assert_eq!(event, Event::Failed(Failure::NoAnswer(SERVER)), "{what}");
    }
}

#[test]
#[should_panic(expected = "a segment's length")]
fn a_request_that_is_too_long_is_the_callers_mistake() {
    let mut client = weir_vmtp::Client::<u8>::new(Entity(7), 1);
    let request = Request {
        segment: vec![0; 16_385],
        ..Request::new(SERVER, 5)
    };
    let _ = client.call(Duration::ZERO, request);
}
