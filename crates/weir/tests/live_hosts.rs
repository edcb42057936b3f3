//! `weir host`, `weir echo` and `weir iperf`: a host of weir's beside the
//! kernel's, over TAP and on a live interface.

mod common;
#[path = "common/live.rs"]
mod live;
#[path = "common/tap.rs"]
mod tap;

use live::{Running, net};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::time::Duration;
use tap::{KERNEL, Kernel, OURS, kernel};
use weir_lab::net::talk;

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
    ];
    let host = net.weir(&arguments).until("ready");
    net.eth_a.add_address(ip("2001:db8::1"), 64).unwrap();
    let patience = Duration::from_secs(2);
    for at in ["10.0.0.77", "2001:db8::77", "10.0.0.2"] {
        let pings = talk::ping(&net.a, ip(at), 5, patience).unwrap();
        assert_eq!(pings.round_trips.len(), 5, "{at}: {pings:?}");
    }
    // Nobody listens there, while the kernel's own server is not touched.
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
    let counted = host.stop().json();
    assert!(counted["frames_in"].as_u64().unwrap() >= 12, "{counted}");
    // With it gone, so are its addresses.
    let pings = talk::ping(&net.a, ip("10.0.0.77"), 1, Duration::from_millis(300));
    assert!(!pings.is_ok_and(|pings| !pings.round_trips.is_empty()));
}

#[test]
fn a_server_on_a_live_interface_takes_bytes_from_a_kernel() {
    let Some(net) = net() else { return };
    let arguments = ["echo", "--link", "port:eth0", "--addr", "10.0.0.77/24"];
    let echo = net.weir(&arguments).until("ready");
    // Over a veth pair whose kernel leaves checksums and cutting to a device.
    let sent: Vec<u8> = (0..1_000_000_u32).map(|at| (at * 7 / 8) as u8).collect();
    let heard = net.a.run(|| {
        let stream = TcpStream::connect("10.0.0.77:7").unwrap();
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

/// Whoever is a host ends when its interface does, and says so.
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
            let made = weir_lab::net::Host::run(&net.b, || {
                let add = ["tuntap", "add", "dev", "tap0", "mode", "tap"];
                let up = ["link", "set", "tap0", "up"];
                [&add[..], &up].map(|words| std::process::Command::new("ip").args(words).status())
            });
            assert!(made.into_iter().all(|status| status.unwrap().success()));
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
            let mut stream = TcpStream::connect((at, 7)).unwrap();
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
        // The sender tells how many segments went again.
        let again = end["sum_sent"]["retransmits"].as_i64().unwrap();
        assert!((0..100_000).contains(&again), "{arguments}: {again}");
    }
    // Nothing is due again before the test is over.
    iperf3(
        &kernel,
        &format!("--client {} --bitrate 100 --reverse", OURS[0]),
    );
    for arguments in ["", "--reverse"] {
        let end = iperf3(
            &kernel,
            // So slow that what comes in a pause of half a second has room.
            &format!("--client {} --udp --bitrate 2M {arguments}", OURS[0]),
        );
        let (packets, lost) = (&end["sum"]["packets"], &end["sum"]["lost_packets"]);
        assert!(packets.as_u64().unwrap() > 20, "{end}");
        assert!(
            lost.as_u64().unwrap() * 10 < packets.as_u64().unwrap(),
            "{end}"
        );
    }
    let ended = server.stop();
    assert_eq!(ended.stdout.lines().count(), 7, "{ended:?}");
    assert_eq!(ended.stderr, "ready\n");
}

#[test]
fn iperf_measures_against_iperf3_of_the_kernels_side() {
    let Some(kernel) = kernel() else { return };
    // A probe of the server's port would end its first test.
    let mut command = std::process::Command::new("iperf3");
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

#[test]
fn links_that_cannot_be_are_refused() {
    let Some(kernel) = kernel() else { return };
    let weir = |link: &str, addr: &str| {
        let command = weir_lab::net::nobody::command(env!("CARGO_BIN_EXE_weir"));
        let arguments = ["host", link, "--addr", addr];
        Running::start(&kernel.host, command, &arguments).end()
    };
    for (link, addr, code, why) in [
        (
            "tap7",
            "192.0.2.5/24",
            1,
            "ip tuntap add dev tap7 mode tap user",
        ),
        ("wire:x", "192.0.2.5/24", 2, "no links of kind `wire`"),
        ("port:eth9", "192.0.2.5/24", 1, "no interface `eth9`"),
        (
            "tap0",
            "192.0.2.255/24",
            2,
            "192.0.2.255/24 cannot be a host's address",
        ),
        ("tap0", "192.0.2.5", 2, "192.0.2.5"),
    ] {
        let ended = weir(link, addr);
        assert_eq!(ended.code, Some(code), "{link}: {ended:?}");
        assert!(ended.stderr.contains(why), "{link}: {ended:?}");
    }
}

#[test]
fn peers_that_cannot_be_are_told_with_a_remedy() {
    let Some(net) = net() else { return };
    let away = "198.51.100.1";
    for (to, link, code, why) in [
        (
            away,
            "eth0",
            1,
            "give the router that leads to 198.51.100.1 with --gateway",
        ),
        ("10.0.0.9", "eth0", 1, "nobody answers for 10.0.0.9"),
        ("10.0.0.1", "eth0", 1, "nobody listens at port 7"),
        ("2001:db8::1", "eth0", 2, "addresses of IPv6 alone"),
        ("10.0.0.1", "lo", 2, "lo is no Ethernet interface"),
    ] {
        let arguments = ["echo", to, "--link", link, "--addr", "10.0.0.77/24"];
        let ended = net.weir(&arguments).end();
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(why), "{arguments:?}: {ended:?}");
    }
}
