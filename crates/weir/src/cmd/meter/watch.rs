//! A running counter's `--metrics` and `--stats-json`.

use super::Args;
use super::counter::View;
use crate::error::CliError;
use crate::report::metrics::{Exposition, Metrics, label};
use crate::report::stats_file::StatsFile;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval of reports.
const INTERVAL: Duration = Duration::from_secs(1);

/// Who is shown what a counter does.
pub(super) struct Watchers {
    metrics: Option<Metrics>,
    json: Option<StatsFile>,
    beside: Option<Arc<Mutex<View>>>,
    shown: Option<Instant>,
}

impl Watchers {
    /// `metrics` is where they are served, if they are.
    pub(super) fn new(args: &Args, metrics: Option<Metrics>) -> Result<Watchers, CliError> {
        let json = args.stats_json.as_deref().map(StatsFile::open);
        Ok(Watchers {
            metrics,
            json: json.transpose()?,
            beside: None,
            shown: None,
        })
    }

    /// Shows it there as well, for another thread.
    pub(super) fn and_to(self, beside: &Arc<Mutex<View>>) -> Watchers {
        Watchers {
            beside: Some(beside.clone()),
            ..self
        }
    }

    /// Shows it once a second.
    pub(super) fn show(&mut self, view: impl FnOnce() -> View) {
        let is_wanted = self.metrics.is_some() || self.json.is_some() || self.beside.is_some();
        if !is_wanted || self.shown.is_some_and(|at| at.elapsed() < INTERVAL) {
            return;
        }
        self.shown = Some(Instant::now());
        let view = view();
        if let Some(metrics) = &self.metrics {
            metrics.show(prometheus(&view));
        }
        self.put(&view);
        if let Some(json) = &mut self.json {
            // A full disk, or a reader that has gone: the next report may succeed.
            let _ = json.write(&view);
        }
    }

    /// Shows the end.
    pub(super) fn end(self, view: &View) -> Result<(), CliError> {
        self.put(view);
        match self.json {
            Some(json) => json.end(view),
            None => Ok(()),
        }
    }

    fn put(&self, view: &View) {
        if let Some(beside) = &self.beside {
            *beside.lock().unwrap_or_else(PoisonError::into_inner) = view.clone();
        }
    }
}

fn prometheus(view: &View) -> Exposition {
    let mut out = Exposition::new("weir_meter_");
    let done = &view.done;
    let directions = |counts: [u64; 2]| {
        let names = ["up", "down"].map(|name| label("direction", name));
        names.into_iter().zip(counts).collect::<Vec<_>>()
    };
    out.metric(
        "packets_total",
        "counter",
        "Packets of periods whose records are durable.",
        &directions(done.link.packets),
    );
    out.metric(
        "bytes_total",
        "counter",
        "Bytes of periods whose records are durable.",
        &directions(done.link.bytes),
    );
    let durable_s = view.durable_until_unix_ns.max(0).cast_unsigned() / 1_000_000_000;
    for (name, kind, help, value) in [
        (
            "periods_total",
            "counter",
            "Periods whose records are durable.",
            done.periods,
        ),
        ("records_total", "counter", "Their records.", done.records),
        (
            "sessions",
            "gauge",
            "Sessions that run.",
            view.sessions as u64,
        ),
        (
            "capacity",
            "gauge",
            "Sessions for which there is room.",
            view.capacity.into(),
        ),
        (
            "memory_bytes",
            "gauge",
            "Bytes of the counters in the kernel.",
            view.memory_bytes,
        ),
        (
            "chunks_waiting",
            "gauge",
            "Chunks in the spool, which no ledger has acknowledged.",
            view.chunks_waiting,
        ),
        (
            "durable_until_seconds",
            "gauge",
            "Unix time until which records are durable.",
            durable_s,
        ),
        (
            "cut_microseconds",
            "gauge",
            "Time from the end of the last period until it was durable and delivered.",
            view.cut_us,
        ),
        (
            "cut_durable_microseconds",
            "gauge",
            "Time from the end of the last period until its records were durable.",
            view.durable_us,
        ),
    ] {
        out.one(name, kind, help, value);
    }
    if let Some(lost) = view.lost_inside {
        out.one(
            "lost_inside_total",
            "counter",
            "Frames that were counted, and then lost by this process.",
            lost,
        );
    }
    let alarms: Vec<_> = view
        .alarms
        .iter()
        .map(|source| (label("source", source), 1))
        .collect();
    out.metric("alarm", "gauge", "What does not work now.", &alarms);
    if let Some(radius) = &done.radius {
        out.one(
            "radius_answered_total",
            "counter",
            "RADIUS requests answered.",
            radius.answered,
        );
        let refused = [
            ("unknown_client", radius.unknown_clients),
            ("bad_authenticator", radius.bad_authenticators),
            ("malformed", radius.malformed),
            ("too_many_sessions", radius.too_many_sessions),
            ("not_durable", radius.not_durable),
        ];
        let refused = refused.map(|(reason, count)| (label("reason", reason), count));
        out.metric(
            "radius_unanswered_total",
            "counter",
            "RADIUS packets not answered.",
            &refused,
        );
    }
    if let Some(requests) = &done.quota_requests {
        let answers = [
            ("ack", requests.ack),
            ("nak", requests.nak),
            ("none", requests.none),
            ("unsent", requests.unsent),
        ];
        let answers = answers.map(|(answer, count)| (label("answer", answer), count));
        out.metric(
            "quota_requests_total",
            "counter",
            "Requests to access servers when quotas were spent.",
            &answers,
        );
    }
    out
}
