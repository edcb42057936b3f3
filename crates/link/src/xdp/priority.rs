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

/// Has the session's group of processes as it was before when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct FirstInLine {
    before: Option<i32>,
}

/// Has the calling thread, and those that it starts from then on, before all
/// others that are not real-time, soon after it wakes: those that want the
/// core can be served some milliseconds later, frames cannot.
///
/// Where the kernel shares out the processor between sessions first
/// (`kernel.sched_autogroup_enabled`, `sched(7)`), a thread's nice level counts
/// only beside those of its own session: so the session's has to be the same,
/// until what this gives is dropped.
///
/// # Errors
/// Without privilege (`CAP_SYS_NICE`): then it stays as it was.
pub fn first_in_line() -> io::Result<FirstInLine> {
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
        0 => Ok(FirstInLine {
            before: session_first(),
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the session first, where the kernel has such groups; gives its nice level
/// before, if that was another.
fn session_first() -> Option<i32> {
    let before = level(&std::fs::read_to_string(AUTOGROUP).ok()?)?;
    if before == FIRST {
        return None;
    }
    set_session(FIRST).ok().map(|()| before)
}

fn set_session(level: i32) -> io::Result<()> {
    std::fs::write(AUTOGROUP, level.to_string())
}

/// The nice level in what the kernel says, `/autogroup-61 nice 0`.
fn level(text: &str) -> Option<i32> {
    text.trim_end().rsplit(' ').next()?.parse().ok()
}

impl Drop for FirstInLine {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Who may no longer has less privilege than he had.
            let _ = set_session(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_it() {
        // On a thread of its own: the test's keeps what it has.
        let level = std::thread::spawn(|| {
            first_in_line().map(|_first| rustix::process::getpriority_process(None))
        });
        match level.join().unwrap() {
            Ok(level) => assert_eq!(level.unwrap(), -20),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }

    #[test]
    fn what_the_kernel_says_of_a_session_is_read() {
        assert_eq!(level("/autogroup-61 nice 0\n"), Some(0));
        assert_eq!(level("/autogroup-7 nice -20\n"), Some(-20));
        assert_eq!(level(""), None);
    }

    /// In a session of its own: what others do in ours is theirs.
    #[test]
    fn the_session_is_first_until_it_is_dropped() {
        const NAME: &str = "xdp::priority::tests::the_session_is_first_until_it_is_dropped";
        const WITHIN: &str = "WEIR_TEST_SESSION";
        let now = || level(&std::fs::read_to_string(AUTOGROUP).ok()?);
        if !weir_lab::need::root() || now().is_none() {
            return;
        }
        if std::env::var_os(WITHIN).is_none() {
            let mut again = std::process::Command::new("setsid");
            again.arg("--wait").arg(std::env::current_exe().unwrap());
            let ran = again.args(["--exact", NAME]).env(WITHIN, "1").output();
            let said = ran.expect("setsid of util-linux");
            let text = String::from_utf8_lossy(&said.stdout);
            assert!(said.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        assert_eq!(now(), Some(0));
        let first = first_in_line().unwrap();
        assert_eq!(now(), Some(FIRST));
        let second = first_in_line().unwrap();
        drop(second);
        assert_eq!(now(), Some(FIRST), "it was so before");
        drop(first);
        assert_eq!(now(), Some(0));
    }
}
