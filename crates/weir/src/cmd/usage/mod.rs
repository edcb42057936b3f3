//! `weir usage`: what the ledger has, as a table, and its proof.

mod proof;
mod table;
mod time;

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use crate::{report, store};
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

    /// Prove the totals: for each period, the link's total against the sum of
    /// all records, the chain of chunks, and each output's files
    #[arg(long, conflicts_with_all = ["subscriber", "service", "by"])]
    prove: bool,

    /// With --prove, only the periods of this number
    #[arg(long, value_name = "NUMBER", requires = "prove")]
    period: Option<u64>,
}

const AFTER: &str = "\
The store is a file of SQLite: --store, else $STATE_DIRECTORY/usage.db (systemd), else, for root,
/var/lib/weir/usage.db, for others $XDG_STATE_HOME/weir/usage.db (~/.local/state/weir/usage.db).

Exit status: 0; 1 if the store cannot be read or a proof does not hold; 2 for a request that is
refused; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.";

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
        group: match args.by {
            None => Group::Whole,
            Some(Span::Hour) => Group::Hour,
            Some(Span::Day) => Group::Day,
            Some(Span::Month) => Group::Month,
        },
    };
    let ledger = open(args)?;
    if args.prove {
        return proof::run(&ledger, &query, args.period, args.json);
    }
    let mut out = io::stdout();
    loop {
        let rows = ledger.usage(&query, &zone).map_err(CliError::run)?;
        if args.follow && out.is_terminal() {
            // Cursor home, and erase below.
            write!(out, "\x1b[H\x1b[J").map_err(CliError::output)?;
        }
        let text = if args.json {
            serde_json::to_string(&rows).map_err(CliError::run)?
        } else {
            table::of(&rows)
        };
        writeln!(out, "{text}").map_err(CliError::output)?;
        if let Some(path) = &args.svg {
            let svg = table::plot(&ledger, &query, &zone)?;
            report::atomic_write::replace(path, &svg).map_err(|error| {
                CliError::run(format!("cannot write {}: {error}", path.display()))
            })?;
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

/// Opens the store; a file that is not there is none, rather than an empty one.
fn open(args: &Args) -> Result<Ledger, CliError> {
    let path = store::path(args.store.as_deref())?;
    if !path.exists() {
        return Err(CliError::run(format!(
            "{}: no store there yet: `weir meter -r FILE` makes one; or name another with --store",
            path.display()
        )));
    }
    Ledger::open(&path).map_err(CliError::run)
}
