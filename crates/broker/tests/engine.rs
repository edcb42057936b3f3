//! The engine over interfaces in memory, asked step by step.

use weir_broker::Bytes;
use weir_broker::compile::{Source, limits};
use weir_broker::engine::mem::MemFabric;
use weir_broker::engine::{Engine, Owner};
use weir_broker::policy::{Accounts, Policy, Who};
use weir_broker::protocol::{Attach, ErrorKind, OpenPort};

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
