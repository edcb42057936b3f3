//! `weir nat` and `weir run` between an inside and an outside: users' traffic.

mod balance;
#[path = "../common/mod.rs"]
mod common;
mod direct;
mod discovery;
mod ftp;
mod ipfix;
mod killed;
#[path = "../common/live.rs"]
mod live;
mod nat64;
mod oracle;
mod restart;
mod shaped;
mod tools;

use common::{Folder, weir};
use live::{Running, ip, run};
use serde_json::Value;
use std::fs;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_lab::net::{Host, Lab, Offloads, Signal, traffic};
use weir_lab::testenv;

/// A host of the inside, the box, a host of the outside, which knows no way to
/// the inside.
struct Net {
    a: Host,
    r: Host,
    b: Host,
    folder: Folder,
}

const INSIDE: &str = "10.0.0.9";
const OUTSIDE: &str = "198.51.100.9";
const POOL: &str = "198.51.100.2";

impl Net {
    fn new(name: &str) -> Option<Net> {
        if !testenv::root() || !testenv::programs(&["ip"]) {
            return None;
        }
        let lab = Lab::new();
        let [a, r, b] = ["a", "r", "b"].map(|name| lab.host(name).unwrap());
        let (at_a, in_r) = lab.link(&a, &r).connect().unwrap();
        let (out_r, at_b) = lab.link(&r, &b).connect().unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for (device, text) in [
            (&at_a, INSIDE),
            (&in_r, "10.0.0.1"),
            (&out_r, "198.51.100.1"),
            (&at_b, OUTSIDE),
            (&at_b, "198.51.100.10"),
        ] {
            device.add_address(address(text), 24).unwrap();
        }
        ip(&a, &["route", "add", "default", "via", "10.0.0.1"]);
        let folder = Folder::new(name);
        Some(Net { a, r, b, folder })
    }

    fn start(&self, options: &[&str]) -> Running {
        // A busy machine must not count as a hung router.
        let base = ["nat", "eth0", "eth1", "--pool", POOL, "--hang-ms", "2000"];
        let arguments = [&base[..], options].concat();
        Running::start(&self.r, weir([]), &arguments).until("ready")
    }

    fn pings(&self, to: &str) -> usize {
        live::pings(&self.a, to)
    }

    /// Has both ends take redirected frames, as hardware does: the kernel serves flows from then on.
    fn take_redirected(&self) {
        let takes = Offloads {
            generic_receive: true,
            ..Offloads::OFF
        };
        for host in [&self.a, &self.b] {
            host.device("eth0").unwrap().set_offloads(takes).unwrap();
        }
    }
}

/// The value of a metric without labels.
fn metric(metrics: &str, name: &str) -> Option<u64> {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[test]
fn a_link_without_its_carrier_is_named() {
    let Some(net) = Net::new("nat-carrier") else {
        return;
    };
    ip(&net.a, &["link", "set", "eth0", "down"]);
    let commands = [
        &["nat", "eth0", "eth1", "--pool", POOL][..],
        &["route", "eth0", "eth1", "--kernel-routes"],
    ];
    for command in commands {
        let start = |option: &[&str]| {
            let arguments = [command, option].concat();
            Running::start(&net.r, weir([]), &arguments)
        };
        let running = start(&["--hang-ms", "2000"]).until("ready");
        let running = running.until("eth0 has no carrier: nothing passes until the device");
        assert!(
            !running.said().contains("eth1 has no"),
            "{}",
            running.said()
        );
        running.stop();
        assert_eq!(start(&["--clean"]).end().code, Some(0));
    }
}

#[test]
fn a_host_of_the_inside_reaches_the_outside_through_it() {
    let Some(net) = Net::new("nat-reach") else {
        return;
    };
    let (log, json) = (net.folder.path("nat.ndjson"), net.folder.path("stats.json"));
    let running = net.start(&["--log", &log, "--stats-json", &json]);
    // The outside, both addresses of the box there, and the one inside.
    for to in [OUTSIDE, POOL, "198.51.100.1", "10.0.0.1"] {
        assert_eq!(net.pings(to), 3, "{to}");
    }
    let options = ["-n", "-q", "1", "-w", "2", OUTSIDE];
    if let Some(trace) = run(&net.a, "traceroute", &options) {
        let hops: Vec<&str> = trace.lines().skip(1).collect();
        assert_eq!(hops.len(), 2, "{trace}");
        assert!(
            hops[0].contains("10.0.0.1") && hops[1].contains(OUTSIDE),
            "{trace}"
        );
    }
    let at = (OUTSIDE.parse().unwrap(), 5001);
    let bulk = traffic::bulk(&net.a, &net.b, at, Duration::from_millis(500)).unwrap();
    assert!(bulk.bits_per_second() > 1e6, "{bulk:?}");
    let port = datagrams(&net);
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let nat = &report["stages"][0];
    assert_eq!(nat["kind"], "nat");
    assert!(
        nat["counters"]["sessions_begun"].as_u64() >= Some(4),
        "{report}"
    );
    assert_eq!(nat["counters"]["subscribers"], 1);
    // One block, and its line names the subscriber of the datagrams.
    let lines = fs::read_to_string(&log).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let (find, time) = (
        format!("udp:{POOL}:{port}"),
        format!("{}", now.as_secs_f64()),
    );
    let mut found = weir(["nat", "--log", &log, "--find", &find, "--time", &time]);
    let found = found.output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&found.stdout).trim(),
        INSIDE,
        "{found:?}"
    );
    // The kernel does not forward afterwards.
    assert_eq!(net.pings(OUTSIDE), 0);
}

#[test]
fn its_metrics_are_those_of_router_and_stages() {
    let Some(net) = Net::new("nat-metrics") else {
        return;
    };
    let running = net.start(&["--metrics", "127.0.0.1:0"]);
    assert_eq!(net.pings(OUTSIDE), 3);
    let expected = [
        "weir_run_rx_frames_total{link=\"eth0\"} ",
        "weir_run_forwarded_total{family=\"4\"} ",
        "weir_run_stage_packets_total{stage=\"0\",kind=\"nat\",direction=\"outward\"} ",
        "weir_run_nat_sessions_begun{stage=\"0\"} 1\n",
    ];
    running.until_metrics(&net.r, &expected);
    running.signal(Signal::INT);
    assert_eq!(running.end().code, Some(0));
}

/// By UDP and to a local socket, what the file has.
#[test]
fn its_log_goes_to_syslog_too() {
    let Some(net) = Net::new("nat-syslog") else {
        return;
    };
    let collector = net
        .r
        .run(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    collector.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    let local = net.folder.path("log");
    let socket = std::os::unix::net::UnixDatagram::bind(&local).unwrap();
    socket.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    let at = collector.local_addr().unwrap().to_string();
    for (is_udp, to) in [(true, &at), (false, &local)] {
        let log = net.folder.path(&format!("nat-{is_udp}.ndjson"));
        let running = net.start(&["--log", &log, "--syslog", to]);
        assert_eq!(net.pings(OUTSIDE), 3);
        running.signal(Signal::INT);
        assert_eq!(running.end().code, Some(0));
        let lines = fs::read_to_string(&log).unwrap();
        assert!(lines.contains("block-allocated"), "{lines}");
        for line in lines.lines() {
            let mut buffer = [0; 2048];
            let received = if is_udp {
                collector.recv(&mut buffer)
            } else {
                socket.recv(&mut buffer)
            };
            let len = received.unwrap();
            let message = std::str::from_utf8(&buffer[..len]).unwrap();
            let parts: Vec<&str> = message.splitn(8, ' ').collect();
            let [first, time, _, "weir", process, "nat", "-", said] = parts[..] else {
                panic!("{message}");
            };
            assert_eq!(first, "<134>1");
            assert!(time.ends_with('Z') && time.contains('T'), "{message}");
            assert!(process.parse::<u32>().is_ok(), "{message}");
            assert_eq!(said, line);
        }
    }
    let wrong = weir(["nat", "eth0", "eth1", "--syslog", "collector"]).output();
    let wrong = wrong.unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(
        said.contains("collector") && said.contains("192.0.2.1:514"),
        "{said}"
    );
}

/// Datagrams of one socket to two addresses and back; returns the port that the
/// outside saw.
fn datagrams(net: &Net) -> u16 {
    use std::net::UdpSocket;
    let bind = |host: &Host, at: &str| {
        let socket = host.run(|| UdpSocket::bind(at).unwrap());
        socket.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
        socket
    };
    let client = bind(&net.a, "10.0.0.9:4001");
    let mut seen = Vec::new();
    for server in ["198.51.100.9:7000", "198.51.100.10:7000"] {
        let server_socket = bind(&net.b, server);
        let mut buffer = [0; 64];
        for number in 0..20_u8 {
            client.send_to(&[number], server).unwrap();
            let (len, from) = server_socket.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..len], [number]);
            assert_eq!(from.ip().to_string(), POOL);
            seen.push(from.port());
            server_socket.send_to(&[number, 1], from).unwrap();
            let (len, back) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(
                (&buffer[..len], back.to_string()),
                (&[number, 1][..], server.to_owned())
            );
        }
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "one mapping, whatever the server");
    assert_eq!(seen[0] % 2, 1, "the parity of the source port is kept");
    seen[0]
}

/// No frame passes a translator that has died, and none untranslated.
#[test]
fn a_killed_translator_fails_to_drop() {
    let Some(net) = Net::new("nat-killed") else {
        return;
    };
    let capture = net.b.capture().unwrap();
    let running = net.start(&[]);
    assert_eq!(net.pings(OUTSIDE), 3);
    running.signal(Signal::KILL);
    running.end();
    assert_eq!(net.pings(OUTSIDE), 0, "nothing passes");
    let mut buffer = vec![0; 4096];
    let mut seen = 0;
    while let Ok((len, _)) =
        rustix::net::recv(&capture, &mut buffer, rustix::net::RecvFlags::empty())
    {
        let frame = &buffer[..len];
        seen += 1;
        let is_private = |bytes: &[u8]| bytes.first() == Some(&10);
        if frame.len() > 34 && frame[12..14] == [8, 0] {
            assert!(
                !is_private(&frame[26..]) && !is_private(&frame[30..]),
                "{frame:02x?}"
            );
        }
    }
    assert!(seen > 6, "{seen} frames were seen outside");
    // Until it is cleaned up.
    let cleaned = Running::start(&net.r, weir([]), &["nat", "eth0", "eth1", "--clean"]).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}

#[test]
fn failing_open_is_refused_with_the_reason() {
    let Some(net) = Net::new("nat-open") else {
        return;
    };
    let balance = [
        "balance",
        "eth1",
        "eth0",
        "--service",
        "198.51.100.2:80",
        "--to",
        "10.0.0.9",
    ];
    for command in [
        &["nat", "eth0", "eth1"][..],
        &["nat64", "eth0", "eth1"],
        &balance,
    ] {
        for bypass in ["wire", "kernel"] {
            let arguments = [command, &["--bypass", bypass]].concat();
            let ended = Running::start(&net.r, weir([]), &arguments).end();
            assert_eq!(ended.code, Some(2), "{ended:?}");
            let why = format!(
                "--bypass {bypass}: frames would pass without the stage `{}`",
                command[0]
            );
            assert!(ended.stderr.contains(&why), "{ended:?}");
            assert!(ended.stderr.contains("use drop"), "{ended:?}");
        }
    }
    let path = net.folder.path("box.toml");
    let plain = "outside = \"eth1\"\n[kernel]\nroutes = true\n[[link]]\nname = \"eth0\"\n\
                 [[link]]\nname = \"eth1\"\n[[stage]]\nkind = \"mark\"\ndscp = 0\n";
    fs::write(&path, plain).unwrap();
    let ended = Running::start(&net.r, weir([]), &["run", &path, "--bypass", "wire"]).end();
    assert!(
        ended
            .stderr
            .contains("cannot be joined: use kernel or drop"),
        "{ended:?}"
    );
}

/// A static forward, and a stage before the translator.
#[test]
fn a_configuration_of_two_stages_does_both() {
    let Some(net) = Net::new("nat-two") else {
        return;
    };
    let path = net.folder.path("box.toml");
    let config = r#"
outside = "eth1"
[[link]]
name = "eth0"
[[link]]
name = "eth1"
[[stage]]
kind = "drop"
match = "udp port 7001"
[[stage]]
kind = "mark"
match = "icmp"
dscp = "ef"
[[stage]]
kind = "nat"
[[stage.forward]]
protocol = "tcp"
from = "198.51.100.1:80"
to = "10.0.0.9:8080"
"#;
    fs::write(&path, config).unwrap();
    let check = Running::start(&net.r, weir([]), &["run", &path, "--check"]).end();
    assert_eq!(check.code, Some(0), "{check:?}");
    let capture = net.b.capture().unwrap();
    let arguments = ["run", &path, "--hang-ms", "2000"];
    let running = Running::start(&net.r, weir([]), &arguments).until("ready");
    assert_eq!(net.pings(OUTSIDE), 3);
    let mut buffer = vec![0; 4096];
    let mut marked = 0;
    while let Ok((_, _)) = rustix::net::recv(&capture, &mut buffer, rustix::net::RecvFlags::empty())
    {
        let is_request = buffer[12..14] == [8, 0] && buffer[23] == 1 && buffer[34] == 8;
        marked += usize::from(is_request && buffer[15] == 46 << 2);
    }
    assert_eq!(marked, 3, "echo requests are marked");
    forwarded(&net);
    running.signal(Signal::INT);
    assert_eq!(running.end().code, Some(0));
}

/// A connection from the outside to the forward.
fn forwarded(net: &Net) {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    let listener = net.a.run(|| TcpListener::bind("10.0.0.9:8080").unwrap());
    let mut client = net.b.run(|| {
        let at = "198.51.100.1:80".parse().unwrap();
        TcpStream::connect_timeout(&at, live::WAIT_MAX).unwrap()
    });
    let (mut server, from) = listener.accept().unwrap();
    assert_eq!(from.ip().to_string(), OUTSIDE);
    client.write_all(b"hello").unwrap();
    let mut hello = [0; 5];
    server.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    server.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
}

#[test]
fn mistakes_name_line_and_remedy() {
    let folder = Folder::new("nat-mistakes");
    let path = folder.path("box.toml");
    let links = "[[link]]\nname = \"a\"\n[[link]]\nname = \"b\"\n";
    for (text, place, why) in [
        (
            format!("{links}[[stage]]\nkind = \"nat\"\n"),
            "",
            "no `outside`",
        ),
        (format!("outside = \"c\"\n{links}"), ":1:11:", "no [[link]]"),
        (
            format!("outside = \"b\"\n{links}[[stage]]\nkind = \"nut\"\n"),
            ":7:8:",
            "\"nat\"",
        ),
        (
            format!("outside = \"b\"\n{links}[[stage]]\nkind = \"mark\"\ndscp = 64\n"),
            ":8:8:",
            "63",
        ),
        (
            format!(
                "outside = \"b\"\n{links}[[stage]]\nkind = \"mark\"\ndscp = 1\nmatch = \"prot 5\"\n"
            ),
            ":9:9:",
            "match:",
        ),
        (
            format!("outside = \"b\"\n{links}[[stage]]\nkind = \"nat\"\npool = [\"1.2.3\"]\n"),
            ":8:9:",
            "IPv4",
        ),
        (
            format!("outside = \"b\"\n{links}[[stage]]\nkind = \"nat\"\npol = 1\n"),
            ":8:1:",
            "pol",
        ),
        (format!("outside = \"b\"\nfoo = 1\n{links}"), ":2:1:", "foo"),
    ] {
        fs::write(&path, &text).unwrap();
        let done = weir(["run", &path, "--check"]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{text}: {said}");
        assert!(
            said.contains(&format!("box.toml{place}")) && said.contains(why),
            "{text}: {said}"
        );
    }
}

#[test]
fn the_short_command_prints_what_it_stands_for() {
    let arguments = [
        "nat", "in0", "out0", "--pool", POOL, "--block", "512", "--print",
    ];
    let done = weir(arguments).output().unwrap();
    let printed = String::from_utf8(done.stdout).unwrap();
    for line in [
        "outside = \"out0\"",
        "kind = \"nat\"",
        "block = 512",
        "pool = [\"198.51.100.2\"]",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
    let mut find = weir([
        "nat",
        "--find",
        "udp:1.2.3.4:5",
        "--time",
        "1",
        "--log",
        "/dev/null",
    ]);
    let said = find.output().unwrap();
    assert_eq!(said.status.code(), Some(1));
}

#[test]
fn a_whole_second_of_the_log_has_all_its_subscribers() {
    let folder = Folder::new("nat-find");
    let log = folder.path("nat.ndjson");
    let line = |time_ns: u64, event: &str, host: u8| {
        format!(
            "{{\"time_ns\":{time_ns},\"event\":\"{event}\",\"subscriber\":\"10.0.0.{host}\",\
             \"pool\":\"203.0.113.1\",\"first\":1024,\"last\":2047}}\n"
        )
    };
    let lines = [
        line(1_000_500_000_000, "block-allocated", 5),
        line(1_000_700_000_000, "block-released", 5),
        line(1_000_800_000_000, "block-allocated", 6),
    ];
    std::fs::write(&log, lines.concat()).unwrap();
    let find = "tcp:203.0.113.1:1500";
    for (time, found) in [
        ("999", ""),
        ("1000", "10.0.0.5\n10.0.0.6\n"),
        ("1000.6", "10.0.0.5\n"),
        ("1001", "10.0.0.6\n"),
    ] {
        let done = weir(["nat", "--log", &log, "--find", find, "--time", time]).output();
        let printed = String::from_utf8(done.unwrap().stdout).unwrap();
        assert_eq!(printed, found, "at {time}");
    }
}

/// A reader that has gone ends the command without a message, as of every command.
#[test]
fn an_output_that_is_closed_is_no_failure() {
    let arguments = [
        &["nat", "in0", "out0", "--print"][..],
        &[
            "balance",
            "eth0",
            "--service",
            "192.0.2.1:80",
            "--to",
            "10.0.0.2",
            "--print",
        ],
    ];
    for words in arguments {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = weir([]);
        command
            .args(words)
            .stdout(writer)
            .stderr(std::process::Stdio::piped());
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!((done.status.code(), &*said), (Some(0), ""), "{words:?}");
    }
}
