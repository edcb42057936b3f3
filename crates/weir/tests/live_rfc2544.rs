//! `weir lab rfc2544` in namespaces that it creates itself.

mod common;

use common::{Folder, interrupt, stdout, weir};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use weir_lab::testenv;

/// The fastest settings that still measure.
const QUICK: [&str; 9] = [
    "lab",
    "rfc2544",
    "--duration=0.02",
    "--confirm=0",
    "--resolution=50",
    "--settle=1",
    "--sizes=64",
    "--attempts=5",
    "--peer=linux-bridge",
];

#[test]
fn peers_are_measured_beside_each_other_and_drawn() {
    if !testenv::root() {
        return;
    }
    let folder = Folder::new("rfc2544");
    let svg = format!("--svg={}", folder.path(""));
    let run = weir(QUICK)
        .args(["--peer=cable", "--json", "--tests=throughput,latency,loss"])
        .arg(svg)
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["sink"], "xdp");
    assert_eq!(report["seed"], 2544);
    for (index, name) in [(0, "linux-bridge"), (1, "cable")] {
        let found = &report["results"][index];
        assert_eq!(found["name"], name, "{report}");
        assert_eq!(found["size"], 64);
        let rate = found["throughput"]["frames_per_second"].as_f64();
        assert!(rate.unwrap() > 1000.0, "{report}");
        let times = &found["latency"];
        let ns = |name: &str| times[name].as_u64().unwrap();
        assert!(ns("min_ns") > 0 && ns("min_ns") <= ns("p50_ns"), "{report}");
        assert!(ns("p50_ns") <= ns("p999_ns") && ns("p999_ns") <= ns("max_ns"));
        assert!(found["loss"].as_array().unwrap().len() >= 2, "{report}");
    }
    for figure in ["throughput.svg", "latency.svg", "loss-64.svg"] {
        let drawn = std::fs::read_to_string(folder.path(figure)).unwrap();
        assert!(drawn.contains("linux-bridge") && drawn.contains("</svg>"));
    }
}

#[test]
fn what_is_required_of_a_bridge_is_recorded() {
    if !testenv::root() {
        return;
    }
    let folder = Folder::new("rfc2544-results");
    let file = folder.path("results.jsonl");
    let run = weir(QUICK)
        .args([
            "--tests=throughput",
            "--dut=weir bridge {a} {b} --bypass drop",
        ])
        .env("WEIR_RESULTS", &file)
        .output()
        .unwrap();
    // On a busy machine frames are lost, which is reported as a fault and recorded.
    assert!(matches!(run.status.code(), Some(0 | 1)), "{run:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let dut = "rfc2544: weir bridge {a} {b} --bypass drop, 64 B, sink XDP: frames without loss";
    let of = |name: &str| lines.iter().find(|line| line["name"] == name);
    let own = of(dut).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        (&own["unit"], &own["seed"]),
        (&"frames/s".into(), &2544.into())
    );
    assert!(own.get("bar").is_none() && own["command"].as_str().unwrap().contains("--dut="));
    let peer = of("rfc2544: linux-bridge, 64 B, sink XDP: frames without loss").unwrap();
    let ratio = of(&format!("{dut} : linux-bridge")).unwrap();
    assert_eq!(
        (&ratio["peer"], &ratio["bar"]["at_least"]),
        (&"linux-bridge".into(), &0.8.into())
    );
    let number = |line: &Value| line["value"].as_f64().unwrap();
    assert!(
        (number(ratio) - number(own) / number(peer)).abs() < 1e-9,
        "{text}"
    );
    assert_eq!(ratio["met"], number(ratio) >= 0.8);
    // The message names a file that cannot be written.
    let run = weir(QUICK)
        .arg("--tests=throughput")
        .env("WEIR_RESULTS", folder.path("none/results.jsonl"))
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        said.contains("none/results.jsonl, which WEIR_RESULTS names"),
        "{said}"
    );
}

#[test]
fn a_device_that_fails_is_named_and_the_others_go_on() {
    if !testenv::root() {
        return;
    }
    let dut = "--dut=sh -c 'echo out of order; exit 4'";
    let run = weir(QUICK).arg(dut).output().unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let text = stdout(&run);
    assert!(
        text.contains("out of order") && text.contains("exit status: 4"),
        "{text}"
    );
    assert!(text.contains("linux-bridge"), "{text}");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(said.contains("1 fault found"), "{said}");
}

#[test]
fn a_signal_ends_it_and_the_results_so_far_are_printed() {
    if !testenv::root() {
        return;
    }
    let child = weir([
        "lab",
        "rfc2544",
        "--peer=linux-bridge",
        "--duration=30",
        "--json",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    interrupt(&child);
    let run = child.wait_with_output().unwrap();
    assert_eq!(run.status.code(), Some(130), "{run:?}");
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["names"][0], "linux-bridge");
}
