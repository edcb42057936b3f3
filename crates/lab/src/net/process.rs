//! Processes in hosts, which never outlive the process that started them.
#![allow(unsafe_code)] // What a child does before it becomes the program.

use rustix::process::{
    Pid, Signal, WaitIdOptions, getpid, getppid, kill_process_group,
    set_parent_process_death_signal, setsid,
};
use std::io::{self, Read};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A running process in a session of its own; its process group is killed when
/// this value is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The command, for messages.
    command: String,
}

impl Process {
    /// Starts a process in a new session; the kernel kills it when the calling
    /// thread ends.
    pub(super) fn start(mut command: Command) -> io::Result<Process> {
        // As a service: if the kernel schedules sessions as groups (`sched(7)`,
        // autogroup), it does not share this process's group.
        let lead = || Ok(setsid().map(drop)?);
        // SAFETY: the closure makes a system call, and neither allocates nor
        // takes a lock.
        unsafe { command.pre_exec(lead) };
        Process::start_in_session(&mut command)
    }

    /// As [`start`], in the caller's session. `command` has made the process
    /// the leader of its process group.
    pub(crate) fn start_in_session(command: &mut Command) -> io::Result<Process> {
        let parent = getpid();
        // Set after any change of user, which would clear it.
        let die_with_parent = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may already have ended.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(io::ErrorKind::NotConnected.into())
            }
        };
        // SAFETY: the closure makes two system calls, and neither allocates
        // nor takes a lock.
        unsafe { command.pre_exec(die_with_parent) };
        Ok(Process {
            child: command.spawn()?,
            command: format!("{command:?}"),
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    /// The standard library's child, for its pipes.
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// As [`Process::child`], for taking its pipes.
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits at most `limit` for its end; `None` if it still runs.
    ///
    /// # Errors
    /// As for [`Child::try_wait`].
    pub fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let end = Instant::now() + limit;
        loop {
            let status = self.child_mut().try_wait()?;
            if status.is_some() || Instant::now() >= end {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal to its process group.
    ///
    /// # Errors
    /// If all of its processes have ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process_group(self.pid(), signal)?)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As for [`Process::wait`], and `TimedOut` if it still runs after `limit`.
    pub fn ended(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        let status = self.wait(limit)?;
        status.ok_or_else(|| self.overdue("has not ended", limit))
    }

    /// Waits for its end; returns what it wrote to its pipes.
    ///
    /// # Errors
    /// As for [`Process::ended`]; its process group is then killed.
    pub fn output(mut self, limit: Duration) -> io::Result<Output> {
        drop(self.child.stdin.take());
        let end = Instant::now() + limit;
        let (stdout, stderr) = (
            read_all(self.child.stdout.take()),
            read_all(self.child.stderr.take()),
        );
        let status = self.ended(limit)?;
        // A descendant may hold its pipes open.
        let rest = |read: &Receiver<io::Result<Vec<u8>>>| {
            let left = end.saturating_duration_since(Instant::now());
            let read = read.recv_timeout(left);
            read.unwrap_or_else(|_| Err(self.overdue("has not closed its output", limit)))
        };
        Ok(Output {
            status,
            stdout: rest(&stdout)?,
            stderr: rest(&stderr)?,
        })
    }

    /// As [`Child::wait_with_output`], within [`LIMIT`](crate::command::LIMIT).
    ///
    /// # Errors
    /// As for [`Process::output`].
    pub fn wait_with_output(self) -> io::Result<Output> {
        self.output(crate::command::LIMIT)
    }

    fn overdue(&self, what: &str, limit: Duration) -> io::Error {
        let text = format!("{} {what} within {limit:?}", self.command);
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child())
    }
}

/// The standard library's child: its pipes and exit status.
impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Until its exit status is collected, its process id, and so the
        // group's, is not reused.
        let unwaited = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if rustix::process::waitid(rustix::process::WaitId::Pid(self.pid()), unwaited).is_ok() {
            let _ = self.signal(Signal::KILL);
        }
        let _ = self.child_mut().wait();
    }
}

/// Reads a pipe to its end on a new thread.
fn read_all(pipe: Option<impl Read + Send + 'static>) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        // The receiver may have given up.
        let _ = sender.send(read.map(|_| bytes));
    });
    receiver
}
