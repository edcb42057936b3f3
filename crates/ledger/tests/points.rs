//! Points: a packet that crosses two counters is charged once.

mod common;

use common::{Folder, MINUTE, chunk, files};
use jiff::tz::TimeZone;
use std::fs;
use weir_ledger::{Format, Ledger, Point, Role, UsageQuery, encode};
use weir_meter::{Chunk, Direction, Flags, OwnerKind};

/// A chunk of a counter of this name.
fn of(counter: &str, period: u64, packets: u64) -> Chunk {
    let mut chunk = chunk(period, MINUTE * period as i64, packets);
    chunk.manifest.id.counter = counter.to_owned();
    chunk
}

fn point(counters: &[(&str, Role)]) -> Vec<Point> {
    let mut counters: Vec<_> = counters
        .iter()
        .map(|(name, role)| ((*name).to_owned(), *role))
        .collect();
    counters.sort();
    vec![Point {
        name: "berlin".to_owned(),
        counters,
    }]
}

/// Packets of alice that are charged, up.
fn charged(ledger: &Ledger) -> u64 {
    let query = UsageQuery {
        subscriber: Some("alice".to_owned()),
        ..UsageQuery::default()
    };
    let rows = ledger.usage(&query, &TimeZone::UTC).unwrap();
    rows.iter().map(|row| row.packets[0]).sum()
}

#[test]
fn counters_in_series_charge_once() {
    let folder = Folder::new("series");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    let roles = [("one", Role::Charge), ("two", Role::Audit)];
    ledger.set_points(&point(&roles)).unwrap();
    assert_eq!(ledger.points().unwrap(), point(&roles));
    for period in 0..3 {
        ledger.accept(&encode(&of("one", period, 10))).unwrap();
        ledger.accept(&encode(&of("two", period, 10))).unwrap();
    }
    assert_eq!(charged(&ledger), 30);
    let output = files("billing", Format::Csv, &folder.0);
    let written = ledger.deliver(&output).unwrap();
    assert_eq!(written[0].records, 9);
    let text = fs::read_to_string(written[0].path.as_ref().unwrap()).unwrap();
    assert!(
        text.contains("\none,") && !text.contains("\ntwo,"),
        "{text}"
    );
    let proof = ledger.prove(None, None).unwrap();
    assert!(proof.holds(), "{proof:#?}");
    assert_eq!(proof.periods[0].outputs, ["billing"]);
    let audits = ledger.audit(None, None).unwrap();
    assert_eq!(audits.len(), 1);
    assert!(audits[0].differences.is_empty(), "{audits:?}");
    assert_eq!(audits[0].charged.packets, [33, 30]);
    assert_eq!(audits[0].audited, audits[0].charged);
    // The audit counter's own records, asked for by name.
    let query = UsageQuery {
        counter: Some("two".to_owned()),
        subscriber: Some("alice".to_owned()),
        ..UsageQuery::default()
    };
    assert_eq!(
        ledger.usage(&query, &TimeZone::UTC).unwrap()[0].packets,
        [30, 30]
    );
}

#[test]
fn counters_in_parallel_are_added_and_audited_together() {
    let folder = Folder::new("parallel");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    let roles = [("a", Role::Sum), ("b", Role::Sum), ("core", Role::Audit)];
    ledger.set_points(&point(&roles)).unwrap();
    for period in 0..2 {
        for (counter, packets) in [("a", 3), ("b", 4), ("core", 7)] {
            let mut chunk = of(counter, period, packets);
            if counter == "core" {
                // The unattributed packet of both.
                chunk.records[2].counts = vec![2, 200, 0];
                for totals in [&mut chunk.manifest.totals, &mut chunk.manifest.link] {
                    totals.packets[0] += 1;
                    totals.bytes[0] += 100;
                }
            }
            ledger.accept(&encode(&chunk)).unwrap();
        }
    }
    assert_eq!(charged(&ledger), 14);
    let audits = ledger.audit(None, None).unwrap();
    assert!(audits[0].differences.is_empty(), "{audits:?}");
    assert_eq!(audits[0].charged.packets, [18, 14]);
}

#[test]
fn an_audit_names_what_is_missing() {
    let folder = Folder::new("missing-frame");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    ledger
        .set_points(&point(&[("one", Role::Charge), ("two", Role::Audit)]))
        .unwrap();
    // The audit counter has not reported its last period yet: that is no difference.
    for period in 0..3 {
        ledger.accept(&encode(&of("one", period, 10))).unwrap();
    }
    assert!(ledger.audit(None, None).unwrap()[0].unix_ns.is_none());
    ledger.accept(&encode(&of("two", 0, 10))).unwrap();
    let mut lacking = of("two", 1, 10);
    lacking.records[1].counts = vec![9, 940, 3];
    for totals in [&mut lacking.manifest.totals, &mut lacking.manifest.link] {
        totals.packets[1] -= 1;
        totals.bytes[1] -= 60;
    }
    ledger.accept(&encode(&lacking)).unwrap();
    let audits = ledger.audit(None, None).unwrap();
    let [row] = &audits[0].differences[..] else {
        panic!("{audits:?}");
    };
    assert_eq!((row.owner, &*row.subscriber), (OwnerKind::Session, "alice"));
    assert_eq!(row.direction, Direction::Down);
    assert_eq!((row.packets, row.bytes), ([20, 19], [2000, 1940]));
    // Of the first period alone there is none.
    let first = ledger.audit(None, Some(MINUTE)).unwrap();
    assert!(first[0].differences.is_empty(), "{first:?}");
}

#[test]
fn a_gap_is_filled_once_from_the_audit_counter_and_flagged() {
    let folder = Folder::new("gap");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    ledger
        .set_points(&point(&[("one", Role::Charge), ("two", Role::Audit)]))
        .unwrap();
    let output = files("billing", Format::Csv, &folder.0);
    ledger.accept(&encode(&of("one", 0, 10))).unwrap();
    ledger.accept(&encode(&of("two", 0, 10))).unwrap();
    // The machine of the first restarts: it counts again from the middle of period 2 on.
    let mut after = of("one", 2, 4);
    after.manifest.id.boot_epoch = 7;
    after.manifest.id.period = 0;
    after.manifest.unix_ns[0] += MINUTE / 2;
    after.manifest.gap_unix_ns = Some([MINUTE, after.manifest.unix_ns[0]]);
    ledger.accept(&encode(&after)).unwrap();
    // What is to fill it is not here yet.
    assert_eq!(ledger.fill_gaps().unwrap(), 0);
    ledger.accept(&encode(&of("two", 1, 10))).unwrap();
    assert_eq!(ledger.fill_gaps().unwrap(), 0);
    assert_eq!(charged(&ledger), 14);
    ledger.deliver(&output).unwrap();
    ledger.accept(&encode(&of("two", 2, 10))).unwrap();
    assert_eq!(ledger.fill_gaps().unwrap(), 1);
    assert_eq!(ledger.fill_gaps().unwrap(), 0);
    // 10 of period 1, and the 6 of period 2 that the first had not seen.
    assert_eq!(charged(&ledger), 30);
    let written = ledger.deliver(&output).unwrap();
    let text = fs::read_to_string(written[0].path.as_ref().unwrap()).unwrap();
    let row = text.lines().find(|line| line.contains(",up,")).unwrap();
    let flags = format!(",web,up,{},16,1600,", Flags::FROM_AUDIT.0);
    assert!(
        row.starts_with("berlin:fill,") && row.contains(&flags),
        "{text}"
    );
    let audits = ledger.audit(None, None).unwrap();
    assert!(audits[0].differences.is_empty(), "{audits:?}");
    let proof = ledger.prove(None, None).unwrap();
    assert!(proof.holds(), "{proof:#?}");
    // A second gap in the same period takes only what is still missing.
    let mut again = of("one", 2, 0);
    again.manifest.id.boot_epoch = 8;
    again.manifest.id.period = 0;
    again.records.clear();
    again.owners.clear();
    again.manifest.records = 0;
    again.manifest.totals = Default::default();
    again.manifest.link = Default::default();
    again.manifest.unix_ns[0] += MINUTE / 2 + 1;
    again.manifest.gap_unix_ns = Some([after.manifest.unix_ns[0], again.manifest.unix_ns[0]]);
    ledger.accept(&encode(&again)).unwrap();
    assert_eq!(ledger.fill_gaps().unwrap(), 1);
    assert_eq!(charged(&ledger), 30);
}
