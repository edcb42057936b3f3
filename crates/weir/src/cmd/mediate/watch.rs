//! A mediator's `--metrics`.

use super::{Done, Mediator};
use crate::report::metrics::{Exposition, label};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_ledger::{LedgerError, Progress};

/// Counts for the metrics, beside what was [`Done`].
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Failures, by what fails.
    pub(super) failures: BTreeMap<String, u64>,
    /// Deliveries, by output.
    pub(super) deliveries: BTreeMap<String, u64>,
    /// Chunks that the last look left in each spool: those that the ledger refuses.
    pub(super) left: BTreeMap<String, u64>,
}

impl Mediator {
    /// The metrics of the moment.
    ///
    /// # Errors
    ///
    /// If the ledger cannot be read.
    pub(super) fn metrics(&self) -> Result<Exposition, LedgerError> {
        let progress = self.ledger.progress()?;
        let outputs = self.config.outputs.iter().map(|output| &*output.name);
        let outputs: Vec<&str> = outputs.collect();
        let mut out = Exposition::new("weir_mediate_");
        totals(&mut out, &self.done);
        ledger(&mut out, &progress);
        positions(&mut out, &progress, &outputs);
        let labelled = |name: &'static str, counts: &BTreeMap<String, u64>| -> Vec<_> {
            let rows = counts.iter();
            rows.map(|(key, count)| (label(name, key), *count))
                .collect()
        };
        out.metric(
            "output_deliveries_total",
            "counter",
            "Files written, transactions, or connections to collectors.",
            &labelled("output", &self.watched.deliveries),
        );
        out.metric(
            "chunks_left",
            "gauge",
            "Chunks that the last look left in a spool, since the ledger refuses them.",
            &labelled("spool", &self.watched.left),
        );
        out.metric(
            "failures_total",
            "counter",
            "Attempts that failed, and are made again.",
            &labelled("source", &self.watched.failures),
        );
        let alarms = self.alarms.keys();
        let alarms: Vec<_> = alarms.map(|source| (label("source", source), 1)).collect();
        out.metric("alarm", "gauge", "What does not work now.", &alarms);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        out.one(
            "last_look_seconds",
            "gauge",
            "Unix time when all counters and outputs were looked at last.",
            now.unwrap_or_default().as_secs(),
        );
        Ok(out)
    }
}

fn totals(out: &mut Exposition, done: &Done) {
    for (name, help, value) in [
        (
            "chunks_total",
            "Chunks that were new to the ledger.",
            done.chunks,
        ),
        ("records_total", "Their records.", done.records),
        (
            "known_chunks_total",
            "Chunks that the ledger had already.",
            done.known,
        ),
        (
            "refused_chunks_total",
            "Chunks that the ledger refused, counted at each look.",
            done.refused,
        ),
        (
            "filled_gaps_total",
            "Gaps of charging counters that were filled from an audit counter.",
            done.filled,
        ),
        (
            "deleted_chunks_total",
            "Chunks deleted by their age.",
            done.deleted,
        ),
    ] {
        out.one(name, "counter", help, value);
    }
}

fn ledger(out: &mut Exposition, progress: &Progress) {
    let counters = progress.counters.iter();
    let until: Vec<_> = counters
        .map(|(name, end_ns)| {
            let seconds = end_ns.max(&0).cast_unsigned() / 1_000_000_000;
            (label("counter", name), seconds)
        })
        .collect();
    out.metric(
        "counter_until_seconds",
        "gauge",
        "Unix time until which the ledger has a counter's records.",
        &until,
    );
    out.one(
        "ledger_bytes",
        "gauge",
        "Bytes of the ledger and of its write-ahead log.",
        progress.bytes,
    );
    out.one(
        "ledger_position",
        "gauge",
        "Number of the ledger's last chunk.",
        progress.last.max(0).cast_unsigned(),
    );
}

fn positions(out: &mut Exposition, progress: &Progress, outputs: &[&str]) {
    let of = |name: &str| {
        let mut outputs = progress.outputs.iter();
        let found = outputs.find(|output| output.0 == name);
        found.map_or(0, |output| output.1)
    };
    let rows = |value: &dyn Fn(i64) -> i64| -> Vec<_> {
        let rows = outputs.iter();
        rows.map(|name| {
            let value = value(of(name)).max(0).cast_unsigned();
            (label("output", name), value)
        })
        .collect()
    };
    out.metric(
        "output_position",
        "gauge",
        "Number of the last chunk that an output has had.",
        &rows(&|position| position),
    );
    out.metric(
        "output_waiting",
        "gauge",
        "Chunks that an output has not had.",
        &rows(&|position| progress.last - position),
    );
}
