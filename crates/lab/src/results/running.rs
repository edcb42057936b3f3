//! Runs the benches of the list from a checkout.

use super::{Checkout, FILE, Listed, Runs};
use crate::net::Process;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for compiling one bench, dependencies included.
const BUILD_LIMIT: Duration = Duration::from_secs(45 * 60);

/// Polling interval for the end of a process.
const INTERVAL: Duration = Duration::from_millis(50);

/// Time limit for a process to end after SIGTERM, before it is killed: `weir
/// lab rfc2544` first ends the programs under test.
const GRACE: Duration = Duration::from_secs(10);

/// The context of a run.
#[derive(Debug)]
pub struct Running<'a> {
    /// The sources.
    pub checkout: &'a Checkout,
    /// The absolute path of the results file.
    pub file: PathBuf,
    /// The file for the output of benches and Cargo.
    pub log: File,
    /// The file for the reasons of skipped parts; see
    /// [`testenv`](crate::testenv).
    pub skips: PathBuf,
}

/// The result of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The process succeeded.
    Done,
    /// The process failed with this status or signal.
    Failed(String),
    /// The process was ended at its time limit.
    Overdue(Duration),
    /// The process was ended on request.
    Stopped,
}

impl Running<'_> {
    /// Compiles a bench.
    ///
    /// # Errors
    /// If Cargo cannot be started.
    pub fn build(&self, listed: &Listed, asked: &dyn Fn() -> bool) -> io::Result<Ended> {
        let mut cargo = self.cargo()?;
        match listed.runs {
            Runs::Bench(package, bench, _) => {
                cargo.args(["bench", "--no-run", "-p", package, "--bench", bench]);
            }
            Runs::Rfc2544(..) => {
                cargo.args(["build", "--release", "-p", "weir"]);
            }
        }
        ended(cargo, BUILD_LIMIT, asked)
    }

    /// Runs a bench that was [built](Running::build), so that the time limit
    /// does not include compiling.
    ///
    /// # Errors
    /// If Cargo cannot be started.
    pub fn run(&self, listed: &Listed, asked: &dyn Fn() -> bool) -> io::Result<Ended> {
        let mut cargo = self.cargo()?;
        match listed.runs {
            Runs::Bench(package, bench, _) => {
                cargo.args(["bench", "-p", package, "--bench", bench, "--"]);
            }
            Runs::Rfc2544(..) => {
                cargo.args(["run", "--release", "-p", "weir", "--"]);
            }
        }
        cargo.args(listed.runs.arguments());
        cargo.env(FILE, &self.file).env("WEIR_SKIPPED", &self.skips);
        ended(cargo, listed.limit(), asked)
    }

    fn cargo(&self) -> io::Result<Command> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.current_dir(self.checkout.root());
        cargo.env("CARGO_TERM_COLOR", "never");
        cargo
            .stdin(Stdio::null())
            .stdout(self.log.try_clone()?)
            .stderr(self.log.try_clone()?);
        Ok(cargo)
    }
}

/// Waits for the end of a process, or ends its process group.
fn ended(mut command: Command, limit: Duration, asked: &dyn Fn() -> bool) -> io::Result<Ended> {
    // A process group of its own, so that all of it can be ended, and so that
    // Ctrl-C at a terminal reaches it only once, by this process.
    command.process_group(0);
    let mut process = Process::start_in_session(&mut command)?;
    let end = Instant::now() + limit;
    let (signal, ended) = loop {
        if let Some(status) = process.wait(INTERVAL)? {
            return Ok(of_status(status));
        }
        if asked() {
            break (Signal::INT, Ended::Stopped);
        }
        if Instant::now() >= end {
            break (Signal::TERM, Ended::Overdue(limit));
        }
    };
    let _ = process.signal(signal);
    let end = Instant::now() + GRACE;
    while !has_ended(&process) && Instant::now() < end {
        thread::sleep(INTERVAL);
    }
    // The rest of its group is killed when `process` is dropped.
    Ok(ended)
}

/// Whether a process has ended, without collecting its exit status: until then
/// its process group's id is not reused.
fn has_ended(process: &Process) -> bool {
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let pid = WaitId::Pid(Pid::from_child(process.child()));
    !matches!(waitid(pid, how), Ok(None))
}

fn of_status(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ended::Done,
        (Some(code), _) => Ended::Failed(format!("exit status {code}")),
        (None, signal) => Ended::Failed(format!("ended by signal {}", signal.unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).stdin(Stdio::null());
        shell
    }

    #[test]
    fn a_process_ends_by_itself_at_its_limit_or_when_asked() {
        const LONG: Duration = Duration::from_secs(60);
        let began = Instant::now();
        let never = || false;
        assert_eq!(ended(shell("exit 0"), LONG, &never).unwrap(), Ended::Done);
        let failed = ended(shell("exit 3"), LONG, &never).unwrap();
        assert_eq!(failed, Ended::Failed("exit status 3".to_owned()));
        let killed = ended(shell("kill -9 $$"), LONG, &never).unwrap();
        assert_eq!(killed, Ended::Failed("ended by signal 9".to_owned()));
        let short = Duration::from_millis(100);
        let overdue = ended(shell("sleep 60"), short, &never).unwrap();
        assert_eq!(overdue, Ended::Overdue(short));
        let stopped = ended(shell("sleep 60 & wait"), LONG, &|| true).unwrap();
        assert_eq!(stopped, Ended::Stopped);
        assert!(
            began.elapsed() < GRACE + LONG / 2,
            "a process was waited for"
        );
    }
}
