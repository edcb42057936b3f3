//! BIRD beside `weir route`, with a neighbour that runs BIRD: BGP over IPv4 and
//! IPv6, and OSPF. BIRD's routes go into the kernel's table and from there to
//! weir; its frames pass on weir's own links.

use crate::live::{Running, WAIT_MAX};
use crate::{Net, TO_B, ip, run};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Signal, traffic};
use weir_lab::{testenv, wait};

/// Addresses behind b, in networks announced by BGP and by OSPF.
const BY_BGP: [&str; 2] = ["203.0.113.7", "2001:db8:77::7"];
const BY_OSPF: &str = "198.18.7.7";

const ROUTER: &str = r#"
router id 198.51.100.1;
log stderr all;
protocol device {}
protocol kernel { ipv4 { import none; export all; }; }
protocol kernel { ipv6 { import none; export all; }; }
protocol bgp bgp4 {
    local 198.51.100.1 as 65001; neighbor 198.51.100.9 as 65002;
    connect delay time 1; connect retry time 1; error wait time 1, 2;
    ipv4 { import all; export none; };
}
protocol bgp bgp6 {
    local 2001:db8:2::1 as 65001; neighbor 2001:db8:2::9 as 65002;
    connect delay time 1; connect retry time 1; error wait time 1, 2;
    ipv6 { import all; export none; };
}
protocol ospf v2 {
    ipv4 { import all; export none; };
    area 0 { interface "eth1" { type ptp; hello 1; dead count 5; retransmit 2; }; };
}
"#;

const NEIGHBOUR: &str = r#"
router id 198.51.100.9;
log stderr all;
protocol device {}
protocol static far4 { ipv4; route 203.0.113.0/24 blackhole; }
protocol static far6 { ipv6; route 2001:db8:77::/48 blackhole; }
protocol bgp bgp4 {
    local 198.51.100.9 as 65002; neighbor 198.51.100.1 as 65001; passive;
    ipv4 { import none; export where proto = "far4"; };
}
protocol bgp bgp6 {
    local 2001:db8:2::9 as 65002; neighbor 2001:db8:2::1 as 65001; passive;
    ipv6 { import none; export where proto = "far6"; };
}
protocol ospf v2 {
    ipv4 { import none; export none; };
    area 0 {
        interface "eth0" { type ptp; hello 1; dead count 5; retransmit 2; };
        stubnet 198.18.7.0/24;
    };
}
"#;

/// Starts a BIRD; returns its control socket.
fn bird(net: &Net, host: &Host, config: &str) -> Option<(Running, String)> {
    let path = |what: &str| net.folder.path(&format!("{}.{what}", host.name()));
    let [file, socket, pid] = ["conf", "ctl", "pid"].map(path);
    fs::write(&file, config).unwrap();
    let bird = testenv::program("bird")?;
    let options = ["-f", "-c", &file, "-s", &socket, "-P", &pid];
    let running = Running::start(host, bird, &options);
    Some((running.until("Started"), socket))
}

fn control(socket: &str, line: &str) {
    let mut command = testenv::program("birdc").expect("birdc comes with bird");
    let done = command.args(["-s", socket]).args(line.split(' ')).output();
    let done = done.unwrap();
    assert!(done.status.success(), "birdc {line}: {done:?}");
}

/// Waits until pings of all these addresses are answered, or none is.
pub(crate) fn until_reached(net: &Net, to: &[&str], reached: bool) {
    let began = Instant::now();
    for to in to {
        let at = to.parse().unwrap();
        let comes_back = || {
            let ping = traffic::ping(&net.a, at, 1, Duration::from_millis(300)).unwrap();
            !ping.round_trips.is_empty()
        };
        while comes_back() != reached {
            let routes = run(&net.r, "ip", &["route"]);
            assert!(began.elapsed() < WAIT_MAX, "{to}: {reached}: {routes:?}");
        }
    }
}

/// A ping every 20 ms, which prints its summary on SIGINT.
fn pings(net: &Net, to: &str) -> Running {
    let options = ["-n", "-q", "-i", "0.02", to];
    let ping = testenv::program("ping").expect("the test has asked for it");
    Running::start(&net.a, ping, &options)
}

/// Numbers of pings sent and answered.
fn end_of(pings: Running) -> [u64; 2] {
    pings.signal(Signal::INT);
    let said = pings.end().stdout;
    let words = said.lines().find(|line| line.contains("packet loss"));
    let mut numbers = words
        .into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.parse().ok());
    let mut next = || numbers.next().unwrap_or_else(|| panic!("{said}"));
    [next(), next()]
}

#[test]
fn bird_feeds_it_beside_it() {
    let Some(net) = Net::new("route-bird") else {
        return;
    };
    if !testenv::programs(&["bird", "birdc", "ping"]) {
        return;
    }
    for address in [BY_BGP[0], BY_BGP[1], BY_OSPF] {
        ip(&net.b, &["addr", "add", address, "dev", "lo"]);
    }
    // A kernel without a link-local address sends no neighbour solicitation
    // from an address of another interface.
    let link_local = ["addr", "add", "fe80::9/64", "dev", "eth0", "nodad"];
    ip(&net.b, &link_local);
    for (device, v4, v6) in [
        ("eth0", "192.0.2.1/24", "2001:db8:1::1/64"),
        ("eth1", "198.51.100.1/24", "2001:db8:2::1/64"),
    ] {
        ip(&net.r, &["addr", "add", v4, "dev", device]);
        ip(&net.r, &["addr", "add", v6, "dev", device, "nodad"]);
    }
    let json = net.folder.path("stats.json");
    let kernel = "[kernel]\nroutes = true\nhost = true\n";
    let weir = net.route(kernel, &["--stats-json", &json]);
    let Some((_bird_r, _)) = bird(&net, &net.r, ROUTER) else {
        return;
    };
    let Some((_bird_b, at_b)) = bird(&net, &net.b, NEIGHBOUR) else {
        return;
    };
    until_reached(&net, &[BY_BGP[0], BY_BGP[1], BY_OSPF], true);
    let trace = run(
        &net.a,
        "traceroute",
        &["-n", "-q", "1", "-w", "2", BY_BGP[0]],
    );
    if let Some(trace) = trace {
        let hops: Vec<&str> = trace.lines().skip(1).collect();
        assert!(hops.len() == 2 && hops[0].contains("192.0.2.1"), "{trace}");
        assert!(hops[1].contains(BY_BGP[0]), "{trace}");
    }
    // Routes change while other routes carry traffic, of which nothing is lost.
    let others = [pings(&net, TO_B[0]), pings(&net, BY_OSPF)];
    for _ in 0..2 {
        control(&at_b, "disable far4");
        control(&at_b, "disable far6");
        until_reached(&net, &BY_BGP, false);
        control(&at_b, "enable far4");
        control(&at_b, "enable far6");
        until_reached(&net, &BY_BGP, true);
    }
    for pings in others {
        let [sent, back] = end_of(pings);
        // The last ping may be in flight.
        assert!(sent > 9 && back + 1 >= sent, "{back} of {sent} came back");
    }
    talk_to_the_host(&net);
    weir.signal(Signal::INT);
    assert_eq!(weir.end().code, Some(0));
    let report: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    for link in 0..2 {
        let to_host = report["links"][link]["to_host"].as_u64();
        assert!(to_host > Some(3), "{report}");
    }
    // By weir: kernel forwarding is off.
    assert!(report["forwarded_v6"].as_u64() >= Some(6), "{report}");
    until_reached(&net, &[TO_B[0]], false);
}

/// A service of the router's host answers at both of its addresses.
fn talk_to_the_host(net: &Net) {
    let at = |port: u16| ("0.0.0.0", port);
    let listener = net.r.run(|| TcpListener::bind(at(7777))).unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = wait::accept(&listener).unwrap();
            let mut said = [0; 5];
            stream.read_exact(&mut said).unwrap();
            stream.write_all(&said).unwrap();
        }
    });
    for to in ["192.0.2.1", "198.51.100.1"] {
        net.a.run(|| {
            let at = (to.parse::<std::net::IpAddr>().unwrap(), 7777).into();
            let mut stream = std::net::TcpStream::connect_timeout(&at, WAIT_MAX).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            stream.write_all(b"hello").unwrap();
            let mut said = [0; 5];
            stream.read_exact(&mut said).unwrap();
            assert_eq!(&said, b"hello");
        });
    }
    server.join().unwrap();
}

#[test]
fn the_host_has_only_what_it_is_said_to_have() {
    let Some(net) = Net::new("route-host") else {
        return;
    };
    ip(&net.r, &["addr", "add", "192.0.2.1/24", "dev", "eth0"]);
    ip(&net.r, &["addr", "add", "203.0.113.1/32", "dev", "lo"]);
    let _weir = net.route("[kernel]\nhost = [\"tcp port 7777\", \"icmp\"]\n", &[]);
    let listen = |port: u16| net.r.run(|| TcpListener::bind(("0.0.0.0", port))).unwrap();
    let _listeners = [7777, 7778].map(listen);
    let connect = |to: &str, port: u16| {
        let at = (to.parse::<std::net::IpAddr>().unwrap(), port).into();
        let patience = Duration::from_secs(10);
        net.a
            .run(|| std::net::TcpStream::connect_timeout(&at, patience))
            .map(drop)
    };
    connect("192.0.2.1", 7777).unwrap();
    // Also at an address of an interface that is not a link of the router.
    connect("203.0.113.1", 7777).unwrap();
    // weir refuses it: protocol unreachable.
    let refused = connect("192.0.2.1", 7778).unwrap_err();
    assert_ne!(refused.kind(), std::io::ErrorKind::TimedOut, "{refused}");
    // Through the router only b receives it.
    let through = connect(TO_B[0], 7777).unwrap_err();
    assert_eq!(through.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(net.pings("192.0.2.1"), 3);
    assert_eq!(net.pings(TO_B[0]), 3);
}
