//! Figures with lines and points, as SVG.

use super::atomic_write;
use crate::error::CliError;
use plotters::prelude::*;
use rustix::fs::Access;
use std::fmt::Display;
use std::path::Path;

const SIZE: (u32, u32) = (800, 500);

/// A line: its name, and its points.
pub(crate) type Curve = (String, Vec<(f64, f64)>);

/// The labels of a figure.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
}

/// Creates the folder for figures if missing, before any measurement.
pub(crate) fn prepare(folder: Option<&Path>) -> Result<(), CliError> {
    let Some(folder) = folder else { return Ok(()) };
    let may_write = || Ok(rustix::fs::access(folder, Access::WRITE_OK)?);
    if folder.exists() && !folder.is_dir() {
        return Err(CliError::run(format!(
            "{} is not a folder",
            folder.display()
        )));
    }
    let made = std::fs::create_dir_all(folder).and_then(|()| may_write());
    made.map_err(|error| cannot(folder, &error))
}

fn cannot(path: &Path, error: &dyn Display) -> CliError {
    CliError::run(format!("cannot write {}: {error}", path.display()))
}

/// Writes figures into an existing folder.
pub(crate) fn write(
    folder: &Path,
    figures: impl IntoIterator<Item = (String, Result<String, String>)>,
) -> Result<(), CliError> {
    for (name, svg) in figures {
        let path = folder.join(&name);
        let svg = svg.map_err(|error| cannot(&path, &error))?;
        let written = atomic_write::replace_in(folder, &name, &svg);
        written.map_err(|error| cannot(&path, &error))?;
    }
    Ok(())
}

/// One figure, with both axes starting at zero.
pub(crate) fn draw(
    frame: &Frame<'_>,
    curves: &[Curve],
    points: &[(&'static str, (f64, f64))],
) -> Result<String, String> {
    let mut svg = String::new();
    paint(&mut svg, frame, curves, points).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn paint(
    svg: &mut String,
    frame: &Frame<'_>,
    curves: &[Curve],
    points: &[(&'static str, (f64, f64))],
) -> Result<(), Box<dyn std::error::Error>> {
    let all = curves.iter().flat_map(|(_, points)| points);
    let (x, y) = all
        .chain(points.iter().map(|(_, point)| point))
        .fold((0.0_f64, 0.0_f64), |max, at| {
            (max.0.max(at.0), max.1.max(at.1))
        });
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(frame.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..x * 1.02, 0.0..y * 1.05)?;
    chart
        .configure_mesh()
        .x_desc(frame.x)
        .y_desc(frame.y)
        .light_line_style(WHITE)
        .draw()?;
    for (index, (name, curve)) in curves.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let series = LineSeries::new(curve.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(series)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    chart.draw_series(
        points
            .iter()
            .map(|&(_, at)| Circle::new(at, 4, BLACK.filled())),
    )?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}
