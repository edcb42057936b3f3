//! `weir lab` in namespaces that it makes itself.

mod common;

use common::{interrupt, stdout, weir};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use weir_lab::need;
use weir_lab::net::nobody;

#[test]
fn two_hosts_talk() {
    if !need::root() {
        return;
    }
    let run = weir(["lab", "demo", "--json"]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let story: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(story["answered"], story["pings"], "{story}");
    assert!(story["tcp_bits_per_second"].as_f64().unwrap() > 1e6);
    let count = |host: usize, what: &str| story["devices"][host][what].as_u64().unwrap();
    for (from, to) in [(0, 1), (1, 0)] {
        let sent = count(from, "sent");
        assert!(sent > count(from, "dropped"), "{story}");
        assert!(count(to, "received") <= sent, "{story}");
    }
    assert!(count(0, "sent") >= 9_000, "{story}");
}

#[test]
fn a_person_sees_a_table() {
    if !need::root() {
        return;
    }
    let run = weir(["lab", "demo"]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let text = stdout(&run);
    assert!(text.contains("10 of 10 requests answered"), "{text}");
    assert!(text.contains("10.0.0.2"), "{text}");
}

#[test]
fn a_signal_ends_it_early() {
    if !need::root() {
        return;
    }
    let child = weir(["lab", "demo"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(100));
    interrupt(&child);
    let run = child.wait_with_output().unwrap();
    assert_eq!(run.status.code(), Some(130), "{run:?}");
    assert!(run.stdout.is_empty(), "{run:?}");
}

#[test]
fn without_privilege_it_says_what_it_needs() {
    if !need::root() {
        return;
    }
    let run = nobody::run(|| weir(["lab", "demo"]).output().unwrap());
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let message = String::from_utf8_lossy(&run.stderr);
    assert!(message.contains("a lab needs root"), "{message}");
}
