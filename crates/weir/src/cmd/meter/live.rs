//! `weir meter` on a live link: the kernel counts, this process cuts periods and keeps records.
//!
//! ```text
//!  RADIUS, list ─► sessions ─► keys of rows, in the kernel's table
//!  kernel's cells ─► cut ─► chunks ─► spool (durable) ─► settle ─► ledger
//! ```
//!
//! The kernel goes on counting whatever happens to this process: after a kill, the next one takes
//! over counters and sessions, and each frame is in one record.

use super::Args;
use super::control::Control;
use super::counter::{Counter, Done, spec};
use super::feed::Sources;
use super::forwarding::{self, Links, Metering};
use super::interfaces::Side;
use super::pins::Pins;
use super::quotas::AccessServers;
use super::seed;
use super::watch::Watchers;
use crate::cmd::bridge;
use crate::error::{CliError, say};
use crate::input::live_port;
use crate::radius::{Client, Clients, Secret, Server, Sniffer};
use crate::report::format;
use crate::report::metrics::Metrics;
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use weir_link::bpf::{AttachError, PinFolder};
use weir_link::names::SystemNames;
use weir_link::net::Interface;
use weir_link::xdp::{Meter, MeterError, MeterTap, MirrorUp};
use weir_meter::config::Config;
use weir_meter::engine::Inside;
use weir_meter::radius::accounting::Accounting;
use weir_meter::services::Services;
use weir_meter::{Direction, SessionInfo};
use weir_tap::Tap;

/// The transport port of RADIUS accounting (RFC 2866 §3).
const ACCOUNTING_PORT: u16 = 1813;
/// Between two looks at the interface, and two heartbeats.
pub(super) const WAIT: Duration = Duration::from_millis(50);
/// A thread that cuts periods and has not been seen for so long hangs: no heartbeat is sent. A cut of
/// three million rows takes seconds.
const SILENT_MAX: Duration = Duration::from_mins(1);

/// Counts on the link of the configuration until a signal.
pub(super) fn run(
    args: &Args,
    config: &Config,
    source: &Path,
    subscribers: &[SessionInfo],
    names: &SystemNames,
) -> Result<(), CliError> {
    if let Some([inside, outside]) = wire(config) {
        return in_the_wire(args, config, inside, outside);
    }
    let stop = ShutdownSignal::watch_hangup_too()?;
    let (interface, place) = link(config)?;
    supported(config)?;
    check_sizes(config, subscribers.len())?;
    let interface = Interface::named(&interface).map_err(CliError::run)?;
    let mut watchers = Watchers::new(args, args.metrics.map(Metrics::serve).transpose()?)?;
    let pins = Pins::of(&[&interface.name])?;
    let mut counter = Counter::open(args.stores(), config, subscribers, names, pins)?;
    let mut sources = sources(args, config, source)?;
    counter.restore(subscribers, |event| sources.restore(event))?;
    let bytes = counter.memory_bytes();
    say(&format!(
        "weir: {}",
        memory(config, subscribers.len(), bytes)
    ));
    let folder = &counter.pins().folder;
    let attached = counter.with_meter(|meter| place.attach(meter, &interface, folder, names));
    if attached.is_err() && counter.is_new() {
        MeterTap::clean(folder).map_err(CliError::run)?;
        Meter::unpin(folder).map_err(CliError::run)?;
    }
    let tap = attached?;
    let running = counter.start(tap.was_counting(), vec![place.side(&interface)], sources)?;
    let mut watchdog = Watchdog::new(None)?;
    watchdog.ready();
    say("ready");
    let mut is_there = true;
    while !stop.is_requested() && !running.has_ended() {
        if running.silent_for() < SILENT_MAX {
            watchdog.beat();
        }
        // The programs go with the interface: nothing counts there any more.
        is_there = Interface::numbered(interface.index).is_ok();
        if !is_there {
            break;
        }
        watchers.show(|| running.view());
        stop.wait(WAIT);
    }
    watchdog.stopping();
    let (mut counter, ended) = running.stop();
    ended?;
    // The last period ends now. A full disk leaves it in the kernel, for the next process, and the
    // kernel counting.
    let mut settled = counter.cut_now();
    if !args.keep && settled.is_ok() {
        let folder = &counter.pins().folder;
        tap.detach(Some(folder)).map_err(CliError::run)?;
        settled = counter.cut_rest();
        if settled.is_ok() {
            Meter::unpin(&counter.pins().folder).map_err(CliError::run)?;
        }
    }
    let settled = settled.and_then(|()| counter.deliver());
    let settled = settled.and_then(|()| {
        if is_there {
            return Ok(());
        }
        Err(CliError::run(format!(
            "{} has gone: its frames until then are recorded; start again when it is there",
            interface.name
        )))
    });
    let shown = watchers.end(&counter.view(0));
    print(args, &counter.done())?;
    settled.and(shown)
}

/// The counters' memory, as text.
fn memory(config: &Config, listed: usize, bytes: u64) -> String {
    let capacity = format::grouped(config.capacity_live(listed) as u64);
    let unknown = format::grouped(config.unattributed_max as u64);
    let mib = bytes.div_ceil(1 << 20);
    format!(
        "counters for {capacity} sessions and {unknown} unattributed keys take {mib} MiB in the kernel"
    )
}

/// The two interfaces of a link in the wire, the subscribers' side first.
fn wire(config: &Config) -> Option<[&str; 2]> {
    match &config.links[..] {
        [link] => Some([link.inside.as_deref()?, link.outside.as_deref()?]),
        _ => None,
    }
}

/// A bridge that does nothing but count. Its bypass is the wire: frames go on, and are counted,
/// whenever no process runs.
fn in_the_wire(args: &Args, config: &Config, inside: &str, outside: &str) -> Result<(), CliError> {
    supported(config)?;
    let metrics = args.metrics.map(Metrics::serve).transpose()?;
    let metering = Metering::start(args.clone(), Links::of(&[inside, outside]), metrics.clone())?;
    let done = bridge::in_the_wire(inside, outside, metering, metrics)?;
    print(args, &done)
}

/// Prints the work that was done on standard output.
fn print(args: &Args, done: &Done) -> Result<(), CliError> {
    if !args.json {
        return Ok(());
    }
    let line = serde_json::to_string(done).map_err(CliError::run)?;
    writeln!(std::io::stdout(), "{line}").map_err(CliError::output)
}

/// Takes the programs and counters that an earlier process has left off an interface.
pub(super) fn clean(config: &Config) -> Result<(), CliError> {
    if let Some([inside, outside]) = wire(config) {
        Tap::clean(&[inside, outside]).map_err(CliError::run)?;
        return forwarding::clean(&[inside, outside]);
    }
    let (interface, _) = link(config)?;
    let interface = Interface::named(&interface).map_err(CliError::run)?;
    let pins = Pins::of(&[&interface.name])?;
    MeterTap::clean(&pins.folder).map_err(CliError::run)?;
    Meter::unpin(&pins.folder).map_err(CliError::run)
}

/// Where frames of one interface are counted.
enum Place {
    /// Beside the host's stack; frames that come in go this way.
    Host(Direction),
    /// At a mirror port.
    Mirror {
        /// What goes up.
        up: MirrorUp,
        /// Whether frames go no further.
        takes: bool,
    },
}

impl Place {
    /// The interface's own counters, for comparison.
    fn side(&self, interface: &Interface) -> Side {
        let ingress = match self {
            Place::Host(ingress) => Some(*ingress),
            Place::Mirror { .. } => None,
        };
        Side {
            name: interface.name.clone(),
            index: interface.index,
            ingress,
            meters_tx: ingress.is_some(),
        }
    }

    fn attach(
        &self,
        meter: &Meter,
        interface: &Interface,
        folder: &PinFolder,
        names: &SystemNames,
    ) -> Result<MeterTap, CliError> {
        let attached = match self {
            Place::Host(ingress) => MeterTap::attach(meter, interface, *ingress, Some(folder)),
            Place::Mirror { up, takes } => meter
                .mirror_stage(up, names)
                .and_then(|stage| MeterTap::mirror(&stage, interface, *takes, Some(folder))),
        };
        attached.map_err(|error| match (self, error) {
            (
                Place::Mirror {
                    up: MirrorUp::Sessions,
                    ..
                },
                error @ MeterError::Load(_),
            ) => CliError::run(format!(
                "{error}: say what goes up by `inside` in [capture], or use fewer filters of \
                 services"
            )),
            (Place::Mirror { .. }, error @ MeterError::Attach(AttachError::Busy { .. })) => {
                CliError::run(format!("{error}: leave `take` out for that"))
            }
            (_, error) => CliError::run(error),
        })
    }
}

/// The interface, and what is counted there.
fn link(config: &Config) -> Result<(String, Place), CliError> {
    let refused = |why: &str| Err(CliError::refused(format!("[[link]]: {why}")));
    let [link] = &config.links[..] else {
        return refused(
            "give one link to meter, with inside = \"IF\" (subscribers are beyond IF), outside = \
             \"IF\" (they are on this machine's side), both (a bridge) or mirror = \"IF\", or a \
             capture by --read",
        );
    };
    if let Some(mirror) = &link.mirror {
        if !config.policies.is_empty() {
            return refused("frames at a mirror port are copies: leave [policy] out");
        }
        let up = match &config.inside {
            Inside::Sessions => MirrorUp::Sessions,
            Inside::Prefixes(prefixes) => MirrorUp::Prefixes(prefixes.clone()),
            Inside::From(text) => MirrorUp::Filter(text.clone()),
        };
        let takes = link.takes;
        return Ok((mirror.clone(), Place::Mirror { up, takes }));
    }
    match (&link.inside, &link.outside) {
        // With both, a bridge between them.
        (Some(inside), _) => Ok((inside.clone(), Place::Host(Direction::Up))),
        (None, Some(outside)) => Ok((outside.clone(), Place::Host(Direction::Down))),
        (None, None) => refused("give inside, outside or mirror"),
    }
}

/// Refuses configurations that only captures support so far.
pub(super) fn supported(config: &Config) -> Result<(), CliError> {
    let refused = |what: &str| {
        let why = format!("{what}: counted in captures only, so far: leave it out for a live link");
        Err(CliError::refused(why))
    };
    if config.each_address {
        return refused("each_address");
    }
    Ok(())
}

/// Refuses what a live link cannot have, for `--check`. Gives what its counters take, or why the
/// configuration, which is good for captures, is not for a live link yet; nothing without a link.
pub(super) fn check(
    config: &Config,
    source: &Path,
    listed: usize,
    names: &SystemNames,
) -> Result<String, CliError> {
    clients(config, source)?;
    access_servers(config, source)?;
    if config.links.is_empty() {
        return Ok(String::new());
    }
    check_sizes(config, listed)?;
    let usable = link(config).and_then(|_| supported(config));
    Ok(match usable {
        Ok(()) => {
            let services = Services::new(config.services.clone());
            let spec = spec(config, config.capacity_live(listed), &services, names);
            let bytes = Meter::memory_bytes_of(&spec).map_err(CliError::refused)?;
            memory(config, listed, bytes)
        }
        Err(why) => format!("good for captures; for a live link: {why}"),
    })
}

/// Refuses sizes that counters in the kernel cannot have.
pub(super) fn check_sizes(config: &Config, listed: usize) -> Result<(), CliError> {
    let max = weir_link::xdp::SUBSCRIBERS_MAX as usize;
    for (name, value) in [
        ("capacity", config.capacity_live(listed)),
        ("unattributed_max", config.unattributed_max),
    ] {
        if value > max {
            return Err(CliError::refused(format!(
                "{name} = {value}: on a live link it is at most {max}"
            )));
        }
    }
    Ok(())
}

/// The clients of RADIUS, with their secrets.
fn clients(config: &Config, source: &Path) -> Result<Vec<Client>, CliError> {
    let folder = source.parent().unwrap_or(Path::new(""));
    let radius = config.radius.iter();
    let clients = radius.flat_map(|radius| &radius.clients).map(|client| {
        let file = folder.join(&client.secret_file.0);
        Client::new(client.address, client.prefix_len, &file, client.swapped)
    });
    clients.collect()
}

/// The access servers that are asked when quotas are spent; none if no policy has them asked.
fn access_servers(config: &Config, source: &Path) -> Result<AccessServers, CliError> {
    let mut servers = AccessServers::default();
    let mut policies = config.policies.iter();
    if !policies.any(|policy| policy.spent_request.is_some()) {
        return Ok(servers);
    }
    let folder = source.parent().unwrap_or(Path::new(""));
    let configured = config.radius.iter().flat_map(|radius| &radius.clients);
    for (client, configured) in clients(config, source)?.iter().zip(configured) {
        let Some(address) = configured.dynamic else {
            continue;
        };
        let file = configured.dynamic_secret_file.as_ref();
        let (file, _) = file.unwrap_or(&configured.secret_file);
        let secret = Secret::read(&folder.join(file))?;
        servers.add(client.name(), address, secret, seed())?;
    }
    Ok(servers)
}

/// Where sessions come from, beside the list.
pub(super) fn sources(args: &Args, config: &Config, source: &Path) -> Result<Sources, CliError> {
    let mut sources = Sources::default();
    if let Some(radius) = &config.radius {
        let silence = radius.silence_ns.map(Duration::from_nanos);
        let names = config.policies.iter().map(|policy| policy.name.clone());
        let accounting = Accounting::new(names);
        if let Some(listen) = radius.listen {
            let clients = Clients::new(clients(config, source)?);
            let mut server = Server::bind(listen, clients, accounting.clone(), silence)?;
            if let Some(dynamic) = radius.dynamic {
                server.listen_dynamic(dynamic)?;
            }
            sources.server = Some(server);
        }
        if let Some(interface) = &radius.sniff {
            let clients = Clients::new(clients(config, source)?);
            let port = radius
                .listen
                .map_or(ACCOUNTING_PORT, |listen| listen.port());
            let port = live_port::port(interface, &format!("udp port {port}"), None)?;
            let port = port.in_process().open().map_err(live_port::failure)?;
            sources.sniffer = Some(Sniffer::new(port, clients, accounting, silence));
        }
    }
    sources.access_servers = access_servers(config, source)?;
    sources.control = args.control.as_deref().map(Control::bind).transpose()?;
    Ok(sources)
}
