//! The balancer: consistent choice, sessions that stay, servers that drain, die
//! and come back.

mod common;

use common::{Spec, checksums_are_right};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use weir_chain::balance::{Balance, BalanceConfig, Server};
use weir_chain::{Batch, Direction, Endpoints, Fate, Output, Packet, Reload, Stage};
use weir_wire::Protocol;
use weir_wire::field::{read_u16, read_u32};

const SECOND: u64 = 1_000_000_000;
const SERVICE: (&str, u16) = ("192.0.2.1", 80);

fn server(last: u8) -> Server {
    Server {
        end: (Ipv4Addr::new(10, 0, 0, last), 8080),
        weight: 1,
        is_draining: false,
    }
}

fn config(count: u8) -> BalanceConfig {
    let servers = (1..=count).map(server).collect();
    let service = (SERVICE.0.parse().unwrap(), SERVICE.1);
    BalanceConfig {
        probe: 0,
        ..BalanceConfig::new(Protocol::TCP, service, servers)
    }
}

/// A frame through the balancer alone.
fn pass(balance: &mut Balance, now: u64, direction: Direction, frame: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = frame.to_vec();
    let mut batch = Batch::new(vec![Packet::new(&mut bytes)]);
    let mut output = Output::default();
    match direction {
        Direction::Outward => balance.outward(now, &mut batch, &mut output),
        Direction::Inward => balance.inward(now, &mut batch, &mut output),
    }
    let fate = batch.all()[0].fate();
    (fate == Fate::Pass).then_some(bytes)
}

fn client(number: u32) -> (String, u16) {
    let address = Ipv4Addr::from_bits(0xc633_0000 + number / 1000);
    (address.to_string(), 1024 + (number % 1000) as u16)
}

/// The server that a client's segment goes to.
fn server_of(balance: &mut Balance, now: u64, number: u32, flags: u8) -> Option<Ipv4Addr> {
    let (address, port) = client(number);
    let frame = Spec::tcp((&address, port), SERVICE, flags).frame();
    let out = pass(balance, now, Direction::Inward, &frame)?;
    assert!(checksums_are_right(&out));
    assert_eq!(read_u16(&out, 36), 8080);
    let octets: [u8; 4] = out[30..34].try_into().unwrap();
    Some(octets.into())
}

#[test]
fn a_session_keeps_its_server_and_replies_come_from_the_service() {
    let mut balance = Balance::new(config(10), 1).unwrap();
    for number in 0..100 {
        let first = server_of(&mut balance, 0, number, 0x02).unwrap();
        assert_eq!(server_of(&mut balance, 1, number, 0x10), Some(first));
        let (address, port) = client(number);
        let reply = Spec::tcp((&first.to_string(), 8080), (&address, port), 0x12).frame();
        let back = pass(&mut balance, 2, Direction::Outward, &reply).unwrap();
        assert!(checksums_are_right(&back));
        assert_eq!(
            (&back[26..30], read_u16(&back, 34)),
            (&[192, 0, 2, 1][..], 80)
        );
    }
    // What is not of the service passes as it is.
    let other = Spec::tcp(("198.51.100.1", 1), (SERVICE.0, 81), 0x02).frame();
    assert_eq!(
        pass(&mut balance, 3, Direction::Inward, &other),
        Some(other.clone())
    );
    assert_eq!(
        pass(&mut balance, 3, Direction::Outward, &other),
        Some(other.clone())
    );
}

/// The shares of 100 servers, and what one of them less changes for the others.
#[test]
fn removing_one_of_a_hundred_servers_moves_few_others() {
    const CLIENTS: u32 = 100_000;
    let mut balance = Balance::new(config(100), 1).unwrap();
    let before: Vec<Ipv4Addr> = (0..CLIENTS)
        .map(|number| server_of(&mut balance, 0, number, 0x02).unwrap())
        .collect();
    let mut shares = BTreeMap::<Ipv4Addr, u32>::new();
    for server in &before {
        *shares.entry(*server).or_default() += 1;
    }
    assert_eq!(shares.len(), 100);
    let (least, most) = (
        shares.values().min().unwrap(),
        shares.values().max().unwrap(),
    );
    assert!(*least > 850 && *most < 1150, "{least} to {most} of 1,000");
    let gone = server(42);
    let rest: Vec<Server> = (1..=100)
        .map(server)
        .filter(|one| one.end != gone.end)
        .collect();
    balance.set_servers(rest).unwrap();
    // Established sessions stay.
    for number in 0..CLIENTS {
        let server = before[number as usize];
        if server != gone.end.0 {
            assert_eq!(server_of(&mut balance, 1, number, 0x10), Some(server));
        }
    }
    // New ones, by the same clients.
    let mut fresh = Balance::new(
        BalanceConfig {
            servers: (1..=100)
                .map(server)
                .filter(|one| one.end != gone.end)
                .collect(),
            ..config(100)
        },
        1,
    )
    .unwrap();
    let moved = (0..CLIENTS).filter(|number| {
        let now = server_of(&mut fresh, 0, *number, 0x02).unwrap();
        let server = before[*number as usize];
        server != gone.end.0 && now != server
    });
    let moved = moved.count();
    println!("{moved} of {CLIENTS} move");
    assert!(
        moved * 1000 <= CLIENTS as usize * 11,
        "{moved} of {CLIENTS} move"
    );
}

/// The same through the place that another thread puts a new set in, as SIGHUP does.
#[test]
fn a_set_that_is_put_is_taken_and_a_wrong_one_is_not() {
    let reload = Reload::default();
    let mut balance = Balance::new(config(3), 1)
        .unwrap()
        .reloaded_by(reload.clone());
    let before: Vec<Ipv4Addr> = (0..300)
        .map(|number| server_of(&mut balance, 0, number, 0x02).unwrap())
        .collect();
    let mut output = Output::default();
    reload.put(Vec::new());
    balance.poll(SECOND, &mut output);
    assert_eq!(balance.shares().count(), 3, "no server is no set");
    reload.put(vec![server(3), server(2), server(4)]);
    let due = balance.next_deadline().unwrap();
    assert!(due <= 2 * SECOND, "{due}");
    balance.poll(due, &mut output);
    let ends: Vec<Ipv4Addr> = balance.shares().map(|(it, ..)| it.end.0).collect();
    assert_eq!(ends, [3, 2, 4].map(|last| server(last).end.0));
    for number in 0..300 {
        let was = before[number as usize];
        if was != server(1).end.0 {
            assert_eq!(server_of(&mut balance, due, number, 0x10), Some(was));
        }
    }
    let new: Vec<_> = (1000..1300)
        .map(|number| server_of(&mut balance, due, number, 0x02).unwrap())
        .collect();
    assert!(!new.contains(&server(1).end.0) && new.contains(&server(4).end.0));
    let mut counts = BTreeMap::new();
    balance.counters(&mut |name, value| _ = counts.insert(name, value));
    assert_eq!((counts["reloads"], counts["reloads_refused"]), (1, 1));
}

#[test]
fn weights_are_shares() {
    let mut config = config(3);
    config.servers[0].weight = 2;
    let mut balance = Balance::new(config, 1).unwrap();
    let mut heavy = 0;
    for number in 0..20_000 {
        heavy += u32::from(server_of(&mut balance, 0, number, 0x02) == Some(server(1).end.0));
    }
    assert!(
        (9_600..10_400).contains(&heavy),
        "{heavy} of 20,000 for half the weight"
    );
}

#[test]
fn a_draining_server_keeps_its_sessions_and_gets_no_more() {
    let mut balance = Balance::new(config(2), 1).unwrap();
    let before: Vec<Ipv4Addr> = (0..1000)
        .map(|number| server_of(&mut balance, 0, number, 0x02).unwrap())
        .collect();
    let mut servers: Vec<Server> = (1..=2).map(server).collect();
    servers[0].is_draining = true;
    balance.set_servers(servers).unwrap();
    for number in 0..1000 {
        assert_eq!(
            server_of(&mut balance, 1, number, 0x10),
            Some(before[number as usize])
        );
    }
    for number in 1000..2000 {
        assert_eq!(
            server_of(&mut balance, 1, number, 0x02),
            Some(server(2).end.0)
        );
    }
}

#[test]
fn sessions_end_and_their_entries_with_them() {
    let mut balance = Balance::new(
        BalanceConfig {
            sessions_max: 10,
            ..config(2)
        },
        1,
    )
    .unwrap();
    for number in 0..10 {
        assert!(server_of(&mut balance, 0, number, 0x02).is_some());
    }
    assert_eq!(
        server_of(&mut balance, 0, 10, 0x02),
        None,
        "the table is full"
    );
    let mut output = Output::default();
    balance.poll(300 * SECOND, &mut output);
    let ended = std::iter::from_fn(|| balance.withdrawn()).count();
    assert_eq!(ended, 10);
    assert_eq!(balance.next_deadline(), None);
    let server = server_of(&mut balance, 300 * SECOND, 10, 0x02).unwrap();
    reply(&mut balance, 300 * SECOND, server, 10);
    balance.poll(360 * SECOND, &mut output);
    assert_eq!(balance.next_deadline(), Some(600 * SECOND));
    // A closed connection ends sooner.
    server_of(&mut balance, 361 * SECOND, 10, 0x11);
    assert_eq!(balance.next_deadline(), Some(421 * SECOND));
}

/// A server's SYN ACK to a client.
fn reply(balance: &mut Balance, now: u64, server: Ipv4Addr, number: u32) {
    let (address, port) = client(number);
    let frame = Spec::tcp((&server.to_string(), 8080), (&address, port), 0x12).frame();
    pass(balance, now, Direction::Outward, &frame).expect("it passes");
}

/// SYNs of made-up clients fill the table for a minute, and not for as long as connections
/// live.
#[test]
fn a_connection_that_no_server_has_answered_ends_soon() {
    let mut balance = Balance::new(config(2), 1).unwrap();
    server_of(&mut balance, 0, 1, 0x02).unwrap();
    let answered = server_of(&mut balance, 0, 2, 0x02).unwrap();
    reply(&mut balance, 0, answered, 2);
    let mut output = Output::default();
    balance.poll(60 * SECOND, &mut output);
    assert_eq!(std::iter::from_fn(|| balance.withdrawn()).count(), 1);
    balance.poll(299 * SECOND, &mut output);
    assert_eq!(std::iter::from_fn(|| balance.withdrawn()).count(), 0);
    balance.poll(300 * SECOND, &mut output);
    assert_eq!(std::iter::from_fn(|| balance.withdrawn()).count(), 1);
}

/// The port of probes is the stage's own only where it probes.
#[test]
fn datagrams_to_the_port_of_probes_are_left_alone() {
    let service = (SERVICE.0.parse().unwrap(), SERVICE.1);
    let udp = BalanceConfig::new(Protocol::UDP, service, vec![server(1)]);
    for config in [
        udp.clone(),
        BalanceConfig {
            probe: SECOND,
            ..udp
        },
        config(1),
    ] {
        let mut balance = Balance::new(config, 1).unwrap();
        let spec = Spec {
            payload: Vec::new(),
            ..Spec::udp(("198.51.100.1", 7), (SERVICE.0, 1023))
        };
        // No more than the header of UDP, and no padding.
        let frame = spec.frame();
        for direction in [Direction::Inward, Direction::Outward] {
            let passed = pass(&mut balance, 0, direction, &frame);
            assert_eq!(passed, Some(frame.clone()), "{direction}");
        }
        assert!(!balance.turns(&Endpoints::of(&frame).unwrap()));
        let mut output = Output::default();
        balance.poll(SECOND, &mut output);
        assert!(output.take().is_empty(), "no probe");
    }
}

/// The probes that the balancer sends: to whom, and the sequence number.
fn probes(balance: &mut Balance, now: u64) -> Vec<(Ipv4Addr, u32)> {
    let mut output = Output::default();
    balance.poll(now, &mut output);
    let sent = output.take().into_iter();
    sent.filter_map(|sent| match sent.frame {
        weir_chain::SentFrame::Made(frame) => {
            assert!(checksums_are_right(&frame));
            let octets: [u8; 4] = frame[30..34].try_into().unwrap();
            Some((octets.into(), read_u32(&frame, 38)))
        }
        _ => None,
    })
    .collect()
}

/// A server's answer to a probe.
fn answer(balance: &mut Balance, from: Ipv4Addr, sequence: u32, flags: u8) {
    let mut frame = Spec::tcp((&from.to_string(), 8080), (SERVICE.0, 1023), flags).frame();
    frame[42..46].copy_from_slice(&sequence.wrapping_add(1).to_be_bytes());
    assert!(balance.turns(&Endpoints::of(&frame).unwrap()));
    assert_eq!(
        pass(balance, 0, Direction::Outward, &frame),
        None,
        "the stage keeps it"
    );
}

#[test]
fn a_server_that_does_not_answer_is_down_until_it_answers() {
    let mut balance = Balance::new(
        BalanceConfig {
            probe: SECOND,
            ..config(2)
        },
        1,
    )
    .unwrap();
    let (dead, alive) = (server(1).end.0, server(2).end.0);
    let sessions: Vec<Ipv4Addr> = (0..100)
        .map(|number| server_of(&mut balance, 0, number, 0x02).unwrap())
        .collect();
    assert!(sessions.contains(&dead));
    let round = |balance: &mut Balance, now: u64, dead_answers: Option<u8>| {
        for (to, sequence) in probes(balance, now * SECOND) {
            match dead_answers {
                _ if to == alive => answer(balance, to, sequence, 0x12),
                Some(flags) => answer(balance, to, sequence, flags),
                None => {}
            }
        }
    };
    // Three without an answer are noticed with the fourth.
    for now in 0..10 {
        round(&mut balance, now * 2, None);
    }
    for number in 0..200 {
        assert_eq!(
            server_of(&mut balance, 20 * SECOND, number, 0x02),
            Some(alive)
        );
    }
    // A reset is an answer of a host, but not of a server.
    round(&mut balance, 30, Some(0x14));
    for now in 16..20 {
        round(&mut balance, now * 2, Some(0x12));
    }
    let chosen: Vec<Option<Ipv4Addr>> = (1000..1200)
        .map(|number| server_of(&mut balance, 40 * SECOND, number, 0x02))
        .collect();
    assert!(chosen.contains(&Some(dead)), "it is back");
}

#[test]
fn wrong_sets_are_refused() {
    let mut wrong = config(2);
    wrong.servers[1] = wrong.servers[0];
    assert!(
        Balance::new(wrong, 1)
            .unwrap_err()
            .to_string()
            .contains("twice")
    );
    assert!(
        Balance::new(
            BalanceConfig {
                servers: vec![],
                ..config(1)
            },
            1
        )
        .is_err()
    );
    for (timeout, fall) in [(SECOND + 1_000_000, 3), (0, 3), (SECOND, 0), (SECOND, 101)] {
        let wrong = BalanceConfig {
            probe: SECOND,
            probe_timeout: timeout,
            fall,
            ..config(1)
        };
        assert!(Balance::new(wrong, 1).is_err(), "{timeout} {fall}");
    }
    let mut balance = Balance::new(config(2), 1).unwrap();
    assert!(balance.set_servers(vec![]).is_err());
    let mut wrong = config(1);
    (wrong.service.1, wrong.probe) = (1023, SECOND);
    let error = Balance::new(wrong.clone(), 1).unwrap_err().to_string();
    assert!(error.contains("port 1023"), "{error}");
    wrong.probe = 0;
    assert!(Balance::new(wrong, 1).is_ok());
    assert!(
        server_of(&mut balance, 0, 1, 0x02).is_some(),
        "the old set stays"
    );
}
