//! Open ports: the sizes of their rings under a grant, and their filters in a list.

use weir_broker::Bytes;
use weir_broker::compile::Source;
use weir_broker::engine::mem::MemBackend;
use weir_broker::engine::{Engine, Owner};
use weir_broker::policy::{Accounts, PeerCred, Policy};
use weir_broker::protocol::{ErrorKind, OpenPort, Refusal, Response};
use weir_filter::lang::Language;

fn engine(grant: &str) -> Engine<MemBackend> {
    let fabric = MemBackend::new();
    fabric.add("eth0");
    let text =
        format!("[[grant]]\nusers = [1001, 1002]\ninterfaces = ['eth0']\nports_max = 8\n{grant}");
    Engine::new(fabric, Policy::parse(&text, &Accounts::default()).unwrap())
}

fn owner(uid: u32) -> Owner {
    let who = PeerCred {
        uid,
        gids: [uid].into(),
        pid: 1,
        is_superuser: uid == 0,
    };
    let connection = u64::from(uid);
    Owner { connection, who }
}

/// A port with a ring of this size, or of at least `least`.
fn asked(ring: u64, least: Option<u64>) -> OpenPort {
    OpenPort {
        ring_min: least.map(Bytes),
        ..OpenPort::copies("eth0", Source::expr("udp"), Bytes(ring))
    }
}

/// The size of the ring of a port that is opened.
fn opened(engine: &mut Engine<MemBackend>, uid: u32, asked: OpenPort) -> Result<u64, Refusal> {
    engine.open(owner(uid), asked)?;
    let mut finished = engine.poll_finished();
    assert_eq!(finished.len(), 1);
    let (response, _) = finished.remove(0).result?;
    let Response::Opened(opened) = response else {
        panic!("{response:?}");
    };
    Ok(opened.ring.0)
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

#[test]
fn a_wish_gets_what_the_grant_has_room_for() {
    let mut engine = engine("memory_max = '1600 KiB'\n");
    // dumpcap's wish under a grant for less.
    let ring = opened(&mut engine, 1001, asked(2 * MIB, Some(4 * KIB)));
    assert_eq!(ring.unwrap(), MIB);
    // The rest, as a power of two.
    let ring = opened(&mut engine, 1001, asked(2 * MIB, Some(4 * KIB)));
    assert_eq!(ring.unwrap(), 512 * KIB);
    let ring = opened(&mut engine, 1001, asked(32 * KIB, Some(4 * KIB)));
    assert_eq!(ring.unwrap(), 32 * KIB, "there is room for it");
    let ring = opened(&mut engine, 1001, asked(2 * MIB, Some(64 * KIB)));
    let refusal = ring.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Denied);
    assert!(refusal.message.contains("a ring of 64 KiB"), "{refusal}");
    let ring = opened(&mut engine, 1002, asked(2 * MIB, Some(4 * KIB)));
    assert_eq!(ring.unwrap(), MIB, "another user has memory of their own");
    let ring = opened(&mut engine, 0, asked(2 * MIB, Some(4 * KIB)));
    assert_eq!(ring.unwrap(), 2 * MIB, "the superuser needs no grant");
}

#[test]
fn a_size_that_is_stated_is_kept_or_refused() {
    let mut engine = engine("memory_max = '1 MiB'\n");
    let refusal = opened(&mut engine, 1001, asked(2 * MIB, None)).unwrap_err();
    assert!(refusal.message.contains("a ring of 2 MiB"), "{refusal}");
    assert_eq!(opened(&mut engine, 1001, asked(MIB, None)).unwrap(), MIB);
}

#[test]
fn all_users_of_a_grant_together_leave_room_or_none() {
    let mut engine = engine("memory_max = '1 MiB'\nmemory_total = '1300 KiB'\n");
    let ring = opened(&mut engine, 1001, asked(MIB, Some(4 * KIB)));
    assert_eq!(ring.unwrap(), MIB);
    let ring = opened(&mut engine, 1002, asked(MIB, Some(4 * KIB)));
    assert_eq!(ring.unwrap(), 256 * KIB);
}

#[test]
fn odd_least_sizes_are_harmless() {
    let mut engine = engine("memory_max = '1 MiB'\n");
    for least in [0, 1, 5000, u64::MAX] {
        let ring = opened(&mut engine, 0, asked(64 * KIB, Some(least)));
        assert_eq!(ring.unwrap(), 64 * KIB);
        let ring = opened(&mut engine, 1001, asked(64 * KIB, Some(least)));
        assert_eq!(ring.unwrap(), 64 * KIB, "{least}");
    }
}

/// Rings of closed ports that are about to be given back make a queue no smaller: the request waits.
#[test]
fn rings_of_closed_ports_are_waited_for() {
    let mut engine = engine("memory_max = '1 MiB'\n");
    opened(&mut engine, 0, asked(64 * KIB, None)).expect("it keeps the interface in use");
    engine.open(owner(1001), asked(MIB, None)).unwrap();
    engine.close_all(1001);
    let refusal = engine.open(owner(1001), asked(MIB, Some(4 * KIB)));
    assert!(refusal.unwrap_err().passes);
    let _ = engine.poll_finished();
    let ring = opened(&mut engine, 1001, asked(MIB, Some(4 * KIB)));
    assert_eq!(ring.unwrap(), MIB);
}

#[test]
fn a_program_of_classic_bpf_is_shown_by_its_length() {
    let decimal = "4\n40 0 0 12\n21 0 1 2048\n6 0 0 65535\n6 0 0 0\n";
    let listing = "(000) ldh [12]\n\n(001) jeq #0x800 jt 2 jf 3\n(002) ret #65535\n(003) ret #0\n";
    for (language, text, expected) in [
        (Language::Expr, "udp port 53", "udp port 53"),
        (Language::Cbpf, decimal, "cbpf, 4 instructions"),
        (Language::Cbpf, listing, "cbpf, 4 instructions"),
        (Language::Cbpf, "1,6 0 0 1", "cbpf, 1 instruction"),
    ] {
        let mut engine = engine("memory_max = '1 MiB'\n");
        let mut port = asked(64 * KIB, None);
        port.filter = Source {
            text: text.to_owned(),
            language,
            ..Source::default()
        };
        opened(&mut engine, 0, port).unwrap();
        let shown: Vec<String> = engine.all_status().map(|port| port.filter).collect();
        assert_eq!(shown, [expected]);
    }
}
