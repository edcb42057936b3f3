//! Programs that send past libpcap, by packet sockets and raw sockets of their own, as user nobody.

use super::{Bench, POLICY, bench};
use crate::live::{self, Ended, Running};
use weir_lab::testenv;

/// How often nmap is started.
const NMAP_TRIES: u32 = 10;

/// What a program of a bench prints. It ends well.
fn ends_well(bench: &Bench, program: &[&str]) -> Ended {
    let ended = bench.exec(program).end();
    assert_eq!(ended.code, Some(0), "{program:?}: {ended:?}");
    ended
}

/// The link-layer address of a's interface.
fn address(bench: &Bench) -> String {
    let shown = live::run(&bench.net.a, "ip", &["-o", "link", "show", "eth0"]);
    let shown = shown.expect("the test has asked for ip");
    let (_, rest) = shown.split_once("link/ether ").expect("it is Ethernet");
    rest.split(' ').next().unwrap().to_owned()
}

#[test]
fn arp_scan_finds_a_host() {
    let Some(bench) = bench("pcap-arp-scan", POLICY, &["arp-scan", "ip"]) else {
        return;
    };
    let scan = ["arp-scan", "-I", "eth0", "--plain", "10.0.0.1", "10.0.0.9"];
    let ended = ends_well(&bench, &scan);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 1, "{ended:?}");
    assert!(lines[0].starts_with("10.0.0.1\t"), "{ended:?}");
    assert!(lines[0].contains(&address(&bench)), "{ended:?}");
}

#[test]
fn arping_is_answered() {
    let narrow = POLICY.replace("ports_max", "filter = \"arp\"\nports_max");
    for (name, policy) in [("pcap-arping", POLICY), ("pcap-arping-narrow", &narrow)] {
        let Some(bench) = bench(name, policy, &["arping", "ip"]) else {
            return;
        };
        let ended = ends_well(&bench, &["arping", "-c", "2", "-i", "eth0", "10.0.0.1"]);
        let reply = format!("42 bytes from {} (10.0.0.1)", address(&bench));
        assert_eq!(ended.stdout.matches(&reply).count(), 2, "{ended:?}");
    }
}

/// What nmap prints. It fails if an interface goes while it lists them, as the ways to send of the
/// nmap before do, once the broker has seen that one's end: then it runs again.
fn nmap(bench: &Bench, arguments: &[&str]) -> Ended {
    let program = [&["nmap"], arguments].concat();
    for _ in 0..NMAP_TRIES {
        let ended = bench.exec(&program).end();
        if !ended.stderr.contains("can't find interface") {
            assert_eq!(ended.code, Some(0), "{program:?}: {ended:?}");
            return ended;
        }
    }
    panic!("{program:?} found no interface {NMAP_TRIES} times");
}

#[test]
fn nmap_scans_as_the_superusers_does() {
    let Some(bench) = bench("pcap-nmap", POLICY, &["nmap", "ip"]) else {
        return;
    };
    let listener = bench
        .net
        .a
        .run(|| std::net::TcpListener::bind("10.0.0.1:8080"));
    let _listener = listener.unwrap();
    let scan = ["-n", "-p", "8079-8081", "10.0.0.1"];
    let root = live::run(&bench.net.b, "nmap", &[&["-sS"][..], &scan].concat());
    let root = root.expect("the test has asked for nmap");
    let ports = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains("/tcp"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(ports(&root).len(), 3, "{root}");
    assert!(root.contains("8080/tcp open"), "{root}");
    for how in [&["-sS"][..], &["-sS", "--send-eth"]] {
        let ended = nmap(&bench, &[how, &scan[..]].concat());
        assert_eq!(ports(&ended.stdout), ports(&root), "{how:?}: {ended:?}");
        let address = address(&bench).to_uppercase();
        assert!(ended.stdout.contains(&address), "{how:?}: {ended:?}");
    }
    let ended = nmap(&bench, &["-n", "-sn", "10.0.0.0/29"]);
    assert!(ended.stdout.contains("(2 hosts up)"), "{ended:?}");
}

/// A raw packet to a host beyond a router goes to the router, whose address is asked for.
const SENDS_RAW: &str = r#"
import ctypes, os, socket, sys
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
raw.setsockopt(socket.IPPROTO_IP, socket.IP_HDRINCL, 1)
packet = bytes.fromhex("45000000000000004011000000000000c6336401" "13881388000c0000") + b"weir"
for _ in range(3):
    assert raw.sendto(packet, ("198.51.100.1", 0)) == len(packet)
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
link.bind(("eth0", 0))
frame = bytes.fromhex("ffffffffffff02000000000988b5") + bytes(46)
assert link.send(frame) == len(frame)
# The other calls that send, and one that is no socket's.
assert os.write(link.fileno(), frame) == len(frame)
assert os.writev(link.fileno(), [frame[:20], b"", frame[20:]]) == len(frame)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("len", ctypes.c_size_t)]
class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32),
                ("parts", ctypes.POINTER(Part)), ("count", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("padding", ctypes.c_int), ("sent", ctypes.c_uint)]
part = Part(frame, len(frame))
messages = (Message * 2)(*(Message(parts=ctypes.pointer(part), count=1) for _ in range(2)))
assert ctypes.CDLL(None, use_errno=True).sendmmsg(link.fileno(), messages, 2, 0) == 2
assert [message.sent for message in messages] == [len(frame)] * 2
ends = os.pipe()
assert os.write(ends[1], b"weir") == 4 and os.read(ends[0], 9) == b"weir"
for broken in [lambda: link.recv(100), lambda: raw.recvfrom(100), lambda: raw.send(packet)]:
    try:
        broken()
        sys.exit("it is not refused")
    except OSError as error:
        print(error.strerror)
"#;

#[test]
fn raw_packets_take_the_kernels_route_and_packet_sockets_only_send() {
    let programs = ["python3", "tcpdump", "ip"];
    let Some(bench) = bench("pcap-raw", POLICY, &programs) else {
        return;
    };
    live::ip(
        &bench.net.b,
        &["route", "add", "default", "via", "10.0.0.1"],
    );
    // The lab's neighbours are permanent: one is asked for by ARP.
    bench.net.eth_b.remove_neighbour([10, 0, 0, 1]).unwrap();
    let system = testenv::program("tcpdump").expect("the test has asked for it");
    let print = ["-nl", "-i", "eth0", "-Z", "root", "-t", "-e", "-c", "8"];
    let filter = ["udp dst port 5000 or ether proto 0x88b5"];
    let arguments = [&print[..], &filter].concat();
    let receiver = Running::start(&bench.net.a, system, &arguments).until("listening on");
    let sender = ends_well(&bench, &["python3", "-c", SENDS_RAW]);
    let expected =
        "Operation not supported\nOperation not supported\nDestination address required\n";
    assert_eq!(sender.stdout, expected, "{sender:?}");
    assert!(
        sender.stderr.contains("it has to use libpcap"),
        "{sender:?}"
    );
    let ended = receiver.end();
    let packet = "10.0.0.2.5000 > 198.51.100.1.5000: UDP, length 4";
    assert_eq!(ended.stdout.matches(packet).count(), 3, "{ended:?}");
    let way = format!("> {}, ethertype IPv4", address(&bench));
    assert_eq!(ended.stdout.matches(&way).count(), 3, "{ended:?}");
    assert_eq!(ended.stdout.matches("(0x88b5)").count(), 5, "{ended:?}");
}

#[test]
fn sending_without_a_grant_says_so() {
    let receives = POLICY.replace("send = { any_source = true }", "");
    let Some(bench) = bench("pcap-no-send", &receives, &["arping"]) else {
        return;
    };
    let arping = ["arping", "-c", "1", "-i", "eth0", "10.0.0.1"];
    let ended = bench.exec(&arping).end();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    for words in ["cannot send on eth0", "the policy"] {
        assert!(ended.stderr.contains(words), "{ended:?}");
    }
}

/// scapy by libpcap: it asks, receives the answer, and sniffs.
const SCAPY: &str = r#"
from scapy.config import conf
conf.use_pcap = True
from scapy.all import *
mac = getmacbyip("10.0.0.1")
answer = srp1(Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(pdst="10.0.0.1"), iface="eth0", timeout=10, verbose=0)
print("arp", answer[ARP].hwsrc)
answers, lost = srp(Ether(dst=answer[ARP].hwsrc) / IP(dst="10.0.0.1") / ICMP(seq=(1, 20)), iface="eth0", timeout=10, verbose=0)
print("icmp", len(answers), len(lost))
answer = sr1(IP(dst="10.0.0.1") / ICMP(seq=7), timeout=10, verbose=0)
print("l3", answer[ICMP].seq)
sniffer = AsyncSniffer(iface="eth0", filter="icmp", count=2)
sniffer.start()
while not getattr(sniffer, "running", False):
    time.sleep(0.05)
time.sleep(0.5)
sendp(Ether(dst=mac) / IP(dst="10.0.0.1") / ICMP(seq=9), iface="eth0", verbose=0)
sniffer.join(10)
print("sniffed", len(sniffer.results))
"#;

#[test]
fn scapy_by_libpcap_asks_and_sniffs() {
    let Some(bench) = bench("pcap-scapy", POLICY, &["python3", "ip", "cp"]) else {
        return;
    };
    let Some(mut python) = testenv::python(&["scapy"]) else {
        return;
    };
    // Where user nobody can read it.
    let place = "import scapy, os; print(os.path.dirname(scapy.__path__[0]), end='')";
    let found = python.args(["-c", place]).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let to = bench.folder.path("scapy");
    let copied = live::run(&bench.net.a, "cp", &["-r", &format!("{found}/scapy"), &to]);
    assert_eq!(copied.as_deref(), Some(""));
    let path = format!("PYTHONPATH={}", bench.folder.path(""));
    let home = format!("HOME={}", bench.folder.path(""));
    let program = [
        "env",
        &path,
        &home,
        "PYTHONDONTWRITEBYTECODE=1",
        "python3",
        "-c",
        SCAPY,
    ];
    let ended = ends_well(&bench, &program);
    let address = address(&bench);
    let expected = format!("arp {address}\nicmp 20 0\nl3 7\nsniffed 2\n");
    assert_eq!(ended.stdout, expected, "{ended:?}");
}
