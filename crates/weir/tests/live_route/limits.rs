//! A full routing table.

use crate::bird::until_reached;
use crate::live::WAIT_MAX;
use crate::{Net, TO_B, ip};
use serde_json::Value;
use std::time::{Duration, Instant};

/// The statistics as last written.
fn stats(path: &str) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

#[test]
fn routes_beyond_the_limit_are_refused_and_counted() {
    let Some(net) = Net::new("route-limits") else {
        return;
    };
    const MORE: u64 = 20;
    let json = net.folder.path("stats.json");
    // The kernel accepts routes by a link with an address, and adds one to its
    // network: one more than the test adds.
    ip(&net.r, &["addr", "add", "198.51.100.1/24", "dev", "eth1"]);
    ip(&net.b, &["addr", "add", "203.0.113.7/32", "dev", "lo"]);
    let networks: Vec<String> = (0..MORE).map(|n| format!("198.18.{n}.0/24")).collect();
    for network in &networks {
        ip(&net.r, &["route", "add", network, "via", TO_B[0]]);
    }
    let run = |kernel: &str| net.route(kernel, &["--stats-json", &json]);
    run("").stop();
    let own = stats(&json).unwrap()["routes_v4"].as_u64().unwrap();
    let weir = run("routes_max = 8\n[kernel]\nroutes = true\n");
    let refused = |stats: &Value| stats["routes_refused"].as_u64() >= Some(MORE + 1 - 8);
    let began = Instant::now();
    while !stats(&json).as_ref().is_some_and(refused) {
        assert!(began.elapsed() < WAIT_MAX, "{:?}", stats(&json));
        std::thread::sleep(Duration::from_millis(20));
    }
    // The route to the link's network may be one of the eight.
    let taken = stats(&json).unwrap()["routes_v4"].as_u64().unwrap() - own;
    assert!((7..=8).contains(&taken), "{taken}");
    until_reached(&net, &[TO_B[0]], true);
    // A freed entry is used again.
    for network in &networks {
        ip(&net.r, &["route", "del", network]);
    }
    ip(&net.r, &["route", "add", "203.0.113.7/32", "via", TO_B[0]]);
    until_reached(&net, &["203.0.113.7"], true);
    weir.stop();
}
