//! Assigned addresses: by DHCP from dnsmasq, and by advertisements from dnsmasq
//! and radvd; and addresses that other hosts have. The kernel is the reference.

mod common;
#[path = "common/live.rs"]
mod live;
#[path = "common/tap.rs"]
mod tap;

use common::Folder;
use live::{Running, WAIT_MAX, net, open_folder};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use tap::{kernel, kernel_with};
use weir_lab::net::{Host, Signal, traffic};
use weir_lab::{testenv, wait};

/// Starts dnsmasq on the kernel's side; returns when it serves.
fn dnsmasq(on: (&Host, &str), leases: &str, options: &[&str], until: &str) -> Running {
    let leases = format!("--dhcp-leasefile={leases}");
    let (host, interface) = on;
    let interface = format!("--interface={interface}");
    let fixed = [
        "--keep-in-foreground",
        "--log-facility=-",
        "--conf-file=/dev/null",
        "--pid-file=",
        "--user=root",
        "--port=0",
        &interface,
        "--bind-interfaces",
        "--no-ping",
        "--log-dhcp",
        &leases,
    ];
    let all: Vec<&str> = fixed.iter().chain(options).copied().collect();
    let dnsmasq = testenv::program("dnsmasq").expect("the test has asked for it");
    Running::start(host, dnsmasq, &all).until(until)
}

const DHCP: [&str; 2] = [
    "--dhcp-range=192.0.2.100,192.0.2.110,255.255.255.0,2m",
    "--dhcp-option=121,198.51.100.0/24,192.0.2.9,0.0.0.0/0,192.0.2.1",
];

/// The address in the line that states its source.
fn given(running: Running, how: &str) -> (Running, String) {
    let running = running.until("ready");
    let line = running.said().lines().find(|line| line.contains(how));
    let line = line.unwrap_or_else(|| panic!("{how}: {}", running.said()));
    let address = line.trim_start_matches("weir: ").split([' ', '/']).next();
    let address = address.unwrap().to_owned();
    (running, address)
}

#[test]
fn dnsmasq_gives_an_address_and_gets_it_back() {
    let Some(kernel) = kernel() else { return };
    if !testenv::programs(&["dnsmasq"]) {
        return;
    }
    let folder = Folder::new("dnsmasq-lease");
    let leases = folder.path("leases");
    let server = dnsmasq(
        (&kernel.host, "tap0"),
        &leases,
        &DHCP,
        "DHCP, sockets bound",
    );
    let host = kernel.weir_as_said(&["host", "tap0", "--addr", "dhcp"]);
    let (host, address) = given(host, "by DHCP from 192.0.2.1, for 120 s");
    assert!(
        address.starts_with("192.0.2.10") || address == "192.0.2.110",
        "{address}"
    );
    assert!(host.said().contains("router 192.0.2.1"), "{}", host.said());
    assert!(kernel.ping(&address, 56));
    assert!(std::fs::read_to_string(&leases).unwrap().contains(&address));
    host.stop();
    let began = Instant::now();
    while std::fs::read_to_string(&leases).unwrap().contains(&address) {
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "the lease is not given back"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // The server's log of the lease.
    let said = end_server(server);
    for words in [
        "DHCPDISCOVER",
        "DHCPOFFER",
        "DHCPREQUEST",
        "DHCPACK",
        "DHCPRELEASE",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

fn end_server(server: Running) -> String {
    server.signal(Signal::TERM);
    server.end().stderr
}

#[test]
fn a_page_is_got_from_an_address_of_dnsmasq() {
    let Some(kernel) = kernel_with(&["python3"]) else {
        return;
    };
    if !testenv::programs(&["dnsmasq"]) {
        return;
    }
    let folder = open_folder("dnsmasq-get");
    std::fs::write(folder.path("page"), "a page").unwrap();
    let leases = folder.path("leases");
    let _server = dnsmasq(
        (&kernel.host, "tap0"),
        &leases,
        &DHCP,
        "DHCP, sockets bound",
    );
    let root = folder.path("");
    let line = format!("python3 -m http.server 8000 --directory {root}");
    let _http = kernel.server(&line, 8000);
    let url = "http://192.0.2.1:8000/page";
    let got = kernel
        .weir_as_said(&["get", url, "--link", "tap0", "--addr", "dhcp"])
        .end();
    assert_eq!((got.code, &*got.stdout), (Some(0), "a page"), "{got:?}");
}

/// The first stack obtains the lease, and all stacks use its address.
#[test]
fn every_shard_has_the_address_that_dnsmasq_gives() {
    let Some(kernel) = kernel() else { return };
    if !testenv::programs(&["dnsmasq"]) {
        return;
    }
    let folder = Folder::new("dnsmasq-shards");
    let leases = folder.path("leases");
    let on = (&kernel.host, "tap0");
    let _server = dnsmasq(on, &leases, &DHCP, "DHCP, sockets bound");
    let host = kernel.weir_as_said(&["echo", "--link", "tap0", "--addr", "dhcp", "--shards", "3"]);
    let (host, address) = given(host, "by DHCP from 192.0.2.1");
    // The probability that none of 40 connections belongs to a given shard is
    // 1e-7.
    let to = format!("{address}:7").parse().unwrap();
    kernel.host.run(|| {
        for number in 0..40_u8 {
            let mut stream = wait::connect(to).unwrap();
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            stream.write_all(&[number; 1000]).unwrap();
            let mut heard = [0; 1000];
            stream.read_exact(&mut heard).unwrap();
            assert_eq!(heard, [number; 1000]);
        }
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        socket.send_to(b"datagram", (&*address, 7)).unwrap();
        let mut heard = [0; 100];
        let (count, _) = socket.recv_from(&mut heard).unwrap();
        assert_eq!(&heard[..count], b"datagram");
    });
    host.stop();
    let began = Instant::now();
    while std::fs::read_to_string(&leases).unwrap().contains(&address) {
        assert!(began.elapsed() < WAIT_MAX, "the lease is not given back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn routers_of_dnsmasq_and_radvd_are_heard() {
    let Some(kernel) = kernel_with(&["ip"]) else {
        return;
    };
    if !testenv::programs(&["dnsmasq", "radvd"]) {
        return;
    }
    let folder = Folder::new("advertisements");
    // radvd does not advertise on an interface without forwarding.
    kernel
        .host
        .set_sysctl("net/ipv6/conf/all/forwarding", "1")
        .unwrap();
    kernel
        .host
        .set_sysctl("net/ipv6/conf/tap0/forwarding", "1")
        .unwrap();
    // A router sends from a link-local address.
    let tap = kernel.host.device("tap0").unwrap();
    tap.add_address("fe80::1".parse::<std::net::IpAddr>().unwrap(), 64)
        .unwrap();
    // Both IP versions at once, from one server.
    let options = [
        DHCP[0],
        "--enable-ra",
        "--dhcp-range=2001:db8::,ra-only,64,10m",
    ];
    let server = dnsmasq(
        (&kernel.host, "tap0"),
        &folder.path("leases"),
        &options,
        "IPv6 router advertisement",
    );
    let both = ["host", "tap0", "--addr", "dhcp", "--addr", "auto"];
    let (host, address) = given(kernel.weir_as_said(&both), "by a router's advertisement");
    assert!(kernel.ping(&address, 56), "{address}");
    assert!(
        host.said().contains("by DHCP from 192.0.2.1") && host.said().contains("router fe80::1"),
        "{}",
        host.said()
    );
    host.stop();
    end_server(server);

    let file = folder.path("radvd.conf");
    let text = "interface tap0 { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4;
        AdvLinkMTU 1400;
        prefix 2001:db8:5::/64 { AdvOnLink off; AdvValidLifetime 600; AdvPreferredLifetime 300; };
        route 2001:db8:6::/48 { };
        RDNSS 2001:db8::53 { }; };";
    std::fs::write(&file, text).unwrap();
    let mut command = testenv::program("radvd").expect("the test has asked for it");
    command.args(["--nodaemon", "--logmethod", "stderr", "--config"]);
    command
        .arg(&file)
        .args(["--pidfile"])
        .arg(folder.path("radvd.pid"));
    let radvd = Running::start(&kernel.host, command, &[]);
    let (host, address) = given(
        kernel.weir_as_said(&["host", "tap0", "--addr", "auto"]),
        "by a router's advertisement",
    );
    assert!(address.starts_with("2001:db8:5:"), "{address}");
    // The kernel reaches the address by a route, and the answers come by the
    // router.
    kernel.run("ip -6 route add 2001:db8:5::/64 dev tap0");
    for size in [56, 1352, 1353, 3000] {
        assert!(kernel.ping(&address, size), "{size}");
    }
    host.stop();
    // The same address again, since it is derived from stable values.
    let again = kernel.weir_as_said(&["host", "tap0", "--addr", "auto"]);
    let (host, again) = given(again, "by a router's advertisement");
    assert_eq!(again, address);
    host.stop();
    end_server(radvd);
}

#[test]
fn a_wait_for_an_address_can_be_stopped() {
    let Some(kernel) = kernel() else { return };
    let url = "http://192.0.2.1/";
    let waiting = kernel.weir_as_said(&["get", url, "--link", "tap0", "--addr", "dhcp"]);
    std::thread::sleep(Duration::from_millis(500));
    waiting.signal(Signal::INT);
    let began = Instant::now();
    let ended = waiting.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn an_address_that_a_kernel_has_is_given_up() {
    let Some(net) = net() else { return };
    net.eth_a
        .add_address("2001:db8::1".parse::<std::net::IpAddr>().unwrap(), 64)
        .unwrap();
    // The kernel's duplicate address detection must have ended.
    std::thread::sleep(Duration::from_secs(2));
    for at in ["10.0.0.1/24", "2001:db8::1/64"] {
        let address = at.split('/').next().unwrap();
        let said = format!("{address} is ");
        let host = net.weir(&["host", "eth0", "--addr", at]);
        let ended = host.until(&said).end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let none = "the host has no address left on eth0: give another";
        assert!(ended.stderr.contains(none), "{ended:?}");
        // A command that waits for an answer ends on the signal, before its own
        // time limit.
        let url = format!(
            "http://{}/",
            ["10.0.0.99", "[2001:db8::99]"][usize::from(at.contains("::"))]
        );
        let get = ["get", &url, "--link", "eth0", "--addr", at];
        let patient = [&get[..], &["--connect-timeout", "1000000"]].concat();
        let ended = net.weir(&patient).end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(&said), "{ended:?}");
        assert!(ended.stderr.contains(none), "{ended:?}");
        // With another address it continues.
        net.weir(&["host", "eth0", "--addr", at, "--addr", "10.0.0.77/24"])
            .until("ready")
            .stop();
    }
}

/// Every command reports later changes of an address.
#[test]
fn an_address_that_a_kernel_takes_later_is_given_up_by_any_command() {
    let Some(kernel) = kernel_with(&["ip"]) else {
        return;
    };
    let folder = open_folder("later");
    let root = folder.path("");
    for command in [&["serve", &*root][..], &["echo"], &["iperf"]] {
        let host = ["--link", "tap0", "--addr", "192.0.2.77/24"];
        let arguments: Vec<&str> = command.iter().copied().chain(host).collect();
        let running = kernel.weir_as_said(&arguments).until("ready");
        kernel.run("ip addr add 192.0.2.77/32 dev tap0");
        // The address is defended once, and given up at the next conflict (RFC
        // 5227 §2.4, b): the kernel probes three times.
        kernel.host.run(|| {
            let socket = UdpSocket::bind("192.0.2.77:0").unwrap();
            socket.send_to(b"x", "192.0.2.99:9").unwrap();
        });
        let running = running.until("192.0.2.77 is ");
        let said = running.said().to_owned();
        assert!(said.contains("'s too: it is not used any more"), "{said}");
        let ended = running.end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains("no address left on"), "{ended:?}");
        kernel.run("ip addr del 192.0.2.77/32 dev tap0");
    }
}

#[test]
fn a_kernel_finds_that_an_address_is_ours() {
    let Some(kernel) = kernel_with(&["ip"]) else {
        return;
    };
    let host = kernel.weir_at(&["host", "tap0"]).until("ready");
    kernel
        .host
        .set_sysctl("net/ipv6/conf/tap0/accept_dad", "1")
        .unwrap();
    // Duplicate address detection has ended.
    std::thread::sleep(Duration::from_millis(1500));
    kernel.run("ip -6 addr add 2001:db8::5/64 dev tap0");
    let began = Instant::now();
    loop {
        let shown = kernel.run("ip -6 addr show dev tap0");
        let shown = String::from_utf8(shown).unwrap();
        if shown.contains("dadfailed") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{shown}");
        std::thread::sleep(Duration::from_millis(100));
    }
    host.stop();
}

#[test]
fn addresses_that_cannot_be_are_refused_with_a_remedy() {
    let Some(net) = net() else { return };
    for (arguments, words) in [
        (
            &["host", "eth0", "--addr", "10.0.0.2/24"][..],
            "this machine's own on eth0",
        ),
        (
            &["host", "eth0", "--addr", "10.0.0.0/24"],
            "such as 10.0.0.1",
        ),
        (
            &["host", "eth0", "--addr", "10.0.0.255/24"],
            "cannot be a host's address",
        ),
        (&["host", "eth0", "--addr", "dhcp"], "--mac, such as 02:"),
        (&["host", "eht0", "--addr", "10.0.0.7/24"], "say tap:eht0"),
        (
            &["host", "tap:eth0", "--addr", "10.0.0.7/24"],
            "say port:eth0",
        ),
        (&["host", "eth0", "--addr", "dhpc"], "or `dhcp`, or `auto`"),
    ] {
        let refused = net.weir(arguments).end();
        assert!(
            matches!(refused.code, Some(1 | 2)),
            "{arguments:?}: {refused:?}"
        );
        assert!(refused.stderr.contains(words), "{arguments:?}: {refused:?}");
    }
}

/// Beside the kernel of a live interface, with a MAC address of its own.
#[test]
fn a_host_on_a_live_interface_is_given_addresses() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["dnsmasq"]) {
        return;
    }
    let folder = Folder::new("dnsmasq-live");
    for address in ["fe80::1", "2001:db8::1"] {
        let address: std::net::IpAddr = address.parse().unwrap();
        net.eth_a.add_address(address, 64).unwrap();
    }
    let options = [
        "--dhcp-range=10.0.0.100,10.0.0.110,255.255.255.0,2m",
        "--enable-ra",
        "--dhcp-range=2001:db8::,ra-only,64,10m",
    ];
    let leases = folder.path("leases");
    let until = "IPv6 router advertisement";
    let _server = dnsmasq((&net.a, "eth0"), &leases, &options, until);
    let mac = "02:00:00:00:00:77";
    let arguments = [
        "host", "eth0", "--addr", "dhcp", "--addr", "auto", "--mac", mac,
    ];
    let (host, automatic) = given(net.weir(&arguments), "by a router's advertisement");
    let leased = host.said().lines().find(|line| line.contains("by DHCP"));
    let leased = leased.and_then(|line| line.split(' ').nth(1)).unwrap();
    for at in [&*automatic, leased, "10.0.0.2"] {
        let patience = Duration::from_secs(2);
        let pings = traffic::ping(&net.a, at.parse().unwrap(), 3, patience).unwrap();
        assert_eq!(pings.round_trips.len(), 3, "{at}: {}", host.said());
    }
}
