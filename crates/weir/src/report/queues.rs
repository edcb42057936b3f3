//! The queues of what leaves a link: their counts in reports and metrics.

use crate::report::metrics::{Exposition, labels};
use serde::Serialize;
use weir_apps::shape::{ClassCounts, Shaped, Shaper};

/// The queues of what leaves a link.
#[derive(Serialize, Default)]
pub(crate) struct Queues {
    /// Frames whose wait the end of weir, or a hang, has cut short.
    pub(crate) flushed: u64,
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

/// Adds the metrics of the classes of these links, which are with their names; none without a link.
pub(crate) fn metrics<'l>(
    out: &mut Exposition,
    links: impl Iterator<Item = (&'l str, &'l Queues)> + Clone,
) {
    if links.clone().next().is_none() {
        return;
    }
    for (name, kind, help, value) in BY_CLASS {
        let mut rows = Vec::new();
        for (link, queues) in links.clone() {
            for class in &queues.classes {
                let of = labels(&[("link", link), ("class", &class.name)]);
                rows.push((of, value(class)));
            }
        }
        out.metric(name, kind, help, &rows);
    }
}
