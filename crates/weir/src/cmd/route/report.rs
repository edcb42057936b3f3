//! The report of a router: as a line of text, as JSON, for Prometheus.

use crate::cmd::forwarder::Shown;
use crate::report::flow_cache::FlowCacheReport;
use crate::report::format;
use crate::report::metrics::{CounterOf, Exposition, label};
use crate::report::tx_burst::{TxBurstMode, TxBurstReport};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;
use weir_apps::router::Snapshot;

/// The reported values at one time.
#[derive(Serialize, Clone)]
pub(super) struct Report {
    links: Vec<Link>,
    forwarded_v4: u64,
    forwarded_v6: u64,
    fragmented: u64,
    fragments: u64,
    echoes: u64,
    neighbours_answered: u64,
    neighbours_asked: u64,
    icmp_errors: u64,
    redirects: u64,
    neighbours: usize,
    routes_v4: usize,
    routes_v6: usize,
    /// Kernel routes that are not used: by other interfaces, or because the
    /// table is full.
    routes_elsewhere: u64,
    routes_refused: u64,
    /// Frames sent in bursts.
    bulk_frames: u64,
    /// Number of bursts that the kernel delayed.
    bulk_held_up: u64,
    /// System calls to send, to receive, to sleep.
    calls_tx: u64,
    calls_rx: u64,
    calls_wait: u64,
    /// Number of times that weir was found hung.
    hung: u64,
    drops: BTreeMap<&'static str, u64>,
    fast: Option<FlowCacheReport>,
}

#[derive(Serialize, Clone)]
struct Link {
    name: String,
    bulk: TxBurstReport,
    rx_frames: u64,
    rx_bytes: u64,
    tx_frames: u64,
    tx_bytes: u64,
    /// Frames that the kernel dropped before weir saw them.
    rx_full: u64,
    bypassed: u64,
    /// Frames for the router itself that were passed to the host.
    to_host: u64,
    stale: u64,
    late: u64,
    /// Size of the longest packet that the router now sends here, in bytes.
    mtu: usize,
    /// Frames longer than the link can send.
    tx_too_long: u64,
}

impl Report {
    pub(super) fn new(view: &Snapshot<'_>, bulk: TxBurstMode) -> Report {
        let counters = view.router.counters();
        let links = view.names.iter().zip(&counters.links).zip(view.tap.links());
        let links = links.map(|((name, counts), link)| {
            let tapped = view.tap.link_counts(link);
            Link {
                name: name.clone(),
                bulk: TxBurstReport::of(view.tap, link, bulk),
                rx_frames: counts.rx_frames,
                rx_bytes: counts.rx_bytes,
                tx_frames: counts.tx_frames,
                tx_bytes: counts.tx_bytes,
                rx_full: tapped.rx_full,
                bypassed: tapped.bypassed,
                to_host: tapped.to_host,
                stale: tapped.stale,
                late: tapped.overtaken,
                mtu: view.router.link(link.number() as u16).1,
                tx_too_long: tapped.tx_too_long,
            }
        });
        let (routes_v4, routes_v6) = view.router.routes().len();
        let calls = view.tap.counts();
        Report {
            links: links.collect(),
            forwarded_v4: counters.forwarded_v4,
            forwarded_v6: counters.forwarded_v6,
            fragmented: counters.fragmented,
            fragments: counters.fragments,
            echoes: counters.echoes,
            neighbours_answered: counters.neighbours_answered,
            neighbours_asked: counters.neighbours_asked,
            icmp_errors: counters.icmp_errors,
            redirects: counters.redirects,
            neighbours: view.router.neighbours(),
            routes_v4,
            routes_v6,
            routes_elsewhere: view.skipped.0,
            routes_refused: view.skipped.1,
            bulk_frames: calls.burst_frames,
            bulk_held_up: calls.burst_stalls,
            calls_tx: calls.syscalls_tx,
            calls_rx: calls.syscalls_rx,
            calls_wait: calls.syscalls_wait,
            hung: calls.hung,
            drops: view.dropped().collect(),
            fast: view.tap.flow_cache_stats().map(|fast| fast.counts().into()),
        }
    }

    /// A line of the differences to `before`.
    pub(super) fn line(&self, before: &Report, time: Duration) -> String {
        let since = |value: fn(&Report) -> u64| value(self).saturating_sub(value(before));
        let rate = |count: u64| format::grouped((count as f64 / time.as_secs_f64()) as u64);
        let rx = |report: &Report| report.links.iter().map(|link| link.rx_frames).sum();
        let tx = |report: &Report| report.links.iter().map(|link| link.tx_frames).sum();
        let received = since(rx);
        let calls = since(|report| report.calls_tx + report.calls_rx + report.calls_wait);
        let calls = match received {
            0 => format!("{calls} calls"),
            frames => format!("{:.3} calls a frame", calls as f64 / frames as f64),
        };
        let mut line = format!(
            "{} frames/s in, {} out; {calls}; {} neighbours; {} + {} routes",
            rate(received),
            rate(since(tx)),
            self.neighbours,
            self.routes_v4,
            self.routes_v6,
        );
        if self.fast.is_some() {
            let by = since(|report| report.fast.map_or(0, |fast| fast.frames));
            let _ = write!(line, "; {} frames/s by the kernel", rate(by));
        }
        for link in self.links.iter().filter(|link| link.bulk.is_refused()) {
            let _ = write!(line, "; {} not in bulk", link.name);
        }
        if self.bulk_frames > 0 {
            let by = since(|report| report.bulk_frames);
            let _ = write!(line, "; {} frames/s in bulk", rate(by));
        }
        let full = since(|report| report.links.iter().map(|link| link.rx_full).sum());
        let lost = self.drops.iter().filter_map(|(name, count)| {
            let more = count - before.drops.get(name).unwrap_or(&0);
            (more > 0).then_some((*name, more))
        });
        for (name, count) in lost.chain((full > 0).then_some(("rx_full", full))) {
            let _ = write!(line, "; {name} {}", format::grouped(count));
        }
        line
    }
}

impl Shown for Report {
    fn exposition(&self) -> Exposition {
        let mut out = Exposition::new("weir_route_");
        let by_link: [CounterOf<Link>; 10] = [
            ("rx_frames_total", "Frames received.", |l| l.rx_frames),
            ("rx_bytes_total", "Bytes received.", |l| l.rx_bytes),
            ("tx_frames_total", "Frames sent.", |l| l.tx_frames),
            ("tx_bytes_total", "Bytes sent.", |l| l.tx_bytes),
            (
                "rx_full_total",
                "Frames dropped before weir saw them.",
                |l| l.rx_full,
            ),
            ("bypassed_total", "Frames that took the bypass.", |l| {
                l.bypassed
            }),
            ("to_host_total", "Frames left to the host.", |l| l.to_host),
            ("stale_total", "Frames too old to be routed.", |l| l.stale),
            (
                "late_total",
                "Frames that were being sent while the bypass began.",
                |l| l.late,
            ),
            (
                "tx_too_long_total",
                "Frames that were longer than the link can send.",
                |l| l.tx_too_long,
            ),
        ];
        let links = self.links.iter().map(|link| (&*link.name, link));
        out.of_links(links, &by_link);
        let mut metric = |name: &str, kind: &str, help: &str, rows: &[(String, u64)]| {
            out.metric(name, kind, help, rows);
        };
        let family = |v: u8| label("family", &format!("ipv{v}"));
        metric(
            "forwarded_total",
            "counter",
            "Packets forwarded.",
            &[
                (family(4), self.forwarded_v4),
                (family(6), self.forwarded_v6),
            ],
        );
        metric(
            "routes",
            "gauge",
            "Prefixes known.",
            &[
                (family(4), self.routes_v4 as u64),
                (family(6), self.routes_v6 as u64),
            ],
        );
        let alone = |value| [(String::new(), value)];
        for (name, help, value) in [
            (
                "fragmented_total",
                "Packets cut into fragments.",
                self.fragmented,
            ),
            (
                "fragments_total",
                "Fragments they were cut into.",
                self.fragments,
            ),
            ("echoes_total", "Echo requests answered.", self.echoes),
            ("icmp_errors_total", "ICMP errors sent.", self.icmp_errors),
            ("redirects_total", "Redirects sent.", self.redirects),
            (
                "neighbours_answered_total",
                "ARP requests and solicitations answered.",
                self.neighbours_answered,
            ),
            (
                "neighbours_asked_total",
                "Neighbours asked for.",
                self.neighbours_asked,
            ),
            ("hung_total", "Times that weir was found hung.", self.hung),
            (
                "bulk_frames_total",
                "Frames sent many at once.",
                self.bulk_frames,
            ),
            (
                "bulk_held_up_total",
                "Times that the kernel held up such a call.",
                self.bulk_held_up,
            ),
            ("calls_tx_total", "System calls to send.", self.calls_tx),
            ("calls_rx_total", "System calls to receive.", self.calls_rx),
            (
                "calls_wait_total",
                "System calls to sleep.",
                self.calls_wait,
            ),
        ] {
            metric(name, "counter", help, &alone(value));
        }
        if let Some(fast) = &self.fast {
            let help = "Frames that the kernel forwarded by itself.";
            metric("fast_frames_total", "counter", help, &alone(fast.frames));
        }
        metric(
            "neighbours",
            "gauge",
            "Neighbours known or asked for.",
            &alone(self.neighbours as u64),
        );
        let drops = self.drops.iter();
        let drops: Vec<(String, u64)> = drops
            .map(|(reason, count)| (label("reason", reason), *count))
            .collect();
        metric(
            "dropped_total",
            "counter",
            "Frames that went no further.",
            &drops,
        );
        out
    }
}
