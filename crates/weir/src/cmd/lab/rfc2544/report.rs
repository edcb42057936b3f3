//! The report: all candidates, and ratios to the first.

use super::Args;
use crate::report::format;
use crate::report::format::Column::{self, Left, Right};
use serde::Serialize;
use std::time::Duration;
use weir_lab::rfc2544::{BackToBack, Latency, LossPoint, Setup, Throughput};

/// The results of one round of one candidate at one size.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) throughput: Option<Throughput>,
    pub(super) latency: Option<Latency>,
    pub(super) loss: Vec<LossPoint>,
    pub(super) back_to_back: Option<BackToBack>,
    /// The failures of the round.
    pub(super) troubles: Vec<String>,
}

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    sink: String,
    seed: u64,
    cpu_sender: usize,
    cpu_dut: usize,
    realtime: bool,
    both_ways: bool,
    trial_s: f64,
    confirm_s: f64,
    settle_s: f64,
    resolution_percent: f64,
    attempts: u32,
    rounds: u32,
    pub(super) names: Vec<String>,
    pub(crate) results: Vec<SizeResult>,
}

/// The results of one candidate at one size: the medians of its rounds.
#[derive(Debug, Serialize)]
pub(crate) struct SizeResult {
    /// Index of the candidate's name.
    #[serde(skip)]
    pub(crate) index: usize,
    pub(super) name: String,
    /// Frame size in bytes, FCS included.
    pub(crate) size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) throughput: Option<Rates>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Times>,
    /// The loss curve of the last round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) loss: Vec<Point>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) back_to_back: Option<Burst>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) faults: Vec<String>,
    #[serde(skip)]
    rounds: Vec<Round>,
}

/// Frames per second without loss.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    /// The median of the rounds; `None` if there is no such rate.
    pub(super) frames_per_second: Option<f64>,
    /// Bits per second on a wire: with FCS, preamble and gap.
    pub(super) line_bits_per_second: Option<f64>,
    least: Option<f64>,
    most: Option<f64>,
    /// Whether the sender set the limit.
    pub(super) limited_by_sender: bool,
}

/// Latencies in nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct Times {
    frames_per_second: f64,
    timed: usize,
    lost: u64,
    min_ns: u64,
    pub(super) p50_ns: u64,
    p90_ns: u64,
    pub(super) p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

/// A point of the loss curve.
#[derive(Debug, Serialize)]
pub(super) struct Point {
    pub(super) frames_per_second: f64,
    pub(super) lost_percent: f64,
}

/// The longest burst without loss.
#[derive(Debug, Serialize)]
pub(super) struct Burst {
    frames: f64,
    frames_min: u64,
    frames_max: u64,
    frames_per_second: f64,
    no_end: bool,
}

impl SizeResult {
    /// Whether the throughput was measured.
    pub(super) fn has_throughput(&self) -> bool {
        self.throughput.is_some()
    }

    /// Frames per second without loss.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.throughput.as_ref()?.frames_per_second
    }

    /// The median latency.
    pub(crate) fn median_ns(&self) -> Option<u64> {
        Some(self.latency.as_ref()?.p50_ns)
    }
}

impl Report {
    pub(super) fn new(args: &Args, setup: &Setup, names: Vec<String>) -> Report {
        Report {
            sink: setup.sink.to_string(),
            seed: setup.seed,
            cpu_sender: setup.cpus.tester,
            cpu_dut: setup.cpus.dut,
            realtime: args.realtime,
            both_ways: setup.both_ways,
            trial_s: args.duration.as_secs_f64(),
            confirm_s: args.confirm.as_secs_f64(),
            settle_s: args.settle.as_secs_f64(),
            resolution_percent: args.resolution,
            attempts: args.attempts,
            rounds: args.repeat,
            names,
            results: Vec::new(),
        }
    }

    /// Adds a round, and computes the medians again.
    pub(super) fn add(&mut self, index: usize, size: usize, round: Round) {
        let same = |found: &&mut SizeResult| found.index == index && found.size == size;
        if let Some(found) = self.results.iter_mut().find(same) {
            found.rounds.push(round);
            found.update();
            return;
        }
        let mut found = SizeResult {
            index,
            name: self.names[index].clone(),
            size,
            throughput: None,
            latency: None,
            loss: Vec::new(),
            back_to_back: None,
            faults: Vec::new(),
            rounds: vec![round],
        };
        found.update();
        self.results.push(found);
    }

    /// Number of faults found.
    pub(super) fn troubles(&self) -> usize {
        self.results.iter().map(|found| found.faults.len()).sum()
    }

    /// The results of the first candidate at that size.
    fn first(&self, size: usize) -> Option<&SizeResult> {
        let mut all = self.results.iter();
        all.find(|found| found.index == 0 && found.size == size)
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let mut parts = vec![self.heading()];
        parts.extend([self.rates(), self.times(), self.losses(), self.bursts()]);
        let faults: Vec<String> = self.results.iter().flat_map(faults).collect();
        if !faults.is_empty() {
            parts.push(format!("Faults:\n{}", faults.join("\n")));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n\n")
    }

    fn heading(&self) -> String {
        let ways = if self.both_ways {
            "both ways"
        } else {
            "one way"
        };
        let priority = if self.realtime {
            ", both with real-time priority"
        } else {
            ""
        };
        format!(
            "Sink {}, {ways}, sender on CPU {}, tested programs on CPU {}{priority}; the kernel's\n\
             receiving runs on the sender's CPU. Trials of {} s, confirmed by {} s, within {} %,\n\
             {} attempts, median of {}; contents of seed {}.",
            self.sink,
            self.cpu_sender,
            self.cpu_dut,
            self.trial_s,
            self.confirm_s,
            self.resolution_percent,
            self.attempts,
            format::counted(self.rounds.into(), "round"),
            self.seed
        )
    }

    fn rates(&self) -> String {
        let columns = [Right("frames/s"), Right("Gb/s"), Right(": first"), Left("")];
        let row = |found: &SizeResult| {
            let rates = found.throughput.as_ref()?;
            let first = self.first(found.size);
            let first = first.and_then(|first| first.throughput.as_ref()?.frames_per_second);
            let ratio = rates
                .frames_per_second
                .zip(first)
                .map(|(one, first)| one / first);
            Some(vec![
                or_none(rates.frames_per_second, |rate| format::grouped(rate as u64)),
                or_none(rates.line_bits_per_second, |bits| {
                    format!("{:.2}", bits / 1e9)
                }),
                or_none(ratio, |ratio| format!("{ratio:.2}")),
                note(rates).to_owned(),
            ])
        };
        self.table("throughput of", &columns, row)
    }

    fn times(&self) -> String {
        let columns = [
            Right("at frames/s"),
            Right("p50"),
            Right("p90"),
            Right("p99"),
            Right("p99.9"),
            Right("max"),
            Right("p50 : first"),
            Right("lost"),
        ];
        let row = |found: &SizeResult| {
            let times = found.latency.as_ref()?;
            let micros = |ns: u64| format!("{:.2}", ns as f64 / 1e3);
            let first = self.first(found.size);
            let first = first.and_then(|first| Some(first.latency.as_ref()?.p50_ns));
            let ratio = first.map(|first| times.p50_ns as f64 / (first as f64).max(1.0));
            Some(vec![
                format::grouped(times.frames_per_second as u64),
                micros(times.p50_ns),
                micros(times.p90_ns),
                micros(times.p99_ns),
                micros(times.p999_ns),
                micros(times.max_ns),
                or_none(ratio, |ratio| format!("{ratio:.2}")),
                format::grouped(times.lost),
            ])
        };
        self.table("latency (µs) of", &columns, row)
    }

    fn losses(&self) -> String {
        let columns = [Left(
            "frames/s and per cent lost, from the highest rate down",
        )];
        let row = |found: &SizeResult| {
            let points = found.loss.iter().map(|point| {
                let rate = format::grouped(point.frames_per_second as u64);
                format!("{rate}: {:.2}", point.lost_percent)
            });
            let points: Vec<String> = points.collect();
            (!points.is_empty()).then(|| vec![points.join("  ")])
        };
        self.table("loss of", &columns, row)
    }

    fn bursts(&self) -> String {
        let columns = [
            Right("frames"),
            Right("least"),
            Right("most"),
            Right("at frames/s"),
            Left(""),
        ];
        let row = |found: &SizeResult| {
            let burst = found.back_to_back.as_ref()?;
            let note = if burst.no_end { "no end was met" } else { "" };
            Some(vec![
                format::grouped(burst.frames as u64),
                format::grouped(burst.frames_min),
                format::grouped(burst.frames_max),
                format::grouped(burst.frames_per_second as u64),
                note.to_owned(),
            ])
        };
        self.table("longest burst of", &columns, row)
    }

    /// A table of `what` for each frame size and candidate with results; empty
    /// if there are none.
    fn table(
        &self,
        what: &'static str,
        columns: &[Column<'_>],
        row: impl Fn(&SizeResult) -> Option<Vec<String>>,
    ) -> String {
        let whole = |found: &SizeResult| {
            let mut cells = vec![found.size.to_string(), found.name.clone()];
            cells.extend(row(found)?);
            Some(cells)
        };
        let rows: Vec<_> = self.results.iter().filter_map(whole).collect();
        let columns = [&[Right("bytes"), Left(what)], columns].concat();
        if rows.is_empty() {
            String::new()
        } else {
            format::table(&columns, rows)
        }
    }
}

fn or_none<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

fn note(rates: &Rates) -> &'static str {
    match (rates.frames_per_second, rates.limited_by_sender) {
        (None, _) => "loses frames at every rate",
        (Some(_), true) => "the sender's limit",
        (Some(_), false) => "",
    }
}

fn faults(found: &SizeResult) -> Vec<String> {
    let faults = found.faults.iter();
    faults
        .map(|fault| format!("{}, {} bytes: {fault}", found.name, found.size))
        .collect()
}

impl SizeResult {
    fn update(&mut self) {
        self.throughput = self.rates();
        self.latency = self.times();
        let last = self.rounds.last();
        let points = last.map_or(&[][..], |round| &round.loss);
        self.loss = points.iter().map(point).collect();
        self.back_to_back = last.and_then(|round| round.back_to_back.as_ref().map(burst));
        let faults = self.rounds.iter().flat_map(|round| round.troubles.clone());
        self.faults = faults.collect();
    }

    fn rates(&self) -> Option<Rates> {
        // Preamble and gap of Ethernet.
        const BETWEEN: usize = 20;
        let found = self
            .rounds
            .iter()
            .filter_map(|round| round.throughput.as_ref());
        let found: Vec<&Throughput> = found.collect();
        let mut rates: Vec<f64> = found.iter().map(|one| one.rate.unwrap_or(0.0)).collect();
        rates.sort_unstable_by(f64::total_cmp);
        let some = |rate: &f64| Some(*rate).filter(|rate| *rate > 0.0);
        let median = rates.get(rates.len() / 2)?;
        let bits = |rate| rate * ((self.size + BETWEEN) * 8) as f64;
        Some(Rates {
            frames_per_second: some(median),
            line_bits_per_second: some(median).map(bits),
            least: rates.first().and_then(some),
            most: rates.last().and_then(some),
            limited_by_sender: found.iter().any(|one| one.limited_by_sender),
        })
    }

    /// The latencies of the round whose median is the median of all rounds.
    fn times(&self) -> Option<Times> {
        let found = self
            .rounds
            .iter()
            .filter_map(|round| round.latency.as_ref());
        let mut found: Vec<&Latency> = found.collect();
        found.sort_unstable_by_key(|latency| latency.p50);
        let found = found.get(found.len() / 2)?;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Some(Times {
            frames_per_second: found.rate,
            timed: found.timed,
            lost: found.judged.lost(),
            min_ns: ns(found.min),
            p50_ns: ns(found.p50),
            p90_ns: ns(found.p90),
            p99_ns: ns(found.p99),
            p999_ns: ns(found.p999),
            max_ns: ns(found.max),
        })
    }
}

fn point(point: &LossPoint) -> Point {
    Point {
        frames_per_second: point.rate,
        lost_percent: 100.0 * point.lost(),
    }
}

fn burst(found: &BackToBack) -> Burst {
    Burst {
        frames: found.frames,
        frames_min: found.frames_min,
        frames_max: found.frames_max,
        frames_per_second: found.rate,
        no_end: found.no_end,
    }
}
