//! `weir mediate` and `weir usage`: nothing lost, nothing twice, whatever ends the mediator.

mod common;

use common::chunks::chunk;
use common::{Folder, stdout, weir};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_ledger::{Format, Ledger, Spool};
use weir_wire::rng::SplitMix64;

/// Time limit of a wait.
const LIMIT: Duration = Duration::from_secs(30);

fn configure(folder: &Folder, counters: &[&str]) -> String {
    let mut text = format!("store = '{}'\ninterval = '1ms'\n", folder.path("ledger"));
    for counter in counters {
        text += &format!("[[counter]]\nspool = '{}'\n", folder.path(counter));
    }
    for (name, format) in [("billing", "csv"), ("archive", "json-lines")] {
        text += &format!(
            "[[output]]\nname = '{name}'\nformat = '{format}'\nfolder = '{}'\n",
            folder.path("")
        );
    }
    let path = folder.path("mediator.toml");
    fs::write(&path, text).unwrap();
    path
}

/// Packets in all files of an output's format.
fn packets_of_files(folder: &Path, format: Format) -> u64 {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = files.filter(|path| Format::of_path(path) == Some(format));
    files
        .map(|path| {
            let text = fs::read_to_string(path).unwrap();
            let packets = text.lines().filter_map(|line| match format {
                Format::Csv => line.split(',').nth_back(4)?.parse::<u64>().ok(),
                _ => {
                    let line: serde_json::Value = serde_json::from_str(line).unwrap();
                    line["packets"].as_u64()
                }
            });
            packets.sum::<u64>()
        })
        .sum()
}

#[test]
fn a_mediator_killed_at_any_time_loses_nothing_and_counts_nothing_twice() {
    const SEED: u64 = 18;
    println!("seed {SEED}");
    let mut random = SplitMix64::new(SEED);
    let folder = Folder::new("usage-kills");
    let counters = ["one", "two"];
    let config = configure(&folder, &counters);
    let mut spools = counters.map(|name| Spool::open(folder.path(name).as_ref()).unwrap());
    let mut sum = 0;
    let mut killed = 0;
    for period in 0..40 {
        let mut mediator = weir(["mediate", "--config", &config])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        for (spool, counter) in spools.iter_mut().zip(counters) {
            let packets: Vec<u64> = (0..200).map(|_| random.bits() % 1000).collect();
            sum += packets.iter().sum::<u64>();
            let mut chunks = [chunk(counter, period, &packets)];
            spool.store(&mut chunks, b"").unwrap();
        }
        let pause = Duration::from_micros(random.bits() % 60_000);
        if mediator.wait(pause).unwrap().is_none() {
            killed += 1;
            mediator.signal(Signal::KILL).unwrap();
        }
        mediator.ended(Duration::from_secs(30)).unwrap();
    }
    assert!(
        killed > 20,
        "only {killed} mediators were still there to be killed"
    );
    let run = weir(["mediate", "--config", &config, "--once", "--json"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    for spool in &spools {
        assert_eq!(spool.waiting().unwrap(), 0);
    }
    let store = folder.path("ledger");
    let proof = weir(["usage", "--store", &store, "--prove", "--json"])
        .output()
        .unwrap();
    assert!(proof.status.success(), "{proof:?}");
    let proof: serde_json::Value = serde_json::from_str(&stdout(&proof)).unwrap();
    assert_eq!(proof["holds"], true);
    assert_eq!(proof["link"]["packets"][0], sum);
    assert_eq!(proof["periods"].as_array().unwrap().len(), 80);
    for format in [Format::Csv, Format::JsonLines] {
        assert_eq!(
            packets_of_files(folder.path("").as_ref(), format),
            sum,
            "{format:?}"
        );
    }
}

#[test]
fn a_second_mediator_of_a_ledger_is_refused() {
    let folder = Folder::new("usage-second");
    let config = configure(&folder, &["one"]);
    drop(Spool::open(folder.path("one").as_ref()).unwrap());
    let ledger = weir_ledger::Ledger::open(folder.path("ledger").as_ref()).unwrap();
    let lock = ledger.lock().unwrap();
    let run = weir(["mediate", "--config", &config, "--once"])
        .output()
        .unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1));
    let holder = format!("process {} uses it", std::process::id());
    assert!(said.contains(&holder), "{said}");
    drop(lock);
    let run = weir(["mediate", "--config", &config, "--once"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
}

#[test]
fn a_full_disk_and_a_missing_folder_are_said_once_and_lose_nothing() {
    let folder = Folder::new("usage-missing");
    let config = configure(&folder, &["one"]);
    let text = fs::read_to_string(&config).unwrap();
    let there = folder.path("");
    let nowhere = folder.path("nowhere");
    let text = text.replace(
        &format!("folder = '{there}'"),
        &format!("folder = '{nowhere}'"),
    );
    fs::write(&config, text).unwrap();
    // No spool yet, and no folder.
    let run = weir(["mediate", "--config", &config, "--once"])
        .output()
        .unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(said.contains("no spool is there yet"), "{said}");
    let mut spool = Spool::open(folder.path("one").as_ref()).unwrap();
    spool.store(&mut [chunk("one", 0, &[1, 2])], b"").unwrap();
    let run = weir(["mediate", "--config", &config, "--once"])
        .output()
        .unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(said.matches("nowhere/billing-").count(), 1, "{said}");
    fs::create_dir(&nowhere).unwrap();
    let run = weir(["mediate", "--config", &config, "--once"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    assert_eq!(packets_of_files(Path::new(&nowhere), Format::Csv), 3);
}

/// What a mediator shows at `/metrics`: values by name and labels.
fn metrics(at: &str) -> BTreeMap<String, u64> {
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let value = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let name = name.strip_prefix("weir_mediate_").unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    lines.map(value).collect()
}

#[test]
fn metrics_show_counters_outputs_and_failures() {
    let folder = Folder::new("usage-metrics");
    let config = configure(&folder, &["one", "two"]);
    let nowhere = folder.path("nowhere");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replacen(
        &format!("folder = '{}'", folder.path("")),
        &format!("folder = '{nowhere}'"),
        1,
    );
    fs::write(&config, text).unwrap();
    let mut spool = Spool::open(folder.path("one").as_ref()).unwrap();
    for period in 0..3 {
        spool
            .store(&mut [chunk("one", period, &[1, 2])], b"")
            .unwrap();
    }
    let mut mediator = weir(["mediate", "--config", &config, "--metrics", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let errors = mediator.child_mut().stderr.take().unwrap();
    let mut lines = BufReader::new(weir_lab::wait::Limited::new(errors, "metrics")).lines();
    let at = lines.find_map(|line| {
        let line = line.unwrap();
        let at = line.strip_prefix("weir: metrics at http://")?;
        Some(at.strip_suffix("/metrics")?.to_owned())
    });
    let at = at.unwrap();
    let until = |holds: &dyn Fn(&BTreeMap<String, u64>) -> bool| {
        let began = Instant::now();
        loop {
            let now = metrics(&at);
            if holds(&now) {
                return now;
            }
            assert!(began.elapsed() < LIMIT, "{now:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // The folder of `billing` is not there, nor the spool of `two`.
    let now = until(&|now| now.get("output_position{output=\"archive\"}") == Some(&3));
    let of = |name: &str| now.get(name).copied();
    assert_eq!(of("chunks_total"), Some(3));
    assert_eq!(of("records_total"), Some(6));
    assert_eq!(of("counter_until_seconds{counter=\"one\"}"), Some(180));
    let left = format!("chunks_left{{spool=\"{}\"}}", folder.path("one"));
    assert_eq!(of(&left), Some(0));
    assert_eq!(of("output_waiting{output=\"archive\"}"), Some(0));
    assert_eq!(of("output_waiting{output=\"billing\"}"), Some(3));
    assert_eq!(of("alarm{source=\"output billing\"}"), Some(1));
    assert!(of("failures_total{source=\"output billing\"}") >= Some(1));
    assert!(of("ledger_bytes") > Some(0));
    let spool_of_two = format!("alarm{{source=\"{}\"}}", folder.path("two"));
    assert_eq!(of(&spool_of_two), Some(1), "{now:#?}");
    // It is over.
    fs::create_dir(&nowhere).unwrap();
    drop(Spool::open(folder.path("two").as_ref()).unwrap());
    let now = until(&|now| !now.keys().any(|name| name.starts_with("alarm{")));
    let of = |name: &str| now.get(name).copied();
    assert_eq!(of("output_waiting{output=\"billing\"}"), Some(0));
    assert_eq!(of("output_deliveries_total{output=\"billing\"}"), Some(1));
    mediator.signal(Signal::TERM).unwrap();
    assert!(mediator.ended(LIMIT).unwrap().success());
}

#[test]
fn a_table_is_what_a_person_reads() {
    let folder = Folder::new("usage-table");
    let store = folder.path("ledger");
    let run = weir(["usage", "--store", &store]).output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(said.contains("no store there yet"), "{said}");
    let mut ledger = Ledger::open(folder.path("ledger").as_ref()).unwrap();
    ledger
        .accept(&weir_ledger::encode(&chunk("one", 0, &[1, 2000])))
        .unwrap();
    let run = weir(["usage", "--store", &store]).output().unwrap();
    let table = stdout(&run);
    assert!(
        table.contains("subscriber-1  all           2,000   128,000"),
        "{table}"
    );
    assert!(
        table.ends_with(
            "Total: 2,001 packets with 128,064 bytes up, 0 packets with 0 bytes down.\n"
        ),
        "{table}"
    );
    let run = weir([
        "usage",
        "--store",
        &store,
        "--subscriber",
        "subscriber-0",
        "--json",
    ])
    .output()
    .unwrap();
    let rows: serde_json::Value = serde_json::from_str(&stdout(&run)).unwrap();
    assert_eq!(rows[0]["bytes"], serde_json::json!([64, 0]));
    assert_eq!(rows.as_array().unwrap().len(), 1);
    let run = weir(["usage", "--store", &store, "--since", "soon"])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(2));
    let svg = folder.path("usage.svg");
    let run = weir(["usage", "--store", &store, "--svg", &svg, "--zone", "UTC"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    assert!(
        fs::read_to_string(&svg)
            .unwrap()
            .contains("Usage from 1970-01-01T00:00")
    );
}

#[test]
fn a_ledger_is_backed_up_restored_and_cleared_of_a_name() {
    let folder = Folder::new("usage-keep");
    let (store, copy) = (folder.path("ledger"), folder.path("copy"));
    let mut ledger = Ledger::open(store.as_ref()).unwrap();
    ledger
        .accept(&weir_ledger::encode(&chunk("one", 0, &[1, 2000])))
        .unwrap();
    let mediate = |options: &[&str]| {
        let mut command = weir(["mediate"]);
        command.args(["--store", &store]).args(options);
        command.output().unwrap()
    };
    let run = mediate(&["--back-up", &copy]);
    assert!(run.status.success(), "{run:?}");
    let run = mediate(&["--erase", "subscriber-1", "--json"]);
    assert_eq!(stdout(&run), "{\"erased\":1}\n");
    let run = mediate(&["--erase", "subscriber-1\u{1b}"]);
    assert!(stdout(&run).ends_with("no subscriber subscriber-1\\u{1b}\n"));
    let table = || stdout(&weir(["usage", "--store", &store]).output().unwrap());
    assert!(table().contains("(erased)") && !table().contains("subscriber-1"));
    // The ledger is there: it is not overwritten.
    let run = mediate(&["--restore", &copy]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    drop(ledger);
    fs::remove_file(&store).unwrap();
    let run = mediate(&["--restore", &copy]);
    assert!(run.status.success(), "{run:?}");
    assert!(table().contains("subscriber-1"));
    let run = mediate(&["--delete-before", "1d"]);
    assert!(stdout(&run).contains("1 chunk"), "{run:?}");
    let empty = table();
    assert!(empty.contains("has no records yet"), "{empty}");
    for options in [
        &["--replay", "billing"][..],
        &["--erase", "a", "--once"],
        &["--erase", "a", "--delete-before", "1d"],
        &["--delete-before", "soon"],
        &["--period", "1"],
        &[],
    ] {
        assert_eq!(mediate(options).status.code(), Some(2), "{options:?}");
    }
    let run = mediate(&["--restore", &folder.path("none")]);
    assert!(
        String::from_utf8(run.stderr)
            .unwrap()
            .contains("no such file")
    );
}

#[test]
fn why_nothing_is_shown_is_said() {
    let folder = Folder::new("usage-empty");
    let store = folder.path("ledger");
    let mut ledger = Ledger::open(store.as_ref()).unwrap();
    let usage = |options: &[&str]| {
        let mut command = weir(["usage"]);
        stdout(
            &command
                .args(["--store", &store])
                .args(options)
                .output()
                .unwrap(),
        )
    };
    for option in ["--prove", "--planning"] {
        assert!(usage(&[option]).contains("no records yet"), "{option}");
    }
    ledger
        .accept(&weir_ledger::encode(&chunk("one", 0, &[1])))
        .unwrap();
    let said = usage(&["--subscriber", "bob", "--since", "2020-01-01"]);
    assert!(
        said.contains("No usage records match") && said.contains("--subscriber bob --since 2020"),
        "{said}"
    );
    assert!(usage(&["--audit"]).contains("No point has an audit counter"));
    assert_eq!(usage(&["--subscriber", "bob", "--json"]), "[]\n");
}
