//! `weir lab` in namespaces that it creates itself.

mod common;

use common::{interrupt, stdout, weir};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use weir_lab::net::unprivileged;
use weir_lab::testenv;

#[test]
fn two_hosts_talk() {
    if !testenv::root() {
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
    let socket = |at: usize| story["sockets"][at]["received"].as_u64().unwrap();
    assert_eq!([socket(0), socket(1), socket(2)], [100, 0, 100], "{story}");
    let port = |at: usize, what: &str| story["ports"][at][what].as_u64().unwrap();
    // Both directions of the echo, and of each datagram that the port accepts.
    assert_eq!([1, 2, 3].map(|at| port(at, "frames")), [20, 100, 100]);
    assert_eq!([1, 2, 3].map(|at| port(at, "lost")), [0; 3]);
    let all = port(0, "frames") + port(0, "lost");
    assert!(all > 420, "the copy of all saw {all}: {story}");
}

#[test]
fn a_person_sees_a_table() {
    if !testenv::root() {
        return;
    }
    let run = weir(["lab", "demo"]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let text = stdout(&run);
    assert!(text.contains("10 of 10 requests answered"), "{text}");
    assert!(text.contains("10.0.0.2"), "{text}");
}

/// With a kill of the bridge in the middle, which the kernel then is.
#[test]
fn the_meters_records_are_what_was_sent() {
    if !testenv::root() {
        return;
    }
    let run = weir(["lab", "meter-demo", "--json", "-n", "60"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let story: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(story["holds"], true, "{story}");
    let usage = story["usage"].as_array().unwrap();
    let counted = |row: &Value| row["counted"][0].as_u64().unwrap();
    // Alice's four parts and Bob's three, of two services; and Bob's last, after his session.
    assert_eq!(usage.iter().map(counted).sum::<u64>(), 60 * 8 * 2);
    assert_eq!(story["passed_without"], 60 * 4);
}

#[test]
fn a_signal_ends_it_early() {
    if !testenv::root() {
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
    if !testenv::root() {
        return;
    }
    for demo in ["demo", "meter-demo"] {
        let run = unprivileged::run(|| weir(["lab", demo]).output().unwrap());
        assert_eq!(run.status.code(), Some(1), "{run:?}");
        let message = String::from_utf8_lossy(&run.stderr);
        assert!(message.contains("a lab needs root"), "{message}");
    }
}
