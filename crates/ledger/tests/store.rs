//! Spool and ledger: each chunk once, whatever happens between.

mod common;

use common::{Folder, MINUTE, chunk, files};
use jiff::tz::TimeZone;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use weir_ledger::{
    Accepted, Difference, Encoded, Format, Group, Ledger, LedgerError, Replay, SessionLog, Spool,
    UsageQuery, encode,
};
use weir_meter::{
    Chunk, Key, OwnerKind, SessionEvent, SessionEventKind, SessionInfo, SessionSource,
};

fn deliver_all(spool: &mut Spool, ledger: &mut Ledger) -> usize {
    let (mut after, mut accepted) = (0, 0);
    while let Some(stored) = spool.next(after).unwrap() {
        let (chunk, _) = ledger.accept(&stored.encoded).unwrap();
        assert!(
            spool
                .acknowledge(&chunk.manifest.id, &stored.encoded.hash)
                .unwrap()
        );
        after = stored.sequence;
        accepted += 1;
    }
    accepted
}

#[test]
fn a_chunk_counts_once_however_often_it_is_stored_and_delivered() {
    let folder = Folder::new("once");
    let mut spool = Spool::open(&folder.at("spool")).unwrap();
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    for period in 0..5 {
        let mut chunks = [chunk(period, MINUTE * period as i64, 10 + period)];
        spool.store(&mut chunks, b"base").unwrap();
        // As after a crash between storing and going on.
        spool.store(&mut chunks, b"base").unwrap();
    }
    assert_eq!(spool.waiting().unwrap(), 5);
    let first = spool.next(0).unwrap().unwrap();
    for expected in [Accepted::New, Accepted::Known, Accepted::Known] {
        assert_eq!(ledger.accept(&first.encoded).unwrap().1, expected);
    }
    drop((spool, ledger));
    let mut spool = Spool::open(&folder.at("spool")).unwrap();
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    assert_eq!(deliver_all(&mut spool, &mut ledger), 5);
    assert_eq!(spool.waiting().unwrap(), 0);
    // A period that was acknowledged and deleted is not stored again.
    spool
        .store(&mut [chunk(2, 2 * MINUTE, 12)], b"base")
        .unwrap();
    assert_eq!(spool.waiting().unwrap(), 0);
    assert_eq!(
        spool.last("pop-1").unwrap(),
        Some((u64::MAX - 1, 4, b"base".to_vec()))
    );
    let proof = ledger.prove(None, None).unwrap();
    assert!(proof.holds(), "{proof:#?}");
    assert_eq!(proof.periods.len(), 5);
    assert_eq!(proof.link().packets, [10 + 11 + 12 + 13 + 14 + 5, 60]);
}

#[test]
fn a_period_that_is_stored_again_after_its_acknowledgment_stays_as_it_was() {
    let folder = Folder::new("repeated");
    let mut spool = Spool::open(&folder.at("spool")).unwrap();
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    spool.store(&mut [chunk(0, 0, 10)], b"0").unwrap();
    // A period of two chunks.
    let whole = |packets| {
        let mut chunks = [chunk(1, MINUTE, packets), chunk(1, MINUTE, packets)];
        chunks[0].manifest.last = false;
        chunks[1].manifest.id.number = 1;
        for chunk in &mut chunks {
            let link = &mut chunk.manifest.link;
            let all = [link.packets.as_mut_slice(), link.bytes.as_mut_slice()];
            all.into_iter().flatten().for_each(|total| *total *= 2);
        }
        chunks
    };
    spool.store(&mut whole(10), b"1").unwrap();
    assert_eq!(deliver_all(&mut spool, &mut ledger), 3);
    // The counter was killed before it settled: its next process cuts the period anew, at another
    // time.
    spool.store(&mut whole(11), b"other").unwrap();
    assert_eq!(spool.waiting().unwrap(), 0);
    assert_eq!(spool.last("pop-1").unwrap().unwrap().2, b"1");
    spool.store(&mut [chunk(2, 2 * MINUTE, 10)], b"2").unwrap();
    assert_eq!(deliver_all(&mut spool, &mut ledger), 1);
    let proof = ledger.prove(None, None).unwrap();
    assert!(proof.holds(), "{proof:#?}");
}

#[test]
fn a_store_is_private_and_one_process_at_a_time_has_it() {
    let folder = Folder::new("private");
    let spool = Spool::open(&folder.at("spool")).unwrap();
    let ledger = Ledger::open(&folder.at("ledger")).unwrap();
    ledger.back_up(&folder.at("copy")).unwrap();
    for name in ["spool", "ledger", "copy"] {
        let mode = fs::metadata(folder.at(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let lock = spool.lock().unwrap();
    let other = Spool::open(&folder.at("spool")).unwrap();
    let said = other.lock().unwrap_err().to_string();
    let holder = format!("process {} uses it", std::process::id());
    assert!(said.contains(&holder) && said.contains("--spool"), "{said}");
    drop(lock);
    other.lock().unwrap();
    let _lock = ledger.lock().unwrap();
    let said = ledger.lock().unwrap_err().to_string();
    assert!(said.contains(&holder), "{said}");
    // A link in the lock's place is not followed.
    let precious = folder.at("precious");
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, folder.at("copy.lock")).unwrap();
    Ledger::open(&folder.at("copy"))
        .unwrap()
        .lock()
        .unwrap_err();
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}

#[test]
fn two_processes_that_write_wait_for_each_other() {
    let folder = Folder::new("together");
    let paths = [folder.at("spool"), folder.at("ledger")];
    drop((
        Spool::open(&paths[0]).unwrap(),
        Ledger::open(&paths[1]).unwrap(),
    ));
    let all = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let (folder, paths) = (&folder, &paths);
                scope.spawn(move || {
                    let mut spool = Spool::open(&paths[0]).unwrap();
                    let mut ledger = Ledger::open(&paths[1]).unwrap();
                    for period in 0..10 {
                        let mut chunk = chunk(period, MINUTE * period as i64, 10);
                        chunk.manifest.id.counter = format!("pop-{writer}");
                        spool.store(&mut [chunk.clone()], b"").unwrap();
                        ledger.accept(&encode(&chunk)).unwrap();
                        ledger.delete_before(-1).unwrap();
                        let output = format!("output-{writer}");
                        ledger
                            .deliver(&files(&output, Format::Csv, &folder.0))
                            .unwrap();
                    }
                })
            })
            .collect();
        writers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .all(|it| it.is_ok())
    });
    assert!(all, "a writer failed");
    assert_eq!(Spool::open(&paths[0]).unwrap().waiting().unwrap(), 40);
}

#[test]
fn a_missing_or_changed_chunk_is_named() {
    let folder = Folder::new("chain");
    let mut spool = Spool::open(&folder.at("spool")).unwrap();
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    for period in 0..3 {
        spool
            .store(&mut [chunk(period, MINUTE * period as i64, 10)], b"")
            .unwrap();
    }
    let mut stored = Vec::new();
    while let Some(next) = spool.next(stored.last().map_or(0, |(at, _)| *at)).unwrap() {
        stored.push((next.sequence, next.encoded));
    }
    ledger.accept(&stored[0].1).unwrap();
    ledger.accept(&stored[2].1).unwrap();
    let proof = ledger.prove(None, None).unwrap();
    assert_eq!(
        proof.periods[1].differences,
        [Difference::Chain { chunk: 0 }]
    );
    // Other content under the same identity.
    let forged = encode(&chunk(0, 0, 11));
    assert!(matches!(
        ledger.accept(&forged),
        Err(LedgerError::Contradiction(_))
    ));
    // A record whose sum is not the manifest's.
    let mut wrong = chunk(7, 0, 10);
    wrong.records[0].counts[0] += 1;
    let refused = ledger.accept(&encode(&wrong)).unwrap_err().to_string();
    assert!(refused.contains("do not add up"), "{refused}");
    // A link's total that is not the sum of the records: accepted, and named.
    let mut uneven = chunk(8, 8 * MINUTE, 10);
    uneven.manifest.link.packets[0] += 1;
    ledger.accept(&encode(&uneven)).unwrap();
    let proof = ledger.prove(Some(8 * MINUTE), None).unwrap();
    assert!(
        matches!(
            &proof.periods[0].differences[..],
            [Difference::Records { .. }]
        ),
        "{proof:?}"
    );
}

#[test]
fn a_capture_that_is_metered_again_counts_once() {
    let folder = Folder::new("again");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    let chunks =
        |packets| [0, 1].map(|period| encode(&chunk(period, MINUTE * period as i64, packets)));
    assert_eq!(ledger.replace(&chunks(10)).unwrap(), Accepted::New);
    assert_eq!(ledger.replace(&chunks(10)).unwrap(), Accepted::Known);
    assert_eq!(ledger.replace(&chunks(20)).unwrap(), Accepted::Replaced);
    assert_eq!(ledger.prove(None, None).unwrap().link().packets, [42, 40]);
    // What an output has had stays.
    ledger
        .deliver(&files("billing", Format::Csv, &folder.0))
        .unwrap();
    assert!(matches!(
        ledger.replace(&chunks(30)),
        Err(LedgerError::Contradiction(_))
    ));
    assert_eq!(ledger.prove(None, None).unwrap().link().packets, [42, 40]);
}

#[test]
fn hostile_bytes_are_refused_and_change_nothing() {
    let folder = Folder::new("hostile");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    let good = encode(&chunk(0, 0, 10)).bytes;
    for length in 0..good.len() {
        assert!(
            ledger
                .accept(&Encoded::of(good[..length].to_vec()))
                .is_err(),
            "{length}"
        );
    }
    // Each byte changed: refused, or a chunk that is consistent in itself.
    for at in 0..good.len() {
        for value in [0, 0x7f, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let _ = weir_ledger::decode(&bytes);
        }
    }
    assert!(ledger.prove(None, None).unwrap().periods.is_empty());
    // Consistent in itself, and beyond what sums and indexes have room for.
    type Change = fn(&mut Chunk);
    let beyond = 1 << 63;
    let changes: [(&str, Change); 5] = [
        ("a count is beyond", |it| it.records[0].counts[2] = 1 << 63),
        ("a total is beyond", |it| {
            it.manifest.link.bytes[1] = 1 << 63
        }),
        ("a total is beyond", |it| {
            it.records
                .iter_mut()
                .for_each(|record| record.counts[1] = (1 << 63) - 1);
            it.manifest.totals.bytes = [u64::MAX - 1, (1 << 63) - 1];
        }),
        ("256 keys", |it| {
            it.owners[0].keys = vec![Key::Pppoe(1); 257]
        }),
        ("4,096 bytes", |it| {
            it.owners[0].class = vec![vec![0; 2048], vec![0; 2049]]
        }),
    ];
    for (why, change) in changes {
        let mut chunk = chunk(0, 0, 10);
        change(&mut chunk);
        let said = ledger.accept(&encode(&chunk)).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
    let mut most = chunk(0, 0, 10);
    most.records[0].counts[2] = beyond - 1;
    most.owners[0].keys = vec![Key::Pppoe(1); 256];
    most.owners[0].class = vec![vec![0; 2048]; 2];
    ledger.accept(&encode(&most)).unwrap();
}

#[test]
fn outputs_appear_whole_and_once_and_agree_with_the_ledger() {
    let folder = Folder::new("outputs");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    for period in 0..3 {
        ledger
            .accept(&encode(&chunk(period, MINUTE * period as i64, 10)))
            .unwrap();
    }
    let csv = ledger
        .deliver(&files("billing", Format::Csv, &folder.0))
        .unwrap();
    let json = ledger
        .deliver(&files("json", Format::JsonLines, &folder.0))
        .unwrap();
    assert_eq!((csv[0].records, json[0].records), (9, 9));
    assert!(
        ledger
            .deliver(&files("billing", Format::Csv, &folder.0))
            .unwrap()
            .is_empty()
    );
    ledger.accept(&encode(&chunk(3, 3 * MINUTE, 10))).unwrap();
    assert_eq!(
        ledger
            .deliver(&files("billing", Format::Csv, &folder.0))
            .unwrap()[0]
            .records,
        3
    );
    let proof = ledger.prove(None, None).unwrap();
    assert!(proof.holds(), "{proof:#?}");
    assert_eq!(proof.periods[0].outputs, ["billing", "json"]);
    assert_eq!(proof.periods[3].outputs, ["billing"]);
    // A changed file, and a missing one.
    let [csv, json] = [csv, json].map(|files| files[0].path.clone().unwrap());
    let text = fs::read_to_string(&csv).unwrap();
    fs::write(&csv, text.replacen(",10,1000,", ",9,1000,", 1)).unwrap();
    fs::remove_file(&json).unwrap();
    let proof = ledger.prove(None, None).unwrap();
    let differences = &proof.periods[0].differences;
    assert!(
        matches!(&differences[0], Difference::Output { output, .. } if output == "billing"),
        "{differences:?}"
    );
    assert!(
        matches!(&differences[1], Difference::OutputFile { output, .. } if output == "json"),
        "{differences:?}"
    );
    // Both can be written again.
    let again = ledger
        .replay(
            &files("billing", Format::Csv, &folder.0),
            &Replay {
                since_unix_ns: Some(0),
                until_unix_ns: Some(MINUTE),
                ..Replay::default()
            },
        )
        .unwrap();
    assert_eq!(again.records, 3);
}

#[test]
fn an_output_that_cannot_be_written_goes_on_later() {
    let folder = Folder::new("later");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    ledger.accept(&encode(&chunk(0, 0, 10))).unwrap();
    let nowhere = folder.at("missing");
    let refused = ledger
        .deliver(&files("billing", Format::Csv, &nowhere))
        .unwrap_err();
    assert!(refused.to_string().contains("missing"), "{refused}");
    fs::create_dir(&nowhere).unwrap();
    // A link of another user in the place of the file that is being written.
    let precious = folder.at("precious");
    fs::write(&precious, "precious").unwrap();
    let beside = nowhere.join("billing-00000001-00000001.csv.part");
    symlink(&precious, &beside).unwrap();
    // More has arrived meanwhile: the planned file first, then another.
    ledger.accept(&encode(&chunk(1, MINUTE, 10))).unwrap();
    let files = ledger
        .deliver(&files("billing", Format::Csv, &nowhere))
        .unwrap();
    assert_eq!(
        files.iter().map(|file| file.records).collect::<Vec<_>>(),
        [3, 3]
    );
    assert!(ledger.prove(None, None).unwrap().holds());
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    let facts = fs::symlink_metadata(files[0].path.as_ref().unwrap()).unwrap();
    assert!(!beside.exists() && facts.is_file());
    // 0640, less what the umask takes.
    assert_eq!(facts.permissions().mode() & !0o640 & 0o777, 0);
}

#[test]
fn usage_is_summed_by_the_clock_of_the_zone() {
    let folder = Folder::new("usage");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    // 2026-10-25: the day has 25 hours there, from 22:00 to 23:00 UTC the next day.
    let midnight: jiff::Timestamp = "2026-10-24T22:00:00Z".parse().unwrap();
    let midnight = i64::try_from(midnight.as_nanosecond()).unwrap();
    for hour in 0..26 {
        ledger
            .accept(&encode(&chunk(
                hour,
                midnight + 60 * MINUTE * hour as i64,
                10,
            )))
            .unwrap();
    }
    let rows = |group| {
        let query = UsageQuery {
            group,
            subscriber: Some("alice".to_owned()),
            ..UsageQuery::default()
        };
        ledger.usage(&query, &zone).unwrap()
    };
    let days = rows(Group::Day);
    let days: Vec<_> = days
        .iter()
        .map(|row| (row.time.as_deref().unwrap(), row.packets[0]))
        .collect();
    assert_eq!(days, [("2026-10-25", 250), ("2026-10-26", 10)]);
    assert_eq!(rows(Group::Hour).len(), 26);
    assert_eq!(rows(Group::Month)[0].time.as_deref(), Some("2026-10"));
    let whole = &rows(Group::Whole)[0];
    assert_eq!((whole.packets, whole.bytes), ([260, 260], [26_000, 26_000]));
    // The largest of a period, not a sum.
    assert_eq!(whole.more["peak"], [3, 3]);
    let all = ledger.usage(&UsageQuery::default(), &zone).unwrap();
    assert_eq!(all[1].subscriber, "192.0.2.9");
    assert_eq!(
        (all[1].owner, all[1].packets),
        (OwnerKind::Unattributed, [26, 0])
    );
}

#[test]
fn an_erased_subscriber_leaves_counts_and_no_name() {
    let folder = Folder::new("erase");
    let path = folder.at("ledger");
    let mut ledger = Ledger::open(&path).unwrap();
    ledger.accept(&encode(&chunk(0, 0, 10))).unwrap();
    assert_eq!(ledger.erase("alice").unwrap(), 1);
    assert_eq!(ledger.erase("alice").unwrap(), 0);
    assert!(ledger.prove(None, None).unwrap().holds());
    let rows = ledger
        .usage(&UsageQuery::default(), &TimeZone::UTC)
        .unwrap();
    assert_eq!(
        (&*rows[0].subscriber, rows[0].packets),
        ("(erased)", [10, 10])
    );
    drop(ledger);
    let bytes = fs::read(&path).unwrap();
    assert!(
        !bytes.windows(5).any(|part| part == b"alice"),
        "the name is still in the file"
    );
}

#[test]
fn retention_keeps_what_outputs_lack_and_the_chain() {
    let folder = Folder::new("retention");
    let mut spool = Spool::open(&folder.at("spool")).unwrap();
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    for period in 0..4 {
        spool
            .store(&mut [chunk(period, MINUTE * period as i64, 10)], b"")
            .unwrap();
    }
    deliver_all(&mut spool, &mut ledger);
    // An output that has had nothing yet keeps everything.
    let nowhere = folder.at("missing");
    ledger
        .deliver(&files("billing", Format::Csv, &nowhere))
        .unwrap_err();
    assert_eq!(ledger.delete_before(i64::MAX).unwrap(), 0);
    fs::create_dir(&nowhere).unwrap();
    ledger
        .deliver(&files("billing", Format::Csv, &nowhere))
        .unwrap();
    assert_eq!(ledger.delete_before(2 * MINUTE + 1).unwrap(), 2);
    let proof = ledger.prove(None, None).unwrap();
    assert_eq!(proof.periods.len(), 2);
    assert!(proof.holds(), "{proof:#?}");
    ledger.back_up(&folder.at("copy")).unwrap();
    let copy = Ledger::open(&folder.at("copy")).unwrap();
    assert_eq!(copy.prove(None, None).unwrap(), proof);
}

#[test]
fn session_events_are_numbered_and_come_back() {
    let folder = Folder::new("events");
    let mut log = SessionLog::beside(&folder.at("spool")).unwrap();
    let info = SessionInfo {
        id: "nas/1".to_owned(),
        subscriber: "alice".to_owned(),
        keys: vec![
            Key::Prefix([192, 0, 2, 0].into(), 24),
            Key::Vlan(7, Some(9)),
        ],
        class: vec![vec![0, 255]],
        reported: Some([1, 2, 3, u64::MAX]),
        ..SessionInfo::default()
    };
    let event = |kind| SessionEvent {
        number: 0,
        received_unix_ns: 5,
        happened_unix_ns: Some(4),
        source: SessionSource::Radius,
        lost: Some(vec![Key::Vlan(7, Some(9))]),
        kind,
    };
    let mut events = vec![
        event(SessionEventKind::Up(info.clone())),
        event(SessionEventKind::Down(info)),
        event(SessionEventKind::AllDown {
            server: "nas".to_owned(),
        }),
    ];
    log.append(&mut events).unwrap();
    assert_eq!(
        events.iter().map(|event| event.number).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    drop(log);
    let mut log = SessionLog::beside(&folder.at("spool")).unwrap();
    assert_eq!(log.events(0, 10).unwrap(), events);
    log.remove(&[1, 2, 9]).unwrap();
    assert_eq!(log.events(0, 10).unwrap(), events[2..]);
    // No number is given twice.
    log.remove(&[3]).unwrap();
    log.append(&mut events[..1]).unwrap();
    assert_eq!(events[0].number, 4);
}

#[test]
fn another_file_is_refused_and_left_as_it_is() {
    let folder = Folder::new("foreign");
    let text = folder.at("text");
    fs::write(
        &text,
        "not a database, but a text of some length: ".repeat(50),
    )
    .unwrap();
    let said = |path: &Path| Ledger::open(path).unwrap_err().to_string();
    assert!(
        said(&text).contains("not a store of weir"),
        "{}",
        said(&text)
    );
    drop(Spool::open(&folder.at("spool")).unwrap());
    assert!(said(&folder.at("spool")).contains("not a store of weir"));
    assert!(said(&folder.at("missing/ledger")).contains("is the folder there"));
}

#[test]
fn a_ledger_is_read_without_writing_to_it() {
    let folder = Folder::new("read");
    let path = folder.at("a store?#%.db");
    let mut ledger = Ledger::open(&path).unwrap();
    ledger.accept(&encode(&chunk(0, 0, 10))).unwrap();
    // While another program has it open, and after that.
    let read = Ledger::open_read(&path).unwrap();
    assert_eq!(read.prove(None, None).unwrap().link().packets, [11, 10]);
    ledger.accept(&encode(&chunk(1, MINUTE, 10))).unwrap();
    assert_eq!(read.prove(None, None).unwrap().periods.len(), 2);
    assert!(read.is_consistent());
    drop((read, ledger));
    let before = fs::read(&path).unwrap();
    let mut mode = fs::metadata(&path).unwrap().permissions();
    mode.set_mode(0o400);
    fs::set_permissions(&path, mode.clone()).unwrap();
    let names = || {
        let mut names: Vec<_> = fs::read_dir(&folder.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let files = names();
    let read = Ledger::open_read(&path).unwrap();
    assert_eq!(read.prove(None, None).unwrap().periods.len(), 2);
    assert!(read.is_consistent());
    assert_eq!(names(), files);
    // A program begins to write meanwhile.
    mode.set_mode(0o600);
    fs::set_permissions(&path, mode).unwrap();
    let mut ledger = Ledger::open(&path).unwrap();
    ledger.accept(&encode(&chunk(2, 2 * MINUTE, 10))).unwrap();
    assert!(!read.is_consistent());
    drop((ledger, read));
    assert_ne!(fs::read(&path).unwrap(), before);
    let said = |path: &Path| Ledger::open_read(path).unwrap_err().to_string();
    fs::write(folder.at("text"), "no database ".repeat(100)).unwrap();
    assert!(said(&folder.at("text")).contains("not a store of weir"));
    assert!(said(&folder.at("missing")).contains("No such file"));
    assert!(!folder.at("missing").exists());
    assert!(said(&folder.0).contains("directory: name another file"));
}

#[test]
fn the_progress_of_counters_and_outputs_is_reported() {
    let folder = Folder::new("progress");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    assert_eq!(ledger.progress().unwrap().counters, []);
    for (period, counter) in ["b", "a", "b", "c"].into_iter().enumerate() {
        let mut chunk = chunk(period as u64, period as i64 * MINUTE, 10);
        chunk.manifest.id.counter = counter.to_owned();
        ledger.accept(&encode(&chunk)).unwrap();
        if period == 1 {
            ledger
                .deliver(&files("early", Format::Csv, &folder.0))
                .unwrap();
        }
    }
    let progress = ledger.progress().unwrap();
    let until = |name: &str, periods| (name.to_owned(), periods * MINUTE);
    assert_eq!(
        progress.counters,
        [until("a", 2), until("b", 3), until("c", 4)]
    );
    assert_eq!(
        (progress.last, progress.outputs),
        (4, vec![("early".to_owned(), 2)])
    );
    assert!(progress.bytes > 4096, "{}", progress.bytes);
}

#[test]
fn a_back_up_is_whole_and_becomes_a_ledger() {
    let folder = Folder::new("back-up");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    ledger.accept(&encode(&chunk(0, 0, 10))).unwrap();
    let output = files("billing", Format::Csv, &folder.0);
    let first = ledger.deliver(&output).unwrap();
    let copy = folder.at("copy");
    ledger.back_up(&copy).unwrap();
    ledger.accept(&encode(&chunk(1, MINUTE, 10))).unwrap();
    // The later one takes its place; another file is not taken for one.
    ledger.back_up(&copy).unwrap();
    fs::write(folder.at("text"), "precious").unwrap();
    ledger.back_up(&folder.at("text")).unwrap_err();
    assert_eq!(fs::read(folder.at("text")).unwrap(), b"precious");
    assert!(!folder.at("copy.part").exists());
    // Written after the back-up: the file stays what it was.
    let second = ledger.deliver(&output).unwrap();
    let name = second[0].path.clone().unwrap();
    let text = fs::read_to_string(&name).unwrap();
    drop(ledger);
    let said = Ledger::restore(&copy, &folder.at("ledger")).unwrap_err();
    assert!(said.to_string().contains("there already"), "{said}");
    fs::remove_file(folder.at("ledger")).unwrap();
    let mut ledger = Ledger::restore(&copy, &folder.at("ledger")).unwrap();
    assert_eq!(ledger.extent().unwrap(), Some([0, 2 * MINUTE]));
    let again = ledger.deliver(&output).unwrap();
    // The same period once more, under the same name and with the same content.
    assert_eq!(again[0].path.as_ref(), Some(&name));
    assert_eq!(fs::read_to_string(&name).unwrap(), text);
    ledger.accept(&encode(&chunk(2, 2 * MINUTE, 10))).unwrap();
    let third = ledger.deliver(&output).unwrap();
    let third = third[0].path.as_ref().unwrap();
    assert!(
        third.ends_with("billing-100000001-100000001.csv"),
        "{third:?}"
    );
    assert!(ledger.prove(None, None).unwrap().holds());
    assert_ne!(first[0].path, second[0].path);
    fs::write(folder.at("text"), "no ledger ".repeat(100)).unwrap();
    Ledger::restore(&folder.at("text"), &folder.at("new")).unwrap_err();
    assert!(!folder.at("new").exists());
}

#[test]
fn a_ledger_of_the_first_version_is_brought_up_to_date() {
    let folder = Folder::new("version");
    let path = folder.at("ledger");
    let mut ledger = Ledger::open(&path).unwrap();
    ledger.accept(&encode(&chunk(0, 0, 10))).unwrap();
    drop(ledger);
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(
        "DROP TABLE reported; DROP TABLE role; DROP TABLE filled; DROP INDEX chunk_counter_time;
         ALTER TABLE output_file DROP COLUMN given;
         PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(db);
    assert!(
        Ledger::open_read(&path)
            .unwrap()
            .prove(None, None)
            .unwrap()
            .holds()
    );
    let mut ledger = Ledger::open(&path).unwrap();
    ledger.accept(&encode(&chunk(1, MINUTE, 10))).unwrap();
    assert_eq!(ledger.prove(None, None).unwrap().periods.len(), 2);
    drop(ledger);
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch("PRAGMA user_version = 99;").unwrap();
    drop(db);
    let said = Ledger::open(&path).unwrap_err().to_string();
    assert!(said.contains("layout 99"), "{said}");
}
