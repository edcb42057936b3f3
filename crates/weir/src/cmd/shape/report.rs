//! The report of a shaper: links, and the classes of what leaves each.

use crate::cmd::forwarder::Shown;
use crate::report::metrics::{CounterOf, Exposition};
use crate::report::queues::{self, Queues};
use serde::Serialize;
use weir_apps::shape::Snapshot;

/// The reported values at one time.
#[derive(Serialize)]
pub(super) struct Report {
    links: Vec<Link>,
    hung: u64,
    died: u64,
}

#[derive(Serialize)]
struct Link {
    name: String,
    rx_frames: u64,
    rx_bytes: u64,
    tx_frames: u64,
    tx_bytes: u64,
    bypassed: u64,
    /// Frames that came while weir hung, and were too old to be sent.
    stale: u64,
    /// Frames that found no room before weir saw them.
    rx_full: u64,
    rx_dropped: u64,
    no_room: u64,
    tx_too_long: u64,
    /// Frames that came in and do not pass a bridge.
    not_passed: u64,
    /// What leaves; of no class without a scheduler.
    #[serde(flatten)]
    queues: Queues,
}

impl Report {
    pub(super) fn new(view: &Snapshot<'_>) -> Report {
        let links = view.names.iter().zip(view.tap.links()).zip(view.shapers);
        let links = links.map(|((name, link), shaper)| {
            let counts = view.tap.link_counts(link);
            let decided = view.switch.counts(link.number());
            Link {
                name: name.clone(),
                rx_frames: counts.rx_frames,
                rx_bytes: counts.rx_bytes,
                tx_frames: counts.tx_frames,
                tx_bytes: counts.tx_bytes,
                bypassed: counts.bypassed,
                stale: counts.stale,
                rx_full: counts.rx_full,
                rx_dropped: counts.rx_dropped,
                no_room: counts.tx_ring_full,
                tx_too_long: counts.tx_too_long,
                not_passed: decided.local + decided.vlan + decided.reserved + decided.malformed,
                queues: shaper.as_ref().map_or_else(Queues::default, Queues::of),
            }
        });
        let counts = view.tap.counts();
        Report {
            links: links.collect(),
            hung: counts.hung,
            died: counts.died,
        }
    }
}

/// Counters of each link.
const BY_LINK: [CounterOf<Link>; 9] = [
    ("rx_frames_total", "Frames received.", |l| l.rx_frames),
    ("rx_bytes_total", "Bytes received.", |l| l.rx_bytes),
    ("tx_frames_total", "Frames sent.", |l| l.tx_frames),
    ("tx_bytes_total", "Bytes sent.", |l| l.tx_bytes),
    ("bypassed_total", "Frames that took the bypass.", |l| {
        l.bypassed
    }),
    (
        "stale_total",
        "Frames too old to be sent, after a hang.",
        |l| l.stale + l.queues.flushed,
    ),
    (
        "rx_full_total",
        "Frames that found no room before weir saw them.",
        |l| l.rx_full,
    ),
    (
        "no_room_total",
        "Frames that found no room in the send ring.",
        |l| l.no_room,
    ),
    (
        "tx_too_long_total",
        "Frames longer than the link can send.",
        |l| l.tx_too_long,
    ),
];

impl Shown for Report {
    fn exposition(&self) -> Exposition {
        let mut out = Exposition::new("weir_shape_");
        let links = self.links.iter().map(|link| (&*link.name, link));
        out.of_links(links, &BY_LINK);
        let links = self.links.iter();
        queues::metrics(&mut out, links.map(|link| (&*link.name, &link.queues)));
        let hung = "Times that weir was found hung.";
        out.one("hung_total", "counter", hung, self.hung);
        let died = "Times that weir was found dead.";
        out.one("died_total", "counter", died, self.died);
        out
    }
}
