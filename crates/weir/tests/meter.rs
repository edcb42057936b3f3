//! `weir meter -r` against tshark, on every capture: sums per address, per port and per direction
//! are equal to the packet and byte.

mod common;

use common::{Folder, capture, frame, interface, section, stdout, weir};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
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

/// Packets and bytes.
type Sums = BTreeMap<String, [u64; 2]>;

/// The sums of the records by what `name` makes of each, all periods together; checks that each
/// period's records add up to the link's totals.
fn records(path: &Path, config: &str, unit: &str, name: impl Fn(&Value) -> String) -> Sums {
    let path = path.to_str().unwrap();
    let run = weir([
        "meter",
        "-r",
        path,
        "--config",
        config,
        "--bytes",
        unit,
        "--json",
        "--no-store",
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
    let folder = Folder::new("meter-addresses");
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
            let text = format!("unattributed_max = 100000\n{text}");
            let config = folder.write("counter.toml", text.as_bytes());
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
    let folder = Folder::new("meter-ports");
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
        let config = folder.write("counter.toml", text.as_bytes());
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

/// Runs weir with a store of its own, which ends with this status; what it printed and said.
fn run<const N: usize>(status: i32, arguments: [&str; N]) -> (String, String) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let store = Folder::new(&format!("meter-store-{}", RUNS.fetch_add(1, Relaxed)));
    let mut command = weir(arguments);
    command.env("STATE_DIRECTORY", store.path(""));
    let run = command.output().unwrap();
    assert_eq!(run.status.code(), Some(status), "{run:?}");
    (stdout(&run), String::from_utf8(run.stderr).unwrap())
}

#[test]
fn a_list_of_subscribers_names_the_traffic_in_a_table_with_its_proof() {
    let folder = Folder::new("meter-list");
    let file = folder.write("a.pcap", &capture(&[53, 80, 53, 9]));
    let list = b"subscriber,key\nalice,0.0.0.0/8\n\"Bob, the other\",192.0.2.1\n";
    folder.write("list.csv", list);
    let text = "subscribers = 'list.csv'\nbytes = 'wire'\n[services]\ndns = { udp = [53] }\n[measures]\nflows = true\nactive = true\ngaps = true\nall = 'udp'";
    let config = folder.write("counter.toml", text.as_bytes());
    let (out, _) = run(0, ["meter", "--config", &config, "--check"]);
    assert_eq!(out, format!("{config}: good (2 subscribers)\n"));
    let (out, said) = run(0, ["meter", "-r", &file, "--config", &config]);
    assert_eq!(said, "");
    let row = |words: &[&str]| {
        let same = |line: &str| line.split_whitespace().eq(words.iter().copied());
        assert!(out.lines().any(same), "{words:?}\n{out}");
    };
    row(&[
        "alice", "dns", "up", "2", "128", "1", "2,000", "2", "0", "≥", "1048", "ms",
    ]);
    row(&["link", "up", "4", "256"]);
    assert!(
        out.ends_with("proof: sum of the records = link total: 4 packets, 256 bytes\n"),
        "{out}"
    );
}

#[test]
fn a_list_that_fits_no_subscriber_is_reported() {
    let folder = Folder::new("meter-nobody");
    let file = folder.write("a.pcap", &capture(&[53, 80]));
    let config = folder.write("counter.toml", b"subscribers = 'list.csv'\n");
    for (list, why) in [
        ("subscriber,key\n", "it names no subscriber"),
        (
            "alice,203.0.113.1\n",
            "is from or to a subscriber of the list",
        ),
    ] {
        folder.write("list.csv", list.as_bytes());
        let (_, said) = run(0, ["meter", "-r", &file, "--config", &config]);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn records_of_periods_are_the_same_each_time() {
    let folder = Folder::new("meter-periods");
    let file = folder.write("a.pcap", &capture(&[53, 80, 53, 9, 9, 9]));
    let arguments = [
        "meter",
        "-r",
        &file,
        "--period",
        "2s",
        "--json",
        "--inside",
        "0.0.0.0/0",
    ];
    let (first, _) = run(0, arguments);
    let (second, _) = run(0, arguments);
    assert_eq!(first, second);
    let lines = first
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let periods: Vec<Value> = lines.filter(|line| line["kind"] == "period").collect();
    let packets: Vec<u64> = periods
        .iter()
        .map(|line| line["link"]["packets"][0].as_u64().unwrap())
        .collect();
    assert_eq!(packets, [2, 2, 2]);
    assert_eq!(periods[1]["start_unix_ns"], 2_000_000_000u64);
    assert_eq!(periods[1]["end_unix_ns"], 4_000_000_000u64);
}

#[test]
fn mistakes_are_one_line_each_with_their_place() {
    let folder = Folder::new("meter-mistakes");
    let file = folder.write("a.pcap", &capture(&[53]));
    let wrong = folder.write("wrong.toml", b"\nperiod = '0s'");
    let (_, said) = run(2, ["meter", "--config", &wrong, "--check"]);
    assert_eq!(
        said,
        format!("weir: {wrong}:2:10: period = `0s`: from 1 s to 86400 s\n")
    );
    let list = folder.write("list.csv", b"alice\nbob,192.0.2.300\n");
    let config = folder.write("counter.toml", b"subscribers = 'list.csv'");
    let (out, said) = run(2, ["meter", "-r", &file, "--config", &config]);
    assert_eq!(out, "");
    assert!(
        said.contains(&format!("{list}:1:6: `alice` has no key")),
        "{said}"
    );
    assert!(
        said.contains(&format!("{list}:2:5: `192.0.2.300` is no key")),
        "{said}"
    );
    let config = folder.write("counter.toml", b"subscribers = 'none.csv'");
    let (_, said) = run(1, ["meter", "--config", &config, "--check"]);
    assert!(
        said.contains("counter.toml:1:15: subscribers = `none.csv`: cannot read"),
        "{said}"
    );
    let (_, said) = run(2, ["meter"]);
    assert!(said.contains("--read"), "{said}");
}

#[test]
fn damage_and_expressions_without_meaning_leave_the_rest_counted() {
    let folder = Folder::new("meter-damage");
    let mut bytes = capture(&[53, 80]);
    bytes.truncate(bytes.len() - 1);
    let file = folder.write("cut.pcap", &bytes);
    let (out, said) = run(1, ["meter", "-r", &file]);
    assert!(out.contains("1 packet,"), "{out}");
    assert!(said.contains("cut.pcap"), "{said}");
    // On raw IP there is no Ethernet address.
    let config = folder.write("counter.toml", b"[services]\nbroadcast = 'ether broadcast'");
    let mixed = [
        section(),
        interface(1),
        interface(101),
        frame(0, 14, 53),
        frame(1, 0, 53),
    ];
    let file = folder.write("mixed.pcapng", &mixed.concat());
    let (out, said) = run(1, ["meter", "-r", &file, "--config", &config]);
    assert!(out.contains("link total: 2 packets,"), "{out}");
    assert!(
        said.contains("link type RAW: service `broadcast` accepts no frame"),
        "{said}"
    );
}

#[test]
fn the_records_of_a_damaged_capture_are_printed_and_not_kept() {
    let folder = Folder::new("meter-damaged");
    let whole = capture(&[53, 80, 53, 9]);
    let file = folder.write("a.pcap", &whole[..whole.len() - 3]);
    let store = folder.path("usage.db");
    let (out, said) = run(1, ["meter", "-r", &file, "--store", &store]);
    assert!(out.contains("3 packets"), "{out}");
    assert!(said.contains("not kept"), "{said}");
    assert!(!Path::new(&store).exists());
    // The whole capture is not taken for another content.
    let file = folder.write("a.pcap", &whole);
    run(0, ["meter", "-r", &file, "--store", &store]);
    let (out, _) = run(0, ["usage", "--store", &store, "--prove"]);
    assert!(out.contains("4 packets"), "{out}");
}
