//! `weir lab results render`: a table of measured values and their requirements.

mod page;

use super::{default_file, figure, page_files, read_file, unit};
use crate::error::{CliError, harmless};
use crate::report::format::{
    self,
    Column::{Left, Right},
};
use clap::ValueEnum;
use serde::Serialize;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use weir_lab::results::{Bar, Commit, LineRef, Measurement, Platform, Summary, summarise};

/// Render a table of measured values and their requirements
///
/// Each row has the median of all runs, the minimum and the maximum, and whether the median meets
/// the requirement; if only some runs do, their number. Rows that miss a requirement come first. A
/// row is stale if its last run is more than 90 days older than the newest run on the same machine.
/// Below the table are the commands that measure its rows. Each machine has its own table.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A results file; by default target/results.jsonl of the checkout, and for a page all files
    /// docs/results/*.jsonl
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Format of the table; markdown and page are the same for the same files
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Print nothing; fail unless this file contains what would be printed
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// For a terminal
    Text,
    /// Tables for Markdown
    Markdown,
    /// The page docs/reference/results.md: the runs of the newest commit for each measurement
    Page,
    /// An array with an object for each row
    Json,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let files = match (args.file.is_empty(), args.format) {
        (false, _) => args.file.clone(),
        (true, Format::Page) => page_files()?,
        (true, _) => vec![default_file()?],
    };
    let mut all = Vec::new();
    for file in &files {
        all.extend(read_file(file)?);
    }
    if args.format == Format::Page {
        all = newest_commits(all);
    }
    let rows = missed_first(summarise(&all).map_err(CliError::run)?);
    let out = match args.format {
        Format::Text => harmless(&written(&rows, "\n\n", in_text)),
        Format::Markdown => harmless(&written(&rows, "\n\n", in_markdown)),
        Format::Page => harmless(&page::written(&rows)),
        Format::Json => {
            let newest = Newest::of(&rows);
            let rows: Vec<Row<'_>> = rows.iter().map(|row| Row::of(row, &newest)).collect();
            serde_json::to_string(&rows).map_err(CliError::run)?
        }
    };
    match &args.check {
        Some(file) => check(file, &format!("{out}\n")),
        None => writeln!(std::io::stdout(), "{out}").map_err(CliError::output),
    }
}

/// Fails unless `file` has this text.
fn check(file: &Path, expected: &str) -> Result<(), CliError> {
    let text = std::fs::read_to_string(file);
    let text =
        text.map_err(|error| CliError::run(format!("cannot read {}: {error}", file.display())))?;
    if text == expected {
        return Ok(());
    }
    let (found, expected) = (text.lines(), expected.lines());
    let same = found.zip(expected).take_while(|(one, other)| one == other);
    Err(CliError::run(format!(
        "{}:{}: is not what `weir lab results render` prints of these files: render it again",
        file.display(),
        same.count() + 1
    )))
}

/// For each measurement on each machine, the runs of one commit: that of the run that started last.
fn newest_commits(all: Vec<(LineRef, Measurement)>) -> Vec<(LineRef, Measurement)> {
    let key = |one: &Measurement| (one.name.clone(), one.machine.platform.clone());
    let mut newest: HashMap<_, (String, Option<Commit>)> = HashMap::new();
    for (_, one) in &all {
        let run = (one.time.clone(), one.commit.clone());
        let newest = newest.entry(key(one)).or_insert_with(|| run.clone());
        if newest.0 <= run.0 {
            *newest = run;
        }
    }
    let is_newest = |one: &Measurement| newest[&key(one)].1 == one.commit;
    all.into_iter().filter(|(_, one)| is_newest(one)).collect()
}

/// Moves rows that miss their requirement before all others.
fn missed_first(mut rows: Vec<Summary>) -> Vec<Summary> {
    rows.sort_by_key(|row| row.met() != Some(false));
    rows
}

/// Age in days, relative to the newest run of the machine, at which a measurement is stale.
const STALE_DAYS: i64 = 90;

/// Start time of each machine's newest run.
struct Newest<'a>(HashMap<&'a Platform, &'a str>);

impl<'a> Newest<'a> {
    fn of(rows: &'a [Summary]) -> Newest<'a> {
        let mut newest = HashMap::new();
        for row in rows {
            let time = newest.entry(&row.platform).or_insert("");
            *time = (*time).max(row.times.1.as_str());
        }
        Newest(newest)
    }

    /// Whether a row is stale; `false` if a time cannot be parsed.
    fn is_stale(&self, row: &Summary) -> bool {
        let parse = |time: &str| time.parse::<jiff::Timestamp>().ok();
        let newest = self.0.get(&row.platform).copied().and_then(parse);
        let age = newest.zip(parse(&row.times.1));
        age.is_some_and(|(newest, last)| {
            newest.duration_since(last).as_secs() > STALE_DAYS * 24 * 3600
        })
    }
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
    stale: bool,
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
    fn of<'a>(row: &'a Summary, newest: &Newest<'_>) -> Row<'a> {
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
            stale: newest.is_stale(row),
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
    newest: &'a Newest<'a>,
}

/// The sections of all machines, separated by `between`.
fn written(rows: &[Summary], between: &str, section: fn(&Section<'_>) -> String) -> String {
    let newest = Newest::of(rows);
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
        section(&Section {
            rows,
            commands,
            newest: &newest,
        })
    });
    sections.collect::<Vec<_>>().join(between)
}

impl Section<'_> {
    /// The machine, and the date and version of the figures.
    fn heading(&self) -> String {
        format!("{}; {}", self.machine(), self.origin())
    }

    fn machine(&self) -> String {
        let first = self.rows.first();
        first
            .map(|row| row.platform.to_string())
            .unwrap_or_default()
    }

    /// The date and version of the figures.
    fn origin(&self) -> String {
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
            "load average {:.1} to {:.1} at the start of a bench; {commits}; {} to {}",
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
            self.met(row),
            by.map_or(String::new(), |by| (by + 1).to_string()),
        ]
    }

    /// Whether a row meets its requirement, and whether it is stale.
    fn met(&self, row: &Summary) -> String {
        let stale = self.newest.is_stale(row).then(|| "stale".to_owned());
        let parts: Vec<String> = met(row).into_iter().chain(stale).collect();
        parts.join(", ")
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
    if (1e3..1e15).contains(&value) && value.fract() == 0.0 {
        format::grouped(value as u64)
    } else {
        value.to_string()
    }
}

/// Whether the median meets the requirement, and the number of runs that do; `None` without a
/// requirement.
fn met(row: &Summary) -> Option<String> {
    let said = if row.met()? { "yes" } else { "no" };
    let (runs, meeting) = (row.figures.runs(), row.figures.meeting(row.bar));
    Some(if meeting == 0 || meeting == runs {
        format!("{said}, {}", format::counted(runs as u64, "run"))
    } else {
        format!("{said}, {meeting} of {runs} runs")
    })
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
    format!(
        "{}.\n\n{}\nMeasured by\n\n{}",
        section.heading(),
        section.table(&section.rows),
        section.list_of_commands()
    )
}

impl Section<'_> {
    /// A table of rows, in Markdown.
    fn table(&self, rows: &[&Summary]) -> String {
        let mut out = format!("| {} |\n", COLUMNS.join(" | "));
        out += "|---|---:|---:|---:|---:|---|---|---:|\n";
        for row in rows {
            let cells = self.cells(row).map(|cell| cell.replace('|', "\\|"));
            out += &format!("| {} |\n", cells.join(" | "));
        }
        out
    }

    /// The commands, numbered, in Markdown.
    fn list_of_commands(&self) -> String {
        let commands = self.commands.iter().zip(1..);
        let lines = commands.map(|(command, number)| format!("{number}. `{command}`"));
        lines.collect::<Vec<_>>().join("\n")
    }
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
