//! `weir lab results run`: runs the benches of the list.

use super::{DEFAULT, checkout, read_file};
use crate::error::{CliError, Incomplete, say};
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use crate::signals::ShutdownSignal;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_lab::results::{BENCHES, Ended, Listed, Measurement, Running};

/// Run the project's benches, and append their measurements to a results file
///
/// Run in a checkout of weir, with Cargo. All benches are compiled first and
/// then run in turn; with --repeat in rounds, so that other load on the machine
/// affects all of them. A bench that needs something the machine lacks is
/// skipped, with a message. Each bench has a time limit of five times its usual
/// duration, at least five minutes. The output of the benches is appended to a
/// file beside the results, with the extension `.log`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Run only benches whose name contains this; can be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=1000),
          allow_negative_numbers = true)]
    repeat: u32,
    /// The file to append to; target/results.jsonl of the checkout by default
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// List the benches, their needs, and their approximate duration
    #[arg(long)]
    list: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let chosen = chosen(&args.only)?;
    if args.list {
        return writeln!(io::stdout(), "{}", list(&chosen)).map_err(CliError::output);
    }
    let checkout = checkout()?;
    let file = match &args.file {
        Some(file) => file.clone(),
        None => checkout.root().join(DEFAULT),
    };
    let file = prepared(&file)?;
    let stop = ShutdownSignal::watch_hangup_too()?;
    let log = file.with_extension("log");
    let running = Running {
        checkout: &checkout,
        log: appended(&log)?,
        skips: file.with_extension("skips"),
        file,
    };
    let mut session = Session::new(&chosen, &running, &log, &stop)?;
    session.all(args.repeat)?;
    session.bar.finish_and_clear();
    let _ = fs::remove_file(&running.skips);
    writeln!(io::stdout(), "{}", session.report()).map_err(CliError::output)?;
    let gaps = Incomplete {
        troubles: session.troubles(),
        signal: stop.is_requested().then(|| stop.signal()),
    };
    gaps.outcome()
}

/// The benches that `--only` chooses: all without it.
fn chosen(only: &[String]) -> Result<Vec<&'static Listed>, CliError> {
    for pattern in only {
        if !BENCHES
            .iter()
            .any(|one| one.name.contains(pattern.as_str()))
        {
            return Err(CliError::refused(format!(
                "no bench has `{pattern}` in its name: see `weir lab results run --list`"
            )));
        }
    }
    let is_chosen = |one: &&Listed| {
        let mut patterns = only.iter();
        only.is_empty() || patterns.any(|pattern| one.name.contains(pattern.as_str()))
    };
    Ok(BENCHES.iter().filter(is_chosen).collect())
}

fn list(benches: &[&Listed]) -> String {
    let columns = [Left("name"), Right("about"), Left("needs"), Left("command")];
    let rows: Vec<Vec<String>> = (benches.iter())
        .map(|one| {
            let needs: Vec<String> = one.needs.iter().map(ToString::to_string).collect();
            vec![
                one.name.to_owned(),
                short(Duration::from_secs(one.about_s)),
                needs.join(", "),
                one.runs.to_string(),
            ]
        })
        .collect();
    let all: u64 = benches.iter().map(|one| one.about_s).sum();
    format!(
        "{}\n\n{}, about {} once compiled",
        format::table(&columns, rows),
        format::counted(benches.len() as u64, "row"),
        short(Duration::from_secs(all)),
    )
}

/// A duration in seconds, or in minutes if it is long.
fn short(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

/// The absolute path of a results file, which is created or checked.
fn prepared(file: &Path) -> Result<PathBuf, CliError> {
    let cannot = |error| CliError::run(format!("cannot write {}: {error}", file.display()));
    if let Some(folder) = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        fs::create_dir_all(folder).map_err(cannot)?;
    }
    appended(file)?;
    read_file(file)?;
    file.canonicalize().map_err(cannot)
}

fn appended(file: &Path) -> Result<File, CliError> {
    let opened = File::options().append(true).create(true).open(file);
    opened.map_err(|error| CliError::run(format!("cannot write {}: {error}", file.display())))
}

/// The state of a run of benches.
struct Session<'a> {
    running: &'a Running<'a>,
    log: &'a Path,
    stop: &'a ShutdownSignal,
    bar: ProgressBar,
    tallies: Vec<BenchRun>,
    /// Number of measurements recorded.
    recorded: usize,
}

/// The result of one bench.
struct BenchRun {
    listed: &'static Listed,
    runs: u32,
    figures: usize,
    missed: usize,
    time: Duration,
    /// Why it was not run, or recorded less than possible.
    skipped: Option<String>,
    /// The last failure; a failed bench is not run again.
    failed: Option<String>,
}

impl<'a> Session<'a> {
    fn new(
        chosen: &[&'static Listed],
        running: &'a Running<'a>,
        log: &'a Path,
        stop: &'a ShutdownSignal,
    ) -> Result<Session<'a>, CliError> {
        let tally = |listed: &&'static Listed| BenchRun {
            listed,
            runs: 0,
            figures: 0,
            missed: 0,
            time: Duration::ZERO,
            skipped: listed.lacks(),
            failed: None,
        };
        let bar = ProgressBar::no_length();
        let style = ProgressStyle::with_template("{bar:20} {pos}/{len} {elapsed}  {msg}");
        bar.set_style(style.map_err(CliError::run)?);
        bar.enable_steady_tick(Duration::from_millis(500));
        Ok(Session {
            running,
            log,
            stop,
            bar,
            tallies: chosen.iter().map(tally).collect(),
            recorded: read_file(&running.file)?.len(),
        })
    }

    /// Compiles all benches that can run, and runs each `rounds` times.
    fn all(&mut self, rounds: u32) -> Result<(), CliError> {
        for tally in self.tallies.iter().filter(|tally| tally.skipped.is_some()) {
            let why = tally.skipped.as_deref().unwrap_or_default();
            self.print_line(&format!("{}: skipped: {why}", tally.listed.name));
        }
        let can = |tally: &BenchRun| tally.skipped.is_none();
        let count = self.tallies.iter().filter(|tally| can(tally)).count();
        let order: Vec<usize> = (0..self.tallies.len())
            .filter(|&at| can(&self.tallies[at]))
            .collect();
        self.bar.set_length(count as u64 * u64::from(rounds));
        for &at in &order {
            self.build(at)?;
        }
        for round in 1..=rounds {
            for &at in &order {
                if self.stop.is_requested() {
                    return Ok(());
                }
                if self.tallies[at].failed.is_none() {
                    self.run(at, round)?;
                }
                self.bar.inc(1);
            }
        }
        Ok(())
    }

    fn build(&mut self, at: usize) -> Result<(), CliError> {
        let tally = &mut self.tallies[at];
        if self.stop.is_requested() {
            return Ok(());
        }
        self.bar
            .set_message(format!("compiling {}", tally.listed.name));
        let ended = self
            .running
            .build(tally.listed, &|| self.stop.is_requested());
        let why = match ended.map_err(no_cargo)? {
            Ended::Done | Ended::Stopped => return Ok(()),
            Ended::Failed(why) => format!("does not compile: {why}, see {}", self.log.display()),
            Ended::Overdue(limit) => format!("is not compiled after {}", short(limit)),
        };
        let said = format!("{} {why}", tally.listed.name);
        tally.failed = Some(why);
        self.print_line(&said);
        Ok(())
    }

    fn run(&mut self, at: usize, round: u32) -> Result<(), CliError> {
        let listed = self.tallies[at].listed;
        let about = short(Duration::from_secs(listed.about_s));
        self.bar
            .set_message(format!("{}, about {about}", listed.name));
        let mut log = &self.running.log;
        writeln!(log, "\n== {}, round {round}: {}", listed.name, listed.runs)
            .map_err(|error| CliError::run(format!("{}: {error}", self.log.display())))?;
        let _ = fs::remove_file(&self.running.skips);
        let began = Instant::now();
        let ended = self.running.run(listed, &|| self.stop.is_requested());
        let ended = ended.map_err(no_cargo)?;
        let took = began.elapsed();
        let all = read_file(&self.running.file)?;
        let new: Vec<&Measurement> = all.iter().skip(self.recorded).map(|(_, one)| one).collect();
        self.recorded = all.len();
        let skips = fs::read_to_string(&self.running.skips).unwrap_or_default();
        let missed = new.iter().filter(|one| one.met == Some(false)).count();
        let tally = &mut self.tallies[at];
        tally.runs += 1;
        tally.figures += new.len();
        tally.missed += missed;
        tally.time += took;
        tally.skipped = skips.lines().next().map(reason);
        tally.failed = match ended {
            Ended::Done if new.is_empty() && tally.skipped.is_none() => {
                Some("recorded nothing".to_owned())
            }
            Ended::Done | Ended::Stopped => None,
            Ended::Failed(why) => Some(why),
            Ended::Overdue(limit) => Some(format!("was not over within {}", short(limit))),
        };
        if let Some(why) = &mut tally.failed {
            *why += &format!(", see {}", self.log.display());
        }
        let mut said = format!("{}: {}", listed.name, figures(new.len(), missed));
        for more in tally.skipped.iter().chain(&tally.failed) {
            said += &format!("; {more}");
        }
        self.print_line(&format!("{said} ({})", short(took)));
        Ok(())
    }

    /// Prints a line above the progress bar, or on standard error without one.
    fn print_line(&self, line: &str) {
        if self.bar.is_hidden() {
            say(line)
        } else {
            self.bar.println(line)
        }
    }

    fn report(&self) -> String {
        let columns = [
            Left("bench"),
            Right("runs"),
            Right("figures"),
            Right("missed"),
            Right("time"),
            Left(""),
        ];
        let row = |tally: &BenchRun| {
            let skipped = tally.skipped.as_ref().map(|why| format!("skipped: {why}"));
            let failed = tally.failed.as_ref().map(|why| format!("FAILED: {why}"));
            vec![
                tally.listed.name.to_owned(),
                tally.runs.to_string(),
                tally.figures.to_string(),
                tally.missed.to_string(),
                short(tally.time),
                failed.or(skipped).unwrap_or_default(),
            ]
        };
        let rows: Vec<_> = self.tallies.iter().map(row).collect();
        let count = |what: fn(&BenchRun) -> usize| self.tallies.iter().map(what).sum();
        format!(
            "{}\n\n{}, in {}",
            format::table(&columns, rows),
            figures(count(|tally| tally.figures), count(|tally| tally.missed)),
            self.running.file.display(),
        )
    }

    fn troubles(&self) -> Vec<String> {
        let failed = |tally: &BenchRun| {
            let why = tally.failed.as_ref()?;
            Some(format!("{}: {why}", tally.listed.name))
        };
        self.tallies.iter().filter_map(failed).collect()
    }
}

fn figures(count: usize, missed: usize) -> String {
    let count = format::counted(count as u64, "figure");
    match missed {
        0 => count,
        _ => format!("{count}, {missed} of them worse than required"),
    }
}

/// The reason in `skipped: TEST: REASON`.
fn reason(line: &str) -> String {
    line.splitn(3, ": ").last().unwrap_or(line).to_owned()
}

fn no_cargo(error: io::Error) -> CliError {
    CliError::run(format!("cannot run cargo: {error}"))
}
