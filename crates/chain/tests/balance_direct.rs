//! Direct server return: packets go to their servers unchanged, and sessions live by what clients send
//! alone.

mod common;

use common::{Spec, checksums_are_right, icmp};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use weir_chain::balance::{Balance, BalanceConfig, Server};
use weir_chain::nat::Prefix;
use weir_chain::{
    Batch, Chain, Direction, Edits, Endpoints, Fate, Output, Packet, SentFrame, Stage,
};
use weir_wire::field::{read_u16, read_u32, write};
use weir_wire::{Protocol, checksum};

const SECOND: u64 = 1_000_000_000;
const SERVICE: (&str, u16) = ("192.0.2.1", 80);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const CLIENT: (&str, u16) = ("198.51.100.7", 4000);
const SYN: u8 = 2;
const ACK: u8 = 0x10;

fn server(last: u8) -> Server {
    Server {
        end: (Ipv4Addr::new(10, 0, 0, last), SERVICE.1),
        weight: 1,
        is_draining: false,
    }
}

fn network(address: Ipv4Addr, len: u8) -> Prefix {
    Prefix { address, len }
}

fn config(count: u8) -> BalanceConfig {
    let servers = (1..=count).map(server).collect();
    let service = (SERVICE.0.parse().unwrap(), SERVICE.1);
    BalanceConfig {
        probe: 0,
        direct_return: Some(vec![network(service.0, 24), network(OWN, 24)]),
        ..BalanceConfig::new(Protocol::TCP, service, servers)
    }
}

/// What became of a packet: the bytes, and its edits.
struct Passed {
    fate: Fate,
    bytes: Vec<u8>,
    edits: Edits,
    is_cacheable: bool,
}

fn pass(balance: &mut Balance, now: u64, direction: Direction, frame: &[u8]) -> Passed {
    let mut bytes = frame.to_vec();
    let mut batch = Batch::new(vec![Packet::new(&mut bytes)]);
    let mut output = Output::default();
    match direction {
        Direction::Outward => balance.outward(now, &mut batch, &mut output),
        Direction::Inward => balance.inward(now, &mut batch, &mut output),
    }
    let packet = batch.into_packets().remove(0);
    let (fate, edits) = (packet.fate(), *packet.trace().edits());
    let is_cacheable = packet.trace().is_cacheable();
    Passed {
        fate,
        bytes,
        edits,
        is_cacheable,
    }
}

/// The server to which a packet goes as it is, if to any.
fn way(balance: &mut Balance, now: u64, frame: &[u8]) -> Option<Ipv4Addr> {
    let passed = pass(balance, now, Direction::Inward, frame);
    assert_eq!(passed.bytes, frame, "a packet stays as it is");
    let next_hop = passed.edits.next_hop;
    let expected = Edits {
        next_hop,
        ..Edits::default()
    };
    assert_eq!(passed.edits, expected);
    next_hop.filter(|_| passed.fate == Fate::Pass)
}

fn client(number: u32) -> (String, u16) {
    let address = Ipv4Addr::from_bits(0xc633_0000 + number / 1000);
    (address.to_string(), 1024 + (number % 1000) as u16)
}

fn segment(number: u32, flags: u8) -> Vec<u8> {
    let (address, port) = client(number);
    Spec::tcp((&address, port), SERVICE, flags).frame()
}

fn server_of(balance: &mut Balance, now: u64, number: u32, flags: u8) -> Ipv4Addr {
    way(balance, now, &segment(number, flags)).expect("a server")
}

/// The same servers as without direct return, whose packets are translated.
#[test]
fn a_packet_goes_to_its_server_as_it_is() {
    let mut direct = Balance::new(config(10), 1).unwrap();
    let translating = BalanceConfig {
        direct_return: None,
        ..config(10)
    };
    let mut translating = Balance::new(translating, 2).unwrap();
    let mut shares = BTreeMap::<Ipv4Addr, u32>::new();
    for number in 0..1000 {
        let chosen = server_of(&mut direct, 0, number, SYN);
        assert_eq!(server_of(&mut direct, 1, number, ACK), chosen);
        let frame = segment(number, SYN);
        let other = pass(&mut translating, 0, Direction::Inward, &frame);
        assert_eq!(other.edits.destination, Some(chosen.into()));
        *shares.entry(chosen).or_default() += 1;
    }
    assert!(shares.len() == 10 && shares.values().all(|share| *share > 50));
    // What is not of the service, and what servers send by this way nevertheless.
    let other = Spec::tcp(CLIENT, (SERVICE.0, 81), SYN).frame();
    assert_eq!(way(&mut direct, 1, &other), None);
    let (address, port) = client(1);
    let answer = Spec::tcp(SERVICE, (&address, port), ACK).frame();
    let passed = pass(&mut direct, 1, Direction::Outward, &answer);
    assert_eq!((passed.bytes, passed.edits), (answer, Edits::default()));
}

#[test]
fn sessions_outlive_servers_that_go_or_drain() {
    const CLIENTS: u32 = 2000;
    let mut balance = Balance::new(config(10), 1).unwrap();
    let before: Vec<_> = (0..CLIENTS)
        .map(|number| server_of(&mut balance, 0, number, SYN))
        .collect();
    let mut servers: Vec<Server> = (1..10).map(server).collect();
    servers[0].is_draining = true;
    balance.set_servers(servers).unwrap();
    let gone = server(10).end.0;
    for number in 0..CLIENTS {
        let (was, is) = (
            before[number as usize],
            server_of(&mut balance, 1, number, ACK),
        );
        assert_eq!(is == was, was != gone, "{was} {is}");
    }
    for number in CLIENTS..2 * CLIENTS {
        let new = server_of(&mut balance, 1, number, SYN);
        assert!(new != gone && new != server(1).end.0, "{new}");
    }
}

/// LVS takes a session for established by the client's ACK alone, too.
#[test]
fn a_session_lives_by_what_the_client_sends() {
    let mut balance = Balance::new(config(2), 1).unwrap();
    let (idle, closing) = (300, 60);
    for (begins, then, life) in [
        (vec![SYN], SYN, closing),
        (vec![SYN], ACK, idle),
        // After a restart of the balancer: one packet, perhaps of a made-up client, is not enough.
        (vec![], ACK, closing),
        (vec![ACK], ACK, idle),
        (vec![SYN, ACK], ACK | 1, closing),
        (vec![SYN, ACK], 4, closing),
        (vec![SYN, ACK, ACK | 1], ACK, closing),
    ] {
        let what = format!("{begins:?} {then}");
        for flags in begins {
            server_of(&mut balance, 0, 1, flags);
        }
        server_of(&mut balance, 0, 1, then);
        let mut output = Output::default();
        balance.poll(life * SECOND - 1, &mut output);
        let mut sessions = 0;
        balance.counters(&mut |name, value| {
            if name == "sessions" {
                sessions = value;
            }
        });
        assert_eq!(sessions, 1, "{what}");
        balance.poll(life * SECOND, &mut output);
        assert_eq!(balance.next_deadline(), None, "{what}");
        while balance.withdrawn().is_some() {}
    }
}

/// The entry has the next hop, and ends with the session.
#[test]
fn an_established_session_makes_an_entry() {
    let stage = Balance::new(config(3), 1).unwrap();
    let mut chain = Chain::new(vec![(Box::new(stage), None)], 1).unwrap();
    let mut through = |flags| {
        let mut frame = segment(5, flags);
        let mut batch = Batch::new(vec![Packet::new(&mut frame)]);
        chain.run(0, Direction::Inward, &mut batch);
        let packet = batch.into_packets().remove(0);
        let entry = chain.compose(packet.trace(), Direction::Inward);
        (entry, chain.withdrawn())
    };
    assert!(through(SYN).0.is_none());
    assert!(through(ACK).0.is_none(), "a flow of two packets");
    let entry = through(ACK).0.expect("an entry");
    assert!(entry.edits.next_hop.is_some() && !entry.translates() && !entry.is_plain());
    let (none, withdrawn) = through(ACK | 1);
    assert_eq!((none, withdrawn), (None, Some((0, entry.cookies[0]))));
}

/// About the answer of the service to a client: IP header, and 8 bytes.
fn quote(source: (&str, u16), protocol: u8) -> Vec<u8> {
    let spec = Spec {
        protocol: Protocol(protocol),
        ..Spec::tcp(source, CLIENT, ACK)
    };
    spec.frame()[14..42].to_vec()
}

#[test]
fn icmp_errors_go_to_the_server_that_they_are_about() {
    let mut balance = Balance::new(config(10), 1).unwrap();
    let needed = |quoted: &[u8]| icmp("203.0.113.9", SERVICE.0, 3, 4, 1400, quoted);
    let about_it = needed(&quote(SERVICE, 6));
    assert_eq!(way(&mut balance, 0, &about_it), None, "no session yet");
    let frame = Spec::tcp(CLIENT, SERVICE, SYN).frame();
    let server = way(&mut balance, 0, &frame);
    assert!(server.is_some());
    assert_eq!(way(&mut balance, 0, &about_it), server);
    let passed = pass(&mut balance, 0, Direction::Inward, &about_it);
    assert!(!passed.is_cacheable);
    let mut damaged = about_it.clone();
    damaged[50] ^= 1;
    for other in [
        damaged,
        needed(&quote((SERVICE.0, 81), 6)),
        needed(&quote(SERVICE, 17)),
        needed(&quote(SERVICE, 6)[..24]),
        icmp("203.0.113.9", SERVICE.0, 8, 0, 7, &quote(SERVICE, 6)),
        icmp("203.0.113.9", "192.0.2.2", 3, 4, 0, &quote(SERVICE, 6)),
    ] {
        assert_eq!(way(&mut balance, 0, &other), None, "{other:02x?}");
    }
}

/// A frame as a fragment, with this field of flags and offset.
fn fragment(frame: &[u8], field: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    write(&mut frame, 20, &field.to_be_bytes());
    write(&mut frame, 24, &[0, 0]);
    let sum = checksum::internet_checksum(&frame[14..34]);
    write(&mut frame, 24, &sum.to_be_bytes());
    frame
}

#[test]
fn fragments_follow_the_first_of_their_packet() {
    let udp = BalanceConfig {
        protocol: Protocol::UDP,
        ..config(10)
    };
    let mut balance = Balance::new(udp, 1).unwrap();
    let whole = Spec::udp(CLIENT, SERVICE).frame();
    let (first, second) = (fragment(&whole, 0x2000), fragment(&whole, 0x0002));
    let early = pass(&mut balance, 0, Direction::Inward, &second);
    // Perhaps of another balancer's service at this address; else the router drops it.
    assert_eq!((early.edits.next_hop, early.fate), (None, Fate::Pass));
    let server = way(&mut balance, 0, &whole);
    assert!(server.is_some());
    for _ in 0..5 {
        for part in [&first, &second] {
            let passed = pass(&mut balance, 0, Direction::Inward, part);
            assert_eq!((passed.edits.next_hop, passed.fate), (server, Fate::Pass));
            assert!(!passed.is_cacheable);
        }
    }
    // Of another port, of which no first fragment is known here.
    let other = fragment(&Spec::udp(CLIENT, (SERVICE.0, 81)).frame(), 0x2000);
    assert_eq!(way(&mut balance, 0, &other), None);
    // What is cut short, and a wrong header.
    let mut wrong = first;
    wrong[22] ^= 1;
    let passed = pass(&mut balance, 0, Direction::Inward, &wrong);
    assert_eq!(passed.fate, Fate::Drop("malformed"));
}

#[test]
fn a_packet_with_ip_options_finds_its_server() {
    let mut balance = Balance::new(config(10), 1).unwrap();
    let plain = Spec::tcp(CLIENT, SERVICE, ACK).frame();
    let mut frame = plain[..34].to_vec();
    frame.extend_from_slice(&[1, 1, 1, 0]);
    frame.extend_from_slice(&plain[34..]);
    frame[14] = 0x46;
    let len = (frame.len() - 14) as u16;
    write(&mut frame, 16, &len.to_be_bytes());
    write(&mut frame, 24, &[0, 0]);
    let sum = checksum::internet_checksum(&frame[14..38]);
    write(&mut frame, 24, &sum.to_be_bytes());
    let server = way(&mut balance, 0, &plain);
    assert!(server.is_some());
    assert_eq!(way(&mut balance, 0, &frame), server);
}

/// Servers have the service's address themselves, so that probes come from another one.
#[test]
fn probes_come_from_the_boxs_own_address() {
    let probed = BalanceConfig {
        probe: SECOND,
        ..config(2)
    };
    let mut balance = Balance::new(probed, 1).unwrap();
    let (dead, alive) = (server(1).end.0, server(2).end.0);
    let own = OWN.to_string();
    for round in 0..10 {
        let mut output = Output::default();
        balance.poll(round * 2 * SECOND, &mut output);
        for sent in output.take() {
            let SentFrame::Made(frame) = sent.frame else {
                panic!("{sent:?}");
            };
            assert!(checksums_are_right(&frame));
            assert_eq!(frame[26..30], OWN.octets());
            let to: [u8; 4] = frame[30..34].try_into().unwrap();
            let to = Ipv4Addr::from(to);
            assert_eq!((read_u16(&frame, 34), read_u16(&frame, 36)), (1023, 80));
            if to == dead || frame[47] & SYN == 0 {
                continue;
            }
            let mut back = Spec::tcp((&to.to_string(), SERVICE.1), (&own, 1023), SYN | ACK).frame();
            let ack = read_u32(&frame, 38).wrapping_add(1);
            write(&mut back, 42, &ack.to_be_bytes());
            assert!(balance.turns(&Endpoints::of(&back).unwrap()));
            // From the servers' link or, if that is the clients', from there.
            let direction = match round % 2 {
                0 => Direction::Inward,
                _ => Direction::Outward,
            };
            let taken = pass(&mut balance, round * 2 * SECOND, direction, &back);
            assert_eq!(taken.fate, Fate::Taken);
        }
    }
    for number in 0..100 {
        let server = server_of(&mut balance, 20 * SECOND, number, SYN);
        assert_eq!(server, alive, "the other one is down");
    }
    let to_service = Spec::tcp(CLIENT, (SERVICE.0, 1023), SYN).frame();
    assert!(!balance.turns(&Endpoints::of(&to_service).unwrap()));
}

#[test]
fn servers_that_cannot_answer_directly_are_refused() {
    let mut balance = Balance::new(config(2), 1).unwrap();
    let at = |address: [u8; 4], port| Server {
        end: (address.into(), port),
        ..server(1)
    };
    for (wrong, why) in [
        (
            at([10, 0, 0, 1], 8080),
            "10.0.0.1:8080: direct_return changes no ports",
        ),
        (
            at([10, 0, 1, 1], 80),
            "10.0.1.1:80: direct_return needs it in the network of a link",
        ),
        // There the box has the service's address alone.
        (at([192, 0, 2, 9], 80), "another address than the service's"),
        (at([10, 0, 0, 254], 80), "an address of this host itself"),
    ] {
        let error = balance.set_servers(vec![server(1), wrong]).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        let wrong = BalanceConfig {
            servers: vec![wrong],
            ..config(1)
        };
        assert!(Balance::new(wrong.clone(), 1).is_err());
        // Without direct return all but one port are good.
        let translating = BalanceConfig {
            direct_return: None,
            ..wrong
        };
        assert!(Balance::new(translating, 1).is_ok(), "{why}");
    }
    // A network that is not known has every server.
    let unknown = BalanceConfig {
        direct_return: Some(vec![network(Ipv4Addr::UNSPECIFIED, 0)]),
        ..config(3)
    };
    assert!(Balance::new(unknown, 1).is_ok());
}
