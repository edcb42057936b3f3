//! `weir run`: a chain of network functions between an inside and an outside;
//! `weir nat`, `weir nat64`, `weir balance` and `weir ipsec` are short for configurations of it.

pub(crate) mod balance;
mod explain;
pub(crate) mod ipsec;
mod kernel_sas;
mod log;
pub(crate) mod nat;
pub(crate) mod nat64;
mod report;
mod servers;
mod state;
mod strongswan;

use crate::cmd::forwarder::{self, Forwarder, Outputs, seed};
use crate::cmd::meter::forwarding::{Links, MeterArgs, Metering, View};
use crate::cmd::supervisor::{self, Supervised};
use crate::config::{self, Wrong};
use crate::error::{CliError, say};
use crate::input::on_off::OnOff;
use crate::input::read_limited;
use crate::input::tap_args::{StatsArgs, TapArgs, with_queues};
use crate::report::stdout;
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use ipsec::{Rereader, Sas};
use report::Report;
use servers::ServersRereader;
use state::StateMemory;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use weir_apps::chain::BoxConfig;
use weir_apps::router::engine::config::{ConfigError as RouterError, FILE_BYTES_MAX};
use weir_apps::router::{self, RunError, Snapshot, Stages};
use weir_chain::Chain;
use weir_chain::config::{ConfigError, Context, SaSource};
use weir_chain::nat::Prefix;
use weir_link::names::SystemNames;
use weir_link::net::Interface;
use weir_tap::{Bypass, FLOW_ENTRIES_MAX, FlowCacheConfig, FlowKind};

/// Run a chain of network functions between an inside and an outside
///
/// The configuration is that of a router (docs/reference/router.md), with the
/// link that is the outside, and the stages between router and outside, in
/// order: `mark`, `drop`, `police`, `nat`, `nat64`, `balance`,
/// `ipsec`. A link may have a
/// scheduler of what leaves it, and a meter may count who used what.
/// docs/reference/box.md explains each key.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir run box.toml
  weir run box.toml --check
  weir run box.toml --explain -r office.pcapng   # what each stage does to each flow
  weir run box.toml --stats-json -

A translator of two links:
  outside = \"eth1\"
  [[link]]
  name = \"eth0\"
  [[link]]
  name = \"eth1\"
  [kernel]
  routes = true
  [[stage]]
  kind = \"nat\"

Runs in the foreground and says `ready` on standard error when frames flow.

With a stage `ipsec` that has a file, SIGHUP has weir read it again. With a stage `balance`,
SIGHUP has weir read FILE again for other servers, weights and `draining`: sessions of servers
that stay go on.

Exit status: 0, also after SIGINT, SIGTERM and SIGHUP; 1 if an interface is not there, a file
cannot be written or something else failed; 2 if the configuration or an option is refused.")]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    config: PathBuf,

    /// Only check the configuration against the existing interfaces
    #[arg(long, conflicts_with_all = ["clean", "explain"])]
    check: bool,

    /// Show what the stages do to each flow of a capture, and the entry that it
    /// folds to, without any interface
    #[arg(long, requires = "read")]
    explain: bool,

    /// The capture to explain
    #[arg(short, long, value_name = "FILE", requires = "explain")]
    read: Option<PathBuf>,

    #[command(flatten)]
    live: LiveArgs,
}

/// Options of a chain on live links.
#[derive(clap::Args, Debug)]
pub(crate) struct LiveArgs {
    /// Remove from the interfaces what an earlier run has left, and exit
    #[arg(long)]
    clean: bool,

    /// Path of frames while weir does not run: to the host (kernel), or dropped
    /// (drop); by default dropped if a stage translates, drops or protects, otherwise to
    /// the host
    #[arg(long, value_name = "WHAT")]
    bypass: Option<Bypass>,

    /// Run a second process that starts this one anew when it dies or hangs. The
    /// sessions of a translator go on after an orderly end, as by SIGUSR1, which
    /// has it start anew with the changed configuration; not after a kill or a
    /// hang
    #[arg(long, conflicts_with_all = ["restore", "clean"])]
    restart: bool,

    /// Started by --restart
    #[arg(long, hide = true)]
    supervised: bool,

    /// The supervisor's memory for the state
    #[arg(long, value_name = "N", hide = true, requires = "supervised")]
    state_fd: Option<u32>,

    /// Let the kernel treat further frames of a flow by itself as the stages did
    /// the first ones: on or off; then weir does not see every frame
    #[arg(long, value_name = "WHAT", default_value = "on")]
    flow_cache: OnOff,

    /// Flows that the kernel treats by itself, at most
    #[arg(long, value_name = "N", default_value_t = 65_536,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(FLOW_ENTRIES_MAX)),
          allow_negative_numbers = true)]
    flow_entries: u32,

    /// Frames in each ring, a power of two; by default 16384 for two links,
    /// 4096 for eight
    #[arg(long, value_name = "N")]
    ring: Option<u32>,

    #[command(flatten)]
    tap: TapArgs,

    #[command(flatten)]
    outputs: StatsArgs,
}

/// A configuration's text and the name that messages give it.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Source {
    /// The refusal of the configuration with this error.
    pub(crate) fn wrong(&self, error: &ConfigError) -> CliError {
        let message = config::plain(&error.message);
        let wrong = match error.at {
            Some(at) => Wrong::at(&self.text, at, message),
            None => Wrong::in_all(message),
        };
        CliError::refused(wrong.of(self.name.clone()))
    }

    fn router_wrong(&self, error: &RouterError) -> CliError {
        self.wrong(&ConfigError {
            at: error.at(&self.text),
            message: error.to_string(),
        })
    }

    fn failure(&self, error: RunError) -> CliError {
        match error {
            RunError::Config(wrong) => self.router_wrong(&wrong),
            RunError::Host(_) | RunError::NotEthernet { .. } => CliError::refused(error),
            RunError::Tap(error) => forwarder::failure(error),
            error => CliError::run(error),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if args.live.restart && args.config == Path::new("-") {
        return Err(CliError::refused(
            "--restart reads the configuration at each start: give a file, not `-`",
        ));
    }
    let source = Source {
        name: config::name(&args.config),
        text: read_limited::text(&args.config, FILE_BYTES_MAX)?,
    };
    let config = parse(&source)?;
    let directory = args.config.parent().unwrap_or(Path::new(""));
    if let (true, Some(capture)) = (args.explain, &args.read) {
        let own = own_addresses(&config).unwrap_or_default();
        return explain::explain(&source, &config, &own, (capture, directory));
    }
    let file = Some(args.config.as_path());
    live(&source, config, &args.live, args.check, directory, file)
}

fn parse(source: &Source) -> Result<BoxConfig, CliError> {
    BoxConfig::parse(&source.text, &SystemNames::new()).map_err(|error| source.wrong(&error))
}

/// The addresses of the interface of the outside, with prefix lengths.
fn own_addresses(config: &BoxConfig) -> Result<Vec<String>, RunError> {
    let interface = Interface::named(&config.router.links[config.outside].name)?;
    Ok(texts(&interface))
}

fn texts(interface: &Interface) -> Vec<String> {
    let addresses = interface.addresses.iter();
    addresses
        .map(|address| format!("{}/{}", address.ip, address.prefix_len))
        .collect()
}

/// The own addresses on all links, with their networks, as far as interfaces are there.
fn networks(config: &BoxConfig) -> Vec<Prefix> {
    config.networks(|name| {
        let interface = Interface::named(name).ok()?;
        Some(texts(&interface))
    })
}

fn chain(
    source: &Source,
    config: &BoxConfig,
    own: &[String],
    networks: &[Prefix],
    source_of_sas: Option<&Sas>,
    began: Instant,
) -> Result<Chain, CliError> {
    let sas = source_of_sas.map(Sas::read).transpose()?;
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let epoch = epoch.map(|time| time.saturating_sub(began.elapsed()));
    let outside = config.outside_addresses(own);
    let made = config.chain(&Context {
        seed: seed(),
        epoch: epoch.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        outside: &outside,
        networks,
        ipsec: sas.as_ref().zip(source_of_sas.map(Sas::reload)),
        is_one_armed: config.is_one_armed(),
    });
    made.map_err(|error| source.wrong(&error))
}

/// Checks all of a configuration; interfaces that are not there come last. The stages are checked with
/// addresses that stand for those of the outside's interface, if that is missing.
fn check(
    source: &Source,
    mut config: BoxConfig,
    args: &LiveArgs,
    directory: &Path,
) -> Result<(), CliError> {
    let own = own_addresses(&config);
    let mut wrong = Vec::new();
    match checked_chain(source, &config, own.as_deref().ok(), directory) {
        Ok(chain) => wrong.extend(bypass(args.bypass, &chain).err()),
        Err(error) => wrong.push(error),
    }
    let shapers = config.shapers::<weir_tap::Frame>(seed());
    wrong.extend(shapers.err().map(|error| source.wrong(&error)));
    wrong.extend(tap(args, Bypass::Drop, &config).err());
    let metering = MeterArgs::default().or(config.router.meter.as_ref(), directory);
    let metering = metering.and_then(|metering| metering.check(&Links::of_chain(&config)));
    wrong.extend(metering.err());
    if let Ok(own) = &own {
        config.add_pool(own);
    }
    let of_router = router::check(&config.router).into_iter();
    wrong.extend(of_router.map(|error| source.failure(error)));
    CliError::all(wrong)
}

/// The stages, with the outside's own addresses or, while they are not known, with others.
fn checked_chain(
    source: &Source,
    config: &BoxConfig,
    own: Option<&[String]>,
    directory: &Path,
) -> Result<Chain, CliError> {
    let stand_in = config.stand_in_addresses();
    let sas = Sas::of(config, own.unwrap_or_default(), directory);
    let sas = match own {
        Some(_) => sas,
        None => sas.map(Sas::of_any_address),
    };
    let own = own.unwrap_or(&stand_in);
    let networks = networks(config);
    chain(source, config, own, &networks, sas.as_ref(), Instant::now())
}

/// Prints the configuration that options stand for, if `weir run` would accept it. Interfaces, and a file of
/// SAs, need not be there.
fn print(source: &Source) -> Result<(), CliError> {
    let config = parse(source)?;
    let own = own_addresses(&config).ok();
    let has_sas = match config.sa_source() {
        None => true,
        Some(SaSource::File(file)) => Path::new(file).exists(),
        Some(SaSource::Kernel | SaSource::Strongswan { .. }) => false,
    };
    if has_sas {
        checked_chain(source, &config, own.as_deref(), Path::new(""))?;
    }
    stdout::text(&source.text)
}

/// Runs, checks or cleans up a chain on live links. The log's path is relative
/// to `directory`; `file` has the configuration, if it is of a file.
fn live(
    source: &Source,
    mut config: BoxConfig,
    args: &LiveArgs,
    is_check: bool,
    directory: &Path,
    file: Option<&Path>,
) -> Result<(), CliError> {
    let failure = |error| source.failure(error);
    if args.clean {
        let links = config.router.links.iter();
        let links: Vec<&str> = links.map(|link| &*link.name).collect();
        return forwarder::clean(&links);
    }
    if is_check {
        let mut text = format!("{}: good\n", source.name);
        for (link, scheduler) in config.scheduled() {
            let classes = scheduler.classes.iter().map(|class| &*class.name);
            text += &format!(
                "{link} sends {} b/s at most, by classes: {}\n",
                scheduler.scheduler.rate * 8,
                classes.collect::<Vec<_>>().join(", ")
            );
        }
        check(source, config, args, directory)?;
        return stdout::text(&text);
    }
    let metering = MeterArgs::default().or(config.router.meter.as_ref(), directory)?;
    let metered = Links::of_chain(&config);
    if args.restart && !args.supervised {
        ipsec::check_restart(&config)?;
        // Mistakes are said at once, by one process.
        let own = own_addresses(&config).map_err(failure)?;
        let sas = Sas::of(&config, &own, directory);
        let networks = networks(&config);
        let chain = chain(
            source,
            &config,
            &own,
            &networks,
            sas.as_ref(),
            Instant::now(),
        )?;
        let bypass = bypass(args.bypass, &chain)?;
        metering.check(&metered)?;
        supervisor::supervise(Supervised::Chain, None)?;
        say_if_shut(bypass, &config);
        return Ok(());
    }
    let mut life = if args.supervised {
        supervisor::obey()?
    } else {
        Watchdog::new(None)?
    };
    let memory = args.state_fd.map(StateMemory::open).transpose()?;
    let saved = memory
        .as_ref()
        .and_then(|memory| life.during(|| memory.read()));
    let began = saved
        .as_ref()
        .map_or_else(Instant::now, |saved| saved.began);
    let own = own_addresses(&config).map_err(failure)?;
    let sas = Sas::of(&config, &own, directory);
    let networks = networks(&config);
    let mut chain = chain(source, &config, &own, &networks, sas.as_ref(), began)?;
    if let Some(saved) = saved {
        life.during(|| saved.give(&mut chain));
    }
    config.add_pool(&own);
    let bypass = bypass(args.bypass, &chain)?;
    let shapers = config.shapers(seed());
    let shapers = shapers.map_err(|error| source.wrong(&error))?;
    let tap = tap(args, bypass, &config)?;
    let log = log::sink(&config, directory)?;
    let outputs = Outputs::open(&args.outputs, args.supervised)?;
    let metrics = outputs.metrics.clone();
    let servers = ServersRereader::watch(source, &config, file)?;
    let stop = if sas.as_ref().is_some_and(Sas::is_reread) || servers.is_some() {
        ShutdownSignal::watch()?
    } else {
        ShutdownSignal::watch_hangup_too()?
    };
    let mut forwarder = Forwarder::new(life, stop, outputs, args.tap.tx_burst);
    let rereader = sas.map(Sas::watch).transpose()?.flatten();
    let mut metering = forwarder
        .life
        .during(|| metering.start(metered, metrics.as_ref()))?;
    let counter = match &metering {
        // Verifying its programs may take long.
        Some(metering) => forwarder.life.during(|| metering.process_counter())?,
        None => None,
    };
    let meters = metering
        .as_ref()
        .map_or(Vec::new(), |metering| metering.stages().to_vec());
    let mut teller = Teller {
        forwarder,
        meter: metering.as_ref().map(Metering::shown),
        is_unmetered_said: false,
        end: None,
    };
    let wakes = vec![teller.forwarder.wakes()?];
    let stages = Stages {
        chain,
        outside: config.outside,
        began,
        log,
        shapers,
        counter,
    };
    let ran = router::run_through(
        &config.router,
        tap,
        &meters,
        Some(stages),
        args.tap.restore,
        wakes,
        |view| {
            if let Some(metering) = &mut metering {
                metering.look(view.tap);
            }
            let asked = teller.forwarder.is_asked();
            let is_ready = teller.forwarder.is_ready();
            if let (false, false, Some(memory)) = (view.is_last, is_ready, &memory) {
                // Before the first frame.
                memory.empty();
            }
            if let (true, true, Some(memory), Some(chain)) =
                (view.is_last, asked, &memory, view.chain)
                && let Err(error) = teller.forwarder.life.during(|| memory.put(chain, began))
            {
                say(&format!("weir: the state is lost: {error}"));
            }
            teller.tell(&view);
            rereader.iter().for_each(Rereader::look);
            servers.iter().for_each(ServersRereader::look);
            if asked {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    let Teller {
        forwarder,
        meter: shown,
        end,
        ..
    } = teller;
    let outputs = forwarder.end(ran.is_ok());
    // Frames that pass the host by are not counted any more.
    let stays = bypass != Bypass::Kernel && !args.tap.restore;
    let metered = metering.map_or(Ok(()), |metering| metering.end(stays).map(drop));
    let end = end.map(|report| report.with_meter(shown.as_ref()));
    if let Err(error) = outputs.end(end.as_ref()) {
        say(&format!("weir: {error}"));
    }
    ran.map_err(failure)?;
    metered?;
    // Else the supervisor says it.
    if !args.supervised {
        say_if_shut(bypass, &config);
    }
    Ok(())
}

/// Says at the end that the links stay shut.
fn say_if_shut(bypass: Bypass, config: &BoxConfig) {
    if bypass == Bypass::Drop {
        let links = config.router.links.iter().map(|link| &*link.name);
        say(&format!(
            "weir: frames at {} are dropped until weir runs there again, or until this command with \
             --clean",
            links.collect::<Vec<_>>().join(", ")
        ));
    }
}

/// Where frames go while weir does not run.
fn bypass(asked: Option<Bypass>, chain: &Chain) -> Result<Bypass, CliError> {
    let strict = chain.stages().find(|(stage, _)| !stage.may_bypass());
    let strict = strict.map(|(stage, _)| stage.kind());
    match (asked, strict) {
        (Some(Bypass::Wire), None) => Err(CliError::refused(
            "--bypass wire: a router's links cannot be joined: use kernel or drop",
        )),
        (Some(bypass @ (Bypass::Wire | Bypass::Kernel)), Some(kind)) => {
            Err(CliError::refused(format!(
                "--bypass {bypass}: frames would pass without the stage `{kind}`, untranslated, \
                 unfiltered or unprotected: use drop"
            )))
        }
        (Some(bypass), _) => Ok(bypass),
        (None, Some(_)) => Ok(Bypass::Drop),
        (None, None) => Ok(Bypass::Kernel),
    }
}

/// The configuration of the tap, with memory for the frames that wait in queues.
fn tap(args: &LiveArgs, bypass: Bypass, config: &BoxConfig) -> Result<weir_tap::Config, CliError> {
    let links = config.router.links.len();
    let tap = weir_tap::Config {
        bypass,
        held: config.chunks_max(),
        flow_cache: args.flow_cache.is_on().then_some(FlowCacheConfig {
            kinds: &[FlowKind::FiveTuple],
            entries_max: args.flow_entries,
        }),
        ..args.tap.config()
    };
    let ring = args.ring.unwrap_or(weir_tap::Config::ring_for(links));
    with_queues(tap, ring, links)
}

/// Reports on a running chain.
struct Teller {
    forwarder: Forwarder,
    /// The counter's state, if there is one.
    meter: Option<Arc<Mutex<View>>>,
    is_unmetered_said: bool,
    /// The report of the end.
    end: Option<Report>,
}

impl Teller {
    fn tell(&mut self, view: &Snapshot<'_>) {
        self.forwarder.look(view.tap, view.is_last, |modes| {
            let stages = view.chain.into_iter().flat_map(Chain::stages);
            let kinds: Vec<&str> = stages.map(|(stage, _)| stage.kind()).collect();
            let shaped = view.names.iter().zip(view.shapers);
            let shaped = shaped.filter(|(_, shaper)| shaper.is_some());
            let shaped: Vec<&str> = shaped.map(|(name, _)| &**name).collect();
            let schedulers = if shaped.is_empty() {
                String::new()
            } else {
                format!("; schedulers: {}", shaped.join(", "))
            };
            say(&format!(
                "{modes}; stages: {}{schedulers}",
                kinds.join(", ")
            ));
        });
        self.forwarder.say_refused(view.host_refused);
        if view.unmetered > 0 && !std::mem::replace(&mut self.is_unmetered_said, true) {
            say(
                "weir: the kernel does not meter all frames of the outside behind the stages: they \
                 count as unattributed",
            );
        }
        if view.is_last {
            self.end = Some(Report::new(view));
            return;
        }
        if self.forwarder.is_due(false) {
            let report = Report::new(view).with_meter(self.meter.as_ref());
            self.forwarder.show(&report);
        }
    }
}

/// Whether a text is an IPv4 address, for options.
fn is_v4(text: &str) -> bool {
    matches!(text.parse(), Ok(IpAddr::V4(_)))
}
