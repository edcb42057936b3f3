//! MTUs that change under a running bridge or router.

use super::{HEARS, Net, comes};
use crate::common::weir;
use crate::live::{Running, WAIT_MAX};
use serde_json::Value;
use std::net::UdpSocket;
use std::time::Instant;
use weir_lab::net::{Linear, Offloads, set_option};

/// Makes a socket send datagrams unfragmented, whatever path MTU is known.
pub(crate) fn never_fragments(socket: &UdpSocket) {
    let is_v4 = socket.local_addr().unwrap().is_ipv4();
    // IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, IP_PMTUDISC_PROBE.
    let (level, name) = if is_v4 { (0, 10) } else { (41, 23) };
    set_option(socket, level, name, 3).unwrap();
}

/// Sends repeatedly until a datagram arrives, or fails at the time limit.
fn gets_through(probe: &UdpSocket, hears: &UdpSocket, len: usize) -> bool {
    let bytes = vec![len as u8; len];
    let began = Instant::now();
    while began.elapsed() < WAIT_MAX {
        let _ = probe.send(&bytes);
        if comes(hears, &bytes) {
            return true;
        }
    }
    false
}

#[test]
fn a_bridge_uses_a_raised_one_and_counts_what_a_lowered_one_stops() {
    if !weir_lab::testenv::root() {
        return;
    }
    let line = Linear::new(Offloads::OFF)
        .unwrap()
        .with_addresses()
        .unwrap();
    let folder = crate::common::Folder::new("bridge-mtu");
    let json = folder.path("stats.json");
    for fast in ["off", "on"] {
        let options = ["bridge", "left", "right", "--hang-ms", "2000"];
        let more = ["--flow-cache", fast, "--stats-json", &json];
        let arguments = [&options[..], &more].concat();
        let bridge = Running::start(&line.middle, weir([]), &arguments).until("ready");
        let hears = line.b.run(|| UdpSocket::bind("10.9.0.2:7")).unwrap();
        hears.set_read_timeout(Some(HEARS)).unwrap();
        let probe = line.a.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect("10.9.0.2:7").map(|()| socket)
        });
        let probe = probe.unwrap();
        never_fragments(&probe);
        let all = [&line.eth_a, &line.left, &line.right, &line.eth_b];
        let to_b = [&line.right, &line.eth_b];
        assert!(gets_through(&probe, &hears, 1400), "--flow-cache {fast}");
        // Six chunks of memory each.
        all.iter().for_each(|device| device.set_mtu(9000).unwrap());
        assert!(gets_through(&probe, &hears, 8900), "--flow-cache {fast}");
        to_b.iter().for_each(|device| device.set_mtu(1000).unwrap());
        std::thread::sleep(HEARS);
        assert!(gets_through(&probe, &hears, 900), "--flow-cache {fast}");
        for _ in 0..5 {
            probe.send(&[7; 1100]).unwrap();
        }
        assert!(!comes(&hears, &[7; 1100]));
        all.iter().for_each(|device| device.set_mtu(1500).unwrap());
        assert!(gets_through(&probe, &hears, 1400), "--flow-cache {fast}");
        bridge.stop();
        let text = std::fs::read_to_string(&json).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        let too_long = report["links"][1]["tx_too_long"].as_u64().unwrap();
        // Frames between a rise of the MTU and its notification.
        assert!((5..20).contains(&too_long), "{report}");
    }
}

#[test]
fn a_router_sends_long_packets_where_the_mtu_was_raised() {
    let Some(net) = Net::new("route-mtu") else {
        return;
    };
    let weir = net.route(&["--hang-ms", "2000"]);
    let set = |mtu: u32| {
        let ends = [&net.a, &net.b].map(|host| host.device("eth0").unwrap());
        let own = ["eth0", "eth1"].map(|name| net.r.device(name).unwrap());
        let all = ends.iter().chain(&own);
        all.for_each(|device| device.set_mtu(mtu).unwrap());
    };
    for to in ["198.51.100.9", "2001:db8:2::9"] {
        let (probe, hears) = (net.sends(to, 7), net.hears(&net.b, to, 7));
        never_fragments(&probe);
        assert!(gets_through(&probe, &hears, 1400), "{to}");
        set(9000);
        assert!(gets_through(&probe, &hears, 8900), "{to}");
        set(1500);
        assert!(gets_through(&probe, &hears, 1400), "{to}");
    }
    weir.stop();
}

/// One that is longer than any frame that the sockets can send.
#[test]
fn it_is_said_where_an_mtu_cannot_be_used() {
    if !weir_lab::testenv::root() {
        return;
    }
    let line = Linear::new(Offloads::OFF).unwrap();
    let arguments = ["bridge", "left", "right", "--hang-ms", "2000"];
    let bridge = Running::start(&line.middle, weir([]), &arguments).until("ready");
    line.right.set_mtu(65_535).unwrap();
    let bridge = bridge.until("right has an MTU of 65535 bytes; packets longer than 32238");
    bridge.stop();
}
