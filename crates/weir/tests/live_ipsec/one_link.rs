//! A gateway with one link, for its hosts and its peers.

use super::{INSIDE, Net, OUTSIDE, connect, frames, hidden, routes_lead_out};
use crate::common::{Folder, weir};
use crate::live::{self, Running, WAIT_MAX, ip};
use std::net::IpAddr;
use std::time::Duration;
use weir_lab::net::{Host, Lab, traffic};
use weir_lab::testenv;

/// The first gateway, its host and the router are at a switch; the rest is as in [`Net::new`].
fn net(name: &str) -> Option<(Net, Host)> {
    if !testenv::root() || !testenv::programs(&["ip"]) {
        return None;
    }
    let lab = Lab::new();
    let [a, g1, switch, middle, g2, b] =
        ["a", "g1", "s", "m", "g2", "b"].map(|name| lab.host(name).unwrap());
    let bridge = switch.bridge("br0").unwrap();
    let at_switch: [(&Host, &[&str]); 3] = [
        (&a, &[INSIDE[0]]),
        (&g1, &[OUTSIDE[0], "10.1.0.1"]),
        (&middle, &["192.0.2.254"]),
    ];
    for (host, addresses) in at_switch {
        let (device, port) = lab.link(host, &switch).connect().unwrap();
        port.attach_to(&bridge).unwrap();
        for text in addresses {
            let address: IpAddr = text.parse().unwrap();
            device.add_address(address, 24).unwrap();
        }
    }
    connect(&lab, (&b, INSIDE[1]), (&g2, "10.2.0.1"));
    connect(&lab, (&g2, OUTSIDE[1]), (&middle, "198.51.100.254"));
    routes_lead_out(&a, &b, [&g1, &g2]);
    ip(&middle, &["route", "add", "10.1.0.0/16", "via", OUTSIDE[0]]);
    middle.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
    let gateways = [g1, g2];
    let folder = Folder::new(name);
    let net = Net {
        a,
        gateways,
        middle,
        b,
        folder,
    };
    Some((net, switch))
}

#[test]
fn a_gateway_needs_one_link_only() {
    let Some((net, _switch)) = net("ipsec-one-link") else {
        return;
    };
    let capture = net.middle.capture().unwrap();
    let path = net.write(0, &[1], "");
    let json = net.json(0);
    let arguments = ["ipsec", "eth0", "--sa", &path, "--stats-json", &json];
    let arguments = [&arguments[..], &["--hang-ms", "5000"]].concat();
    let first = Running::start(&net.gateways[0], weir([]), &arguments).until("ready");
    let second = net.start(1, "");
    assert_eq!(net.pings(), 3);
    assert_eq!(live::pings(&net.b, INSIDE[0]), 3);
    let secret = [0x5e_u8; 600];
    let to = INSIDE[1].parse().unwrap();
    assert!(traffic::echoes(&net.a, to, &secret, WAIT_MAX).unwrap());
    // Full segments: the host learns of the tunnel's MTU by ICMP.
    let at = (INSIDE[1].parse().unwrap(), 5001);
    let bulk = traffic::bulk(&net.a, &net.b, at, Duration::from_millis(500)).unwrap();
    assert!(bulk.bits_per_second() > 1e5, "{bulk:?}");
    let sealed = hidden(&frames(&capture), &secret[..40]);
    assert!(sealed.len() >= 16, "{} ESP packets", sealed.len());
    // The second gateway has ended: what says to come from behind it is plain.
    second.stop();
    ip(
        &net.middle,
        &["address", "add", "10.2.0.9/32", "dev", "eth1"],
    );
    let forged = [
        "-n", "-c", "3", "-i", "0.2", "-W", "1", "-I", "10.2.0.9", INSIDE[0],
    ];
    let before = net.stage(0)["drops"]["unprotected"].as_u64().unwrap_or(0);
    if let Some(said) = live::run(&net.middle, "ping", &forged) {
        assert!(said.contains(" 0 received"), "{said}");
        net.until(0, "drops", "unprotected", before + 3);
    }
    let ended = first.stop();
    assert!(!ended.stderr.contains("panic"), "{ended:?}");
    let stage = net.stage(0);
    assert!(stage["counters"]["sealed"].as_u64() > Some(8), "{stage}");
    assert!(stage["counters"]["opened"].as_u64() > Some(8), "{stage}");
    assert!(stage["counters"]["too_big"].as_u64() >= Some(1), "{stage}");
}
