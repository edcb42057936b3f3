//! `weir route`: an IPv4 and IPv6 router in user space.

mod report;

use crate::cmd::forwarder::{self, Forwarder, Outputs};
use crate::cmd::meter::forwarding::{Links, MeterArgs};
use crate::config::{self, Wrong};
use crate::error::{CliError, say};
use crate::input::on_off::OnOff;
use crate::input::read_limited;
use crate::input::tap_args::{StatsArgs, TapArgs};
use crate::report::stdout;
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use report::Report;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;
use weir_apps::router::engine::config::{
    Config, FILE_BYTES_MAX, HostFrames, Kernel, host_at, link_at,
};
use weir_apps::router::{self, RunError, Snapshot};
use weir_link::net::InterfaceError;
use weir_tap::{Bypass, FlowCacheConfig, FlowKind, HostFilterError};

/// Route IPv4 and IPv6 between interfaces, in user space
///
/// All frames of the interfaces go to weir: it answers ARP, neighbour discovery
/// and ping for its addresses, and forwards by the routes of the configuration
/// and, if configured, of the kernel, where FRR or BIRD can install them. The
/// host's own protocols get no frames from these interfaces, unless the
/// configuration passes them their own (`host = true` in `[kernel]`).
/// docs/reference/router.md explains each key.
#[derive(clap::Args, Debug)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  weir route eth1 eth2
  weir route eth1 eth2 --kernel-routes --kernel-host
  weir route --config router.toml
  weir route --config router.toml --check
  weir route --config router.toml --stats --metrics 127.0.0.1:9600
  weir route --config router.toml --bypass drop
  weir route --config router.toml --meter counter.toml
  weir route --config router.toml --clean   # let frames pass that this has stopped

A router of two links:
  [[link]]
  name = \"eth1\"
  addresses = [\"192.0.2.1/24\", \"2001:db8:1::1/64\"]
  [[link]]
  name = \"eth2\"
  addresses = [\"198.51.100.1/24\", \"2001:db8:2::1/64\"]
  [[route]]
  to = \"0.0.0.0/0\"
  via = \"198.51.100.254\"

Runs in the foreground and says `ready` on standard error when frames flow.

The bypass applies whenever weir does not run: killed, hung, or ended by a signal. With `kernel` the
interfaces are as before; `drop` stays until the next `weir route` or `weir bridge` of these
interfaces is ready, or until --clean. With --restore, SIGINT and SIGTERM restore the interfaces in
any case.

Exit status: 0, also after SIGINT, SIGTERM and SIGHUP; 1 if an interface is not there, a file
cannot be written or something else failed; 2 if the configuration or an option is refused."
)]
#[command(group = clap::ArgGroup::new("links").required(true).multiple(true))]
pub(crate) struct Args {
    /// Links, with the addresses that these interfaces have, in addition to the
    /// configuration's
    #[arg(value_name = "IF", group = "links")]
    interfaces: Vec<String>,

    /// The configuration
    #[arg(short, long, value_name = "FILE", group = "links")]
    config: Option<PathBuf>,

    /// Learn routes from the kernel's table `main`, as with routes = true in
    /// `[kernel]` of the configuration
    #[arg(long)]
    kernel_routes: bool,

    /// Pass frames for the router itself to the host, as with host = true in
    /// `[kernel]` of the configuration
    #[arg(long)]
    kernel_host: bool,

    /// Only check the configuration against the existing interfaces
    #[arg(long)]
    check: bool,

    /// Remove from the interfaces what an earlier run has left, and exit
    #[arg(long, conflicts_with = "check")]
    clean: bool,

    /// Print a line of statistics every second
    #[arg(long)]
    stats: bool,

    /// Path of frames while weir does not run: to the host (kernel), or dropped
    /// (drop)
    #[arg(long, value_name = "WHAT", default_value_t, value_parser = bypass)]
    bypass: Bypass,

    /// Let the kernel forward by itself between addresses that weir has
    /// forwarded between: on or off; then weir does not see every frame
    #[arg(long, alias = "fast-path", value_name = "WHAT", default_value = "off")]
    flow_cache: OnOff,

    /// Frames in each ring, a power of two; by default 16384 for two links,
    /// 4096 for eight
    #[arg(long, value_name = "N")]
    ring: Option<u32>,

    #[command(flatten)]
    tap: TapArgs,

    #[command(flatten)]
    outputs: StatsArgs,

    #[command(flatten)]
    metering: MeterArgs,
}

fn bypass(text: &str) -> Result<Bypass, String> {
    match text {
        "wire" => Err("a router's links cannot be joined: use kernel or drop".into()),
        _ => text.parse(),
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let (config, text) = config(args)?;
    let source = args.config.as_deref();
    let failure = |text: &str, error| failure(source, text, error);
    let links: Vec<&str> = config.links.iter().map(|link| &*link.name).collect();
    if args.clean {
        return forwarder::clean(&links);
    }
    let folder = source.and_then(Path::parent).unwrap_or(Path::new(""));
    let metering = args.metering.clone().or(config.meter.as_ref(), folder)?;
    if args.check {
        let wrong = router::check(&config).into_iter();
        let wrong = wrong.map(|error| failure(&text, error));
        let of_meter = metering.check(&Links::of(&links)).err();
        CliError::all(wrong.chain(of_meter).collect())?;
        stdout::text(&format!("{}: good\n", name(source)))?;
        return Ok(());
    }
    let outputs = Outputs::open(&args.outputs, false)?;
    let stop = ShutdownSignal::watch_hangup_too()?;
    let life = Watchdog::new(None)?;
    let forwarder = Forwarder::new(life, stop, outputs, args.tap.tx_burst);
    let mut metering = metering.start(Links::of(&links), forwarder.metrics())?;
    let wakes = vec![forwarder.wakes()?];
    let mut teller = StatsReporter {
        args,
        forwarder,
        last_report: None,
        trouble: None,
    };
    let stages = metering
        .as_ref()
        .map_or(Vec::new(), |it| it.stages().to_vec());
    // Prints warnings; dropped when frames are forwarded.
    let mut text = text;
    let ran = router::run(
        &config,
        tap(args, config.links.len()),
        &stages,
        args.tap.restore,
        wakes,
        |view| {
            text = String::new();
            if let Some(metering) = &mut metering {
                metering.look(view.tap);
            }
            let is_asked = teller.forwarder.is_asked();
            teller.report(&view);
            if is_asked || teller.trouble.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    let StatsReporter {
        forwarder,
        last_report,
        mut trouble,
        ..
    } = teller;
    let last_report = last_report.map(|(_, report)| report);
    if let Err(failure) = forwarder.end(ran.is_ok()).end(last_report.as_ref()) {
        trouble.get_or_insert(failure);
    }
    let stays = args.bypass != Bypass::Kernel && !args.tap.restore;
    let metered = metering.map_or(Ok(()), |metering| metering.end(stays).map(drop));
    ran.map_err(|error| failure(&text, error))?;
    metered?;
    trouble.map_or(Ok(()), Err)
}

/// The configuration of a tap of `links` links.
fn tap(args: &Args, links: usize) -> weir_tap::Config {
    let tap = weir_tap::Config {
        bypass: args.bypass,
        flow_cache: args
            .flow_cache
            .is_on()
            .then(|| FlowCacheConfig::of(&[FlowKind::IpPair])),
        ..args.tap.config()
    };
    tap.with_rings(
        args.ring.unwrap_or(weir_tap::Config::ring_for(links)),
        links,
    )
}

/// The configuration with the links of the command line, and its text.
fn config(args: &Args) -> Result<(Config, String), CliError> {
    let source = args.config.as_deref();
    let text = match source {
        None => String::new(),
        Some(path) => read_limited::text(path, FILE_BYTES_MAX)?,
    };
    let config = Config::parse(&text, &args.interfaces);
    let mut config = config.map_err(|error| failure(source, &text, error.into()))?;
    config.kernel.routes |= args.kernel_routes;
    if args.kernel_host {
        config.kernel.host = HostFrames::All(true);
    }
    if !config.kernel.routes && config.kernel.tables != Kernel::default().tables {
        say(&format!(
            "weir: {}: warning: tables of [kernel] count with routes = true alone",
            name(source)
        ));
    }
    Ok((config, text))
}

/// The name of a configuration's source.
fn name(source: Option<&Path>) -> String {
    source.map_or("the command line".into(), config::name)
}

/// The error message, with its position in the configuration's text.
fn failure(source: Option<&Path>, text: &str, error: RunError) -> CliError {
    let at = match &error {
        RunError::Config(error) => error.at(text),
        RunError::Host(HostFilterError::Text { .. }) => host_at(text),
        RunError::Route { .. } => None,
        RunError::Interface(InterfaceError::Missing { which, .. }) => {
            // An error of the machine, not of the file: another exit status.
            return match link_at(text, which) {
                Some(at) => CliError::run(Wrong::at(text, at, error).of(name(source))),
                None => CliError::run(error),
            };
        }
        RunError::NotEthernet { .. } => return CliError::refused(error),
        _ => {
            return match error {
                RunError::Tap(error) => forwarder::failure(error),
                error => CliError::run(error),
            };
        }
    };
    let wrong = match at {
        Some(at) => Wrong::at(text, at, error),
        None => Wrong::in_all(error),
    };
    CliError::refused(wrong.of(name(source)))
}

/// Reports on a running router, as the user requested.
struct StatsReporter<'a> {
    args: &'a Args,
    forwarder: Forwarder,
    /// The last report, and its time.
    last_report: Option<(Instant, Report)>,
    /// Why statistics cannot be written.
    trouble: Option<CliError>,
}

impl StatsReporter<'_> {
    fn report(&mut self, view: &Snapshot<'_>) {
        self.forwarder.look(view.tap, view.is_last, |modes| {
            let (v4, v6) = view.router.routes().len();
            say(&format!("{modes}; {v4} routes of IPv4, {v6} of IPv6"));
        });
        self.forwarder.say_refused(view.host_refused);
        if !view.is_last && !self.forwarder.is_due(self.args.stats) {
            return;
        }
        let now = Instant::now();
        let report = Report::new(view, self.args.tap.tx_burst);
        if self.args.stats
            && let Some((at, before)) = &self.last_report
        {
            let line = report.line(before, now - *at);
            if let Err(error) = writeln!(std::io::stdout(), "{line}") {
                self.trouble = Some(CliError::output(error));
            }
        }
        if !view.is_last {
            self.forwarder.show(&report);
        }
        self.last_report = Some((now, report));
    }
}
