//! Addresses that are added and removed while `weir route` runs.

use crate::bird::until_reached;
use crate::live::{Running, WAIT_MAX};
use crate::{Net, TO_B, ip};
use std::net::{IpAddr, TcpListener, TcpStream};

use weir_lab::net::Signal;

/// Adds addresses to a device, or removes them.
fn change(net: &Net, what: &str, device: &str, addresses: &[&str]) {
    for address in addresses {
        let nodad = (address.contains(':') && what == "add").then_some("nodad");
        let words = ["addr", what, address, "dev", device];
        ip(&net.r, &words.into_iter().chain(nodad).collect::<Vec<_>>());
    }
}

/// Whether `a` reaches a service of the router's own host.
fn talks(net: &Net, to: &str) -> bool {
    let listener = net.r.run(|| TcpListener::bind("[::]:7777")).unwrap();
    let at = (to.parse::<IpAddr>().unwrap(), 7777).into();
    let connected = net.a.run(|| TcpStream::connect_timeout(&at, WAIT_MAX));
    drop(listener);
    connected.is_ok()
}

#[test]
fn the_host_beside_it_has_what_is_for_its_new_addresses() {
    let Some(net) = Net::new("route-addresses") else {
        return;
    };
    change(&net, "add", "eth0", &["192.0.2.1/24", "2001:db8:1::1/64"]);
    let weir = net.route("[kernel]\nhost = true\n", &[]);
    // On one of weir's links, where weir answers for them, and on another
    // interface.
    let near = ["192.0.2.77", "2001:db8:1::77"];
    let elsewhere = ["203.0.113.1", "2001:db8:77::1"];
    until_reached(&net, &[near, elsewhere].concat(), false);
    for _ in 0..2 {
        change(&net, "add", "eth0", &["192.0.2.77/24", "2001:db8:1::77/64"]);
        change(&net, "add", "lo", &["203.0.113.1/32", "2001:db8:77::1/128"]);
        for to in [near, elsewhere].concat() {
            until_reached(&net, &[to], true);
            assert!(talks(&net, to), "{to}");
        }
        change(&net, "del", "eth0", &["192.0.2.77/24", "2001:db8:1::77/64"]);
        change(&net, "del", "lo", &["203.0.113.1/32", "2001:db8:77::1/128"]);
        until_reached(&net, &[near, elsewhere].concat(), false);
    }
    // Packets to the network of a new address are routed.
    change(&net, "add", "eth1", &["198.18.9.1/24"]);
    ip(&net.b, &["addr", "add", "198.18.9.9/24", "dev", "eth0"]);
    until_reached(&net, &["198.18.9.9", TO_B[0], TO_B[1]], true);
    // More addresses than the limit: the earlier ones stay, with a message.
    let all: Vec<String> = (0..=255).map(|n| format!("198.19.0.{n}/32")).collect();
    change(
        &net,
        "add",
        "lo",
        &all.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let weir = weir.until("of which a filter takes 256");
    assert!(talks(&net, "192.0.2.1"));
    weir.signal(Signal::INT);
    assert_eq!(weir.end().code, Some(0));
}

/// A link without configured addresses has those of its interface.
#[test]
fn its_own_are_those_that_its_interfaces_have() {
    let Some(net) = Net::new("route-own-addresses") else {
        return;
    };
    change(&net, "add", "eth0", &["192.0.2.1/24", "2001:db8:1::1/64"]);
    change(
        &net,
        "add",
        "eth1",
        &["198.51.100.1/24", "2001:db8:2::1/64"],
    );
    let options = ["route", "eth0", "eth1", "--hang-ms", "2000"];
    let weir = Running::start(&net.r, crate::weir([]), &options).until("ready");
    let new = ["192.0.2.77", "2001:db8:1::77"];
    until_reached(&net, &new, false);
    change(&net, "add", "eth0", &["192.0.2.77/24", "2001:db8:1::77/64"]);
    until_reached(&net, &new, true);
    change(&net, "del", "eth0", &["192.0.2.77/24", "2001:db8:1::77/64"]);
    until_reached(&net, &new, false);
    until_reached(&net, &TO_B, true);
    assert_eq!(weir.stop().code, Some(0));
}
