//! `weir route` between two hosts: users' traffic through a router.

mod addresses;
mod bird;
#[path = "../common/mod.rs"]
mod common;
mod limits;
#[path = "../common/live.rs"]
mod live;
mod storms;

use common::{Folder, weir};
use live::{Running, WAIT_MAX, ip, run};
use serde_json::Value;
use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Lab, Signal, traffic};
use weir_lab::testenv;

/// Host a, a router without kernel routing, host b.
struct Net {
    a: Host,
    r: Host,
    b: Host,
    folder: Folder,
}

const TO_B: [&str; 2] = ["198.51.100.9", "2001:db8:2::9"];

const LINKS: &str = r#"
[[link]]
name = "eth0"
addresses = ["192.0.2.1/24", "2001:db8:1::1/64"]
[[link]]
name = "eth1"
addresses = ["198.51.100.1/24", "2001:db8:2::1/64"]
"#;

impl Net {
    fn new(name: &str) -> Option<Net> {
        if !testenv::root() || !testenv::programs(&["ip"]) {
            return None;
        }
        let lab = Lab::new();
        let [a, r, b] = ["a", "r", "b"].map(|name| lab.host(name).unwrap());
        let (at_a, _) = lab.link(&a, &r).connect().unwrap();
        let (_, at_b) = lab.link(&r, &b).connect().unwrap();
        for (device, v4, v6) in [
            (at_a, "192.0.2.9", "2001:db8:1::9"),
            (at_b, TO_B[0], TO_B[1]),
        ] {
            device
                .add_address(v4.parse::<IpAddr>().unwrap(), 24)
                .unwrap();
            device
                .add_address(v6.parse::<IpAddr>().unwrap(), 64)
                .unwrap();
        }
        for (host, v4, v6) in [
            (&a, "192.0.2.1", "2001:db8:1::1"),
            (&b, "198.51.100.1", "2001:db8:2::1"),
        ] {
            ip(host, &["route", "add", "default", "via", v4]);
            ip(host, &["-6", "route", "add", "default", "via", v6]);
        }
        let folder = Folder::new(name);
        Some(Net { a, r, b, folder })
    }

    /// Starts the router of a configuration.
    fn route(&self, more: &str, options: &[&str]) -> Running {
        let path = self.folder.path("router.toml");
        fs::write(&path, format!("{more}{LINKS}")).unwrap();
        let config = &*path;
        // A busy machine must not count as a hung router.
        let arguments = [&["route", "--config", config, "--hang-ms", "2000"], options].concat();
        Running::start(&self.r, weir([]), &arguments).until("ready")
    }

    fn pings(&self, to: &str) -> usize {
        live::pings(&self.a, to)
    }
}

#[test]
fn hosts_reach_each_other_through_it() {
    let Some(net) = Net::new("route-reach") else {
        return;
    };
    let json = net.folder.path("stats.json");
    let running = net.route("", &["--stats-json", &json]);
    for to in ["192.0.2.1", "198.51.100.1", "2001:db8:2::1"]
        .iter()
        .chain(&TO_B)
    {
        assert_eq!(net.pings(to), 3, "{to}");
    }
    for (to, family, first) in [
        (TO_B[0], "-4", "192.0.2.1"),
        (TO_B[1], "-6", "2001:db8:1::1"),
    ] {
        let options = [family, "-n", "-q", "1", "-w", "2", to];
        if let Some(trace) = run(&net.a, "traceroute", &options) {
            let hops: Vec<&str> = trace.lines().skip(1).collect();
            assert_eq!(hops.len(), 2, "{trace}");
            assert!(hops[0].contains(first) && hops[1].contains(to), "{trace}");
        }
    }
    let at = (TO_B[0].parse().unwrap(), 5001);
    let bulk = traffic::bulk(&net.a, &net.b, at, Duration::from_millis(500)).unwrap();
    assert!(bulk.bits_per_second() > 1e6, "{bulk:?}");
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert!(report["forwarded_v4"].as_u64() > Some(6) && report["forwarded_v6"].as_u64() > Some(6));
    assert!(report["echoes"].as_u64() >= Some(9), "{report}");
    assert_eq!(report["links"][0]["name"], "eth0");
    // The links belong to the host again.
    assert_eq!(net.pings(TO_B[0]), 0);
}

#[test]
fn tcp_of_iperf_goes_through_it() {
    let Some(net) = Net::new("route-iperf") else {
        return;
    };
    let running = net.route("", &[]);
    let Some(mut server) = testenv::program("iperf3") else {
        return;
    };
    server
        .args(["-s", "-1"])
        .stdout(std::process::Stdio::null());
    let mut server = net.b.spawn(server).unwrap();
    for to in TO_B {
        let started = Instant::now();
        loop {
            let said = run(&net.a, "iperf3", &["-c", to, "-t", "1", "-J"]).unwrap();
            let report: Value = serde_json::from_str(&said).unwrap();
            let received = &report["end"]["sum_received"]["bits_per_second"];
            if received.as_f64() > Some(1e6) {
                break;
            }
            // The server may not have started yet.
            assert!(started.elapsed() < WAIT_MAX, "{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
        if to == TO_B[0] {
            server.ended(WAIT_MAX).unwrap();
            let mut again = testenv::program("iperf3").expect("the test has asked for it");
            again.args(["-s", "-1"]).stdout(std::process::Stdio::null());
            server = net.b.spawn(again).unwrap();
        }
    }
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn what_the_kernel_learns_it_learns() {
    let Some(net) = Net::new("route-learn") else {
        return;
    };
    // A network behind b.
    for address in ["203.0.113.7/32", "2001:db8:77::7/128"] {
        ip(&net.b, &["addr", "add", address, "dev", "lo"]);
    }
    // The kernel needs addresses on these links to accept routes by them.
    ip(&net.r, &["addr", "add", "198.51.100.1/24", "dev", "eth1"]);
    ip(
        &net.r,
        &["addr", "add", "2001:db8:2::1/64", "dev", "eth1", "nodad"],
    );
    ip(&net.r, &["route", "add", "203.0.113.0/24", "via", TO_B[0]]);
    ip(
        &net.r,
        &["-6", "route", "add", "2001:db8:77::/48", "via", TO_B[1]],
    );
    let running = net.route("[kernel]\nroutes = true\n", &["--metrics", "127.0.0.1:0"]);
    for to in ["203.0.113.7", "2001:db8:77::7"] {
        assert_eq!(net.pings(to), 3, "{to}");
    }
    let metrics = running.metrics(&net.r);
    let counter = "weir_route_rx_frames_total{link=\"eth0\"}";
    assert!(metrics.contains(counter), "{metrics}");
    // Removed, and added again.
    ip(&net.r, &["route", "del", "203.0.113.0/24"]);
    let started = Instant::now();
    while net.pings("203.0.113.7") > 0 {
        assert!(started.elapsed() < WAIT_MAX);
    }
    ip(&net.r, &["route", "add", "unreachable", "203.0.113.0/24"]);
    ip(&net.r, &["route", "add", "203.0.113.7/32", "via", TO_B[0]]);
    while net.pings("203.0.113.7") < 3 {
        assert!(started.elapsed() < WAIT_MAX);
    }
    running.signal(Signal::INT);
    assert_eq!(running.end().code, Some(0));
}

/// A net whose host's kernel also routes while weir does not run.
fn beside_the_hosts(name: &str) -> Option<Net> {
    let net = Net::new(name)?;
    ip(&net.r, &["addr", "add", "192.0.2.1/24", "dev", "eth0"]);
    ip(&net.r, &["addr", "add", "198.51.100.1/24", "dev", "eth1"]);
    let forwarding = "/proc/sys/net/ipv4/ip_forward";
    net.r.run(|| fs::write(forwarding, "1")).unwrap();
    Some(net)
}

/// Runs a command on both links.
fn weir_at(net: &Net, options: &[&str]) -> Running {
    let options = [&["route", "eth0", "eth1", "--hang-ms", "2000"], options].concat();
    Running::start(&net.r, weir([]), &options)
}

fn until_pings(net: &Net, count: usize, when: &str) {
    let began = Instant::now();
    while net.pings(TO_B[0]) != count {
        assert!(began.elapsed() < WAIT_MAX, "{when}");
    }
}

/// While weir does not route, the host routes as without weir, or packets are
/// dropped.
#[test]
fn killed_the_host_routes_or_packets_are_dropped() {
    let Some(net) = beside_the_hosts("route-killed") else {
        return;
    };
    for (bypass, back) in [("kernel", 3), ("drop", 0)] {
        let weir = weir_at(&net, &["--bypass", bypass]).until("ready");
        assert_eq!(net.pings(TO_B[0]), 3);
        weir.signal(Signal::STOP);
        // The first frame after the limit finds the process hung.
        let began = Instant::now();
        while net.pings(TO_B[0]) != back || began.elapsed() < Duration::from_millis(2500) {
            assert!(began.elapsed() < WAIT_MAX, "hung: {bypass}");
        }
        weir.signal(Signal::KILL);
        assert_eq!(weir.end().code, None);
        until_pings(&net, back, bypass);
        let cleaned = weir_at(&net, &["--clean"]).end();
        assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
        let is_any = !cleaned.stderr.contains("nothing is left at eth0, eth1");
        assert_eq!(is_any, bypass == "drop", "{cleaned:?}");
        until_pings(&net, 3, "cleaned");
    }
}

/// The state of a router with bypass drop stays until another takes over or
/// removes it.
#[test]
fn ended_nothing_passes_until_the_next_or_a_clean() {
    let Some(net) = beside_the_hosts("route-stays") else {
        return;
    };
    let json = net.folder.path("stats.json");
    let drops = ["--bypass", "drop"];
    let end = |weir: Running| {
        weir.signal(Signal::TERM);
        let ended = weir.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    };
    let route = |options: &[&str]| weir_at(&net, options).until("ready");
    end(route(&drops));
    assert_eq!(net.pings(TO_B[0]), 0);
    // Other processes with its interfaces get a message.
    let alone = Running::start(&net.r, weir([]), &["route", "eth0"]).end();
    assert_eq!(alone.code, Some(1), "{alone:?}");
    assert!(alone.stderr.contains("weir route … --clean"), "{alone:?}");
    // The next process takes over, with the configured host filter.
    let next = route(&[&drops[..], &["--kernel-host", "--stats-json", &json]].concat());
    let busy = weir_at(&net, &["--clean"]).end();
    assert_eq!(busy.code, Some(1), "{busy:?}");
    until_pings(&net, 3, "taken over");
    assert_eq!(net.pings("192.0.2.1"), 3);
    end(next);
    let stats: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert!(stats["links"][0]["to_host"].as_u64() >= Some(3), "{stats}");
    assert_eq!(net.pings(TO_B[0]), 0);
    assert_eq!(net.pings("192.0.2.1"), 0, "nor to the host");
    // A router with bypass kernel removes it.
    end(route(&[]));
    until_pings(&net, 3, "taken off");
    end(route(&[&drops[..], &["--restore"]].concat()));
    until_pings(&net, 3, "restored");
}

#[test]
fn an_interface_that_vanishes_ends_it() {
    let Some(net) = Net::new("route-vanished") else {
        return;
    };
    let weir = net.route("", &[]);
    ip(&net.r, &["link", "del", "eth1"]);
    let ended = weir.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("eth1"), "{ended:?}");
    assert_eq!(net.pings("192.0.2.1"), 0, "nobody is there");
}

#[test]
fn what_is_refused_says_why() {
    let Some(net) = Net::new("route-refused") else {
        return;
    };
    let config = |text: &str| {
        let path = net.folder.path("bad.toml");
        fs::write(&path, text).unwrap();
        let arguments = ["route", "--check", "--config", &path];
        Running::start(&net.r, weir([]), &arguments).end()
    };
    let property = ["link", "property", "add", "dev", "eth0", "altname", "lan"];
    ip(&net.r, &property);
    let good = config(LINKS);
    assert_eq!(
        (good.code, good.stdout.contains("good")),
        (Some(0), true),
        "{good:?}"
    );
    for (text, code, said) in [
        (
            "[[link]]\nname = \"eth9\"\n",
            1,
            "bad.toml:2:8: there is no interface `eth9`",
        ),
        (
            "[[link]]\nname = \"eth0\"\nmtu = 40\naddresses = [\"192.0.2.1/24\"]\n",
            2,
            "mtu = `40`",
        ),
        (
            "[[link]]\nname = \"lo\"\n",
            2,
            "`lo` is the host's loopback",
        ),
        ("[[lnk]]\n", 2, "unknown field `lnk`"),
        (
            "[[link]]\nname = \"eth0\"\naddresses = [\"192.0.2.1/24\"]\n[[link]]\nname = \"lan\"\n",
            2,
            "[[link]] 2: name = `lan`: `eth0` is one link",
        ),
        (
            "[kernel]\nhost = [\"tcp prt 1\"]\n[[link]]\nname = \"eth0\"\naddresses = [\"192.0.2.1/24\"]\n",
            2,
            "bad.toml:2:8: [kernel]: host: `(tcp prt 1)` is not a filter",
        ),
    ] {
        let ended = config(text);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(said), "{ended:?}");
    }
}
