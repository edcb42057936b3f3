//! A real tcpdump process, on a sample: the same number of packets.

use std::path::Path;
use std::process::Stdio;

use weir_filter::interp::Interp;
use weir_filter::lang::expr::compile;
use weir_lab::oracle::Oracle;
use weir_lab::rng::Rng;
use weir_lab::{captures, corpus, testenv};
use weir_link::names::SystemNames;

use crate::WHOLE;
use crate::judge::context;

/// Number of expressions for each capture.
const EACH: usize = if WHOLE { 60 } else { 6 };

/// The number that `tcpdump --count` prints.
fn count(path: &Path, text: &str) -> Option<usize> {
    let output = testenv::program("tcpdump")?
        .args(["-n", "--count", "-r"])
        .args([path.as_os_str(), "--".as_ref(), text.as_ref()])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[test]
fn tcpdump_counts_the_same() {
    if !testenv::programs(&["tcpdump"]) {
        return;
    }
    // libpcap's own reader returns the frames; it need not be tcpdump's
    // libpcap.
    let Some(oracle) = Oracle::load() else { return };
    let seed = 0x7c9d;
    let mut rng = Rng::new(seed);
    let realistic = corpus::family("realistic");
    let names = SystemNames::new();
    let (mut compared, mut packets) = (0, 0);
    for (name, capture) in captures::captures(&oracle) {
        let path = testenv::captures()
            .expect("they were just read")
            .join(&name);
        for _ in 0..EACH {
            let text = rng.choose(&realistic);
            let program = compile(text, &context(capture.linktype, &names));
            let (program, theirs) = match (program, count(&path, text)) {
                (Ok(program), Some(theirs)) => (program, theirs),
                (Err(_), None) => continue,
                // tcpdump may be linked to another, older libpcap.
                (Ok(_), None) if text.contains("vxlan") => continue,
                (ours, theirs) => panic!("{name}: `{text}`: weir {ours:?}, tcpdump {theirs:?}"),
            };
            let mut interp = Interp::new(&program);
            let ours = capture
                .frames
                .iter()
                .filter(|frame| interp.run(&frame.bytes, frame.wire_len) != 0);
            assert_eq!(ours.count(), theirs, "{name}: `{text}` (seed {seed:#x})");
            compared += 1;
            packets += theirs;
        }
    }
    println!("{compared} counts compared, {packets} packets kept");
}
