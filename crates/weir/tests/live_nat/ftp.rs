//! FTP through `weir nat --ftp`: ftplib and a small server, in active mode from the inside, and in
//! passive mode to a server of the inside.

use super::{INSIDE, Net, OUTSIDE, POOL};
use crate::live;
use std::fs;
use weir_lab::net::{Host, Signal};
use weir_lab::testenv;

/// An exchange of files in both directions, which must succeed.
fn exchange(host: &Host, to: &str, how: &str) {
    let client = live::peer(host, "ftp.py", &["client", to, how]);
    let ended = client.end();
    assert_eq!(ended.code, Some(0), "{how}: {ended:?}");
    assert_eq!(ended.stdout.trim(), "good", "{how}: {ended:?}");
}

#[test]
fn ftp_in_active_mode_and_to_a_server_of_the_inside() {
    if !testenv::programs(&["python3"]) {
        return;
    }
    let Some(net) = Net::new("nat-ftp") else {
        return;
    };
    let json = net.folder.path("stats.json");
    let forward = format!("tcp:{POOL}:21={INSIDE}:21");
    let running = net.start(&["--ftp", "--forward", &forward, "--stats-json", &json]);
    let outside = live::peer(&net.b, "ftp.py", &["server", OUTSIDE]).until("ready");
    let inside = live::peer(&net.a, "ftp.py", &["server", INSIDE]).until("ready");
    for how in ["active", "eprt", "pieces", "pasv"] {
        exchange(&net.a, OUTSIDE, how);
    }
    for how in ["pasv", "epsv", "active"] {
        exchange(&net.b, POOL, how);
    }
    running.stop();
    // What each server was asked to connect to.
    for (server, address) in [(outside, POOL), (inside, OUTSIDE)] {
        server.signal_at_once(Signal::TERM);
        let ended = server.end();
        let named = ended
            .stderr
            .lines()
            .filter(|line| line.starts_with("named "));
        let named: Vec<&str> = named.collect();
        let expected = format!("named {address} ");
        assert!(!named.is_empty(), "{ended:?}");
        assert!(
            named.iter().all(|line| line.starts_with(&expected)),
            "{ended:?}"
        );
    }
    let report: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let counters = &report["stages"][0]["counters"];
    // Each of three rounds has two texts: three ways out, two ways in.
    assert_eq!(counters["ftp_texts"], 3 * 2 * 5, "{report}");
    assert_eq!(counters["ftp_refused"], 0, "{report}");
}

/// Without the gateway the same exchange fails: the test notices.
#[test]
fn without_the_gateway_active_mode_fails() {
    if !testenv::programs(&["python3"]) {
        return;
    }
    let Some(net) = Net::new("nat-no-ftp") else {
        return;
    };
    let running = net.start(&[]);
    let outside = live::peer(&net.b, "ftp.py", &["server", OUTSIDE]).until("ready");
    exchange(&net.a, OUTSIDE, "pasv");
    let client = live::peer(&net.a, "ftp.py", &["client", OUTSIDE, "active"]);
    assert_ne!(client.end().code, Some(0));
    running.stop();
    outside.signal_at_once(Signal::TERM);
    outside.end();
}
