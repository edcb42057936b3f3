//! A mediator that is killed before each of its durable writes in turn, and so after each of the ones
//! before: strace injects the signal when the N-th system call that writes or syncs begins.

mod common;

use common::chunks::chunk;
use common::{Folder, stdout, weir};
use std::fs;
use weir_lab::postgres::Postgres;
use weir_lab::testenv;
use weir_ledger::Spool;

/// What writes, syncs, or makes a file appear or go; `sendto` is a request to a database.
const CALLS: &str =
    "write,pwrite64,fsync,fdatasync,rename,renameat,unlink,unlinkat,ftruncate,sendto";

/// More calls than a run makes.
const CALLS_MAX: u32 = 2000;

fn traced(call: u32, arguments: &[&str]) -> Option<std::process::Output> {
    let mut strace = testenv::program("strace")?;
    strace.args(["-f", "-qq", "-o", "/dev/null"]);
    strace.args(["-e", &format!("trace={CALLS}")]);
    strace.args(["-e", &format!("inject={CALLS}:signal=KILL:when={call}")]);
    strace.arg(env!("CARGO_BIN_EXE_weir")).args(arguments);
    Some(strace.output().unwrap())
}

/// Sum of packets in the files of JSON Lines.
fn delivered(folder: &str) -> u64 {
    let files = fs::read_dir(folder).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|it| it == "ndjson"));
    let texts: Vec<String> = files
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    lines
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["packets"].as_u64().unwrap()
        })
        .sum()
}

#[test]
fn a_kill_at_any_write_loses_nothing_and_doubles_nothing() {
    if !testenv::programs(&["strace"]) {
        return;
    }
    let Some(server) = Postgres::start() else {
        return;
    };
    let folder = Folder::new("kills-writes");
    let there = folder.path("out");
    fs::create_dir(&there).unwrap();
    let store = folder.path("ledger");
    let config = format!(
        "store = '{store}'\n[[counter]]\nspool = '{}'\n\
         [[output]]\nname = 'files'\nformat = 'json-lines'\nfolder = '{there}'\n\
         [[output]]\nname = 'db'\nformat = 'postgresql'\nconnection = '{}'\n",
        folder.path("one"),
        server.connection(),
    );
    let config = folder.write("mediator.toml", config.as_bytes());
    let mut spool = Spool::open(folder.path("one").as_ref()).unwrap();
    let (mut sum, mut kills) = (0, 0);
    // Each period is collected by a mediator that is killed at the next call, and what a kill has left
    // is found by the mediator that is killed at the one after.
    for call in 1..CALLS_MAX {
        let packets = [u64::from(call), 1000];
        sum += packets.iter().sum::<u64>();
        let mut chunks = [chunk("one", u64::from(call), &packets)];
        spool.store(&mut chunks, b"").unwrap();
        let run = traced(call, &["mediate", "--config", &config, "--once"]).unwrap();
        if run.status.success() {
            break;
        }
        kills += 1;
        assert!(run.stderr.is_empty(), "{call}: {run:?}");
    }
    println!("{kills} kills");
    assert!(kills > 20, "only {kills} kills");
    let run = weir(["mediate", "--config", &config, "--once"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    assert_eq!(spool.waiting().unwrap(), 0);
    assert_eq!(delivered(&there), sum);
    let packets = server.psql("SELECT sum(packets) FROM weir_usage");
    assert_eq!(packets, sum.to_string());
    let proof = weir(["usage", "--store", &store, "--prove", "--json"])
        .output()
        .unwrap();
    assert!(proof.status.success(), "{proof:?}");
    let proof: serde_json::Value = serde_json::from_str(&stdout(&proof)).unwrap();
    assert_eq!(proof["link"]["packets"][0], sum);
}
