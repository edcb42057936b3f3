//! `weir host`, `weir echo` and `weir iperf`: a host of weir's own beside the
//! kernel's, on TAP and on a live interface.

mod common;
#[path = "common/live.rs"]
mod live;
#[path = "common/tap.rs"]
mod tap;

use common::weir;
use live::{Running, net};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use tap::{HOST, KERNEL, Kernel, OURS, kernel};
use weir_lab::command::Resource;
use weir_lab::net::{Signal, traffic, unprivileged};
use weir_lab::{testenv, wait};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_host_beside_the_kernels_answers_on_its_own() {
    let Some(net) = net() else { return };
    let arguments = [
        "host",
        "eth0",
        "--addr",
        "10.0.0.77/24",
        "--addr",
        "2001:db8::77/64",
        "--json",
        "--metrics",
        "127.0.0.1:0",
    ];
    let host = net.weir(&arguments).until("ready");
    net.eth_a.add_address(ip("2001:db8::1"), 64).unwrap();
    let patience = Duration::from_secs(2);
    for at in ["10.0.0.77", "2001:db8::77", "10.0.0.2"] {
        let pings = traffic::ping(&net.a, ip(at), 5, patience).unwrap();
        assert_eq!(pings.round_trips.len(), 5, "{at}: {pings:?}");
    }
    // No application listens there, and the kernel's own server is not
    // affected.
    let listener = net
        .b
        .run(|| std::net::TcpListener::bind("10.0.0.2:80"))
        .unwrap();
    net.a.run(|| {
        let refused = TcpStream::connect_timeout(&"10.0.0.77:80".parse().unwrap(), patience);
        assert_eq!(
            refused.unwrap_err().kind(),
            std::io::ErrorKind::ConnectionRefused
        );
        TcpStream::connect_timeout(&"10.0.0.2:80".parse().unwrap(), patience).unwrap();
        let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
        socket.connect("10.0.0.77:9").unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        socket.send(b"x").unwrap();
        let refused = socket.recv(&mut [0; 9]).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
    drop(listener);
    let refused = "weir_host_dropped_total{reason=\"segment_refused\"} 1\n";
    let metrics = host.until_metrics(&net.b, &[refused]);
    let received = "weir_host_rx_frames_total ";
    let frames = metrics.lines().find_map(|line| line.strip_prefix(received));
    assert!(frames.unwrap().parse::<u64>().unwrap() >= 12, "{metrics}");
    let counted = host.stop().json();
    assert!(counted["frames_in"].as_u64().unwrap() >= 12, "{counted}");
    // Its addresses end with it.
    let pings = traffic::ping(&net.a, ip("10.0.0.77"), 1, Duration::from_millis(300));
    assert!(!pings.is_ok_and(|pings| !pings.round_trips.is_empty()));
}

/// A wait of twenty seconds is not silent.
#[test]
fn a_host_says_what_it_waits_for() {
    let Some(net) = net() else { return };
    for (source, whose) in [
        ("dhcp", "DHCP server gives an address"),
        ("auto", "router advertises a network"),
    ] {
        let arguments = [
            "host",
            "eth0",
            "--addr",
            source,
            "--mac",
            "02:00:00:00:00:77",
        ];
        let host = net.weir(&arguments);
        let host = host.until(&format!("waits until a {whose} on eth0, up to 20 s"));
        host.signal(Signal::INT);
        assert_eq!(host.end().code, Some(130));
    }
}

/// Hosts on one interface do not hear each other's probes: to both the frames are their own.
#[test]
fn a_second_host_of_an_address_warns() {
    let Some(net) = net() else { return };
    let first = ["--addr", "10.0.0.77/24", "--addr", "2001:db8::77/64"];
    let first = net.weir(&[&["host", "eth0"], &first[..]].concat());
    let first = first.until("ready");
    assert!(!first.said().contains("another host"), "{}", first.said());
    for (command, shared) in [
        (&["host", "eth0", "--addr", "10.0.0.77/24"][..], "10.0.0.77"),
        (
            &["host", "eth0", "--addr", "2001:db8::77/64"],
            "2001:db8::77",
        ),
        (
            &["echo", "--link", "port:eth0", "--addr", "10.0.0.77/24"],
            "10.0.0.77",
        ),
    ] {
        let second = net.weir(command).until("ready");
        let said = format!("another host on eth0 has {shared}, too: each takes some of the frames");
        assert!(second.said().contains(&said), "{}", second.said());
        second.stop();
    }
    let other = net.weir(&["host", "eth0", "--addr", "10.0.0.78/24"]);
    let other = other.until("ready");
    assert!(!other.said().contains("another host"), "{}", other.said());
    first.stop();
    let after = net.weir(&["host", "eth0", "--addr", "10.0.0.77/24"]);
    let after = after.until("ready");
    assert!(!after.said().contains("another host"), "{}", after.said());
}

#[test]
fn a_server_on_a_live_interface_takes_bytes_from_a_kernel() {
    let Some(net) = net() else { return };
    let arguments = ["echo", "--link", "port:eth0", "--addr", "10.0.0.77/24"];
    let echo = net.weir(&arguments).until("ready");
    // Over a veth pair whose kernel leaves checksums and segmentation to a
    // device.
    let sent: Vec<u8> = (0..1_000_000_u32).map(|at| (at * 7 / 8) as u8).collect();
    let heard = net.a.run(|| {
        let stream = wait::connect("10.0.0.77:7".parse().unwrap()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&stream).write_all(&sent).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut heard = Vec::new();
            (&stream).read_to_end(&mut heard).unwrap();
            heard
        })
    });
    assert!(heard == sent, "{} bytes", heard.len());
    echo.stop();
}

/// A host ends with a message when its interface is gone.
#[test]
fn hosts_end_with_their_interface() {
    let commands = [&["serve", "."][..], &["echo"], &["iperf"]];
    let addr = ["--addr", "10.0.0.77/24"];
    for command in commands
        .map(|words| [words, &["--link"]].concat())
        .into_iter()
        .chain([vec!["host"]])
    {
        for (link, device) in [("port:eth0", "eth0"), ("tap0", "tap0")] {
            let Some(net) = net() else { return };
            if !testenv::tun() {
                return;
            }
            net.b.tap("tap0", 0).unwrap().up().unwrap();
            let all = [&command[..], &[link], &addr].concat();
            let host = net.weir(&all).until("ready");
            net.b.device(device).unwrap().delete().unwrap();
            let ended = host.end();
            assert_eq!(ended.code, Some(1), "{all:?}: {ended:?}");
            let said = format!("{link} is gone");
            assert!(ended.stderr.contains(&said), "{all:?}: {ended:?}");
        }
    }
}

#[test]
fn pings_of_all_sizes_are_answered() {
    let Some(kernel) = kernel() else { return };
    let host = kernel.weir_at(&["host", "tap0"]).until("ready");
    for at in OURS {
        let echo = |size| kernel.ping(at, size);
        // In one frame, and in fragments.
        for size in [0, 1, 56, 1472, 1473, 8000, 60_000] {
            assert!(echo(size), "{at}: {size}");
        }
    }
    host.stop();
}

#[test]
fn echo_serves_the_kernel_and_asks_it() {
    let Some(kernel) = kernel() else { return };
    let server = kernel.weir(&["echo"]).until("ready");
    for at in OURS {
        kernel.host.run(|| {
            let mut stream = wait::connect(SocketAddr::new(ip(at), 7)).unwrap();
            stream.write_all(b"over TCP").unwrap();
            let mut heard = [0; 8];
            stream.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"over TCP");
            let socket =
                UdpSocket::bind((if at.contains(':') { "::" } else { "0.0.0.0" }, 0)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            // In one frame, and in fragments.
            for len in [0, 9, 20_000] {
                socket.send_to(&vec![7; len], (at, 7)).unwrap();
                let mut heard = vec![0; 30_000];
                assert_eq!(socket.recv(&mut heard).unwrap(), len);
            }
        });
    }
    server.stop();
    let listener = kernel.host.run(|| UdpSocket::bind((KERNEL[0], 7))).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2000];
        while let Ok((len, from)) = listener.recv_from(&mut buffer) {
            listener.send_to(&buffer[..len], from).unwrap();
        }
    });
    let client = kernel
        .weir(&["echo", KERNEL[0], "--udp", "--count", "20", "--json"])
        .end();
    assert_eq!(client.code, Some(0), "{client:?}");
    assert_eq!(client.json()["came_back"], 20);
    let nobody = kernel.weir(&["echo", KERNEL[0], "--count", "1"]).end();
    assert_eq!(nobody.code, Some(1), "{nobody:?}");
    assert!(nobody.stderr.contains("Connection refused"), "{nobody:?}");
}

fn iperf3(kernel: &Kernel, arguments: &str) -> Value {
    let said = kernel.run(&format!("iperf3 --json --time 1 {arguments}"));
    let said: Value = serde_json::from_slice(&said).unwrap();
    assert!(said.get("error").is_none(), "{said}");
    said["end"].clone()
}

#[test]
fn iperf3_of_the_kernels_side_measures_against_ours() {
    let Some(kernel) = kernel() else { return };
    if !testenv::programs(&["iperf3"]) {
        return;
    }
    let server = kernel.weir(&["iperf", "--json"]).until("ready");
    for (at, arguments) in [
        (OURS[0], ""),
        (OURS[0], "--reverse"),
        (OURS[1], "--parallel 3"),
        (OURS[1], "--reverse --parallel 2"),
    ] {
        let end = iperf3(&kernel, &format!("--client {at} {arguments}"));
        for side in ["sum_sent", "sum_received"] {
            let rate = end[side]["bits_per_second"].as_f64().unwrap();
            assert!(rate > 1e6, "{arguments}: {side} {rate}");
        }
        // The sender reports the number of retransmissions.
        let again = end["sum_sent"]["retransmits"].as_i64().unwrap();
        assert!((0..100_000).contains(&again), "{arguments}: {again}");
    }
    // The next block is due only after the test.
    iperf3(
        &kernel,
        &format!("--client {} --bitrate 100 --reverse", OURS[0]),
    );
    for arguments in ["", "--reverse"] {
        let end = iperf3(
            &kernel,
            // So slow that the data of a pause of half a second fits the
            // buffer.
            &format!("--client {} --udp --bitrate 2M {arguments}", OURS[0]),
        );
        let (packets, lost) = (&end["sum"]["packets"], &end["sum"]["lost_packets"]);
        assert!(packets.as_u64().unwrap() > 20, "{end}");
        assert!(
            lost.as_u64().unwrap() * 10 < packets.as_u64().unwrap(),
            "{end}"
        );
    }
    let refused = kernel.output(&format!("iperf3 --client {} --bidir", OURS[0]));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("is not implemented yet"), "{refused:?}");
    let ended = server.stop();
    assert_eq!(ended.stdout.lines().count(), 7, "{ended:?}");
    let said: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(said.len(), 2, "{ended:?}");
    assert!(said[1].contains("both directions at once"), "{ended:?}");
}

#[test]
fn iperf_measures_against_iperf3_of_the_kernels_side() {
    let Some(kernel) = kernel() else { return };
    // A probe of the server's port would end its first test.
    let Some(mut command) = testenv::program("iperf3") else {
        return;
    };
    command
        .args(["--server", "--json"])
        .stdout(std::process::Stdio::null());
    let _server = kernel.host.spawn(command).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    for arguments in [
        &["--time", "1"][..],
        &["--time", "1", "--reverse", "--parallel", "2"],
        &["--bytes", "3000000"],
        &["--time", "1", "--udp", "--rate", "10000000"],
        &["--time", "1", "--udp", "--rate", "10000000", "--reverse"],
        &["--udp", "--bytes", "150000", "--reverse", "--parallel", "3"],
    ] {
        let all: Vec<&str> = ["iperf", KERNEL[0], "--json"]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        let client = kernel.weir(&all).end();
        assert_eq!(client.code, Some(0), "{arguments:?}: {client:?}");
        let said = client.json();
        assert!(said["received_bytes"].as_u64().unwrap() > 100_000, "{said}");
        assert!(said["sent_bytes"].as_u64().unwrap() >= said["received_bytes"].as_u64().unwrap());
    }
}

/// States of iperf3's protocol.
const WORDS: [u8; 4] = [9, 10, 1, 2];

/// Acts as iperf3's server until the test is running, then disconnects.
fn leave_within_the_test(listener: &TcpListener) {
    let (mut control, _) = wait::accept(listener).unwrap();
    control.read_exact(&mut [0; 37]).unwrap();
    control.write_all(&WORDS[..1]).unwrap();
    let mut len = [0; 4];
    control.read_exact(&mut len).unwrap();
    let mut text = vec![0; u32::from_be_bytes(len) as usize];
    control.read_exact(&mut text).unwrap();
    control.write_all(&WORDS[1..2]).unwrap();
    let _stream = wait::accept(listener).unwrap();
    control.write_all(&WORDS[2..]).unwrap();
}

#[test]
fn an_iperf_ends_when_its_server_goes() {
    let Some(kernel) = kernel() else { return };
    let listener = kernel.host.run(|| TcpListener::bind((KERNEL[0], 5201)));
    let listener = listener.unwrap();
    // A test that would take a day.
    let words = ["iperf", KERNEL[0], "--time", "86400", "--rate", "1000"];
    let client = kernel.weir(&words);
    leave_within_the_test(&listener);
    let ended = client.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let why = "192.0.2.1:5201: the server has closed the connection";
    assert!(ended.stderr.contains(why), "{ended:?}");
    // Its connection waits at the listener, and is never read.
    let ended = kernel.weir(&words).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let why = "the server has not answered within 10 s";
    assert!(ended.stderr.contains(why), "{ended:?}");
}

/// A client that is silent after its test's duration, and one that is silent
/// before it.
#[test]
fn an_iperf_server_serves_after_clients_that_say_no_more() {
    let Some(kernel) = kernel() else { return };
    let server = kernel.weir(&["iperf", "--one-off"]).until("ready");
    let text = br#"{"tcp":true,"parallel":1,"time":0.5,"len":1000}"#;
    let (mut control, stream) = kernel.host.run(|| {
        let mut control = wait::connect(SocketAddr::new(ip(OURS[0]), 5201)).unwrap();
        control.write_all(&[b'a'; 37]).unwrap();
        let len = (text.len() as u32).to_be_bytes();
        control.write_all(&[&len[..], text].concat()).unwrap();
        let mut said = [0; 2];
        control.read_exact(&mut said).unwrap();
        let mut stream = wait::connect(SocketAddr::new(ip(OURS[0]), 5201)).unwrap();
        stream.write_all(&[b'a'; 37]).unwrap();
        (control, stream)
    });
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("does not end its test"), "{ended:?}");
    // The client was notified.
    let mut said = Vec::new();
    control.read_to_end(&mut said).unwrap();
    assert_eq!(said, [&WORDS[2..], &[11]].concat());
    drop(stream);
}

/// While they wait for a peer that does not answer.
#[test]
fn clients_that_wait_for_a_connection_end_by_a_signal() {
    let Some(kernel) = kernel() else { return };
    for command in ["echo", "iperf"] {
        let client = kernel.weir(&[command, "192.0.2.77"]);
        client.signal(Signal::TERM);
        let ended = client.end();
        assert_eq!(ended.code, Some(143), "{ended:?}");
        assert_eq!(ended.stderr, "weir: stopped by SIGTERM\n");
    }
}

/// A user without processes of other tests.
const OTHER: u32 = 64_999;

#[test]
fn an_echo_goes_on_where_there_are_no_more_threads() {
    let Some(kernel) = kernel() else { return };
    let tap = kernel.host.tap("tap1", OTHER).unwrap();
    tap.add_address(ip("198.51.100.1"), 24).unwrap();
    tap.up().unwrap();
    let start = |threads: u64| {
        let mut command = unprivileged::command_as(env!("CARGO_BIN_EXE_weir"), OTHER);
        command.limit(Resource::Nproc, threads);
        let words = ["echo", "--link", "tap1", "--addr", "198.51.100.5/24"];
        Running::start(&kernel.host, command, &words)
    };
    // Two threads that serve, and those of every host.
    let ended = start(6).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("cannot start a thread"), "{ended:?}");
    let server = start(7).until("ready");
    kernel.host.run(|| {
        for _ in 0..2 {
            // No thread is left for a connection.
            let stream = wait::connect("198.51.100.5:7".parse().unwrap()).unwrap();
            let read = (&stream).read(&mut [0; 1]);
            assert!(read.is_err() || read.is_ok_and(|count| count == 0));
        }
        let socket = UdpSocket::bind("198.51.100.1:0").unwrap();
        socket.set_read_timeout(Some(wait::WAIT_MAX)).unwrap();
        socket.send_to(b"x", "198.51.100.5:7").unwrap();
        assert_eq!(socket.recv(&mut [0; 9]).unwrap(), 1);
    });
    assert_eq!(server.stop().stderr, "ready\n");
}

#[test]
fn a_driver_that_cannot_be_had_is_named() {
    let Some(kernel) = kernel() else { return };
    if !testenv::programs(&["unshare", "sh", "mount", "setpriv"]) {
        return;
    }
    let weir = env!("CARGO_BIN_EXE_weir");
    let all = ["host", "tap0", "--addr", "192.0.2.5/24"].join(" ");
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    for (prepare, why) in [
        ("true", "/dev/net/tun is not there"),
        ("touch /dev/net/tun", "you may not open /dev/net/tun"),
    ] {
        let line = format!(
            "mount -t tmpfs -o mode=755 none /dev/net && umask 077 && {prepare} && \
             exec {nobody} {weir} {all}"
        );
        let mut command = testenv::program("unshare").expect("it is there");
        command.args(["--mount", "sh", "-c", &line]);
        let ended = Running::start(&kernel.host, command, &[]).end();
        assert_eq!(ended.code, Some(1), "{prepare}: {ended:?}");
        assert!(ended.stderr.contains(why), "{prepare}: {ended:?}");
    }
}

#[test]
fn servers_ask_silent_clients_whether_they_are_there() {
    let Some(kernel) = kernel() else { return };
    if !testenv::programs(&["ss"]) {
        return;
    }
    for (command, port) in [("echo", 7), ("iperf", 5201)] {
        let server = kernel.weir(&[command]).until("ready");
        let mut stream = kernel
            .host
            .run(|| wait::connect(SocketAddr::new(ip(OURS[0]), port)))
            .unwrap();
        // An iperf test of a number of bytes, with its one stream open.
        let mut second = None;
        if command == "iperf" {
            let text = br#"{"tcp":true,"parallel":1,"num":9,"len":1000}"#;
            stream.write_all(&[b'a'; 37]).unwrap();
            let len = (text.len() as u32).to_be_bytes();
            stream.write_all(&[&len[..], text].concat()).unwrap();
            let other = kernel
                .host
                .run(|| wait::connect(SocketAddr::new(ip(OURS[0]), port)));
            (&mut other.as_ref().unwrap())
                .write_all(&[b'a'; 37])
                .unwrap();
            second = Some(other.unwrap());
            stream.read_exact(&mut [0; 4]).unwrap();
        }
        let from = stream.local_addr().unwrap().port();
        let segments = || {
            let said = kernel.run(&format!("ss -tinH sport = :{from}"));
            let said = String::from_utf8(said).unwrap();
            let count = said.split("segs_in:").nth(1).unwrap_or("0");
            count
                .split_whitespace()
                .next()
                .unwrap()
                .parse::<u32>()
                .unwrap()
        };
        // Data acknowledged late has arrived before.
        std::thread::sleep(Duration::from_secs(1));
        let (before, began) = (segments(), Instant::now());
        while segments() == before {
            assert!(began.elapsed() < live::WAIT_MAX, "{command} does not ask");
            std::thread::sleep(Duration::from_millis(100));
        }
        drop((stream, second));
        server.signal(Signal::INT);
        assert_eq!(server.end().code, Some(0));
    }
}

/// With few descriptors a server either works or fails to start.
#[test]
fn a_server_that_cannot_wait_is_never_ready() {
    let Some(kernel) = kernel() else { return };
    let mut why = Vec::new();
    for files in 5..21 {
        let mut command = weir([]);
        command.limit(Resource::Nofile, files);
        command.args(["serve", "."]);
        let mut server = Running::start(&kernel.host, command, &HOST);
        let said = server.line();
        if said == "ready\n" {
            // The command continues, or fails by itself.
            server.signal(Signal::INT);
            let ended = server.end();
            assert_eq!(ended.code, Some(0), "{files}: {ended:?}");
            break;
        }
        let ended = server.end();
        assert_eq!(ended.code, Some(1), "{files}: {ended:?}");
        why.push(said);
    }
    assert!(why.len() < 16, "{why:?}");
    let limit = "raise the limit of open files (ulimit -n)";
    let told = why.iter().filter(|said| said.contains(limit)).count();
    assert!(told >= 4, "{why:?}");
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let Some(kernel) = kernel() else { return };
    for (words, why) in [
        (
            &["iperf", KERNEL[0], "--udp", "--length", "65508"][..],
            "a datagram cannot have 65508 bytes: give --length at most 65507",
        ),
        (&["iperf", "--port", "0"], "0 is not in 1..=65535"),
        (&["echo", "--port", "0"], "0 is not in 1..=65535"),
    ] {
        let ended = kernel.weir(words).end();
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(why), "{words:?}: {ended:?}");
    }
}

#[test]
fn links_that_cannot_be_are_refused() {
    let Some(kernel) = kernel() else { return };
    let host = |link: &str, addr: &str| kernel.weir_as_said(&["host", link, "--addr", addr]).end();
    for (link, addr, code, why) in [
        (
            "tap7",
            "192.0.2.5/24",
            1,
            "ip tuntap add dev tap7 mode tap user",
        ),
        ("wire:x", "192.0.2.5/24", 2, "no links of kind `wire`"),
        ("tap:a/b", "192.0.2.5/24", 2, "without `/`"),
        (
            "tap:w%d",
            "192.0.2.5/24",
            2,
            "`w%d` is not an interface name",
        ),
        (
            "tap:all",
            "192.0.2.5/24",
            2,
            "`all` is not an interface name",
        ),
        ("port:eth9", "192.0.2.5/24", 1, "no interface `eth9`"),
        (
            "tap0",
            "192.0.2.255/24",
            2,
            "192.0.2.255/24 cannot be a host's address",
        ),
        ("tap0", "192.0.2.5", 2, "192.0.2.5"),
    ] {
        let ended = host(link, addr);
        assert_eq!(ended.code, Some(code), "{link}: {ended:?}");
        assert!(ended.stderr.contains(why), "{link}: {ended:?}");
    }
}

#[test]
fn an_interface_and_a_router_that_no_host_can_use_are_named() {
    let Some(kernel) = kernel() else { return };
    for gateway in ["192.0.2.5", "192.0.2.0", "192.0.2.255"] {
        let words = [
            "host",
            "tap0",
            "--addr",
            "192.0.2.5/24",
            "--gateway",
            gateway,
        ];
        let ended = kernel.weir_as_said(&words).end();
        assert_eq!(ended.code, Some(2), "{gateway}: {ended:?}");
        let why = format!("gateway {gateway} is not another host's address");
        assert!(ended.stderr.contains(&why), "{ended:?}");
    }
    let tap = kernel.host.device("tap0").unwrap();
    tap.set_mtu(1000).unwrap();
    let words = ["host", "tap0", "--addr", "192.0.2.5/24"];
    let ended = kernel.weir_as_said(&words).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let why = "tap0's MTU is 1000 bytes, a host takes 1280 to 65535: ip link set tap0 mtu 1280";
    assert!(ended.stderr.contains(why), "{ended:?}");
}

#[test]
fn impossible_peers_are_refused_with_a_remedy() {
    let Some(net) = net() else { return };
    let away = "198.51.100.1";
    for (to, link, code, why) in [
        (
            away,
            "eth0",
            1,
            "give the router that leads to 198.51.100.1 with --gateway",
        ),
        ("10.0.0.9", "eth0", 1, "no station answers for 10.0.0.9"),
        ("127.0.0.1", "eth0", 1, "no link leads to 127.0.0.1"),
        (
            "224.0.0.1",
            "eth0",
            1,
            "224.0.0.1 is not the address of a single host",
        ),
        ("10.0.0.77", "eth0", 1, "10.0.0.77 is this host's own"),
        (
            "fe80::1%eth1",
            "eth0",
            2,
            "`%eth1` is not one of the host's links",
        ),
        ("10.0.0.1", "eth0", 1, "no application listens at port 7"),
        ("2001:db8::1", "eth0", 2, "addresses of IPv6 alone"),
        ("10.0.0.1", "lo", 2, "lo is not an Ethernet interface"),
    ] {
        let arguments = ["echo", to, "--link", link, "--addr", "10.0.0.77/24"];
        let ended = net.weir(&arguments).end();
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(why), "{arguments:?}: {ended:?}");
    }
}
