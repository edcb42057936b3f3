//! `weir mediate`: from the counters' spools into the ledger, and from there to the outputs.

mod config;

use crate::config as config_file;
use crate::error::{CliError, say};
use crate::input::read_limited;
use crate::report::format;
use crate::signals::ShutdownSignal;
use crate::store;
use crate::watchdog::Watchdog;
use config::Config;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_ledger::{Accepted, Ledger, LedgerError, Spool, StoreLock};

/// Collect the records of counters into the ledger, and write the outputs
///
/// Takes chunks of records from the spools of `weir meter`, inserts each once into the ledger,
/// acknowledges it, and writes what each output has not had yet into files. Says `ready` on
/// standard error. Whatever ends it, nothing is lost and nothing counts twice: start it again.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir mediate --config mediator.toml
  weir mediate --config mediator.toml --once
  weir usage --prove

Exit status: 0, after a signal too; 1 if the ledger or a spool cannot be used; 2 if the configuration
is wrong.")]
pub(crate) struct Args {
    /// What to collect and where it goes: see docs/reference/mediator.md
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// Check the configuration and end
    #[arg(long)]
    check: bool,

    /// Collect and write what there is, and end
    #[arg(long, conflicts_with = "check")]
    once: bool,

    /// At the end, print what was done as a line of JSON
    #[arg(long)]
    json: bool,
}

/// The largest configuration, in bytes.
const CONFIG_LEN_MAX: u64 = 1 << 20;
/// Between two deletions of what is older than `keep`.
const RETENTION_INTERVAL: Duration = Duration::from_hours(1);

/// What was done, stable for scripts.
#[derive(Default, Serialize)]
struct Done {
    /// Chunks inserted into the ledger.
    chunks: u64,
    /// Chunks that it had already.
    known: u64,
    /// Chunks that it refused: they stay in their spools.
    refused: u64,
    /// Records of new chunks.
    records: u64,
    /// Files written.
    files: u64,
    /// Chunks deleted since they were older than `keep`.
    deleted: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let text = read_limited::text(&args.config, CONFIG_LEN_MAX)?;
    let config = config::parse(&text).map_err(|wrong| wrong.refused(&args.config))?;
    if args.check {
        let counters = format::counted(config.counters.len() as u64, "counter");
        let outputs = format::counted(config.outputs.len() as u64, "output");
        let said = format!("{}: {counters}, {outputs}", config_file::name(&args.config));
        return writeln!(std::io::stdout(), "{said}").map_err(CliError::output);
    }
    let mut mediator = Mediator::new(config)?;
    let mut watchdog = Watchdog::new(None)?;
    if !args.once {
        watchdog.ready();
        say("ready");
    }
    let mut retention_due = Duration::ZERO;
    let failed = loop {
        let mut failed = mediator.collect();
        failed |= mediator.write();
        if retention_due.is_zero() {
            failed |= mediator.delete_old();
            retention_due = RETENTION_INTERVAL;
        }
        if args.once || stop.is_requested() {
            break failed;
        }
        watchdog.beat();
        stop.wait(mediator.config.interval);
        retention_due = retention_due.saturating_sub(mediator.config.interval);
    };
    if args.json {
        let line = serde_json::to_string(&mediator.done).map_err(CliError::run)?;
        writeln!(std::io::stdout(), "{line}").map_err(CliError::output)?;
    }
    if args.once && failed {
        return Err(CliError::run(
            "not everything was done; nothing is lost: mend what is said above and run it again",
        ));
    }
    Ok(())
}

struct Mediator {
    config: Config,
    ledger: Ledger,
    /// No other mediator writes the outputs meanwhile.
    _lock: StoreLock,
    done: Done,
    /// Said once, until it is over: what is wrong, by what it is wrong with.
    alarms: BTreeMap<String, String>,
}

impl Mediator {
    fn new(config: Config) -> Result<Mediator, CliError> {
        let path = store::path_made(config.store.as_deref())?;
        let ledger = Ledger::open(&path).map_err(CliError::run)?;
        let lock = ledger.lock().map_err(CliError::run)?;
        Ok(Mediator {
            config,
            ledger,
            _lock: lock,
            done: Done::default(),
            alarms: BTreeMap::new(),
        })
    }

    /// Takes all chunks that there are. Whether something failed.
    fn collect(&mut self) -> bool {
        let spools: Vec<PathBuf> = self
            .config
            .counters
            .iter()
            .map(|it| it.spool.clone())
            .collect();
        let mut failed = false;
        for path in spools {
            let outcome = self.collect_from(&path);
            failed |= self.note(path.display().to_string(), outcome);
        }
        failed
    }

    fn collect_from(&mut self, path: &Path) -> Result<(), LedgerError> {
        // A counter that has not begun yet has no spool: do not make one in its place.
        if !path.exists() {
            return Err(LedgerError::Missing(path.to_owned()));
        }
        let mut spool = Spool::open(path)?;
        let (mut after, mut refused) = (0, None);
        while let Some(stored) = spool.next(after)? {
            after = stored.sequence;
            match self.ledger.accept(&stored.encoded) {
                Ok((chunk, accepted)) => {
                    match accepted {
                        Accepted::New => {
                            self.done.chunks += 1;
                            self.done.records += chunk.records.len() as u64;
                        }
                        Accepted::Known | Accepted::Replaced => self.done.known += 1,
                    }
                    spool.acknowledge(&chunk.manifest.id, &stored.encoded.hash)?;
                }
                // One bad chunk does not hold up the others; it stays where it is.
                Err(error @ (LedgerError::Damaged { .. } | LedgerError::Contradiction(_))) => {
                    self.done.refused += 1;
                    refused = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Writes what each output has not had. Whether something failed.
    fn write(&mut self) -> bool {
        let mut failed = false;
        for at in 0..self.config.outputs.len() {
            let output = &self.config.outputs[at];
            let files = self
                .ledger
                .deliver(&output.name, output.format, &output.folder);
            let outcome = files.map(|files| self.done.files += files.len() as u64);
            let name = format!("output {}", self.config.outputs[at].name);
            failed |= self.note(name, outcome);
        }
        failed
    }

    fn delete_old(&mut self) -> bool {
        let Some(keep) = self.config.keep else {
            return false;
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let before = now.saturating_sub(keep).as_nanos();
        let before = i64::try_from(before).unwrap_or(i64::MAX);
        let deleted = self.ledger.delete_before(before);
        let outcome = deleted.map(|count| self.done.deleted += count);
        self.note("retention".to_owned(), outcome)
    }

    /// Says what is wrong once, and that it is over once.
    fn note(&mut self, with: String, outcome: Result<(), LedgerError>) -> bool {
        match outcome {
            Ok(()) => {
                if self.alarms.remove(&with).is_some() {
                    say(&format!("weir: {with}: works again"));
                }
                false
            }
            Err(error) => {
                let why = error.to_string();
                if self.alarms.get(&with) != Some(&why) {
                    say(&format!("weir: {why}"));
                    self.alarms.insert(with, why);
                }
                true
            }
        }
    }
}
