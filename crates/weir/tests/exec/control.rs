//! Ancillary data of datagram sockets, as an unmodified program sends and receives it; the kernel's own
//! sockets, of a host that a link joins to the same peer, are the oracle.

use super::*;
use std::net::IpAddr;
use weir_lab::net::Host;

const CONTROL: &str = include_str!("control.py");
const CONTROL_PEER: &str = include_str!("control_peer.py");

/// Lets the peer send as many ICMP errors as it has reason to.
pub(super) fn unlimit(kernel: &Kernel) {
    for name in ["net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"] {
        kernel.host.set_sysctl(name, "0").unwrap();
    }
}

/// The addresses of [`native`], and the kernel's on the link to it.
pub(super) const NATIVE: [[&str; 2]; 2] = [
    ["198.51.100.5", "198.51.100.1"],
    ["2001:db8:1::5", "2001:db8:1::1"],
];

/// A host with the kernel's sockets, at the other end of a link to the kernel.
pub(super) fn native(kernel: &Kernel) -> Host {
    let host = kernel.lab.host("native").unwrap();
    let mut link = kernel.lab.link(&host, &kernel.host).names("own0", "peer0");
    for (pair, len) in NATIVE.iter().zip([24, 64]) {
        let [own, peer] = pair.map(|text| text.parse::<IpAddr>().unwrap());
        link = link.addresses(own, peer, len);
    }
    link.neighbours().connect().unwrap();
    host
}

/// Runs a command whose words are separated by spaces; it must succeed.
pub(super) fn run_on(host: &Host, line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut command = weir_lab::testenv::program(words.next().unwrap()).expect(line);
    command.args(words);
    let output = host.output(command).unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs parts of the script on the kernel's sockets and on weir's, there behind `before`; returns the
/// lines, which are the same.
fn compare(kernel: &Bench, before: &[&str], parts: &[&str]) -> String {
    unlimit(kernel);
    let peer = kernel.folder.write("peer.py", CONTROL_PEER.as_bytes());
    let script = kernel.folder.write("control.py", CONTROL.as_bytes());
    let _peer = kernel.server(&format!("python3 {peer}"), 9000);
    let host = native(kernel);
    let words = [&NATIVE.concat()[..], &["own0"], parts].concat().join(" ");
    let native = run_on(&host, &format!("python3 {script} {words}"));
    let words = [OURS[0], KERNEL[0], OURS[1], KERNEL[1], "tap0"];
    let program = [before, &["python3", &script], &words, parts].concat();
    let ended = exec(kernel, &["--stats"], &program).end();
    assert_eq!(ended.code, Some(0), "{ended:?}\nnative:\n{native}");
    check_owner(&ended);
    let pairs = native.lines().zip(ended.stdout.lines());
    let differ: Vec<_> = pairs.filter(|(native, weirs)| native != weirs).collect();
    assert!(differ.is_empty(), "(kernel, weir): {differ:#?}");
    assert_eq!(native.lines().count(), ended.stdout.lines().count());
    native
}

#[test]
fn ancillary_data_is_the_kernels() {
    let Some(kernel) = bench("exec-control", &["python3", "ip"]) else {
        return;
    };
    let native = compare(&kernel, &[], &[]);
    // The comparison is of what the test is about.
    for what in [
        "PKTINFO the interface own own",
        "TTL 77",
        "TOS 40",
        "HOPLIMIT 77",
        "TIMESTAMPNS True",
    ] {
        assert!(native.contains(what), "{what}:\n{native}");
    }
    assert!(
        native.contains("RECVERR ECONNREFUSED (2, 3, 3, 0, 0, 0) 2 peer"),
        "{native}"
    );
    assert!(
        native.contains("RECVERR6 ECONNREFUSED (3, 1, 4, 0, 0, 0) 10 peer"),
        "{native}"
    );
}

/// By the process that has the link, which passes ancillary data on.
#[test]
fn ancillary_data_reaches_other_processes() {
    let Some(kernel) = bench("exec-control-guest", &["python3", "ip"]) else {
        return;
    };
    let owner = "
import socket, subprocess, sys
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(('192.0.2.5', 1111))
sys.exit(subprocess.run(sys.argv[1:]).returncode)
";
    let before = ["python3", "-c", owner];
    let native = compare(&kernel, &before, &["options", "receiving", "queued"]);
    assert!(native.contains("RECVERR ECONNREFUSED"), "{native}");
}
