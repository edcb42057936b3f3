//! `weir mediate`: from the counters' spools into the ledger, and from there to the outputs.

mod config;
mod keep;
mod watch;

use crate::config as config_file;
use crate::error::{CliError, harmless, say};
use crate::input::read_limited;
use crate::report::format;
use crate::report::metrics::{self, Metrics};
use crate::signals::ShutdownSignal;
use crate::store;
use crate::watchdog::Watchdog;
use config::Config;
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_ledger::{Accepted, Ledger, LedgerError, NatsError, Spool, StoreLock, Taker, Target};

/// Collect the records of counters into the ledger, and write the outputs
///
/// Takes chunks of records from the spools of `weir meter`, inserts each once into the ledger,
/// acknowledges it, and writes what each output has not had yet into files. Says `ready` on
/// standard error. Whatever ends it, nothing is lost and nothing counts twice: start it again.
///
/// With --back-up, --restore, --erase, --delete-before or --replay it does that alone, beside a
/// mediator that runs.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir mediate --config mediator.toml
  weir mediate --config mediator.toml --once
  weir mediate --config mediator.toml --replay billing --period 1207 --counter pop-1
  weir mediate --back-up usage-2026-10.db
  weir mediate --erase alice@example.net
  weir usage --prove

Exit status: 0, after a signal too; 1 if the ledger or a spool cannot be used; 2 if the
configuration is wrong.")]
pub(crate) struct Args {
    /// What to collect and where it goes: see docs/reference/mediator.md
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present_any = ["back_up", "restore", "erase", "delete_before"]
    )]
    config: Option<PathBuf>,

    /// The ledger, in place of the configuration's
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,

    /// Check the configuration and end
    #[arg(long, group = "task", requires = "config")]
    check: bool,

    /// Collect and write what there is, and end
    #[arg(long, group = "task", requires = "config")]
    once: bool,

    /// Copy the ledger, as it is at one time, into this file
    #[arg(long, value_name = "FILE", group = "task")]
    back_up: Option<PathBuf>,

    /// Make the ledger of this back-up; there must be none in its place
    #[arg(long, value_name = "FILE", group = "task")]
    restore: Option<PathBuf>,

    /// Take the name of this subscriber, and all that identifies the
    /// subscriber, from the ledger; the counts stay
    #[arg(long, value_name = "NAME", group = "task")]
    erase: Option<String>,

    /// Delete from the ledger what ended before this time: a time
    /// (2026-10-25), or how long ago (400d)
    #[arg(long, value_name = "TIME", group = "task")]
    delete_before: Option<String>,

    /// Give this output records again that it has had
    #[arg(long, value_name = "OUTPUT", group = "task", requires = "config")]
    replay: Option<String>,

    /// With --replay, only the periods of this number
    #[arg(long, value_name = "NUMBER", requires = "replay")]
    period: Option<u64>,

    /// With --replay, only the periods of this counter
    #[arg(long, value_name = "NAME", requires = "replay")]
    counter: Option<String>,

    /// With --replay, only periods that start at this time or later
    #[arg(long, value_name = "TIME", requires = "replay")]
    since: Option<String>,

    /// With --replay, only periods that start before this time
    #[arg(long, value_name = "TIME", requires = "replay")]
    until: Option<String>,

    /// Serve metrics for Prometheus at this address, at /metrics; port 0
    /// chooses a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics::address, conflicts_with = "task")]
    metrics: Option<SocketAddr>,

    /// At the end, print what was done as a line of JSON
    #[arg(long)]
    json: bool,
}

/// The largest configuration, in bytes.
const CONFIG_LEN_MAX: u64 = 1 << 20;
/// Between two deletions of what is older than `keep`.
const RETENTION_INTERVAL: Duration = Duration::from_hours(1);

/// How long a look at the NATS server waits for a chunk.
const TAKE: Duration = Duration::from_millis(100);
/// How long chunks are taken before outputs get them.
const TAKE_MAX: Duration = Duration::from_secs(10);
/// Between two attempts to reach the server of an output, or of NATS.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The work that was done, stable for scripts.
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
    /// Deliveries to outputs: files written, transactions, connections to collectors.
    files: u64,
    /// Gaps of charging counters that were filled from an audit counter.
    filled: u64,
    /// Chunks deleted since they were older than `keep`.
    deleted: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let mut config = match &args.config {
        Some(path) => {
            let text = read_limited::text(path, CONFIG_LEN_MAX)?;
            Some(config::parse(&text).map_err(|wrong| wrong.refused(path))?)
        }
        None => None,
    };
    if let Some(config) = &mut config
        && args.store.is_some()
    {
        config.store.clone_from(&args.store);
    }
    if let (true, Some(config), Some(path)) = (args.check, &config, &args.config) {
        let counters = format::counted(config.counters.len() as u64, "counter");
        let outputs = format::counted(config.outputs.len() as u64, "output");
        let said = format!("{}: {counters}, {outputs}", config_file::name(path));
        return writeln!(std::io::stdout(), "{said}").map_err(CliError::output);
    }
    if keep::run(args, config.as_ref())? {
        return Ok(());
    }
    let config = config.expect("what is to be done without one is done");
    let mut mediator = Mediator::new(config, args.once)?;
    let metrics = args.metrics.map(Metrics::serve).transpose()?;
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
        if let Some(metrics) = &metrics {
            mediator.show(metrics);
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

/// A random number.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

struct Mediator {
    config: Config,
    ledger: Ledger,
    /// No other mediator writes the outputs meanwhile.
    _lock: StoreLock,
    done: Done,
    /// Said once, until it is over: what is wrong, by what it is wrong with.
    alarms: BTreeMap<String, String>,
    /// Everything that waits is taken, however long that lasts.
    once: bool,
    /// The connection to the NATS server.
    taker: Option<Taker>,
    /// Servers that have failed, and when: of outputs, and of NATS.
    waiting: BTreeMap<String, Instant>,
    watched: watch::Watched,
}

impl Mediator {
    fn new(config: Config, once: bool) -> Result<Mediator, CliError> {
        let path = store::path_made(config.store.as_deref())?;
        let mut ledger = Ledger::open(&path).map_err(CliError::run)?;
        let lock = ledger.lock().map_err(CliError::run)?;
        ledger.set_points(&config.points).map_err(CliError::run)?;
        Ok(Mediator {
            config,
            ledger,
            _lock: lock,
            done: Done::default(),
            alarms: BTreeMap::new(),
            once,
            taker: None,
            waiting: BTreeMap::new(),
            watched: watch::Watched::default(),
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
        if self.config.nats.is_some() && !self.is_waiting("NATS") {
            let outcome = self.take();
            self.waiting.remove("NATS");
            if outcome.is_err() {
                self.taker = None;
                self.waiting.insert("NATS".to_owned(), Instant::now());
            }
            failed |= self.note("NATS".to_owned(), outcome);
        }
        if !self.config.points.is_empty() {
            let filled = self.ledger.fill_gaps();
            let outcome = filled.map(|gaps| self.done.filled += gaps);
            failed |= self.note("gaps".to_owned(), outcome);
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
        let left = spool.waiting()?;
        self.watched.left.insert(path.display().to_string(), left);
        refused.map_or(Ok(()), Err)
    }

    /// Takes the chunks that wait at the NATS server.
    fn take(&mut self) -> Result<(), NatsError> {
        let url = self.config.nats.as_deref().unwrap_or_default();
        let taker = match &mut self.taker {
            Some(taker) => taker,
            empty => empty.insert(Taker::connect(url, random())?),
        };
        let mut refused = None;
        let began = Instant::now();
        // Outputs do not wait for ever for chunks that do not end.
        while self.once || began.elapsed() < TAKE_MAX {
            let batch = taker.take(TAKE)?;
            if batch.is_empty() {
                break;
            }
            for taken in batch {
                match self.ledger.accept(&taken.encoded) {
                    Ok((chunk, accepted)) => {
                        match accepted {
                            Accepted::New => {
                                self.done.chunks += 1;
                                self.done.records += chunk.records.len() as u64;
                            }
                            Accepted::Known | Accepted::Replaced => self.done.known += 1,
                        }
                        taker.acknowledge(&chunk.manifest.id, &taken)?;
                    }
                    Err(error @ (LedgerError::Damaged { .. } | LedgerError::Contradiction(_))) => {
                        self.done.refused += 1;
                        taker.refuse(&taken)?;
                        refused = Some(error);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        refused.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Writes what each output has not had. Whether something failed.
    fn write(&mut self) -> bool {
        let mut failed = false;
        for at in 0..self.config.outputs.len() {
            let name = format!("output {}", self.config.outputs[at].name);
            // A server that does not answer takes its time to say so: the others do not wait at each
            // look.
            if self.is_waiting(&name) {
                failed = true;
                continue;
            }
            let files = self.ledger.deliver(&self.config.outputs[at]);
            self.waiting.remove(&name);
            if files.is_err() && !matches!(self.config.outputs[at].target, Target::Files { .. }) {
                self.waiting.insert(name.clone(), Instant::now());
            }
            let outcome = files.map(|files| {
                let (count, output) = (files.len() as u64, &self.config.outputs[at].name);
                self.done.files += count;
                *self.watched.deliveries.entry(output.clone()).or_default() += count;
            });
            failed |= self.note(name, outcome);
        }
        failed
    }

    fn is_waiting(&self, output: &str) -> bool {
        let since = self.waiting.get(output);
        since.is_some_and(|since| since.elapsed() < RETRY_INTERVAL)
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

    /// Shows what it does.
    fn show(&mut self, metrics: &Metrics) {
        let outcome = self.metrics().map(|now| metrics.show(now));
        self.note("metrics".to_owned(), outcome);
    }

    /// Says what is wrong once, and that it is over once.
    fn note(&mut self, with: String, outcome: Result<(), impl std::fmt::Display>) -> bool {
        match outcome {
            Ok(()) => {
                if self.alarms.remove(&with).is_some() {
                    say(&harmless(&format!("weir: {with}: works again")));
                }
                false
            }
            Err(error) => {
                let why = error.to_string();
                *self.watched.failures.entry(with.clone()).or_default() += 1;
                if self.alarms.get(&with) != Some(&why) {
                    say(&harmless(&format!("weir: {why}")));
                    self.alarms.insert(with, why);
                }
                true
            }
        }
    }
}
