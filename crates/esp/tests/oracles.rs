//! Other implementations of ESP: scapy seals what we open and opens what we
//! seal; tshark decrypts what we seal, and finds each ICV right.

mod common;

use common::{ENDS, Spec, bytes, config, key, opened, packet, sealed};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use weir_esp::{Gateway, Inward};
use weir_lab::rng::Rng;
use weir_lab::testenv;

struct Case {
    spec: Spec,
    tunnel: bool,
    udp: bool,
    esn: bool,
    sequence: u64,
}

impl Case {
    /// All algorithms, modes and versions of IP.
    fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for algorithm in ["aes128gcm", "aes256gcm", "chacha20poly1305"] {
            for (v6, tunnel, udp, esn, sequence) in [
                (false, true, false, false, 0_u64),
                (false, true, true, false, 77),
                (false, false, false, true, (1 << 32) - 2),
                (true, true, false, true, 5 << 32),
                (true, false, false, false, 0),
            ] {
                let mode = if tunnel { "tunnel" } else { "transport" };
                all.push(Case {
                    spec: Spec {
                        algorithm,
                        tunnel: format!("mode = \"{mode}\"\nudp = {udp}"),
                        sa: format!("esn = {esn}\nsequence = {sequence}"),
                        v6,
                        policies: String::new(),
                    },
                    tunnel,
                    udp,
                    esn,
                    sequence,
                });
            }
        }
        all
    }

    fn gateway(&self, which: usize) -> Gateway {
        Gateway::new(&config(&self.spec.text(which, 1)), 0, 3).unwrap()
    }

    /// Packets from the first to the second gateway's side.
    fn packets(&self) -> Vec<Vec<u8>> {
        let mut rng = Rng::new(self.sequence);
        let ends = match (self.tunnel, self.spec.v6) {
            (true, _) => vec![
                ["10.1.0.5", "10.2.0.6"],
                ["2001:db8:a1::5", "2001:db8:a2::6"],
            ],
            (false, v6) => vec![ENDS[usize::from(v6)]],
        };
        let lens = [0, 1, 2, 3, 4, 100, 1000];
        let mut packets = Vec::new();
        for [src, dst] in ends {
            for len in lens {
                packets.push(packet(src, dst, 0, true, &bytes(&mut rng, len)));
            }
        }
        packets
    }

    /// The SA from the first to the second gateway, as scapy wants it.
    fn sa(&self, sequence: u64) -> serde_json::Value {
        let algorithm = match self.spec.algorithm {
            "chacha20poly1305" => "CHACHA20-POLY1305",
            _ => "AES-GCM",
        };
        let [src, dst] = ENDS[usize::from(self.spec.v6)];
        json!({
            "spi": 1001, "sequence": sequence, "algorithm": algorithm,
            "key": key(1, self.spec.algorithm), "src": src, "dst": dst,
            "tunnel": self.tunnel, "udp": self.udp, "esn": self.esn,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(text: &str) -> Vec<u8> {
    let at = |place| u8::from_str_radix(&text[place..place + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(at).collect()
}

/// Scapy's answers to these tasks; `None` (after a skip) without scapy.
fn scapy(tasks: &[serde_json::Value]) -> Option<Vec<Vec<u8>>> {
    let mut python = testenv::python(&["scapy.layers.ipsec", "cryptography"])?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/scapy_esp.py");
    let input = file("scapy.json");
    let lines: Vec<String> = tasks.iter().map(ToString::to_string).collect();
    fs::write(&input, lines.join("\n")).unwrap();
    let done = python
        .arg(script)
        .stdin(Stdio::from(fs::File::open(&input).unwrap()))
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let text = String::from_utf8(done.stdout).unwrap();
    let answers: Vec<Vec<u8>> = text.lines().map(of_hex).collect();
    assert_eq!(answers.len(), tasks.len());
    Some(answers)
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("esp-{}-{name}", std::process::id()))
}

#[test]
fn scapy_opens_what_we_seal_and_we_open_what_scapy_seals() {
    let (mut tasks, mut wanted) = (Vec::new(), Vec::new());
    for case in Case::all() {
        let mut gateway = case.gateway(0);
        for (number, inner) in (1..).zip(case.packets()) {
            let esp = sealed(&mut gateway, 0, &inner);
            let sa = case.sa(case.sequence + number);
            tasks.push(json!({"do": "open", "sa": sa, "packet": hex(&esp)}));
            tasks.push(json!({"do": "seal", "sa": sa, "packet": hex(&inner)}));
            wanted.push(inner);
        }
    }
    let Some(answers) = scapy(&tasks) else { return };
    let mut answers = answers.into_iter();
    let mut wanted = wanted.into_iter();
    for case in Case::all() {
        let mut gateway = case.gateway(1);
        for _ in case.packets() {
            let inner = wanted.next().unwrap();
            let what = format!("{} {}", case.spec.algorithm, case.spec.tunnel);
            assert_eq!(
                hex(&answers.next().unwrap()),
                hex(&inner),
                "scapy opened, {what}"
            );
            let opened = opened(&mut gateway, 0, &answers.next().unwrap());
            assert_eq!(opened, Inward::Opened(inner), "scapy sealed, {what}");
        }
    }
}

/// A capture of IP packets.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.write_all(&word.to_le_bytes()).unwrap();
    }
    for packet in packets {
        for word in [0, 0, packet.len() as u32, packet.len() as u32] {
            file.write_all(&word.to_le_bytes()).unwrap();
        }
        file.write_all(packet).unwrap();
    }
    file
}

#[test]
fn tshark_decrypts_every_packet() {
    let Some(mut tshark) = testenv::program("tshark") else {
        return;
    };
    // That of Debian 12 knows neither ChaCha20-Poly1305 nor sequence numbers of
    // 64 bits; scapy does.
    let knows = |case: &Case| !case.esn && case.spec.algorithm != "chacha20poly1305";
    for (number, case) in Case::all().into_iter().filter(knows).enumerate() {
        let mut gateway = case.gateway(0);
        let packets = case.packets();
        let sent: Vec<Vec<u8>> = packets
            .iter()
            .map(|inner| sealed(&mut gateway, 0, inner))
            .collect();
        let path = file(&format!("{number}.pcap"));
        fs::write(&path, capture(&sent)).unwrap();
        let algorithm = "AES-GCM with 16 octet ICV [RFC4106]";
        let version = if case.spec.v6 { "IPv6" } else { "IPv4" };
        let sa = format!(
            "uat:esp_sa:\"{version}\",\"*\",\"*\",\"0x3e9\",\"{algorithm}\",\"0x{}\",\"NULL\",\"\"",
            key(1, case.spec.algorithm)
        );
        let done = tshark
            .args(["-n", "-r"])
            .arg(&path)
            .args(["-o", "esp.enable_encryption_decode:TRUE"])
            .args(["-o", "esp.enable_authentication_check:TRUE", "-o", &sa])
            .args([
                "-T",
                "fields",
                "-e",
                "udp.dstport",
                "-e",
                "udp.payload",
                "-e",
                "esp.icv_good",
            ])
            .output()
            .unwrap();
        fs::remove_file(&path).unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{done:?}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), packets.len(), "{done:?}");
        for (line, inner) in lines.iter().zip(&packets) {
            let fields: Vec<&str> = line.split('\t').collect();
            let payload = if inner[0] >> 4 == 4 { 28 } else { 48 };
            assert!(fields[0].ends_with('7'), "{algorithm}: {line}");
            // With UDP encapsulation, also the payload of the outer datagram.
            let payload = hex(&inner[payload..]);
            assert!(fields[1].ends_with(&payload), "{algorithm}: {line}");
            assert_eq!(fields[2], "1", "{algorithm}: {line}");
        }
        tshark = testenv::program("tshark").expect("it was there before");
    }
}
