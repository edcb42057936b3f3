//! `weir bridge`: a transparent bridge that survives its own failure.

mod flow_cache;
mod report;

use crate::cmd::forwarder::{self, Forwarder, Outputs, failure, seed};
use crate::cmd::meter::forwarding::{Done, Links, MeterArgs, Metering};
use crate::cmd::supervisor::{self, Supervised};
use crate::error::{CliError, say};
use crate::input::on_off::OnOff;
use crate::input::tap_args::{StatsArgs, TapArgs};
use crate::report::metrics::Metrics;
use crate::report::stats_file::StatsFile;
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use clap::Parser;
use clap::builder::ArgPredicate;
use report::Report;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_link::net::Interface;
use weir_tap::switch::{Decision, Settings, Switch, Vlans};
use weir_tap::{
    Bridge, BridgeFlowKind, Bypass, Config, Context, CopyMode, Frame, Mode, Tap, Verdict,
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

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if args.clean {
        return forwarder::clean(&[&args.a, &args.b]);
    }
    if args.restart && !args.supervised {
        // A mistake is said at once, by one process, which keeps a pipe's reader from its end.
        let json = args.outputs.stats_json.as_deref();
        let _open = json.map(StatsFile::open).transpose()?;
        let _ = weir_link::xdp::raise_priority();
        return supervisor::supervise(Supervised::Bridge, args.watchdog.as_deref());
    }
    // With --restart the supervising process feeds the watchdog.
    let life = if args.supervised {
        supervisor::obey()?
    } else {
        Watchdog::new(args.watchdog.as_deref())?
    };
    let stop = ShutdownSignal::watch_hangup_too()?;
    let outputs = Outputs::open(&args.outputs, args.supervised)?;
    let forwarder = Forwarder::new(life, stop, outputs, args.tap.tx_burst);
    let links = Links::of(&[&args.a, &args.b]);
    let mut metering = args.metering.start(links, forwarder.metrics())?;
    let ran = bridge(args, forwarder, metering.as_mut());
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
    let stop = ShutdownSignal::watch_hangup_too()?;
    let outputs = Outputs {
        metrics,
        ..Outputs::default()
    };
    let tx_burst = options.args.tap.tx_burst;
    let forwarder = Forwarder::new(Watchdog::new(None)?, stop, outputs, tx_burst);
    let ran = bridge(&options.args, forwarder, Some(&mut metering));
    let ended = metering.end(options.args.leaves_programs());
    ran.and(ended)
}

impl Args {
    /// Whether the programs stay at the links after an orderly end.
    fn leaves_programs(&self) -> bool {
        self.bypass != Bypass::Kernel && !self.tap.restore
    }
}

fn bridge(
    args: &Args,
    mut forwarder: Forwarder,
    mut metering: Option<&mut Metering>,
) -> Result<(), CliError> {
    let asked = weir_tap::StopToken::default();
    let mut bridge = Bridge::between(&args.a, &args.b)
        .map_err(failure)?
        .configure(|config| configure(config, args))
        .wake_on(forwarder.wakes()?)
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
    let ran = bridge.run_with(
        |frame, context| decide(&switch, second.get(), frame, context),
        |tap| {
            second.set(started.elapsed().as_secs() as u32);
            // Before `ready`: from then on frames are counted.
            if let Some(metering) = &mut metering {
                metering.look(tap);
            }
            forwarder.look(tap, false, |modes| introduce(tap, modes));
            if let Some(fast) = tap.flow_cache() {
                follower.follow(fast, &mut switch.borrow_mut(), second.get());
            }
            let is_asked = forwarder.is_asked();
            if is_asked {
                asked.stop();
            }
            if forwarder.is_due(args.stats) || is_asked {
                last = Report::of(tap, &switch.borrow(), second.get(), args.tap.tx_burst);
                forwarder.show(&last);
            }
        },
    );
    let outputs = forwarder.end(ran.is_ok());
    if let Ok(census) = &ran {
        last.end(census);
    }
    // A process that did not start has no report.
    if args.stats && !last.is_empty() {
        say(&last.to_string());
    }
    let written = outputs.end(Some(&last));
    ran.map_err(failure)?;
    written
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

/// Prints the modes, and to which links the kernel cannot forward by itself.
fn introduce(tap: &Tap, modes: &str) {
    say(modes);
    if let Some(fast) = tap.flow_cache_stats() {
        for link in tap.links().filter(|link| !fast.takes(link.number())) {
            if let Some(Interface { name, .. }) = tap.interface(link) {
                say(&format!(
                    "weir: {name} does not accept redirected frames: no flow cache entries lead \
                     there; if it is a veth, `ethtool -K PEER gro on` for its other end"
                ));
            }
        }
    }
}
