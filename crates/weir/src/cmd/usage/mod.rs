//! `weir usage`: what the ledger has, as a table, and its proof.

mod audit;
mod empty;
mod planning;
mod proof;
mod sla;
mod table;
pub(crate) mod time;

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use crate::{report, store};
use jiff::tz::TimeZone;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;
use weir_ledger::{Group, Ledger, UsageQuery};

/// Show who used what, from the ledger of usage records
///
/// A row for each subscriber and service: packets and bytes up (from the
/// subscriber) and down (to the subscriber). Traffic of addresses that no
/// session owned is in rows of its own, `unattributed`.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// The store of the records
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,

    /// Only this subscriber
    #[arg(long, value_name = "NAME")]
    subscriber: Option<String>,

    /// Only this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,

    /// Only this counter's records, though they may not be charged; without it
    /// those of audit counters are left out
    #[arg(long, value_name = "NAME", conflicts_with_all = ["prove", "audit"])]
    counter: Option<String>,

    /// Only periods that start at this time or later: a time (2026-10-25,
    /// 2026-10-25T08:00, 2026-10-25T08:00:00Z), or how long ago (90m, 24h, 7d)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Only periods that start before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,

    /// A row for each hour, day or month, too, by the clock of the time zone
    #[arg(long, value_name = "SPAN")]
    by: Option<Span>,

    /// The time zone, as Europe/Berlin or UTC [default: the system's]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,

    /// Print JSON: an array of rows; with --prove an object
    #[arg(long)]
    json: bool,

    /// Show it again every second, until a signal
    #[arg(long, conflicts_with = "prove")]
    follow: bool,

    /// Draw bytes up and down over time into this file, too
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prove", "follow"])]
    svg: Option<PathBuf>,

    /// Compare what is charged with what audit counters have, at the points
    /// of mediator.toml
    #[arg(long, conflicts_with_all = ["subscriber", "service", "by", "prove", "follow", "svg"])]
    audit: bool,

    /// Compare the use of each session with the agreements in this file:
    /// CSV with the columns subscriber, up, down (rates such as 20M), loss
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["service", "by", "prove", "follow", "svg", "audit"]
    )]
    sla: Option<PathBuf>,

    /// Show busy hour, 95th percentile and trend of each link and service
    #[arg(
        long,
        conflicts_with_all = ["by", "prove", "follow", "svg", "audit", "sla"]
    )]
    planning: bool,

    /// Prove the totals: for each period, the link's total against the sum of
    /// all records, the chain of chunks, and each output's files; beside it, the
    /// interfaces' own counters
    #[arg(long, conflicts_with_all = ["subscriber", "service", "by"])]
    prove: bool,

    /// With --prove, only the periods of this number
    #[arg(long, value_name = "NUMBER", requires = "prove")]
    period: Option<u64>,
}

const AFTER: &str = "\
The store is a file of SQLite: --store, else $STATE_DIRECTORY/usage.db (systemd), else, for root,
/var/lib/weir/usage.db, for others $XDG_STATE_HOME/weir/usage.db (~/.local/state/weir/usage.db).

Exit status: 0; 1 if the store cannot be read, a proof does not hold, an audit finds a difference or
an agreement is not kept; 2 for a request that is refused; 129, 130 or 143 after SIGHUP, SIGINT or
SIGTERM.";

/// Spans of time.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Span {
    Hour,
    Day,
    Month,
}

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let zone = time::zone(args.zone.as_deref())?;
    let at = |text: &Option<String>| text.as_deref().map(|text| time::parse(text, &zone));
    let query = UsageQuery {
        since_unix_ns: at(&args.since).transpose()?,
        until_unix_ns: at(&args.until).transpose()?,
        subscriber: args.subscriber.clone(),
        service: args.service.clone(),
        counter: args.counter.clone(),
        group: match args.by {
            None => Group::Whole,
            Some(Span::Hour) => Group::Hour,
            Some(Span::Day) => Group::Day,
            Some(Span::Month) => Group::Month,
        },
    };
    let mut out = io::stdout();
    let task = Task::of(args)?;
    loop {
        let answer = answer(args, &query, &zone, &task)?;
        if args.follow && out.is_terminal() {
            // Cursor home, and erase below.
            write!(out, "\x1b[H\x1b[J").map_err(CliError::output)?;
        }
        writeln!(out, "{}", answer.text).map_err(CliError::output)?;
        if let (Some(path), Some(svg)) = (&args.svg, &answer.svg) {
            report::atomic_write::replace(path, svg).map_err(|error| {
                CliError::run(format!("cannot write {}: {error}", path.display()))
            })?;
        }
        if let Some(why) = answer.failed {
            return Err(CliError::run(why));
        }
        if !args.follow {
            return Ok(());
        }
        if stop.wait_unless_closed(INTERVAL, &out) {
            return Err(CliError::output(io::ErrorKind::BrokenPipe.into()));
        }
        if stop.is_requested() {
            return Err(CliError::Stopped(stop.signal()));
        }
    }
}

/// The requested task.
enum Task {
    Table,
    Prove,
    Audit,
    Sla(sla::Agreements),
    Planning,
}

impl Task {
    fn of(args: &Args) -> Result<Task, CliError> {
        Ok(if args.prove {
            Task::Prove
        } else if args.audit {
            Task::Audit
        } else if let Some(path) = &args.sla {
            Task::Sla(sla::Agreements::read(path)?)
        } else if args.planning {
            Task::Planning
        } else {
            Task::Table
        })
    }
}

/// The ledger's content.
#[derive(Default)]
struct Answer {
    text: String,
    svg: Option<String>,
    /// Why the command fails after it has said so.
    failed: Option<String>,
}

/// How often a ledger is read again that other programs have begun to write to meanwhile.
const READS_MAX: usize = 5;

/// Reads the ledger, at one time.
fn answer(
    args: &Args,
    query: &UsageQuery,
    zone: &TimeZone,
    task: &Task,
) -> Result<Answer, CliError> {
    let mut reads = 0;
    loop {
        let ledger = open(args)?;
        let read = match task {
            Task::Prove => proof::answer(&ledger, query, args.period, args.json),
            Task::Audit => audit::answer(&ledger, query, args.json),
            Task::Sla(agreements) => sla::answer(&ledger, query, agreements, args.json),
            Task::Planning => planning::answer(&ledger, query, zone, args.json),
            Task::Table => table_of(&ledger, args, query, zone),
        };
        reads += 1;
        if ledger.is_consistent() || reads == READS_MAX {
            return read;
        }
    }
}

fn table_of(
    ledger: &Ledger,
    args: &Args,
    query: &UsageQuery,
    zone: &TimeZone,
) -> Result<Answer, CliError> {
    let rows = ledger.usage(query, zone).map_err(CliError::run)?;
    let text = if args.json {
        serde_json::to_string(&rows).map_err(CliError::run)?
    } else if rows.is_empty() {
        empty::text(ledger, query)?
    } else {
        table::of(&rows)
    };
    let svg = match args.svg {
        Some(_) if rows.is_empty() => {
            let text = empty::text(ledger, query)?;
            return Err(CliError::run(format!("there is nothing to draw: {text}")));
        }
        Some(_) => Some(table::plot(ledger, query, zone)?),
        None => None,
    };
    Ok(Answer {
        text,
        svg,
        failed: None,
    })
}

/// Opens the store; a missing file is an error, not an empty store.
fn open(args: &Args) -> Result<Ledger, CliError> {
    let path = store::path(args.store.as_deref())?;
    if !path.exists() {
        return Err(CliError::run(format!(
            "{}: no store there yet: `weir meter -r FILE` makes one; or name another with --store",
            path.display()
        )));
    }
    Ledger::open_read(&path).map_err(CliError::run)
}
