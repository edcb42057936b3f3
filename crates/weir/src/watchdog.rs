//! Heartbeats for a service manager (`sd_notify(3)`) and a hardware watchdog
//! (`/dev/watchdog`).

use crate::error::CliError;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Default interval of heartbeats.
const EVERY: Duration = Duration::from_millis(500);

/// Time limit for work during which heartbeats are sent: far more than four million sessions take.
const WORK_MAX: Duration = Duration::from_secs(120);

/// Where messages of `sd_notify(3)` go.
#[derive(Debug)]
enum Manager {
    /// A service manager, whose socket has a name.
    Named(UnixDatagram, SocketAddr),
    /// The supervisor: the socket is one of a pair, to which no other process can send.
    Supervisor(UnixDatagram),
}

/// The receivers of heartbeats.
#[derive(Debug)]
pub(crate) struct Watchdog {
    manager: Option<Manager>,
    watchdog: Option<File>,
    every: Duration,
    last_given: Option<Instant>,
    is_ending: bool,
}

impl Watchdog {
    /// The service manager named in the environment, and a hardware watchdog.
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

    /// The supervisor behind this socket of a pair, which does not block.
    pub(crate) fn of_supervisor(signs: UnixDatagram, silence_max: Duration) -> Watchdog {
        Watchdog {
            manager: Some(Manager::Supervisor(signs)),
            watchdog: None,
            every: (silence_max / 3).min(EVERY),
            last_given: None,
            is_ending: false,
        }
    }

    /// Reports that frames are forwarded.
    pub(crate) fn ready(&self) {
        self.notify("READY=1\nSTATUS=frames flow\n");
    }

    /// Sends a heartbeat if it is due.
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

    /// Does work that takes long, and sends heartbeats meanwhile: until [`WORK_MAX`], after which the
    /// work counts as hung.
    pub(crate) fn during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.during_at_most(WORK_MAX, work)
    }

    fn during_at_most<T>(&mut self, time_max: Duration, work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let (done, ended) = channel::<()>();
            let until = Instant::now() + time_max;
            let beat = move || {
                self.beat();
                while Instant::now() < until
                    && ended.recv_timeout(self.every) == Err(RecvTimeoutError::Timeout)
                {
                    self.beat();
                }
            };
            // Without a thread there are no heartbeats, and the work is done all the same.
            let _ = Builder::new().name("beat".into()).spawn_scoped(scope, beat);
            let result = work();
            drop(done);
            result
        })
    }

    /// Reports once to the manager that the process has begun to end.
    pub(crate) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.is_ending, true) {
            self.notify("STOPPING=1\n");
        }
    }

    /// Reports the end; the hardware watchdog is stopped only if the end was
    /// requested.
    pub(crate) fn end(mut self, as_asked: bool) {
        self.stopping();
        if let (Some(watchdog), true) = (&mut self.watchdog, as_asked) {
            let _ = watchdog.write_all(b"V");
        }
    }

    fn notify(&self, what: &str) {
        // A manager that does not listen is ignored.
        let _ = match &self.manager {
            Some(Manager::Named(socket, address)) => socket.send_to_addr(what.as_bytes(), address),
            Some(Manager::Supervisor(socket)) => socket.send(what.as_bytes()),
            None => return,
        };
    }
}

/// The interval within which the service manager expects heartbeats of this
/// process (`sd_watchdog_enabled(3)`); `None` if it expects none.
pub(crate) fn watchdog_time() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| is_ours && *micros > 1)?;
    Some(Duration::from_micros(micros))
}

fn manager() -> Option<Manager> {
    let name = std::env::var("NOTIFY_SOCKET").ok()?;
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(Manager::Named(socket, address.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_gives_heartbeats_until_its_time_limit() {
        let (signs, own) = UnixDatagram::pair().unwrap();
        signs.set_nonblocking(true).unwrap();
        let silence_max = Duration::from_millis(30);
        let mut life = Watchdog::of_supervisor(own, silence_max);
        let next = || {
            let mut sign = [0; 64];
            let len = signs.recv(&mut sign).ok()?;
            Some(String::from_utf8_lossy(&sign[..len]).into_owned())
        };
        let beats = || {
            // The first ones, of which the last may come at this time.
            while next().is_some() {}
            let until = Instant::now() + Duration::from_secs(10);
            while Instant::now() < until {
                if let Some(sign) = next() {
                    return Some(sign);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            None
        };
        assert_eq!(life.during(beats).as_deref(), Some("WATCHDOG=1\n"));
        let time_max = Duration::from_millis(50);
        let later = life.during_at_most(time_max, || {
            std::thread::sleep(Duration::from_millis(300));
            while next().is_some() {}
            std::thread::sleep(Duration::from_millis(100));
            next()
        });
        assert_eq!(later, None, "a heartbeat after the time limit");
    }
}
