//! The report of a bridge: traffic and cost.

use crate::cmd::forwarder::Shown;
use crate::report::flow_cache::FlowCacheReport;
use crate::report::metrics::{CounterOf, Exposition, label};
use crate::report::tx_burst::{TxBurstMode, TxBurstReport};
use serde::Serialize;
use std::fmt;
use weir_tap::switch::Switch;
use weir_tap::{ChunkCounts, CopyMode, Tap};

/// The report, in its JSON form.
#[derive(Serialize, Default, Debug)]
pub(super) struct Report {
    links: Vec<Link>,
    /// Frames received, and frames sent.
    frames: u64,
    /// Copies of each frame: by the kernel to and from the UMEM, and by weir.
    copies_per_frame_kernel: u32,
    copies_per_frame_user: f64,
    calls_per_frame: f64,
    /// Frames sent in bursts.
    bulk_frames: u64,
    /// Number of bursts that the kernel delayed.
    bulk_held_up: u64,
    calls_tx: u64,
    calls_rx: u64,
    calls_wait: u64,
    hung: u64,
    died: u64,
    stations: usize,
    chunks_free: u32,
    chunks: u32,
    fast: Option<FlowCacheReport>,
}

#[derive(Serialize, Default, Debug)]
struct Link {
    name: String,
    mode: String,
    hook: String,
    bulk: TxBurstReport,
    rx_frames: u64,
    rx_bytes: u64,
    tx_frames: u64,
    tx_bytes: u64,
    fast_rx_frames: u64,
    fast_rx_bytes: u64,
    fast_tx_frames: u64,
    fast_tx_bytes: u64,
    bypassed: u64,
    stale: u64,
    late: u64,
    no_room: u64,
    /// Frames longer than the link can send.
    tx_too_long: u64,
    rx_full: u64,
    rx_dropped: u64,
    completed_checksums: u64,
    invalid: u64,
    forwarded: u64,
    flooded: u64,
    dropped_local: u64,
    dropped_vlan: u64,
    dropped_reserved: u64,
    dropped_malformed: u64,
    stations_learned: u64,
    stations_moved: u64,
    stations_evicted: u64,
}

impl Report {
    /// The present state.
    pub(super) fn of(tap: &Tap, switch: &Switch, now: u32, bulk: TxBurstMode) -> Report {
        let mut copies = 0;
        let links: Vec<Link> = tap
            .links()
            .map(|id| {
                let (carried, decided) = (tap.link_counts(id), switch.counts(id.number()));
                let mode = tap.mode(id);
                let fast = tap
                    .flow_cache_stats()
                    .map(|fast| fast.link_carried(id.number()));
                let (fast_rx, fast_tx) = fast.unwrap_or_default();
                copies += u32::from(mode.is_some_and(|(mode, _)| mode == CopyMode::Copy));
                Link {
                    name: tap
                        .interface(id)
                        .map(|i| i.name.clone())
                        .unwrap_or_default(),
                    mode: mode.map(|(mode, _)| mode.to_string()).unwrap_or_default(),
                    hook: mode.map(|(_, hook)| hook.to_string()).unwrap_or_default(),
                    bulk: TxBurstReport::of(tap, id, bulk),
                    rx_frames: carried.rx_frames,
                    rx_bytes: carried.rx_bytes,
                    tx_frames: carried.tx_frames,
                    tx_bytes: carried.tx_bytes,
                    fast_rx_frames: fast_rx.frames,
                    fast_rx_bytes: fast_rx.bytes,
                    fast_tx_frames: fast_tx.frames,
                    fast_tx_bytes: fast_tx.bytes,
                    bypassed: carried.bypassed,
                    stale: carried.stale,
                    late: carried.overtaken,
                    no_room: carried.tx_ring_full,
                    tx_too_long: carried.tx_too_long,
                    rx_full: carried.rx_full,
                    rx_dropped: carried.rx_dropped,
                    completed_checksums: carried.checksums_completed,
                    invalid: carried.invalid,
                    forwarded: decided.forwarded,
                    flooded: decided.flooded,
                    dropped_local: decided.local,
                    dropped_vlan: decided.vlan,
                    dropped_reserved: decided.reserved,
                    dropped_malformed: decided.malformed,
                    stations_learned: decided.learned,
                    stations_moved: decided.moved,
                    stations_evicted: decided.evicted,
                }
            })
            .collect();
        let (counts, census) = (tap.counts(), tap.census());
        let frames: u64 = links.iter().map(|link| link.rx_frames).sum();
        let calls = counts.syscalls_tx + counts.syscalls_rx + counts.syscalls_wait;
        let per_frame = |count: u64| match frames {
            0 => 0.0,
            frames => count as f64 / frames as f64,
        };
        Report {
            frames,
            copies_per_frame_kernel: copies,
            copies_per_frame_user: per_frame(counts.burst_frames),
            calls_per_frame: per_frame(calls),
            bulk_frames: counts.burst_frames,
            bulk_held_up: counts.burst_stalls,
            calls_tx: counts.syscalls_tx,
            calls_rx: counts.syscalls_rx,
            calls_wait: counts.syscalls_wait,
            hung: counts.hung,
            died: counts.died,
            stations: switch.stations(now),
            chunks_free: census.free,
            chunks: census.total(),
            fast: tap.flow_cache_stats().map(|fast| fast.counts().into()),
            links,
        }
    }

    /// Adds the chunk counts at the end: every chunk is free or has leaked.
    pub(super) fn end(&mut self, census: &ChunkCounts) {
        (self.chunks_free, self.chunks) = (census.free, census.total());
    }

    /// Whether nothing was reported yet.
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
}

/// Counters of each link.
const BY_LINK: [CounterOf<Link>; 12] = [
    ("rx_frames_total", "Frames received.", |l| l.rx_frames),
    ("rx_bytes_total", "Bytes received.", |l| l.rx_bytes),
    ("tx_frames_total", "Frames sent.", |l| l.tx_frames),
    ("tx_bytes_total", "Bytes sent.", |l| l.tx_bytes),
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
    ("bypassed_total", "Frames that took the bypass.", |l| {
        l.bypassed
    }),
    (
        "stale_total",
        "Frames too old to be sent, after a hang.",
        |l| l.stale,
    ),
    ("late_total", "Frames overtaken by the bypass.", |l| l.late),
    (
        "forwarded_total",
        "Frames to a known station, by the link that they came in at.",
        |l| l.forwarded,
    ),
    (
        "flooded_total",
        "Frames to an unknown or group address, by the link that they came in at.",
        |l| l.flooded,
    ),
];

type Reason = (&'static str, fn(&Link) -> u64);

/// Why a bridge drops a frame.
const DROPPED: [Reason; 4] = [
    ("local", |l| l.dropped_local),
    ("vlan", |l| l.dropped_vlan),
    ("reserved", |l| l.dropped_reserved),
    ("malformed", |l| l.dropped_malformed),
];

impl Shown for Report {
    fn exposition(&self) -> Exposition {
        let mut out = Exposition::new("weir_bridge_");
        let links = self.links.iter().map(|link| (&*link.name, link));
        out.of_links(links, &BY_LINK);
        let dropped = DROPPED.map(|(reason, value)| {
            let count = self.links.iter().map(value).sum();
            (label("reason", reason), count)
        });
        let help = "Frames that went no further, by decision of the bridge.";
        out.metric("dropped_total", "counter", help, &dropped);
        let hung = "Times that weir was found hung.";
        out.one("hung_total", "counter", hung, self.hung);
        let died = "Times that weir was found dead.";
        out.one("died_total", "counter", died, self.died);
        if let Some(fast) = &self.fast {
            let help = "Frames that the kernel forwarded by itself.";
            out.one("fast_frames_total", "counter", help, fast.frames);
        }
        let stations = "Stations in the table.";
        out.one("stations", "gauge", stations, self.stations as u64);
        out
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for link in &self.links {
            let sent_not = link.no_room + link.tx_too_long;
            let lost = link.rx_full + link.rx_dropped + sent_not + link.stale;
            writeln!(
                f,
                "{}: {} frames in, {} out, {} lost, {} past weir ({} at {}{})",
                link.name,
                link.rx_frames,
                link.tx_frames,
                lost,
                link.bypassed,
                link.mode,
                link.hook,
                link.bulk,
            )?;
        }
        if self.frames == 0 {
            writeln!(f, "no frame: {} calls to wait", self.calls_wait)?;
        } else {
            let per_frame = |count: u64| count as f64 / self.frames as f64;
            writeln!(
                f,
                "each frame: {} copies by the kernel, {} by weir; {:.3} calls to send, {:.3} to \
                 receive, {:.3} to wait",
                self.copies_per_frame_kernel,
                (self.copies_per_frame_user * 1e3).round() / 1e3,
                per_frame(self.calls_tx),
                per_frame(self.calls_rx),
                per_frame(self.calls_wait),
            )?;
        }
        if let Some(fast) = &self.fast {
            writeln!(f, "{fast}")?;
        }
        write!(
            f,
            "hung {} times, died {}; {} stations",
            self.hung, self.died, self.stations
        )
    }
}
