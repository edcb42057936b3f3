//! `weir broker`, `weir listen` by it and `weir ports`.

#[path = "common/brokered.rs"]
mod brokered;
mod common;
#[path = "common/live.rs"]
mod live;

use brokered::Brokered;
use common::{Folder, weir};
use live::{Net, Running, net, open_folder};
use serde_json::Value;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};
use weir_lab::net::Signal;
use weir_lab::net::unprivileged::NOBODY;
use weir_lab::testenv;
use weir_lab::wait;

const POLICY: &str = r#"
[[grant]]
users = [65534]
interfaces = ["eth0"]
priority_max = 10
ports_max = 2
memory_max = "2 MiB"
take = true
filter = "udp portrange 5000-5999"
"#;

fn brokered(name: &str) -> Option<Brokered> {
    brokered::brokered(name, POLICY)
}

/// The number of b's network namespace.
fn namespace(net: &Net) -> u64 {
    let number = || std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    net.b.run(number)
}

impl Brokered {
    fn listen(&self, arguments: &[&str]) -> Running {
        let listen = ["listen", "eth0", "--json", "--socket", &self.socket];
        self.net.weir_as_nobody(&[&listen[..], arguments].concat())
    }
}

#[test]
fn an_ordinary_user_gets_what_the_policy_grants_and_no_more() {
    let Some(brokered) = brokered("broker-grant") else {
        return;
    };
    let listen = brokered.listen(&["--take", "--count", "10"]);
    let listen = listen.until("which takes");
    let (granted, other) = (brokered.net.server(5000), brokered.net.server(53));
    brokered.net.send(53, 5);
    brokered.net.send(5000, 10);
    let ended = listen.end();
    assert_eq!(ended.json()["frames"], 10, "{ended:?}");
    assert!(!ended.stdout.contains(":53 UDP"), "{ended:?}");
    let said = "which takes, within `udp portrange 5000-5999`, as the policy grants\n";
    assert!(ended.stderr.contains(said), "{ended:?}");
    assert!(granted.recv(&mut [0; 9]).is_err(), "taken");
    for _ in 0..5 {
        other.recv(&mut [0; 9]).expect("others are not diverted");
    }
    let refused = brokered.listen(&["--priority", "11"]).end();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("above 10"), "{refused:?}");
    let refused = brokered.listen(&["--queue", "4MiB"]).end();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let said = "the filter together with the grant's accepts no frame";
    let tcp = brokered.listen(&["tcp", "--for", "0"]).end();
    assert!(tcp.stderr.contains(said), "{tcp:?}");
    let udp = brokered.listen(&["udp", "--for", "0"]).end();
    assert!(!udp.stderr.contains(said), "{udp:?}");
    for queue in ["0", "1", "4095"] {
        let refused = brokered.listen(&["--queue", queue]).end();
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(
            refused.stderr.contains("ask for 4 KiB or more"),
            "{refused:?}"
        );
    }
}

#[test]
fn a_queue_that_was_not_chosen_is_what_the_grant_has_room_for() {
    let policy = "[[grant]]\nusers = [65534]\ninterfaces = [\"eth0\"]\nmemory_max = \"256 KiB\"\n";
    let Some(brokered) = brokered::brokered("broker-queue", policy) else {
        return;
    };
    let ended = brokered.listen(&["--for", "0"]).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = "the queue has 256 KiB, for which the grant has room";
    assert!(ended.stderr.contains(said), "{ended:?}");
    let socket = &brokered.socket;
    let top = ["top", "eth0", "--json", "--for", "1", "--socket", socket];
    let ended = brokered.net.weir_as_nobody(&top).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let stated = ["--queue", "512K", "--for", "0"];
    assert_eq!(brokered.listen(&stated).end().code, Some(2));
}

#[test]
fn metrics_are_those_of_ports_and_of_listeners() {
    let Some(net) = net() else { return };
    let folder = open_folder("broker-metrics");
    let config = folder.write("policy.toml", POLICY.as_bytes());
    let socket = folder.path("socket");
    let metrics = ["--metrics", "127.0.0.1:0", "--socket", &socket];
    let broker = net.weir(&[&["broker", "--config", &config][..], &metrics].concat());
    let broker = broker.until("listens on").until("ready");
    broker.until_metrics(&net.b, &["weir_broker_ports 0\n"]);
    let listen = [&["listen", "eth0", "--json"][..], &metrics].concat();
    let listen = net.weir_as_nobody(&listen).until("copies");
    net.send(5000, 7);
    let uid = format!("interface=\"eth0\",uid=\"{NOBODY}\"");
    let delivered = format!("weir_broker_port_delivered_total{{port=\"1\",{uid}}} 7\n");
    let lost = format!("weir_broker_port_lost_total{{port=\"1\",{uid}}} 0\n");
    let expected = [
        "weir_broker_ports 1\n",
        "weir_broker_connections 1\n",
        &delivered,
        &lost,
    ];
    broker.until_metrics(&net.b, &expected);
    let expected = [
        "weir_listen_frames_total 7\n",
        "weir_listen_delivered_total{interface=\"eth0\"} 7\n",
        "weir_listen_lost_total{interface=\"eth0\"} 0\n",
    ];
    listen.until_metrics(&net.b, &expected);
    listen.signal(Signal::INT);
    assert_eq!(listen.end().json()["frames"], 7);
    broker.until_metrics(&net.b, &["weir_broker_ports 0\n"]);
    broker.signal(Signal::TERM);
    assert_eq!(broker.end().code, Some(0));
    // An address in use is refused before anything else is done.
    let taken = net.b.run(|| std::net::TcpListener::bind("127.0.0.1:0"));
    let taken = taken.unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let other = folder.path("other");
    let broker = ["broker", "--config", &config, "--socket", &other];
    let ended = net.weir(&[&broker[..], &["--metrics", &at]].concat()).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&at), "{ended:?}");
    assert!(!std::path::Path::new(&other).exists());
}

/// The shipped policy copies ARP and name look-ups to the host, without hiding
/// them from listeners.
#[test]
fn what_the_shipped_policy_claims_is_copied_to_listeners() {
    let Some(net) = net() else { return };
    let folder = open_folder("broker-shipped");
    let shipped = include_bytes!("../../../examples/policy.toml");
    let config = folder.write("policy.toml", shipped);
    let socket = folder.path("socket");
    let broker = net.weir(&["broker", "--config", &config, "--socket", &socket]);
    let broker = broker.until("listens on").until("ready");
    let listen = |filter, count| {
        let socket = ["--json", "--quiet", "--socket", &socket, "--for", "20"];
        [&["listen", "eth0", filter, "--count", count][..], &socket].concat()
    };
    let (dns, arp, ssh) = (
        net.weir(&listen("udp port 53", "3")),
        net.weir_as_nobody(&listen("arp", "2")),
        net.weir(&listen("tcp port 22", "1")),
    );
    let start = Instant::now();
    loop {
        let ended = net.weir(&["ports", "--json", "--socket", &socket]).end();
        if ended.json().as_array().unwrap().len() == 3 {
            break;
        }
        assert!(start.elapsed() < live::WAIT_MAX);
        std::thread::sleep(Duration::from_millis(20));
    }
    let server = net.server(53);
    net.send(53, 3);
    for _ in 0..3 {
        server.recv(&mut [0; 9]).expect("the host keeps its own");
    }
    // A station that does not answer is solicited three times.
    net.a.run(|| {
        let socket = std::net::UdpSocket::bind("10.0.0.1:0").unwrap();
        let _ = socket.send_to(b"?", "10.0.0.77:9");
        let _ = std::net::TcpStream::connect("10.0.0.2:22");
    });
    for (listener, frames) in [(dns, 3), (arp, 2), (ssh, 1)] {
        let ended = listener.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(ended.json()["frames"], frames, "{ended:?}");
    }
    drop(broker);
}

#[test]
fn ports_shows_the_holder_of_each_port() {
    let Some(brokered) = brokered("broker-ports") else {
        return;
    };
    assert_eq!(brokered.ports(), Value::Array(Vec::new()));
    let listen = brokered.listen(&["udp dst port 5001", "--priority", "3", "--queue", "64K"]);
    let listen = listen.until("weir: port");
    brokered.net.send(5001, 7);
    let start = Instant::now();
    while brokered.ports()[0]["delivered"] != 7 {
        assert!(start.elapsed() < live::WAIT_MAX, "{}", brokered.ports());
    }
    let expected = format!(
        "[{{\"interface\":\"eth0\",\"filter\":\"udp dst port 5001\",\"priority\":3,\"copy\":true,\
         \"pid\":{},\"uid\":{NOBODY},\"delivered\":7,\"lost\":0,\"queue\":65536,\"port\":1,\
         \"sent\":0,\"refused\":0,\"at\":\"tc\",\"namespace\":{},\"fanout\":null}}]",
        listen.id(),
        namespace(&brokered.net)
    );
    let ports = ["ports", "--json", "--socket", &brokered.socket];
    let ended = brokered.net.weir(&ports).end();
    assert_eq!(ended.stdout.trim_end(), expected);
    let table = brokered.net.weir(&["ports", "--socket", &brokered.socket]);
    let table = table.end().stdout;
    assert!(table.contains("udp dst port 5001"), "{table}");
    assert!(
        table.contains("copied") && table.contains("64 KiB"),
        "{table}"
    );
    assert!(table.contains("eth0 at tc"), "the cost is told: {table}");
    listen.signal(Signal::KILL);
    drop(listen);
    brokered.until_ports(0);
}

#[test]
fn ports_of_root_without_a_broker_are_shown_to_root() {
    let Some(net) = net() else { return };
    let listen = net.weir(&["listen", "eth0", "udp dst port 5078", "--take"]);
    let listen = listen.until("which takes");
    net.send(5078, 6);
    let own = || {
        let ended = net.weir(&["ports", "--json"]).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let all = ended.json().as_array().unwrap().clone();
        let own = all.into_iter().find(|port| port["pid"] == listen.id());
        own.map(|port| port.to_string())
    };
    let namespace = namespace(&net);
    let expected = format!(
        "{{\"at\":\"xdp-native\",\"copy\":false,\"delivered\":6,\"fanout\":null,\"filter\":\"udp dst port 5078\",\
         \"interface\":\"eth0\",\"lost\":0,\"namespace\":{namespace},\"pid\":{},\"port\":1,\"priority\":0,\"queue\":1048576,\
         \"refused\":0,\"sent\":0,\"uid\":0}}",
        listen.id()
    );
    let start = Instant::now();
    while own().as_ref() != Some(&expected) {
        assert!(start.elapsed() < live::WAIT_MAX, "{:?}", own());
    }
    let listed = net.weir(&["ports"]).end();
    let said =
        "no broker listens on /run/weir/broker/socket: shown are only ports that programs of root";
    assert!(listed.stderr.contains(said), "{listed:?}");
    let table = listed.stdout;
    assert!(table.contains("udp dst port 5078"), "{table}");
    let costs = ["eth0 at xdp-native:\n  ", "\n  frames are seen first"];
    assert!(costs.iter().all(|cost| table.contains(cost)), "{table}");
    // From another network namespace, which may have another eth0.
    let elsewhere = weir(["ports"]).output().unwrap();
    let elsewhere = String::from_utf8(elsewhere.stdout).unwrap();
    let row = elsewhere
        .lines()
        .find(|line| line.contains("udp dst port 5078"));
    let row = row.unwrap_or_else(|| panic!("{elsewhere}"));
    assert!(
        row.trim_end().ends_with(&namespace.to_string()),
        "{elsewhere}"
    );
    assert!(
        elsewhere.contains(&format!("eth0 ({namespace}) at")),
        "{elsewhere}"
    );
    listen.signal(Signal::KILL);
    drop(listen);
    let table = net.weir(&["ports"]).end().stdout;
    assert!(!table.contains("udp dst port 5078"), "{table}");
    let user = net.weir_as_nobody(&["ports"]).end();
    assert_eq!(user.code, Some(1), "{user:?}");
}

#[test]
fn watching_goes_on_until_a_signal() {
    let Some(brokered) = brokered("broker-watch") else {
        return;
    };
    let _listen = brokered.listen(&["udp"]).until("weir: port");
    let watch = brokered
        .net
        .weir(&["ports", "--watch", "--socket", &brokered.socket]);
    std::thread::sleep(Duration::from_millis(4500));
    watch.signal(Signal::INT);
    let ended = watch.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.stdout.matches("copied").count() >= 2, "{ended:?}");
}

#[test]
fn watching_ends_with_its_reader() {
    let Some(brokered) = brokered("broker-head") else {
        return;
    };
    let watch = [
        env!("CARGO_BIN_EXE_weir"),
        "ports",
        "--watch",
        "--socket",
        &brokered.socket,
    ];
    // As `| head -1` does: reads a line, and closes the pipe.
    let script = format!("{} | (read -r line; date +%s%N >&2)", watch.join(" "));
    let late = || {
        let mut shell = weir_lab::testenv::program("bash").expect("bash is essential");
        shell.args(["-c", &format!("{script}; date +%s%N >&2")]);
        let ended = live::Running::start(&brokered.net.b, shell, &[]).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let times: Vec<u64> = ended.stderr.lines().map(|l| l.parse().unwrap()).collect();
        Duration::from_nanos(times[1] - times[0])
    };
    // As late as the next check, one second; not later, however the machine
    // pauses.
    let quickest = (0..5)
        .map(|_| late())
        .find(|late| *late < Duration::from_millis(700));
    assert!(quickest.is_some(), "always as late as the next look");
}

#[test]
fn a_broker_ends_cleanly_and_two_cannot_share_a_socket() {
    let Some(brokered) = brokered("broker-end") else {
        return;
    };
    let config = brokered.folder.path("policy.toml");
    let broker = ["broker", "--config", &config, "--socket", &brokered.socket];
    let second = brokered.net.weir(&broker).end();
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("another broker"), "{second:?}");
    brokered.broker.signal(Signal::TERM);
    let ended = brokered.broker.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!brokered.folder.has("socket"), "the socket goes too");
    let ports = ["ports", "--json", "--socket", &brokered.socket];
    let ended = brokered.net.weir(&ports).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("start `weir broker`"), "{ended:?}");
}

#[test]
fn listening_goes_on_when_a_broker_is_killed_and_another_comes() {
    let Some(brokered) = brokered("broker-kill") else {
        return;
    };
    let folder = &brokered.folder;
    let (config, socket) = (folder.path("policy.toml"), folder.path("kept"));
    let keep = folder.path("keep");
    let broker = [
        "broker", "--config", &config, "--socket", &socket, "--keep", &keep,
    ];
    let first = brokered.net.weir(&broker).until("listens on");
    let listen = [
        "listen",
        "eth0",
        "udp dst port 5001",
        "--count",
        "30",
        "--json",
    ];
    let listen = [&listen[..], &["--take", "--socket", &socket]].concat();
    let listen = brokered.net.weir_as_nobody(&listen).until("which takes");
    brokered.net.send(5001, 10);
    first.signal(Signal::KILL);
    drop(first);
    brokered.net.send(5001, 10);
    let second = brokered
        .net
        .weir(&broker)
        .until("that go on: 1; removed: 0");
    let second = second.until("listens on");
    brokered.net.send(5001, 10);
    let ended = listen.end();
    assert_eq!(ended.json()["frames"], 30, "{ended:?}");
    let clean = ["broker", "--clean", "--socket", &socket, "--keep", &keep];
    let refused = brokered.net.weir(&clean).end();
    assert!(refused.stderr.contains("stop it first"), "{refused:?}");
    second.signal(Signal::KILL);
    drop(second);
    assert!(std::fs::exists(&socket).unwrap());
    let cleaned = brokered.net.weir(&clean).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert_eq!(std::fs::read_dir(&keep).unwrap().count(), 0);
    assert!(!std::fs::exists(&socket).unwrap(), "its socket goes, too");
}

#[test]
fn what_clean_removes_is_said_and_its_readers_end() {
    let Some(brokered) = brokered("broker-clean") else {
        return;
    };
    let (socket, keep) = (
        brokered.folder.path("kept-socket"),
        brokered.folder.path("keep"),
    );
    let config = brokered.folder.path("policy.toml");
    let broker = ["broker", "--config", &config, "--socket", &socket];
    let broker = brokered
        .net
        .weir(&[&broker[..], &["--keep", &keep]].concat());
    let broker = broker.until("listens on").until("ready");
    let listen = ["listen", "eth0", "--socket", &socket, "--queue", "64K"];
    let listen = brokered.net.weir_as_nobody(&listen).until("weir: port");
    let top = [
        "top", "eth0", "--json", "--queue", "64K", "--socket", &socket,
    ];
    let top = brokered.net.weir_as_nobody(&top);
    // Its ports are two.
    let host = [
        "host",
        "eth0",
        "--addr",
        "10.0.0.77/24",
        "--broker",
        &socket,
    ];
    let host = brokered.net.weir(&host).until("ready");
    let ports = ["ports", "--json", "--socket", &socket];
    wait::until("all ports", || {
        let ports = brokered.net.weir(&ports).end().json();
        ports.as_array().is_some_and(|ports| ports.len() == 4)
    });
    broker.signal(Signal::KILL);
    drop(broker);
    let listen = listen.until("the broker has ended; frames continue to arrive");
    let clean = ["broker", "--clean", "--socket", &socket, "--keep", &keep];
    let cleaned = brokered.net.weir(&clean).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    let said = format!(
        "weir: removed what brokers had left in {keep}: 4 ports, of which 4 were in use and receive \
         nothing any more; programs in the kernel at eth0\n"
    );
    assert_eq!(cleaned.stderr, said);
    for reader in [listen, top, host] {
        let ended = reader.end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let why = "the port was removed with what the broker had left (weir broker --clean)";
        assert!(ended.stderr.contains(why), "{ended:?}");
    }
    let again = brokered.net.weir(&clean).end();
    let said = format!("weir: nothing was left in {keep}\n");
    assert_eq!((again.code, again.stderr), (Some(0), said));
}

/// An ordinary user's host on an interface that is not a TAP, where
/// `/dev/net/tun` is root's; the policy does not grant the address that it
/// sends from.
#[test]
fn a_host_whose_frames_are_refused_says_which_grant_it_needs() {
    let Some(net) = net() else { return };
    let folder = open_folder("broker-refuses");
    let policy = format!(
        "[[grant]]\nusers = [{NOBODY}]\ninterfaces = ['eth0']\nports_max = 4\n\
         memory_max = '32 MiB'\ntake = true\nsend = true\n"
    );
    let config = folder.write("policy.toml", policy.as_bytes());
    let (socket, keep) = (folder.path("socket"), folder.path("keep"));
    let broker = ["broker", "--config", &config, "--socket", &socket];
    let broker = net.weir(&[&broker[..], &["--keep", &keep]].concat());
    let broker = broker.until("listens on").until("ready");
    let root_only = folder.write("tun", b"");
    std::fs::set_permissions(&root_only, PermissionsExt::from_mode(0o600)).unwrap();
    let user = NOBODY.to_string();
    if !testenv::programs(&["mount", "setpriv"]) {
        return;
    }
    let Some(mut unprivileged) = testenv::program("unshare") else {
        return;
    };
    unprivileged.args(["--mount", "sh", "-c"]).args([
        "mount --bind \"$0\" /dev/net/tun && user=$1 && shift && \
         exec setpriv --reuid $user --regid $user --clear-groups -- \"$@\"",
        &root_only,
        &user,
        env!("CARGO_BIN_EXE_weir"),
    ]);
    let host = [
        "host",
        "eth0",
        "--addr",
        "10.0.0.77/24",
        "--broker",
        &socket,
    ];
    let host = Running::start(&net.b, unprivileged, &host).until("ready");
    let host = host.until("the policy refuses what the host sends");
    let needed = "send = { addresses = [\"10.0.0.77\"] }";
    assert!(host.said().contains(needed), "{}", host.said());
    host.signal(live::hangup().0);
    assert_eq!(host.end().code, Some(0), "as after SIGTERM");
    broker.signal(Signal::TERM);
    broker.end();
    let clean = ["broker", "--clean", "--socket", &socket, "--keep", &keep];
    assert_eq!(net.weir(&clean).end().code, Some(0));
}

#[test]
fn a_wrong_policy_is_refused_with_its_place() {
    let Some(net) = net() else { return };
    let folder = Folder::new("broker-policy");
    let config = folder.write("policy.toml", b"[[grant]]\nusers = [1]\ninterfaces = 7\n");
    let socket = folder.path("socket");
    let ended = net
        .weir(&["broker", "--config", &config, "--socket", &socket])
        .end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("policy.toml:3:14: "), "{ended:?}");
}

#[test]
fn what_brokers_have_left_is_removed_by_root_alone() {
    let Some(net) = net() else { return };
    let ended = net.weir_as_nobody(&["broker", "--clean"]).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("only root can remove"), "{ended:?}");
}

#[test]
fn a_hangup_has_the_policy_read_again() {
    let Some(brokered) = brokered("broker-hangup") else {
        return;
    };
    let Brokered {
        net,
        socket,
        mut broker,
        folder,
    } = brokered;
    let listen = |filter: &str| {
        let arguments = ["listen", "eth0", filter, "--socket", &socket];
        net.weir_as_nobody(&arguments).until("weir: port")
    };
    let taker = net.weir_as_nobody(&["listen", "eth0", "--take", "--socket", &socket]);
    let taker = taker.until("which takes");
    let copy = listen("udp");
    folder.write("policy.toml", b"[[grant]]\nusers = 5\n");
    broker.signal(Signal::HUP);
    broker = broker.until("the previous policy stays");
    folder.write("policy.toml", POLICY.replace("take = true", "").as_bytes());
    broker.signal(Signal::HUP);
    broker = broker.until("that go on: 1; ended: 1");
    let ended = taker.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("the policy has changed"), "{ended:?}");
    // A user who no longer has a grant.
    folder.write("policy.toml", b"");
    broker.signal(Signal::HUP);
    broker = broker.until("that go on: 0; ended: 1");
    let ended = copy.end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.stderr.contains("of now grants user 65534 nothing"),
        "{ended:?}"
    );
    let refused = net.weir_as_nobody(&["listen", "eth0", "--socket", &socket]);
    let refused = refused.end();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("grants user 65534 nothing"),
        "{refused:?}"
    );
    broker.signal(Signal::TERM);
    assert_eq!(broker.end().code, Some(0));
}

#[test]
fn the_service_manager_hears_that_the_broker_lives() {
    let Some(net) = net() else { return };
    let folder = open_folder("broker-watchdog");
    let (config, socket) = (folder.write("policy.toml", b""), folder.path("socket"));
    let path = folder.path("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    let mut command = common::weir([]);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "100000");
    let arguments = ["broker", "--config", &config, "--socket", &socket];
    let broker = Running::start(&net.b, command, &arguments).until("ready");
    let mut heard = [0; 64];
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"] {
        let len = manager.recv(&mut heard).unwrap();
        assert_eq!(&heard[..len], expected.as_bytes());
    }
    broker.signal(Signal::TERM);
    assert_eq!(broker.end().code, Some(0));
}

#[test]
fn a_grant_for_everyone_is_warned_of() {
    let Some(net) = net() else { return };
    let folder = open_folder("broker-everyone");
    let policy = POLICY.replace("[65534]", "['*']");
    let config = folder.write("policy.toml", policy.as_bytes());
    let socket = folder.path("socket");
    let broker = net.weir(&["broker", "--config", &config, "--socket", &socket]);
    broker
        .until("policy.toml:2:1: warning: this grant is for every user")
        .until("ready");
}

#[test]
fn listeners_that_end_together_leave_no_socket() {
    let Some(net) = net() else { return };
    let all: Vec<Running> = (0..6)
        .map(|_| net.weir(&["listen", "eth0", "udp dst port 5079"]))
        .collect();
    let all: Vec<Running> = all.into_iter().map(|one| one.until("weir: port")).collect();
    let numbers: Vec<u32> = all.iter().map(Running::id).collect();
    for one in &all {
        one.signal(Signal::INT);
    }
    for one in all {
        one.end();
    }
    let left = std::fs::read_dir("/run/weir/local").unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_theirs = |name: &String| {
        numbers
            .iter()
            .any(|pid| name.starts_with(&format!("{pid}-")))
    };
    let left: Vec<String> = left.filter(is_theirs).collect();
    assert!(left.is_empty(), "{left:?}");
}
