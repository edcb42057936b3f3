//! The report of a shaper: links, and the classes of what leaves each.

use crate::report::metrics::{CounterOf, Exposition, labels};
use serde::Serialize;
use weir_apps::shape::{ClassCounts, Shaped, Shaper, Snapshot};

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
    /// Frames whose wait the end of weir, or a hang, has cut short.
    flushed: u64,
    /// Classes of what leaves; none without a scheduler.
    classes: Vec<Class>,
}

#[derive(Serialize)]
struct Class {
    name: String,
    frames: u64,
    bytes: u64,
    marked: u64,
    dropped: u64,
    dropped_bytes: u64,
    waiting: u32,
    waiting_bytes: u64,
}

/// The queues of what leaves a link.
#[derive(Serialize)]
pub(crate) struct Queues {
    /// Frames whose wait the end of weir has cut short.
    flushed: u64,
    classes: Vec<Class>,
}

impl Queues {
    pub(crate) fn of<B: Shaped>(shaper: &Shaper<B>) -> Queues {
        let classes = shaper.classes();
        Queues {
            flushed: shaper.flushed(),
            classes: classes
                .map(|(name, counts)| Class::new(name, &counts))
                .collect(),
        }
    }
}

impl Class {
    fn new(name: &str, counts: &ClassCounts) -> Class {
        Class {
            name: name.to_owned(),
            frames: counts.frames,
            bytes: counts.bytes,
            marked: counts.marked,
            dropped: counts.dropped,
            dropped_bytes: counts.dropped_bytes,
            waiting: counts.waiting,
            waiting_bytes: counts.waiting_bytes,
        }
    }
}

impl Report {
    pub(super) fn new(view: &Snapshot<'_>) -> Report {
        let links = view.names.iter().zip(view.tap.links()).zip(view.shapers);
        let links = links.map(|((name, link), shaper)| {
            let counts = view.tap.link_counts(link);
            let decided = view.switch.counts(link.number());
            let queues = shaper.as_ref().map(Queues::of);
            let (flushed, classes) =
                queues.map_or((0, Vec::new()), |queues| (queues.flushed, queues.classes));
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
                flushed,
                classes,
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
        |l| l.stale + l.flushed,
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

type ClassMetric = (&'static str, &'static str, &'static str, fn(&Class) -> u64);

/// Counters of each class of what leaves a link.
const BY_CLASS: [ClassMetric; 7] = [
    ("class_frames_total", "counter", "Frames that left.", |c| {
        c.frames
    }),
    ("class_bytes_total", "counter", "Bytes that left.", |c| {
        c.bytes
    }),
    (
        "class_marked_total",
        "counter",
        "Frames marked with CE.",
        |c| c.marked,
    ),
    (
        "class_dropped_total",
        "counter",
        "Frames dropped by the queue.",
        |c| c.dropped,
    ),
    (
        "class_dropped_bytes_total",
        "counter",
        "Bytes of those.",
        |c| c.dropped_bytes,
    ),
    ("class_waiting", "gauge", "Frames that wait.", |c| {
        c.waiting.into()
    }),
    ("class_waiting_bytes", "gauge", "Bytes of those.", |c| {
        c.waiting_bytes
    }),
];

impl Report {
    /// The metrics.
    pub(super) fn prometheus(&self) -> Exposition {
        let mut out = Exposition::new("weir_shape_");
        let links = self.links.iter().map(|link| (&*link.name, link));
        out.of_links(links, &BY_LINK);
        for (name, kind, help, value) in BY_CLASS {
            let mut rows = Vec::new();
            for link in &self.links {
                for class in &link.classes {
                    let of = labels(&[("link", &link.name), ("class", &class.name)]);
                    rows.push((of, value(class)));
                }
            }
            out.metric(name, kind, help, &rows);
        }
        let hung = "Times that weir was found hung.";
        out.one("hung_total", "counter", hung, self.hung);
        let died = "Times that weir was found dead.";
        out.one("died_total", "counter", died, self.died);
        out
    }
}
