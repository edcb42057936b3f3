//! Every expression of the corpus, compared with libpcap: the same expressions
//! are valid, and every frame of every capture, with every link type, has the
//! same verdict in every engine of weir.
//!
//! In debug mode the interpreters run on a sample of the frames (native code
//! runs on all), and link types that do not occur in the captures get a sample
//! of the corpus. `cargo test --release -p weir-lab --test differential` runs
//! everything, `WEIR_LIBPCAP=/path/libpcap.so` selects another libpcap, and
//! `WEIR_DIFFERENCES=FILE` writes every difference to a file.

mod engines;
mod expected;
mod judge;
mod tcpdump;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_lab::captures::{self, LINKTYPES, NamedCapture};
use weir_lab::corpus::{self, Entry};
use weir_lab::oracle::{Frame, Oracle};
use weir_lab::rng::Rng;
use weir_link::names::SystemNames;
use weir_wire::LinkType;

use expected::Expected;
use judge::{Difference, Judge};

/// Whether to run everything instead of a sample.
const WHOLE: bool = cfg!(not(debug_assertions));

/// A frame and its origin, such as `vxlan.pcap:12` (counted from 1).
struct Sample {
    source: String,
    frame: Frame,
}

/// The frames of the captures by link type, each with its own.
fn real_frames(captures: &[NamedCapture]) -> BTreeMap<LinkType, Vec<Sample>> {
    let mut by_type: BTreeMap<LinkType, Vec<Sample>> = BTreeMap::new();
    for (name, capture) in captures {
        let frames = by_type.entry(capture.linktype).or_default();
        for (index, frame) in capture.frames.iter().enumerate() {
            frames.push(Sample {
                source: format!("{name}:{}", index + 1),
                frame: frame.clone(),
            });
        }
    }
    by_type
}

/// Frames of the Ethernet captures, converted to another link type, at most
/// `count` from each file.
fn relinked(captures: &[NamedCapture], linktype: LinkType, count: usize) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (name, capture) in captures {
        if capture.linktype != LinkType::EN10MB {
            continue;
        }
        let step = capture.frames.len().div_ceil(count).max(1);
        for (turn, index) in (0..capture.frames.len()).step_by(step).enumerate() {
            if let Some(frame) = captures::relink(&capture.frames[index], linktype, turn) {
                let source = format!("{name}:{} as {linktype}", index + 1);
                samples.push(Sample { source, frame });
            }
        }
    }
    samples
}

/// Whether every libpcap takes the address family of a BSD loopback header for
/// this system's: before 1.11 it supported neither other systems' numbers for
/// IPv6 nor the other byte order.
fn is_of_this_system(linktype: LinkType, bytes: &[u8]) -> bool {
    let family = bytes.first_chunk().map(|family| match linktype {
        LinkType::NULL => u32::from_ne_bytes(*family),
        _ => u32::from_be_bytes(*family),
    });
    matches!(family, Some(2 | 10))
}

/// `count` damaged copies.
fn damaged(samples: &[Sample], seed: u64, count: usize) -> Vec<Sample> {
    let mut rng = Rng::new(seed);
    let copies = (0..if samples.is_empty() { 0 } else { count }).map(|turn| {
        let original = rng.choose(samples);
        let source = format!("{} damaged (seed {seed:#x}, {turn})", original.source);
        let frame = captures::damage(&mut rng, &original.frame);
        Sample { source, frame }
    });
    copies.collect()
}

/// Compares the entries on the frames, on all cores; returns the differences in
/// the corpus's order.
fn judge_all(
    oracle: &Oracle,
    linktype: LinkType,
    entries: &[Entry],
    samples: &[Sample],
) -> Vec<Difference> {
    let names = SystemNames::new();
    let judge = Judge::new(oracle, &names, linktype, samples);
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let mut found: Vec<(usize, Difference)> = std::thread::scope(|scope| {
        let work = || {
            let mut found = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(entry) = entries.get(index) else {
                    return found;
                };
                let differences = judge.entry(&entry.text, index);
                found.extend(differences.into_iter().map(|found| (index, found)));
            }
        };
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let results = handles.into_iter().map(|handle| handle.join());
        results
            .flat_map(|found| found.expect("no worker panics"))
            .collect()
    });
    found.sort_by_key(|(index, _)| *index);
    println!("{linktype}: {} frames; {}", samples.len(), judge.summary());
    found
        .into_iter()
        .map(|(_, difference)| difference)
        .collect()
}

#[test]
fn captures_under_their_own_link_types() {
    let Some(oracle) = Oracle::load() else { return };
    let captures = captures::captures(&oracle);
    if captures.is_empty() {
        return;
    }
    let entries = corpus::entries();
    let mut expected = Expected::read(&oracle);
    let mut found = Vec::new();
    for (linktype, mut samples) in real_frames(&captures) {
        samples.extend(damaged(&samples, 0xdead, 500));
        found.extend(judge_all(&oracle, linktype, &entries, &samples));
    }
    expected.check("own", &found, true);
}

#[test]
fn the_same_frames_under_every_link_type() {
    let Some(oracle) = Oracle::load() else { return };
    let captures = captures::captures(&oracle);
    if captures.is_empty() {
        return;
    }
    let entries = corpus::entries();
    let mut expected = Expected::read(&oracle);
    let mut found = Vec::new();
    let old = oracle.version_numbers() < Some((1, 11));
    let (per_file, step) = if WHOLE { (60, 1) } else { (12, 5) };
    for (turn, linktype) in LINKTYPES.into_iter().enumerate().skip(1) {
        let mut samples = relinked(&captures, linktype, per_file);
        if matches!(linktype, LinkType::NULL | LinkType::LOOP) && old {
            samples.retain(|sample| is_of_this_system(linktype, &sample.frame.bytes));
        }
        samples.extend(damaged(&samples, 0xbeef, samples.len() / 8));
        let sampled: Vec<Entry> = entries
            .iter()
            .skip(turn % step)
            .step_by(step)
            .cloned()
            .collect();
        found.extend(judge_all(&oracle, linktype, &sampled, &samples));
    }
    expected.check("relinked", &found, WHOLE);
}
