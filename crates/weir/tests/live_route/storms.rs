//! Packets that circulate between two routers, and more resolutions than the
//! table holds.

use crate::bird::until_reached;
use crate::live::WAIT_MAX;
use crate::{Net, TO_B};
use serde_json::Value;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};
use weir_lab::load::{Field, Generator, Order, Rate, Template, Udp};
use weir_lab::net::{Offloads, Signal};

/// Networks that each router sends to the other.
const ROUND: &str = r#"
[icmp]
per_second = 1
burst = 5
[[route]]
to = "203.0.113.0/24"
via = ["198.51.100.9"]
[[route]]
to = "2001:db8:77::/48"
via = ["2001:db8:2::9"]
"#;

/// Odd, so that the TTL expires at weir, which has then forwarded the packet
/// (63 - 1) / 2 times.
const TTL: u8 = 63;
const FORWARDS: u64 = 31;

/// Largest number of pings within [`WAIT_MAX`].
const PINGS_MAX: u64 = 1_000;

/// Number of packets for each IP version.
const PACKETS: u64 = 100;

impl Net {
    /// Enables redirected frames at each end.
    fn take_redirected(&self) {
        let takes = Offloads {
            generic_receive: true,
            ..Offloads::OFF
        };
        for (host, device) in [(&self.a, "eth0"), (&self.b, "eth0")] {
            host.device(device).unwrap().set_offloads(takes).unwrap();
        }
    }

    fn stats(&self) -> Option<Value> {
        let text = fs::read_to_string(self.folder.path("stats.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Number of "time exceeded" messages that `a` has received.
    fn heard(&self) -> u64 {
        let (v4, v6) = self.a.run(|| {
            let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
            (read("snmp").unwrap(), read("snmp6").unwrap())
        });
        let mut icmp = v4.lines().filter(|line| line.starts_with("Icmp:"));
        let [names, values] = [(); 2].map(|()| icmp.next().unwrap().split_whitespace());
        let v4 = names.zip(values).find(|(name, _)| *name == "InTimeExcds");
        let mut v6 = v6.lines().map(str::split_whitespace);
        let v6 = v6.find_map(|mut line| (line.next() == Some("Icmp6InTimeExcds")).then_some(line));
        let numbers = [
            v4.map(|(_, value)| value),
            v6.and_then(|mut line| line.next()),
        ];
        numbers
            .map(|n| n.unwrap().parse::<u64>().unwrap())
            .iter()
            .sum()
    }
}

fn number(stats: &Value, at: &str) -> u64 {
    stats.pointer(at).and_then(Value::as_u64).unwrap_or(0)
}

/// Packets whose path has ended: by their TTL, or by a counted loss.
fn ended(stats: &Value) -> u64 {
    let by_link = |link: usize| {
        let reasons = ["rx_full", "bypassed", "stale"];
        let reasons = reasons.map(|reason| number(stats, &format!("/links/{link}/{reason}")));
        reasons.iter().sum::<u64>()
    };
    let others = number(stats, "/drops/link_full") + number(stats, "/fast/held_frames");
    number(stats, "/drops/ttl_exceeded") + by_link(0) + by_link(1) + others
}

fn what_goes_round_ends(name: &str, fast: &str) {
    let Some(net) = Net::new(name) else { return };
    net.take_redirected();
    for (name, value) in [
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv4.conf.all.send_redirects", "0"),
        ("net.ipv4.conf.eth0.send_redirects", "0"),
        ("net.ipv6.conf.all.forwarding", "1"),
    ] {
        net.b.set_sysctl(name, value).unwrap();
    }
    let began = Instant::now();
    let json = net.folder.path("stats.json");
    let weir = net.route(ROUND, &["--flow-cache", fast, "--stats-json", &json]);
    until_reached(&net, &TO_B, true);
    for (turn, to) in [(1, "203.0.113.7"), (2, "2001:db8:77::7")] {
        let to: IpAddr = to.parse().unwrap();
        net.a.run(|| {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            match to {
                IpAddr::V4(_) => socket.set_ttl(TTL.into()).unwrap(),
                IpAddr::V6(_) => {
                    rustix::net::sockopt::set_ipv6_unicast_hops(&socket, Some(TTL)).unwrap();
                }
            }
            for _ in 0..PACKETS {
                socket.send_to(b"round", (to, 7)).unwrap();
                // So that the kernel may forward packets that arrive at weir
                // first.
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let began = Instant::now();
        while net
            .stats()
            .is_none_or(|stats| ended(&stats) < turn * PACKETS)
        {
            assert!(began.elapsed() < WAIT_MAX, "{:?}", net.stats());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // The router still works.
    until_reached(&net, &TO_B, true);
    weir.signal(Signal::TERM);
    let ended = weir.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let stats = net.stats().unwrap();
    println!("{stats}");
    let exceeded = number(&stats, "/drops/ttl_exceeded");
    assert!(0 < exceeded && exceeded <= 2 * PACKETS, "{stats}");
    let by_weir = number(&stats, "/forwarded_v4") + number(&stats, "/forwarded_v6");
    let forwarded = by_weir + number(&stats, "/fast/frames");
    assert!(forwarded >= FORWARDS * exceeded, "{stats}");
    let most = FORWARDS * 2 * PACKETS + PINGS_MAX;
    assert!(forwarded <= most, "{forwarded}: {stats}");
    // Fewer answers than packets, by the rate limit.
    let (told, untold) = (number(&stats, "/icmp_errors"), "/drops/icmp_rate_limited");
    assert_eq!(told + number(&stats, untold), exceeded, "{stats}");
    assert!(told <= 5 + began.elapsed().as_secs() + 1, "{told}: {stats}");
    let heard = net.heard();
    assert!(0 < heard && heard <= told, "{heard} of {told}");
}

#[test]
fn what_goes_round_with_the_kernels_router_ends_by_the_hops_left() {
    what_goes_round_ends("route-round", "off");
}

#[test]
fn what_goes_round_by_the_fast_path_ends_by_the_hops_left() {
    what_goes_round_ends("route-round-fast", "on");
}

/// Many stations resolve the router, and send to many destinations.
#[test]
fn storms_leave_room_for_conversations() {
    const OTHERS: u32 = 200;
    let Some(net) = Net::new("route-storm") else {
        return;
    };
    net.take_redirected();
    let json = net.folder.path("stats.json");
    let weir = net.route("neighbours_max = 64\n", &["--stats-json", &json]);
    until_reached(&net, &TO_B, true);
    let at_a = net.a.device("eth0").unwrap();
    let router = net.r.device("eth0").unwrap().mac();
    let mut frame = [[0xff; 6], [2, 0, 0, 9, 9, 0]].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 9, 9, 0]);
    frame.extend([192, 0, 2, 20, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
    frame.resize(60, 0);
    let differs = Field {
        offset: 28,
        width: 4,
        base: 0xc000_0214,
        step: 1,
        divisor: 1,
        modulus: OTHERS,
        checksum: None,
    };
    let asks = Template {
        frame,
        flows: OTHERS,
        order: Order::InTurn,
        fields: vec![differs],
        number_at: None,
        time_at: None,
    };
    let from = [192, 0, 2, 9].into();
    let talks = Udp {
        dst_addresses: OTHERS,
        ..Udp::new(at_a.mac(), router, from, [198, 51, 100, 20].into())
    };
    let ways = [(&at_a, asks), (&at_a, Template::from(&talks))];
    let mut storm = Generator::in_turn(&ways).unwrap();
    let began = Instant::now();
    let is_full = |stats: Value| number(&stats, "/drops/neighbour_table_full") > 1_000;
    while !net.stats().is_some_and(is_full) {
        assert!(began.elapsed() < WAIT_MAX, "{:?}", net.stats());
        storm.send(2_000, Rate::PerSecond(20_000.0)).unwrap();
    }
    until_reached(&net, &TO_B, true);
    assert_eq!(weir.stop().code, Some(0));
    let stats = net.stats().unwrap();
    println!("{stats}");
    assert!(number(&stats, "/neighbours") <= 64, "{stats}");
    assert!(number(&stats, "/neighbours_answered") > 0, "{stats}");
}
