//! `weir nat64` between hosts that have IPv6 alone and hosts that have IPv4 alone.

use crate::common::{Folder, weir};
use crate::live::{self, Running, ip, run};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use weir_lab::net::{Host, Lab, Signal};
use weir_lab::testenv;

/// A host with IPv6, the box, a router, and a host with IPv4 behind a link of 1400 bytes.
struct Net {
    a: Host,
    r: Host,
    b: Host,
    _m: Host,
    folder: Folder,
}

const HOST: &str = "2001:db8:1::9";
const POOL: &str = "198.51.100.2";
/// The host of the outside, 192.0.2.9, and the router before it, 198.51.100.5.
const SERVER: &str = "64:ff9b:1::c000:209";
const ROUTER: &str = "64:ff9b:1::c633:6405";

impl Net {
    fn new(name: &str) -> Option<Net> {
        if !testenv::root() || !testenv::programs(&["ip"]) {
            return None;
        }
        let lab = Lab::new();
        let [a, r, m, b] = ["a", "r", "m", "b"].map(|name| lab.host(name).unwrap());
        let (at_a, in_r) = lab.link(&a, &r).connect().unwrap();
        let (out_r, in_m) = lab.link(&r, &m).connect().unwrap();
        let (out_m, at_b) = lab.link(&m, &b).mtu(1400).connect().unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for (device, text, len) in [
            (&at_a, HOST, 64),
            (&at_a, "2001:db8:1::10", 64),
            (&in_r, "2001:db8:1::1", 64),
            (&out_r, "198.51.100.1", 24),
            (&in_m, "198.51.100.5", 24),
            (&out_m, "192.0.2.1", 24),
            (&at_b, "192.0.2.9", 24),
        ] {
            device.add_address(address(text), len).unwrap();
        }
        m.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
        ip(
            &a,
            &["-6", "route", "add", "default", "via", "2001:db8:1::1"],
        );
        ip(&r, &["route", "add", "default", "via", "198.51.100.5"]);
        // It asks for segments that are too long for its link, so that the path's MTU must be learnt.
        let default = "route add default via 192.0.2.1 advmss 1460";
        ip(&b, &default.split(' ').collect::<Vec<&str>>());
        let folder = Folder::new(name);
        Some(Net {
            a,
            r,
            b,
            _m: m,
            folder,
        })
    }

    fn start(&self, options: &[&str]) -> Running {
        // A busy machine must not count as a hung router.
        let base = ["nat64", "eth0", "eth1", "--pool", POOL, "--hang-ms", "2000"];
        let prefix = ["--prefix", "64:ff9b:1::/96"];
        let arguments = [&base[..], &prefix, options].concat();
        Running::start(&self.r, weir([]), &arguments).until("ready")
    }

    fn pings(&self, to: &str) -> usize {
        live::pings(&self.a, to)
    }
}

fn bound(host: &Host, at: &str) -> UdpSocket {
    let socket = host.run(|| UdpSocket::bind(at).unwrap());
    socket.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    socket
}

/// As many bytes each way as exceed all windows: the path's MTU must be learnt.
fn transfer(net: &Net) {
    const BYTES: usize = 2_000_000;
    let listener = net.b.run(|| TcpListener::bind("192.0.2.9:7000").unwrap());
    let server = thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        let mut bytes = vec![0; BYTES];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
        peer
    });
    let to = format!("[{SERVER}]:7000");
    let mut stream = net.a.run(|| TcpStream::connect(&to).unwrap());
    stream.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    stream.set_write_timeout(Some(live::WAIT_MAX)).unwrap();
    let sent: Vec<u8> = (0..BYTES).map(|at| (at / 7) as u8).collect();
    let mut reader = stream.try_clone().unwrap();
    let back = thread::spawn(move || {
        let mut bytes = vec![0; BYTES];
        reader.read_exact(&mut bytes).unwrap();
        bytes
    });
    stream.write_all(&sent).unwrap();
    assert!(back.join().unwrap() == sent, "the bytes come back");
    assert_eq!(server.join().unwrap().ip().to_string(), POOL);
}

/// Datagrams of every length, which the outside may fragment, and two hosts of the inside.
fn datagrams(net: &Net) {
    let server = bound(&net.b, "192.0.2.9:7001");
    let client = bound(&net.a, &format!("[{HOST}]:4001"));
    let to = format!("[{SERVER}]:7001");
    let mut buffer = vec![0; 70_000];
    let mut mapped = None;
    for len in [1, 100, 1300, 1252, 3000, 20_000] {
        let sent: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        client.send_to(&sent, &to).unwrap();
        let (got, from) = server.recv_from(&mut buffer).unwrap();
        assert!(buffer[..got] == sent, "{len} bytes outward");
        assert_eq!(*mapped.get_or_insert(from), from, "one mapping");
        server.send_to(&sent, from).unwrap();
        let (got, back) = client.recv_from(&mut buffer).unwrap();
        assert!(buffer[..got] == sent, "{len} bytes inward");
        assert_eq!(back.to_string(), to);
    }
    let port = mapped.unwrap().port();
    let other = bound(&net.a, "[2001:db8:1::10]:4002");
    // 198.51.100.2 in the prefix.
    other
        .send_to(b"turn", format!("[64:ff9b:1::c633:6402]:{port}"))
        .unwrap();
    let (got, from) = client.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..got], from.ip().to_string()),
        (&b"turn"[..], "64:ff9b:1::c633:6402".into())
    );
    client.send_to(b"back", from).unwrap();
    let (got, _) = other.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..got], b"back");
}

#[test]
fn hosts_of_ipv6_reach_hosts_of_ipv4() {
    let Some(net) = Net::new("nat64-reach") else {
        return;
    };
    let log = net.folder.path("nat64.ndjson");
    let running = net.start(&["--filtering", "endpoint-independent", "--log", &log]);
    for to in [SERVER, ROUTER, "2001:db8:1::1"] {
        assert_eq!(net.pings(to), 3, "{to}");
    }
    if let Some(trace) = run(
        &net.a,
        "traceroute",
        &["-6", "-n", "-q", "1", "-w", "5", SERVER],
    ) {
        let hops: Vec<&str> = trace.lines().skip(1).collect();
        assert_eq!(hops.len(), 3, "{trace}");
        for (hop, at) in hops.iter().zip(["2001:db8:1::1", ROUTER, SERVER]) {
            assert!(hop.contains(at), "{trace}");
        }
    }
    transfer(&net);
    if let Some(route) = run(&net.a, "ip", &["-6", "route", "get", SERVER]) {
        assert!(route.contains("mtu 1420"), "1400 bytes of IPv4: {route}");
    }
    datagrams(&net);
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines = std::fs::read_to_string(&log).unwrap();
    assert!(
        lines.contains("\"subscriber\":\"2001:db8:1::/64\""),
        "{lines}"
    );
    assert_eq!(
        net.pings(SERVER),
        0,
        "the kernel does not forward afterwards"
    );
}

#[test]
fn nothing_is_served_after_a_kill() {
    let Some(net) = Net::new("nat64-killed") else {
        return;
    };
    let running = net.start(&[]);
    assert_eq!(net.pings(SERVER), 3);
    running.signal(Signal::KILL);
    running.end();
    assert_eq!(net.pings(SERVER), 0);
    let arguments = ["nat64", "eth0", "eth1", "--bypass", "kernel"];
    let ended = Running::start(&net.r, weir([]), &arguments).end();
    assert!(
        ended.code == Some(2) && ended.stderr.contains("nat64"),
        "{ended:?}"
    );
    let cleaned = Running::start(&net.r, weir([]), &["nat64", "eth0", "eth1", "--clean"]).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}
