//! Ordinary traffic between hosts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};
use weir_lab::net::traffic::{Session, UdpFlows, bulk, ping, spread};
use weir_lab::net::{Device, Host, Lab, Offloads};
use weir_lab::testenv;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const WAIT_MAX: Duration = Duration::from_secs(5);

fn pair(offloads: Offloads) -> (Host, Host, Device, Device) {
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let link = lab.link(&a, &b).addresses(A, B, 24).offloads(offloads);
    let ipv6 = |n: u16| [0xfd00, 0, 0, 0, 0, 0, 0, n];
    let (eth_a, eth_b) = link.addresses(ipv6(1), ipv6(2), 64).connect().unwrap();
    (a, b, eth_a, eth_b)
}

#[test]
fn echo_requests_are_answered_or_not() {
    if !testenv::root() {
        return;
    }
    let (a, _b, eth_a, eth_b) = pair(Offloads::OFF);
    for to in [IpAddr::V4(B), "fd00::2".parse().unwrap()] {
        let pings = ping(&a, to, 3, WAIT_MAX).unwrap();
        assert_eq!((pings.sent, pings.round_trips.len()), (3, 3), "{to}");
    }
    let nobody = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 77));
    let pings = ping(&a, nobody, 1, Duration::from_millis(20)).unwrap();
    assert_eq!((pings.sent, pings.round_trips.len()), (1, 0));
    assert!(ping(&a, "192.0.2.1".parse().unwrap(), 1, WAIT_MAX).is_err());

    // A removed neighbour entry is resolved again: two more frames.
    let before = eth_b.counters().unwrap().rx_frames;
    eth_a.remove_neighbour(B).unwrap();
    ping(&a, IpAddr::V4(B), 1, WAIT_MAX).unwrap();
    assert!(eth_b.counters().unwrap().rx_frames >= before + 2);
}

#[test]
fn a_session_notices_a_stall() {
    if !testenv::root() {
        return;
    }
    let (a, b, eth_a, _) = pair(Offloads::OFF);
    let session = Session::start(&a, &b, (B, 22), Duration::from_millis(1)).unwrap();
    let wait_for = |echoes| {
        let start = Instant::now();
        while session.echoes() < echoes {
            assert!(start.elapsed() < 4 * WAIT_MAX, "no echo");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(5);
    let stall = Duration::from_millis(300);
    eth_a.down().unwrap();
    // Frames in flight have arrived: frames pass at once or not at all.
    std::thread::sleep(stall);
    let before = session.echoes();
    eth_a.up().unwrap();
    wait_for(before + 5);
    let report = session.end().unwrap();
    assert!(report.echoes >= before + 5, "{report:?}");
    // A write follows the last echo by at most one pause, unless the writer is
    // preempted.
    assert!(report.longest >= stall / 2, "{report:?}");
}

#[test]
fn datagrams_are_spread_over_ports() {
    if !testenv::root() {
        return;
    }
    let (a, b, ..) = pair(Offloads::OFF);
    let servers: Vec<UdpSocket> = (5000..5004)
        .map(|port| b.run(|| UdpSocket::bind((B, port))).unwrap())
        .collect();
    let what = UdpFlows {
        to: B,
        dst_ports: 5000..5004,
        count: 400,
        rate: Some(20_000),
        payload_len: 18,
    };
    let elapsed = spread(&a, &what).unwrap();
    assert!(elapsed >= Duration::from_micros(399 * 50), "{elapsed:?}");
    let mut numbers = BTreeMap::new();
    for (place, server) in servers.iter().enumerate() {
        server.set_read_timeout(Some(WAIT_MAX)).unwrap();
        for _ in 0..100 {
            let mut payload = [0; 64];
            assert_eq!(server.recv(&mut payload).unwrap(), 18);
            let number = u64::from_be_bytes(payload[..8].try_into().unwrap());
            assert_eq!(number as usize % 4, place);
            numbers.insert(number, ());
        }
    }
    assert_eq!(numbers.len(), 400);
    let nowhere = UdpFlows {
        dst_ports: 7..7,
        ..what
    };
    assert!(spread(&a, &nowhere).is_err());
}

#[test]
fn a_bulk_transfer_is_measured() {
    if !testenv::root() {
        return;
    }
    let (a, b, _, eth_b) = pair(Offloads::VETH);
    let carried = bulk(&a, &b, (B, 5201), Duration::from_millis(100)).unwrap();
    assert!(carried.bits_per_second() > 1e6, "{carried:?}");
    assert!(eth_b.counters().unwrap().rx_bytes >= carried.bytes);
}
