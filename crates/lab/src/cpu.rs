//! Which CPU runs what, and before whom: measurements need both.
#![allow(unsafe_code)] // Calls that the safe libraries lack.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The CPUs that the calling thread may run on, in order.
///
/// # Errors
/// What the system says.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

/// Has a thread run on that CPU only: `None` for the calling one.
///
/// # Errors
/// If there is no such CPU here, or no such thread.
pub fn pin(thread: Option<u32>, cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        let message = format!("there is no CPU {cpu}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let thread = thread.and_then(|id| Pid::from_raw(id as i32));
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(thread, &set)?)
}

/// Has a command's process run on that CPU only, and with
/// [real-time priority](realtime) if asked.
pub fn place(command: &mut Command, cpu: usize, with_priority: bool) {
    let before = move || {
        pin(None, cpu)?;
        if with_priority { realtime() } else { Ok(()) }
    };
    // SAFETY: the closure makes two system calls, and neither allocates nor
    // takes a lock, but for the message of a CPU that does not exist.
    unsafe { command.pre_exec(before) };
}

/// Gives the calling thread the lowest of the real-time priorities: it runs
/// before all that is not real-time. The kernel still keeps a twentieth of
/// each second for the others.
///
/// # Errors
/// Without privilege.
pub fn realtime() -> io::Result<()> {
    realtime_of(0)
}

/// As [`realtime`], for another thread by its number.
///
/// # Errors
/// Without privilege, or if there is no such thread.
pub fn realtime_of(thread: u32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are read only; zero is the calling thread.
    let result =
        unsafe { libc::sched_setscheduler(thread as i32, libc::SCHED_FIFO, &raw const parameters) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
