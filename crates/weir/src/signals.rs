//! Ending early and cleanly: SIGINT, SIGTERM and SIGHUP.
//!
//! SIGHUP, which a terminal sends as it closes, ends a command as SIGTERM does,
//! unless it was ignored when the command began, as `nohup` has it.
//!
//! The first signal asks: what was read so far is reported and written files
//! are completed. A later second one ends the process at once. What follows
//! the first within a second is one with it: timeout(1) sends two, to its child
//! and to their group, and a terminal sends one to each process of a group, of
//! which one may pass its own on to another.
//!
//! SIGXFSZ is not among them: see [`report_file_size_limit`].

use crate::error::{CliError, limited};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use std::ffi::c_int;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Signals within this time are one.
const SIGNAL_WINDOW: Duration = Duration::from_secs(1);

/// Whether somebody asked this process to end.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownSignal {
    requested: Arc<AtomicBool>,
    /// The number of the last signal.
    signal: Arc<AtomicUsize>,
    /// Becomes readable with the first signal.
    wake: Arc<UnixStream>,
}

impl ShutdownSignal {
    /// Begins to watch for SIGINT and SIGTERM, by a command to which SIGHUP means
    /// something else.
    pub(crate) fn watch() -> Result<ShutdownSignal, CliError> {
        ShutdownSignal::watch_for(&[SIGINT, SIGTERM])
    }

    /// Begins to watch for SIGINT, SIGTERM, and SIGHUP unless it is ignored.
    pub(crate) fn watch_hangup_too() -> Result<ShutdownSignal, CliError> {
        if is_ignored(SIGHUP) {
            ShutdownSignal::watch_for(&[SIGINT, SIGTERM])
        } else {
            ShutdownSignal::watch_for(&[SIGINT, SIGTERM, SIGHUP])
        }
    }

    fn watch_for(signals: &[c_int]) -> Result<ShutdownSignal, CliError> {
        let cannot = |error| format!("cannot watch for signals: {}", limited(&error));
        let stop = ShutdownSignal::of(signals, SIGNAL_WINDOW, || {});
        stop.map_err(|error| CliError::run(cannot(error)))
    }

    /// Signals within `one` are one; `between` runs after each step of it.
    fn of(
        signals: &[c_int],
        one: Duration,
        mut between: impl FnMut(),
    ) -> io::Result<ShutdownSignal> {
        let asked = Arc::new(AtomicBool::new(false));
        let signal_seen = Arc::new(AtomicUsize::new(0));
        let ends = Arc::new(AtomicBool::new(false));
        let (wake, waker) = UnixStream::pair()?;
        for &signal in signals {
            // The first, so that we know of one that comes before the others.
            signal_hook::flag::register_usize(signal, Arc::clone(&signal_seen), signal as usize)?;
            between();
            let ends = Arc::clone(&ends);
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, ends)?;
            between();
            signal_hook::flag::register(signal, Arc::clone(&asked))?;
            between();
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
            between();
        }
        if signal_seen.load(Ordering::Relaxed) != 0 {
            asked.store(true, Ordering::Relaxed);
            (&waker).write_all(&[0])?;
        }
        let woken = wake.try_clone()?;
        let later = move || {
            // Other signals interrupt it.
            while poll(&mut [PollFd::new(&woken, PollFlags::IN)], None).is_err() {}
            thread::sleep(one);
            ends.store(true, Ordering::Relaxed);
        };
        thread::Builder::new().name("stop".into()).spawn(later)?;
        Ok(ShutdownSignal {
            requested: asked,
            signal: signal_seen,
            wake: Arc::new(wake),
        })
    }

    /// Whether a signal came.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// The signal that came; 0 for none.
    pub(crate) fn signal(&self) -> u8 {
        self.signal.load(Ordering::Relaxed) as u8
    }

    /// Becomes readable with the first signal.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What becomes readable with the first signal, to be kept.
    pub(crate) fn wakes(&self) -> Result<OwnedFd, CliError> {
        let fd = self.fd().try_clone_to_owned();
        fd.map_err(|error| CliError::run(format!("cannot watch for signals: {}", limited(&error))))
    }

    /// Waits for so long, or until a signal comes.
    pub(crate) fn wait(&self, time: Duration) {
        let time = Timespec::try_from(time).unwrap_or_default();
        // A signal ends it, which is what we wait for.
        let _ = poll(&mut [PollFd::new(&*self.wake, PollFlags::IN)], Some(&time));
    }

    /// As [`wait`](ShutdownSignal::wait), but ends also when the reader of `output` has closed
    /// it; returns whether it has.
    pub(crate) fn wait_unless_closed(&self, time: Duration, output: &impl AsFd) -> bool {
        let time = Timespec::try_from(time).unwrap_or_default();
        let mut fds = [
            PollFd::new(&*self.wake, PollFlags::IN),
            PollFd::new(output, PollFlags::empty()),
        ];
        // A signal ends it, which is what we wait for.
        let _ = poll(&mut fds, Some(&time));
        fds[1].revents().intersects(PollFlags::ERR)
    }

    /// `input` that ends when a signal comes, even while it waits.
    pub(crate) fn interruptible<I: AsFd + Send + 'static>(
        &self,
        input: I,
    ) -> impl Read + Send + 'static {
        Interruptible {
            input,
            wake: Arc::clone(&self.wake),
        }
    }
}

/// Whether this process ignores a signal; false where /proc does not say.
fn is_ignored(signal: c_int) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_in_set("SigIgn:", signal, &status)
}

/// Whether a signal is in a set of signals of proc_pid_status(5), in hexadecimal.
fn is_in_set(set: &str, signal: c_int, status: &str) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix(set));
    let bits = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> (signal - 1) & 1 == 1)
}

/// A limit on the size of files (`ulimit -f`) would end the process without a
/// word; from here on it is an error of the write that meets it.
pub(crate) fn report_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

struct Interruptible<I> {
    input: I,
    wake: Arc<UnixStream>,
}

impl<I: AsFd> Read for Interruptible<I> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut fds = [
            PollFd::new(&self.input, PollFlags::IN),
            PollFd::new(&*self.wake, PollFlags::IN),
        ];
        loop {
            match poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            if !fds[1].revents().is_empty() {
                return Ok(0);
            }
            // Past the buffer that std has for its standard input, which would
            // hide bytes from poll.
            match rustix::io::read(&self.input, &mut *buffer) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                read => return Ok(read?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGALRM, SIGIO, SIGURG, SIGUSR1, SIGUSR2, SIGWINCH};

    /// Each signal once, after another step.
    #[test]
    fn a_signal_that_comes_while_we_begin_is_not_lost() {
        let signals = [SIGUSR1, SIGUSR2, SIGURG, SIGWINCH];
        for (when, signal) in signals.into_iter().enumerate() {
            let mut step = 0;
            let stop = ShutdownSignal::of(&[signal], SIGNAL_WINDOW, || {
                if step == when {
                    signal_hook::low_level::raise(signal).unwrap();
                }
                step += 1;
            });
            let stop = stop.unwrap();
            assert_eq!((step, stop.is_requested()), (4, true), "after step {when}");
            assert_eq!(stop.signal(), signal as u8);
            let mut fds = [PollFd::new(&stop.wake, PollFlags::IN)];
            let woken = poll(&mut fds, Some(&Timespec::default())).unwrap();
            assert_eq!(woken, 1, "after step {when}");
        }
    }

    #[test]
    fn signals_that_are_ignored_are_known() {
        let status = "Name:\tweir\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001006\n";
        let ignored = |signal| is_in_set("SigIgn:", signal, status);
        assert!(!ignored(SIGHUP) && ignored(SIGINT) && ignored(3) && ignored(13));
        assert!(!is_in_set("SigIgn:", SIGHUP, "") && !is_in_set("SigIgn:", SIGHUP, "SigIgn: x"));
        // Rust's runtime ignores SIGPIPE.
        assert!(is_ignored(13));
    }

    /// This process would not live to see it otherwise.
    #[test]
    fn signals_that_come_at_once_are_one() {
        const LONG: Duration = Duration::from_secs(3600);
        let stop = ShutdownSignal::of(&[SIGALRM, SIGIO], LONG, || {}).unwrap();
        for signal in [SIGALRM, SIGALRM, SIGIO] {
            signal_hook::low_level::raise(signal).unwrap();
        }
        assert!(stop.is_requested());
        assert_eq!(stop.signal(), SIGIO as u8);
    }
}
