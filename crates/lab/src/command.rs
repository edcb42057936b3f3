//! Programs that tests start, with a time limit on every wait.
//!
//! A test gets a [`Command`] in one of three ways: [`testenv::program`] finds a
//! program of the system, and skips the test without it; [`Command::built`] is
//! a program built from this checkout; [`Command::itself`] is the test's own
//! executable. `crates/weir/tests/tidy.rs` refuses any other way.
//!
//! [`testenv::program`]: crate::testenv::program

use crate::net::Process;
use crate::watch;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

/// Time limit of [`Command::output`] and [`Command::status`]: many times the
/// duration of a test's longest program on two loaded cores.
pub const LIMIT: Duration = Duration::from_secs(300);

/// A program to be started, as [`std::process::Command`].
#[derive(Debug)]
pub struct Command {
    inner: std::process::Command,
    /// Whether the test has set standard output and standard error.
    directed: [bool; 2],
}

/// A limit of a process; see setrlimit(2). Soft and hard limit are the same.
pub type Resource = rustix::process::Resource;

impl Command {
    /// A program built from this checkout: `env!("CARGO_BIN_EXE_weir")`, or a
    /// program that a test has compiled.
    ///
    /// # Panics
    /// If the path is relative: a name is looked up in `PATH`, by
    /// [`testenv::program`](crate::testenv::program).
    pub fn built(program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        assert!(program.is_absolute(), "{program:?} is no absolute path");
        Command::at(program)
    }

    /// This test's executable. Its path is a symbolic link of procfs, which
    /// works also for a user without search permission on the executable's
    /// folders.
    pub fn itself() -> Command {
        Command::at("/proc/self/exe".as_ref())
    }

    pub(crate) fn at(program: &Path) -> Command {
        Command::of(std::process::Command::new(program))
    }

    pub(crate) fn of(mut inner: std::process::Command) -> Command {
        watch::this_test();
        inner.stdin(Stdio::null());
        Command {
            inner,
            directed: [false; 2],
        }
    }

    /// As [`std::process::Command::arg`].
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Command {
        self.inner.arg(argument);
        self
    }

    /// As [`std::process::Command::args`].
    pub fn args(&mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> &mut Command {
        self.inner.args(arguments);
        self
    }

    /// As [`std::process::Command::env`].
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Command {
        self.inner.env(name, value);
        self
    }

    /// As [`std::process::Command::envs`].
    pub fn envs(
        &mut self,
        variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> &mut Command {
        self.inner.envs(variables);
        self
    }

    /// As [`std::process::Command::env_remove`].
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Command {
        self.inner.env_remove(name);
        self
    }

    /// As [`std::process::Command::current_dir`].
    pub fn current_dir(&mut self, folder: impl AsRef<Path>) -> &mut Command {
        self.inner.current_dir(folder);
        self
    }

    /// As [`std::process::Command::stdin`]; by default there is no input.
    pub fn stdin(&mut self, input: impl Into<Stdio>) -> &mut Command {
        self.inner.stdin(input);
        self
    }

    /// As [`std::process::Command::stdout`].
    pub fn stdout(&mut self, output: impl Into<Stdio>) -> &mut Command {
        self.inner.stdout(output);
        self.directed[0] = true;
        self
    }

    /// As [`std::process::Command::stderr`].
    pub fn stderr(&mut self, output: impl Into<Stdio>) -> &mut Command {
        self.inner.stderr(output);
        self.directed[1] = true;
        self
    }

    /// As [`CommandExt::uid`]; supplementary groups are dropped.
    pub fn uid(&mut self, uid: u32) -> &mut Command {
        self.inner.uid(uid);
        self
    }

    /// As [`CommandExt::gid`].
    pub fn gid(&mut self, gid: u32) -> &mut Command {
        self.inner.gid(gid);
        self
    }

    /// Limits a resource of the process to `most`, as ulimit(1) does.
    pub fn limit(&mut self, resource: Resource, most: u64) -> &mut Command {
        self.limits(resource, Some(most), Some(most))
    }

    /// As [`Command::limit`], for the soft limit only.
    pub fn soft_limit(&mut self, resource: Resource, most: u64) -> &mut Command {
        self.limits(resource, Some(most), None)
    }

    /// Sets these limits of the process; `None` keeps the hard limit.
    #[allow(unsafe_code)] // What a child does before it becomes the program.
    fn limits(&mut self, resource: Resource, soft: Option<u64>, hard: Option<u64>) -> &mut Command {
        use rustix::process::{Rlimit, getrlimit, setrlimit};
        let set = move || {
            let maximum = hard.or(getrlimit(resource).maximum);
            let current = soft;
            Ok(setrlimit(resource, Rlimit { current, maximum })?)
        };
        // SAFETY: the closure makes two system calls, and neither allocates
        // nor takes a lock.
        unsafe { self.inner.pre_exec(set) };
        self
    }

    /// Starts the process. The process and its descendants are killed when the
    /// [`Process`] is dropped or the calling thread ends.
    ///
    /// # Errors
    /// As [`std::process::Command::spawn`].
    pub fn spawn(&mut self) -> io::Result<Process> {
        // A process group of its own, so that all of it can be killed.
        self.inner.process_group(0);
        Process::start_in_session(&mut self.inner)
    }

    /// As [`std::process::Command::output`].
    ///
    /// # Errors
    /// As for [`std::process::Command::output`], and `TimedOut` if the process
    /// has not ended within [`LIMIT`]; it is then killed.
    pub fn output(&mut self) -> io::Result<Output> {
        if !self.directed[0] {
            self.inner.stdout(Stdio::piped());
        }
        if !self.directed[1] {
            self.inner.stderr(Stdio::piped());
        }
        self.spawn()?.output(LIMIT)
    }

    /// As [`std::process::Command::status`].
    ///
    /// # Errors
    /// As [`Command::output`].
    pub fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.ended(LIMIT)
    }
}

impl From<Command> for std::process::Command {
    fn from(command: Command) -> std::process::Command {
        command.inner
    }
}
