//! Two `weir ipsec` with a router between them, which sees what is on the wire.

#[path = "../common/mod.rs"]
mod common;
mod kernel;
#[path = "../common/live.rs"]
mod live;
mod one_link;
mod path;
mod strongswan;

use common::{Folder, weir};
use live::{Running, WAIT_MAX, ip};
use serde_json::Value;
use std::fs;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Lab, Signal, traffic};
use weir_lab::testenv;
use weir_ledger::{Ledger, UsageQuery};
use weir_link::live::Sender;

const INSIDE: [&str; 2] = ["10.1.0.9", "10.2.0.9"];
const OUTSIDE: [&str; 2] = ["192.0.2.1", "198.51.100.1"];
const OUTSIDE_V6: [&str; 2] = ["fd00:1::1", "fd00:2::1"];

/// A comment in a tunnel, whose ends are of IPv6 then.
const V6: &str = "# over IPv6";

/// Connects two hosts, with these addresses.
fn connect(lab: &Lab, one: (&Host, &str), other: (&Host, &str)) {
    let (first, second) = lab.link(one.0, other.0).connect().unwrap();
    for (device, text) in [(first, one.1), (second, other.1)] {
        let address: IpAddr = text.parse().unwrap();
        device.add_address(address, 24).unwrap();
    }
}

/// Default routes: of the hosts to the gateways, of these to the router.
fn routes_lead_out(a: &Host, b: &Host, gateways: [&Host; 2]) {
    for (host, via) in [
        (a, "10.1.0.1"),
        (b, "10.2.0.1"),
        (gateways[0], "192.0.2.254"),
        (gateways[1], "198.51.100.254"),
    ] {
        ip(host, &["route", "add", "default", "via", via]);
    }
}

/// A host, a gateway, a router, a gateway, a host.
struct Net {
    a: Host,
    gateways: [Host; 2],
    middle: Host,
    b: Host,
    folder: Folder,
}

impl Net {
    fn new(name: &str) -> Option<Net> {
        if !testenv::root() || !testenv::programs(&["ip"]) {
            return None;
        }
        let lab = Lab::new();
        let [a, g1, middle, g2, b] =
            ["a", "g1", "m", "g2", "b"].map(|name| lab.host(name).unwrap());
        let links = [
            (&a, &g1, INSIDE[0], "10.1.0.1"),
            (&g1, &middle, OUTSIDE[0], "192.0.2.254"),
            (&b, &g2, INSIDE[1], "10.2.0.1"),
            (&g2, &middle, OUTSIDE[1], "198.51.100.254"),
        ];
        for (one, other, at_one, at_other) in links {
            connect(&lab, (one, at_one), (other, at_other));
        }
        routes_lead_out(&a, &b, [&g1, &g2]);
        for (host, device, address) in [
            (&g1, "eth1", OUTSIDE_V6[0]),
            (&middle, "eth0", "fd00:1::fe"),
            (&g2, "eth1", OUTSIDE_V6[1]),
            (&middle, "eth1", "fd00:2::fe"),
            // Its kernel solicits neighbours by such addresses.
            (&middle, "eth0", "fe80::fe"),
            (&middle, "eth1", "fe80::fe"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            host.device(device)
                .unwrap()
                .add_address(address, 64)
                .unwrap();
        }
        for (host, via) in [(&g1, "fd00:1::fe"), (&g2, "fd00:2::fe")] {
            ip(host, &["-6", "route", "add", "default", "via", via]);
        }
        middle.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
        middle
            .set_sysctl("net.ipv6.conf.all.forwarding", "1")
            .unwrap();
        Some(Net {
            a,
            gateways: [g1, g2],
            middle,
            b,
            folder: Folder::new(name),
        })
    }

    /// Writes a gateway's file, with SAs of these generations, and what else.
    fn write(&self, which: usize, generations: &[u8], tunnel: &str) -> String {
        let path = self.folder.path(&format!("sa{which}.toml"));
        fs::write(&path, text(which, generations, tunnel)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn start(&self, which: usize, tunnel: &str) -> Running {
        let path = self.write(which, &[1], tunnel);
        let json = self.json(which);
        let arguments = [
            "ipsec",
            "eth1",
            "eth0",
            "--sa",
            &path,
            "--stats-json",
            &json,
            "--hang-ms",
            "5000",
        ];
        Running::start(&self.gateways[which], weir([]), &arguments).until("ready")
    }

    fn json(&self, which: usize) -> String {
        self.folder.path(&format!("stats{which}.json"))
    }

    /// The stage's report, as last written.
    fn stage(&self, which: usize) -> Value {
        let text = fs::read(self.json(which)).unwrap_or_default();
        let report: Value = serde_json::from_slice(&text).unwrap_or_default();
        report["stages"][0].clone()
    }

    /// Waits until a number of the report is at least this.
    fn until(&self, which: usize, group: &str, name: &str, least: u64) {
        let began = Instant::now();
        while self.stage(which)[group][name].as_u64() < Some(least) {
            let late = began.elapsed() > WAIT_MAX;
            assert!(!late, "{group} {name}: {}", self.stage(which));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn pings(&self) -> usize {
        live::pings(&self.a, INSIDE[1])
    }
}

/// The file of the first or second gateway.
fn text(which: usize, generations: &[u8], tunnel: &str) -> String {
    let nets = ["10.1.0.0/16", "10.2.0.0/16"];
    let (here, there) = (which, 1 - which);
    let ends = if tunnel == V6 { OUTSIDE_V6 } else { OUTSIDE };
    let mut text = format!(
        "[[tunnel]]\nname = \"t\"\nlocal = \"{}\"\nremote = \"{}\"\n{tunnel}\n",
        ends[here], ends[there]
    );
    for generation in generations {
        for side in 0..2 {
            let direction = if side == which { "out" } else { "in" };
            let number = generation * 2 + side as u8;
            text += &format!(
                "[[sa]]\ntunnel = \"t\"\ndirection = \"{direction}\"\nspi = {}\nesn = true\n\
                 algorithm = \"aes256gcm\"\nkey = \"{}\"\n",
                1000 + u32::from(number),
                format!("{number:02x}").repeat(36)
            );
        }
    }
    text + &format!(
        "[[policy]]\nmatch = \"src net {} and dst net {}\"\naction = \"protect\"\ntunnel = \"t\"\n",
        nets[here], nets[there]
    )
}

/// The frames that a socket saw, each once.
fn frames(capture: &OwnedFd) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    let mut buffer = vec![0; 70_000];
    while let Ok((len, _)) =
        rustix::net::recv(capture, &mut buffer[..], rustix::net::RecvFlags::empty())
    {
        seen.push(buffer[..len].to_vec());
    }
    seen
}

/// Checks that no frame shows an inside; returns those with ESP.
fn hidden(frames: &[Vec<u8>], payload: &[u8]) -> Vec<Vec<u8>> {
    let mut sealed = Vec::new();
    for frame in frames {
        let is_plain = |at: usize| frame.get(at) == Some(&10);
        if frame[12..14] == [8, 0] {
            assert!(!is_plain(26) && !is_plain(30), "plain: {frame:02x?}");
        }
        let shows = frame.windows(payload.len()).any(|text| text == payload);
        assert!(!shows, "a payload is plain: {frame:02x?}");
        let is_esp = frame[12..14] == [8, 0] && frame[23] == 50;
        let is_udp = frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == [0x11, 0x94];
        let is_v6 = frame[12..14] == [0x86, 0xdd] && frame[20] == 50;
        if is_esp || is_udp || is_v6 {
            sealed.push(frame.clone());
        }
    }
    sealed
}

#[test]
fn two_gateways_hide_what_is_between_them() {
    for (name, tunnel) in [
        ("ipsec-esp", ""),
        ("ipsec-udp", "udp = true"),
        ("ipsec-v6", V6),
    ] {
        let Some(net) = Net::new(name) else { return };
        let capture = net.middle.capture().unwrap();
        let running = [0, 1].map(|which| net.start(which, tunnel));
        assert_eq!(net.pings(), 3, "{tunnel}");
        let secret = [0x5e_u8; 600];
        let to = INSIDE[1].parse().unwrap();
        assert!(traffic::echoes(&net.a, to, &secret, WAIT_MAX).unwrap());
        // The gateways' own addresses inside.
        assert_eq!(live::pings(&net.a, "10.1.0.1"), 3);
        assert_eq!(live::pings(&net.a, "10.2.0.1"), 3);
        let sealed = hidden(&frames(&capture), &secret[..40]);
        assert!(sealed.len() >= 16, "{} ESP packets", sealed.len());
        // Full segments: the hosts learn of the tunnel's MTU by ICMP.
        let at = (INSIDE[1].parse().unwrap(), 5001);
        let bulk = traffic::bulk(&net.a, &net.b, at, Duration::from_millis(500)).unwrap();
        assert!(bulk.bits_per_second() > 1e5, "{bulk:?}");
        hidden(&frames(&capture), &secret[..40]);
        for (which, running) in running.into_iter().enumerate() {
            let ended = running.stop();
            assert!(!ended.stderr.contains("panic"), "{ended:?}");
            let stage = net.stage(which);
            assert!(stage["counters"]["sealed"].as_u64() > Some(8), "{stage}");
            assert!(stage["counters"]["opened"].as_u64() > Some(8), "{stage}");
        }
        assert!(net.stage(0)["counters"]["too_big"].as_u64() >= Some(1));
    }
}

#[test]
fn a_replayed_capture_is_counted_and_dropped() {
    let Some(net) = Net::new("ipsec-replay") else {
        return;
    };
    let capture = net.middle.capture().unwrap();
    let running = [0, 1].map(|which| net.start(which, ""));
    assert_eq!(net.pings(), 3);
    let to_second = |frame: &&Vec<u8>| frame[30..34] == [198, 51, 100, 1];
    let all = hidden(&frames(&capture), b"no such text");
    // Those that the router has sent on to the second gateway, as they were.
    let device = net.middle.device("eth1").unwrap();
    let sent: Vec<&Vec<u8>> = all
        .iter()
        .filter(to_second)
        .filter(|frame| frame[6..12] == device.mac().0)
        .collect();
    assert_eq!(sent.len(), 3);
    let at_b = net.b.capture().unwrap();
    let index = device.index();
    let sender = net.middle.run(|| Sender::open(index)).unwrap();
    sent.iter().for_each(|frame| sender.send(frame).unwrap());
    net.until(1, "drops", "replayed", 3);
    let echoes = frames(&at_b);
    let echoes = echoes
        .iter()
        .filter(|frame| frame[12..14] == [8, 0] && frame[23] == 1);
    assert_eq!(echoes.count(), 0, "a replayed packet came through");
    // A plain packet to the inside does not enter.
    let mut plain = vec![0; 42];
    plain[..6].copy_from_slice(&sent[0][..6]);
    plain[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    plain[17] = 28;
    plain[22..24].copy_from_slice(&[64, 17]);
    plain[26..34].copy_from_slice(&[10, 1, 0, 9, 10, 2, 0, 9]);
    sender.send(&plain).unwrap();
    net.until(1, "drops", "unprotected", 1);
    running.into_iter().for_each(|it| _ = it.stop());
}

/// A killed gateway lets nothing pass, neither plain nor protected, whatever is sent at that time.
#[test]
fn nothing_plain_leaves_a_killed_gateway() {
    const PLAIN: &[u8] = b"this is in the clear";
    let Some(net) = Net::new("ipsec-killed") else {
        return;
    };
    let capture = net.middle.capture().unwrap();
    let [first, second] = [0, 1].map(|which| net.start(which, ""));
    assert_eq!(net.pings(), 3);
    let socket = net
        .a
        .run(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let (before, at_death, after) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                // An ICMP error is no failure.
                let _ = socket.send_to(PLAIN, (INSIDE[1], 7000));
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        let before = hidden(&frames(&capture), PLAIN).len();
        first.signal(Signal::KILL);
        first.end();
        // What was on its way.
        std::thread::sleep(Duration::from_millis(300));
        let at_death = hidden(&frames(&capture), PLAIN).len();
        std::thread::sleep(Duration::from_millis(300));
        let after = hidden(&frames(&capture), PLAIN);
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        (before, at_death, after)
    });
    let from_first = |frame: &&Vec<u8>| frame[26..30] == [192, 0, 2, 1];
    assert!(
        before > 100,
        "{before} ESP packets before, {at_death} at the death"
    );
    assert_eq!(after.iter().filter(from_first).count(), 0, "{after:02x?}");
    assert_eq!(net.pings(), 0);
    hidden(&frames(&capture), PLAIN);
    second.stop();
    let clean = ["ipsec", "eth1", "eth0", "--sa", "/dev/null", "--clean"];
    let cleaned = Running::start(&net.gateways[0], weir([]), &clean).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}

/// New SAs by SIGHUP while echoes go: none is lost.
#[test]
fn rekeying_loses_nothing() {
    let Some(net) = Net::new("ipsec-rekey") else {
        return;
    };
    let mut running = [0, 1].map(|which| net.start(which, ""));
    assert_eq!(net.pings(), 3);
    // A new outbound SA is used at once, so the peer gets the inbound one first.
    let without_out = |which: usize| {
        let both = text(which, &[1, 2], "");
        let (old, new) = both.split_at(both.match_indices("[[sa]]").nth(2).unwrap().0);
        let (sas, policies) = new.split_at(new.find("[[policy]]").unwrap());
        let inbound = sas
            .split("[[sa]]")
            .find(|sa| sa.contains("\"in\""))
            .unwrap();
        format!("{old}[[sa]]{inbound}{policies}")
    };
    let mut lost = 0;
    let steps: [&dyn Fn(usize) -> String; 3] =
        [&without_out, &|which| text(which, &[1, 2], ""), &|which| {
            text(which, &[2], "")
        }];
    for step in steps {
        for (which, running) in running.iter_mut().enumerate() {
            fs::write(net.folder.path(&format!("sa{which}.toml")), step(which)).unwrap();
            let again = net.stage(which)["counters"]["reloads"]
                .as_u64()
                .unwrap_or(0)
                + 1;
            running.signal(Signal::HUP);
            let line = running.line();
            assert!(line.contains("read again"), "{line}");
            lost += 3 - net.pings();
            net.until(which, "counters", "reloads", again);
            lost += 3 - net.pings();
        }
    }
    assert_eq!(lost, 0);
    // A mistake changes nothing.
    fs::write(net.folder.path("sa0.toml"), "[[sa]]\nspi = 1\n").unwrap();
    running[0].signal(Signal::HUP);
    let line = running[0].line();
    assert!(
        line.contains("sa0.toml:1:1:") && line.contains("stay"),
        "{line}"
    );
    assert_eq!(net.pings(), 3);
    for running in running {
        let ended = running.stop();
        assert!(!ended.stderr.contains("0303"), "a key is shown: {ended:?}");
    }
    for which in 0..2 {
        let drops = &net.stage(which)["drops"];
        assert!(
            drops["no-sa"].is_null() && drops["icv"].is_null(),
            "{drops}"
        );
    }
}

#[test]
fn what_would_be_unsafe_is_refused_with_the_reason() {
    let Some(net) = Net::new("ipsec-refused") else {
        return;
    };
    let path = net.write(0, &[1], "");
    let run = |options: &[&str]| {
        let base = ["ipsec", "eth1", "eth0", "--sa", &path];
        Running::start(&net.gateways[0], weir([]), &[&base[..], options].concat()).end()
    };
    let good = run(&["--check"]);
    assert_eq!(good.code, Some(0), "{good:?}");
    for (bypass, why) in [("wire", "unprotected"), ("kernel", "unprotected")] {
        let ended = run(&["--bypass", bypass]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(why), "{ended:?}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let open = run(&["--check"]);
    assert_eq!(open.code, Some(2), "{open:?}");
    assert!(open.stderr.contains("chmod 600"), "{open:?}");
    net.write(0, &[1], "mtu = 100");
    let small = run(&["--check"]);
    assert!(
        small.stderr.contains("sa0.toml:5:7: mtu = 100"),
        "{small:?}"
    );
    let elsewhere = text(0, &[1], "").replace("192.0.2.1", "192.0.2.77");
    fs::write(&path, elsewhere).unwrap();
    let wrong = run(&["--check"]);
    assert!(
        wrong.stderr.contains("another address, 192.0.2.1"),
        "{wrong:?}"
    );
}

#[test]
fn the_short_command_prints_what_it_stands_for() {
    let mut command = weir(["ipsec", "out0", "in0", "in1", "--sa", "sa.toml", "--print"]);
    let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    for line in [
        "outside = \"out0\"",
        "kind = \"ipsec\"",
        "sa = \"sa.toml\"",
        "name = \"in1\"",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
    let mut command = weir(["ipsec", "eth0", "--sa", "sa.toml", "--print"]);
    let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert_eq!(printed.matches("[[link]]").count(), 1, "{printed}");
    // In a chain, the last.
    let folder = Folder::new("ipsec-last");
    let path = folder.path("box.toml");
    let stages = "\n[[stage]]\nkind = \"ipsec\"\nsa = \"sa.toml\"\n[[stage]]\nkind = \"drop\"\n";
    let links = "outside = \"b\"\n[[link]]\nname = \"a\"\n[[link]]\nname = \"b\"\n";
    fs::write(&path, [links, stages].concat()).unwrap();
    let done = weir(["run", &path, "--check"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        said.contains("box.toml:7:1:") && said.contains("last stage"),
        "{said}"
    );
}

/// Who used what, by the addresses inside of ESP.
#[test]
fn a_gateway_meters_what_the_tunnel_carries() {
    let Some(net) = Net::new("ipsec-meter") else {
        return;
    };
    let [metered, _] = &net.gateways;
    metered.own_pins().unwrap();
    net.write(0, &[1], "");
    let list = format!("subscriber,key\nalice,{}\n", INSIDE[0]);
    let counter = "counter = \"g\"\nperiod = \"1s\"\ncapacity = 256\nsubscribers = \"list.csv\"\n\
                   [services]\nping = { protocols = [1] }\n";
    let config = "outside = \"eth1\"\n[[link]]\nname = \"eth1\"\n[[link]]\nname = \"eth0\"\n\
                  [kernel]\nroutes = true\n[meter]\nconfig = \"counter.toml\"\nstore = \"usage.db\"\n\
                  [[stage]]\nkind = \"ipsec\"\nsa = \"sa0.toml\"\n";
    for (name, text) in [
        ("list.csv", &*list),
        ("counter.toml", counter),
        ("box.toml", config),
    ] {
        fs::write(net.folder.path(name), text).unwrap();
    }
    let config = net.folder.path("box.toml");
    let arguments = ["run", &config, "--hang-ms", "5000"];
    let running = Running::start(metered, weir([]), &arguments).until("ready");
    let peer = net.start(1, "");
    assert_eq!(live::pings(&net.a, INSIDE[1]), 3);
    for running in [running, peer] {
        running.signal(Signal::INT);
        assert_eq!(running.end().code, Some(0));
    }
    let ledger = Ledger::open(net.folder.path("usage.db").as_ref()).unwrap();
    let query = UsageQuery {
        service: Some("ping".to_owned()),
        ..UsageQuery::default()
    };
    let rows = ledger.usage(&query, &jiff::tz::TimeZone::UTC).unwrap();
    let rows = rows.iter().map(|row| (&*row.subscriber, row.packets));
    assert_eq!(rows.collect::<Vec<_>>(), [("alice", [3, 3])]);
    let cleaned = Running::start(metered, weir([]), &["run", &config, "--clean"]).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}
