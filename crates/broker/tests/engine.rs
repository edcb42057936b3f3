//! The engine over interfaces in memory, asked step by step.

use weir_broker::Bytes;
use weir_broker::compile::{Source, limits};
use weir_broker::engine::mem::MemFabric;
use weir_broker::engine::{Engine, Owner};
use weir_broker::policy::{Accounts, Policy, Who};
use weir_broker::protocol::{Answer, Attach, ErrorKind, OpenPort};

const POLICY: &str = r#"
[[grant]]
users = [1001, 1002]
interfaces = ["eth0"]
ports_max = 4
memory_max = "256 KiB"
"#;

/// The connection of that number, of a user's.
fn owner(connection: u64, uid: u32) -> Owner {
    let gids = vec![uid];
    let who = Who { uid, gids, pid: 1 };
    Owner { connection, who }
}

fn port() -> OpenPort {
    with("udp")
}

fn with(filter: &str) -> OpenPort {
    OpenPort {
        interface: "eth0".into(),
        filter: Source::expr(filter),
        priority: 0,
        take: false,
        send: false,
        ring: Bytes(64 << 10),
        snap_len: None,
        timestamps: false,
        tag: 0,
        attach: Attach::Auto,
        namespace: None,
    }
}

/// Rings are made while the broker does something else: whoever is gone by
/// then must not have more made than is theirs.
#[test]
fn who_goes_before_a_ring_is_made_has_its_memory_until_then() {
    let fabric = MemFabric::new();
    fabric.add("eth0");
    let policy = Policy::parse(POLICY, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    engine.open(owner(1, 0), port()).expect("it stays open");
    let mut open = |connection, uid| {
        let opened = engine.open(owner(connection, uid), port());
        engine.close_all(connection);
        opened
    };
    // Twice what is granted, and no more, however it is come by.
    for connection in 2..10 {
        open(connection, 1001).expect("there is memory");
    }
    let refusal = open(10, 1001).unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Denied);
    assert!(refusal.to_string().contains("512 KiB in use"), "{refusal}");
    open(11, 1002).expect("others have their own");
    // They are made, and given back.
    assert_eq!(engine.finished().len(), 1);
    engine.open(owner(12, 1001), port()).expect("it is free");
}

/// Terms of so many ways that the kernel's verifier takes seconds to minutes:
/// of fields that are tested more than once, each may be known or not.
fn terms(fields: usize, rounds: usize) -> String {
    let term = |at: usize, value: usize| format!("(ip[{}] = {value} and tcp[{at}] > 9)", 20 + at);
    let all = (0..rounds).flat_map(|value| (0..fields).map(move |at| term(at, value)));
    all.collect::<Vec<String>>().join(" or ")
}

fn ranges(count: usize) -> String {
    let range = |at| format!("portrange {}-{}", 10 * at, 10 * at + 5);
    (0..count).map(range).collect::<Vec<String>>().join(" or ")
}

#[test]
fn nobody_keeps_the_verifier_for_long() {
    let fabric = MemFabric::new();
    fabric.add("eth0");
    let policy = Policy::parse(POLICY, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    for filter in [terms(12, 3), terms(20, 3), terms(60, 12), ranges(40)] {
        let refusal = engine.open(owner(1, 1001), with(&filter)).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::Filter, "{filter}");
        engine.open(owner(1, 0), with(&filter)).expect("root may");
    }
    let hosts: Vec<String> = (0..200).map(|at| format!("host 10.0.{at}.1")).collect();
    for filter in [
        "ip[2:2] - ((ip[0] & 0xf) << 2) - ((tcp[12] & 0xf0) >> 2) != 0",
        "vlan 7 and (udp or ip6 protochain 17)",
        &format!("tcp and not ({})", hosts.join(" or ")),
        &ranges(20),
    ] {
        let opened = engine.open(owner(1, 1001), with(filter));
        opened.unwrap_or_else(|refusal| panic!("{filter}: {refusal}"));
        let _ = engine.finished();
        engine.close_all(1);
    }
    // All of a user's together.
    let asked = || with(&ranges(20));
    for _ in 0..3 {
        engine
            .open(owner(2, 1001), asked())
            .expect("it is one of three");
    }
    let _ = engine.finished();
    let refusal = engine.open(owner(2, 1001), asked()).unwrap_err();
    assert!(refusal.to_string().contains("other ports"), "{refusal}");
    engine
        .open(owner(3, 1002), asked())
        .expect("another user's");
    let last = engine.open(owner(2, 1001), port()).expect("tables hold it");
    let _ = engine.finished();
    let mut change = |filter: &str| {
        let source = Source::expr(filter);
        engine.set_filter(&owner(2, 1001), last, source)
    };
    assert_eq!(change(&ranges(20)).unwrap_err().kind, ErrorKind::Limit);
    change(&ranges(5)).expect("there is room for it");
}

/// What one user's filters leave of the room for shapes is everybody's.
#[test]
fn nobody_has_all_shapes() {
    let fabric = MemFabric::new();
    fabric.add("eth0");
    let roomy = POLICY.replace("= 4", "= 200").replace("256 KiB", "64 MiB");
    let policy = Policy::parse(&roomy, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    // A shape each: which bits of which byte are compared.
    let shape = |at: usize| format!("ip[{}] & {} = {}", at / 32, at % 32 + 1, at % 32 + 1);
    let mut opened = Vec::new();
    let refusal = loop {
        let filter = with(&shape(opened.len()));
        match engine.open(owner(1, 1001), filter) {
            Ok(port) => opened.push(port),
            Err(refusal) => break refusal,
        }
        let _ = engine.finished();
        assert!(opened.len() <= limits::SHAPES_MAX, "never refused");
    };
    assert_eq!(refusal.kind, ErrorKind::Limit, "{refusal}");
    assert!(opened.len() > limits::SHAPES_MAX / 2, "{}", opened.len());
    let known = with(&shape(3));
    engine
        .open(owner(1, 1001), known)
        .expect("its shape is there");
    let next = shape(opened.len());
    engine.open(owner(3, 1002), with(&next)).expect("another's");
    engine.open(owner(4, 0), with(&next)).expect("root may");
    let change = |engine: &mut Engine<_>, filter: &str| {
        engine.set_filter(&owner(1, 1001), opened[0], Source::expr(filter))
    };
    // Its own shape goes with the change.
    change(&mut engine, &next).expect("one for one");
    let more = shape(opened.len() + 1);
    let both = format!("({next}) or ({more})");
    assert_eq!(
        change(&mut engine, &both).unwrap_err().kind,
        ErrorKind::Limit
    );
}

/// An Ethernet frame of a type.
fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

/// An IPv4 frame of a protocol, between two transport ports.
fn ipv4(protocol: u8, src_port: u16, dst_port: u16) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x45;
    packet[9] = protocol;
    packet[20..22].copy_from_slice(&src_port.to_be_bytes());
    packet[22..24].copy_from_slice(&dst_port.to_be_bytes());
    ethernet(0x0800, &packet)
}

/// The shipped policy: what the host claims, only the superuser's ports may
/// take, and every port that copies gets what its filter accepts.
#[test]
fn the_shipped_policy_hides_no_frame_from_who_copies() {
    let shipped = include_str!("../../../examples/policy.toml");
    let policy = Policy::parse(shipped, &Accounts::default()).unwrap();
    let fabric = MemFabric::new();
    let eth = fabric.add("eth0");
    let mut engine = Engine::new(fabric.clone(), policy);
    let icmp6 = {
        let mut packet = vec![0; 48];
        (packet[0], packet[6]) = (0x60, 58);
        ethernet(0x86dd, &packet)
    };
    // Each frame, whether a claim covers it, and which of the filters below
    // accept it beside the one that accepts all.
    let frames = [
        ("arp", ethernet(0x0806, &[0; 28]), true, vec!["arp"]),
        ("icmp6", icmp6, true, vec![]),
        ("ssh", ipv4(6, 40_000, 22), true, vec!["tcp port 22"]),
        ("ssh back", ipv4(6, 22, 40_000), true, vec!["tcp port 22"]),
        ("dns", ipv4(17, 40_000, 53), true, vec!["udp port 53"]),
        ("dns, tcp", ipv4(6, 40_000, 53), true, vec![]),
        (
            "lab",
            ipv4(17, 9, 5000),
            false,
            vec!["udp portrange 5000-5999"],
        ),
        ("else", ipv4(17, 9, 9), false, vec![]),
    ];
    let user = |connection, uid, gid| Owner {
        connection,
        who: Who {
            uid,
            gids: vec![gid],
            pid: 1,
        },
    };
    let copies = [
        ("", user(1, 0, 0)),
        ("tcp port 22", user(2, 3000, 27)),
        ("udp port 53", user(3, 2000, 2000)),
        ("arp", user(4, 2001, 2001)),
        ("udp portrange 5000-5999", user(5, 1001, 1001)),
    ];
    let mut open = |filter: &str, owner: Owner, take: bool, priority: u16| {
        let asked = OpenPort {
            take,
            priority,
            ..with(filter)
        };
        engine.open(owner, asked).expect(filter);
        let finished = engine.finished().pop().expect("it is ready");
        let Ok((Answer::Opened(opened), _)) = finished.result else {
            panic!("{filter} is not opened");
        };
        opened.slot
    };
    let copies = copies.map(|(filter, owner)| (filter, open(filter, owner, false, 0)));
    // Above all copies and below the claims; the lab user's would take too.
    let operator = open("", user(6, 3000, 27), true, 5);
    let lab = open("udp", user(7, 1001, 1001), true, 10);
    let got = |slot| fabric.receive(eth, slot).is_some();
    for (name, frame, is_claimed, accepted) in frames {
        let to_host = fabric.send(eth, &frame);
        assert_eq!(to_host, is_claimed, "{name}");
        let is_labs = accepted.contains(&"udp portrange 5000-5999");
        assert_eq!(got(lab), is_labs, "the lab user takes {name}");
        let is_operators = !is_claimed && !is_labs;
        assert_eq!(got(operator), is_operators, "the operator takes {name}");
        for (filter, slot) in copies {
            let expected = is_claimed && (filter.is_empty() || accepted.contains(&filter));
            assert_eq!(got(slot), expected, "`{filter}` copies {name}");
        }
    }
}
