//! The report of a chain: as JSON, and as metrics.

use crate::cmd::forwarder::Shown;
use crate::cmd::meter::forwarding::View;
use crate::report::flow_cache::FlowCacheReport;
use crate::report::metrics::{CounterOf, Exposition, label, labels};
use crate::report::queues::{self, Queues};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use weir_apps::router::Snapshot;
use weir_chain::Chain;

/// The reported values at one time.
#[derive(Serialize)]
pub(super) struct Report {
    links: Vec<Link>,
    stages: Vec<Stage>,
    forwarded_v4: u64,
    forwarded_v6: u64,
    icmp_errors: u64,
    neighbours: usize,
    /// Number of times that weir was found hung.
    hung: u64,
    drops: BTreeMap<&'static str, u64>,
    /// The frames that the kernel treated by itself, which no other count has.
    flow_cache: Option<FlowCacheReport>,
    /// The meter's counter, as `weir meter --stats-json` shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    meter: Option<View>,
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
    /// The queues of what leaves, if the link has a scheduler.
    queues: Option<Queues>,
}

#[derive(Serialize)]
struct Stage {
    kind: &'static str,
    outward: u64,
    inward: u64,
    drops: BTreeMap<&'static str, u64>,
    counters: BTreeMap<&'static str, u64>,
}

impl Report {
    /// That of this view, without the meter.
    pub(super) fn new(view: &Snapshot<'_>) -> Report {
        let counters = view.router.counters();
        let links = view.names.iter().zip(view.tap.links());
        let stages = view.chain.into_iter().flat_map(Chain::stages);
        Report {
            links: links
                .map(|(name, link)| {
                    let shaper = view.shapers.get(link.number());
                    let counts = view.tap.link_counts(link);
                    Link {
                        name: name.clone(),
                        rx_frames: counts.rx_frames,
                        rx_bytes: counts.rx_bytes,
                        tx_frames: counts.tx_frames,
                        tx_bytes: counts.tx_bytes,
                        bypassed: counts.bypassed,
                        stale: counts.stale,
                        queues: shaper.and_then(Option::as_ref).map(Queues::of),
                    }
                })
                .collect(),
            stages: stages
                .map(|(stage, counts)| {
                    let mut own = BTreeMap::new();
                    stage.counters(&mut |name, value| _ = own.insert(name, value));
                    Stage {
                        kind: stage.kind(),
                        outward: counts.packets[0],
                        inward: counts.packets[1],
                        drops: counts.drops.iter().copied().collect(),
                        counters: own,
                    }
                })
                .collect(),
            forwarded_v4: counters.forwarded_v4,
            forwarded_v6: counters.forwarded_v6,
            icmp_errors: counters.icmp_errors,
            neighbours: view.router.neighbours(),
            hung: view.tap.counts().hung,
            drops: view.dropped().filter(|(_, count)| *count > 0).collect(),
            flow_cache: view.tap.flow_cache_stats().map(|fast| fast.counts().into()),
            meter: None,
        }
    }
}

impl Report {
    /// With the counter's state, if there is one.
    pub(super) fn with_meter(self, meter: Option<&Arc<Mutex<View>>>) -> Report {
        let view = meter.map(|view| view.lock().unwrap_or_else(PoisonError::into_inner).clone());
        Report {
            meter: view,
            ..self
        }
    }
}

/// Counters of each link.
const BY_LINK: [CounterOf<Link>; 6] = [
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
        |l| l.stale + l.queues.as_ref().map_or(0, |queues| queues.flushed),
    ),
];

impl Shown for Report {
    fn exposition(&self) -> Exposition {
        let mut out = Exposition::new("weir_run_");
        let links = self.links.iter().map(|link| (&*link.name, link));
        out.of_links(links, &BY_LINK);
        let links = self.links.iter();
        queues::metrics(
            &mut out,
            links.filter_map(|link| Some((&*link.name, link.queues.as_ref()?))),
        );
        let forwarded = [("4", self.forwarded_v4), ("6", self.forwarded_v6)];
        let forwarded = forwarded.map(|(family, count)| (label("family", family), count));
        out.metric(
            "forwarded_total",
            "counter",
            "Packets forwarded.",
            &forwarded,
        );
        let dropped = self.drops.iter();
        let dropped: Vec<_> = dropped
            .map(|(reason, count)| (label("reason", reason), *count))
            .collect();
        let help = "Frames that the router let go no further.";
        out.metric("dropped_total", "counter", help, &dropped);
        let help = "ICMP errors sent.";
        out.one("icmp_errors_total", "counter", help, self.icmp_errors);
        let help = "Neighbours known.";
        out.one("neighbours", "gauge", help, self.neighbours as u64);
        let help = "Times that weir was found hung.";
        out.one("hung_total", "counter", help, self.hung);
        if let Some(fast) = &self.flow_cache {
            let help = "Frames that the kernel treated by itself, which no other metric has.";
            out.one("fast_frames_total", "counter", help, fast.frames);
            let help = "Flows that the kernel treats by itself.";
            out.one("fast_entries", "gauge", help, fast.entries);
        }
        self.of_stages(&mut out);
        out
    }
}

impl Report {
    /// Packets and drops of each stage, and what it counts itself.
    fn of_stages(&self, out: &mut Exposition) {
        let (mut packets, mut dropped) = (Vec::new(), Vec::new());
        // By name; of each the rows of stages that have it.
        let mut own: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
        for (number, stage) in self.stages.iter().enumerate() {
            let number = number.to_string();
            let of = [("stage", &*number), ("kind", stage.kind)];
            for (direction, count) in [("outward", stage.outward), ("inward", stage.inward)] {
                let direction = [of[0], of[1], ("direction", direction)];
                packets.push((labels(&direction), count));
            }
            for (reason, count) in &stage.drops {
                let reason = [of[0], of[1], ("reason", reason)];
                dropped.push((labels(&reason), *count));
            }
            for (name, value) in &stage.counters {
                let name = format!("{}_{}", stage.kind, name.replace('-', "_"));
                let rows = own.entry(name).or_default();
                rows.push((label("stage", &number), *value));
            }
        }
        let help = "Packets that came to a stage; stages are numbered from the inside, from 0.";
        out.metric("stage_packets_total", "counter", help, &packets);
        let help = "Packets that a stage dropped.";
        out.metric("stage_dropped_total", "counter", help, &dropped);
        for (name, rows) in own {
            let help = "What the stage counts: docs/reference/box.md.";
            out.metric(&name, "untyped", help, &rows);
        }
    }
}
