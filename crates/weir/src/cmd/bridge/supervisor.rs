//! `--restart`: a supervisor process that ends the bridge process when it
//! hangs, and starts another.
//!
//! Meanwhile frames take the bypass in the kernel, which does not depend on the
//! supervisor.

use crate::error::{CliError, say};
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Time without a heartbeat after which the bridge counts as hung.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Time limit for its start.
const START_MAX: Duration = Duration::from_secs(5);

/// Time limit for its end.
const END_MAX: Duration = Duration::from_secs(5);

/// The first pause before a restart, doubled after each early failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Run time after which a failure no longer counts as early.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Lets the kernel end this process with its parent.
pub(super) fn end_with_parent() -> Result<(), CliError> {
    let set = set_parent_process_death_signal(Some(Signal::KILL));
    set.map_err(|error| CliError::run(format!("cannot be watched: {error}")))
}

/// Runs the same command repeatedly, without `--restart`.
pub(super) fn supervise(watchdog: Option<&Path>) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let mut life = Watchdog::new(watchdog)?;
    let mut pause = PAUSE_MIN;
    let mut was_ready = false;
    loop {
        let begun = Instant::now();
        let mut watched = SupervisedChild::start().map_err(failed)?;
        let ended = watched.watch(&stop, &mut life).map_err(failed)?;
        if watched.is_ready && !was_ready {
            was_ready = true;
        }
        match ended {
            Ended::Asked(status) => {
                life.end(true);
                let stopped = status.signal();
                // The signal may arrive before the child has a handler.
                let by_signal = stopped.is_some_and(|signal| [SIGINT, SIGTERM].contains(&signal));
                return if status.success() || by_signal {
                    Ok(())
                } else {
                    // The child has printed the reason, unless it was ended.
                    Err(CliError::run(format!("the bridge failed ({status})")))
                };
            }
            // The child has printed the reason.
            Ended::ByItself(status) if !was_ready => {
                life.end(false);
                let why = format!("the bridge did not start ({status})");
                return Err(match status.code() {
                    Some(2) => CliError::refused(why),
                    _ => CliError::run(why),
                });
            }
            Ended::ByItself(status) => say(&format!("weir: the bridge has ended ({status})")),
            Ended::Hung => say("weir: the bridge hung, and was ended"),
        }
        if begun.elapsed() >= STABLE_AFTER {
            pause = PAUSE_MIN;
        }
        say(&format!("weir: starting anew in {} ms", pause.as_millis()));
        let until = Instant::now() + pause;
        while Instant::now() < until && !stop.is_requested() {
            life.beat();
            stop.wait(POLL_INTERVAL.min(pause));
        }
        if stop.is_requested() {
            life.end(true);
            return Ok(());
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn failed(error: io::Error) -> CliError {
    CliError::run(format!("cannot start or watch a bridge: {error}"))
}

enum Ended {
    /// A signal asked the bridge to end, and it has ended.
    Asked(ExitStatus),
    ByItself(ExitStatus),
    Hung,
}

struct SupervisedChild {
    child: Child,
    signs: UnixDatagram,
    is_ready: bool,
    last_sign: Instant,
}

impl SupervisedChild {
    fn start() -> io::Result<SupervisedChild> {
        let name = format!("weir-bridge-{}", std::process::id());
        let signs = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        signs.set_nonblocking(true)?;
        let child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .arg("--supervised")
            .env("NOTIFY_SOCKET", format!("@{name}"))
            .env("WATCHDOG_USEC", SILENCE_MAX.as_micros().to_string())
            .spawn()?;
        Ok(SupervisedChild {
            child,
            signs,
            is_ready: false,
            last_sign: Instant::now(),
        })
    }

    fn watch(&mut self, stop: &ShutdownSignal, life: &mut Watchdog) -> io::Result<Ended> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                // The bridge may have become ready since its last heartbeat.
                self.read_signs(life);
                return Ok(if stop.is_requested() {
                    Ended::Asked(status)
                } else {
                    Ended::ByItself(status)
                });
            }
            if stop.is_requested() {
                return Ok(Ended::Asked(self.end(Signal::TERM)?));
            }
            self.read_signs(life);
            let silence_max = if self.is_ready {
                SILENCE_MAX
            } else {
                START_MAX
            };
            if self.last_sign.elapsed() > silence_max {
                self.end(Signal::KILL)?;
                return Ok(Ended::Hung);
            }
            stop.wait(POLL_INTERVAL);
        }
    }

    /// Reads the heartbeats, and passes on that the bridge is ready.
    fn read_signs(&mut self, life: &mut Watchdog) {
        let mut sign = [0; 256];
        while let Ok(len) = self.signs.recv(&mut sign) {
            self.last_sign = Instant::now();
            life.beat();
            if sign[..len].starts_with(b"READY=1") && !self.is_ready {
                self.is_ready = true;
                life.ready();
            }
        }
    }

    /// Sends a signal, and kills the bridge after a time limit.
    fn end(&mut self, signal: Signal) -> io::Result<ExitStatus> {
        let pid = Pid::from_child(&self.child);
        // The child was not waited for, so its process id is not reused.
        let _ = kill_process(pid, signal);
        let until = Instant::now() + END_MAX;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > until {
                self.child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
