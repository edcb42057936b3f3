//! `weir top` without a terminal: its counts are those of `weir listen`.

mod common;

use common::{Folder, capture, stdout, weir};
use serde_json::Value;
use std::process::Output;
use weir_lab::command::Resource;
use weir_lab::testenv;
use weir_link::pcap::Reader;

/// The last line as JSON.
fn json(run: &Output) -> Value {
    let text = stdout(run);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

fn stderr(run: &Output) -> String {
    String::from_utf8_lossy(&run.stderr).into_owned()
}

/// The sum of a member over rows.
fn sum(rows: &Value, of: impl Fn(&Value) -> u64) -> u64 {
    rows.as_array().unwrap().iter().map(of).sum()
}

#[test]
fn counts_equal_those_of_listen_on_every_capture() {
    for path in testenv::capture_files() {
        let path = path.to_str().unwrap();
        for filter in ["", "tcp or vlan", "udp port 53 or icmp"] {
            let listen = weir(["listen", "-r", path, "--quiet", "--json", filter]);
            let listen = { listen }.output().unwrap();
            let top = weir(["top", "-r", path, "--once", "--json", filter])
                .output()
                .unwrap();
            assert_eq!(
                top.status.code(),
                listen.status.code(),
                "{path} {filter}: {top:?}"
            );
            if listen.stdout.is_empty() {
                continue;
            }
            let (listen, top) = (json(&listen), json(&top));
            for member in ["frames", "bytes", "lost"] {
                assert_eq!(top[member], listen[member], "{path} {filter}: {member}");
            }
            let all = top["frames"].as_u64().unwrap();
            let of = |name: &'static str| move |row: &Value| row[name].as_u64().unwrap();
            let protocols = sum(&top["protocols"], of("frames"));
            assert_eq!(protocols, all, "{path} {filter}");
            let conversations = sum(&top["conversations"], |row| {
                row["a_to_b"]["frames"].as_u64().unwrap()
                    + row["b_to_a"]["frames"].as_u64().unwrap()
            });
            assert_eq!(conversations, all, "{path} {filter}");
            let sent = sum(&top["talkers"], |row| {
                row["sent"]["frames"].as_u64().unwrap()
            });
            assert_eq!(sent, all, "{path} {filter}");
        }
    }
}

#[test]
fn rows_that_are_not_listed_are_in_others() {
    let folder = Folder::new("top-rows");
    let path = folder.write("a.pcap", &capture(&[53, 53, 80, 443]));
    let run = weir(["top", "-r", &path, "--once", "--json", "--rows", "1"])
        .output()
        .unwrap();
    let all = json(&run);
    assert_eq!(all["conversations"].as_array().unwrap().len(), 1);
    assert_eq!(all["others"]["conversations"]["frames"], 2);
    let run = weir(["top", "-r", &path, "--once", "--rows", "1"])
        .output()
        .unwrap();
    let text = stdout(&run);
    assert!(
        text.starts_with("4 frames, 256 bytes, 0 lost, 3.000 s\n"),
        "{text}"
    );
    assert!(
        text.lines().any(|line| line.starts_with("others")),
        "{text}"
    );
}

/// More than a table has rows.
#[test]
fn a_hundred_thousand_conversations_are_counted() {
    const FRAMES: usize = 110_000;
    /// A record of `capture`, its header, and where the frame's source address is.
    const RECORD: usize = 16 + 64;
    const SOURCE: usize = 16 + 26;
    let mut bytes = capture(&vec![53; FRAMES]);
    for (number, record) in bytes[24..].chunks_exact_mut(RECORD).enumerate() {
        let address = 0x0a00_0000 + number as u32;
        record[SOURCE..SOURCE + 4].copy_from_slice(&address.to_be_bytes());
    }
    let folder = Folder::new("top-many");
    let path = folder.write("a.pcap", &bytes);
    let run = weir(["top", "-r", &path, "--once", "--json", "--rows", "100000"])
        .output()
        .unwrap();
    let all = json(&run);
    let rows = all["conversations"].as_array().unwrap();
    assert!(rows.len() > 90_000, "{}", rows.len());
    let other = all["others"]["conversations"]["frames"].as_u64().unwrap();
    assert_eq!(all["frames"], FRAMES);
    assert_eq!(rows.len() + other as usize, FRAMES);
}

#[test]
fn what_is_read_can_be_recorded_with_tls_keys() {
    let folder = Folder::new("top-record");
    let path = folder.write("a.pcap", &capture(&[53, 80, 443]));
    let keys = folder.write("keys.log", b"CLIENT_RANDOM 00 11\nCLIENT_RANDOM half a li");
    let out = folder.path("out.pcapng");
    let run = weir([
        "top",
        "-r",
        &path,
        "--once",
        "-w",
        &out,
        "--tls-keys",
        &keys,
    ])
    .output()
    .unwrap();
    assert!(run.status.success(), "{run:?}");
    let mut reader = Reader::open(&out).unwrap();
    let mut frames = 0;
    while reader.next_frame().unwrap().is_some() {
        frames += 1;
    }
    assert_eq!(frames, 3);
    let bytes = std::fs::read(&out).unwrap();
    let line = b"KSLT\x14\0\0\0CLIENT_RANDOM 00 11\n";
    assert!(
        bytes.windows(line.len()).any(|part| part == line),
        "the whole line"
    );
    let run = weir([
        "top",
        "-r",
        &path,
        "--once",
        "-w",
        &folder.path("b.pcap"),
        "--tls-keys",
        &keys,
    ]);
    let run = { run }.output().unwrap();
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert!(
        stderr(&run).contains("pcap has no place for TLS keys"),
        "{run:?}"
    );
}

#[test]
fn a_full_disk_is_said_and_what_was_recorded_is_whole() {
    let folder = Folder::new("top-full");
    let ports: Vec<u16> = (0..2_000).map(|number| number % 60_000).collect();
    let path = folder.write("a.pcap", &capture(&ports));
    let out = folder.path("out.pcapng");
    let mut top = weir(["top", "-r", &path, "--once", "--json", "-w", &out]);
    top.args(["--rows", "3"]);
    let run = top.limit(Resource::Fsize, 100_000).output().unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert!(stderr(&run).contains("it ends there, with "), "{run:?}");
    // The counts go on.
    assert_eq!(json(&run)["frames"], 2_000);
    let mut reader = Reader::open(&out).unwrap();
    let mut frames = 0;
    while reader.next_frame().unwrap().is_some() {
        frames += 1;
    }
    let said = stderr(&run).replace(',', "");
    let expected = format!("with {frames} frames");
    assert!(frames > 500 && said.contains(&expected), "{frames}: {said}");
}

#[test]
fn errors_say_what_to_do() {
    let folder = Folder::new("top-errors");
    let path = folder.write("a.pcap", &capture(&[53]));
    let mut cut = capture(&[53, 80]);
    cut.truncate(cut.len() - 5);
    let cut = folder.write("cut.pcap", &cut);
    for (arguments, code, words) in [
        (
            vec!["top", "-r", &path],
            2,
            "not a terminal: give --once, --json or --svg FILE",
        ),
        (vec!["top", "-r", &path, "--svg", &path], 2, "is being read"),
        (
            vec!["top", "-r", &path, "--once", "--view", "a.py"],
            2,
            "--view shows frames on the screen",
        ),
        (
            vec!["top", "-r", &path, "--svg", "/dev/full"],
            1,
            "cannot write /dev/full: No space",
        ),
        (vec!["top", "-r", &path, "--once", "tcp prot 5"], 2, "^^^^"),
        (
            vec!["top", "-r", "nowhere.pcap", "--once"],
            1,
            "nowhere.pcap",
        ),
        (
            vec!["top", "-r", &path, "--once", "-w", &path],
            2,
            "is being read",
        ),
        (
            vec!["top", "-r", &path, "--once", "--speed", "0"],
            2,
            "greater than 0",
        ),
        (
            vec!["top", "-r", &path, "--once", "--tls-keys", "/"],
            2,
            "--tls-keys /: a folder",
        ),
        (
            vec!["top", "-r", &path, "--once", "--tls-keys", "nowhere.log"],
            0,
            "--tls-keys nowhere.log: no such file yet",
        ),
        (vec!["top", "-r", &cut, "--once"], 1, "cut.pcap"),
    ] {
        let run = weir([]).args(&arguments).output().unwrap();
        assert_eq!(run.status.code(), Some(code), "{run:?}");
        assert!(stderr(&run).contains(words), "{words}: {run:?}");
    }
    // What was read before the damage counts.
    let run = weir(["top", "-r", &cut, "--once", "--json"])
        .output()
        .unwrap();
    assert_eq!(json(&run)["frames"], 1);
}
