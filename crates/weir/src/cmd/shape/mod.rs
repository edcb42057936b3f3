//! `weir shape`: a bump in the wire that schedules what leaves each of two links.

mod report;

use crate::cmd::forwarder::{self, Forwarder, Outputs, failure, seed};
use crate::cmd::run::Source;
use crate::cmd::run::nat::quoted;
use crate::config;
use crate::error::{CliError, say};
use crate::input::read_limited;
use crate::input::tap_args::{StatsArgs, TapArgs, with_queues};
use crate::report::stdout;
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use clap::ValueEnum;
use report::Report;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use weir_apps::router::engine::config::FILE_BYTES_MAX;
use weir_apps::shape::config::{LinkConfig, ShapeConfig};
use weir_apps::shape::{self, Shaper};
use weir_chain::config::ConfigError;
use weir_link::names::SystemNames;
use weir_link::net::Interface;
use weir_tap::{Bypass, Config, Frame};

/// Shape what leaves two interfaces that weir joins
///
/// A bridge of A and B, as `weir bridge`, that sends on each of them no faster
/// than a rate. Frames that have to wait are queued in user space: by flow
/// (FQ-CoDel, RFC 8290), or in one queue with active management (CoDel, RED) or
/// without (FIFO). Short for a configuration with classes, which --print shows;
/// docs/reference/shape.md explains each key.
#[derive(clap::Args, Debug)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  weir shape eth0 eth1 --rate 100M --by source
  weir shape eth0 eth1 --rate 100M --rate-a 20M --by inside
  weir shape eth0 eth1 --rate 100M --queue red
  weir shape eth0 eth1 --rate 100M --print > shape.toml
  weir shape --config shape.toml --check
  weir shape --config shape.toml --stats-json -
  weir shape eth0 eth1 --clean              # take apart what stayed joined

Two classes of what leaves eth1:
  links = [\"eth0\", \"eth1\"]
  [[scheduler]]
  link = \"eth1\"
  rate = \"100M\"
  order = \"priority\"
  [[scheduler.class]]
  match = \"udp dst port 5060\"
  queue = \"fifo\"
  [[scheduler.class]]
  by = \"source\"

Runs in the foreground and says `ready` on standard error when frames flow.

The bypass applies whenever weir does not run: killed, hung, or ended by a signal. By default the
two interfaces stay joined (wire) by the kernel, unshaped. With --restore, SIGINT and SIGTERM
restore the interfaces in any case. Frames that wait when weir ends are dropped, and counted as
flushed.

Exit status: 0, also after SIGINT, SIGTERM and SIGHUP; 1 if an interface is not there, a file
cannot be written or something else failed; 2 if the configuration or an option is refused."
)]
pub(crate) struct Args {
    /// The first interface, for example of the inside
    #[arg(value_name = "A", required_unless_present = "config", requires = "b")]
    a: Option<String>,

    /// The second interface
    #[arg(value_name = "B")]
    b: Option<String>,

    /// The configuration, instead of A and B
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["a", "rate", "rate_a", "by", "queue", "burst", "print"])]
    config: Option<PathBuf>,

    /// Bits per second that leave each interface, such as 100M
    #[arg(long, value_name = "RATE", value_parser = rate, required_unless_present_any = ["config", "clean"])]
    rate: Option<String>,

    /// Bits per second that leave A, if another rate
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate_a: Option<String>,

    /// Whose frames have a queue each: those of a flow, of a source address, of a
    /// destination address, or of an address behind A (inside); of FQ-CoDel
    #[arg(long, value_name = "WHAT")]
    by: Option<By>,

    /// The queue
    #[arg(long, value_name = "KIND", default_value = "fq-codel")]
    queue: QueueKind,

    /// Bytes that may leave at once after a pause, by default those of 4 ms
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    burst: Option<String>,

    /// Only print the configuration
    #[arg(long)]
    print: bool,

    /// Only check the configuration against the existing interfaces
    #[arg(long, conflicts_with = "clean")]
    check: bool,

    /// Remove from the interfaces what an earlier run has left, and exit
    #[arg(long)]
    clean: bool,

    /// Path of frames while weir does not run: between the two links in the
    /// kernel (wire), to the host (kernel), or dropped (drop)
    #[arg(long, value_name = "WHAT", default_value = "wire")]
    bypass: Bypass,

    /// Frames in each ring, a power of two
    #[arg(long, value_name = "N", default_value_t = Config::ring_for(LINKS))]
    ring: u32,

    #[command(flatten)]
    tap: TapArgs,

    #[command(flatten)]
    outputs: StatsArgs,
}

/// Frames that share a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum By {
    Flow,
    Source,
    Destination,
    Inside,
}

/// The queue of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum QueueKind {
    FqCodel,
    Codel,
    Red,
    Fifo,
}

/// Number of links.
const LINKS: usize = 2;

fn rate(text: &str) -> Result<String, String> {
    match shape::config::rate(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write bits per second from 8k to 1T, with k, M, G or T, as 100M".into()),
    }
}

fn bytes(text: &str) -> Result<String, String> {
    match shape::config::bytes(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write bytes, up to 4294967296, or with k, M or G, as 125k".into()),
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if let (true, Some(a), Some(b)) = (args.clean, &args.a, &args.b) {
        return forwarder::clean(&[a, b]);
    }
    let source = match &args.config {
        Some(path) => Source {
            name: config::name(path),
            text: read_limited::text(path, FILE_BYTES_MAX)?,
        },
        None => Source {
            name: "the command line".into(),
            text: text(args),
        },
    };
    let wrong = |error: ConfigError| source.wrong(&error);
    let config = ShapeConfig::parse(&source.text, &SystemNames::new()).map_err(wrong)?;
    let [a, b] = &config.links;
    if args.clean {
        return forwarder::clean(&[a, b]);
    }
    let seed = seed();
    let [of_a, of_b] = &config.schedulers;
    let shapers = [shaper(of_a, seed), shaper(of_b, seed.rotate_left(1))];
    let [of_a, of_b] = shapers;
    let shapers = [of_a.map_err(wrong)?, of_b.map_err(wrong)?];
    if args.print {
        return stdout::text(&source.text);
    }
    let tap = tap(args, &config)?;
    if args.check {
        let missing = [a, b].map(|name| Interface::named(name).err());
        CliError::all(missing.into_iter().flatten().map(CliError::run).collect())?;
        return stdout::text(&format!("{}: good\n", source.name));
    }
    shape(args, &config, shapers, tap, seed)
}

type LiveShaper = Option<Shaper<Frame>>;

fn shaper(config: &Option<LinkConfig>, seed: u64) -> Result<LiveShaper, ConfigError> {
    let config = config.as_ref();
    config.map(|config| Shaper::new(config, seed)).transpose()
}

/// The configuration that the options stand for.
fn text(args: &Args) -> String {
    let mut text = String::new();
    let names = [&args.a, &args.b].map(|name| quoted(name.as_deref().unwrap_or_default()));
    let [a, b] = &names;
    let _ = writeln!(text, "links = [{a}, {b}]");
    let rate = args.rate.as_deref().unwrap_or_default();
    let rates = [args.rate_a.as_deref().unwrap_or(rate), rate];
    for (link, (name, rate)) in names.iter().zip(rates).enumerate() {
        let _ = writeln!(
            text,
            "\n[[scheduler]]\nlink = {name}\nrate = {}",
            quoted(rate)
        );
        if let Some(burst) = &args.burst {
            let _ = writeln!(text, "burst = {}", quoted(burst));
        }
        let queue = args.queue.to_possible_value();
        let queue = queue.as_ref().map_or("", |value| value.get_name());
        let _ = writeln!(text, "\n[[scheduler.class]]\nqueue = {}", quoted(queue));
        let by = match (args.by, link) {
            (None, _) => continue,
            (Some(By::Flow), _) => "flow",
            (Some(By::Source), _) | (Some(By::Inside), 1) => "source",
            (Some(By::Destination | By::Inside), _) => "destination",
        };
        let _ = writeln!(text, "by = {}", quoted(by));
    }
    text
}

/// The configuration of the tap, with memory for the frames that wait.
fn tap(args: &Args, config: &ShapeConfig) -> Result<Config, CliError> {
    let tap = Config {
        bypass: args.bypass,
        held: config.chunks_max(),
        ..args.tap.config()
    };
    with_queues(tap, args.ring, LINKS)
}

fn shape(
    args: &Args,
    config: &ShapeConfig,
    shapers: [LiveShaper; LINKS],
    tap: Config,
    seed: u64,
) -> Result<(), CliError> {
    let outputs = Outputs::open(&args.outputs, false)?;
    let stop = ShutdownSignal::watch_hangup_too()?;
    let mut forwarder = Forwarder::new(Watchdog::new(None)?, stop, outputs, args.tap.tx_burst);
    let wakes = vec![forwarder.wakes()?];
    let mut last = None;
    let ran = shape::run(
        config,
        shapers,
        tap,
        seed,
        args.tap.restore,
        wakes,
        |view| {
            let is_asked = forwarder.is_asked();
            forwarder.look(view.tap, view.is_last, say);
            if view.is_last {
                last = Some(Report::new(&view));
            } else if forwarder.is_due(false) {
                forwarder.show(&Report::new(&view));
            }
            if is_asked {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    let written = forwarder.end(ran.is_ok()).end(last.as_ref());
    ran.map_err(failure)?;
    written
}
