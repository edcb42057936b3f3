//! Figures of the measurements.

use super::report::{Report, SizeResult};
use crate::error::CliError;
use crate::report::plot::{self, Curve, Frame, draw};
use std::path::Path;

/// Writes `throughput.svg`, `latency.svg` and, for each size, `loss-SIZE.svg`
/// to the folder, as far as they were measured.
pub(super) fn figures(folder: &Path, report: &Report) -> Result<(), CliError> {
    let mut figures = Vec::new();
    let rates = curves(report, |found| {
        let rate = found.throughput.as_ref()?.frames_per_second?;
        Some(rate / 1e6)
    });
    let frame = Frame {
        title: "Throughput: the highest rate without loss",
        x: "bytes of a frame",
        y: "million frames per second",
    };
    add(&mut figures, "throughput.svg", &frame, &rates);
    let times = curves(report, |found| {
        Some(found.latency.as_ref()?.p50_ns as f64 / 1e3)
    });
    let frame = Frame {
        title: "Latency: the median",
        x: "bytes of a frame",
        y: "µs",
    };
    add(&mut figures, "latency.svg", &frame, &times);
    for size in sizes(report) {
        let title = format!("Loss, frames of {size} bytes");
        let frame = Frame {
            title: &title,
            x: "million frames per second",
            y: "per cent lost",
        };
        add(
            &mut figures,
            &format!("loss-{size}.svg"),
            &frame,
            &losses(report, size),
        );
    }
    plot::write(folder, figures)
}

type Figure = (String, Result<String, String>);

fn add(figures: &mut Vec<Figure>, name: &str, frame: &Frame<'_>, curves: &[Curve]) {
    if !curves.is_empty() {
        figures.push((name.to_owned(), draw(frame, curves, &[])));
    }
}

fn sizes(report: &Report) -> Vec<usize> {
    let mut sizes: Vec<usize> = report.results.iter().map(|found| found.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A curve over the frame sizes for each candidate with results.
fn curves(report: &Report, value: impl Fn(&SizeResult) -> Option<f64>) -> Vec<Curve> {
    let of = |index: usize| {
        let mine = report
            .results
            .iter()
            .filter(move |found| found.index == index);
        let mut points: Vec<_> = mine
            .filter_map(|found| Some((found.size as f64, value(found)?)))
            .collect();
        points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let names = report.names.iter().enumerate();
    let all = names.map(|(index, name)| (name.clone(), of(index)));
    all.filter(|(_, points)| !points.is_empty()).collect()
}

fn losses(report: &Report, size: usize) -> Vec<Curve> {
    let of_size = report.results.iter().filter(|found| found.size == size);
    let all = of_size.map(|found| {
        let points = found.loss.iter().rev();
        let points = points.map(|point| (point.frames_per_second / 1e6, point.lost_percent));
        (found.name.clone(), points.collect::<Vec<_>>())
    });
    all.filter(|(_, points)| !points.is_empty()).collect()
}
