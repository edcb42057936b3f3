//! The 1992 paper's figures 4 and 9, drawn again as SVG.

use crate::failure::Failure;
use plotters::prelude::*;
use std::fmt::Display;
use std::path::Path;
use weir_stack::experiment::tpca::{Settings, analysis};

const SIZE: (u32, u32) = (800, 500);
/// Steps of a line.
const STEPS: u32 = 200;

/// A line: its name, and its points.
type Curve = (String, Vec<(f64, f64)>);

/// What a figure says beside its lines.
struct Frame {
    title: &'static str,
    x: &'static str,
    y: &'static str,
}

/// Draws `figure4.svg` and `figure9.svg` into the folder, which is made if it
/// is not there; `measured` are points of figure 9 at the settings' users.
pub(super) fn figures(
    folder: &Path,
    settings: &Settings,
    measured: &[(&'static str, f64)],
) -> Result<(), Failure> {
    let cannot = |path: &Path, error: &dyn Display| {
        Failure::run(format!("cannot write {}: {error}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))?;
    let figures = [
        ("figure4.svg", figure_4(settings)),
        ("figure9.svg", figure_9(settings, measured)),
    ];
    for (name, svg) in figures {
        let path = folder.join(name);
        let svg = svg.map_err(|error| cannot(&path, &error))?;
        std::fs::write(&path, svg).map_err(|error| cannot(&path, &error))?;
    }
    Ok(())
}

fn line(to: f64, of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    let at = |step: u32| to * f64::from(step) / f64::from(STEPS);
    (1..=STEPS).map(|step| (at(step), of(at(step)))).collect()
}

/// N(T): how many others enter a transaction within a time.
fn figure_4(settings: &Settings) -> Result<String, String> {
    let users = f64::from(settings.users);
    let curve = line(50.0, |time_s| analysis::preceding(users, time_s));
    let frame = Frame {
        title: "Figure 4: users who enter a transaction within a time",
        x: "time in s",
        y: "users",
    };
    draw(&frame, &[(format!("{users} users"), curve)], &[])
}

/// PCBs examined by the number of users.
fn figure_9(settings: &Settings, measured: &[(&'static str, f64)]) -> Result<String, String> {
    let chains = f64::from(settings.chains.get());
    let users = f64::from(settings.users);
    let to = users.max(2000.0);
    let mut curves = vec![("BSD".to_owned(), line(to, analysis::bsd))];
    for response_s in [2.0, 1.0, 0.5, 0.2] {
        let mtf = line(to, |users| analysis::mtf(users.max(1.0), response_s));
        curves.push((format!("move to front, {response_s} s"), mtf));
    }
    let sequent = line(to, |users| {
        analysis::sequent(users.max(chains), chains, settings.response_s)
    });
    curves.push((format!("Sequent, {chains} chains"), sequent));
    let points: Vec<_> = measured
        .iter()
        .map(|&(name, cost)| (name, (users, cost)))
        .collect();
    let frame = Frame {
        title: "Figure 9: PCBs examined a look-up; dots are simulated users",
        x: "users",
        y: "PCBs examined",
    };
    draw(&frame, &curves, &points)
}

fn draw(
    frame: &Frame,
    curves: &[Curve],
    points: &[(&'static str, (f64, f64))],
) -> Result<String, String> {
    let mut svg = String::new();
    paint(&mut svg, frame, curves, points).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn paint(
    svg: &mut String,
    frame: &Frame,
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
