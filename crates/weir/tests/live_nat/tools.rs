//! iperf3 and DNS through `weir nat`.

use super::{Net, OUTSIDE, POOL, metric};
use crate::live::{Running, run};
use serde_json::Value;
use std::net::UdpSocket;
use std::time::Instant;
use weir_lab::testenv;
use weir_lab::wait::WAIT_MAX;

/// By TCP in both directions, and by datagrams; the kernel serves most of it.
#[test]
fn iperf3_measures_through_it() {
    if !testenv::programs(&["iperf3"]) {
        return;
    }
    let Some(net) = Net::new("nat-iperf3") else {
        return;
    };
    net.take_redirected();
    let running = net.start(&["--metrics", "127.0.0.1:0"]);
    let server = testenv::program("iperf3").unwrap();
    let mut server = Running::start(&net.b, server, &["-s", "--forceflush"]);
    drop(server.take_stdout());
    for options in [
        &[][..],
        &["-R"],
        &["-P", "4"],
        &["-u", "-b", "5M", "-l", "1200"],
    ] {
        let began = Instant::now();
        // Until the server listens.
        let report = loop {
            let arguments = [&["-c", OUTSIDE, "-t", "1", "-J"], options].concat();
            let said = run(&net.a, "iperf3", &arguments).unwrap();
            let report: Value = serde_json::from_str(&said).unwrap_or_default();
            let end = &report["end"];
            let sum = ["sum_received", "sum"].map(|name| &end[name]["bits_per_second"]);
            if sum.iter().any(|rate| rate.as_f64() > Some(1e6)) {
                break report;
            }
            assert!(began.elapsed() < WAIT_MAX, "{options:?}: {said}");
        };
        assert!(report["error"].is_null(), "{report}");
    }
    let metrics = running.metrics(&net.r);
    let fast = metric(&metrics, "weir_run_fast_frames_total");
    assert!(fast > Some(1000), "{metrics}");
    running.stop();
}

/// A query for the address of a name (RFC 1035 §4.1).
fn query(id: u16) -> Vec<u8> {
    let header = [id >> 8, id & 0xff, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0].map(|byte| byte as u8);
    let question = b"\x03www\x07example\x00\x00\x01\x00\x01";
    [&header[..], question].concat()
}

/// Each query comes of another port, as a resolver sends them.
#[test]
fn names_are_resolved_through_it() {
    if !testenv::programs(&["dnsmasq"]) {
        return;
    }
    let Some(net) = Net::new("nat-dns") else {
        return;
    };
    let running = net.start(&[]);
    let log = net.folder.path("queries");
    let mut options: Vec<String> =
        "--no-daemon --conf-file=/dev/null --no-resolv --no-hosts --user= \
         --bind-interfaces --log-queries --address=/www.example/192.0.2.7"
            .split_whitespace()
            .map(str::to_owned)
            .collect();
    options.push(format!("--listen-address={OUTSIDE}"));
    options.push(format!("--log-facility={log}"));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let server = testenv::program("dnsmasq").unwrap();
    let server = Running::start(&net.b, server, &options);
    let began = Instant::now();
    let mut answered = 0;
    for id in 0.. {
        let client = net.a.run(|| UdpSocket::bind("10.0.0.9:0").unwrap());
        client
            .set_read_timeout(Some(std::time::Duration::from_millis(500)))
            .unwrap();
        client.send_to(&query(id), (OUTSIDE, 53)).unwrap();
        let mut buffer = [0; 512];
        // Until the server listens.
        if let Ok((len, from)) = client.recv_from(&mut buffer) {
            let answer = &buffer[..len];
            assert_eq!(from.to_string(), format!("{OUTSIDE}:53"));
            assert_eq!(answer[..2], id.to_be_bytes());
            assert!(answer.ends_with(&[192, 0, 2, 7]), "{answer:02x?}");
            answered += 1;
        }
        if answered == 50 {
            break;
        }
        assert!(began.elapsed() < WAIT_MAX, "{answered} answers");
    }
    running.stop();
    server.signal_at_once(weir_lab::net::Signal::TERM);
    server.end();
    let lines = std::fs::read_to_string(&log).unwrap();
    let asked = lines
        .lines()
        .filter(|line| line.contains("query[A] www.example from "));
    let asked: Vec<&str> = asked.collect();
    assert!(
        asked.len() >= 50 && asked.iter().all(|line| line.ends_with(POOL)),
        "{lines}"
    );
}
