//! Orderly end on SIGINT, SIGTERM and SIGHUP.
//!
//! SIGHUP, which a terminal sends when it closes, ends a command like SIGTERM, unless it was
//! ignored at the start, as by `nohup`.
//!
//! After the first signal, the data read so far is reported and written files are completed. A
//! second signal ends the process at once. Signals within one second count as one: timeout(1) sends
//! two, to its child and to their process group, and a terminal sends one to each process of a
//! group, of which one may forward its own to another.
//!
//! SIGXFSZ is treated separately: see [`report_file_size_limit`].

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

/// Time within which signals count as one.
const SIGNAL_WINDOW: Duration = Duration::from_secs(1);

/// Whether a signal has asked this process to end.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownSignal {
    requested: Arc<AtomicBool>,
    /// The number of the last signal.
    signal: Arc<AtomicUsize>,
    /// Becomes readable with the first signal.
    wake: Arc<UnixStream>,
}

impl ShutdownSignal {
    /// Starts to watch for SIGINT and SIGTERM, for a command in which SIGHUP has another meaning.
    pub(crate) fn watch() -> Result<ShutdownSignal, CliError> {
        ShutdownSignal::watch_for(&[SIGINT, SIGTERM])
    }

    /// Starts to watch for SIGINT, SIGTERM, and SIGHUP unless it is ignored.
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

    /// Signals within `one` count as one; `between` runs after each step.
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
            // Registered first, so that a signal during the later steps is noticed.
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
            // Other signals interrupt the wait.
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

    /// Whether a signal has arrived.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// The signal; 0 for none.
    pub(crate) fn signal(&self) -> u8 {
        self.signal.load(Ordering::Relaxed) as u8
    }

    /// Becomes readable with the first signal.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// An owned descriptor that becomes readable with the first signal.
    pub(crate) fn wakes(&self) -> Result<OwnedFd, CliError> {
        let fd = self.fd().try_clone_to_owned();
        fd.map_err(|error| CliError::run(format!("cannot watch for signals: {}", limited(&error))))
    }

    /// Waits for that time, or until a signal arrives.
    pub(crate) fn wait(&self, time: Duration) {
        let time = Timespec::try_from(time).unwrap_or_default();
        // A signal ends the wait.
        let _ = poll(&mut [PollFd::new(&*self.wake, PollFlags::IN)], Some(&time));
    }

    /// As [`wait`](ShutdownSignal::wait); also ends when the reader of `output` has closed it, and
    /// returns whether it has.
    pub(crate) fn wait_unless_closed(&self, time: Duration, output: &impl AsFd) -> bool {
        let time = Timespec::try_from(time).unwrap_or_default();
        let mut fds = [
            PollFd::new(&*self.wake, PollFlags::IN),
            PollFd::new(output, PollFlags::empty()),
        ];
        // A signal ends the wait.
        let _ = poll(&mut fds, Some(&time));
        fds[1].revents().intersects(PollFlags::ERR)
    }

    /// `input`, with an end of file as soon as a signal arrives, even during a wait.
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

/// Whether this process ignores a signal; `false` if /proc does not show it.
pub(crate) fn is_ignored(signal: c_int) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_in_set("SigIgn:", signal, &status)
}

/// Whether a signal is in a hexadecimal signal set of proc_pid_status(5).
fn is_in_set(set: &str, signal: c_int, status: &str) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix(set));
    let bits = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> (signal - 1) & 1 == 1)
}

/// Ignores SIGXFSZ: a limit on file size (`ulimit -f`) would otherwise end the process without a
/// message. The write that reaches the limit then fails with an error.
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
            // Bypasses the standard library's buffer of standard input, which would hide bytes from
            // poll.
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

    /// Otherwise this process would be ended before the check.
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
