//! `weir lab results render`: a table of what was measured, beside what is
//! required.

use super::{default_file, figure, read_file, unit};
use crate::error::{CliError, harmless};
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use clap::ValueEnum;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use weir_lab::results::{Bar, Commit, Platform, Summary, summarise};

/// Make a table of what was measured and what is required
///
/// Each row has the median of all runs, the least and the most, and whether the
/// median meets what is required; where some runs do and others do not, how many
/// do. Below the table are the commands that measure its rows. Each machine has
/// a table of its own.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A file of results; target/results.jsonl of the checkout by default
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// How the table is written; markdown is the same for the same files
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// For a terminal
    Text,
    /// For a page
    Markdown,
    /// An array, an object a row
    Json,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let mut files = args.file.clone();
    if files.is_empty() {
        files.push(default_file()?);
    }
    let mut all = Vec::new();
    for file in &files {
        all.extend(read_file(file)?);
    }
    let rows = summarise(&all).map_err(CliError::run)?;
    let out = match args.format {
        Format::Text => harmless(&written(&rows, in_text)),
        Format::Markdown => harmless(&written(&rows, in_markdown)),
        Format::Json => {
            let rows: Vec<Row<'_>> = rows.iter().map(Row::of).collect();
            serde_json::to_string(&rows).map_err(CliError::run)?
        }
    };
    writeln!(std::io::stdout(), "{out}").map_err(CliError::output)
}

/// A row in JSON.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    unit: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<&'a str>,
    bar: Bar,
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
    met: Option<bool>,
    bench: &'a str,
    command: &'a str,
    machine: &'a Platform,
    load_min: f64,
    load_max: f64,
    commits: Vec<&'a Commit>,
    first: &'a str,
    last: &'a str,
}

impl Row<'_> {
    fn of(row: &Summary) -> Row<'_> {
        Row {
            name: &row.name,
            unit: &row.unit,
            peer: row.peer.as_deref(),
            bar: row.bar,
            median: row.figures.median(),
            min: row.figures.min(),
            max: row.figures.max(),
            runs: row.figures.runs(),
            met: row.met(),
            bench: &row.bench,
            command: &row.command,
            machine: &row.platform,
            load_min: row.load.0,
            load_max: row.load.1,
            commits: row.commits.iter().collect(),
            first: &row.times.0,
            last: &row.times.1,
        }
    }
}

const COLUMNS: [&str; 8] = [
    "measurement",
    "required",
    "median",
    "least",
    "most",
    "unit",
    "met",
    "by",
];

/// The rows of one machine, and the commands that measure them.
struct Section<'a> {
    rows: Vec<&'a Summary>,
    commands: Vec<&'a str>,
}

/// All machines in turn, each by `section`.
fn written(rows: &[Summary], section: fn(&Section<'_>) -> String) -> String {
    let mut platforms: Vec<&Platform> = Vec::new();
    for row in rows {
        if !platforms.contains(&&row.platform) {
            platforms.push(&row.platform);
        }
    }
    let sections = platforms.into_iter().map(|platform| {
        let rows: Vec<&Summary> = (rows.iter())
            .filter(|row| row.platform == *platform)
            .collect();
        let mut commands: Vec<&str> = Vec::new();
        for row in &rows {
            if !commands.contains(&row.command.as_str()) {
                commands.push(&row.command);
            }
        }
        section(&Section { rows, commands })
    });
    sections.collect::<Vec<_>>().join("\n\n")
}

impl Section<'_> {
    /// The machine, and when and of what the figures are.
    fn heading(&self) -> String {
        let rows = &self.rows;
        let least = |all: &mut dyn Iterator<Item = f64>| all.fold(f64::INFINITY, f64::min);
        let most = |all: &mut dyn Iterator<Item = f64>| all.fold(0.0, f64::max);
        let loads = (
            least(&mut rows.iter().map(|row| row.load.0)),
            most(&mut rows.iter().map(|row| row.load.1)),
        );
        let first = rows.iter().map(|row| row.times.0.as_str()).min();
        let last = rows.iter().map(|row| row.times.1.as_str()).max();
        let commits = rows.iter().flat_map(|row| &row.commits);
        let commits: std::collections::BTreeSet<String> = commits.map(Commit::to_string).collect();
        let commits: Vec<String> = commits.into_iter().collect();
        let commits = match commits.len() {
            0 => "no commit known".to_owned(),
            1 => format!("commit {}", commits[0]),
            _ => format!("commits {}", commits.join(", ")),
        };
        format!(
            "{}; load average {:.1} to {:.1} at the start of a bench; {commits}; {} to {}",
            rows.first()
                .map(|row| row.platform.to_string())
                .unwrap_or_default(),
            loads.0,
            loads.1,
            first.unwrap_or_default(),
            last.unwrap_or_default(),
        )
    }

    fn cells(&self, row: &Summary) -> [String; COLUMNS.len()] {
        let figures = &row.figures;
        let by = self.commands.iter().position(|one| *one == row.command);
        [
            row.name.clone(),
            required(row.bar),
            figure(figures.median()),
            figure(figures.min()),
            figure(figures.max()),
            unit(&row.unit, row.peer.as_deref()),
            met(row),
            by.map_or(String::new(), |by| (by + 1).to_string()),
        ]
    }
}

fn required(bar: Bar) -> String {
    match bar {
        Bar::None => String::new(),
        Bar::AtMost(most) => format!("≤ {}", number(most)),
        Bar::AtLeast(least) => format!("≥ {}", number(least)),
    }
}

/// A number as it was stated, thousands grouped.
fn number(value: f64) -> String {
    match (1e3..1e15).contains(&value) && value.fract() == 0.0 {
        true => format::grouped(value as u64),
        false => value.to_string(),
    }
}

/// Whether the median meets what is required, and how many runs do.
fn met(row: &Summary) -> String {
    let said = match row.met() {
        None => return String::new(),
        Some(true) => "yes",
        Some(false) => "no",
    };
    let (runs, meeting) = (row.figures.runs(), row.figures.meeting(row.bar));
    match meeting == 0 || meeting == runs {
        true => format!("{said}, {}", format::counted(runs as u64, "run")),
        false => format!("{said}, {meeting} of {runs} runs"),
    }
}

fn in_text(section: &Section<'_>) -> String {
    let columns = COLUMNS.map(|name| match name {
        "measurement" | "unit" | "met" => Left(name),
        _ => Right(name),
    });
    let rows: Vec<_> = (section.rows.iter())
        .map(|row| section.cells(row).to_vec())
        .collect();
    let commands = section.commands.iter().zip(1..);
    let commands: String = commands
        .map(|(command, number)| format!("\n{number:>4}  {command}"))
        .collect();
    format!(
        "{}\n\n{}\n\nMeasured by\n{commands}",
        section.heading(),
        format::table(&columns, rows)
    )
}

fn in_markdown(section: &Section<'_>) -> String {
    let mut out = format!("{}.\n\n| {} |\n", section.heading(), COLUMNS.join(" | "));
    out += "|---|---:|---:|---:|---:|---|---|---:|\n";
    for row in &section.rows {
        let cells = section.cells(row).map(|cell| cell.replace('|', "\\|"));
        out += &format!("| {} |\n", cells.join(" | "));
    }
    out += "\nMeasured by\n";
    for (command, number) in section.commands.iter().zip(1..) {
        out += &format!("\n{number}. `{command}`");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_as_they_were_stated() {
        assert_eq!(required(Bar::None), "");
        assert_eq!(required(Bar::AtMost(1.5)), "≤ 1.5");
        assert_eq!(required(Bar::AtMost(1e6)), "≤ 1,000,000");
        assert_eq!(required(Bar::AtLeast(0.85)), "≥ 0.85");
    }
}
