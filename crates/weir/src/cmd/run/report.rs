//! The report of a chain, as JSON.

use crate::cmd::shape::report::Queues;
use crate::report::flow_cache::FlowCacheReport;
use serde::Serialize;
use std::collections::BTreeMap;
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
}

#[derive(Serialize)]
struct Link {
    name: String,
    rx_frames: u64,
    rx_bytes: u64,
    tx_frames: u64,
    tx_bytes: u64,
    bypassed: u64,
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
        }
    }
}
