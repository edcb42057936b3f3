//! The report of `weir experiment packet-filter`.

use crate::report::format;
use crate::report::format::Column::{Left, Right};
use serde::Serialize;
use weir_experiments::packet_filter::{BreakEven, Figures, Line, Row, paper};

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

pub(super) fn json(figures: &Figures) -> Json<'_> {
    Json {
        kernel: kernel(),
        each_ms: figures.time.as_millis(),
        rounds: figures.rounds,
        rows: &figures.rows,
        cost_line: JsonLine {
            paper_fixed_ms: paper::LINE.0,
            paper_each_ms: paper::LINE.1,
            now: &figures.lines,
        },
        break_even: JsonBreakEven {
            paper: paper::BREAK_EVEN,
            now: &figures.break_even,
        },
    }
}

pub(super) fn table(figures: &Figures) -> String {
    let columns = [
        Left("table"),
        Left("each frame"),
        Right("bytes"),
        Right("1987"),
        Right("now"),
        Right("program"),
    ];
    let mut rows: Vec<Vec<String>> = figures.rows.iter().map(row).collect();
    rows.extend(figures.lines.iter().map(line));
    rows.extend(figures.break_even.iter().map(break_even));
    format!(
        "The packet filter of 1987 and this kernel, Linux {}; best of {} rounds of {} ms\n\n{}\n\n\
         1987, break-even: {}.\n\
         program: the kernel's part alone, delivery included; <: less than what could be chance.",
        kernel(),
        figures.rounds,
        figures.time.as_millis(),
        format::table(&columns, rows),
        paper::BREAK_EVEN,
    )
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
    use weir_experiments::packet_filter::Kind;

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
