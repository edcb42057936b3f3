//! A host of weir's on two TAP interfaces of one kernel.

mod common;
#[path = "common/live.rs"]
mod live;
#[path = "common/tap.rs"]
mod tap;

use common::Folder;
use live::WAIT_MAX;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener};
use std::thread;
use std::time::{Duration, Instant};
use tap::{Kernel, kernel, kernel_with};
use weir_lab::net::{Signal, traffic, unprivileged};
use weir_lab::{testenv, wait};

/// The host's addresses, by link.
const ADDRESSES: [&str; 4] = [
    "192.0.2.5/24",
    "2001:db8::5/64",
    "198.51.100.5/24%tap1",
    "2001:db8:1::5/64%tap:tap1",
];
const AT: [&str; 4] = ["192.0.2.5", "2001:db8::5", "198.51.100.5", "2001:db8:1::5"];

/// A kernel with a second TAP interface.
fn two() -> Option<Kernel> {
    let kernel = kernel()?;
    let tap = kernel.host.tap("tap1", unprivileged::NOBODY).unwrap();
    tap.up().unwrap();
    tap.add_address([198, 51, 100, 1], 24).unwrap();
    tap.add_address([0x2001, 0xdb8, 1, 0, 0, 0, 0, 1], 64)
        .unwrap();
    Some(kernel)
}

/// The command with both links.
fn said<'a>(command: &[&'a str], addresses: &[&'a str]) -> Vec<&'a str> {
    let addresses = addresses.iter().flat_map(|one| ["--addr", *one]);
    command.iter().copied().chain(addresses).collect()
}

fn answers(kernel: &Kernel, at: &str) -> bool {
    let at: IpAddr = at.parse().unwrap();
    let pings = traffic::ping(&kernel.host, at, 1, Duration::from_millis(700));
    pings.is_ok_and(|pings| pings.round_trips.len() == 1)
}

/// With the same address on both sides, the one on the named link is used.
#[test]
fn an_address_may_name_its_link() {
    const SAME: [u16; 8] = [0xfe80, 0, 0, 0, 0, 0, 0, 1];
    let Some(kernel) = two() else { return };
    let tap1 = kernel.host.device("tap1").unwrap();
    for tap in [&kernel.host.device("tap0").unwrap(), &tap1] {
        tap.add_address(SAME, 64).unwrap();
    }
    let local = ["fe80::5/64", "fe80::6/64%tap1"];
    let ask = |peer| {
        let command = ["echo", peer, "-c", "1", "--link", "tap0", "--link", "tap1"];
        let all = said(&command, &[&ADDRESSES[..], &local].concat());
        kernel.weir_as_said(&all).end()
    };
    // The kernel has its addresses on a TAP interface as soon as the interface
    // exists.
    let at = SocketAddrV6::new(SAME.into(), 7, 0, tap1.index());
    let host = kernel.weir_as_said(&said(&["host", "tap0", "tap1"], &ADDRESSES));
    let host = host.until("ready");
    let listener = kernel.host.run(|| {
        let began = Instant::now();
        loop {
            match TcpListener::bind(at) {
                Ok(listener) => return listener,
                Err(error) => assert!(began.elapsed() < WAIT_MAX, "{error}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    });
    host.signal(Signal::INT);
    host.end();
    let ended = ask("fe80::1%tap0");
    assert!(ended.stderr.contains("Connection refused"), "{ended:?}");
    let answers = thread::spawn(move || {
        let (mut stream, _) = wait::accept(&listener).unwrap();
        let mut message = [0; 64];
        stream.read_exact(&mut message).unwrap();
        stream.write_all(&message).unwrap();
    });
    let ended = ask("fe80::1%tap1");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    answers.join().unwrap();
}

#[test]
fn a_host_answers_on_each_link_for_its_addresses_there() {
    let Some(kernel) = two() else { return };
    if !testenv::programs(&["ip"]) {
        return;
    }
    let arguments = said(&["host", "tap0", "tap:tap1"], &ADDRESSES);
    let host = kernel.weir_as_said(&arguments).until("ready");
    for at in AT {
        assert!(answers(&kernel, at), "{at}");
    }
    // By the strong host model the address is not reachable by the other link;
    // Linux would answer.
    kernel.run("ip route add 198.51.100.5/32 dev tap0");
    assert!(!answers(&kernel, "198.51.100.5"));
    kernel.run("ip route del 198.51.100.5/32 dev tap0");
    assert!(answers(&kernel, "198.51.100.5"));
    // The host continues while one link is left.
    kernel.host.device("tap1").unwrap().delete().unwrap();
    assert!(answers(&kernel, "192.0.2.5") && !answers(&kernel, "198.51.100.5"));
    kernel.host.device("tap0").unwrap().delete().unwrap();
    let ended = host.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("tap0, tap:tap1 is gone"), "{ended:?}");
}

#[test]
fn a_server_is_asked_by_both_links_at_once() {
    let Some(kernel) = two() else { return };
    let arguments = said(&["echo", "--link", "tap0", "--link", "tap1"], &ADDRESSES);
    let server = kernel.weir_as_said(&arguments).until("ready");
    let sent: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 / 8) as u8).collect();
    kernel.host.run(|| {
        let streams = AT.map(|at| wait::connect(SocketAddr::new(at.parse().unwrap(), 7)).unwrap());
        thread::scope(|scope| {
            for mut stream in &streams {
                let sent = &sent;
                stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
                scope.spawn(move || {
                    stream.write_all(sent).unwrap();
                    stream.shutdown(std::net::Shutdown::Write).unwrap();
                });
                scope.spawn(move || {
                    let mut heard = Vec::new();
                    stream.read_to_end(&mut heard).unwrap();
                    assert!(heard == *sent, "{} bytes", heard.len());
                });
            }
        });
    });
    server.signal(Signal::INT);
    assert_eq!(server.end().code, Some(0));
}

#[test]
fn a_server_of_several_stacks_is_one_host() {
    let Some(kernel) = kernel_with(&["ip"]) else {
        return;
    };
    // A queue for each stack, one for all, and several for one stack.
    for (kind, shards) in [("multi_queue", "3"), ("", "2"), ("multi_queue", "1")] {
        kernel.run("ip link del tap0");
        kernel.run(&format!(
            "ip tuntap add dev tap0 mode tap user nobody {kind}"
        ));
        kernel.run("ip addr add 192.0.2.1/24 dev tap0");
        kernel.run("ip addr add 2001:db8::1/64 dev tap0 nodad");
        kernel.run("ip link set tap0 up");
        let server = kernel.weir(&["echo", "--shards", shards]).until("ready");
        kernel.host.run(|| {
            for round in 0..12_u8 {
                for at in &AT[..2] {
                    let mut stream =
                        wait::connect(SocketAddr::new(at.parse().unwrap(), 7)).unwrap();
                    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
                    let sent = [round; 5000];
                    stream.write_all(&sent).unwrap();
                    let mut heard = [0; 5000];
                    stream.read_exact(&mut heard).unwrap();
                    assert_eq!(heard, sent, "{kind} {shards}");
                }
            }
        });
        // Another process would get a part of the flows.
        for shards in ["1", "2"] {
            let other = kernel.weir(&["echo", "--shards", shards]).end();
            assert_eq!(other.code, Some(1), "{other:?}");
            let said = "another program has it open";
            assert!(other.stderr.contains(said), "{other:?}");
        }
        assert!(answers(&kernel, AT[0]) && answers(&kernel, AT[1]));
        server.signal(Signal::INT);
        assert_eq!(server.end().code, Some(0));
    }
    let refused = kernel.weir(&["echo", "--shards", "0"]).end();
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

#[test]
fn get_goes_by_the_link_that_leads_there() {
    let Some(kernel) = two() else { return };
    if !testenv::programs(&["python3"]) {
        return;
    }
    let folder = Folder::new("get-links");
    folder.write("x", b"hello");
    // A third network, behind the second link's router.
    let lo = kernel.host.device("lo").unwrap();
    lo.add_address([203, 0, 113, 1], 32).unwrap();
    let server = format!(
        "python3 -m http.server 8000 --bind :: --directory {}",
        folder.path("")
    );
    let _server = kernel.server(&server, 8000);
    for at in [
        "192.0.2.1",
        "198.51.100.1",
        "[2001:db8:1::1]",
        "203.0.113.1",
    ] {
        let url = format!("http://{at}:8000/x");
        let command = ["get", &url, "--link", "tap0", "--link", "tap1"];
        let router = ["--gateway", "198.51.100.1", "--max-time", "20"];
        let arguments = said(&[&command[..], &router[..]].concat(), &ADDRESSES);
        let got = kernel.weir_as_said(&arguments).end();
        let said = (got.code, &*got.stdout, &*got.stderr);
        assert_eq!(said, (Some(0), "hello", ""), "{url}");
    }
}
