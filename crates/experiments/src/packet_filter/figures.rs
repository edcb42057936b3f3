//! The measured figures beside those of the paper.

use super::Kind;
use serde::Serialize;
use std::time::Duration;

/// A row of one of the paper's tables.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The paper's table.
    pub table: &'static str,
    /// The measured quantity.
    pub what: String,
    /// Bytes of a frame.
    pub frame_bytes: Option<usize>,
    /// The paper's figure.
    pub paper_ms: Option<f64>,
    /// This machine's figure.
    pub now_ns: f64,
    /// The kernel's program alone, with the delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_ns: Option<f64>,
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
pub struct Line {
    /// The name of the filters' [`Kind`].
    pub kind: &'static str,
    /// The line at no filter.
    pub fixed_ns: f64,
    /// The cost of one more filter.
    pub each_ns: f64,
    /// The noise: two standard errors of the line's slope.
    pub each_noise_ns: f64,
    /// The same of a point: two standard deviations from the line.
    pub noise_ns: f64,
    /// Filters tested, nanoseconds.
    pub points: Vec<(u32, f64)>,
}

impl Line {
    /// The line of least squares through these points.
    pub fn new(kind: Kind, points: Vec<(u32, f64)>) -> Line {
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
pub struct BreakEven {
    /// The name of the filters' [`Kind`].
    pub kind: &'static str,
    /// The additional cost of the process, with batches.
    pub margin_ns: f64,
    /// Filters at which the measured cost exceeds that; `None`: not among
    /// those tried.
    pub filters: Option<u32>,
    /// The most that were tried.
    pub tried: u32,
    /// The cost of `n` beyond that of one.
    pub growth_ns: f64,
    /// How much of that could be chance.
    pub noise_ns: f64,
}

impl BreakEven {
    /// Of filters that cost as `line` says.
    pub fn new(line: &Line, margin_ns: f64) -> BreakEven {
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

/// All figures.
#[derive(Debug)]
pub struct Figures {
    /// Of the tables.
    pub rows: Vec<Row>,
    /// Of §6.1.
    pub lines: Vec<Line>,
    /// Of §6.5.3.
    pub break_even: Vec<BreakEven>,
    /// How long each measurement took.
    pub time: Duration,
    /// How often each was made; the best counts.
    pub rounds: u32,
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
}
