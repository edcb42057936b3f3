//! Who has a core first.
#![allow(unsafe_code)] // A call that the safe libraries lack.

use std::io;

/// What the kernel calls a session's group of processes, and its nice level.
const AUTOGROUP: &str = "/proc/self/autogroup";

/// The nice level of who is first in line.
const FIRST: i32 = -20;

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
/// Where the kernel shares out the processor between sessions first
/// (`kernel.sched_autogroup_enabled`, `sched(7)`), a thread's nice level counts
/// only beside those of its own session. So a process that leads one, as a
/// service does, has the session's be the same. Who is in a session with others,
/// a shell's, leaves it: they would be before everybody, too, and for good.
///
/// # Errors
/// Without privilege (`CAP_SYS_NICE`): then it stays as it was.
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
    // SAFETY: the structure is only read, and says its own size; zero is the
    // calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => {
            session_first();
            Ok(())
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has our session first, if it is ours; where the kernel has no such groups
/// there is nothing to do.
fn session_first() {
    // SAFETY: it takes no memory. Not `rustix`'s: where the leader is outside
    // our namespace of processes, as in some containers, it is 0, which is no
    // `Pid`.
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
        // On a thread of its own: the test's keeps what it has.
        let level = std::thread::spawn(|| {
            raise_priority().map(|()| rustix::process::getpriority_process(None))
        });
        match level.join().unwrap() {
            Ok(level) => assert_eq!(level.unwrap(), -20),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }

    /// The nice level of our session, `/autogroup-61 nice 0`.
    fn session() -> Option<i32> {
        let text = std::fs::read_to_string(AUTOGROUP).ok()?;
        text.trim_end().rsplit(' ').next()?.parse().ok()
    }

    /// In a session of its own: what others do in ours is theirs.
    #[test]
    fn who_leads_a_session_has_it_first_and_nobody_else() {
        const NAME: &str =
            "xdp::sched::priority::tests::who_leads_a_session_has_it_first_and_nobody_else";
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
