//! Seccomp's user notifications (seccomp_unotify(2)): calls that the kernel holds until they are answered.

use crate::real;
use crate::sock::last_errno;
use libc::{c_int, c_long};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// A call of a thread of the program, which waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    id: u64,
    /// The thread.
    pub(super) thread: i32,
    pub(super) number: c_long,
    pub(super) arguments: [u64; 6],
}

impl Call {
    /// The descriptor that the call is on.
    pub(super) fn fd(&self) -> RawFd {
        self.arguments[0] as RawFd
    }

    /// Whether this may be `other`, begun again after a signal: by its registers alone.
    pub(super) fn is_again(&self, other: &Call) -> bool {
        (self.thread, self.number, self.arguments) == (other.thread, other.number, other.arguments)
    }
}

/// The error if the call waits no more: its thread has ended, or a signal has interrupted it. No error of
/// Linux has this number.
pub(super) const OVER: c_int = 4092;

/// The descriptor of a filter's notifications.
pub(super) struct Notices(OwnedFd);

impl Notices {
    pub(super) fn new(fd: OwnedFd) -> Notices {
        Notices(fd)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.0
    }

    fn ask<T>(&self, request: libc::Ioctl, value: &mut T) -> Result<c_int, c_int> {
        let at = std::ptr::from_mut(value) as usize;
        // SAFETY: each caller's value is the structure of its request.
        match unsafe { real::ioctl(self.0.as_raw_fd(), request, at) } {
            -1 => Err(last_errno()),
            done => Ok(done),
        }
    }

    /// The next call; `None` if its thread has ended meanwhile, or a signal has interrupted the call.
    pub(super) fn next(&self) -> Option<Call> {
        // SAFETY: all fields of a zeroed notification are valid, and the kernel demands zeros.
        let mut notice: libc::seccomp_notif = unsafe { zeroed() };
        self.ask(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut notice).ok()?;
        Some(Call {
            id: notice.id,
            thread: i32::try_from(notice.pid).ok()?,
            number: notice.data.nr.into(),
            arguments: notice.data.args,
        })
    }

    /// Whether the thread still waits in the call: its numbers are then not another's.
    pub(super) fn is_valid(&self, call: &Call) -> bool {
        let mut id = call.id;
        self.ask(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id)
            .is_ok()
    }

    /// As [`Notices::is_valid`].
    ///
    /// # Errors
    /// [`OVER`].
    pub(super) fn check(&self, call: &Call) -> Result<(), c_int> {
        if self.is_valid(call) {
            Ok(())
        } else {
            Err(OVER)
        }
    }

    /// Has the call return; false if it waits no more.
    pub(super) fn answer(&self, call: &Call, result: Result<i64, c_int>) -> bool {
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val: result.unwrap_or(0),
            error: result.err().map_or(0, |error| -error),
            flags: 0,
        };
        self.ask(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer)
            .is_ok()
    }

    /// Leaves the call to the kernel.
    pub(super) fn leave(&self, call: &Call) {
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // A call that waits no more needs no answer.
        let _ = self.ask(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer);
    }

    /// Gives the process of the call a descriptor in the place of another one of its.
    ///
    /// # Errors
    /// `ENOENT` if the call waits no more.
    pub(super) fn replace(
        &self,
        call: &Call,
        fd: &OwnedFd,
        at: RawFd,
        cloexec: bool,
    ) -> Result<(), c_int> {
        let flags = libc::SECCOMP_ADDFD_FLAG_SETFD as u32;
        self.add(call, fd, (flags, at as u32), cloexec).map(drop)
    }

    /// Gives the process of the call a new descriptor, which the call returns.
    ///
    /// # Errors
    /// `ENOENT` if the call waits no more; `EMFILE` if the process has as many as it may.
    pub(super) fn give(&self, call: &Call, fd: &OwnedFd, cloexec: bool) -> Result<(), c_int> {
        let flags = libc::SECCOMP_ADDFD_FLAG_SEND as u32;
        self.add(call, fd, (flags, 0), cloexec).map(drop)
    }

    fn add(
        &self,
        call: &Call,
        fd: &OwnedFd,
        (flags, at): (u32, u32),
        cloexec: bool,
    ) -> Result<c_int, c_int> {
        let mut add = libc::seccomp_notif_addfd {
            id: call.id,
            flags,
            srcfd: fd.as_raw_fd() as u32,
            newfd: at,
            newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        self.ask(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut add)
    }
}
