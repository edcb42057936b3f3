//! The engine over interfaces in memory, asked step by step.

use std::time::{Duration, Instant};
use weir_broker::Bytes;
use weir_broker::compile::{Source, limits};
use weir_broker::engine::mem::MemBackend;
use weir_broker::engine::{Engine, Owner};
use weir_broker::policy::{Accounts, PeerCred, Policy};
use weir_broker::protocol::{Attach, ErrorKind, OpenPort, Response};

const POLICY: &str = r#"
[[grant]]
users = [1001, 1002]
interfaces = ["eth0"]
ports_max = 4
memory_max = "256 KiB"
"#;

/// The connection of that number, of a user's.
fn owner(connection: u64, uid: u32) -> Owner {
    let gids = [uid].into();
    let who = PeerCred {
        uid,
        gids,
        pid: 1,
        is_superuser: uid == 0,
    };
    Owner { connection, who }
}

fn port() -> OpenPort {
    with("udp")
}

fn with(filter: &str) -> OpenPort {
    OpenPort::copies("eth0", Source::expr(filter), Bytes(64 << 10))
}

/// Rings are made while the broker does something else: a user who closes ports meanwhile gets no
/// more memory than granted.
#[test]
fn an_early_close_is_charged_until_its_ring_is_made() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let policy = Policy::parse(POLICY, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    engine.open(owner(1, 0), port()).expect("it stays open");
    let mut open = |connection, uid| {
        let opened = engine.open(owner(connection, uid), port());
        engine.close_all(connection);
        opened
    };
    // What is granted, and no more, however it is come by.
    for connection in 2..6 {
        open(connection, 1001).expect("there is memory");
    }
    let refusal = open(10, 1001).unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Denied);
    assert!(refusal.to_string().contains("256 KiB in use"), "{refusal}");
    assert!(refusal.passes, "they are about to be given back");
    open(11, 1002).expect("others have their own");
    // They are made, and given back.
    assert_eq!(engine.poll_finished().len(), 1);
    engine.open(owner(12, 1001), port()).expect("it is free");
}

/// Terms of enough ways for the kernel's verifier to take seconds to minutes:
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
fn no_user_keeps_the_verifier_for_long() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let policy = Policy::parse(POLICY, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    for filter in [terms(12, 3), terms(20, 3), terms(60, 12), ranges(40)] {
        let refusal = engine.open(owner(1, 1001), with(&filter)).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::Filter, "{filter}");
        let mut alone = Engine::alone(engine.fabric().clone());
        let opened = alone.open(owner(1, 0), with(&filter));
        opened.expect("root may, by itself");
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
        let _ = engine.poll_finished();
        engine.close_all(1);
    }
    // All of a user's together.
    let asked = || with(&ranges(20));
    for _ in 0..3 {
        engine
            .open(owner(2, 1001), asked())
            .expect("it is one of three");
    }
    let _ = engine.poll_finished();
    let refusal = engine.open(owner(2, 1001), asked()).unwrap_err();
    assert!(refusal.to_string().contains("other ports"), "{refusal}");
    engine
        .open(owner(3, 1002), asked())
        .expect("another user's");
    let last = engine.open(owner(2, 1001), port()).expect("tables hold it");
    let _ = engine.poll_finished();
    let mut change = |filter: &str| {
        let source = Source::expr(filter);
        engine.set_filter(&owner(2, 1001), last, source)
    };
    assert_eq!(change(&ranges(20)).unwrap_err().kind, ErrorKind::Limit);
    change(&ranges(5)).expect("there is room for it");
}

/// The filter `ether[ether[…0…]] = value`, with this many loads at computed offsets.
fn nested(loads: usize, value: u8) -> String {
    let (open, close) = ("ether[".repeat(loads + 1), "]".repeat(loads + 1));
    format!("{open}0{close} = {value}")
}

/// The verifier goes through the load routine with each load at a computed offset.
#[test]
fn nested_loads_are_counted() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let roomy = POLICY.replace("= 4", "= 400").replace("256 KiB", "64 MiB");
    let policy = Policy::parse(&roomy, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    for uid in [1001, 0] {
        for loads in [65, 799, 1000] {
            let asked = with(&nested(loads, 5));
            let refusal = engine.open(owner(1, uid), asked).unwrap_err();
            assert_eq!(refusal.kind, ErrorKind::Filter, "{refusal}");
            let figures = format!("{loads} computed offsets");
            assert!(refusal.message.contains(&figures), "{refusal}");
            assert!(refusal.message.contains("at most 64"), "{refusal}");
        }
    }
    let mut opened = 0;
    let refusal = loop {
        match engine.open(owner(1, 1001), with(&nested(20, opened))) {
            Ok(_) => opened += 1,
            Err(refusal) => break refusal,
        }
        let _ = engine.poll_finished();
    };
    assert_eq!(refusal.kind, ErrorKind::Limit, "{refusal}");
    assert!((1..4).contains(&opened), "{opened} filters of 20 loads");
    let asked = with(&nested(64, 9));
    engine.open(owner(2, 0), asked).expect("root's reserve");
    let _ = engine.poll_finished();
    (1..3).for_each(|connection| engine.close_all(connection));
    // Ordinary filters have a few.
    for filter in [
        "ip6 protochain 6 or ip6 protochain 17",
        "tcp[tcp[12] >> 2 : 4] = 0x47455420 and not vlan and udp[ip[0] & 15] = 1",
    ] {
        let opened = engine.open(owner(3, 0), with(filter));
        opened.unwrap_or_else(|refusal| panic!("{filter}: {refusal}"));
    }
}

/// A filter with this many loads at computed offsets, each on a path of its own.
fn disjoint(loads: usize, value: usize) -> String {
    let arm = |at: usize| {
        let (offset, different) = (40 + at, at + value);
        format!(
            "(ether[14:2] = {different} and ether[ether[{offset}]] = 1 and ether[6] != ether[7])"
        )
    };
    let arms: Vec<String> = (0..loads).map(arm).collect();
    // More different values than a table's tests may have.
    let others: Vec<String> = (20..26)
        .map(|at| format!("ether[{at}] < ether[{}]", at + 10))
        .collect();
    format!("({}) and {}", arms.join(" or "), others.join(" and "))
}

/// The verifier goes through the load routine for each load, on whichever path.
#[test]
fn loads_on_different_paths_are_counted() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let roomy = POLICY.replace("= 4", "= 400").replace("256 KiB", "64 MiB");
    let policy = Policy::parse(&roomy, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    for uid in [1001, 0] {
        let asked = with(&disjoint(200, 0));
        let refusal = engine.open(owner(1, uid), asked).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::Filter, "{refusal}");
        let figures = "200 computed offsets in all";
        assert!(refusal.message.contains(figures), "{refusal}");
        assert!(refusal.message.contains("at most 96"), "{refusal}");
    }
    let asked = with(&disjoint(60, 0));
    engine.open(owner(1, 1001), asked).expect("a few");
    let _ = engine.poll_finished();
    let asked = with(&disjoint(90, 1));
    let refusal = engine.open(owner(1, 1001), asked).unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Limit, "{refusal}");
}

/// Nested loads count in filters whose shape a table could hold, too.
#[test]
fn nested_loads_of_tables_are_counted() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let roomy = POLICY.replace("= 4", "= 400").replace("256 KiB", "64 MiB");
    let policy = Policy::parse(&roomy, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    let mut fill = |connection, loads| {
        for value in 0..8 {
            let asked = with(&nested(loads, value));
            if let Err(refusal) = engine.open(owner(connection, 1001), asked) {
                assert_eq!(refusal.kind, ErrorKind::Limit, "{refusal}");
                return usize::from(value);
            }
            let _ = engine.poll_finished();
        }
        8
    };
    assert!((1..4).contains(&fill(1, 14)), "14 nested loads are many");
    assert_eq!(fill(1, 4), 8, "tables hold a few");
}

/// Filters of few ways that no table can hold: the kernel's verifier keeps so
/// many conditional jumps pending, and a plan has room for that many filters.
#[test]
fn users_leave_room_for_the_superusers_long_and_many_filters() {
    let roomy = POLICY.replace("= 4", "= 400").replace("256 KiB", "64 MiB");
    let roomy = roomy.replace("[1001, 1002]", "[1001, 1002, 1003, 1004]");
    let policy = Policy::parse(&roomy, &Accounts::default()).unwrap();
    let long: Vec<String> = (0..600).map(|at| format!("udp port {at}")).collect();
    let long = Source::expr(&long.join(" or "));
    // The verdict is what it loads.
    let tiny = Source {
        text: "2\n32 0 0 0\n22 0 0 0\n".into(),
        language: weir_filter::lang::Language::Cbpf,
        ..Source::default()
    };
    // All users together, of one grant.
    for (source, most) in [(long, 3), (tiny, 192)] {
        let asked = || OpenPort {
            filter: source.clone(),
            ..port()
        };
        let fabric = MemBackend::new();
        fabric.add("eth0");
        let mut engine = Engine::new(fabric, policy.clone());
        let mut opened = 0;
        for uid in 1001..1005 {
            let refusal = loop {
                match engine.open(owner(uid.into(), uid), asked()) {
                    Ok(_) => opened += 1,
                    Err(refusal) => break refusal,
                }
                let _ = engine.poll_finished();
                assert!(opened <= most, "{opened}");
            };
            assert_eq!(refusal.kind, ErrorKind::Limit, "{refusal}");
        }
        assert!(opened * 3 > most, "only {opened}");
        engine.open(owner(1, 0), asked()).expect("the superuser");
    }
}

/// The room for subtables that one user's filters leave is for all users.
#[test]
fn no_user_has_all_subtables() {
    let fabric = MemBackend::new();
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
        let _ = engine.poll_finished();
        assert!(opened.len() <= limits::SUBTABLES_MAX, "never refused");
    };
    assert_eq!(refusal.kind, ErrorKind::Limit, "{refusal}");
    assert!(opened.len() > limits::SUBTABLES_MAX / 2, "{}", opened.len());
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
fn the_shipped_policy_hides_no_frame_from_copying_ports() {
    let shipped = include_str!("../../../examples/policy.toml");
    let policy = Policy::parse(shipped, &Accounts::default()).unwrap();
    let fabric = MemBackend::new();
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
        who: PeerCred {
            uid,
            gids: [gid].into(),
            pid: 1,
            is_superuser: uid == 0,
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
        let finished = engine.poll_finished().pop().expect("it is ready");
        let Ok((Response::Opened(opened), _)) = finished.result else {
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

/// One user of a shared host may have 65,536 numbers.
#[test]
fn many_users_have_no_more_than_their_grant_together() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let text = "[[grant]]\nusers = ['*']\ninterfaces = ['eth0']\nports_max = 2\nports_total = 10\n\
                memory_max = '128 KiB'\nmemory_total = '1 MiB'\n";
    let policy = Policy::parse(text, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    let ring = |kib: u64| OpenPort {
        ring: Bytes(kib << 10),
        ..port()
    };
    for uid in 0..10 {
        let opened = engine.open(owner(uid, 100_000 + uid as u32), ring(4));
        opened.expect("one of ten");
    }
    let refusal = engine.open(owner(10, 100_010), ring(4)).unwrap_err();
    assert!(refusal.message.contains("all users"), "{refusal}");
    assert!(!refusal.passes, "others have them open");
    engine
        .open(owner(11, 0), ring(4))
        .expect("root has no share");
    for uid in 0..10 {
        engine.close_all(uid);
    }
    // Memory of ports that are closed before it is made counts, too.
    let _ = engine.poll_finished();
    for uid in 0..8 {
        let opened = engine.open(owner(uid, 200_000 + uid as u32), ring(128));
        opened.expect("one of eight");
        engine.close_all(uid);
    }
    let refusal = engine.open(owner(8, 200_008), ring(128)).unwrap_err();
    assert!(refusal.message.contains("1 MiB in use"), "{refusal}");
    assert!(refusal.passes, "{refusal}");
    let _ = engine.poll_finished();
    let opened = engine.open(owner(8, 200_008), ring(128));
    opened.expect("it was given back");
}

/// A shape each: which bits of which byte are compared.
fn shape(at: usize) -> String {
    format!("ip[{}] & {} = {}", at / 32, at % 32 + 1, at % 32 + 1)
}

#[test]
fn users_leave_shapes_and_verifier_steps_to_root() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let limits = "interfaces = ['eth0']\nports_max = 64\nports_total = 2000\n\
                  memory_max = '64 MiB'\nmemory_total = '1 GiB'\n";
    let few: Vec<u32> = (1000..1010).collect();
    let text = &format!("[[grant]]\nusers = {few:?}\n{limits}[[grant]]\nusers = ['*']\n{limits}");
    let policy = Policy::parse(text, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    // Before all: an interface with a port of root's, in place of claims.
    engine.open(owner(1, 0), with("arp")).unwrap();
    let mut opened = 0;
    // Until it is refused, by users with numbers from the first on.
    let mut fill = |first: u32| loop {
        let uid = first + opened / 40;
        let asked = with(&shape(opened as usize));
        match engine.open(owner(u64::from(uid), uid), asked) {
            Ok(_) => opened += 1,
            Err(refusal) => break (opened, refusal),
        }
        let _ = engine.poll_finished();
        assert!(opened < 1000, "never refused");
    };
    let (of_grant, refusal) = fill(1000);
    assert!(refusal.message.contains("of this grant"), "{refusal}");
    assert_eq!(of_grant as usize, limits::GRANT_SUBTABLES_MAX);
    let (opened, refusal) = fill(2000);
    assert_eq!(refusal.kind, ErrorKind::Limit, "{refusal}");
    assert!(refusal.message.contains("of all users"), "{refusal}");
    assert_eq!(opened as usize, limits::USERS_SUBTABLES_MAX);
    // Of another user it is refused as well, and not of root.
    let next = with(&shape(opened as usize));
    assert!(engine.open(owner(5, 99), next.clone()).is_err());
    engine.open(owner(1, 0), next).expect("root may");

    let heavy = || with(&ranges(20));
    let mut engine = {
        let fabric = MemBackend::new();
        fabric.add("eth0");
        let policy = Policy::parse(text, &Accounts::default()).unwrap();
        Engine::new(fabric, policy)
    };
    let mut heavies = 0u32;
    let mut fill = |first: u32| loop {
        let uid = first + heavies / 2;
        match engine.open(owner(u64::from(uid), uid), heavy()) {
            Ok(_) => heavies += 1,
            Err(refusal) => break (heavies, refusal),
        }
        let _ = engine.poll_finished();
        assert!(heavies < 100, "never refused");
    };
    let (of_grant, refusal) = fill(1000);
    assert!(refusal.message.contains("of this grant"), "{refusal}");
    let (all, refusal) = fill(2000);
    assert!(all > of_grant, "another grant's");
    assert!(refusal.message.contains("other users' ports"), "{refusal}");
    for _ in 0..3 {
        engine.open(owner(1, 0), heavy()).expect("root's reserve");
        let _ = engine.poll_finished();
    }
    // But root's requests do not let all users wait for ever either.
    let refusals = (0..20).filter(|_| engine.open(owner(1, 0), heavy()).is_err());
    assert!(refusals.count() > 10);
}

const TWO: &str = "[[grant]]\nusers = [1001]\ninterfaces = ['eth0']\nports_max = 8\ntake = true\n\
                   [[grant]]\nusers = [1002]\ninterfaces = ['eth0']\nports_max = 8\n";

fn udp(dst_port: u16) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12] = 0x08;
    frame[14] = 0x45;
    frame[23] = 17;
    frame[36..38].copy_from_slice(&dst_port.to_be_bytes());
    frame
}

#[test]
fn another_policy_holds_for_ports_that_are_open() {
    let fabric = MemBackend::new();
    let eth = fabric.add("eth0");
    let parse = |text: &str| Policy::parse(text, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric.clone(), parse(TWO));
    let taker = OpenPort {
        take: true,
        ..with("udp")
    };
    let first = engine.open(owner(1, 1001), taker).unwrap();
    let second = engine.open(owner(2, 1002), with("udp")).unwrap();
    let third = engine.open(owner(2, 1002), with("tcp")).unwrap();
    let roots = engine.open(owner(3, 0), with("udp")).unwrap();
    let _ = engine.poll_finished();
    assert!(!fabric.send(eth, &udp(5000)), "taken");
    // Opened as it is reloaded: its answer is the refusal.
    let late = engine.open(owner(1, 1001), with("udp")).unwrap();
    // No taking for the first, a filter and one port for the second, and a
    // claim.
    let text = TWO.replace("take = true", "take = false").replace(
        "users = [1002]\ninterfaces = ['eth0']\nports_max = 8",
        "users = [1002]\ninterfaces = ['eth0']\nports_max = 1\nfilter = 'udp port 53'",
    ) + "[[host]]\ninterfaces = ['*']\nfilter = 'udp port 7'\n";
    let strict = text.replace("users = [1001]", "users = [1003]");
    let (reloaded, events) = engine
        .reload(parse(&strict), &Accounts::default(), || ())
        .unwrap();
    assert_eq!((reloaded.kept, reloaded.ended), (2, 3));
    let told: Vec<_> = events.iter().map(|(who, port, _)| (*who, *port)).collect();
    assert_eq!(told, [(1, first), (2, third), (1, late)]);
    let refused = engine.poll_finished();
    let refused = refused.iter().find(|one| one.port == late).unwrap();
    assert_eq!(refused.result.as_ref().unwrap_err().kind, ErrorKind::Denied);
    assert!(fabric.send(eth, &udp(5000)), "no longer taken");
    assert!(fabric.send(eth, &udp(53)));
    let delivered = |port| engine.counted(port).unwrap().delivered;
    // Each has seen the first frame, too.
    let seen = (delivered(second), delivered(roots));
    assert_eq!(seen, (2, 3), "only one of the last two by its filter");
    // And back: the port that is left sees all again, without having asked.
    let (reloaded, events) = engine
        .reload(parse(TWO), &Accounts::default(), || ())
        .unwrap();
    assert_eq!((reloaded.kept, reloaded.ended, events.len()), (2, 0, 0));
    fabric.send(eth, &udp(5000));
    assert_eq!(engine.counted(second).unwrap().delivered, 3);
    // The claims of before are gone: only the ports' bindings are left.
    assert_eq!(fabric.in_use(eth), (2, 2));
}

#[test]
fn what_a_revoked_port_leaves_counts_for_the_grant_of_now() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let parse = |text: &str| Policy::parse(text, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, parse(TWO));
    let wide = |take| OpenPort {
        take,
        ring: Bytes(1 << 20),
        ..with("udp")
    };
    engine
        .open(owner(9, 0), with("udp"))
        .expect("it stays open");
    engine.open(owner(1, 1001), wide(true)).unwrap();
    let less = TWO.replace("take = true", "take = false");
    let (reloaded, _) = engine
        .reload(parse(&less), &Accounts::default(), || ())
        .unwrap();
    assert_eq!((reloaded.kept, reloaded.ended), (1, 1));
    // Its ring is still being made.
    let refusal = engine.open(owner(1, 1001), wide(false)).unwrap_err();
    assert!(refusal.passes, "{refusal}");
    let _ = engine.poll_finished();
    let opened = engine.open(owner(1, 1001), wide(false));
    opened.expect("it was given back");
}

#[test]
fn claims_that_do_not_change_stay_before_ports_of_equal_priority() {
    let fabric = MemBackend::new();
    let eth = fabric.add("eth0");
    let claim =
        |port| format!("[[host]]\ninterfaces = ['*']\npriority = 9\nfilter = 'udp port {port}'\n");
    let parse = |text: &str| Policy::parse(text, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric.clone(), parse(&claim(7)));
    let taker = OpenPort {
        take: true,
        priority: 9,
        ..with("udp")
    };
    engine.open(owner(1, 0), taker).unwrap();
    let _ = engine.poll_finished();
    for text in [claim(7), claim(8) + &claim(7), claim(7)] {
        assert!(fabric.send(eth, &udp(7)), "the host's");
        assert!(!fabric.send(eth, &udp(9)), "taken");
        engine
            .reload(parse(&text), &Accounts::default(), || ())
            .unwrap();
    }
    assert!(fabric.send(eth, &udp(7)), "the host's");
    assert_eq!(fabric.in_use(eth), (1, 2));
}

#[test]
fn rings_of_closed_ports_are_bounded() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let policy = Policy::parse(POLICY, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric.clone(), policy);
    fabric.hold_rings(true);
    let small = || OpenPort {
        ring: Bytes(4 << 10),
        ..port()
    };
    let mut open = || {
        let port = engine.open(owner(1, 1001), small())?;
        let _ = engine.poll_finished();
        engine.close(&owner(1, 1001), port)
    };
    for _ in 0..16 {
        open().expect("four of each of four ports");
    }
    let refusal = open().unwrap_err();
    assert!(
        refusal.passes && refusal.message.contains("16 rings"),
        "{refusal}"
    );
    fabric.hold_rings(false);
    open().expect("they are gone");
}

#[test]
fn a_reload_changes_all_ports_at_once() {
    let fabric = MemBackend::new();
    let eth = fabric.add("eth0");
    let policy = |filter: &str| {
        let text = format!(
            "[[grant]]\nusers = [1001]\ninterfaces = ['eth0']\nports_max = 20\n\
             memory_max = '2 MiB'\nfilter = '{filter}'\n"
        );
        Policy::parse(&text, &Accounts::default()).unwrap()
    };
    let mut engine = Engine::new(fabric.clone(), policy(""));
    for _ in 0..20 {
        engine.open(owner(1, 1001), with("udp")).unwrap();
        let _ = engine.poll_finished();
    }
    let roots = engine.open(owner(2, 0), with("udp")).unwrap();
    let _ = engine.poll_finished();
    let (before, mut signs) = (fabric.loads(), 0);
    let accounts = Accounts::default();
    let (reloaded, _) = engine
        .reload(policy("udp port 53"), &accounts, || signs += 1)
        .unwrap();
    assert_eq!((reloaded.kept, reloaded.ended), (21, 0));
    assert_eq!(fabric.loads() - before, 1);
    assert!(signs > 20, "{signs} signs of life");
    // Where that cannot be, no port stays behind its filter of before.
    fabric.refuse_commits(true);
    let (reloaded, events) = engine
        .reload(policy("udp port 67"), &accounts, || ())
        .unwrap();
    assert_eq!((reloaded.kept, reloaded.ended, events.len()), (1, 20, 20));
    assert!(engine.counted(roots).is_some());
    assert_eq!(fabric.in_use(eth), (1, 1));
}

#[test]
fn a_lost_membership_ends_a_port_with_the_next_policy() {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    const PASSWD: &str = "bob:x:1001:1001::/:/bin/sh\n";
    let text = "[[grant]]\ngroups = ['lab']\ninterfaces = ['eth0']\n";
    let with = Accounts::parse(PASSWD, "lab:x:110:bob\n");
    let without = Accounts::parse(PASSWD, "lab:x:110:\n");
    let policy = |accounts| Policy::parse(text, accounts).unwrap();
    let mut engine = Engine::new(fabric, policy(&with));
    let bob = Owner {
        connection: 1,
        who: PeerCred {
            uid: 1001,
            gids: [1001, 110].into(),
            ..PeerCred::default()
        },
    };
    engine.open(bob, port()).unwrap();
    let _ = engine.poll_finished();
    let (reloaded, _) = engine.reload(policy(&with), &with, || ()).unwrap();
    assert_eq!((reloaded.kept, reloaded.ended), (1, 0));
    let (reloaded, _) = engine.reload(policy(&without), &without, || ()).unwrap();
    assert_eq!((reloaded.kept, reloaded.ended), (0, 1));
}

#[test]
fn native_xdp_stays_for_a_while() {
    let fabric = MemBackend::new();
    let eth = fabric.add("eth0");
    let policy = "[[grant]]\nusers = [1001]\ninterfaces = ['eth0']\ntake = true\n";
    let policy = Policy::parse(policy, &Accounts::default()).unwrap();
    let mut engine = Engine::new(fabric, policy);
    let hold = Duration::from_secs(30);
    engine.hold_native(hold);
    let taker = || OpenPort {
        take: true,
        ..port()
    };
    let attached = |engine: &mut Engine<MemBackend>| {
        let status = engine.interface_status(&owner(1, 0), "eth0").unwrap();
        status.attach
    };
    let native = Some("xdp-native".to_owned());
    let copy = engine.open(owner(1, 0), port()).unwrap();
    assert_eq!(attached(&mut engine).as_deref(), Some("tc"));
    // Opened and closed again and again, it is attached once.
    for _ in 0..3 {
        let port = engine.open(owner(1, 0), taker()).unwrap();
        assert_eq!(
            (attached(&mut engine), engine.next_time()),
            (native.clone(), None)
        );
        engine.close(&owner(1, 0), port).unwrap();
        assert_eq!(attached(&mut engine), native);
    }
    let until = engine.next_time().expect("it ends some day");
    assert!(until <= Instant::now() + hold);
    // A user's port that wants tc does not end it earlier, and neither does the
    // last.
    let at_tc = OpenPort {
        attach: Attach::Tc,
        ..taker()
    };
    let port = engine.open(owner(2, 1001), at_tc.clone()).unwrap();
    engine.close(&owner(2, 1001), port).unwrap();
    engine.close(&owner(1, 0), copy).unwrap();
    assert_eq!(
        (attached(&mut engine), engine.next_time()),
        (native, Some(until))
    );
    engine.keep_time(until - Duration::from_secs(1));
    assert_eq!(engine.next_time(), Some(until));
    engine.keep_time(until);
    assert_eq!((attached(&mut engine), engine.next_time()), (None, None));
    // The superuser's does.
    for attach in [Attach::Tc, Attach::XdpGeneric] {
        let port = engine.open(owner(1, 0), taker()).unwrap();
        engine.close(&owner(1, 0), port).unwrap();
        assert!(engine.next_time().is_some());
        let stated = OpenPort {
            attach,
            ..at_tc.clone()
        };
        let port = engine.open(owner(1, 0), stated).unwrap();
        assert_eq!(attached(&mut engine), Some(attach.to_string()));
        engine.close(&owner(1, 0), port).unwrap();
        assert_eq!((attached(&mut engine), engine.next_time()), (None, None));
    }
    assert_eq!(engine.fabric().in_use(eth), (0, 0));
}
