//! `weir exec --pcap`: unmodified programs of libpcap on ports, as an ordinary user.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/live.rs"]
mod live;
mod testprogs;
mod tools;

use common::Folder;
use live::{Net, Running, net, open_folder, pings};
use std::time::{Duration, Instant};
use weir_lab::net::Signal;
use weir_lab::testenv;

const LIBRARY: &str = "libweir_pcap.so";

const POLICY: &str = r#"
[[grant]]
users = [65534]
interfaces = ["eth0"]
ports_max = 8
memory_max = "32 MiB"
send = { any_source = true }
"#;

const NO_GRANT: &str = r#"
[[grant]]
users = [65533]
interfaces = ["eth0"]
"#;

/// A network, a broker in b, and the library where user nobody can read it.
struct Bench {
    net: Net,
    folder: Folder,
    socket: String,
    broker: Option<Running>,
}

/// `None` without root or one of these programs.
fn bench(name: &str, policy: &str, programs: &[&str]) -> Option<Bench> {
    let net = net()?;
    if !testenv::programs(programs) {
        return None;
    }
    let folder = open_folder(name);
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut places = folders.map(|folder| folder.join(LIBRARY));
    let found = places.find(|path| path.exists());
    let found = found.unwrap_or_else(|| panic!("{LIBRARY} is not beside {}", test.display()));
    std::fs::copy(found, folder.path(LIBRARY)).unwrap();
    folder.write("policy.toml", policy.as_bytes());
    let socket = folder.path("socket");
    let mut bench = Bench {
        net,
        folder,
        socket,
        broker: None,
    };
    bench.start_broker();
    Some(bench)
}

impl Drop for Bench {
    /// Removes what brokers keep.
    fn drop(&mut self) {
        if let Some(broker) = self.broker.take() {
            broker.signal(Signal::KILL);
        }
        let keep = self.folder.path("keep");
        let clean = [
            "broker",
            "--clean",
            "--socket",
            &self.socket,
            "--keep",
            &keep,
        ];
        let ended = self.net.weir(&clean).end();
        assert!(
            ended.code == Some(0) || std::thread::panicking(),
            "{ended:?}"
        );
    }
}

impl Bench {
    fn start_broker(&mut self) {
        let config = self.folder.path("policy.toml");
        let keep = self.folder.path("keep");
        let head = ["broker", "--config", &config, "--socket", &self.socket];
        let arguments = [&head[..], &["--keep", &keep]].concat();
        let broker = self.net.weir(&arguments);
        self.broker = Some(broker.until("listens on").until("ready"));
    }

    /// Runs a program with weir's libpcap, as user nobody.
    fn exec(&self, program: &[&str]) -> Running {
        let library = self.folder.path(LIBRARY);
        let head = [
            "exec",
            "--pcap",
            "--pcap-library",
            &library,
            "--socket",
            &self.socket,
            "--",
        ];
        self.net.weir_as_nobody(&[&head[..], program].concat())
    }

    fn tcpdump(&self, arguments: &[&str]) -> Running {
        let running = self.exec(&[&["tcpdump", "-nl", "-i", "eth0"][..], arguments].concat());
        running.until("listening on")
    }
}

/// A grant with what it has by default, of some frames.
const SOME: &str = r#"
[[grant]]
users = [65534]
interfaces = ["eth0"]
filter = "udp portrange 5000-5009"
"#;

/// dumpcap asks for a buffer of 2 MiB, which no user has chosen.
#[test]
fn a_buffer_that_the_grant_has_no_room_for_is_smaller() {
    let programs = ["tcpdump", "dumpcap"];
    let Some(bench) = bench("pcap-buffer", SOME, &programs) else {
        return;
    };
    let _server = bench.net.server(5000);
    let file = bench.folder.path("frames.pcapng");
    let dumpcap = bench.exec(&["dumpcap", "-i", "eth0", "-c", "5", "-w", &file]);
    let dumpcap = dumpcap.until("File:");
    let ports = ["ports", "--json", "--socket", &bench.socket];
    let ports = bench.net.weir(&ports).end().json();
    assert_eq!(ports[0]["queue"], 1 << 20, "{ports}");
    bench.net.send(5000, 5);
    assert_eq!(dumpcap.end().code, Some(0));
    let tcpdump = bench.tcpdump(&["-B", "4096", "-c", "1"]);
    bench.net.send(5000, 1);
    assert_eq!(tcpdump.end().code, Some(0));
    // A size in the device's name was chosen.
    let ended = bench
        .exec(&["tcpdump", "-n", "-i", "weir:eth0?queue=4MiB"])
        .end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("a ring of 4 MiB"), "{ended:?}");
}

#[test]
fn a_capture_says_once_that_the_grant_hides_frames() {
    let Some(bench) = bench("pcap-narrow", SOME, &["tcpdump"]) else {
        return;
    };
    let tcpdump = bench.tcpdump(&["-c", "1", "udp"]);
    bench.net.send(5000, 1);
    let ended = tcpdump.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = "WARNING: frames outside of the policy's grant are not captured; the grant is for \
                `udp portrange 5000-5009`";
    assert_eq!(ended.stderr.matches(said).count(), 1, "{ended:?}");
}

#[test]
fn tcpdump_prints_what_it_prints_by_the_systems_libpcap() {
    let programs = ["tcpdump", "ping"];
    let Some(bench) = bench("pcap-tcpdump", POLICY, &programs) else {
        return;
    };
    let server = bench.net.server(5000);
    // Otherwise the host would answer that nothing is there.
    let _other = bench.net.server(5001);
    let print = [
        "-t",
        "-e",
        "-vv",
        "-xx",
        "-c",
        "16",
        "udp port 5000 or icmp",
    ];
    let system = testenv::program("tcpdump").unwrap();
    let arguments = [&["-nl", "-i", "eth0", "-Z", "root"][..], &print].concat();
    let system = Running::start(&bench.net.b, system, &arguments).until("listening on");
    let weirs = bench.tcpdump(&print);
    // Neither filter lets these through.
    bench.net.send(5001, 5);
    bench.net.send(5000, 10);
    for _ in 0..10 {
        server.recv(&mut [0; 9]).unwrap();
    }
    assert_eq!(pings(&bench.net.b, "10.0.0.1"), 3);
    let (system, weirs) = (system.end(), weirs.end());
    assert_eq!(system.code, Some(0), "{system:?}");
    assert_eq!(weirs.code, Some(0), "{weirs:?}");
    assert!(weirs.stdout.contains("10.0.0.1"), "{weirs:?}");
    assert_eq!(weirs.stdout, system.stdout);
    for said in [
        "16 packets captured",
        "16 packets received by filter",
        "0 packets dropped",
    ] {
        assert!(weirs.stderr.contains(said), "{said}: {weirs:?}");
    }
}

/// For many readers of one user.
const MANY: &str = r#"
[[grant]]
users = [65534]
interfaces = ["eth0"]
ports_max = 128
memory_max = "32 MiB"
"#;

#[test]
fn a_hundred_readers_of_one_user_get_their_frames_each() {
    const READERS: u16 = 100;
    let Some(bench) = bench("pcap-hundred", MANY, &["tcpdump"]) else {
        return;
    };
    let filter = |number| format!("udp dst port {}", 5000 + number);
    let start = |number| {
        let filter = filter(number);
        let head = ["tcpdump", "-nl", "-t", "-i", "eth0", "-B", "64", "-c", "3"];
        bench.exec(&[&head[..], &[&filter]].concat())
    };
    let readers: Vec<Running> = (0..READERS).map(start).collect();
    let ready = readers.into_iter();
    let readers: Vec<Running> = ready.map(|reader| reader.until("listening on")).collect();
    // In turn, so that all have ports at one time.
    for _ in 0..3 {
        (0..READERS).for_each(|number| bench.net.send(5000 + number, 1));
    }
    for (number, reader) in (0..READERS).zip(readers) {
        let ended = reader.end();
        assert_eq!(ended.code, Some(0), "{number}: {ended:?}");
        let own = format!("> 10.0.0.2.{}: ", 5000 + number);
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert_eq!(lines.len(), 3, "{number}: {ended:?}");
        assert!(lines.iter().all(|line| line.contains(&own)), "{ended:?}");
        assert!(ended.stderr.contains("0 packets dropped"), "{ended:?}");
    }
}

#[test]
fn what_is_refused_names_the_remedy() {
    let Some(mut bench) = bench("pcap-refused", NO_GRANT, &["tcpdump"]) else {
        return;
    };
    let says = |bench: &Bench, device: &str, words: &[&str]| {
        let ended = bench.exec(&["tcpdump", "-n", "-i", device]).end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        for words in words {
            assert!(ended.stderr.contains(words), "{words}: {ended:?}");
        }
    };
    says(
        &bench,
        "eth0",
        &["permission", "a grant for eth0 can be added"],
    );
    says(&bench, "any", &["a port is of one interface"]);
    says(
        &bench,
        "weir:eth0?fanout=4/4",
        &["`4/4` is no share", "such as 0/4"],
    );
    bench.broker.take().unwrap().stop();
    says(
        &bench,
        "eth0",
        &["no broker listens on", "start `weir broker`"],
    );
}

/// Captures of a device with a fan-out share the packets of a filter by flow.
#[test]
fn captures_share_the_flows_of_a_group() {
    let Some(bench) = bench("pcap-fanout", POLICY, &["tcpdump"]) else {
        return;
    };
    let _server = bench.net.server(5000);
    let capture = |_| {
        let device = "weir:eth0?fanout=2";
        let tcpdump = ["tcpdump", "-nlt", "-i", device, "udp dst port 5000"];
        bench.exec(&tcpdump).until("listening on")
    };
    let captures: Vec<Running> = (0..2).map(capture).collect();
    for _ in 0..30 {
        bench.net.send(5000, 4);
    }
    std::thread::sleep(Duration::from_millis(500));
    let mut flows = std::collections::BTreeMap::new();
    for (number, running) in captures.into_iter().enumerate() {
        running.signal(Signal::INT);
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for line in ended.stdout.lines().filter(|line| !line.is_empty()) {
            let flow = line.split(" > ").next().unwrap_or_default().to_owned();
            *flows.entry((flow, number)).or_insert(0) += 1;
        }
    }
    assert_eq!(flows.len(), 30, "each flow at one capture: {flows:?}");
    assert!(flows.values().all(|packets| *packets == 4), "{flows:?}");
    let first = flows.keys().filter(|(_, number)| *number == 0).count();
    assert!((1..30).contains(&first), "{first} of 30 flows at the first");
}

#[test]
fn a_withdrawn_grant_ends_a_capture_with_its_reason() {
    let Some(bench) = bench("pcap-withdrawn", POLICY, &["tcpdump"]) else {
        return;
    };
    let tcpdump = bench.tcpdump(&["udp port 5000"]);
    bench.folder.write("policy.toml", NO_GRANT.as_bytes());
    bench.broker.as_ref().unwrap().signal(Signal::HUP);
    let ended = tcpdump.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("the policy"), "{ended:?}");
}

#[test]
fn a_capture_outlives_its_broker_and_ends_with_its_interface() {
    let programs = ["tcpdump", "dumpcap", "ip"];
    let Some(mut bench) = bench("pcap-lives", POLICY, &programs) else {
        return;
    };
    let mut tcpdump = bench.tcpdump(&["-t", "udp dst port 5000"]);
    let file = bench.folder.path("vanishes.pcapng");
    let dumpcap = bench.exec(&["dumpcap", "-i", "eth0", "-w", &file]);
    let dumpcap = dumpcap.until("File:");
    let server = bench.net.server(5000);
    let mut out = std::io::BufReader::new(tcpdump.take_stdout());
    let mut arrives = |bench: &Bench| {
        bench.net.send(5000, 1);
        server.recv(&mut [0; 9]).unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert!(line.contains("10.0.0.2.5000"), "{line}");
    };
    arrives(&bench);
    let broker = bench.broker.take().unwrap();
    broker.signal(Signal::KILL);
    drop(broker);
    arrives(&bench);
    bench.start_broker();
    arrives(&bench);
    live::ip(&bench.net.b, &["link", "delete", "eth0"]);
    for running in [tcpdump, dumpcap] {
        let ended = running.end();
        // dumpcap knows libpcap's words, and says it in its own.
        let said = ["disappeared", "no longer attached"];
        assert!(
            said.iter().any(|words| ended.stderr.contains(words)),
            "{ended:?}"
        );
    }
}

#[test]
fn dumpcap_writes_what_tshark_opens() {
    let programs = ["dumpcap", "tshark"];
    let Some(bench) = bench("pcap-dumpcap", POLICY, &programs) else {
        return;
    };
    let _server = bench.net.server(5000);
    let file = bench.folder.path("frames.pcapng");
    let filter = "udp dst port 5000";
    let dumpcap = bench.exec(&[
        "dumpcap", "-i", "eth0", "-f", filter, "-c", "20", "-w", &file,
    ]);
    let dumpcap = dumpcap.until("File:");
    // dumpcap says so before it reads: frames wait in the port's queue.
    bench.net.send(5000, 20);
    let ended = dumpcap.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let shown = live::run(
        &bench.net.b,
        "tshark",
        &["-r", &file, "-T", "fields", "-e", "udp.dstport"],
    );
    assert_eq!(shown.unwrap(), "5000\n".repeat(20));
}

/// A program that opens the library itself, as masscan and scapy do, and sends by it.
const SENDS: &str = r#"
import ctypes, sys
pcap = ctypes.CDLL("libpcap.so.0.8")
pcap.pcap_open_live.restype = ctypes.c_void_p
pcap.pcap_geterr.restype = ctypes.c_char_p
pcap.pcap_lib_version.restype = ctypes.c_char_p
assert b"weir" in pcap.pcap_lib_version()
error = ctypes.create_string_buffer(256)
p = pcap.pcap_open_live(b"eth0", 65535, 1, 100, error)
assert p, error.value
p = ctypes.c_void_p(p)
frame = bytes.fromhex(sys.argv[1])
for _ in range(5):
    assert pcap.pcap_inject(p, frame, len(frame)) == len(frame), pcap.pcap_geterr(p)
assert pcap.pcap_sendpacket(p, frame, len(frame)) == 0, pcap.pcap_geterr(p)
pcap.pcap_close(p)
print("sent")
"#;

#[test]
fn a_program_that_opens_the_library_itself_sends() {
    let programs = ["python3", "tcpdump"];
    let Some(bench) = bench("pcap-inject", POLICY, &programs) else {
        return;
    };
    let system = testenv::program("tcpdump").unwrap();
    let filter = [
        "-nl",
        "-i",
        "eth0",
        "-Z",
        "root",
        "-t",
        "-e",
        "-c",
        "6",
        "ether proto 0x88b5",
    ];
    let receiver = Running::start(&bench.net.a, system, &filter).until("listening on");
    let frame = format!("ffffffffffff02000000000988b5{}", "5a".repeat(46));
    let sender = bench.exec(&["python3", "-c", SENDS, &frame]).end();
    assert_eq!(
        (sender.code, &*sender.stdout),
        (Some(0), "sent\n"),
        "{sender:?}"
    );
    let ended = receiver.end();
    assert_eq!(
        ended.stdout.matches("(0x88b5), length 60").count(),
        6,
        "{ended:?}"
    );
}

#[test]
fn ngrep_finds_what_it_looks_for() {
    let Some(bench) = bench("pcap-ngrep", POLICY, &["ngrep"]) else {
        return;
    };
    let _server = bench.net.server(5000);
    let began = Instant::now();
    let ngrep = bench.exec(&[
        "ngrep",
        "-q",
        "-l",
        "-n",
        "3",
        "-d",
        "eth0",
        "",
        "udp port 5000",
    ]);
    // ngrep says nothing when it is ready: its port says so.
    loop {
        let ports = ["ports", "--json", "--socket", &bench.socket];
        if bench.net.weir(&ports).end().stdout.contains("eth0") {
            break;
        }
        assert!(began.elapsed() < live::WAIT_MAX);
        std::thread::sleep(Duration::from_millis(50));
    }
    while began.elapsed() < live::WAIT_MAX && !has_ended(&ngrep) {
        bench.net.send(5000, 1);
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = ngrep.end();
    assert!(ended.stdout.matches("U 10.0.0.1").count() >= 3, "{ended:?}");
}

fn has_ended(running: &Running) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.id()));
    stat.is_ok_and(|stat| {
        stat.rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('Z')
    })
}

/// Both libraries in one program: the options of a host are not silently ignored.
#[test]
fn sockets_and_captures_can_both_be_weirs() {
    let Some(bench) = bench("pcap-both", POLICY, &["tcpdump"]) else {
        return;
    };
    let library = bench.folder.path(LIBRARY);
    let exec = [
        "exec",
        "--pcap",
        "--pcap-library",
        &library,
        "--socket",
        &bench.socket,
    ];
    let host = [
        "--link",
        "tap9",
        "--addr",
        "192.0.2.5/24",
        "--",
        "tcpdump",
        "--version",
    ];
    let ended = bench.net.weir_as_nobody(&[&exec[..], &host].concat()).end();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.stderr.contains("tap9") || ended.stderr.contains("libweir_exec"),
        "{ended:?}"
    );
    let alone = ["exec", "--link", "tap9", "--", "tcpdump"];
    let ended = bench.net.weir_as_nobody(&alone).end();
    assert!(ended.stderr.contains("--addr"), "{ended:?}");
}
