//! `weir exec --all`: weir's sockets for programs that load no library.
//!
//! The process that `weir exec` has begun as stays, and is the owner of the link. The program is its
//! child, and has a seccomp filter by which the kernel holds its control calls until this process has
//! answered them (seccomp_unotify(2)). Calls with data, `close`, `dup` and `fork` are the kernel's alone:
//! the descriptors are relayed ones ([`crate::relay`]).
//!
//! ```text
//!  program: connect, bind, listen, accept, names, options ──► this process: calls
//!  program: read, write, poll, close ──► pair ──► relay thread ──► stack ──► link
//! ```
//!
//! | file | what |
//! |---|---|
//! | `notice` | the notifications |
//! | `target` | memory and descriptors of the process that calls |
//! | `socket` | what a descriptor is |
//! | `calls` | the answers |
//!
//! The filter is no security boundary: another thread of the program can change the memory that a call
//! names, after this process has read it.

mod calls;
mod notice;
mod socket;
mod target;

use crate::host::{self, say};
use crate::relay::passing;
use crate::{real, seccomp, signals, stats};
use calls::Calls;
use libc::{c_int, pid_t};
use notice::Notices;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ffi::{CString, OsString};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant};

/// The environment variable with the program's path.
pub(crate) const VARIABLE: &str = "WEIR_EXEC_ALL";

/// How often calls that wait are looked at, whether a signal has ended them.
const SWEEP: Duration = Duration::from_millis(250);
/// When this process says that it waits for processes that outlive the program.
const OTHERS_SAID: Duration = Duration::from_secs(2);

/// Runs the program in a child, and answers its calls; this process then ends as the program did.
pub(crate) fn run(program: OsString, io_uring: bool) -> ! {
    let _inside = signals::enter();
    // SAFETY: the set is filled before it is used; the calls take valid sets.
    let mask = unsafe {
        let mut all: libc::sigset_t = zeroed();
        let mut before: libc::sigset_t = zeroed();
        libc::sigfillset(&raw mut all);
        for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            libc::sigdelset(&raw mut all, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        before
    };
    let ended = start(program, io_uring, &mask).and_then(|mut supervisor| supervisor.run());
    match ended {
        Ok(status) => {
            host::end();
            stats::print();
            end_as(status)
        }
        Err(why) => {
            if !why.is_empty() {
                say(&why);
            }
            // SAFETY: the call takes a number.
            unsafe { real::_exit(1) };
            unreachable!("the process has ended")
        }
    }
}

struct Supervisor {
    calls: Calls,
    signals: OwnedFd,
    child: pid_t,
    /// Its wait status, and when it ended.
    ended: Option<(c_int, Instant)>,
}

fn system(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// Starts the child, the host and, once both are ready, the program.
fn start(program: OsString, io_uring: bool, mask: &libc::sigset_t) -> Result<Supervisor, String> {
    let flags = SocketFlags::CLOEXEC;
    let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (own, other) = made.map_err(|error| format!("no pair of sockets: {error}"))?;
    let line = Line::new(&program);
    let parent = std::process::id();
    // SAFETY: this process has one thread, so that the child may go on as it likes.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(system("no process for the program")),
        0 => {
            drop(own);
            line.become_program(&other, mask, io_uring, parent)
        }
        _ => drop(other),
    }
    // Behind the numbers that are closed.
    let moved = rustix::io::fcntl_dupfd_cloexec(&own, host::hidden_from());
    drop(own);
    let own = moved.map_err(|error| format!("no descriptor: {error}"))?;
    leave_descriptors();
    let mut word = [0; 4];
    let notices = match passing::receive_owned(own.as_raw_fd(), &mut word, 0) {
        Ok((_, Some(fd))) => Notices::new(fd),
        // The child has said why.
        _ => return Err(String::new()),
    };
    // The host says why it cannot start.
    host::host().map_err(|_| String::new())?;
    // SAFETY: the set is filled; the call makes a descriptor.
    let signals = unsafe {
        let mut all: libc::sigset_t = zeroed();
        libc::sigfillset(&raw mut all);
        libc::signalfd(-1, &raw const all, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if signals < 0 {
        return Err(system("signals cannot be passed on"));
    }
    // SAFETY: the descriptor is new.
    let signals = unsafe { OwnedFd::from_raw_fd(signals) };
    let sent = passing::send(&own, &word, None);
    sent.map_err(|_| String::new())?;
    Ok(Supervisor {
        calls: Calls::new(notices),
        signals,
        child,
        ended: None,
    })
}

/// Leaves the descriptors that this process was started with to the program, but for standard error:
/// their other ends see the program's close.
fn leave_descriptors() {
    let last = host::hidden_from().saturating_sub(1).max(3);
    // SAFETY: the calls take numbers, and a path that ends with a NUL. No value of this process has
    // these descriptors.
    unsafe {
        real::close_range(3, last as u32, 0);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for fd in [0, 1] {
            real::dup3(null, fd, 0);
        }
        real::close(null);
    }
}

/// The program, its arguments and its environment.
struct Line {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

fn text(bytes: Vec<u8>) -> CString {
    // Words that the kernel has passed have no NUL.
    CString::new(bytes).unwrap_or_default()
}

impl Line {
    fn new(program: &OsString) -> Line {
        let own = ["WEIR_EXEC_", "LD_PRELOAD=", "RES_OPTIONS="];
        let mut environment: Vec<CString> = std::env::vars_os()
            .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='))
            .filter(|one| !own.iter().any(|start| one.starts_with(start.as_bytes())))
            .map(text)
            .collect();
        // The library comes first.
        let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
        if let Some((_, rest)) = preload.split_once(':') {
            environment.push(text(format!("LD_PRELOAD={rest}").into_bytes()));
        }
        // The C library's resolver compares the source of datagrams, which a relayed socket does not say.
        let options = std::env::var("RES_OPTIONS").unwrap_or_default();
        let options = format!("RES_OPTIONS={options} use-vc");
        environment.push(text(options.into_bytes()));
        Line {
            path: text(program.as_bytes().to_vec()),
            arguments: std::env::args_os()
                .map(|one| text(one.into_vec()))
                .collect(),
            environment,
        }
    }

    /// In the child: has its calls trapped, waits for the host, and becomes the program.
    fn become_program(
        &self,
        parent_end: &OwnedFd,
        mask: &libc::sigset_t,
        io_uring: bool,
        parent: u32,
    ) -> ! {
        let failed = |why: &str| -> ! {
            if !why.is_empty() {
                say(why);
            }
            // SAFETY: the call takes a number.
            unsafe { real::_exit(1) };
            unreachable!("the process has ended")
        };
        // A program without this process would wait for answers that do not come.
        // SAFETY: the calls take numbers.
        let is_orphan = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::getppid() as u32 != parent
        };
        if is_orphan {
            failed("");
        }
        match seccomp::notify(io_uring) {
            Ok(notices) => {
                if passing::send(parent_end, &[0; 4], Some(&notices)).is_err() {
                    failed("");
                }
            }
            Err(error) => {
                let error = std::io::Error::from_raw_os_error(error);
                failed(&format!(
                    "calls cannot be trapped here: {error} (another supervisor may trap them)"
                ));
            }
        }
        let mut word = [0; 4];
        if !matches!(
            passing::receive_owned(parent_end.as_raw_fd(), &mut word, 0),
            Ok((4, None))
        ) {
            failed("");
        }
        let list = |all: &[CString]| {
            let pointers = all.iter().map(|one| one.as_ptr());
            pointers.chain([std::ptr::null()]).collect::<Vec<_>>()
        };
        let (arguments, environment) = (list(&self.arguments), list(&self.environment));
        // SAFETY: the lists end with a null pointer, and live as long as the call.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
            real::execve(self.path.as_ptr(), arguments.as_ptr(), environment.as_ptr());
        }
        failed(&system(&format!(
            "cannot run {}",
            self.path.to_string_lossy()
        )))
    }
}

impl Supervisor {
    /// Answers calls until the program and all processes that it has started have ended; returns the
    /// program's wait status.
    fn run(&mut self) -> Result<c_int, String> {
        let mut is_said = false;
        let mut swept = Instant::now();
        loop {
            let (has_calls, is_unused, has_signals) = {
                let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
                fds.extend(self.calls.poll_fds());
                let is_timed = self.calls.has_waiting() || self.ended.is_some();
                let limit = Timespec {
                    tv_sec: 0,
                    tv_nsec: self.calls.left().min(SWEEP).subsec_nanos().into(),
                };
                let _ = poll(&mut fds, is_timed.then_some(&limit));
                let notices = fds[1].revents();
                (
                    notices.contains(PollFlags::IN),
                    notices.contains(PollFlags::HUP),
                    fds[0].revents().contains(PollFlags::IN),
                )
            };
            if has_signals {
                self.pass_signals();
            }
            if has_calls {
                self.calls.next();
            }
            self.calls.resume();
            if swept.elapsed() >= SWEEP {
                self.calls.sweep();
                swept = Instant::now();
            }
            if let Some((status, at)) = self.ended {
                if is_unused {
                    return Ok(status);
                }
                if at.elapsed() >= OTHERS_SAID && !std::mem::replace(&mut is_said, true) {
                    say(
                        "the program has ended, and processes that it has started use its sockets: waits \
                         for their end",
                    );
                }
            }
        }
    }

    /// Passes signals on to the program, except for those that the kernel sends to all of the terminal's
    /// group, and for this process's own (`SIGPIPE`), and reaps processes.
    fn pass_signals(&mut self) {
        const LEN: usize = size_of::<libc::signalfd_siginfo>();
        let own = std::process::id();
        let mut bytes = [0_u8; LEN];
        while let Ok(LEN) = rustix::io::read(&self.signals, &mut bytes) {
            // SAFETY: the kernel has written the structure, of which all values are valid.
            let about: libc::signalfd_siginfo =
                unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
            let signal = about.ssi_signo as c_int;
            if signal == libc::SIGCHLD {
                self.reap();
            } else if about.ssi_code <= 0 && about.ssi_pid != own {
                match self.ended {
                    None => {
                        // SAFETY: the child was not reaped: the number is its.
                        unsafe { libc::kill(self.child, signal) };
                    }
                    // The program cannot take it any more.
                    Some(_) => end_as(signal),
                }
            }
        }
    }

    fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: the status can be written.
            let reaped = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if reaped == self.child {
                self.ended = Some((status, Instant::now()));
            }
            if reaped <= 0 {
                return;
            }
        }
    }
}

/// Ends this process as the wait status says: by an exit status, or by a signal.
fn end_as(status: c_int) -> ! {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        // SAFETY: the set is emptied and filled before its use; the limit is valid. The program has left a
        // core, if it may.
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            real::sigaction(signal, &raw const action, std::ptr::null_mut());
            let mut one: libc::sigset_t = zeroed();
            libc::sigaddset(&raw mut one, signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const one, std::ptr::null_mut());
            libc::kill(libc::getpid(), signal);
        }
    }
    // SAFETY: the call takes a number.
    unsafe { real::_exit(libc::WEXITSTATUS(status)) };
    unreachable!("the process has ended")
}
