//! `weir meter`: usage accounting.

mod adoption;
mod alarms;
mod capture;
mod clock;
mod control;
mod counter;
mod cut;
mod feed;
pub(crate) mod forwarding;
mod interfaces;
mod live;
mod pins;
mod policies;
mod quotas;
mod report;
mod rows;
mod stop;
mod watch;

use self::counter::Stores;
use crate::config::{self, Wrong};
use crate::error::{CliError, say};
use crate::input::read_limited;
use crate::report::{format, metrics};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use weir_link::names::SystemNames;
use weir_meter::config::{CAPACITY, Config, FILE_BYTES_MAX, PERIOD_NS, duration_ns, inside_prefix};
use weir_meter::engine::{Inside, Unit};
use weir_meter::{Key, SessionInfo, list};

/// Count who used which service how much
///
/// Counts every frame of a capture, or of a live link, for exactly one
/// subscriber and service, in periods whose records add up to the totals of the
/// link. On a live link the kernel counts, beside the host's own stack; a
/// process that is killed loses nothing. What each key of the
/// configuration means is in docs/reference/counter.md.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  weir meter -r office.pcapng
  weir meter -r office.pcapng --inside 192.0.2.0/24 --inside 2001:db8::/32
  weir meter -r office.pcapng --config counter.toml --json
  weir meter --config counter.toml --check

Without --read the link of the configuration is metered, as root: see docs/how-to/meter.md.

Without --config each address of a private network (RFC 1918, RFC 4193), or of --inside, is a
subscriber, and there are a few common services.

Exit status: 0; 1 if a capture is damaged or cannot be read, or an expression means nothing on one
of its link types (what was read is reported); 2 if the configuration or the list of subscribers is
refused; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM (what was read is reported).")]
pub(crate) struct Args {
    /// Count the frames of a capture; `-` is standard input
    #[arg(short, long, value_name = "FILE", required_unless_present = "config")]
    read: Option<PathBuf>,

    /// The configuration
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Only check the configuration and its list of subscribers
    #[arg(long, conflicts_with = "read", requires = "config")]
    check: bool,

    /// Print the records, and each period's totals, as lines of JSON
    #[arg(long)]
    json: bool,

    /// Length of a period, such as 30s, 5m or 1h, in place of the configuration's
    #[arg(long, value_name = "TIME", value_parser = period)]
    period: Option<u64>,

    /// Networks of the subscribers, in place of the configuration's
    #[arg(long, value_name = "NET", value_parser = inside_prefix)]
    inside: Vec<Key>,

    /// Bytes of IP packets (ip) or of frames (wire), in place of the configuration's
    #[arg(long, value_name = "UNIT", value_parser = unit)]
    bytes: Option<Unit>,

    /// Subscribers to show, those with the most bytes; 0 for all
    #[arg(long, value_name = "N", default_value_t = 50, conflicts_with = "json")]
    top: usize,

    /// Where the records are kept, for `weir usage` [default: as `weir usage`
    /// has it]
    #[arg(long, value_name = "FILE", conflicts_with = "no_store")]
    store: Option<PathBuf>,

    /// Do not keep the records of a capture; those of a live link stay in the
    /// spool, for `weir mediate`
    #[arg(long)]
    no_store: bool,

    /// Where the records of a live link are until the ledger has them
    /// [default: COUNTER.spool beside the store; STORE.COUNTER.spool if its name
    /// is not usage.db]
    #[arg(long, value_name = "FILE", conflicts_with = "read")]
    spool: Option<PathBuf>,

    /// Leave the kernel counting when this process ends, for the next one:
    /// no frame is missing in between
    #[arg(long, conflicts_with = "read")]
    keep: bool,

    /// Serve metrics of a live link for Prometheus at this address, at
    /// /metrics; port 0 chooses a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics::address, conflicts_with = "read")]
    metrics: Option<SocketAddr>,

    /// Write statistics of a live link to this file each second, as JSON; `-`
    /// is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "read")]
    stats_json: Option<PathBuf>,

    /// Take sessions of a live link from programs, too, over a Unix socket made
    /// at this path: lines of JSON, as docs/reference/counter.md has them
    #[arg(long, value_name = "PATH", conflicts_with = "read")]
    control: Option<PathBuf>,

    /// A file with the nanoseconds by which the wall clock is set, for tests
    #[arg(long, hide = true, value_name = "FILE")]
    wall_set: Option<PathBuf>,

    /// Take off the link what an earlier process has left, with its counts
    #[arg(long, conflicts_with_all = ["read", "keep"], requires = "config")]
    clean: bool,
}

impl Args {
    /// Where the records of a live link go.
    fn stores(&self) -> Stores<'_> {
        Stores {
            store: self.store.as_deref(),
            spool: self.spool.as_deref(),
            no_store: self.no_store,
            wall_set: self.wall_set.as_deref(),
        }
    }

    /// The options of a live link with this configuration.
    fn live(config: &Path, store: Option<&Path>, spool: Option<&Path>, no_store: bool) -> Args {
        Args {
            read: None,
            config: Some(config.to_owned()),
            check: false,
            json: false,
            period: None,
            inside: Vec::new(),
            bytes: None,
            top: 0,
            store: store.map(Path::to_owned),
            no_store,
            spool: spool.map(Path::to_owned),
            keep: false,
            metrics: None,
            stats_json: None,
            control: None,
            clean: false,
            wall_set: None,
        }
    }
}

fn period(text: &str) -> Result<u64, String> {
    let ns = duration_ns(text)?;
    if (PERIOD_NS[0]..=PERIOD_NS[1]).contains(&ns) {
        Ok(ns)
    } else {
        Err("a period is from 1s to 1d".into())
    }
}

fn unit(text: &str) -> Result<Unit, String> {
    match text {
        "ip" => Ok(Unit::Ip),
        "wire" => Ok(Unit::Wire),
        _ => Err("there are ip and wire".into()),
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let names = SystemNames::new();
    let (config, text) = configuration(args, &names)?;
    let subscribers = subscribers(args, &config, &text)?;
    drop(text);
    let source = args.config.as_deref().unwrap_or(Path::new(""));
    if args.check {
        let name = args
            .config
            .as_deref()
            .map_or_else(String::new, config::name);
        let list = match &config.subscribers {
            Some(_) => {
                let count = format::counted(subscribers.len() as u64, "subscriber");
                format!(" ({count})")
            }
            None => String::new(),
        };
        let said = live::check(&config, source, subscribers.len(), &names)?;
        writeln!(std::io::stdout(), "{name}: good{list}").map_err(CliError::output)?;
        if !said.is_empty() {
            say(&format!("weir: {said}"));
        }
        return Ok(());
    }
    match &args.read {
        Some(path) => capture::run(args, &config, &subscribers, &names, path),
        None if args.clean => live::clean(&config),
        None => live::run(args, &config, source, &subscribers, &names),
    }
}

/// The configuration with the options of the command line, and its text.
fn configuration(args: &Args, names: &SystemNames) -> Result<(Config, String), CliError> {
    let (mut config, text) = match &args.config {
        None => (Config::default(), String::new()),
        Some(path) => {
            let text = read_limited::text(path, FILE_BYTES_MAX)?;
            let config = Config::parse(&text, names).map_err(|error| {
                let wrong = match error.at {
                    Some(at) => Wrong::at(&text, at, &error),
                    None => Wrong::in_all(&error),
                };
                wrong.refused(path)
            })?;
            (config, text)
        }
    };
    if !args.inside.is_empty() {
        config.inside = Inside::Prefixes(args.inside.clone());
    }
    config.period_ns = args.period.unwrap_or(config.period_ns);
    config.unit = args.bytes.unwrap_or(config.unit);
    Ok((config, text))
}

/// The sessions of the list of subscribers, if there is one.
fn subscribers(args: &Args, config: &Config, text: &str) -> Result<Vec<SessionInfo>, CliError> {
    let (Some((file, at)), Some(source)) = (&config.subscribers, &args.config) else {
        return Ok(Vec::new());
    };
    // Beside the configuration, if the path is relative.
    let folder = source.parent().unwrap_or(Path::new(""));
    let path = folder.join(file);
    let bytes = read_limited::read(&path, list::FILE_BYTES_MAX).map_err(|error| match error {
        CliError::Run(why) => {
            let why = format!("subscribers = `{file}`: {why}");
            CliError::run(Wrong::at(text, *at, why).of(config::name(source)))
        }
        other => other,
    })?;
    let capacity = config.capacity.unwrap_or(CAPACITY);
    let (keys, policies) = (&config.keys, &config.policies);
    let listed = list::read_with_policies(&bytes, keys, policies, capacity, seed())
        .map_err(|errors| CliError::refused(errors.of(path.display())))?;
    if listed.is_empty() {
        say(&format!(
            "weir: {}: it names no subscriber: write lines such as alice,192.0.2.1",
            path.display()
        ));
    }
    Ok(listed)
}

/// A random number.
fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
