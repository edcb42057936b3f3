//! Suites of others, on the kernel's sockets and then on weir's: commands of their own, since they take
//! minutes, and most need a build.

use crate::LIBRARY;
use crate::common::{Folder, weir};
use crate::live::open_folder;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_lab::net::{Lab, unprivileged};
use weir_lab::testenv;

/// Runs of a part by weir at most: a test fails if it does in all.
const RUNS_MAX: usize = 3;
/// Limit of one run.
const RUN_MAX: Duration = Duration::from_secs(400);

/// Ends of the names of tests that do not have the kernel's result, each with the reason.
const DIFFER: &[(&str, &str)] = &[
    (
        "test_above_fd_setsize",
        "opens all but 32 descriptors of the hard limit, where weir's count, too",
    ),
    (
        "emfile",
        "lowers the hard limit of descriptors, of which weir takes some",
    ),
    (
        "watcher_cross_stop",
        "lowers the hard limit of descriptors, of which weir takes some",
    ),
    (
        "ipc_listen_after_write",
        "passes a TCP socket on that is only bound",
    ),
    ("poll_oob", "urgent bytes are always in order"),
];

/// A program that prints the results of its tests.
struct Suite {
    /// Where it runs; the temporary folder if `None`.
    at: Option<PathBuf>,
    /// What is run in turn: a name, and the program.
    parts: Vec<(String, Vec<String>)>,
    /// Whether it runs as user nobody.
    is_nobodys: bool,
    /// The tests' results in what a part has printed, by name.
    results: fn(&str) -> BTreeMap<String, String>,
}

/// A suite's folder in that of [`FOLDER`].
fn folder(name: &str) -> PathBuf {
    let all = std::env::var_os(FOLDER);
    let all = all.unwrap_or_else(|| panic!("{FOLDER} names the folder of the suites"));
    let folder = Path::new(&all).join(name);
    assert!(folder.is_dir(), "there is no {}", folder.display());
    folder.canonicalize().unwrap()
}

const FOLDER: &str = "WEIR_SUITES";

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The results that Python's unittest prints with `-v`.
fn of_unittest(text: &str) -> BTreeMap<String, String> {
    let mut results = BTreeMap::new();
    let mut name = None;
    for line in text.lines() {
        if line.starts_with("test")
            && let Some((_, rest)) = line.split_once(" (")
            && let Some((full, _)) = rest.split_once(')')
        {
            name = Some(full.to_owned());
        }
        let words = ["ok", "FAIL", "ERROR", "expected failure"];
        let mut said = words
            .iter()
            .filter(|word| line.ends_with(&format!(" {word}")));
        let result = match said.next() {
            Some(word) => word,
            None if line.contains("... skipped ") => "skipped",
            // The result of a test that has printed something itself.
            None => match words.iter().find(|word| line == **word) {
                Some(word) => word,
                None => continue,
            },
        };
        if let Some(name) = name.take() {
            results.insert(name, result.to_owned());
        }
    }
    results
}

/// The results of lines such as `[ok]: name (12 ms)`, which may have colours.
fn of_redis(text: &str) -> BTreeMap<String, String> {
    let plain: Vec<&str> = text.split('\x1b').collect();
    let plain = plain.iter().map(|part| match part.split_once('m') {
        Some((code, rest)) if code.starts_with('[') => rest,
        _ => part,
    });
    let plain: String = plain.collect();
    let lines = plain.lines().filter_map(|line| {
        let (result, name) = line.strip_prefix('[')?.split_once("]: ")?;
        let result = ["ok", "err", "exception", "skip", "ignore"]
            .into_iter()
            .find(|one| *one == result)?;
        let name = name.rsplit_once(" (").map_or(name, |(name, _)| name);
        let name = name.split(" in tests/").next().unwrap_or(name);
        Some((name.to_owned(), result.to_owned()))
    });
    lines.collect()
}

/// The results of lines such as `ok 3 - name`, or `not ok 3 - name # SKIP reason`.
fn of_tap(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| {
        let (result, rest) = match line.strip_prefix("not ") {
            Some(rest) => ("not ok", rest),
            None => ("ok", line),
        };
        let (_, name) = rest.strip_prefix("ok ")?.split_once(" - ")?;
        let (name, note) = name.split_once(" # ").unwrap_or((name, ""));
        let result = if note.starts_with("SKIP") {
            "skipped"
        } else {
            result
        };
        Some((name.trim().to_owned(), result.to_owned()))
    });
    lines.collect()
}

/// The results of lines such as `PASS: 3 - name`.
fn of_automake(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| {
        let (result, name) = line.split_once(": ")?;
        ["PASS", "FAIL", "SKIP"].contains(&result).then_some(())?;
        // What has failed stands behind the name.
        let (number, _) = name.split_once(" - ")?;
        Some((format!("test {number}"), result.to_owned()))
    });
    lines.collect()
}

/// Sockets of weir and of the kernel in counts of `--stats-file`, of all processes that have said it.
fn sockets(text: &str) -> [u64; 2] {
    let mut sum = [0; 2];
    for (at, _) in text.match_indices("sockets of weir ") {
        let rest = &text[at + "sockets of weir ".len()..];
        let mut numbers = rest
            .split(|c: char| !c.is_ascii_digit())
            .filter(|word| !word.is_empty());
        for sum in &mut sum {
            *sum += numbers
                .next()
                .and_then(|number| number.parse().ok())
                .unwrap_or(0);
        }
    }
    sum
}

/// What a part prints with these options of `weir exec`.
fn run(suite: &Suite, program: &[String], options: &[&str], scratch: &Folder) -> String {
    let lab = Lab::new();
    let host = lab.host("suite").unwrap();
    let link = format!("shm:suite-{}", std::process::id());
    let mut command = if suite.is_nobodys {
        unprivileged::command(env!("CARGO_BIN_EXE_weir"))
    } else {
        weir([])
    };
    command.args(["exec", "--library", &scratch.path(LIBRARY)]);
    command.args(["--link", &link, "--addr", "192.0.2.5/24"]);
    command.args(options).arg("--").args(program);
    let temporary = scratch.path("");
    command.current_dir(suite.at.as_deref().unwrap_or(Path::new(&temporary)));
    command.env("TMPDIR", &temporary);
    let path = scratch.path("printed");
    let file = File::create(&path).unwrap();
    command.stdin(std::process::Stdio::null());
    command.stdout(file.try_clone().unwrap()).stderr(file);
    let mut process = host.spawn(command).unwrap();
    let ended = process.wait(RUN_MAX).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if ended.is_none() {
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(20)..].join("\n");
        println!("{program:?} {options:?} does not end:\n{last}");
    }
    text
}

/// Runs a suite's parts by the kernel's sockets, then by weir's, and prints what differs. Fails if a test
/// passes by the kernel's and has another result by weir's each time, unless [`DIFFER`] gives the reason.
fn compare(suite: &Suite, name: &str) {
    let scratch = open_folder(&format!("suite-{name}"));
    let library = weir_lab::c::folder_of(LIBRARY).join(LIBRARY);
    std::fs::copy(library, scratch.path(LIBRARY)).unwrap();
    let counts_file = scratch.path("counts");
    let mut all = [0; 2];
    let mut fails = Vec::new();
    for (part, program) in &suite.parts {
        let kernels = (suite.results)(&run(suite, program, &["--stack", "sys"], &scratch));
        assert!(
            !kernels.is_empty(),
            "{part} has no results on the kernel's sockets"
        );
        let mut differ: Option<BTreeSet<String>> = None;
        let mut last = BTreeMap::new();
        for at in 0..RUNS_MAX {
            let _ = std::fs::remove_file(&counts_file);
            let options = ["--loopback", "--stats-file", &counts_file];
            last = (suite.results)(&run(suite, program, &options, &scratch));
            let counts = sockets(&std::fs::read_to_string(&counts_file).unwrap_or_default());
            if at == 0 {
                all = [0, 1].map(|owner| all[owner] + counts[owner]);
                println!(
                    "{part}: kernel {}; weir {}; sockets of weir {}, of the kernel {}",
                    summary(&kernels),
                    summary(&last),
                    counts[0],
                    counts[1]
                );
            }
            let names = kernels.keys().chain(last.keys());
            let now: BTreeSet<String> = names
                .filter(|name| kernels.get(*name) != last.get(*name))
                .cloned()
                .collect();
            let both = match differ {
                None => now,
                Some(before) => before.intersection(&now).cloned().collect(),
            };
            let is_done = both.iter().all(|name| reason(name).is_some());
            differ = Some(both);
            if is_done {
                break;
            }
        }
        for name in differ.unwrap_or_default() {
            let of = |results: &BTreeMap<String, String>| {
                results.get(&name).map_or("none", String::as_str).to_owned()
            };
            let reason = reason(&name);
            println!(
                "  {name}: kernel {}, weir {}: {}",
                of(&kernels),
                of(&last),
                reason.unwrap_or("?")
            );
            // What fails on the kernel's sockets says nothing.
            let is_loss = ["ok", "PASS"].contains(&of(&kernels).as_str());
            if reason.is_none() && is_loss {
                fails.push(name);
            }
        }
    }
    let [weirs, others] = all;
    println!(
        "{name}: {weirs} of {} Internet sockets were weir's",
        weirs + others
    );
    assert!(fails.is_empty(), "{fails:#?}");
    assert!(
        weirs > 0 && weirs >= 9 * others,
        "too few sockets were weir's"
    );
}

fn reason(name: &str) -> Option<&'static str> {
    let found = DIFFER.iter().find(|(test, _)| name.ends_with(test));
    found.map(|(_, reason)| *reason)
}

fn summary(results: &BTreeMap<String, String>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for result in results.values() {
        *counts.entry(result).or_default() += 1;
    }
    let each: Vec<String> = counts
        .iter()
        .map(|(result, count)| format!("{count} {result}"))
        .collect();
    each.join(", ")
}

/// Python's own tests. Those of vsock(7) wait without end where there is a driver and no guest.
#[test]
#[ignore = "takes six minutes"]
fn suite_of_cpython() {
    if !testenv::root() || !testenv::file(PYTHON, "apt-get install libpython3.11-testsuite") {
        return;
    }
    let modules = [
        "test_socket",
        "test_selectors",
        "test_socketserver",
        "test_httplib",
        "test_ssl",
        "test_asyncio",
    ];
    let line = |module| format!("{PYTHON} -m test -v -u network -i *VSOCK* {module}");
    let suite = Suite {
        at: None,
        is_nobodys: true,
        parts: modules
            .map(|module| (module.to_owned(), words(&line(module))))
            .into(),
        results: of_unittest,
    };
    compare(&suite, "cpython");
}

const PYTHON: &str = "/usr/bin/python3.11";

/// Redis' own tests. The servers, and what they print, are the tests' own.
#[test]
#[ignore = "needs a build of redis: WEIR_SUITES=FOLDER"]
fn suite_of_redis() {
    if !testenv::root() || !testenv::programs(&["tclsh"]) {
        return;
    }
    let units = [
        "unit/networking",
        "unit/protocol",
        "unit/auth",
        "unit/pubsub",
        "unit/limits",
        "unit/querybuf",
    ];
    let line = |unit| format!("tclsh tests/test_helper.tcl --clients 1 --single {unit}");
    let suite = Suite {
        at: Some(folder("redis")),
        is_nobodys: false,
        parts: units
            .map(|unit| (unit.to_owned(), words(&line(unit))))
            .into(),
        results: of_redis,
    };
    compare(&suite, "redis");
}

/// As user nobody, since it does not run as root.
#[test]
#[ignore = "needs a build of libuv: WEIR_SUITES=FOLDER"]
fn suite_of_libuv() {
    if !testenv::root() {
        return;
    }
    let suite = Suite {
        at: Some(folder("libuv")),
        is_nobodys: true,
        parts: vec![("libuv".to_owned(), words("test/run-tests"))],
        results: of_tap,
    };
    compare(&suite, "libuv");
}

/// Has the host for all that it starts: curl's tests kill the servers that they start, of which the first would
/// have it.
const STAYS: &str = "
import socket, subprocess, sys
stays = socket.create_server(('127.0.0.1', 0))
sys.exit(subprocess.call(sys.argv[1:]))
";

/// The first of curl's own tests, without those that its authors call flaky.
#[test]
#[ignore = "needs a build of curl: WEIR_SUITES=FOLDER"]
fn suite_of_curl() {
    if !testenv::root() || !testenv::programs(&["perl", "python3"]) {
        return;
    }
    let parts = ["1 to 100", "101 to 200", "201 to 300"].map(|range| {
        let line = format!("perl -I. ./runtests.pl -a -am -n {range} !flaky");
        let stays = ["python3", "-c", STAYS].map(str::to_owned);
        (range.to_owned(), [&stays[..], &words(&line)].concat())
    });
    let suite = Suite {
        at: Some(folder("curl").join("tests")),
        is_nobodys: false,
        parts: parts.into(),
        results: of_automake,
    };
    compare(&suite, "curl");
}

#[test]
#[ignore = "needs a build of uvloop: WEIR_SUITES=FOLDER"]
fn suite_of_uvloop() {
    if !testenv::root() {
        return;
    }
    let modules = [
        "test_aiohttp",
        "test_base",
        "test_cython",
        "test_dns",
        "test_pipes",
        "test_process",
        "test_regr1",
        "test_signals",
        "test_sockets",
        "test_tcp",
        "test_udp",
        "test_unix",
    ];
    let line = |module| format!("venv/bin/python -m unittest -v tests.{module}");
    let suite = Suite {
        at: Some(folder("uvloop")),
        is_nobodys: false,
        parts: modules
            .map(|module| (module.to_owned(), words(&line(module))))
            .into(),
        results: of_unittest,
    };
    compare(&suite, "uvloop");
}

/// Each with lines of a suite, and a line that is none.
#[test]
fn results_of_suites_are_read() {
    let pairs = |results: BTreeMap<String, String>| {
        let pairs = results
            .into_iter()
            .map(|(name, result)| format!("{name} {result}"));
        pairs.collect::<Vec<_>>()
    };
    let unittest = "\
test_one (test.test_socket.A.test_one) ... ok
test_two (test.test_socket.A.test_two)
What it is. ... FAIL
test_three (test.test_socket.A.test_three) ... skipped 'no driver'
test_four (test.test_socket.A.test_four) ... printed by the test
ok
test_five (test.test_socket.A.test_five) ... expected failure
Ran 5 tests in 0.1s
OK
";
    assert_eq!(
        pairs(of_unittest(unittest)),
        [
            "test.test_socket.A.test_five expected failure",
            "test.test_socket.A.test_four ok",
            "test.test_socket.A.test_one ok",
            "test.test_socket.A.test_three skipped",
            "test.test_socket.A.test_two FAIL",
        ]
    );
    let redis = "\
[\x1b[0;32mok\x1b[0m]: Pipelining (works) (12 ms)
[err]: AUTH fails in tests/unit/auth.tcl
[testing]: unit/auth
[1/1 done]: unit/auth (2 seconds)
";
    assert_eq!(
        pairs(of_redis(redis)),
        ["AUTH fails err", "Pipelining (works) ok"]
    );
    let tap = "\
1..3
ok 1 - tcp_bind
not ok 2 - tcp_open
# Output from process `tcp_open`:
ok 3 - udp_send # SKIP no network
";
    assert_eq!(
        pairs(of_tap(tap)),
        ["tcp_bind ok", "tcp_open not ok", "udp_send skipped"]
    );
    let automake = "\
PASS: 1 - HTTP GET
FAIL: 2 - HTTP PUT data, protocol
SKIP: 3 - curl lacks IPv6
TESTDONE: 2 tests
";
    assert_eq!(
        pairs(of_automake(automake)),
        ["test 1 PASS", "test 2 FAIL", "test 3 SKIP"]
    );
    let counts = "\
process 7: sockets of weir 12, of the kernel 3
process 7: calls on weir's: read 5
process 8: sockets of weir 1, of the kernel 0
";
    assert_eq!(sockets(counts), [13, 3]);
}
