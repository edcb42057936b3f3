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
use super::counter::{Counter, monotonic_ns};
use crate::error::{CliError, say};
use crate::radius::{Client, Clients, Server};
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
use weir_meter::{Direction, SessionInfo};

/// Where counters are pinned.
const PINS: &str = "/run/weir/meter";
/// The longest wait for a RADIUS request or a signal.
pub(super) const WAIT: Duration = Duration::from_millis(50);

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
    check_sizes(config)?;
    let interface = Interface::named(&interface).map_err(CliError::run)?;
    let pins = Pins::of(&interface)?;
    let mut counter = Counter::new(args, config, names, &pins)?;
    counter.restore(subscribers)?;
    let mut server = radius(config, source)?;
    counter.replay(server.as_mut())?;
    let tap = MeterTap::attach(&counter.meter, &interface, ingress, Some(&pins.folder));
    let tap = tap.map_err(CliError::run)?;
    counter.finish_cut(tap.was_counting())?;
    let mut watchdog = Watchdog::new(None)?;
    watchdog.ready();
    say("ready");
    let mut is_there = true;
    while !stop.is_requested() {
        watchdog.beat();
        // The programs go with the interface: nothing counts there any more.
        is_there = Interface::numbered(interface.index).is_ok();
        if !is_there {
            break;
        }
        match &mut server {
            None => stop.wait(WAIT),
            Some(server) => counter.serve(server),
        }
        let now_ns = monotonic_ns();
        if let Some(boundary_ns) = counter.schedule.due(now_ns) {
            counter.cut(boundary_ns)?;
        } else if counter.retry_ns.is_some_and(|retry_ns| retry_ns <= now_ns) {
            counter.retry()?;
        }
    }
    // The last period ends now. A full disk leaves it in the kernel, for the next process, and the
    // kernel counting.
    let mut settled = counter.cut_now();
    if !args.keep && settled.is_ok() {
        tap.detach(Some(&pins.folder)).map_err(CliError::run)?;
        settled = counter.cut_rest();
        if settled.is_ok() {
            Meter::unpin(&pins.folder).map_err(CliError::run)?;
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
    if args.json {
        counter.done.radius = server.map(|server| server.stats());
        let line = serde_json::to_string(&counter.done).map_err(CliError::run)?;
        writeln!(std::io::stdout(), "{line}").map_err(CliError::output)?;
    }
    settled
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
    Meter::unpin(&pins.folder).map_err(CliError::run)
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

/// Refuses what a live link cannot have, for `--check`. Gives why the configuration, which is good for
/// captures, is not for a live link yet.
pub(super) fn check(config: &Config, source: &Path) -> Result<Option<String>, CliError> {
    if !config.links.is_empty() {
        check_sizes(config)?;
    }
    clients(config, source)?;
    let usable = link(config).and_then(|_| supported(config));
    Ok(usable.err().map(|why| why.to_string()))
}

/// Refuses sizes that counters in the kernel cannot have.
fn check_sizes(config: &Config) -> Result<(), CliError> {
    let max = weir_link::xdp::SUBSCRIBERS_MAX as usize;
    for (name, value) in [
        ("capacity", config.capacity),
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

fn radius(config: &Config, source: &Path) -> Result<Option<Server>, CliError> {
    let Some(radius) = &config.radius else {
        return Ok(None);
    };
    let clients = Clients::new(clients(config, source)?);
    let silence = radius.silence_ns.map(Duration::from_nanos);
    let server = Server::bind(radius.listen, clients, silence)?;
    Ok(Some(server))
}

/// The folder of pins of an interface, which this process alone uses.
pub(super) struct Pins {
    pub(super) folder: PinFolder,
    _lock: std::os::fd::OwnedFd,
}

impl Pins {
    fn of(interface: &Interface) -> Result<Pins, CliError> {
        let path = Path::new(PINS);
        let failed = |error: &dyn Display| CliError::run(format!("cannot keep counters: {error}"));
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| failed(&error))?;
        }
        let root = PinFolder::mount(path).map_err(|error| failed(&error))?;
        // Interfaces of several network namespaces may have one name.
        let namespace = std::fs::metadata("/proc/self/ns/net").map_err(|error| failed(&error))?;
        let name = format!("{}-{}", interface.name, namespace.ino());
        let folder = root.folder(&name).map_err(|error| failed(&error))?;
        match folder.lock_alone().map_err(|error| failed(&error))? {
            Some(lock) => Ok(Pins {
                folder,
                _lock: lock,
            }),
            None => {
                let by = folder.locked_by();
                let by = by.map_or_else(String::new, |process| format!(" by process {process}"));
                Err(CliError::run(format!(
                    "{} is metered already{by}: end that first",
                    interface.name
                )))
            }
        }
    }
}
