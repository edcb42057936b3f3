//! Several counters of the same packets, from captures: charged once, audited to the frame.

mod common;

use common::{Folder, capture, stdout, weir};
use serde_json::Value;
use std::fs;
use weir_ledger::Spool;

/// Bytes of a pcap file's header, and of a frame of [`capture`] with its header.
const HEADS: [usize; 2] = [24, 80];

/// The capture without these frames.
fn without(capture: &[u8], frames: &[usize]) -> Vec<u8> {
    let (head, records) = capture.split_at(HEADS[0]);
    let records = records.chunks(HEADS[1]).zip(0..);
    let kept = records.filter(|(_, number)| !frames.contains(number));
    head.iter()
        .chain(kept.flat_map(|(record, _)| record))
        .copied()
        .collect()
}

/// Meters a capture as this counter.
fn meter(folder: &Folder, counter: &str, capture: &[u8]) {
    let config = format!(
        "counter = '{counter}'\neach_address = true\nperiod = '10s'\n[capture]\n\
         inside = '0.0.0.0/8'\n[services]\ndns = {{ udp = [53] }}\nweb = {{ udp = [80] }}\n"
    );
    let config = folder.write(&format!("{counter}.toml"), config.as_bytes());
    let capture = folder.write(&format!("{counter}.pcap"), capture);
    let store = folder.path("ledger");
    let run = weir([
        "meter", "-r", &capture, "--config", &config, "--store", &store,
    ])
    .output()
    .unwrap();
    assert!(run.status.success(), "{run:?}");
}

/// Gives the ledger the point.
fn place(folder: &Folder, point: &str) {
    let spool = folder.path("none.spool");
    drop(Spool::open(spool.as_ref()).unwrap());
    let config = format!(
        "store = '{}'\n[[counter]]\nspool = '{spool}'\n[[point]]\nname = 'berlin'\n{point}\n\
         [[output]]\nname = 'billing'\nformat = 'json-lines'\nfolder = '{}'\n",
        folder.path("ledger"),
        folder.path(""),
    );
    let config = folder.write("mediator.toml", config.as_bytes());
    let run = weir(["mediate", "--config", &config, "--once"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
}

fn usage(folder: &Folder, option: &str) -> (Option<i32>, String) {
    let run = weir(["usage", "--store", &folder.path("ledger"), "--json", option])
        .output()
        .unwrap();
    (run.status.code(), stdout(&run))
}

/// Packets that are charged.
fn charged(folder: &Folder) -> u64 {
    let run = weir(["usage", "--store", &folder.path("ledger"), "--json"])
        .output()
        .unwrap();
    let rows: Vec<Value> = serde_json::from_str(&stdout(&run)).unwrap();
    rows.iter()
        .map(|row| row["packets"][0].as_u64().unwrap())
        .sum()
}

/// Packets in the output's files.
fn delivered(folder: &Folder) -> u64 {
    let files = fs::read_dir(folder.path("")).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|it| it == "ndjson"));
    files
        .flat_map(|path| {
            let text = fs::read_to_string(path).unwrap();
            let lines = text.lines().map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                line["packets"].as_u64().unwrap()
            });
            lines.collect::<Vec<_>>()
        })
        .sum()
}

/// 60 frames, one a second, of both services.
fn frames() -> Vec<u8> {
    let ports: Vec<u16> = (0..60).map(|number| [53, 80][number % 2]).collect();
    capture(&ports)
}

#[test]
fn two_counters_in_series_charge_once_and_a_dropped_frame_is_found() {
    let folder = Folder::new("points-series");
    let whole = frames();
    meter(&folder, "pop-1", &whole);
    // Frame 31, of the web, is dropped between them.
    meter(&folder, "core-1", &without(&whole, &[31]));
    place(&folder, "charge = 'pop-1'\naudit = ['core-1']");
    assert_eq!(charged(&folder), 60);
    assert_eq!(delivered(&folder), 60);
    let (status, audit) = usage(&folder, "--audit");
    assert_eq!(status, Some(1));
    let audit: Value = serde_json::from_str(&audit).unwrap();
    let differences = audit[0]["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 1, "{audit}");
    let difference = &differences[0];
    assert_eq!(difference["subscriber"], "0.0.0.0");
    assert_eq!(difference["service"], "web");
    assert_eq!(difference["packets"], serde_json::json!([30, 29]));
    let (status, proof) = usage(&folder, "--prove");
    assert_eq!(status, Some(0), "{proof}");
    let store = folder.path("ledger");
    let run = weir(["usage", "--store", &store, "--audit"])
        .output()
        .unwrap();
    let said = stdout(&run);
    assert!(
        said.contains("60 packets") && said.contains("core-1 has 59 packets"),
        "{said}"
    );
}

#[test]
fn two_counters_in_parallel_charge_each_frame_once() {
    let folder = Folder::new("points-parallel");
    let whole = frames();
    // Frames go by one link or the other, in no regular way.
    let (one, two): (Vec<usize>, Vec<usize>) = (0..60).partition(|frame| frame * frame % 7 < 3);
    meter(&folder, "a", &without(&whole, &two));
    meter(&folder, "b", &without(&whole, &one));
    meter(&folder, "core", &whole);
    place(&folder, "sum = ['a', 'b']\naudit = ['core']");
    assert_eq!(charged(&folder), 60);
    assert_eq!(delivered(&folder), 60);
    let (status, audit) = usage(&folder, "--audit");
    assert_eq!(status, Some(0), "{audit}");
    let audit: Value = serde_json::from_str(&audit).unwrap();
    assert_eq!(audit[0]["charged"]["packets"][0], 60);
}

#[test]
fn agreements_show_what_an_audit_counter_lacks() {
    let folder = Folder::new("points-sla");
    let whole = frames();
    meter(&folder, "pop-1", &whole);
    meter(&folder, "core-1", &without(&whole, &[31, 33, 35]));
    place(&folder, "charge = 'pop-1'\naudit = ['core-1']");
    let sla = |loss: &str| {
        let file = format!("subscriber,up,loss\n0.0.0.0,1k,{loss}\n");
        let file = folder.write("agreements.csv", file.as_bytes());
        let store = folder.path("ledger");
        let run = weir(["usage", "--store", &store, "--sla", &file, "--json"])
            .output()
            .unwrap();
        (run.status.code(), stdout(&run))
    };
    let (status, rows) = sla("10%");
    assert_eq!(status, Some(0), "{rows}");
    let rows: Value = serde_json::from_str(&rows).unwrap();
    assert_eq!(rows[0]["loss"][0], 0.05);
    let (status, rows) = sla("4%");
    assert_eq!(status, Some(1));
    assert!(rows.contains("\"broken\":[\"loss\"]"), "{rows}");
    let run = weir([
        "usage",
        "--store",
        &folder.path("ledger"),
        "--sla",
        &folder.path("none.csv"),
    ])
    .output()
    .unwrap();
    assert_eq!(run.status.code(), Some(1));
    // 60 frames of 28 or more bytes in a minute.
    let (status, loads) = usage(&folder, "--planning");
    assert_eq!(status, Some(0));
    let loads: Vec<Value> = serde_json::from_str(&loads).unwrap();
    let pop = |service: Value| {
        let mut loads = loads.iter();
        let load = loads.find(|load| load["counter"] == "pop-1" && load["service"] == service);
        load.unwrap().clone()
    };
    let all = pop(Value::Null);
    let web = pop("web".into());
    assert_eq!(all["periods"], 6);
    assert_eq!(
        all["bytes"][0].as_u64(),
        web["bytes"][0].as_u64().map(|bytes| 2 * bytes)
    );
    assert!(all["percentile_95"][0].as_u64() >= all["mean"][0].as_u64());
}
