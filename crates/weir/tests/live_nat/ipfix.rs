//! The log by IPFIX, as tshark reads it.

use super::{INSIDE, Net, OUTSIDE, POOL, live, weir};
use std::fs;
use std::net::UdpSocket;
use weir_lab::net::Signal;
use weir_lab::testenv;

/// The port by which tshark knows IPFIX.
const PORT: u16 = 4739;

const FIELDS: [&str; 8] = [
    "cflow.nat_event",
    "cflow.srcaddr",
    "cflow.post_natsource_ipv4_address",
    "cflow.port_range_start",
    "cflow.port_range_end",
    "cflow.protocol",
    "cflow.srcport",
    "cflow.post_naptsource_transport_port",
];

/// A capture of datagrams to [`PORT`], of link type LINKTYPE_RAW.
fn capture(path: &str, datagrams: &[Vec<u8>]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 101] {
        file.extend(word.to_le_bytes());
    }
    for datagram in datagrams {
        let udp = 8 + datagram.len() as u16;
        let ip = 20 + udp;
        for word in [0, 0, u32::from(ip), u32::from(ip)] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0x45, 0]);
        file.extend(ip.to_be_bytes());
        file.extend([0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        for field in [PORT, PORT, udp, 0] {
            file.extend(field.to_be_bytes());
        }
        file.extend(datagram);
    }
    fs::write(path, file).unwrap();
}

/// What tshark reads of each datagram.
fn read(path: &str) -> Vec<String> {
    let mut tshark = testenv::program("tshark").expect("asked for before");
    tshark.args(["-n", "-r", path, "-T", "fields", "-E", "separator=,"]);
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let run = tshark.output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let text = String::from_utf8(run.stdout).unwrap();
    text.lines().map(String::from).collect()
}

#[test]
fn blocks_and_forwards_go_to_a_collector() {
    if !testenv::programs(&["tshark"]) {
        return;
    }
    let Some(net) = Net::new("nat-ipfix") else {
        return;
    };
    let collector = net.r.run(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    collector.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    let at = collector.local_addr().unwrap().to_string();
    let forward = format!("tcp:{POOL}:8080={INSIDE}:80");
    let log = net.folder.path("nat.ndjson");
    let options = ["--ipfix", &at, "--log", &log, "--block", "64", "--forward"];
    let running = net.start(&[&options[..], &[&forward]].concat());
    assert_eq!(net.pings(OUTSIDE), 3);
    running.signal(Signal::INT);
    assert_eq!(running.end().code, Some(0));
    let lines = fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &serde_json::Value| line["event"] != "start")
        .collect();
    assert!(lines.len() >= 2, "{lines:?}");
    let datagrams: Vec<Vec<u8>> = lines
        .iter()
        .map(|_| {
            let mut buffer = [0; 2048];
            let len = collector.recv(&mut buffer).unwrap();
            buffer[..len].to_vec()
        })
        .collect();
    for (number, datagram) in datagrams.iter().enumerate() {
        assert_eq!(datagram[8..12], (number as u32).to_be_bytes(), "its number");
    }
    let path = net.folder.path("ipfix.pcap");
    capture(&path, &datagrams);
    let expected: Vec<String> = lines
        .iter()
        .map(|line| match line["event"].as_str().unwrap() {
            "forward" => format!("8,{INSIDE},{POOL},,,6,80,8080"),
            "block-allocated" => {
                let [first, last] = ["first", "last"].map(|key| line[key].as_u64().unwrap());
                assert_eq!(last - first, 63);
                format!("16,{INSIDE},{POOL},{first},{last},,,")
            }
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(read(&path), expected);
}

#[test]
fn a_collector_needs_address_and_port() {
    let wrong = weir(["nat", "eth0", "eth1", "--ipfix", "collector"]).output();
    let wrong = wrong.unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(
        said.contains("collector") && said.contains("192.0.2.1:4739"),
        "{said}"
    );
}
