//! `weir experiment all`: every experiment in turn, and one page with all results.

mod against;
mod merge;
mod page;

use super::nettap;
use crate::error::{CliError, limited, say};
use crate::report::{atomic_write, plot};
use crate::signals::ShutdownSignal;
use against::Earlier;
use rustix::fs::{FlockOperation, OFlags, flock};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Run every experiment, and write one HTML page with plots and JSON
///
/// Each part is a command of its own that is run three times, all parts in turn; what is computed,
/// once. What each run prints is kept in the folder `runs`, and is not measured again: what was
/// stopped goes on where it was. PART.json has the median of each figure, and the range in which a
/// further run's lies with 95 %, at least 5 % to either side. Some thirteen minutes; as root, since
/// most parts make network namespaces. Other work on the machine shows.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The folder, which is made if it is not there
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,

    /// Forget the runs that are there, and run all parts again
    #[arg(long)]
    again: bool,

    /// How often each part is run; with one there are no ranges
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u8).range(1..=merge::RUNS_MAX as i64),
          allow_negative_numbers = true)]
    runs: u8,

    /// Say which figures lie outside of the ranges of an earlier run, whose folder this is
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,

    /// For figure 7: nettap.json of another machine; runs the part `nettap` again
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,

    /// Run only these parts; can be repeated
    #[arg(long = "part", value_name = "PART", value_parser = part)]
    parts: Vec<&'static Part>,
}

/// An experiment.
#[derive(Debug)]
struct Part {
    /// Its name, and the first words of its command.
    name: &'static str,
    /// The part's title on the page.
    title: &'static str,
    /// Further words of the command.
    options: &'static [&'static str],
    /// Whether it draws plots into a folder.
    draws: bool,
    /// Whether each run gives the same.
    is_computed: bool,
}

impl PartialEq for Part {
    fn eq(&self, other: &Part) -> bool {
        self.name == other.name
    }
}

static PARTS: [Part; 9] = [
    Part {
        name: "packet-filter",
        title: "1987: tables 6-1 and 6-8 to 6-10, the costs of filters, break-even",
        options: &[],
        draws: false,
        is_computed: false,
    },
    Part {
        name: "vmtp",
        title: "1987: tables 6-2 to 6-5, VMTP",
        options: &[],
        draws: false,
        is_computed: false,
    },
    Part {
        name: "bsp",
        title: "1987: table 6-6, byte streams",
        options: &[],
        draws: false,
        is_computed: false,
    },
    Part {
        name: "telnet",
        title: "1987: table 6-7, Telnet",
        options: &[],
        draws: false,
        is_computed: false,
    },
    Part {
        name: "predict",
        title: "1987: section 6.5.2, the prediction",
        options: &[],
        draws: false,
        is_computed: false,
    },
    Part {
        name: "tpca",
        title: "1992: PCB look-ups under TPC/A",
        options: &[],
        draws: true,
        is_computed: true,
    },
    Part {
        name: "setup",
        title: "1992: connections opened at once",
        options: &[],
        draws: true,
        is_computed: false,
    },
    Part {
        name: "nettap",
        title: "2000: NetTap's figures 5, 6 and 7, NetCounter, the cost of a call",
        options: &[],
        draws: true,
        is_computed: false,
    },
    Part {
        name: "adapter",
        title: "1996: round trips and throughput of SYS, MUX and OPT",
        options: &["--rounds", "3"],
        draws: true,
        is_computed: false,
    },
];

/// The part that another machine's figures stand beside.
const BESIDE: &str = "nettap";

/// Time limit of a part.
const PART_TIME_MAX: Duration = Duration::from_secs(600);
/// How often a part is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn part(text: &str) -> Result<&'static Part, String> {
    let names = || {
        PARTS
            .iter()
            .map(|part| part.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let found = PARTS.iter().find(|part| part.name == text);
    found.ok_or_else(|| format!("`{text}` is no part: they are {}", names()))
}

/// The outcome of a part.
struct Outcome {
    part: &'static Part,
    result: Result<Value, String>,
    plots: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    if let Some(path) = &args.beside {
        if !args.parts.is_empty() && !args.parts.iter().any(|part| part.name == BESIDE) {
            return Err(CliError::refused(format!(
                "--beside is for the part {BESIDE}: give --part {BESIDE}, too, or no --part"
            )));
        }
        // Not after minutes.
        nettap::Beside::read(path, &nettap::SIZES)?;
    }
    let against = args.against.as_deref().map(Earlier::read).transpose()?;
    plot::prepare(Some(&args.out))?;
    let chosen = |part: &&'static Part| args.parts.is_empty() || args.parts.contains(part);
    let todo: Vec<&'static Part> = PARTS.iter().filter(chosen).collect();
    let drawn = todo.iter().filter(|part| part.draws).map(|part| part.name);
    for name in drawn.chain([RUNS, "."]) {
        let folder = args.out.join(name);
        plot::prepare(Some(&folder))?;
        atomic_write::check_owner(&folder).map_err(CliError::refused)?;
    }
    let _lock = lock(&args.out)?;
    let began = Instant::now();
    let is_new = |part: &&&Part| args.again || args.beside.is_some() && part.name == BESIDE;
    for part in todo.iter().filter(is_new) {
        forget(part, &args.out)?;
    }
    let failed = measure_missing(&todo, args, &stop)?;
    for part in &todo {
        let runs: Vec<Value> = (1..=count(part, args))
            .filter_map(|number| stored(&run_path(&args.out, part, number)).ok()?)
            .collect();
        if !runs.is_empty() {
            store(&args.out, &part_name(part), &merge::merged(&runs))?;
        }
    }
    let outcomes: Vec<Outcome> = PARTS
        .iter()
        .map(|part| outcome(part, &args.out, &failed))
        .collect();
    if let Some(earlier) = &against {
        let lacking = earlier.lacking(&outcomes);
        if !lacking.is_empty() {
            let lacking = lacking.join(", ");
            say(&format!(
                "weir: --against: not compared, since it is not there: {lacking}"
            ));
        }
    }
    let agreements = against.map(|earlier| earlier.compare(&outcomes));
    let page = args.out.join(PAGE);
    let html = page::html(&outcomes, agreements.as_deref());
    let written = atomic_write::replace_in(&args.out, PAGE, &html);
    written.map_err(|error| CliError::run(format!("cannot write {}: {error}", page.display())))?;
    say(&format!(
        "weir: {} in {:.0} s",
        page.display(),
        began.elapsed().as_secs_f64()
    ));
    if let Some(agreements) = &agreements {
        writeln!(io::stdout(), "{}", against::text(agreements)).map_err(CliError::output)?;
    }
    match failed.as_slice() {
        [] => Ok(()),
        failed => {
            let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
            Err(CliError::run(format!("not measured: {}", names.join(", "))))
        }
    }
}

/// How often a part is run.
fn count(part: &Part, args: &Args) -> u8 {
    if part.is_computed { 1 } else { args.runs }
}

/// Removes all runs of a part: if this ends early, what goes on later shall not take them for its own.
fn forget(part: &Part, folder: &Path) -> Result<(), CliError> {
    (1..=merge::RUNS_MAX as u8).try_for_each(|number| remove(&run_path(folder, part, number)))
}

/// Makes the runs that are not there; returns which parts have failed, and why. All parts are run once,
/// then all again: a part's runs are minutes apart, and its ranges show how the machine changes.
fn measure_missing(
    todo: &[&'static Part],
    args: &Args,
    stop: &ShutdownSignal,
) -> Result<Vec<(&'static str, String)>, CliError> {
    let mut failed: Vec<(&'static str, String)> = Vec::new();
    for number in 1..=args.runs {
        for (index, part) in todo.iter().enumerate() {
            let path = run_path(&args.out, part, number);
            let has_failed = failed.iter().any(|(name, _)| *name == part.name);
            let is_there = matches!(stored(&path), Ok(Some(_)));
            if number > count(part, args) || has_failed || is_there {
                continue;
            }
            say(&format!(
                "weir: run {number} of {}, {} of {}: {}",
                args.runs,
                index + 1,
                todo.len(),
                part.name
            ));
            let beside = args.beside.as_deref().filter(|_| part.name == BESIDE);
            match measure(part, &args.out, beside, stop)? {
                Ok(json) => store(&args.out.join(RUNS), &run_name(part, number), &json)?,
                Err(why) => {
                    say(&format!("weir: {}: {why}", part.name));
                    failed.push((part.name, why));
                }
            }
        }
    }
    Ok(failed)
}

/// Locks the folder until the file is closed.
fn lock(folder: &Path) -> Result<File, CliError> {
    let cannot =
        |error: io::Error| CliError::run(format!("cannot use {}: {error}", folder.display()));
    let file = File::open(folder).map_err(cannot)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(CliError::refused(format!(
            "another `weir experiment all` is at work in {}: wait for it, or give another folder",
            folder.display()
        ))),
        locked => locked.map(|()| file).map_err(|error| cannot(error.into())),
    }
}

fn remove(path: &Path) -> Result<(), CliError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CliError::run(format!(
            "cannot remove {}: {error}",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// The folder of what each run has printed.
const RUNS: &str = "runs";
/// The page of all results.
const PAGE: &str = "index.html";
/// Bytes of a result, at most.
const RESULT_LEN_MAX: u64 = 4 << 20;

/// The file of a part's medians.
fn part_name(part: &Part) -> String {
    format!("{}.json", part.name)
}

/// The file of one of its runs.
fn run_name(part: &Part, number: u8) -> String {
    format!("{}-{number}.json", part.name)
}

fn run_path(folder: &Path, part: &Part, number: u8) -> PathBuf {
    folder.join(RUNS).join(run_name(part, number))
}

fn store(folder: &Path, name: &str, json: &Value) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(json).map_err(CliError::run)? + "\n";
    atomic_write::replace_in(folder, name, &text).map_err(|error| {
        CliError::run(format!(
            "cannot write {}: {error}",
            folder.join(name).display()
        ))
    })
}

/// The JSON of an earlier run; `None` if there is no file.
///
/// # Errors
/// The file's name, and why it is not such a file.
fn stored(path: &Path) -> Result<Option<Value>, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("{} is no result: {why}", path.display());
    // Not to wait for a FIFO.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| wrong(&error))?,
    };
    let is_file = file.metadata().is_ok_and(|facts| facts.is_file());
    if !is_file {
        return Err(wrong(&"not a regular file"));
    }
    let mut text = String::new();
    let read = file.take(RESULT_LEN_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| wrong(&error))?;
    if text.len() as u64 > RESULT_LEN_MAX {
        return Err(wrong(&format!("longer than {RESULT_LEN_MAX} bytes")));
    }
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|error| wrong(&error))
}

fn outcome(part: &'static Part, folder: &Path, failed: &[(&str, String)]) -> Outcome {
    let failure = failed.iter().find(|(name, _)| *name == part.name);
    let result = match failure {
        Some((_, why)) => Err(why.clone()),
        None => stored(&folder.join(part_name(part)))
            .and_then(|found| found.ok_or_else(|| "not measured".to_owned())),
    };
    let mut plots = Vec::new();
    if part.draws
        && let Ok(entries) = fs::read_dir(folder.join(part.name))
    {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let drawn = names.filter(|name| name.ends_with(".svg"));
        plots.extend(drawn.map(|name| format!("{}/{name}", part.name)));
        plots.sort_unstable();
    }
    Outcome {
        part,
        result,
        plots,
    }
}

/// Runs a part; the inner error is the part's own.
fn measure(
    part: &Part,
    folder: &Path,
    beside: Option<&Path>,
    stop: &ShutdownSignal,
) -> Result<Result<Value, String>, CliError> {
    let this = std::env::current_exe().map_err(|error| CliError::run(limited(&error)))?;
    let mut command = Command::new(this);
    command
        .args(["experiment", part.name, "--json"])
        .args(part.options);
    if part.draws {
        command.arg("--svg").arg(folder.join(part.name));
    }
    if let Some(beside) = beside {
        command.arg("--beside").arg(beside);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let started = command.spawn();
    let mut child = started
        .map_err(|error| CliError::run(format!("cannot run {}: {}", part.name, limited(&error))))?;
    let out = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        out.map_or(Ok(0), |mut out| out.read_to_string(&mut text))
            .map(|_| text)
    });
    let waited = wait(&mut child, stop);
    let text = reader.join().expect("it does not panic");
    match waited.map_err(|error| CliError::run(limited(&error)))? {
        Waited::Stopped => Err(CliError::Stopped(stop.signal())),
        Waited::TooLong => {
            let seconds = PART_TIME_MAX.as_secs();
            Ok(Err(format!("took longer than {seconds} s")))
        }
        Waited::Ended(status) if status.success() => {
            let json = text.map_err(|error| error.to_string());
            Ok(
                json.and_then(|text| {
                    serde_json::from_str(&text).map_err(|error| error.to_string())
                }),
            )
        }
        Waited::Ended(status) => Ok(Err(format!("failed ({status})"))),
    }
}

enum Waited {
    Ended(std::process::ExitStatus),
    Stopped,
    TooLong,
}

/// Waits for the end of a part, which is killed after a signal or too long a time.
fn wait(child: &mut Child, stop: &ShutdownSignal) -> io::Result<Waited> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Waited::Ended(status));
        }
        let too_long = began.elapsed() > PART_TIME_MAX;
        if stop.is_requested() || too_long {
            child.kill()?;
            child.wait()?;
            return Ok(if too_long {
                Waited::TooLong
            } else {
                Waited::Stopped
            });
        }
        stop.wait(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names() {
        assert_eq!(part("bsp").unwrap().name, "bsp");
        assert!(part("x").unwrap_err().contains("packet-filter, vmtp"));
    }
}
