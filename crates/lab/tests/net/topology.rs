//! Frames pass where they should, and nowhere else.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use weir_lab::net::{Device, Error, Host, Lab};
use weir_lab::{testenv, wait};

const WAIT_MAX: Duration = Duration::from_secs(5);

/// Sends one datagram and returns it as received.
fn datagram(from: &Host, to: &Host, address: IpAddr) -> Vec<u8> {
    let server = to.run(|| UdpSocket::bind((address, 0))).unwrap();
    server.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let there = server.local_addr().unwrap();
    let any = if address.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let client = from.run(|| UdpSocket::bind(any)).unwrap();
    client.send_to(b"are you there?", there).unwrap();
    let mut received = [0; 64];
    let len = server.recv(&mut received).unwrap();
    received[..len].to_vec()
}

#[test]
fn two_hosts_talk_over_a_link() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (eth_a, eth_b) = lab
        .link(&a, &b)
        .addresses([10, 0, 0, 1], [10, 0, 0, 2], 24)
        .addresses(
            [0xfd00, 0, 0, 0, 0, 0, 0, 1],
            [0xfd00, 0, 0, 0, 0, 0, 0, 2],
            64,
        )
        .connect()
        .unwrap();
    for address in ["10.0.0.2", "fd00::2"] {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(datagram(&a, &b, address), b"are you there?");
    }
    let listener = b.run(|| TcpListener::bind("10.0.0.2:22")).unwrap();
    let mut client = a.run(|| TcpStream::connect("10.0.0.2:22")).unwrap();
    client.write_all(b"SSH-2.0-lab").unwrap();
    drop(client);
    let mut text = String::new();
    let mut stream = wait::accept(&listener).unwrap().0;
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "SSH-2.0-lab");

    let (facts_a, facts_b) = (eth_a.state().unwrap(), eth_b.state().unwrap());
    assert_eq!(facts_a.counters.tx_frames, facts_b.counters.rx_frames);
    assert_eq!(facts_a.counters.tx_bytes, facts_b.counters.rx_bytes);
    assert!(facts_a.counters.tx_frames >= 4);
    assert_eq!((&*facts_a.name, facts_a.mtu), ("eth0", 1500));
    assert_eq!(facts_a.mac, eth_a.mac());
    assert_ne!(eth_a.mac(), eth_b.mac());
    assert_ne!(eth_a.index(), eth_b.index());
}

#[test]
fn a_new_link_is_silent() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let link = lab.link(&a, &b).addresses([10, 0, 0, 1], [10, 0, 0, 2], 24);
    let (eth_a, eth_b) = link.neighbours().connect().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    for device in [&eth_a, &eth_b] {
        assert_eq!(device.counters().unwrap().tx_frames, 0, "{device:?}");
    }
    // Each host has the other's neighbour entry, so a datagram is one frame.
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    datagram(&a, &b, address);
    assert_eq!(eth_a.counters().unwrap().tx_frames, 1);
    assert_eq!(eth_b.counters().unwrap().tx_frames, 0);
}

#[test]
fn hosts_hear_each_other_through_a_bridge() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let switch = lab.host("switch").unwrap();
    let bridge = switch.bridge("br0").unwrap();
    let hosts: Vec<(Host, Device, Device)> = (1..=3)
        .map(|n: u8| {
            let host = lab.host(&format!("h{n}")).unwrap();
            let (inner, port) = lab.link(&host, &switch).connect().unwrap();
            inner.add_address([10, 0, 0, n], 24).unwrap();
            port.attach_to(&bridge).unwrap();
            (host, inner, port)
        })
        .collect();
    for (to, n) in hosts.iter().zip(1..) {
        for from in &hosts {
            let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
            assert_eq!(datagram(&from.0, &to.0, address), b"are you there?");
        }
    }
    // Removed from the bridge, a host is isolated.
    hosts[0].2.detach().unwrap();
    let before = hosts[0].1.counters().unwrap().rx_frames;
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    datagram(&hosts[2].0, &hosts[1].0, address);
    assert_eq!(hosts[0].1.counters().unwrap().rx_frames, before);
}

#[test]
fn devices_change_under_way() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let link = lab.link(&a, &b).names("left", "right").mtu(9000).queues(2);
    let (mut left, right) = link.connect().unwrap();
    assert_eq!(left.state().unwrap().mtu, 9000);
    left.set_mtu(1280).unwrap();
    assert_eq!(left.state().unwrap().mtu, 1280);

    right.down().unwrap();
    assert!(!right.state().unwrap().is_up);
    let gone = std::time::Instant::now();
    while left.state().unwrap().is_running {
        assert!(gone.elapsed() < WAIT_MAX, "the carrier is not lost");
    }
    right.up().unwrap();
    left.wait_running().unwrap();

    left.rename("west").unwrap();
    assert_eq!(left.state().unwrap().name, "west");
    assert!(a.device("left").is_err());
    assert_eq!(a.device("west").unwrap().index(), left.index());

    left.delete().unwrap();
    let error = right.state().unwrap_err().to_string();
    assert!(error.contains("`right` on host `b`"), "{error}");
}

#[test]
fn a_host_has_kernel_parameters_of_its_own() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    a.set_sysctl("net.ipv4.ip_default_ttl", "7").unwrap();
    assert_eq!(a.sysctl("net.ipv4.ip_default_ttl").unwrap(), "7");
    assert_ne!(b.sysctl("net.ipv4.ip_default_ttl").unwrap(), "7");
    let error = a.set_sysctl("net.ipv4.no_such", "1").unwrap_err();
    assert!(error.to_string().contains("net.ipv4.no_such"), "{error}");
}

/// VLAN devices work, or the error says that the kernel lacks them.
#[test]
fn vlan_devices_work_or_are_said_to_be_absent() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (eth_a, eth_b) = lab.link(&a, &b).connect().unwrap();
    match eth_a.vlan("v7", 7) {
        Ok(vlan_a) => {
            vlan_a.add_address([10, 7, 0, 1], 24).unwrap();
            let vlan_b = eth_b.vlan("v7", 7).unwrap();
            vlan_b.add_address([10, 7, 0, 2], 24).unwrap();
            vlan_b.wait_running().unwrap();
            datagram(&a, &b, IpAddr::V4(Ipv4Addr::new(10, 7, 0, 2)));
        }
        Err(error) => {
            let absent = matches!(error, Error::NoDeviceType { kind: "vlan", .. });
            assert!(absent, "{error}");
        }
    }
}
