//! The scheduling priority of a thread that forwards frames, and of one that answers events.
#![allow(unsafe_code)] // A call that the safe libraries lack.

use std::io;

/// The nice level of a session's process group (sched(7)).
const AUTOGROUP: &str = "/proc/self/autogroup";

/// The most favourable nice level.
const FIRST: i32 = -20;

/// The time slice, in nanoseconds: the least that the kernel accepts. A thread
/// with a shorter slice may preempt one with a longer slice (`EEVDF`, Linux
/// 6.12 and later); the nice level alone does not cause preemption.
const SLICE_NS: u64 = 100_000;

/// The first version of `struct sched_attr` (`sched_setattr(2)`).
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

/// Lets the calling thread, and threads that it starts later, run before all
/// threads without a real-time policy, soon after a wake-up: other work can
/// wait some milliseconds, frames cannot.
///
/// If the kernel schedules sessions as groups
/// (`kernel.sched_autogroup_enabled`, `sched(7)`), a thread's nice level only
/// counts within its session. Therefore a process that leads its session, such
/// as a service, raises the session's nice level too. A process in a shared
/// session, such as a shell's, leaves the session's level alone: it would raise
/// all other processes of the session permanently.
///
/// # Errors
/// Without privilege (`CAP_SYS_NICE`); then the priority is unchanged.
pub fn raise_priority() -> io::Result<()> {
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: FIRST,
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the structure is only read and contains its own size; 0 is the
    // calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => {
            session_first();
            Ok(())
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the calling thread run soon after a wake-up, though another thread keeps the CPU busy: its time
/// slice becomes the least (`EEVDF`, Linux 6.12 and later), its priority and its share of the CPU stay.
/// With an ordinary slice it waits for that of the other, 3 ms and more. Where all CPUs are overcommitted
/// it waits for its share. Earlier kernels ignore it, and a thread with a real-time policy is left alone.
///
/// # Errors
/// The system's, if it does not permit the call.
pub fn shorten_slice() -> io::Result<()> {
    let mut attr = current()?;
    if attr.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attr.runtime = SLICE_NS;
    // SAFETY: as in `raise_priority`.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The calling thread's scheduling.
fn current() -> io::Result<SchedAttr> {
    let mut attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: 0,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: 0,
        deadline: 0,
        period: 0,
    };
    let size = attr.size;
    // SAFETY: the kernel writes at most `size` bytes, which the structure has; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) } {
        0 => Ok(attr),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the session's nice level if this process leads the session; does
/// nothing if the kernel has no such groups.
fn session_first() {
    // SAFETY: the call takes no pointers. `rustix` is not used: if the
    // session's leader is outside this PID namespace, as in some containers,
    // the id is 0, which is not a valid `Pid`.
    let leader = unsafe { libc::getsid(0) };
    if leader == rustix::process::getpid().as_raw_nonzero().get() {
        let _ = std::fs::write(AUTOGROUP, FIRST.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::command::Command;
    use weir_lab::testenv;

    #[test]
    fn the_kernel_takes_it() {
        // On a separate thread, so that the test's own thread keeps its
        // priority.
        let level = std::thread::spawn(|| {
            raise_priority().map(|()| rustix::process::getpriority_process(None))
        });
        match level.join().unwrap() {
            Ok(level) => assert_eq!(level.unwrap(), -20),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }

    #[test]
    fn a_shorter_slice_leaves_the_nice_level() {
        let slice = std::thread::spawn(|| {
            let before = current().unwrap();
            rustix::process::setpriority_process(None, before.nice + 1).unwrap();
            shorten_slice().unwrap();
            let after = current().unwrap();
            assert_eq!((after.policy, after.nice), (before.policy, before.nice + 1));
            (before.runtime, after.runtime)
        });
        match slice.join().unwrap() {
            (0, slice) => testenv::skip(&format!("no time slices in this kernel ({slice})")),
            (_, slice) => assert_eq!(slice, SLICE_NS),
        }
    }

    /// The nice level of this process's session, such as `/autogroup-61 nice
    /// 0`.
    fn session() -> Option<i32> {
        let text = std::fs::read_to_string(AUTOGROUP).ok()?;
        text.trim_end().rsplit(' ').next()?.parse().ok()
    }

    /// In a session of its own, so that other processes of the session are not
    /// affected.
    #[test]
    fn a_session_leader_has_priority_and_no_other_process() {
        const NAME: &str =
            "xdp::sched::priority::tests::a_session_leader_has_priority_and_no_other_process";
        const ROLE: &str = "WEIR_TEST_ROLE";
        if !testenv::root() || !testenv::programs(&["setsid", "unshare"]) || session().is_none() {
            return;
        }
        let again = |mut command: Command, role| {
            let ran = command.args(["--exact", NAME]).env(ROLE, role).output();
            let said = ran.expect("it starts");
            let text = String::from_utf8_lossy(&said.stdout);
            assert!(said.status.success() && text.contains("1 passed"), "{text}");
        };
        let this = std::env::current_exe().unwrap();
        match std::env::var(ROLE).as_deref() {
            Err(_) => {
                let mut command = testenv::program("setsid").expect("it is there");
                command.arg("--wait").arg(this);
                again(command, "leader");
            }
            Ok("leader") => {
                again(Command::built(&this), "other");
                let mut inner = testenv::program("unshare").expect("it is there");
                inner.args(["--fork", "--pid"]).arg(this);
                again(inner, "other"); // Its leader has no number there.
                assert_eq!(session(), Some(0));
                raise_priority().unwrap();
                assert_eq!(session(), Some(FIRST));
            }
            Ok(_) => raise_priority().unwrap(),
        }
    }
}
