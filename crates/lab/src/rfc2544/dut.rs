//! The device under test (DUT): a program between two interfaces.

use super::testbed::{Layout, Testbed};
use super::{Error, failed};
use crate::affinity;
use crate::net::{Process, Signal};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A device under test, which can be started between the interfaces of a test
/// bed.
pub trait Dut {
    /// The name in reports.
    fn name(&self) -> &str;

    /// How it is connected.
    fn layout(&self) -> Layout;

    /// Starts it; returns when it forwards frames.
    ///
    /// # Errors
    /// If it does not start.
    fn start(&self, bench: &Testbed) -> Result<Box<dyn Running>, Error>;
}

/// A running device under test. Dropping it ends it.
pub trait Running {
    /// Checks that it still runs.
    ///
    /// # Errors
    /// If it has ended.
    fn check(&mut self) -> Result<(), Error>;

    /// Enables or disables real-time priority for the duration of a trial:
    /// otherwise it would keep other processes from its CPU between trials.
    ///
    /// # Errors
    /// Without privilege.
    fn hurry(&mut self, on: bool) -> Result<(), Error> {
        let _ = on;
        Ok(())
    }

    /// Ends it and waits for its end.
    ///
    /// # Errors
    /// If it does not end cleanly.
    fn stop(self: Box<Self>) -> Result<(), Error>;
}

/// When a program is ready for frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ready {
    /// When it has written that text; an error after that time.
    Said(&'static str, Duration),
    /// After that time.
    After(Duration),
}

/// A program with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The name in reports.
    pub name: String,
    /// Program and arguments, at least one; `{a}` and `{b}` stand for the
    /// interfaces' names.
    pub words: Vec<String>,
    /// How it is connected.
    pub layout: Layout,
    /// When it is ready.
    pub ready: Ready,
    /// Whether its standard input stays open until it is to end; otherwise it
    /// ends by SIGTERM.
    pub open_input: bool,
}

/// Time limit for a program's end after SIGTERM.
const END_MAX: Duration = Duration::from_secs(10);

/// Polling interval for readiness.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Largest number of lines and bytes, the last ones of a log, in an error.
const LOG_LINES_MAX: usize = 12;
const LOG_BYTES_MAX: usize = 4096;

impl Dut for Program {
    fn name(&self) -> &str {
        &self.name
    }

    fn layout(&self) -> Layout {
        self.layout
    }

    fn start(&self, bench: &Testbed) -> Result<Box<dyn Running>, Error> {
        let what = || format!("starting `{}`", self.name);
        let log = memfd_create("log", MemfdFlags::CLOEXEC);
        let log = Log(File::from(log.map_err(|e| failed(what())(e.into()))?));
        let handle = || log.0.try_clone().map_err(failed(what()));
        let mut command = self.command(bench);
        command.stdout(handle()?).stderr(handle()?);
        command.stdin(if self.open_input {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        affinity::pin_command(&mut command, bench.setup().cpus.dut);
        let process = bench.dut().spawn(command).map_err(failed(what()))?;
        let mut started = Started {
            name: self.name.clone(),
            process,
            log,
        };
        started.wait(self.ready)?;
        Ok(Box::new(started))
    }
}

impl Program {
    fn command(&self, bench: &Testbed) -> Command {
        let [a, b] = bench
            .ports()
            .map_or(["", ""], |ports| ports.each_ref().map(|port| port.name()));
        let fill = |word: &String| word.replace("{a}", a).replace("{b}", b);
        let mut words = self.words.iter().map(fill);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    }
}

/// A started program.
#[derive(Debug)]
struct Started {
    name: String,
    process: Process,
    log: Log,
}

impl Started {
    fn wait(&mut self, ready: Ready) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            self.check()?;
            match ready {
                Ready::After(time) if start.elapsed() >= time => return Ok(()),
                Ready::Said(word, _) if self.log.says(word) => return Ok(()),
                Ready::Said(word, limit) if start.elapsed() >= limit => {
                    let what = format!("`{}` did not print `{word}` within {limit:?}", self.name);
                    return Err(self.failed(what));
                }
                _ => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn failed(&self, what: String) -> Error {
        let log = self.log.tail();
        Error::Dut { what, log }
    }
}

impl Running for Started {
    fn check(&mut self) -> Result<(), Error> {
        match self.process.wait(Duration::ZERO) {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                let what = format!("`{}` ended by itself: {status}", self.name);
                Err(self.failed(what))
            }
            Err(error) => Err(failed(format!("waiting for `{}`", self.name))(error)),
        }
    }

    fn hurry(&mut self, on: bool) -> Result<(), Error> {
        let what = || format!("the priority of `{}`", self.name);
        let tasks = format!("/proc/{}/task", self.process.id());
        for task in fs::read_dir(tasks).map_err(failed(what()))? {
            let name = task.map_err(failed(what()))?.file_name();
            // A thread may have ended meanwhile.
            if let Ok(number) = name.to_string_lossy().parse() {
                let _ = affinity::set_realtime(Some(number), on);
            }
        }
        Ok(())
    }

    fn stop(mut self: Box<Self>) -> Result<(), Error> {
        self.check()?;
        let what = || format!("ending `{}`", self.name);
        let how = match self.process.child_mut().stdin.take() {
            Some(input) => {
                drop(input);
                "when its input ended"
            }
            None => {
                let sent = self.process.signal(Signal::TERM);
                sent.map_err(failed(what()))?;
                "on SIGTERM"
            }
        };
        let what = match self.process.wait(END_MAX) {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => format!("`{}` did not end cleanly {how}: {status}", self.name),
            Ok(None) => format!("`{}` did not end within {END_MAX:?} {how}", self.name),
            Err(error) => return Err(failed(what())(error)),
        };
        Err(self.failed(what))
    }
}

/// A program's output, in memory.
#[derive(Debug)]
struct Log(File);

impl Log {
    /// Whether the log contains a text.
    fn says(&self, word: &str) -> bool {
        let text = self.text(0);
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        words.any(|said| said == word)
    }

    /// The last lines.
    fn tail(&self) -> String {
        let len = self.0.metadata().map_or(0, |facts| facts.len());
        let text = self.text(len.saturating_sub(LOG_BYTES_MAX as u64));
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
    }

    /// A part of the log, from an offset on.
    fn text(&self, offset: u64) -> String {
        // The first line with the ready text may be far into the log.
        let mut bytes = vec![0; 64 * LOG_BYTES_MAX];
        let len = self.0.read_at(&mut bytes, offset).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }
}
