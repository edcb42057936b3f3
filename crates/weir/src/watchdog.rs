//! Signs of life for those who want them: a service manager (`sd_notify(3)`)
//! and a hardware watchdog (`/dev/watchdog`).

use crate::error::CliError;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often to give one, unless asked to more often.
const EVERY: Duration = Duration::from_millis(500);

/// Who wants to hear.
#[derive(Debug)]
pub(crate) struct Watchdog {
    manager: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<File>,
    every: Duration,
    last_given: Option<Instant>,
    is_ending: bool,
}

impl Watchdog {
    /// The service manager that the environment names, and a watchdog.
    pub(crate) fn new(watchdog: Option<&Path>) -> Result<Watchdog, CliError> {
        let watchdog = watchdog.map(|path| {
            let opened = OpenOptions::new().write(true).open(path);
            opened.map_err(|error| {
                CliError::run(format!(
                    "cannot open the watchdog {}: {error}",
                    path.display()
                ))
            })
        });
        let every = watchdog_time().map_or(EVERY, |time| time / 3);
        Ok(Watchdog {
            manager: manager(),
            watchdog: watchdog.transpose()?,
            every: every.min(EVERY),
            last_given: None,
            is_ending: false,
        })
    }

    /// Says that frames flow.
    pub(crate) fn ready(&self) {
        self.notify("READY=1\nSTATUS=frames flow\n");
    }

    /// Gives a sign of life, when it is time.
    pub(crate) fn beat(&mut self) {
        if self
            .last_given
            .is_some_and(|given| given.elapsed() < self.every)
        {
            return;
        }
        self.last_given = Some(Instant::now());
        self.notify("WATCHDOG=1\n");
        if let Some(watchdog) = &mut self.watchdog {
            let _ = watchdog.write_all(b"\0");
        }
    }

    /// Tells the manager that it has begun to end, once.
    pub(crate) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.is_ending, true) {
            self.notify("STOPPING=1\n");
        }
    }

    /// Says that it ends; a watchdog is told to stop only where that was
    /// asked for.
    pub(crate) fn end(mut self, as_asked: bool) {
        self.stopping();
        if let (Some(watchdog), true) = (&mut self.watchdog, as_asked) {
            let _ = watchdog.write_all(b"V");
        }
    }

    fn notify(&self, what: &str) {
        if let Some((socket, address)) = &self.manager {
            // Who does not listen need not.
            let _ = socket.send_to_addr(what.as_bytes(), address);
        }
    }
}

/// How long the service manager waits for a sign of life of this process
/// (`sd_watchdog_enabled(3)`); `None` if it does not wait.
pub(crate) fn watchdog_time() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| is_ours && *micros > 1)?;
    Some(Duration::from_micros(micros))
}

fn manager() -> Option<(UnixDatagram, SocketAddr)> {
    let name = std::env::var("NOTIFY_SOCKET").ok()?;
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}
