//! Messages that may pass a descriptor (`SCM_RIGHTS`, unix(7)).

use crate::sock::last_errno;
use crate::{cancel, real};
use libc::{c_int, iovec, msghdr, ssize_t};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Linux' option of a Unix socket that may be sent descriptors, since 6.16.
const SO_PASSRIGHTS: c_int = 83;

/// Has the kernel refuse to pass descriptors to this socket, and to those that a listening one accepts: a
/// process could make the owner wait when it closes them. Without effect on an older kernel.
pub(crate) fn refuse_descriptors(fd: &OwnedFd) {
    super::calls::set_int(fd.as_raw_fd(), SO_PASSRIGHTS, 0);
}

/// The ancillary data of one descriptor.
#[repr(C, align(8))]
struct Passed([u8; 24]);

/// A message of one buffer.
fn message_of(part: &mut iovec) -> msghdr {
    // SAFETY: all fields of a zeroed message are valid.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

/// Sends a message, with a descriptor if there is one, without waiting.
///
/// # Errors
/// As `sendmsg(2)`.
pub(crate) fn send(to: &OwnedFd, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(), c_int> {
    let mut part = iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Passed([0; 24]);
    let mut message = message_of(&mut part);
    if let Some(fd) = fd {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        // SAFETY: the room is that of a header and a descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
            let data = libc::CMSG_DATA(header).cast::<c_int>();
            data.write_unaligned(fd.as_raw_fd());
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message is valid.
    match unsafe { real::sendmsg(to.as_raw_fd(), &raw const message, flags) } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

/// Length of the data of a message of [`pass`].
pub(super) const PASS: usize = 4;

/// Sends a message that passes a descriptor; its data is a 0.
pub(super) fn pass(to: &OwnedFd, fd: &OwnedFd) -> Result<(), c_int> {
    send(to, &[0; PASS], Some(fd))
}

/// Whether a message may pass later: memory is short, or descriptors of the user are on their way in
/// other messages, as many as a process may have (`ETOOMANYREFS`, unix(7)).
pub(super) fn is_short(error: c_int) -> bool {
    matches!(
        error,
        libc::EINTR | libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS
    )
}

/// Receives a message: the bytes that lie in `room`, and the descriptor that it passes.
///
/// # Errors
/// As `recvmsg(2)`.
pub(super) fn receive(
    from: c_int,
    room: &mut [u8],
    flags: c_int,
) -> Result<(usize, Option<c_int>), c_int> {
    // SAFETY: the message is valid.
    receive_by(room, |message| unsafe {
        real::recvmsg(from, message, flags)
    })
}

/// As [`receive`], by this call of `recvmsg(2)`.
fn receive_by(
    room: &mut [u8],
    call: impl FnOnce(*mut msghdr) -> ssize_t,
) -> Result<(usize, Option<c_int>), c_int> {
    let mut part = iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    let mut control = Passed([0; 24]);
    let mut message = message_of(&mut part);
    message.msg_control = control.0.as_mut_ptr().cast();
    // Without the padding: with it there would be room for two descriptors, and the second would stay.
    // SAFETY: the function computes a length.
    message.msg_controllen = unsafe { libc::CMSG_LEN(size_of::<c_int>() as u32) } as usize;
    let count = call(&raw mut message);
    let count = usize::try_from(count).map_err(|_| last_errno())?;
    // SAFETY: the kernel has written the ancillary data.
    let fd = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let has_fd = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS;
        has_fd.then(|| libc::CMSG_DATA(header).cast::<c_int>().read_unaligned())
    };
    Ok((count, fd))
}

/// As [`receive`], for the library's own descriptors.
///
/// # Errors
/// As `recvmsg(2)`.
pub(crate) fn receive_owned(
    from: c_int,
    room: &mut [u8],
    flags: c_int,
) -> Result<(usize, Option<OwnedFd>), c_int> {
    let (count, fd) = receive(from, room, flags | libc::MSG_CMSG_CLOEXEC)?;
    // SAFETY: the descriptor is new.
    Ok((count, fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })))
}

/// What a message of [`pass`] or an error's number was.
pub(crate) enum Got {
    Descriptor(c_int),
    Error(c_int),
    /// The other end is closed.
    End,
}

/// Receives a message of [`pass`].
///
/// # Errors
/// As `recvmsg(2)`.
pub(crate) fn receive_passed(from: c_int, flags: c_int) -> Result<Got, c_int> {
    let mut bytes = [0; PASS];
    let got = receive(from, &mut bytes, flags)?;
    Ok(Got::of(got, bytes))
}

/// As [`receive_passed`], of a thread that waits outside the library: handlers of the application interrupt it,
/// and it may be cancelled.
///
/// # Errors
/// As `recvmsg(2)`; [`CANCELLED`](cancel::CANCELLED).
pub(super) fn await_passed(from: c_int, flags: c_int) -> Result<Got, c_int> {
    let mut bytes = [0; PASS];
    let got = receive_by(&mut bytes, |message| {
        cancel::wait((from, message, flags), |(from, message, flags)| {
            // SAFETY: the message is valid.
            unsafe { real::recvmsg(from, message, flags) }
        })
    })?;
    Ok(Got::of(got, bytes))
}

impl Got {
    fn of(got: (usize, Option<c_int>), bytes: [u8; PASS]) -> Got {
        match got {
            (_, Some(fd)) => Got::Descriptor(fd),
            (0, None) => Got::End,
            // A descriptor was lost if the process has as many as it may.
            _ => match c_int::from_ne_bytes(bytes) {
                0 => Got::Error(libc::EMFILE),
                error => Got::Error(error),
            },
        }
    }
}
