//! Real captures: every frame is counted once in every table, and decoded as tshark does.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use weir_lab::testenv;
use weir_link::pcap::Reader;
use weir_monitor::tree::{Layer, decode};
use weir_monitor::{Counts, Limits, Model, Row, Seen, Table};

fn sum<K: Copy + Eq + std::hash::Hash>(table: &Table<K>, of: fn(&Row<K>) -> Counts) -> Counts {
    let rows = table.rows().iter();
    rows.fold(table.overflow(), |sum, row| sum.and(of(row)))
}

#[test]
fn tables_add_up_to_the_totals_at_any_limit() {
    for path in testenv::capture_files() {
        for rows_max in [1, 3, 100_000] {
            let limits = Limits {
                talkers: rows_max,
                conversations: rows_max,
                protocols: rows_max,
            };
            let mut model = Model::new(limits, [1, 2]);
            let mut reader = Reader::open(&path).unwrap();
            while let Ok(Some(frame)) = reader.next_frame() {
                model.frame(&Seen {
                    bytes: frame.bytes,
                    len: frame.wire_len,
                    time_ns: frame.time_ns,
                    linktype: frame.linktype(),
                    lost_before: 0,
                });
            }
            let totals = model.totals();
            let all = Counts {
                frames: totals.frames,
                bytes: totals.bytes,
            };
            let name = path.display();
            assert!(all.frames > 0, "{name}");
            assert_eq!(sum(model.conversations(), Row::total), all, "{name}");
            assert_eq!(sum(model.protocols(), Row::total), all, "{name}");
            assert_eq!(sum(model.talkers(), Row::total), all.and(all), "{name}");
            assert!(model.talkers().rows().len() <= rows_max);
            let history = model.history().buckets().iter();
            let history = history.fold(Counts::default(), |sum, one| sum.and(*one));
            assert_eq!(history, all, "{name}");
        }
    }
}

/// The value of a field in the first layer of that name.
fn value(layers: &[Layer], layer: &str, field: &str) -> Option<String> {
    let layer = layers.iter().find(|one| one.name == layer)?;
    let field = layer.fields.iter().find(|one| one.name == field)?;
    Some(field.value.clone())
}

/// tshark's fields, and ours.
const FIELDS: [(&str, &str, &str); 9] = [
    ("ip.ttl", "IPv4", "Time to live"),
    ("ip.src", "IPv4", "Source"),
    ("ipv6.dst", "IPv6", "Destination"),
    ("ipv6.hlim", "IPv6", "Hop limit"),
    ("tcp.seq_raw", "TCP", "Sequence number"),
    ("tcp.window_size_value", "TCP", "Window"),
    ("udp.length", "UDP", "Length"),
    ("vlan.id", "802.1Q", "VLAN"),
    ("arp.src.proto_ipv4", "ARP", "Sender address"),
];

/// The first value of each field of each frame, by tshark.
fn by_tshark(path: &Path) -> Option<Vec<Vec<String>>> {
    let mut tshark = testenv::program("tshark")?;
    tshark.args(["-n", "-r"]).arg(path).args([
        "-T",
        "fields",
        "-E",
        "occurrence=f",
        "-E",
        "separator=|",
    ]);
    // Only headers: no reassembly moves a field to another frame.
    tshark.args(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]);
    for (field, ..) in FIELDS {
        tshark.args(["-e", field]);
    }
    let output = tshark.stderr(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text
        .lines()
        .map(|line| line.split('|').map(str::to_owned).collect());
    Some(lines.collect())
}

#[test]
fn headers_have_the_values_that_tshark_finds() {
    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    for path in testenv::capture_files() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Damaged on purpose: what to make of the rest is a matter of taste.
        if name.starts_with("fuzz") || name.starts_with("badpackets") {
            continue;
        }
        let Some(theirs) = by_tshark(&path) else {
            return;
        };
        let mut reader = Reader::open(&path).unwrap();
        let mut theirs = theirs.iter();
        let mut number = 0;
        while let Ok(Some(frame)) = reader.next_frame() {
            number += 1;
            let layers = decode(frame.bytes, frame.linktype());
            let Some(theirs) = theirs.next() else {
                panic!("{name}: tshark has fewer frames");
            };
            for ((field, layer, ours), theirs) in FIELDS.iter().zip(theirs) {
                // Tunnels and link types that have no view here are not compared, nor what tshark
                // has under another name, as the tags of 802.1ad.
                let ours = value(&layers, layer, ours).filter(|_| !theirs.is_empty());
                let Some(ours) = ours else {
                    continue;
                };
                assert_eq!(&ours, theirs, "{name}, frame {number}: {field}");
                *compared.entry(field).or_default() += 1;
            }
        }
    }
    if !compared.is_empty() {
        assert_eq!(compared.len(), FIELDS.len(), "{compared:?}");
    }
}
