//! The 1992 paper's figures 4 and 9, drawn again as SVG.

use crate::error::CliError;
use crate::report::plot::{self, Frame, draw};
use std::path::Path;
use weir_experiments::tpca::{Settings, analysis};

/// Steps of a line.
const STEPS: u32 = 200;

/// Draws `figure4.svg` and `figure9.svg` into the folder, which is made if it
/// is not there; `measured` are points of figure 9 at the settings' users.
pub(super) fn figures(
    folder: &Path,
    settings: &Settings,
    measured: &[(&'static str, f64)],
) -> Result<(), CliError> {
    let figures = [
        ("figure4.svg".to_owned(), figure_4(settings)),
        ("figure9.svg".to_owned(), figure_9(settings, measured)),
    ];
    plot::write(folder, figures)
}

fn line(to: f64, of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    let at = |step: u32| to * f64::from(step) / f64::from(STEPS);
    (1..=STEPS).map(|step| (at(step), of(at(step)))).collect()
}

/// N(T): the number of other users that enter a transaction within a time.
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
