//! Real captures, read as libpcap and tcpdump read them, in every format and
//! compression.

mod support;

use std::path::Path;

use support::{MICRO, NANO, Order, Seen, as_pcap, drain, gzip, read_whole, zstd};
use weir_lab::oracle::Oracle;
use weir_lab::testenv;
use weir_link::pcap::{Compression, Reader};

fn open_and_drain(path: &Path) -> Vec<Seen> {
    let mut reader =
        Reader::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let length = std::fs::metadata(path).unwrap().len();
    let (seen, error) = drain(&mut reader);
    assert!(error.is_none(), "{}: {error:?}", path.display());
    assert_eq!(reader.offset(), length);
    assert_eq!(reader.progress().consumed, length);
    assert_eq!(reader.progress().total, Some(length));
    seen
}

#[test]
fn frames_equal_those_of_libpcap() {
    let Some(oracle) = Oracle::load() else { return };
    for path in testenv::capture_files() {
        let ours = open_and_drain(&path);
        let theirs = oracle.read(&path).unwrap();
        assert_eq!(theirs.error, None);
        let linktype = theirs.linktype;
        assert_eq!(ours.len(), theirs.frames.len(), "{}", path.display());
        for (index, (ours, theirs)) in ours.iter().zip(&theirs.frames).enumerate() {
            assert_eq!(ours.linktype, linktype.0, "{} {index}", path.display());
            assert_eq!(ours.wire_len, theirs.wire_len, "{} {index}", path.display());
            assert_eq!(ours.bytes, theirs.bytes, "{} {index}", path.display());
        }
    }
}

#[test]
fn times_equal_those_of_tcpdump() {
    if !testenv::programs(&["tcpdump"]) {
        return;
    }
    for path in testenv::capture_files() {
        let mut tcpdump = testenv::program("tcpdump").expect("it is there");
        tcpdump
            .args(["-tt", "-nn", "-q", "--time-stamp-precision=nano", "-r"])
            .arg(&path);
        let output = tcpdump.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        // tcpdump may print a frame on several lines.
        let theirs: Vec<i64> = text.lines().filter_map(nanoseconds).collect();
        let ours: Vec<i64> = open_and_drain(&path)
            .iter()
            .map(|seen| seen.time_ns.unwrap())
            .collect();
        assert_eq!(ours, theirs, "{}", path.display());
    }
}

/// The timestamp at the start of a line of `tcpdump -tt`.
fn nanoseconds(line: &str) -> Option<i64> {
    let (seconds, rest) = line.split_once('.')?;
    let fraction = rest.get(..9)?;
    Some(seconds.parse::<i64>().ok()? * 1_000_000_000 + fraction.parse::<i64>().ok()?)
}

#[test]
fn every_dress_gives_the_same_frames() {
    for path in testenv::capture_files() {
        let plain = std::fs::read(&path).unwrap();
        let seen = read_whole(&plain);
        for (packed, packing) in [
            (gzip(&plain), Compression::Gzip),
            (zstd(&plain), Compression::Zstd),
        ] {
            let length = packed.len() as u64;
            let mut reader = Reader::new(std::io::Cursor::new(packed)).unwrap();
            let (unpacked, error) = drain(&mut reader);
            assert!(error.is_none(), "{}: {error:?}", path.display());
            assert!(unpacked == seen, "{} {packing}", path.display());
            assert_eq!(reader.packing(), Some(packing));
            assert_eq!(reader.offset(), plain.len() as u64);
            assert_eq!(reader.progress().consumed, length);
        }
        for order in [Order::Little, Order::Big] {
            for magic in [MICRO, NANO] {
                let other = read_whole(&as_pcap(&seen, order, magic, 262_144));
                // One interface, and timestamps in the file's unit.
                let unit = if magic == NANO { 1 } else { 1000 };
                let expected = seen.iter().cloned().map(|frame| Seen {
                    interface: 0,
                    time_ns: frame.time_ns.map(|time| time / unit * unit),
                    ..frame
                });
                assert!(expected.eq(other), "{} {order:?} {magic:x}", path.display());
            }
        }
    }
}
