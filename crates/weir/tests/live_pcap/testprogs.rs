//! libpcap's own test programs, by the system's libpcap and by weir's: a command of its own, since it
//! needs a build of them.

use super::{Bench, POLICY, bench};
use crate::live::{Running, WAIT_MAX};
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_lab::net::Signal;
use weir_lab::testenv;

/// How a program ends.
enum End {
    /// By itself.
    Alone,
    /// By SIGINT, after a line with these words.
    After(&'static str),
}

use End::{After, Alone};

struct Case {
    words: &'static [&'static str],
    end: End,
    /// What weir's output has in place of the system's, and why that is right.
    differs: Option<(&'static str, &'static str)>,
}

const fn case(words: &'static [&'static str], end: End) -> Case {
    Case {
        words,
        end,
        differs: None,
    }
}

const SEEN: &str = "packets seen";

const CASES: [Case; 25] = [
    case(&["activatetest"], Alone),
    case(&["can_set_rfmon_test", "eth0"], Alone),
    case(
        &["capturetest", "-i", "eth0", "-t", "100", "-s", "-b", "udp"],
        After(SEEN),
    ),
    case(
        &[
            "capturetest",
            "-i",
            "eth0",
            "-t",
            "1000",
            "-s",
            "-b",
            "-r",
            "udp",
        ],
        After(SEEN),
    ),
    case(
        &["capturetest", "-i", "eth0", "-m", "-s", "-b", "udp"],
        After(SEEN),
    ),
    case(
        &[
            "capturetest",
            "-i",
            "eth0",
            "-n",
            "-t",
            "100",
            "-s",
            "-b",
            "udp",
        ],
        After(SEEN),
    ),
    case(&["capturetest", "-i", "weirnone"], Alone),
    case(
        &["filtertest", "EN10MB", "tcp port 80 and host 10.0.0.1"],
        Alone,
    ),
    case(&["filtertest", "-O", "RAW", "icmp6 or vlan 3"], Alone),
    case(&["filtertest", "EN10MB", "udp udp"], Alone),
    case(&["findalldevstest"], Alone),
    case(&["findalldevstest-perf"], Alone),
    Case {
        words: &["nonblocktest", "-i", "eth0"],
        end: Alone,
        differs: Some((
            "exit 1: pcap_setnonblock succeeded even though file table is full",
            "the last check wants a failure; weir's needs no descriptor for it",
        )),
    },
    case(&["opentest", "-i", "eth0"], Alone),
    case(&["opentest", "-i", "eth0", "-I"], Alone),
    case(&["opentest", "-i", "weirnone"], Alone),
    case(&["reactivatetest"], Alone),
    case(&["selpolltest", "-i", "eth0", "udp"], After(SEEN)),
    case(&["selpolltest", "-i", "eth0", "-n", "udp"], After(SEEN)),
    case(&["selpolltest", "-i", "eth0", "-s", "udp"], After(SEEN)),
    case(
        &["selpolltest", "-i", "eth0", "-s", "-t", "-n", "udp"],
        After(SEEN),
    ),
    case(&["selpolltest", "-i", "eth0", "-p", "udp"], After(SEEN)),
    case(
        &["selpolltest", "-i", "eth0", "-p", "-t", "-n", "udp"],
        After(SEEN),
    ),
    case(&["valgrindtest", "-i", "eth0", "udp"], Alone),
    case(
        &["writecaptest", "-i", "eth0", "-w", "/dev/null", "udp"],
        After(SEEN),
    ),
];

/// These wait for a minute before they break the loop of a thread: both at once.
const SLOW: [&[&str]; 2] = [
    &["threadsignaltest", "-i", "eth0", "udp port 9"],
    &["threadsignaltest", "-n", "-i", "eth0", "udp port 9"],
];

/// The result of a program in words that do not depend on when frames came, or on the library's name.
fn result(code: Option<i32>, out: &str, errors: &str) -> String {
    for line in out.lines().filter(|line| line.contains(SEEN)) {
        // `10 packets seen, 10 packets counted after select returns`
        let numbers: Vec<&str> = line
            .split(' ')
            .filter(|word| word.parse::<u32>().is_ok())
            .collect();
        if numbers.is_empty() || numbers.iter().any(|number| *number != numbers[0]) {
            return format!("counts wrongly: {line}");
        }
    }
    let end = code.map_or("by the signal".to_owned(), |code| format!("exit {code}"));
    let broken = if out.contains("got broken") || out.contains("Broken out") {
        ", broken"
    } else {
        ""
    };
    if code == Some(0) || code.is_none() {
        return format!("{end}{broken}");
    }
    // Without the program's name, and what is in brackets behind it.
    let said = errors.lines().rfind(|line| !line.starts_with('('));
    let said = said.or(out.lines().last()).unwrap_or_default();
    let said = said.split_once(": ").map_or(said, |(_, said)| said);
    let said = said.split(" (").next().unwrap_or_default();
    format!("{end}: {said}")
}

fn finish(mut running: Running, end: &End) -> String {
    let mut out = BufReader::new(running.take_stdout());
    let mut said = String::new();
    if let After(words) = end {
        while !said.lines().last().unwrap_or_default().contains(words) {
            if out.read_line(&mut said).unwrap() == 0 {
                break;
            }
        }
        running.signal_at_once(Signal::INT);
    }
    out.read_to_string(&mut said).unwrap();
    let ended = running.end();
    result(ended.code, &said, &ended.stderr)
}

impl Bench {
    /// Starts a program of the folder, as root by the system's libpcap, or as user nobody by weir's.
    fn testprog(&self, words: &[&str], by_weir: bool) -> Running {
        let program = self.folder.path(words[0]);
        let line = [&["stdbuf", "-oL", &program], &words[1..]].concat();
        if by_weir {
            return self.exec(&line);
        }
        let stdbuf = testenv::program("stdbuf").expect("the test has asked for it");
        Running::start(&self.net.b, stdbuf, &line[1..])
    }
}

/// `WEIR_LIBPCAP_TESTPROGS` names the folder of the programs, linked to the system's libpcap:
/// `WEIR_LIBPCAP_TESTPROGS=FOLDER cargo test -p weir --test live_pcap -- --ignored --nocapture`.
#[test]
#[ignore = "needs a build of libpcap's testprogs: WEIR_LIBPCAP_TESTPROGS=FOLDER"]
fn libpcaps_own_programs_find_no_difference() {
    // One of the programs opens the loopback interface.
    let policy = POLICY.replace("\"eth0\"", "\"eth0\", \"lo\"");
    let Some(bench) = bench("pcap-testprogs", &policy, &["stdbuf"]) else {
        return;
    };
    let folder = std::env::var("WEIR_LIBPCAP_TESTPROGS");
    let folder = folder.expect("WEIR_LIBPCAP_TESTPROGS names the folder of the programs");
    for entry in std::fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        std::fs::copy(entry.path(), bench.folder.path(&name)).unwrap();
    }
    let needed = CASES
        .iter()
        .map(|case| case.words[0])
        .chain(SLOW.map(|words| words[0]));
    let missing: Vec<&str> = needed.filter(|name| !bench.folder.has(name)).collect();
    assert!(
        missing.is_empty(),
        "{folder} lacks {missing:?}: docs/contributing/testing.md says how they are made"
    );
    let ends = AtomicBool::new(false);
    let mut rows = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _server = bench.net.server(5000);
            let began = std::time::Instant::now();
            while !ends.load(Ordering::Relaxed) && began.elapsed() < WAIT_MAX * 5 {
                bench.net.send(5000, 3);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let slow: Vec<Running> = SLOW
            .iter()
            .flat_map(|words| [false, true].map(|by_weir| bench.testprog(words, by_weir)))
            .collect();
        for case in &CASES {
            let [system, weirs] =
                [false, true].map(|by_weir| finish(bench.testprog(case.words, by_weir), &case.end));
            rows.push((case.words, system, weirs, case.differs));
        }
        let mut slow = slow.into_iter().map(|running| finish(running, &Alone));
        for words in SLOW {
            let (system, weirs) = (slow.next().unwrap(), slow.next().unwrap());
            rows.push((words, system, weirs, None));
        }
        ends.store(true, Ordering::Relaxed);
    });
    let mut faults = Vec::new();
    println!("| program | the system's libpcap | weir's |\n|---|---|---|");
    for (words, system, weirs, differs) in rows {
        let words = words.join(" ");
        let why = differs.map_or(String::new(), |(_, why)| format!(" ({why})"));
        println!("| `{words}` | {system} | {weirs}{why} |");
        let expected = differs.map_or(&*system, |(expected, _)| expected);
        if weirs != expected {
            faults.push(words);
        }
    }
    assert!(faults.is_empty(), "different: {faults:?}");
}
