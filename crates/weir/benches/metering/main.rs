//! What metering costs a bridge, and how many frames a second a counter beside the host takes, compared
//! with flow exporters.
//!
//! ```sh
//! sudo cargo bench -p weir --bench metering -- [bridge] [latency] [beside] [cut]
//! ```
//!
//! - `bridge`: the highest rate without loss of `weir bridge --meter` and of `weir bridge`, frames of 64 B
//!   to 256 and to 1,000,000 subscribers in random order, with and without the flow cache. A median of
//!   rounds, in turn.
//! - `latency`: the median time of a frame through both, at a rate that both take.
//! - `beside`: the highest rate without loss of `weir meter` at one interface, beside the host and at a
//!   mirror port whose frames it takes, and of softflowd, pmacctd and nfpcapd, with 256 and 100,000 flows.
//!   An exporter that is not installed is left out. Of the exporters only what libpcap dropped counts as
//!   lost.
//! - `cut`: how long 3,000,000 records of a period take from its end until they are durable, and whether
//!   the bridge that counts loses a frame meanwhile.

mod beside;
mod bridge;
mod cut;

use weir_lab::results::{Figures, Parts, recorder};
use weir_lab::testenv;

fn main() {
    if !testenv::root() {
        return;
    }
    let results = recorder!().seed(bridge::SEED);
    let parts = Parts::of_arguments();
    if parts.wants("bridge") {
        bridge::rates(&results);
    }
    if parts.wants("latency") {
        bridge::latencies(&results);
    }
    if parts.wants("beside") {
        beside::rates(&results);
    }
    if parts.wants("cut") {
        cut::cuts(&results);
    }
}

/// The median; 0 without any.
fn median(values: Vec<f64>) -> f64 {
    Figures::of(values).map_or(0.0, |figures| figures.median())
}

/// A folder of this process, empty.
fn folder(name: &str) -> std::path::PathBuf {
    let name = format!("metering-{}-{name}", std::process::id());
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}
