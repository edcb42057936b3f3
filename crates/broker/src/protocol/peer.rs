//! The process at the other end of a connection.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use weir_link::net::{peer_credentials, peer_groups, peer_pidfd};

/// The peer process, with its credentials at the time of the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The process id; 0 if the process has none in the broker's PID namespace.
    pub pid: u32,
    /// The effective user.
    pub uid: u32,
    /// The effective group, and the supplementary groups.
    pub gids: Vec<u32>,
    /// Whether the process is user 0 with the capabilities to open ports
    /// without a broker: see [`CAPABILITIES`].
    pub is_superuser: bool,
}

/// The capabilities of the superuser in the effective set, by their numbers in
/// `linux/capability.h`: `CAP_NET_ADMIN`, `CAP_NET_RAW`, `CAP_SYS_ADMIN`.
pub const CAPABILITIES: [u32; 3] = [12, 13, 21];

/// Largest length read of a file in `/proc`, in bytes.
const PROC_LEN_MAX: u64 = 64 << 10;

impl Peer {
    /// The peer of a connected socket.
    ///
    /// # Errors
    /// If the kernel does not report the credentials.
    pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
        let credentials = peer_credentials(socket)?;
        let mut gids = peer_groups(socket)?;
        if !gids.contains(&credentials.gid) {
            gids.push(credentials.gid);
        }
        let pid = credentials.pid.unwrap_or(0);
        Ok(Peer {
            pid,
            uid: credentials.uid,
            gids,
            is_superuser: credentials.uid == 0 && is_capable(socket, pid),
        })
    }
}

/// Whether a process of user 0 has the superuser's capabilities, in the
/// broker's user namespace; `false` if that cannot be determined.
///
/// The process may end meanwhile and its pid be reused. A PID descriptor shows
/// that: it is checked after `/proc` was read.
fn is_capable(socket: BorrowedFd<'_>, pid: u32) -> bool {
    let Some(process) = process(socket, pid) else {
        return false;
    };
    let folder = format!("/proc/{pid}");
    let capable = read(&format!("{folder}/status"))
        .is_ok_and(|status| has_capabilities(&status, &CAPABILITIES));
    // In another user namespace, whose user 0 has the same number but no
    // capabilities here, the map differs.
    let own = read("/proc/self/uid_map");
    let same = own.is_ok_and(|own| read(&format!("{folder}/uid_map")).is_ok_and(|map| map == own));
    capable && same && is_there(&process)
}

/// A PID descriptor of the peer. Before Linux 6.5 it is opened by pid, which
/// may be another process's already.
fn process(socket: BorrowedFd<'_>, pid: u32) -> Option<OwnedFd> {
    if let Ok(process) = peer_pidfd(socket) {
        return Some(process);
    }
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Whether a process has not ended: a PID descriptor is readable once it has.
fn is_there(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())) == Ok(0)
}

/// Whether `/proc` shows this process others' capabilities. Where it does not
/// (proc(5), `hidepid`), no peer counts as superuser.
pub fn sees_capabilities() -> bool {
    ["status", "uid_map"]
        .iter()
        .all(|name| read(&format!("/proc/1/{name}")).is_ok())
}

fn read(path: &str) -> io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(PROC_LEN_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Whether `CapEff` of a `/proc/PID/status` has all of these.
fn has_capabilities(status: &str, wanted: &[u32]) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| wanted.iter().all(|bit| mask & (1 << bit) != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_capabilities_are_needed() {
        let all = "Name:\tx\nCapPrm:\t0\nCapEff:\t000001ffffffffff\n";
        assert!(has_capabilities(all, &CAPABILITIES));
        // Without CAP_SYS_ADMIN, and in the permitted set only.
        let some = "CapEff:\t0000000000003000\n";
        let permitted = "CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n";
        for status in [some, permitted, "CapEff:\tx\n", ""] {
            assert!(!has_capabilities(status, &CAPABILITIES), "{status}");
        }
    }
}
