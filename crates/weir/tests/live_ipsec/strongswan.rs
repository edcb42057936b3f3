//! strongSwan at both ends: its IKE daemon on the gateway's host makes the SAs of weir, and at the other end
//! strongSwan itself does ESP (`kernel-libipsec`).

use super::{INSIDE, Net, OUTSIDE};
use crate::common::{make_fifo, weir};
use crate::live::{Running, WAIT_MAX};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::net::{Host, Signal};
use weir_lab::{testenv, wait};

const PLUGINS: &str = "/usr/lib/ipsec/plugins";

/// The network with charon at each gateway, and weir at the first.
struct Peers {
    weir: Running,
    charons: [Running; 2],
    net: Net,
}

/// The configuration of strongSwan's daemon.
fn daemon(net: &Net, which: usize) -> String {
    let keys = |name: &str, path: &str| {
        format!(
            "{name} {{\n path = {path}\n append = yes\n flush_line = yes\n default = -1\n enc = 1\n chd = 4\n }}\n"
        )
    };
    let path = |name: &str| net.folder.path(&format!("{name}{which}"));
    let mut logs = keys("copy", &path("log"));
    if which == 0 {
        logs += &keys("weir", &path("keys"));
    }
    // The routes of strongSwan's own ESP only where it does ESP.
    let routes = ["no", "yes"][which];
    format!(
        "charon-systemd {{\n load = random nonce openssl kdf drbg kernel-libipsec kernel-netlink socket-default vici\n \
         install_routes = {routes}\n plugins {{\n vici {{\n socket = unix://{}\n }}\n }}\n filelog {{\n {logs} }}\n \
         journal {{\n default = -1\n }}\n }}\n",
        path("vici")
    )
}

/// The connection of a gateway, as swanctl(8) reads it.
fn connection(which: usize) -> String {
    let names = ["left", "right"];
    let nets = ["10.1.0.0/16", "10.2.0.0/16"];
    let there = 1 - which;
    format!(
        "connections {{\n c {{\n version = 2\n local_addrs = {}\n remote_addrs = {}\n encap = yes\n \
         proposals = aes128gcm16-prfsha256-x25519\n \
         local {{\n auth = psk\n id = {}\n }}\n remote {{\n auth = psk\n id = {}\n }}\n \
         children {{\n net {{\n local_ts = {}\n remote_ts = {}\n esp_proposals = aes256gcm16\n }}\n }}\n }}\n }}\n\
         secrets {{\n ike {{\n secret = \"0123456789abcdef\"\n }}\n }}\n",
        OUTSIDE[which], OUTSIDE[there], names[which], names[there], nets[which], nets[there],
    )
}

impl Peers {
    /// `None` (after a skip) without strongSwan.
    fn new(name: &str) -> Option<Peers> {
        let programs = ["charon-systemd", "swanctl"];
        let plugin = |name: &str, package: &str| {
            let path = format!("{PLUGINS}/libstrongswan-{name}.so");
            testenv::file(&path, &format!("apt-get install {package}"))
        };
        if !testenv::programs(&programs)
            || !plugin("kernel-libipsec", "libcharon-extra-plugins")
            || !plugin("openssl", "libstrongswan-standard-plugins")
        {
            return None;
        }
        let net = Net::new(name)?;
        net.gateways[1]
            .set_sysctl("net.ipv4.ip_forward", "1")
            .unwrap();
        let keys = net.folder.path("keys0");
        make_fifo(&keys);
        let (json, vici) = (net.json(0), net.folder.path("vici0"));
        let arguments = [
            "ipsec",
            "eth1",
            "eth0",
            "--strongswan",
            &keys,
            "--vici",
            &vici,
            "--stats-json",
            &json,
            "--hang-ms",
            "5000",
        ];
        let weir = Running::start(&net.gateways[0], weir([]), &arguments).until("ready");
        let charons = [0, 1].map(|which| {
            let conf = net
                .folder
                .write(&format!("conf{which}"), daemon(&net, which).as_bytes());
            let mut command = testenv::program("charon-systemd").unwrap();
            command.env("STRONGSWAN_CONF", conf);
            Running::start(&net.gateways[which], command, &[])
        });
        let peers = Peers { weir, charons, net };
        for which in 0..2 {
            let socket = peers.net.folder.path(&format!("vici{which}"));
            wait::until("VICI's socket", || {
                std::thread::sleep(Duration::from_millis(20));
                Path::new(&socket).exists()
            });
            let text = connection(which);
            let file = peers
                .net
                .folder
                .write(&format!("swanctl{which}"), text.as_bytes());
            peers.swanctl(which, &["--load-all", "--file", &file]);
        }
        Some(peers)
    }

    fn swanctl(&self, which: usize, arguments: &[&str]) -> String {
        let mut command = testenv::program("swanctl").unwrap();
        let path = |name: &str| self.net.folder.path(&format!("{name}{which}"));
        let uri = format!("unix://{}", path("vici"));
        command
            .args(arguments)
            .args(["--uri", &uri])
            .env("STRONGSWAN_CONF", path("conf"));
        let done = self.net.gateways[which].output(command).unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "swanctl {arguments:?}: {done:?}");
        said
    }

    /// Establishes the SAs, and waits until packets come through.
    fn establish(&self) {
        self.swanctl(0, &["--initiate", "--child", "net", "--timeout", "30"]);
        let began = Instant::now();
        while self.net.pings() < 3 {
            let late = began.elapsed() > WAIT_MAX;
            assert!(
                !late,
                "{}{}",
                self.net.stage(0),
                self.swanctl(0, &["--list-sas"])
            );
        }
    }

    fn stop(self) -> Net {
        for charon in self.charons {
            charon.signal_at_once(Signal::TERM);
            charon.end();
        }
        let ended = self.weir.stop();
        assert!(!ended.stderr.contains("panic"), "{ended:?}");
        // strongSwan starts later than weir.
        let mut lines = ended.stderr.lines().filter(|line| line.contains("ipsec:"));
        assert!(
            lines.all(|line| line.contains("cannot ask strongSwan")),
            "{ended:?}"
        );
        self.net
    }
}

/// tshark's table of SAs, by the keys that a daemon's log has.
fn table_of_keys(log: &str) -> Vec<String> {
    let mut keys = [String::new(), String::new()];
    let (mut which, mut is_initiator, mut is_inbound) = (None, false, false);
    let mut rows = Vec::new();
    for line in log.lines() {
        let text = line.split_once(']').map_or("", |(_, text)| text.trim());
        if text.starts_with("parsed ") {
            is_initiator = text.contains(" response ");
        }
        if let Some(rest) = text.strip_prefix("encryption ") {
            which = Some(usize::from(rest.starts_with("responder")));
            keys[which.unwrap()].clear();
        } else if let (Some(which), Some((_, dump))) = (which, text.split_once(": ")) {
            let dump = dump.split_once("  ").map_or(dump, |(dump, _)| dump);
            let _ = write!(keys[which], "{}", dump.replace(' ', ""));
        } else {
            which = None;
        }
        if text.starts_with("adding ") || text.starts_with("registering ") {
            is_inbound = text.contains("inbound");
        }
        if let Some((spi, _)) = text
            .strip_prefix("SPI ")
            .and_then(|rest| rest.split_once(','))
        {
            let key = std::mem::take(&mut keys[usize::from(is_initiator == is_inbound)]);
            rows.push(format!(
                "uat:esp_sa:\"IPv4\",\"*\",\"*\",\"{spi}\",\"AES-GCM with 16 octet ICV [RFC4106]\",\"0x{key}\",\"NULL\",\"\""
            ));
        }
    }
    rows
}

/// Starts a program in a host, without its output.
fn quiet(host: &Host, mut command: Command, arguments: &[&str]) -> weir_lab::net::Process {
    command.args(arguments).stdout(std::process::Stdio::null());
    host.spawn(command).unwrap()
}

#[test]
fn strongswan_negotiates_and_is_the_peer() {
    if !testenv::programs(&["iperf3", "tcpdump", "tshark"]) {
        return;
    }
    let Some(peers) = Peers::new("ipsec-strongswan") else {
        return;
    };
    peers.establish();
    let net = &peers.net;
    // All of the wire from here on, up to a number of packets.
    let file = net.folder.path("wire.pcap");
    let mut tcpdump = testenv::program("tcpdump").unwrap();
    tcpdump.args([
        "-Z", "root", "-n", "-i", "eth0", "-B", "65536", "-c", "2000", "-w", &file, "ip",
    ]);
    let capturing = Running::start(&net.middle, tcpdump, &[]).until("listening");
    let server = testenv::program("iperf3").unwrap();
    let _server = quiet(&net.b, server, &["-s"]);
    for direction in [&[][..], &["-R"]] {
        let began = Instant::now();
        let report = loop {
            let arguments = [&["-c", INSIDE[1], "-t", "2", "-J"], direction].concat();
            let said = crate::live::run(&net.a, "iperf3", &arguments).unwrap();
            let report: Value = serde_json::from_str(&said).unwrap_or_default();
            if report["end"]["sum_received"]["bits_per_second"].as_f64() > Some(1e5) {
                break report;
            }
            assert!(began.elapsed() < WAIT_MAX, "{said}{}", net.stage(0));
        };
        println!(
            "iperf3 {direction:?}: {}",
            report["end"]["sum_received"]["bits_per_second"]
        );
    }
    let captured = capturing.end();
    assert_eq!(captured.code, Some(0), "{captured:?}");
    // Every packet is ESP in UDP or IKE, and tshark decrypts each of ESP.
    let log = fs::read_to_string(net.folder.path("log0")).unwrap();
    let mut tshark = testenv::program("tshark").unwrap();
    tshark.args(["-n", "-r", &file]);
    for row in table_of_keys(&log) {
        tshark.args(["-o", &row]);
    }
    let fields = ["udp.dstport", "esp.sequence", "ip.src", "esp.icv_good"];
    tshark.args(["-o", "esp.enable_encryption_decode:TRUE", "-T", "fields"]);
    tshark.args(["-o", "esp.enable_authentication_check:TRUE"]);
    fields
        .iter()
        .for_each(|field| _ = tshark.args(["-e", field]));
    let done = tshark.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let mut decrypted = 0;
    for line in said.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        assert!(
            matches!(columns[0].split(',').next(), Some("4500" | "500")),
            "plain: {line}"
        );
        if columns[1].is_empty() {
            continue;
        }
        let inner = columns[2].split(',').nth(1).unwrap_or_default();
        assert!(INSIDE.contains(&inner), "not decrypted: {line}");
        decrypted += 1;
    }
    assert!(decrypted > 1900, "{decrypted} of {}", said.lines().count());
    let net = peers.stop();
    let stage = net.stage(0);
    for reason in ["icv", "replayed", "esp-malformed", "policy-mismatch"] {
        assert!(stage["drops"][reason].is_null(), "{stage}");
    }
}

/// Each end rekeys while echoes go: none is lost.
#[test]
fn strongswan_rekeys_without_loss() {
    let Some(peers) = Peers::new("ipsec-strongswan-rekey") else {
        return;
    };
    if !testenv::programs(&["ping"]) {
        return;
    }
    peers.establish();
    let spis = |which: usize| {
        let said = peers.swanctl(which, &["--list-sas"]);
        let lines = said
            .lines()
            .filter(|line| line.trim_start().starts_with("in "));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    for which in [0, 1] {
        let before = spis(which);
        let mut ping = testenv::program("ping").unwrap();
        ping.args(["-q", "-n", "-i", "0.01", "-c", "400", "-W", "5", INSIDE[1]]);
        let pinging = Running::start(&peers.net.a, ping, &[]);
        std::thread::sleep(Duration::from_millis(500));
        peers.swanctl(which, &["--rekey", "--child", "net"]);
        let said = pinging.end().stdout;
        assert!(
            said.contains(" 0% packet loss"),
            "{which}: {said}{}",
            peers.net.stage(0)
        );
        assert_ne!(spis(which), before, "rekeyed");
    }
    let net = peers.stop();
    let stage = net.stage(0);
    assert!(stage["counters"]["reloads"].as_u64() >= Some(3), "{stage}");
    assert!(stage["drops"]["no-sa"].is_null(), "{stage}");
}
