//! `weir bridge`: a transparent bridge that survives its own failure.

mod flow_cache;
mod report;

use crate::cmd::meter::forwarding::{self as meter, Done, Links, MeterArgs, Metering};
use crate::cmd::supervisor::{self, Supervised};
use crate::error::{CliError, say};
use crate::idle_links::IdleLinks;
use crate::input::on_off::OnOff;
use crate::input::tap_args::{StatsArgs, TapArgs};
use crate::longest::MtuWarnings;
use crate::report::metrics::Metrics;
use crate::report::stats_file::StatsFile;
use crate::report::tx_burst::TxBurstReport;
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use clap::Parser;
use clap::builder::ArgPredicate;
use report::Report;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_tap::switch::{Decision, Settings, Switch, Vlans};
use weir_tap::{
    Bridge, BridgeFlowKind, Bypass, Config, Context, CopyMode, Frame, Mode, Tap, TapError, Verdict,
};

/// Join two interfaces by a learning bridge in user space
///
/// The host's own protocols get no frames from either interface meanwhile. A
/// program in the kernel watches this process: see --bypass.
#[derive(clap::Args, Debug)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  weir bridge eth1 eth2
  weir bridge eth1 eth2 --bypass wire --restart
  weir bridge eth1 eth2 --clean             # take apart what stayed joined
  weir bridge eth1 eth2 --meter counter.toml

Runs in the foreground and says `ready` on standard error when frames flow.

The bypass applies whenever weir does not run: killed, hung, or ended by a signal. With `kernel` the
interfaces are as before; `wire` and `drop` stay until the next `weir bridge` is ready, or until
--clean. With --restore, SIGINT and SIGTERM restore the interfaces in any case.
docs/how-to/bridge.md lists the failures that a bypass in software does not cover.

Exit status: 0, also after SIGINT, SIGTERM and SIGHUP; 1 if an interface is not there, a file
cannot be written or something else failed; 2 if an option is refused."
)]
pub(crate) struct Args {
    /// The first interface
    #[arg(value_name = "A")]
    a: String,

    /// The second interface
    #[arg(value_name = "B")]
    b: String,

    /// Path of frames while weir does not run: to the host (kernel), between
    /// the two links in the kernel (wire), or dropped (drop); with --meter the
    /// default is wire
    #[arg(
        long,
        value_name = "WHAT",
        default_value_t,
        default_value_if("meter", ArgPredicate::IsPresent, "wire")
    )]
    bypass: Bypass,

    /// Restart after a death, or after a hang of one second
    #[arg(long)]
    restart: bool,

    /// Remove from the interfaces what an earlier run has left, and exit
    #[arg(long)]
    clean: bool,

    /// VLANs that pass at A, such as 10,20-30,untagged; by default all
    #[arg(long, value_name = "LIST")]
    vlan_a: Option<Vlans>,

    /// VLANs that pass at B
    #[arg(long, value_name = "LIST")]
    vlan_b: Option<Vlans>,

    /// Spanning tree frames: pass or block
    #[arg(long, value_name = "WHAT", default_value = "pass")]
    stp: Choice,

    /// Frames to other reserved group addresses (LLDP, LACP, 802.1X): pass or
    /// block
    #[arg(long, value_name = "WHAT", default_value = "pass")]
    reserved: Choice,

    /// Seconds until a silent station is removed from the FDB
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    age: u32,

    /// Let the kernel forward between known stations by itself: on or off; then
    /// weir does not see every frame
    #[arg(long, alias = "fast-path", value_name = "WHAT", default_value = "off")]
    flow_cache: OnOff,

    /// Copy mode of AF_XDP: auto, copy or zero-copy
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = mode)]
    mode: Mode,

    /// Frames in each ring, a power of two: each takes 6 KiB of memory
    #[arg(long, value_name = "N", default_value_t = Config::ring_for(LINKS))]
    ring: u32,

    /// Let weir's system calls poll the devices, for this many microseconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000),
          allow_negative_numbers = true)]
    busy_poll_us: Option<u64>,

    /// Make a system call before and after each frame, to measure its cost
    #[arg(long, hide = true)]
    calls_each: bool,

    /// A hardware watchdog to feed, such as /dev/watchdog: the machine restarts
    /// when weir stops responding
    #[arg(long, value_name = "FILE")]
    watchdog: Option<PathBuf>,

    /// Print traffic and cost at the end
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    tap: TapArgs,

    #[command(flatten)]
    outputs: StatsArgs,

    /// Started by --restart
    #[arg(long, hide = true)]
    supervised: bool,

    #[command(flatten)]
    metering: MeterArgs,
}

/// A bridge by its options alone.
#[derive(clap::Parser, Debug)]
struct Options {
    #[command(flatten)]
    args: Args,
}

/// Whether frames pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Choice {
    Pass,
    Block,
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "auto" => Ok(Mode::Auto),
        "copy" => Ok(Mode::Only(CopyMode::Copy)),
        "zero-copy" => Ok(Mode::Only(CopyMode::ZeroCopy)),
        _ => Err(format!(
            "`{text}` is not a mode: give auto, copy or zero-copy"
        )),
    }
}

/// Number of links of a bridge.
const LINKS: usize = 2;

/// Largest number of flow cache entries.
const FLOW_ENTRIES_MAX: u32 = 8192;

/// Interval of writes to the statistics file.
const WRITE: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if args.clean {
        return clean(args);
    }
    // A restarted bridge does not fail because of its statistics.
    let json = args.outputs.stats_json.as_deref().map(|path| {
        if args.supervised {
            Ok(StatsFile::of(path))
        } else {
            StatsFile::open(path)
        }
    });
    let json = json.transpose()?;
    // Without privilege the process keeps its normal priority.
    let _ = weir_link::xdp::raise_priority();
    if args.restart && !args.supervised {
        return supervisor::supervise(Supervised::Bridge, args.watchdog.as_deref());
    }
    // With --restart the supervising process feeds the watchdog.
    let life = if args.supervised {
        supervisor::obey()?
    } else {
        Watchdog::new(args.watchdog.as_deref())?
    };
    let stop = ShutdownSignal::watch_hangup_too()?;
    let metrics = match args.outputs.metrics.map(Metrics::serve) {
        // As for statistics.
        Some(Err(error)) if args.supervised => {
            say(&format!("weir: {error}"));
            None
        }
        metrics => metrics.transpose()?,
    };
    let mut metering = args
        .metering
        .start(Links::of(&[&args.a, &args.b]), metrics.as_ref())?;
    let show = Show { json, metrics };
    let ran = bridge(args, &stop, life, show, metering.as_mut());
    let ended = metering.map_or(Ok(()), |metering| {
        metering.end(args.leaves_programs()).map(drop)
    });
    ran.and(ended)
}

/// A bridge for `weir meter`, which stays joined by the kernel. Gives what the counter has done.
pub(crate) fn in_the_wire(
    inside: &str,
    outside: &str,
    mut metering: Metering,
    metrics: Option<Metrics>,
) -> Result<Done, CliError> {
    let words = ["weir", inside, outside, "--bypass", "wire"];
    let options = Options::try_parse_from(words).map_err(CliError::refused)?;
    let _ = weir_link::xdp::raise_priority();
    let stop = ShutdownSignal::watch_hangup_too()?;
    let life = Watchdog::new(None)?;
    let show = Show {
        json: None,
        metrics,
    };
    let ran = bridge(&options.args, &stop, life, show, Some(&mut metering));
    let ended = metering.end(options.args.leaves_programs());
    ran.and(ended)
}

impl Args {
    /// Whether the programs stay at the links after an orderly end.
    fn leaves_programs(&self) -> bool {
        self.bypass != Bypass::Kernel && !self.tap.restore
    }
}

/// Where reports go, beside `--stats`.
struct Show {
    json: Option<StatsFile>,
    metrics: Option<Metrics>,
}

impl Show {
    fn is_wanted(&self) -> bool {
        self.json.is_some() || self.metrics.is_some()
    }

    fn show(&mut self, report: &Report) {
        if let Some(file) = &mut self.json {
            // If the write fails now, the one at the end may succeed.
            let _ = file.write(report);
        }
        if let Some(metrics) = &self.metrics {
            metrics.show(report.prometheus());
        }
    }
}

fn bridge(
    args: &Args,
    stop: &ShutdownSignal,
    mut life: Watchdog,
    mut show: Show,
    mut metering: Option<&mut Metering>,
) -> Result<(), CliError> {
    let asked = weir_tap::StopToken::default();
    let mut bridge = Bridge::between(&args.a, &args.b)
        .map_err(failure)?
        .configure(|config| configure(config, args))
        .wake_on(stop.wakes()?)
        .until(&asked);
    if let Some([a, b]) = metering.as_deref().map(Metering::stages) {
        bridge = bridge.meter([a.clone(), b.clone()]);
    }
    if args.tap.restore {
        bridge = bridge.restore();
    }
    if args.flow_cache.is_on() {
        bridge = bridge.cache_verdicts(
            &[BridgeFlowKind::MacPair],
            FLOW_ENTRIES_MAX,
            Duration::from_secs(args.age.max(1).into()),
        );
    }
    let mut follower = flow_cache::Revalidator::default();
    let started = Instant::now();
    let second = Cell::new(0_u32);
    let switch = RefCell::new(Switch::new(settings(args), seed()));
    let mut last = Report::default();
    let mut longest = MtuWarnings::default();
    let mut idle = IdleLinks::default();
    let mut is_ready = false;
    let mut written = Instant::now();
    let ran = bridge.run_with(
        |frame, context| decide(&switch, second.get(), frame, context),
        |tap| {
            second.set(started.elapsed().as_secs() as u32);
            // Before `ready`: from then on frames are counted.
            if let Some(metering) = &mut metering {
                metering.look(tap);
            }
            idle.look(tap);
            if !std::mem::replace(&mut is_ready, true) {
                // The supervisor gets the message first, once the bridge was
                // ready.
                life.ready();
                introduce(args, tap);
            }
            life.beat();
            longest.warn(tap);
            if let Some(fast) = tap.flow_cache() {
                follower.follow(fast, &mut switch.borrow_mut(), second.get());
            }
            if stop.is_requested() {
                life.stopping();
                asked.stop();
            }
            if (args.stats || show.is_wanted())
                && (written.elapsed() >= WRITE || stop.is_requested() || last.is_empty())
            {
                written = Instant::now();
                last = Report::of(tap, &switch.borrow(), second.get(), args.tap.tx_burst);
                show.show(&last);
            }
        },
    );
    life.end(ran.is_ok());
    if let Ok(census) = &ran {
        last.end(census);
    }
    // A process that did not start has no report.
    let mut wrote = Ok(());
    if !last.is_empty() {
        if args.stats {
            say(&last.to_string());
        }
        wrote = show.json.map_or(Ok(()), |file| file.end(&last));
    }
    ran.map_err(failure)?;
    wrote
}

#[inline]
fn decide(switch: &RefCell<Switch>, now: u32, frame: &Frame, context: &mut Context<'_>) -> Verdict {
    let from = context.from();
    let mut switch = switch.borrow_mut();
    let decision = switch.decide(from, frame.bytes(), now);
    if let Some((vlan, station)) = switch.take_moved()
        && let Some(fast) = context.flow_cache()
    {
        fast.forget_station(vlan, station);
    }
    match decision {
        Decision::Port(_) => Verdict::ForwardAndCache(BridgeFlowKind::MacPair),
        Decision::Flood { vlan } if switch.passes(1 - from, vlan) => Verdict::Forward,
        Decision::Flood { .. } | Decision::Drop(_) => Verdict::Drop,
    }
}

/// A seed that peers do not know.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

fn settings(args: &Args) -> Settings {
    let all = |vlans: &Option<Vlans>| vlans.clone().unwrap_or_else(Vlans::all);
    Settings {
        vlans: vec![all(&args.vlan_a), all(&args.vlan_b)],
        stp: args.stp == Choice::Pass,
        reserved: args.reserved == Choice::Pass,
        age_max: args.age,
        ..Settings::wire(2)
    }
}

fn configure(config: &mut Config, args: &Args) {
    args.tap.apply(config);
    config.bypass = args.bypass;
    config.mode = args.mode;
    *config = config.with_rings(args.ring, LINKS);
    config.syscall_per_frame = args.calls_each;
    config.busy_poll = args.busy_poll_us.map(Duration::from_micros);
}

/// Prints the mode, and that frames are forwarded.
fn introduce(args: &Args, tap: &Tap) {
    let links = [&args.a, &args.b].into_iter().zip(tap.links());
    let modes: Vec<String> = links
        .filter_map(|(name, link)| {
            let (mode, hook) = tap.mode(link)?;
            let bulk = TxBurstReport::of(tap, link, args.tap.tx_burst);
            Some(format!("{name} by {mode} at {hook}{bulk}"))
        })
        .collect();
    say(&format!("weir: {}", modes.join("; ")));
    if let Some(fast) = tap.flow_cache_stats() {
        for (name, link) in [&args.a, &args.b].into_iter().zip(tap.links()) {
            if !fast.takes(link.number()) {
                say(&format!(
                    "weir: {name} does not accept redirected frames: no flow cache entries lead \
                     there; if it is a veth, `ethtool -K PEER gro on` for its other end"
                ));
            }
        }
    }
    say("ready");
}

fn clean(args: &Args) -> Result<(), CliError> {
    let found = Tap::clean(&[&args.a, &args.b]).map_err(failure)?;
    meter::clean(&[&args.a, &args.b])?;
    if !found {
        say(&format!("weir: nothing joins {} and {}", args.a, args.b));
    }
    Ok(())
}

fn failure(error: TapError) -> CliError {
    match error {
        TapError::Same { .. }
        | TapError::NotEthernet { .. }
        | TapError::Loopback { .. }
        | TapError::Setting { .. } => CliError::refused(error),
        error => CliError::run(error),
    }
}
