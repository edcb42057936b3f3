//! The measured figures beside those of the paper.

use super::cost::Kind;
use super::paper;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use serde::Serialize;
use std::time::Duration;

/// A row of one of the paper's tables.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    table: &'static str,
    what: String,
    frame_bytes: Option<usize>,
    paper_ms: Option<f64>,
    now_ns: f64,
    /// The kernel's program alone, with the delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    program_ns: Option<f64>,
}

impl Row {
    pub(super) fn new(
        table: &'static str,
        what: &str,
        frame_bytes: Option<usize>,
        paper_ms: Option<f64>,
        now_ns: f64,
    ) -> Row {
        Row {
            table,
            what: what.to_owned(),
            frame_bytes,
            paper_ms,
            now_ns,
            program_ns: None,
        }
    }

    pub(super) fn with_program(self, program_ns: f64) -> Row {
        Row {
            program_ns: Some(program_ns),
            ..self
        }
    }
}

/// Resolution of the kernel's figures: whole nanoseconds per frame.
const RESOLUTION_NS: f64 = 1.0;

/// §6.1's line for one kind of filters.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    kind: &'static str,
    fixed_ns: f64,
    each_ns: f64,
    /// What could be chance: two standard errors of the line's slope.
    each_noise_ns: f64,
    /// The same of a point: two standard deviations from the line.
    noise_ns: f64,
    /// Filters tested, nanoseconds.
    points: Vec<(u32, f64)>,
}

impl Line {
    /// The line of least squares through these points.
    pub(super) fn new(kind: Kind, points: Vec<(u32, f64)>) -> Line {
        let count = points.len() as f64;
        let mean = |of: fn(&(u32, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0.into()), mean(|point| point.1));
        let mut products = (0.0, 0.0);
        for point in &points {
            let dx = f64::from(point.0) - x;
            products.0 += dx * (point.1 - y);
            products.1 += dx * dx;
        }
        let each_ns = match products.1 {
            0.0 => 0.0,
            squares => products.0 / squares,
        };
        let fixed_ns = y - each_ns * x;
        let off = |point: &(u32, f64)| point.1 - fixed_ns - each_ns * f64::from(point.0);
        let squares: f64 = points.iter().map(off).map(|off| off * off).sum();
        let noise_ns = 2.0 * (squares / (count - 2.0).max(1.0)).sqrt().max(RESOLUTION_NS);
        Line {
            kind: kind.name(),
            fixed_ns,
            each_ns,
            each_noise_ns: noise_ns / products.1.sqrt().max(1.0),
            noise_ns,
            points,
        }
    }

    /// The most filters that were tried.
    fn tried(&self) -> u32 {
        self.points.last().map_or(0, |point| point.0)
    }
}

/// §6.5.3: how many filters, all of which are tested, cost as much as a
/// process that demultiplexes for nothing.
#[derive(Debug, Serialize)]
pub(super) struct BreakEven {
    kind: &'static str,
    /// What the process costs more, with batches.
    margin_ns: f64,
    /// Filters at which the measured cost exceeds that; `None`: not among
    /// those tried.
    filters: Option<u32>,
    /// The most that were tried.
    tried: u32,
    /// What so many cost more than one.
    growth_ns: f64,
    /// How much of that could be chance.
    noise_ns: f64,
}

impl BreakEven {
    pub(super) fn new(line: &Line, margin_ns: f64) -> BreakEven {
        let first = line.points.first().map_or(0.0, |point| point.1);
        let over = |point: &&(u32, f64)| point.1 - first > margin_ns;
        let grows = line.each_ns > line.each_noise_ns;
        let reached = grows && line.points.iter().find(over).is_some();
        BreakEven {
            kind: line.kind,
            margin_ns,
            noise_ns: line.noise_ns,
            filters: reached.then(|| 1 + (margin_ns / line.each_ns) as u32),
            tried: line.tried(),
            growth_ns: line.points.last().map_or(0.0, |point| point.1) - first,
        }
    }
}

/// Everything.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) lines: Vec<Line>,
    pub(super) break_even: Vec<BreakEven>,
    pub(super) time: Duration,
    pub(super) rounds: u32,
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "unknown".into(), |release| release.trim().to_owned())
}

fn nanos(ns: f64) -> String {
    match ns {
        ns if ns < 9.95 => format!("{ns:.1} ns"),
        ns if ns < 9_999.5 => format!("{} ns", format::grouped(ns.round() as u64)),
        ns => format!("{:.1} µs", ns / 1e3),
    }
}

/// A difference that cannot be negative, of which so much could be chance:
/// where it is less, below what it is.
fn difference(ns: f64, noise_ns: f64) -> String {
    let most = noise_ns.max(-ns);
    if ns < most {
        // Rounded up, to what is shown.
        format!("< {}", nanos((most * 10.0).ceil() / 10.0))
    } else {
        nanos(ns)
    }
}

fn millis(ms: f64) -> String {
    format!("{ms} ms")
}

#[derive(Serialize)]
pub(super) struct Json<'a> {
    kernel: String,
    each_ms: u128,
    rounds: u32,
    rows: &'a [Row],
    cost_line: JsonLine<'a>,
    break_even: JsonBreakEven<'a>,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    paper_fixed_ms: f64,
    paper_each_ms: f64,
    now: &'a [Line],
}

#[derive(Serialize)]
struct JsonBreakEven<'a> {
    paper: &'static str,
    now: &'a [BreakEven],
}

impl Report {
    pub(super) fn json(&self) -> Json<'_> {
        Json {
            kernel: kernel(),
            each_ms: self.time.as_millis(),
            rounds: self.rounds,
            rows: &self.rows,
            cost_line: JsonLine {
                paper_fixed_ms: paper::LINE.0,
                paper_each_ms: paper::LINE.1,
                now: &self.lines,
            },
            break_even: JsonBreakEven {
                paper: paper::BREAK_EVEN,
                now: &self.break_even,
            },
        }
    }

    pub(super) fn table(&self) -> String {
        let columns = [
            Left("table"),
            Left("each frame"),
            Right("bytes"),
            Right("1987"),
            Right("now"),
            Right("program"),
        ];
        let mut rows: Vec<Vec<String>> = self.rows.iter().map(row).collect();
        rows.extend(self.lines.iter().map(line));
        rows.extend(self.break_even.iter().map(break_even));
        format!(
            "The packet filter of 1987 and this kernel, Linux {}; best of {} rounds of {} ms\n\n{}\n\n\
             1987, break-even: {}.\n\
             program: the kernel's part alone, delivery included; <: less than what could be chance.",
            kernel(),
            self.rounds,
            self.time.as_millis(),
            format::table(&columns, rows),
            paper::BREAK_EVEN,
        )
    }
}

fn row(row: &Row) -> Vec<String> {
    vec![
        row.table.into(),
        row.what.clone(),
        row.frame_bytes.map_or("".into(), |bytes| bytes.to_string()),
        row.paper_ms.map_or("-".into(), millis),
        nanos(row.now_ns),
        row.program_ns.map_or("".into(), nanos),
    ]
}

fn line(line: &Line) -> Vec<String> {
    vec![
        "§6.1".into(),
        format!("fixed + each filter tested: {}", line.kind),
        String::new(),
        format!("{} + {} ms", paper::LINE.0, paper::LINE.1),
        String::new(),
        format!(
            "{} + {}",
            nanos(line.fixed_ns),
            difference(line.each_ns, line.each_noise_ns)
        ),
    ]
}

fn break_even(even: &BreakEven) -> Vec<String> {
    let now = match even.filters {
        Some(filters) => format!("{} filters", format::grouped(filters.into())),
        None => format!("none up to {}", format::grouped(even.tried.into())),
    };
    vec![
        "§6.5.3".into(),
        format!("break-even with a process: {}", even.kind),
        String::new(),
        String::new(),
        now,
        format!("+ {}", difference(even.growth_ns, even.noise_ns)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_its_points() {
        let points = [1, 2, 4, 8].map(|n| (n, 100.0 + 3.0 * f64::from(n)));
        let line = Line::new(Kind::Ranges, points.to_vec());
        assert!((line.fixed_ns - 100.0).abs() < 1e-9);
        assert!((line.each_ns - 3.0).abs() < 1e-9);
        let even = BreakEven::new(&line, 15.0);
        assert_eq!(even.filters, Some(6));
        assert_eq!(BreakEven::new(&line, 30.0).filters, None);
    }

    #[test]
    fn what_could_be_chance_is_said_to_be_below_that() {
        let points = [
            (1, 135.0),
            (4, 133.0),
            (16, 136.0),
            (64, 134.0),
            (256, 133.0),
        ];
        let flat = Line::new(Kind::SingleSubtable, points.to_vec());
        assert!(flat.each_ns < 0.0, "{flat:?}");
        let (said, even) = (line(&flat), BreakEven::new(&flat, -5.0));
        assert!(said[5].ends_with("ns + < 0.1 ns"), "{said:?}");
        assert_eq!(even.filters, None, "{even:?}");
        assert_eq!(break_even(&even)[5], "+ < 2.6 ns");
        assert_eq!(difference(-12.0, 3.0), "< 12 ns");
        assert_eq!(difference(12.0, 3.0), "12 ns");
        assert_eq!(difference(2.0, 3.0), "< 3.0 ns");
    }
}
