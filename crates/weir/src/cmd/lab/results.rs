//! `weir lab results`: runs the project's benches, and renders tables of their
//! results.

mod diff;
mod render;
mod run;

use crate::error::CliError;
use clap::Subcommand;
use std::path::{Path, PathBuf};
use weir_lab::results::{Checkout, LineRef, Measurement, read};

/// Default results file in a checkout.
const DEFAULT: &str = "target/results.jsonl";

/// The folder of a checkout with the committed results.
const COMMITTED: &str = "docs/results";

/// Run the project's benches, and compare their results with the requirements
///
/// A bench appends each measurement with its requirement to a results file, as
/// a line of JSON. docs/contributing/benchmarks.md describes the fields.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir lab results run --list
  weir lab results run --only demux --repeat 5 --file new.jsonl
  weir lab results render --file new.jsonl --format markdown
  weir lab results render --format page >docs/reference/results.md
  weir lab results diff old.jsonl new.jsonl

Exit status: 0; 1 if a bench failed, a measurement is worse than every old run, a requirement is no
longer met, a checked page is another, or a file cannot be read or written; 2 if an option is
wrong; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.")]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Subcommand, Debug)]
enum Which {
    Run(run::Args),
    Render(render::Args),
    Diff(diff::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    match &args.which {
        Which::Run(args) => run::run(args),
        Which::Render(args) => render::run(args),
        Which::Diff(args) => diff::run(args),
    }
}

/// The checkout around the current folder.
fn checkout() -> Result<Checkout, CliError> {
    let folder = std::env::current_dir().map_err(CliError::run)?;
    Checkout::around(&folder).ok_or_else(|| {
        let folder = folder.display();
        CliError::refused(format!(
            "{folder} is not in a checkout of weir: change to one"
        ))
    })
}

/// The default results file.
fn default_file() -> Result<PathBuf, CliError> {
    Ok(checkout()?.root().join(DEFAULT))
}

/// The results files of the checkout, ordered by name.
fn page_files() -> Result<Vec<PathBuf>, CliError> {
    let folder = checkout()?.root().join(COMMITTED);
    let cannot = |error| CliError::run(format!("cannot read {}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        files.extend(
            path.extension()
                .is_some_and(|end| end == "jsonl")
                .then_some(path),
        );
    }
    files.sort();
    Ok(files)
}

fn read_file(file: &Path) -> Result<Vec<(LineRef, Measurement)>, CliError> {
    read(file).map_err(CliError::run)
}

/// A value with at least three significant digits, for a table.
fn figure(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size >= 1e15 => format!("{value:e}"),
        _ if size >= 1000.0 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!(
                "{sign}{}",
                crate::report::format::grouped(size.round() as u64)
            )
        }
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// A unit, with the peer of a ratio.
fn unit(symbol: &str, peer: Option<&str>) -> String {
    match peer {
        Some(peer) => format!("{symbol} {peer}"),
        None => symbol.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits() {
        for (value, said) in [
            (0.0, "0.00"),
            (0.000_012_3, "1.2e-5"),
            (0.012_34, "0.012"),
            (0.5, "0.500"),
            (1.094, "1.09"),
            (12.34, "12.3"),
            (123.4, "123"),
            (999.6, "1000"),
            (2_725_000.4, "2,725,000"),
            (-1234.0, "-1,234"),
            (1e20, "1e20"),
        ] {
            assert_eq!(figure(value), said);
        }
    }
}
