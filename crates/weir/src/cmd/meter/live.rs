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
use super::counter::{Counter, Stores, spec};
use super::feed::Sources;
use super::watch::Watchers;
use crate::error::{CliError, say};
use crate::input::live_port;
use crate::radius::{Client, Clients, Server, Sniffer};
use crate::report::format;
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use std::fmt::Display;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use weir_link::bpf::PinFolder;
use weir_link::names::SystemNames;
use weir_link::net::Interface;
use weir_link::xdp::{Meter, MeterTap};
use weir_meter::config::Config;
use weir_meter::services::Services;
use weir_meter::{Direction, SessionInfo};

/// Where counters are pinned.
const PINS: &str = "/run/weir/meter";
/// The transport port of RADIUS accounting (RFC 2866 §3).
const ACCOUNTING_PORT: u16 = 1813;
/// Between two looks at the interface, and two heartbeats.
const WAIT: Duration = Duration::from_millis(50);
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
    let stop = ShutdownSignal::watch_hangup_too()?;
    let (interface, ingress) = link(config)?;
    supported(config)?;
    check_sizes(config, subscribers.len())?;
    let interface = Interface::named(&interface).map_err(CliError::run)?;
    let stores = Stores {
        store: args.store.as_deref(),
        spool: args.spool.as_deref(),
        no_store: args.no_store,
    };
    let mut watchers = Watchers::new(args)?;
    let pins = Pins::of(&interface)?;
    let mut counter = Counter::open(stores, config, subscribers, names, pins)?;
    let mut sources = sources(args, config, source)?;
    counter.restore(subscribers, |event| sources.restore(event))?;
    say(&format!(
        "weir: {}",
        memory(config, subscribers.len(), counter.memory_bytes())
    ));
    let folder = &counter.pins().folder;
    let tap = counter
        .with_meter(|meter| MeterTap::attach(meter, &interface, ingress, Some(folder)))
        .map_err(CliError::run)?;
    let running = counter.start(tap.was_counting(), sources)?;
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
    let mut is_taken_off = false;
    if !args.keep && settled.is_ok() {
        let folder = &counter.pins().folder;
        tap.detach(Some(folder)).map_err(CliError::run)?;
        settled = counter.cut_rest();
        is_taken_off = settled.is_ok();
    }
    if is_taken_off {
        Meter::unpin(&counter.pins().folder).map_err(CliError::run)?;
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
    if args.json {
        let line = serde_json::to_string(&counter.done()).map_err(CliError::run)?;
        writeln!(std::io::stdout(), "{line}").map_err(CliError::output)?;
    }
    if is_taken_off {
        counter.into_pins().remove();
    }
    settled.and(shown)
}

/// What the counters take.
fn memory(config: &Config, listed: usize, bytes: u64) -> String {
    let capacity = format::grouped(config.capacity_live(listed) as u64);
    let unknown = format::grouped(config.unattributed_max as u64);
    let mib = bytes.div_ceil(1 << 20);
    format!(
        "counters for {capacity} sessions and {unknown} unattributed keys take {mib} MiB in the kernel"
    )
}

/// Takes the programs and counters that an earlier process has left off an interface.
pub(super) fn clean(config: &Config) -> Result<(), CliError> {
    let (interface, _) = link(config)?;
    let interface = Interface::named(&interface).map_err(CliError::run)?;
    let pins = Pins::of(&interface)?;
    let (names, _) = pins.folder.list().map_err(CliError::run)?;
    for name in names.iter().filter(|name| MeterTap::is_pin(name)) {
        if let Some(left) = pins.folder.get(name).map_err(CliError::run)? {
            let attachment = weir_link::bpf::Attachment::from_fd(left);
            attachment.detach().map_err(CliError::run)?;
        }
        pins.folder.unpin(name).map_err(CliError::run)?;
    }
    Meter::unpin(&pins.folder).map_err(CliError::run)?;
    pins.remove();
    Ok(())
}

/// The interface, and the direction of the frames that come in there.
fn link(config: &Config) -> Result<(String, Direction), CliError> {
    let refused = |why: &str| Err(CliError::refused(format!("[[link]]: {why}")));
    let [link] = &config.links[..] else {
        return refused(
            "give one link to meter, with inside = \"IF\" (subscribers are beyond IF) or outside = \
             \"IF\" (they are on this machine's side), or a capture by --read",
        );
    };
    match (&link.inside, &link.outside) {
        (Some(inside), None) => Ok((inside.clone(), Direction::Up)),
        (None, Some(outside)) => Ok((outside.clone(), Direction::Down)),
        _ => refused(
            "a bridge between two interfaces is not metered yet: give inside or outside alone, and \
             run `weir bridge` or the host's own beside it",
        ),
    }
}

/// What only captures have so far.
fn supported(config: &Config) -> Result<(), CliError> {
    let refused = |what: &str| {
        let why = format!("{what}: counted in captures only, so far: leave it out for a live link");
        Err(CliError::refused(why))
    };
    if !config.measures.is_empty() {
        return refused("[measures]");
    }
    if config.adoption_ns > 0 {
        return refused("adoption");
    }
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
fn check_sizes(config: &Config, listed: usize) -> Result<(), CliError> {
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

/// Where sessions come from, beside the list.
fn sources(args: &Args, config: &Config, source: &Path) -> Result<Sources, CliError> {
    let mut sources = Sources::default();
    if let Some(radius) = &config.radius {
        let silence = radius.silence_ns.map(Duration::from_nanos);
        if let Some(listen) = radius.listen {
            let clients = Clients::new(clients(config, source)?);
            let mut server = Server::bind(listen, clients, silence)?;
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
            sources.sniffer = Some(Sniffer::new(port, clients, silence));
        }
    }
    sources.control = args.control.as_deref().map(Control::bind).transpose()?;
    Ok(sources)
}

/// The folder of pins of an interface, which this process alone uses.
pub(crate) struct Pins {
    pub(crate) folder: PinFolder,
    root: PinFolder,
    name: String,
    _lock: std::os::fd::OwnedFd,
}

/// Attempts to lock a folder that processes which end are removing.
const ATTEMPTS: usize = 100;

impl Pins {
    /// The folder of an interface, made if it is not there, and locked.
    pub(crate) fn of(interface: &Interface) -> Result<Pins, CliError> {
        let path = Path::new(PINS);
        let failed = |error: &dyn Display| CliError::run(format!("cannot keep counters: {error}"));
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| failed(&error))?;
        }
        let root = PinFolder::mount(path).map_err(|error| failed(&error))?;
        // Interfaces of several network namespaces may have one name.
        let namespace = std::fs::metadata("/proc/self/ns/net").map_err(|error| failed(&error))?;
        let name = format!("{}-{}", interface.name, namespace.ino());
        for _ in 0..ATTEMPTS {
            let folder = root.folder(&name).map_err(|error| failed(&error))?;
            let Some(lock) = folder.lock_alone().map_err(|error| failed(&error))? else {
                let by = folder.locked_by();
                let by = by.map_or_else(String::new, |process| format!(" by process {process}"));
                return Err(CliError::run(format!(
                    "{} is metered already{by}: end that first",
                    interface.name
                )));
            };
            if folder.is_there().map_err(|error| failed(&error))? {
                return Ok(Pins {
                    folder,
                    root,
                    name,
                    _lock: lock,
                });
            }
        }
        Err(failed(&"its folder is removed again and again"))
    }

    /// Removes the folder, if it is empty: nothing is kept.
    fn remove(self) {
        // Another process may have made a pin there that weir does not know.
        let _ = self.root.remove_folder(&self.name);
    }
}
