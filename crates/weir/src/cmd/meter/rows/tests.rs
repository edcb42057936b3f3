use super::*;
use weir_lab::testenv;
use weir_link::xdp::MeterSpec;
use weir_meter::services::Services;
use weir_meter::{SessionEventKind, SessionSource};

fn meter(subscribers: u32) -> Option<Meter> {
    if !testenv::root() {
        return None;
    }
    let services = Services::new(Vec::new());
    let spec = MeterSpec {
        subscribers,
        keys: 64,
        unknown: 0,
        services: &services,
        names: &weir_link::names::SystemNames::new(),
        counts_ip: false,
        polices: false,
        measures: &[],
        adopts: false,
    };
    Some(Meter::create(&spec).unwrap())
}

fn rows(capacity: usize) -> Rows {
    Rows::new(capacity, &KeyKind::ALL, 0, Policies::default(), 1)
}

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn event(up: bool, id: &str, keys: &[&str]) -> SessionEvent {
    let info = SessionInfo {
        id: id.to_owned(),
        subscriber: id.to_owned(),
        keys: keys.iter().map(|text| key(text)).collect(),
        ..SessionInfo::default()
    };
    SessionEvent {
        number: 0,
        received_unix_ns: 1,
        happened_unix_ns: None,
        source: SessionSource::Radius,
        lost: None,
        kind: if up {
            SessionEventKind::Up(info)
        } else {
            SessionEventKind::Down(info)
        },
    }
}

fn settle(rows: &mut Rows, meter: &mut Meter) {
    meter.settle();
    rows.release_ended(meter);
}

fn cut(rows: &mut Rows, meter: &mut Meter) {
    rows.note_cut();
    meter.cut().unwrap();
}

#[test]
fn a_row_is_free_when_the_cut_after_the_end_is_durable() {
    let Some(mut meter) = meter(2) else { return };
    let mut rows = rows(2);
    let alice = event(true, "alice", &["192.0.2.1"]);
    rows.apply(&mut meter, &alice).unwrap();
    cut(&mut rows, &mut meter);
    // The cut period cannot be stored yet; Alice's last frames are in the next.
    rows.apply(&mut meter, &event(false, "alice", &[])).unwrap();
    settle(&mut rows, &mut meter);
    rows.apply(&mut meter, &event(true, "bob", &["192.0.2.1"]))
        .unwrap();
    assert_eq!(meter.row_of(key("192.0.2.1")).unwrap(), Some(1));
    assert_eq!(rows.owner(0).subscriber, "alice");
    cut(&mut rows, &mut meter);
    // She comes back in between, and goes again.
    rows.apply(&mut meter, &alice).unwrap();
    rows.apply(&mut meter, &event(false, "alice", &[])).unwrap();
    settle(&mut rows, &mut meter);
    assert_eq!(rows.owner(0).subscriber, "alice");
    cut(&mut rows, &mut meter);
    settle(&mut rows, &mut meter);
    assert_eq!((rows.owner(0).kind, meter.tag(0)), (OwnerKind::Overflow, 0));
    rows.apply(&mut meter, &event(true, "carol", &["192.0.2.3"]))
        .unwrap();
    assert_eq!(rows.owner(0).subscriber, "carol");
}

#[test]
fn rows_that_a_process_left_are_free_after_the_first_cut_of_the_next() {
    let Some(mut meter) = meter(1) else { return };
    let mut first = rows(1);
    let alice = event(true, "alice", &["192.0.2.1"]);
    first.apply(&mut meter, &alice).unwrap();
    cut(&mut first, &mut meter);
    // Killed here; the log is lost.
    let mut next = rows(1);
    next.adopt(&meter);
    next.claim(&mut meter).unwrap();
    assert_eq!(meter.keys().unwrap(), []);
    settle(&mut next, &mut meter);
    let bob = event(true, "bob", &["192.0.2.1"]);
    assert!(next.apply(&mut meter, &bob).is_err());
    assert_eq!(meter.keys().unwrap(), []);
    cut(&mut next, &mut meter);
    settle(&mut next, &mut meter);
    // Entered as soon as there is room, without another event.
    assert_eq!(meter.row_of(key("192.0.2.1")).unwrap(), Some(0));
    assert_eq!(next.owner(0).subscriber, "bob");
}

#[test]
fn the_log_leaves_the_kernel_alone_until_it_is_read() {
    let Some(mut meter) = meter(2) else { return };
    let mut first = rows(2);
    let events = [
        event(true, "alice", &["192.0.2.1"]),
        event(false, "alice", &[]),
        event(true, "bob", &["192.0.2.2"]),
        event(true, "carol", &["192.0.2.1"]),
    ];
    for event in &events {
        let _ = first.apply(&mut meter, event);
        cut(&mut first, &mut meter);
        settle(&mut first, &mut meter);
    }
    first.apply(&mut meter, &event(false, "bob", &[])).unwrap();
    let carol = meter.row_of(key("192.0.2.1")).unwrap();
    let mut next = rows(2);
    next.adopt(&meter);
    for event in &events {
        next.replay(event).unwrap();
        assert_eq!(meter.row_of(key("192.0.2.1")).unwrap(), carol);
    }
    next.replay(&event(false, "bob", &[])).unwrap();
    next.claim(&mut meter).unwrap();
    assert_eq!(meter.keys().unwrap(), [(key("192.0.2.1"), carol.unwrap())]);
    assert_eq!(next.owner(carol.unwrap()).subscriber, "carol");
    // Bob's last frames are not settled.
    assert_eq!(next.owner(1 - carol.unwrap()).subscriber, "bob");
    assert_eq!(next.count(), 1);
}

#[test]
fn more_sessions_than_rows_may_have_come_and_gone() {
    let Some(mut meter) = meter(1) else { return };
    let mut rows = rows(1);
    for id in ["alice", "bob", "carol"] {
        rows.replay(&event(true, id, &["192.0.2.1"])).unwrap();
        if id != "carol" {
            rows.replay(&event(false, id, &[])).unwrap();
        }
    }
    rows.claim(&mut meter).unwrap();
    assert_eq!(rows.owner(0).subscriber, "carol");
}

#[test]
fn a_key_without_room_does_not_hold_up_the_others() {
    let Some(mut meter) = meter(2) else { return };
    let mut rows = rows(2);
    let lengths: Vec<String> = (8..17).map(|len| format!("10.0.0.0/{len}")).collect();
    let mut keys: Vec<&str> = lengths.iter().map(String::as_str).collect();
    keys.push("192.0.2.1");
    let why = rows.apply(&mut meter, &event(true, "alice", &keys));
    assert!(why.unwrap_err().contains("10.0.0.0/16"));
    assert_eq!(meter.row_of(key("192.0.2.1")).unwrap(), Some(0));
    assert_eq!(meter.row_of(key("10.0.0.0/16")).unwrap(), None);
    // There is room, and the next event enters it.
    meter.remove(key("10.0.0.0/8")).unwrap();
    let _ = rows.apply(&mut meter, &event(true, "alice", &keys[1..]));
    assert_eq!(meter.row_of(key("10.0.0.0/16")).unwrap(), Some(0));
}
