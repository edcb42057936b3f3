//! The two tasks of a broker that need `CAP_SYS_ADMIN`: making a network
//! namespace (`unshare(2)`), and asking whether maps still exist
//! (`BPF_MAP_GET_FD_BY_ID`). A broker that is not root has both done by a helper
//! process, and gives up the capability itself (privilege separation).
//!
//! ```text
//!  broker: CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW        helper: CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW
//!     paths' thread ── 1 byte ─────────────────────────► thread: a namespace
//!                   ◄─ errno; namespace, two sockets ───
//!     main thread   ── numbers of maps ────────────────► thread: which exist?
//!                   ◄─ a byte for each ────────────────
//! ```
//!
//! The helper reads nothing but these messages, which hold no pointer, path or
//! name. It cannot be traced by the broker, which lacks `CAP_SYS_ADMIN`, and
//! ends with the broker, by the end of its sockets.
#![allow(unsafe_code)] // fork(2), signal(2), _exit(2).

use crate::bpf::{self, ObjectError, ObjectKind};
use crate::net::{FarNamespace, NamespaceError};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair, sockopt,
};
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_name, set_no_new_privs,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The capabilities of a process that opens ports and sends, besides
/// `CAP_SYS_ADMIN`.
const OWN: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW);
/// Optional: filters that the verifier takes in no other way.
const OPTIONAL: CapabilitySet = CapabilitySet::PERFMON;
/// The helper's: it opens sockets in the namespaces that it makes.
const HELPER: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW);

/// Largest number of maps in one question.
const MAPS_MAX: usize = 4096;

/// Longest wait for a namespace, which takes some ten milliseconds, and under
/// load 140; for an answer about maps, which takes 2 µs for each of them.
const NAMESPACE_WAIT: Duration = Duration::from_secs(60);
const MAPS_WAIT: Duration = Duration::from_secs(10);

/// Number of descriptors of a [`FarNamespace`].
const FDS: usize = 3;

/// Does what needs `CAP_SYS_ADMIN`: in this process, or in a helper.
#[derive(Debug, Default)]
pub struct Privileged(Option<Helper>);

/// The sockets to the helper, a task each.
#[derive(Debug)]
struct Helper {
    namespaces: Mutex<OwnedFd>,
    maps: Mutex<OwnedFd>,
}

impl Privileged {
    /// In this process, which needs the capability.
    pub fn here() -> Privileged {
        Privileged(None)
    }

    /// Starts the helper, and gives up, for this process and all that it
    /// starts, every capability that a broker does without: `CAP_SYS_ADMIN`,
    /// and others but for those that it opens ports by. The process must have
    /// one thread.
    ///
    /// # Errors
    /// If the process has several threads, or lacks a capability; the system's
    /// error.
    pub fn separate() -> io::Result<Privileged> {
        Privileged::separate_beside(0)
    }

    /// As [`separate`](Self::separate), beside this many threads that do nothing
    /// but wait, as those of a test's harness; they keep their capabilities.
    #[doc(hidden)]
    pub fn separate_beside(idle: usize) -> io::Result<Privileged> {
        if std::fs::read_dir("/proc/self/task")?.count() != 1 + idle {
            let message = "a helper is started before other threads are";
            return Err(io::Error::other(message));
        }
        let pair = || {
            let flags = SocketFlags::CLOEXEC;
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        };
        let ((namespaces, theirs), (maps, other)) = (pair()?, pair()?);
        // SAFETY: the process has one thread that does anything, so that the
        // child finds no lock taken and no invariant broken (in tests, beside
        // threads that wait and hold no lock); it never returns from `helper`.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                drop((namespaces, maps));
                helper(theirs, &other)
            }
            _ => {}
        }
        // So that the end of the helper is the end of its sockets.
        drop((theirs, other));
        for (socket, wait) in [(&namespaces, NAMESPACE_WAIT), (&maps, MAPS_WAIT)] {
            sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(wait))?;
        }
        if receive(maps.as_fd(), &mut [0])? != 1 {
            return Err(io::Error::other("the helper has ended at once"));
        }
        set_no_new_privs(true)?;
        keep(OWN, OPTIONAL)?;
        Ok(Privileged(Some(Helper {
            namespaces: Mutex::new(namespaces),
            maps: Mutex::new(maps),
        })))
    }

    /// A new network namespace, without processes.
    pub(crate) fn namespace(&self) -> Result<FarNamespace, NamespaceError> {
        let Some(helper) = &self.0 else {
            return FarNamespace::new();
        };
        let socket = helper.namespaces.lock();
        let socket = socket.unwrap_or_else(PoisonError::into_inner);
        let asked = send(socket.as_fd(), b"n", &[]).and_then(|()| receive_fds(socket.as_fd()));
        let made =
            asked
                .map_err(|error| ended(&socket, error))
                .and_then(|(error, fds)| match error {
                    0 => {
                        let [namespace, xdp, netlink]: [OwnedFd; FDS] = fds
                            .try_into()
                            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
                        Ok(FarNamespace::of(namespace, xdp, netlink))
                    }
                    error => Err(io::Error::from_raw_os_error(error)),
                });
        made.map_err(|source| NamespaceError {
            what: "make",
            source,
        })
    }

    /// Which of these maps do not exist any more. A map of which that is not
    /// known counts as one that exists.
    pub fn gone_maps(&self, ids: &[u32]) -> Vec<u32> {
        let Some(helper) = &self.0 else {
            return ids.iter().copied().filter(|id| is_gone(*id)).collect();
        };
        let socket = helper.maps.lock();
        let socket = socket.unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        for part in ids.chunks(MAPS_MAX) {
            let bytes: Vec<u8> = part.iter().flat_map(|id| id.to_ne_bytes()).collect();
            let mut answer = vec![0; part.len()];
            let asked = send(socket.as_fd(), &bytes, &[]);
            let answered = asked.and_then(|()| receive(socket.as_fd(), &mut answer));
            if !answered.is_ok_and(|len| len == part.len()) {
                // The error is said of the next path.
                let _ = shutdown(&*socket, Shutdown::Both);
                break;
            }
            let answers = part.iter().zip(answer);
            gone.extend(answers.filter_map(|(id, answer)| (answer == GONE).then_some(*id)));
        }
        gone
    }
}

/// Answer to a map's number: it does not exist.
const GONE: u8 = 1;

fn is_gone(id: u32) -> bool {
    let opened = bpf::open(ObjectKind::Map, id, true);
    matches!(opened, Err(ObjectError::Missing { .. }))
}

/// The error for a helper that does not answer. It is not asked again: a late
/// answer would count as that to the next question.
fn ended(socket: &OwnedFd, error: io::Error) -> io::Error {
    let _ = shutdown(socket, Shutdown::Both);
    let message = format!("the broker's helper process has ended: start the broker anew ({error})");
    io::Error::other(message)
}

/// Gives up all capabilities but those of `needed` and of `optional`.
fn keep(needed: CapabilitySet, optional: CapabilitySet) -> io::Result<()> {
    let before = capabilities(None)?;
    if !before.permitted.contains(needed) {
        return Err(Errno::PERM.into());
    }
    let kept = before.permitted & (needed | optional);
    clear_ambient_capability_set()?;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// The child, until its sockets end.
fn helper(namespaces: OwnedFd, maps: &OwnedFd) -> ! {
    let run = AssertUnwindSafe(move || -> io::Result<()> {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            // SAFETY: no handler is set. The helper ends with the broker, which
            // a signal to the whole group of processes may still keep busy.
            unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) };
        }
        set_name(c"weir-privileged")?;
        set_no_new_privs(true)?;
        keep(HELPER, CapabilitySet::empty())?;
        // No other process of this user reads its memory.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        std::env::set_current_dir("/")?;
        std::thread::Builder::new().spawn(move || {
            while let Ok(1) = receive(namespaces.as_fd(), &mut [0]) {
                if answer_namespace(namespaces.as_fd()).is_err() {
                    break;
                }
            }
            leave()
        })?;
        // It is ready.
        send(maps.as_fd(), &[0], &[])?;
        answer_maps(maps.as_fd());
        Ok(())
    });
    let _ = catch_unwind(run);
    leave()
}

/// Ends the process without the parent's work at exit.
fn leave() -> ! {
    // SAFETY: always.
    unsafe { libc::_exit(0) }
}

fn answer_namespace(socket: BorrowedFd<'_>) -> io::Result<()> {
    match FarNamespace::new() {
        Ok(made) => send(socket, &0i32.to_ne_bytes(), &made.fds()),
        Err(error) => {
            let code = error.source.raw_os_error().unwrap_or(libc::EIO);
            send(socket, &code.to_ne_bytes(), &[])
        }
    }
}

fn answer_maps(socket: BorrowedFd<'_>) {
    let mut bytes = vec![0; 4 * MAPS_MAX];
    while let Ok(len @ 1..) = receive(socket, &mut bytes) {
        let (ids, _) = bytes[..len].as_chunks();
        let ids = ids.iter().map(|id| u32::from_ne_bytes(*id));
        let answer: Vec<u8> = ids.map(|id| u8::from(is_gone(id)) * GONE).collect();
        if send(socket, &answer, &[]).is_err() {
            return;
        }
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = || {
        let flags = SendFlags::NOSIGNAL;
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
    };
    rustix::io::retry_on_intr(sent)?;
    Ok(())
}

/// The next message; 0 at the end.
fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::empty();
    let received = || rustix::net::recv(socket, &mut *bytes, flags).map(|(len, _)| len);
    Ok(rustix::io::retry_on_intr(received)?)
}

/// The next message: an error number and descriptors.
fn receive_fds(socket: BorrowedFd<'_>) -> io::Result<(i32, Vec<OwnedFd>)> {
    let mut code = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = || {
        let flags = RecvFlags::CMSG_CLOEXEC;
        recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut code)],
            &mut control,
            flags,
        )
    };
    let len = rustix::io::retry_on_intr(received)?.bytes;
    if len != code.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    Ok((i32::from_ne_bytes(code), fds))
}
