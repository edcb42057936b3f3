//! Who has a core first.
#![allow(unsafe_code)] // A call that the safe libraries lack.

use std::io;

/// The share of a core that the thread asks for at a time. The least that the
/// kernel takes: who asks for less may interrupt who asks for more (`EEVDF`,
/// Linux 6.12 and later), which the nice level alone does not do.
const SLICE_NS: u64 = 100_000;

/// The first form of `struct sched_attr` (`sched_setattr(2)`).
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Has the calling thread, and those that it starts from then on, before all
/// others that are not real-time, soon after it wakes: those that want the
/// core can be served some milliseconds later, frames cannot.
///
/// # Errors
/// Without privilege (`CAP_SYS_NICE`): then it stays as it was.
pub fn first_in_line() -> io::Result<()> {
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: -20,
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the structure is only read, and says its own size; zero is the
    // calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_it() {
        // On a thread of its own: the test's keeps what it has.
        let level = std::thread::spawn(|| {
            first_in_line().map(|()| rustix::process::getpriority_process(None))
        });
        match level.join().unwrap() {
            Ok(level) => assert_eq!(level.unwrap(), -20),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }
}
