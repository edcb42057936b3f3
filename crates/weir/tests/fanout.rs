//! `--fanout` of files: the shares of a capture, and what is refused.

mod common;

use common::{Folder, frame, interface, section, stdout, weir};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Output;
use weir_demux::fanout::{Layout, Share, bucket};
use weir_lab::testenv;
use weir_link::pcap::Reader;
use weir_wire::LinkType;

/// The largest capture that is divided, in bytes.
const CAPTURE_BYTES_MAX: u64 = 1 << 18;

fn stderr(run: &Output) -> String {
    String::from_utf8_lossy(&run.stderr).into_owned()
}

/// Frames in the order of a file, which is empty if there were none to write.
fn frames(path: &str) -> Vec<Vec<u8>> {
    if fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        return Vec::new();
    }
    let mut reader = Reader::open(path).expect("a capture opens");
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = reader.next_frame() {
        frames.push(frame.bytes.to_vec());
    }
    frames
}

/// Captures of Ethernet, whole and not large.
fn captures() -> Vec<String> {
    let files = testenv::capture_files().into_iter();
    let small =
        files.filter(|path| fs::metadata(path).is_ok_and(|file| file.len() < CAPTURE_BYTES_MAX));
    let paths = small.map(|path| path.to_string_lossy().into_owned());
    let is_whole = |path: &String| {
        let Ok(mut reader) = Reader::open(path) else {
            return false;
        };
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) if frame.linktype() == LinkType::EN10MB => {}
                Ok(None) => return true,
                _ => return false,
            }
        }
    };
    paths.filter(is_whole).take(6).collect()
}

/// Each frame of a capture is in one share, that of its flow, and in order.
#[test]
fn shares_of_captures_are_all_of_them_once() {
    let folder = Folder::new("fanout-shares");
    let mut used = BTreeSet::new();
    for capture in captures() {
        let all = frames(&capture);
        let mut shares: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
        for index in 0..4 {
            let out = folder.path(&format!("{index}.pcap"));
            let share = format!("{index}/4");
            let mut run = weir([
                "listen", "-r", &capture, "--fanout", &share, "-q", "-w", &out,
            ]);
            let run = run.args(["--json"]).output().unwrap();
            assert_eq!(run.status.code(), Some(0), "{run:?}");
            shares.insert(index, frames(&out));
        }
        for frame in &all {
            let bucket = bucket(frame, Layout::ETHERNET);
            let has = |index: &u32| Share::new(*index, 4).unwrap().has(bucket);
            let index = (0..4).find(has).expect("one share has it");
            used.insert(index);
            let share = shares.get_mut(&index).expect("it was read");
            assert!(!share.is_empty() && share.remove(0) == *frame, "{capture}");
        }
        assert!(shares.values().all(Vec::is_empty), "{capture}: no more");
    }
    assert!(used.is_empty() || used.len() == 4, "{used:?}");
}

/// `weir demux` counts the same share.
#[test]
fn a_division_of_shares_adds_up() {
    for capture in captures() {
        let count = |more: &[&str]| {
            let mut run = weir(["demux", "-r", &capture, "-p", "tcp=tcp", "--json"]);
            let run = run.args(more).output().unwrap();
            assert_eq!(run.status.code(), Some(0), "{run:?}");
            let report: serde_json::Value = serde_json::from_str(&stdout(&run)).unwrap();
            let frames = report["ports"].as_array().expect("ports").iter();
            let taken: u64 = frames.map(|port| port["frames"].as_u64().unwrap()).sum();
            taken + report["default"]["frames"].as_u64().unwrap_or(0)
        };
        let shares = ["0/3", "1/3", "2/3"].map(|share| count(&["--fanout", share]));
        assert_eq!(shares.iter().sum::<u64>(), count(&[]), "{capture}");
    }
}

#[test]
fn what_is_no_share_is_named_with_the_remedy() {
    let folder = Folder::new("fanout-refused");
    let ethernet = [section(), interface(1), frame(0, 14, 53)].concat();
    let file = folder.write("ethernet.pcapng", &ethernet);
    for (value, words) in [
        ("4/4", "I from 0 to N-1, such as 0/4"),
        ("0/0", "N from 1 to 64"),
        ("1/65", "N from 1 to 64"),
        ("x/2", "write I/N"),
        ("x", "0/4"),
        ("4", "0/4"),
        ("", "0/4"),
        ("a b", "0/4"),
    ] {
        for command in [
            weir(["listen", "-r", &file, "--fanout", value]),
            weir(["demux", "-r", &file, "-p", "a=", "--fanout", value]),
        ] {
            let run = { command }.output().unwrap();
            let said = stderr(&run);
            assert_eq!(run.status.code(), Some(2), "{value}: {run:?}");
            assert!(
                said.contains(words) && said.contains(value),
                "{value}: {said}"
            );
        }
    }
    for value in ["4/4", "0/0", "a b", "65"] {
        let run = weir(["listen", "lo", "--fanout", value]).output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{value}: {run:?}");
        assert!(stderr(&run).contains(&format!("`{value}`")), "{run:?}");
    }
    // Token Ring has no flows that weir knows.
    let file = folder.write("ring.pcapng", &[section(), interface(6)].concat());
    for command in [
        weir(["listen", "-r", &file, "--fanout", "0/4"]),
        weir(["demux", "-r", &file, "-p", "a=", "--fanout", "0/4"]),
    ] {
        let run = { command }.output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        let said = stderr(&run);
        assert!(
            said.contains("link type 6") && said.contains("0/4"),
            "{said}"
        );
    }
}
