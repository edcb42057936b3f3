//! The engine over interfaces in memory, asked step by step.

use weir_broker::Bytes;
use weir_broker::compile::Source;
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
    OpenPort {
        interface: "eth0".into(),
        filter: Source::expr("udp"),
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
