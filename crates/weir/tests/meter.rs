//! `weir meter -r` against tshark, on every capture: sums per address, per port and per direction
//! are equal to the packet and byte.

mod common;

use common::{stdout, weir};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use weir_lab::testenv;

/// A frame as tshark dissects it.
struct Dissected {
    frame_len: u64,
    /// Source, destination and length of the outermost IP packet, if it stands directly behind the
    /// link layer.
    packet: Option<(IpAddr, IpAddr, u64)>,
    /// Protocol and transport ports, of a packet that is no fragment.
    ports: Option<(&'static str, u16, u16)>,
}

const FIELDS: [&str; 16] = [
    "frame.len",
    "frame.protocols",
    "ip.src",
    "ip.dst",
    "ip.len",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.plen",
    "tcp.srcport",
    "tcp.dstport",
    "udp.srcport",
    "udp.dstport",
    "ip.flags.mf",
    "ip.frag_offset",
    "ipv6.fraghdr.more",
    "ipv6.fraghdr.offset",
];

/// What tshark says of the frames of a capture; `None` (after a skip) without tshark.
fn dissect(path: &Path) -> Option<Vec<Dissected>> {
    let mut tshark = testenv::program("tshark")?;
    tshark.args([
        "-n",
        "-T",
        "fields",
        "-E",
        "separator=|",
        "-E",
        "occurrence=f",
    ]);
    for dissector in ["ip", "ipv6"] {
        tshark.args(["-o", &format!("{dissector}.defragment:FALSE")]);
    }
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let output = tshark.arg("-r").arg(path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(stdout(&output).lines().map(dissected).collect())
}

/// Bytes of the link layer's headers; `None` for one that weir does not open.
fn link_len(names: &[&str]) -> Option<u64> {
    let len = |name: &&str| match *name {
        "eth" => Some(14),
        "vlan" | "ieee8021ad" => Some(4),
        "pppoes" => Some(6),
        "ppp" => Some(2),
        "sll" => Some(16),
        "ethertype" | "raw" => Some(0),
        _ => None,
    };
    names.iter().map(len).sum()
}

fn dissected(line: &str) -> Dissected {
    let fields: Vec<&str> = line.split('|').collect();
    let field = |name: &str| fields[FIELDS.iter().position(|field| *field == name).unwrap()];
    let number = |name: &str| field(name).parse::<u64>().unwrap_or(0);
    let is_set = |name: &str| matches!(field(name), "1" | "True");
    let names: Vec<&str> = field("frame.protocols").split(':').collect();
    let frame_len = number("frame.len");
    let mut frame = Dissected {
        frame_len,
        packet: None,
        ports: None,
    };
    let Some(at) = names.iter().position(|name| matches!(*name, "ip" | "ipv6")) else {
        return frame;
    };
    let Some(link_len) = link_len(&names[..at]) else {
        return frame;
    };
    let version = names[at];
    let address = |end: &str| field(&format!("{version}.{end}")).parse::<IpAddr>().ok();
    let (Some(src), Some(dst)) = (address("src"), address("dst")) else {
        return frame;
    };
    let (stated, mut is_fragment) = if version == "ip" {
        (
            number("ip.len"),
            is_set("ip.flags.mf") || number("ip.frag_offset") != 0,
        )
    } else {
        (40 + number("ipv6.plen"), false)
    };
    let mut inside = names[at + 1..].iter();
    let mut next = inside.next();
    while next.is_some_and(|name| name.starts_with("ipv6.")) {
        let has_fragment = next == Some(&"ipv6.fraghdr");
        is_fragment |=
            has_fragment && (is_set("ipv6.fraghdr.more") || number("ipv6.fraghdr.offset") != 0);
        next = inside.next();
    }
    // What a header claims beyond its frame did not cross the link.
    frame.packet = Some((src, dst, stated.min(frame_len - link_len)));
    let port = |name: &str| field(name).parse::<u16>().ok();
    if !is_fragment && let Some(protocol @ ("tcp" | "udp")) = next.copied() {
        let ends = port(&format!("{protocol}.srcport")).zip(port(&format!("{protocol}.dstport")));
        let protocol = if protocol == "tcp" { "tcp" } else { "udp" };
        frame.ports = ends.map(|(src, dst)| (protocol, src, dst));
    }
    frame
}

/// Whether an address is private, in words of the test's own.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xfe00 == 0xfc00,
    }
}

/// A folder of the test's own, which it removes.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weir-meter-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Packets and bytes.
type Sums = BTreeMap<String, [u64; 2]>;

/// The sums of the records by what `name` makes of each, all periods together; checks that each
/// period's records add up to the link's totals.
fn records(path: &Path, config: &str, unit: &str, name: impl Fn(&Value) -> String) -> Sums {
    let path = path.to_str().unwrap();
    let run = weir([
        "meter", "-r", path, "--config", config, "--bytes", unit, "--json",
    ]);
    let run = { run }.output().unwrap();
    assert!(run.status.success(), "{path}: {run:?}");
    let mut sums = Sums::new();
    let mut of_period = [0; 2];
    for line in stdout(&run).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if line["kind"] == "period" {
            let both = |key: &str| -> u64 {
                (0..2)
                    .map(|direction| line["link"][key][direction].as_u64().unwrap())
                    .sum()
            };
            assert_eq!(
                of_period,
                [both("packets"), both("bytes")],
                "{path}: {line}"
            );
            assert_eq!(line["is_proven"], true, "{path}: {line}");
            of_period = [0; 2];
            continue;
        }
        let sum = sums.entry(name(&line)).or_default();
        for (at, column) in ["packets", "bytes"].into_iter().enumerate() {
            let count = line["counts"][column].as_u64().unwrap();
            sum[at] += count;
            of_period[at] += count;
        }
    }
    assert_eq!(of_period, [0; 2], "{path}: records without a period");
    sums
}

fn add(sums: &mut Sums, name: String, bytes: u64) {
    let sum = sums.entry(name).or_default();
    sum[0] += 1;
    sum[1] += bytes;
}

#[test]
fn sums_per_address_and_direction_are_tsharks() {
    let folder = Folder::new("addresses");
    // By private addresses; then all source, and all destination addresses.
    let rules = [
        ("private", ""),
        ("source", "[capture]\nfrom_inside = 'greater 0'"),
        (
            "destination",
            "[capture]\nfrom_inside = 'greater 0 and less 0'",
        ),
    ];
    for path in testenv::capture_files() {
        let Some(frames) = dissect(&path) else {
            return;
        };
        for (rule, text) in rules {
            let config = folder.write(
                "counter.toml",
                &format!("unattributed_max = 100000\n{text}"),
            );
            for unit in ["ip", "wire"] {
                let mut theirs = Sums::new();
                for frame in &frames {
                    let src = frame.packet.map(|(src, ..)| src);
                    let up = match rule {
                        "private" => src.is_some_and(is_private),
                        rule => rule == "source",
                    };
                    let address = frame.packet.map(|(src, dst, _)| if up { src } else { dst });
                    let address = address.map_or_else(|| "none".into(), |ip| ip.to_string());
                    let direction = if up { "up" } else { "down" };
                    let bytes = match unit {
                        "ip" => frame.packet.map_or(0, |(.., len)| len),
                        _ => frame.frame_len,
                    };
                    add(&mut theirs, format!("{address} {direction}"), bytes);
                }
                let ours = records(&path, &config, unit, |line| {
                    let address = line["keys"][0].as_str().unwrap_or("none");
                    format!("{address} {}", line["direction"].as_str().unwrap())
                });
                assert_eq!(ours, theirs, "{} {rule} {unit}", path.display());
            }
        }
    }
}

#[test]
fn sums_per_port_are_tsharks() {
    const SERVICES_MAX: usize = 60;
    let folder = Folder::new("ports");
    let mut compared = 0;
    for path in testenv::capture_files() {
        let Some(frames) = dissect(&path) else {
            return;
        };
        let mut used: HashMap<(&str, u16), u64> = HashMap::new();
        for (protocol, src, dst) in frames.iter().filter_map(|frame| frame.ports) {
            *used.entry((protocol, src)).or_default() += 1;
            *used.entry((protocol, dst)).or_default() += 1;
        }
        let mut ports: Vec<_> = used
            .into_iter()
            .map(|(port, count)| (count, port))
            .collect();
        ports.sort();
        let ports: Vec<_> = ports
            .into_iter()
            .rev()
            .take(SERVICES_MAX)
            .map(|(_, port)| port)
            .collect();
        let mut text = "[services]\n".to_owned();
        for (protocol, port) in &ports {
            text += &format!("{protocol}-{port} = {{ {protocol} = [{port}] }}\n");
        }
        let config = folder.write("counter.toml", &text);
        let mut theirs = Sums::new();
        for frame in &frames {
            let service = frame.ports.and_then(|(protocol, src, dst)| {
                let fits = |(of, port): &&(&str, u16)| *of == protocol && [src, dst].contains(port);
                ports.iter().find(fits)
            });
            if let Some((protocol, port)) = service {
                let bytes = frame.packet.map_or(0, |(.., len)| len);
                add(&mut theirs, format!("{protocol}-{port}"), bytes);
            }
        }
        let mut ours = records(&path, &config, "ip", |line| {
            line["service"].as_str().unwrap().to_owned()
        });
        ours.retain(|service, _| service.contains('-') && service != "non-ip");
        assert_eq!(ours, theirs, "{}", path.display());
        compared += theirs.values().map(|[packets, _]| packets).sum::<u64>();
    }
    assert!(compared > 1000 || compared == 0, "{compared}");
}
