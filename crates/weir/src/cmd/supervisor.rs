//! `--restart`: a supervisor process that ends the process that forwards when it
//! hangs, and starts another.
//!
//! Meanwhile frames take the bypass in the kernel, which does not depend on the
//! supervisor. Heartbeats come by one socket of a pair, which the process has as its
//! standard input: no process of another user can send there. Where the processes
//! have a state that goes on, the supervisor keeps it for them in memory: an orderly
//! end writes it, and the next start takes it. After a kill or a hang there is none.

use crate::error::{CliError, say};
use crate::signals::{self, ShutdownSignal};
use crate::watchdog::Watchdog;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Times without a heartbeat after which the process counts as hung.
#[derive(Clone, Copy)]
struct SilenceMax {
    starting: Duration,
    ready: Duration,
    /// After it has said that it ends, or was asked to.
    ending: Duration,
}

const SILENCE_MAX: SilenceMax = SilenceMax {
    starting: Duration::from_secs(5),
    ready: Duration::from_secs(1),
    ending: Duration::from_secs(5),
};

/// The first pause before a restart, doubled after each early failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Run time after which a failure no longer counts as early.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Heartbeats that are read in a row.
const SIGNS_MAX: usize = 64;

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What is supervised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Supervised {
    /// A bridge.
    Bridge,
    /// A chain of stages, which has a state that goes on. SIGHUP is the process's own, and SIGUSR1
    /// has it end in order and another one start.
    Chain,
}

impl Supervised {
    fn name(self) -> &'static str {
        match self {
            Supervised::Bridge => "bridge",
            Supervised::Chain => "chain",
        }
    }
}

/// Signals that are no request to end.
struct Requests {
    stop: ShutdownSignal,
    hangup: Arc<AtomicBool>,
    restart: Arc<AtomicBool>,
}

impl Requests {
    fn watch(of: Supervised) -> Result<Requests, CliError> {
        let requests = Requests {
            stop: match of {
                Supervised::Bridge => ShutdownSignal::watch_hangup_too()?,
                Supervised::Chain => ShutdownSignal::watch()?,
            },
            hangup: Arc::default(),
            restart: Arc::default(),
        };
        let mut watched = Vec::new();
        if of == Supervised::Chain {
            watched.push((SIGUSR1, &requests.restart));
            if !signals::is_ignored(SIGHUP) {
                watched.push((SIGHUP, &requests.hangup));
            }
        }
        for (signal, flag) in watched {
            signal_hook::flag::register(signal, Arc::clone(flag))
                .map_err(|error| CliError::run(format!("cannot watch for signals: {error}")))?;
        }
        Ok(requests)
    }
}

/// Makes this process the supervised one: the kernel ends it with its parent, which alone takes
/// SIGUSR1 (a signal to the whole process group must not end this process without its state), and
/// gets the heartbeats.
pub(super) fn obey() -> Result<Watchdog, CliError> {
    signal_hook::flag::register(SIGUSR1, Arc::default())
        .map_err(|error| CliError::run(format!("cannot watch for signals: {error}")))?;
    let set = set_parent_process_death_signal(Some(Signal::KILL));
    let cannot = |error: io::Error| CliError::run(format!("cannot be watched: {error}"));
    set.map_err(|error| cannot(error.into()))?;
    let signs = take_stdin().map_err(cannot)?;
    Ok(Watchdog::of_supervisor(signs, SILENCE_MAX.ready))
}

/// The socket that is standard input, which is empty from now on.
fn take_stdin() -> io::Result<UnixDatagram> {
    let stdin = io::stdin();
    let signs = UnixDatagram::from(stdin.as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(signs)
}

/// Runs the same command repeatedly, without `--restart`.
pub(super) fn supervise(of: Supervised, watchdog: Option<&Path>) -> Result<(), CliError> {
    let requests = Requests::watch(of)?;
    let (stop, name) = (&requests.stop, of.name());
    let state = match of {
        Supervised::Bridge => None,
        // It stays open in the processes.
        Supervised::Chain => Some(memfd_create("weir-state", MemfdFlags::empty()).map_err(failed)?),
    };
    let mut life = Watchdog::new(watchdog)?;
    let mut pause = PAUSE_MIN;
    let mut was_ready = false;
    loop {
        let begun = Instant::now();
        let mut watched = command(state.as_ref())
            .and_then(|command| SupervisedChild::start(command, SILENCE_MAX))
            .map_err(failed)?;
        let ended = watched.watch(&requests, &mut life).map_err(failed)?;
        was_ready |= watched.is_ready;
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
                    Err(CliError::run(format!("the {name} failed ({status})")))
                };
            }
            // The child has printed the reason.
            Ended::ByItself(status) if !was_ready => {
                life.end(false);
                let why = format!("the {name} did not start ({status})");
                return Err(match status.code() {
                    Some(2) => CliError::refused(why),
                    _ => CliError::run(why),
                });
            }
            Ended::ToRestart(status) => {
                say(&format!(
                    "weir: the {name} was ended, to be started anew ({status})"
                ));
                pause = PAUSE_MIN;
                continue;
            }
            Ended::ByItself(status) => say(&format!("weir: the {name} has ended ({status})")),
            Ended::Hung => say(&format!("weir: the {name} hung, and was ended")),
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

fn failed(error: impl Into<io::Error>) -> CliError {
    let error = error.into();
    CliError::run(format!(
        "cannot start or watch the process that forwards: {error}"
    ))
}

/// This command, supervised.
fn command(state: Option<&OwnedFd>) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1))
        .arg("--supervised");
    if let Some(state) = state {
        command.arg(format!("--state-fd={}", state.as_raw_fd()));
    }
    Ok(command)
}

enum Ended {
    /// A signal asked the process to end, and it has ended.
    Asked(ExitStatus),
    /// A signal asked for another one in its place.
    ToRestart(ExitStatus),
    ByItself(ExitStatus),
    Hung,
}

struct SupervisedChild {
    child: Child,
    signs: UnixDatagram,
    silence_max: SilenceMax,
    is_ready: bool,
    is_ending: bool,
    last_sign: Instant,
    /// SIGHUP was passed on, which may mean its end.
    is_hung_up: bool,
}

impl SupervisedChild {
    fn start(mut command: Command, silence_max: SilenceMax) -> io::Result<SupervisedChild> {
        let (signs, of_child) = UnixDatagram::pair()?;
        for end in [&signs, &of_child] {
            end.set_nonblocking(true)?;
        }
        for of_manager in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            command.env_remove(of_manager);
        }
        let child = command.stdin(OwnedFd::from(of_child)).spawn()?;
        Ok(SupervisedChild {
            child,
            signs,
            silence_max,
            is_ready: false,
            is_ending: false,
            last_sign: Instant::now(),
            is_hung_up: false,
        })
    }

    fn watch(&mut self, requests: &Requests, life: &mut Watchdog) -> io::Result<Ended> {
        let stop = &requests.stop;
        loop {
            if let Some(status) = self.child.try_wait()? {
                // It may have become ready since its last heartbeat.
                self.read_signs(life);
                let is_asked = self.is_hung_up && status.success();
                return Ok(if stop.is_requested() || is_asked {
                    Ended::Asked(status)
                } else {
                    Ended::ByItself(status)
                });
            }
            if stop.is_requested() {
                return Ok(Ended::Asked(self.end(Signal::TERM, life)?));
            }
            self.read_signs(life);
            // A process that starts is not asked yet: it would have no handler. A second signal would
            // keep one that ends from writing its state.
            let may_ask = self.is_ready && !self.is_ending;
            if may_ask && requests.restart.swap(false, Ordering::Relaxed) {
                return Ok(Ended::ToRestart(self.end(Signal::TERM, life)?));
            }
            if may_ask && requests.hangup.swap(false, Ordering::Relaxed) {
                self.is_hung_up = true;
                let _ = kill_process(Pid::from_child(&self.child), Signal::HUP);
            }
            if self.last_sign.elapsed() > self.silence_max() {
                self.end(Signal::KILL, life)?;
                return Ok(Ended::Hung);
            }
            stop.wait(POLL_INTERVAL);
        }
    }

    fn silence_max(&self) -> Duration {
        match (self.is_ready, self.is_ending) {
            (_, true) => self.silence_max.ending,
            (true, false) => self.silence_max.ready,
            (false, false) => self.silence_max.starting,
        }
    }

    /// Reads the heartbeats, and passes on that the process is ready.
    fn read_signs(&mut self, life: &mut Watchdog) {
        let mut sign = [0; 256];
        for _ in 0..SIGNS_MAX {
            let Ok(len) = self.signs.recv(&mut sign) else {
                return;
            };
            self.last_sign = Instant::now();
            life.beat();
            let sign = &sign[..len];
            if sign.starts_with(b"READY=1") && !self.is_ready {
                self.is_ready = true;
                life.ready();
            }
            self.is_ending |= sign.starts_with(b"STOPPING=1");
        }
    }

    /// Sends a signal, and kills the process after a time limit: that of its end, which goes on while
    /// heartbeats say that it writes its state.
    fn end(&mut self, signal: Signal, life: &mut Watchdog) -> io::Result<ExitStatus> {
        let pid = Pid::from_child(&self.child);
        // The child was not waited for, so its process id is not reused.
        let _ = kill_process(pid, signal);
        let asked = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            self.read_signs(life);
            // Before it has heard the signal, it sends heartbeats as ever.
            let is_silent = !self.is_ending || self.last_sign.elapsed() > self.silence_max.ending;
            if is_silent && asked.elapsed() > self.silence_max.ending {
                self.child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that runs this script of sh(1), with heartbeats by `echo … >&0`.
    fn child(script: &str, silence_max: SilenceMax) -> SupervisedChild {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        SupervisedChild::start(command, silence_max).unwrap()
    }

    fn unasked() -> Requests {
        Requests {
            stop: ShutdownSignal::watch().unwrap(),
            hangup: Arc::default(),
            restart: Arc::default(),
        }
    }

    fn until_ready(child: &mut SupervisedChild, life: &mut Watchdog) {
        let began = Instant::now();
        while !child.is_ready {
            assert!(began.elapsed() < LONG, "it does not become ready");
            child.read_signs(life);
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    const SHORT: Duration = Duration::from_millis(1500);
    const LONG: Duration = Duration::from_secs(60);

    /// Heartbeats for longer than [`SHORT`].
    const BEATS: &str = "for i in 1 2 3 4 5 6 7 8 9; do echo WATCHDOG=1 >&0; sleep 0.2; done";

    #[test]
    fn a_start_may_take_long_with_heartbeats_and_not_without() {
        let limits = SilenceMax {
            starting: SHORT,
            ready: LONG,
            ending: LONG,
        };
        let (requests, mut life) = (unasked(), Watchdog::new(None).unwrap());
        let mut slow = child(&format!("{BEATS}; echo READY=1 >&0; exit 3"), limits);
        let ended = slow.watch(&requests, &mut life).unwrap();
        assert!(matches!(ended, Ended::ByItself(status) if status.code() == Some(3)));
        assert!(slow.is_ready);
        let mut hung = child("exec sleep 60", limits);
        let ended = hung.watch(&requests, &mut life).unwrap();
        assert!(matches!(ended, Ended::Hung));
    }

    #[test]
    fn an_end_may_take_long_with_heartbeats_and_not_without() {
        let limits = SilenceMax {
            starting: LONG,
            ready: Duration::from_millis(500),
            ending: SHORT,
        };
        let (requests, mut life) = (unasked(), Watchdog::new(None).unwrap());
        let mut slow = child(
            &format!(
                "trap 'echo STOPPING=1 >&0; {BEATS}; exit 0' TERM; echo READY=1 >&0; while :; do sleep 0.1; done"
            ),
            limits,
        );
        until_ready(&mut slow, &mut life);
        assert!(slow.end(Signal::TERM, &mut life).unwrap().success());
        // By itself, and silent for longer than a process that is ready may be.
        let mut leaves = child("echo READY=1 >&0; echo STOPPING=1 >&0; sleep 0.9", limits);
        let ended = leaves.watch(&requests, &mut life).unwrap();
        assert!(matches!(ended, Ended::ByItself(status) if status.success()));
        // One that goes on as ever does not end by itself.
        let deaf =
            "trap '' TERM; echo READY=1 >&0; while :; do echo WATCHDOG=1 >&0; sleep 0.1; done";
        let mut deaf = child(deaf, limits);
        until_ready(&mut deaf, &mut life);
        let status = deaf.end(Signal::TERM, &mut life).unwrap();
        assert_eq!(status.signal(), Some(signal_hook::consts::SIGKILL));
    }
}
