//! Processes in hosts: none outlives the one that started it.
#![allow(unsafe_code)] // What a child does before it becomes the program.

use rustix::process::{
    Pid, Signal, WaitIdOptions, getpid, getppid, kill_process_group,
    set_parent_process_death_signal, setsid,
};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output};
use std::thread;
use std::time::{Duration, Instant};

/// A running process in a session of its own; all of its process group is killed
/// when this is dropped.
#[derive(Debug)]
pub struct Process(Option<Child>);

impl Process {
    /// Starts a process that the kernel kills when the calling thread ends.
    pub(super) fn start(mut command: Command) -> io::Result<Process> {
        let parent = getpid();
        // Runs after any change of user, which would undo it.
        let die_with_parent = move || {
            // As a service has one: where sessions share out the processor
            // (`sched(7)`, autogroup), it has none of ours.
            setsid()?;
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before that.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(io::ErrorKind::NotConnected.into())
            }
        };
        // SAFETY: the closure makes three system calls, and neither allocates
        // nor takes a lock.
        unsafe { command.pre_exec(die_with_parent) };
        Ok(Process(Some(command.spawn()?)))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    /// The standard library's view of it, for its pipes.
    pub fn child(&self) -> &Child {
        self.0.as_ref().expect("it is there until it is given away")
    }

    /// As [`Process::child`], to take its pipes.
    pub fn child_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is there until it is given away")
    }

    /// Waits for its end, at most for `limit`; `None` when it still runs.
    ///
    /// # Errors
    /// As [`Child::try_wait`].
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

    /// Sends a signal to it and to what it has started.
    ///
    /// # Errors
    /// If all of them have ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process_group(self.pid(), signal)?)
    }

    /// Waits for its end and gives what it wrote to its pipes.
    pub(super) fn output(mut self) -> io::Result<Output> {
        let child = self.0.take().expect("it is there until it is given away");
        child.wait_with_output()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.0.is_none() {
            return;
        }
        // As long as its end was not waited for, its number, and so the
        // group's, is nobody else's.
        let unwaited = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if rustix::process::waitid(rustix::process::WaitId::Pid(self.pid()), unwaited).is_ok() {
            let _ = self.signal(Signal::KILL);
        }
        let _ = self.child_mut().wait();
    }
}
