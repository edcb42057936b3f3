//! `sendfile` and `splice`, by reading and writing.

use super::data::{receive, send_parts};
use super::length;
use crate::cancel;
use crate::signals;
use crate::sock::{Endpoint, Sock, last_errno};
use crate::stats::{self, Call};
use crate::wait::{Side, Wait};
use crate::{real, table};
use libc::{c_int, c_uint, off_t, size_t, ssize_t};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes that are copied at a time.
const CHUNK: usize = 64 << 10;

/// `sendfile(2)`.
///
/// # Safety
/// As `sendfile(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    let Some(sock) = table::live(out) else {
        stats::kernels(Call::File);
        if table::is_live(input) {
            // The kernel's own refuse it too: a socket has no pages.
            return super::descriptor::unsupported();
        }
        // SAFETY: the caller's promises.
        return unsafe { real::sendfile(out, input, offset, count) };
    };
    stats::weirs(Call::File);
    if table::is_live(input) {
        return super::descriptor::unsupported();
    }
    // As the C library's function, this is no cancellation point.
    let state = cancel::off();
    let inside = signals::enter();
    // SAFETY: the caller's promise.
    let start = unsafe { offset.as_ref() }.copied();
    let sent = send_file(&sock, input, start, count);
    if let (Ok((_, end)), false) = (&sent, offset.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { offset.write(*end) };
    }
    drop(inside);
    cancel::set(state);
    length(sent.map(|(sent, _)| sent))
}

/// `sendfile(2)`, as programs call it that are built for large files.
///
/// # Safety
/// As `sendfile(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's promises; the types are the same where a word has 64 bits.
    unsafe { sendfile(out, input, offset, count) }
}

/// Sends a file from `start`, or from its position, which then moves; returns the bytes sent and
/// the offset behind them.
fn send_file(
    sock: &Sock,
    input: c_int,
    start: Option<off_t>,
    count: usize,
) -> Result<(usize, off_t), c_int> {
    // The file is read at an offset, so that bytes that were not sent are not lost.
    let from = match start {
        Some(start) => start,
        // SAFETY: the call takes numbers.
        None => match unsafe { libc::lseek(input, 0, libc::SEEK_CUR) } {
            -1 => return Err(libc::EINVAL),
            at => at,
        },
    };
    let mut bytes = vec![0; CHUNK.min(count)];
    let mut sent = 0;
    while sent < count {
        let wanted = bytes.len().min(count - sent);
        let at = from + sent as off_t;
        // SAFETY: the buffer has as many bytes.
        let read = unsafe { libc::pread(input, bytes.as_mut_ptr().cast(), wanted, at) };
        let read = match usize::try_from(read) {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if sent > 0 => break,
            Err(_) => return Err(last_errno()),
        };
        match send_parts(sock, &[IoSlice::new(&bytes[..read])], 0, None) {
            Ok(more) => {
                sent += more;
                if more < read {
                    break;
                }
            }
            Err(_) if sent > 0 => break,
            Err(error) => return Err(error),
        }
    }
    let end = from + sent as off_t;
    if start.is_none() {
        // SAFETY: the call takes numbers.
        unsafe { libc::lseek(input, end, libc::SEEK_SET) };
    }
    Ok((sent, end))
}

/// `splice(2)`: between a pipe and a socket of weir the bytes are copied.
///
/// # Safety
/// As `splice(2)`.
pub(super) unsafe fn splice(
    input: c_int,
    in_offset: *mut i64,
    out: c_int,
    out_offset: *mut i64,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if !table::is_live(input) && !table::is_live(out) {
        stats::kernels(Call::File);
        // SAFETY: the caller's promises.
        return unsafe { real::splice(input, in_offset, out, out_offset, len, flags) };
    }
    let (from, to) = (table::live(input), table::live(out));
    let _inside = signals::enter();
    stats::weirs(Call::File);
    if !in_offset.is_null() || !out_offset.is_null() {
        return length(Err(libc::ESPIPE));
    }
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    length(match (from, to) {
        (Some(from), None) => to_pipe(&from, out, len, waits),
        (None, Some(to)) => from_pipe(input, &to, len, waits),
        _ => Err(libc::EINVAL),
    })
}

/// Copies received bytes to a pipe. Bytes that the pipe does not take stay in the socket.
fn to_pipe(sock: &Sock, pipe: c_int, len: usize, waits: bool) -> Result<usize, c_int> {
    let Endpoint::Stream(stream) = sock.endpoint() else {
        return Err(libc::EINVAL);
    };
    let mut bytes = vec![0; CHUNK.min(len)];
    let flags = if waits { 0 } else { libc::MSG_DONTWAIT };
    let mut wait = Wait::new(sock, Side::Receive, flags);
    let there = wait.until(|| stream.peek(&mut bytes))?;
    if there == 0 {
        return Ok(0);
    }
    let from = bytes.as_ptr();
    let written = signals::outside(|state| {
        cancel::point(state, (pipe, from, there), |(pipe, from, there)| {
            // SAFETY: the buffer has as many bytes.
            unsafe { real::write(pipe, from.cast(), there) }
        })
    });
    let written = usize::try_from(written).map_err(|_| last_errno())?;
    let taken = receive(
        sock,
        &mut [IoSliceMut::new(&mut bytes[..written])],
        libc::MSG_DONTWAIT,
    )?;
    debug_assert_eq!(taken.count, written, "the bytes were there");
    Ok(written)
}

/// Copies bytes of a pipe to a connection, as many as it has room for.
fn from_pipe(pipe: c_int, sock: &Sock, len: usize, waits: bool) -> Result<usize, c_int> {
    let stream = sock.stream()?;
    let blocks = waits && !sock.nonblocking.load(Relaxed);
    let mut wait = Wait::new(
        sock,
        Side::Send,
        if blocks { 0 } else { libc::MSG_DONTWAIT },
    );
    // An empty write returns whether there is room, or the error that prevents it.
    let room = wait.until(|| {
        let info = stream.info()?;
        match info
            .send_limit
            .saturating_sub(info.unsent + info.unacknowledged)
        {
            0 => Err(std::io::Error::from_raw_os_error(libc::EAGAIN)),
            room => Ok(room),
        }
    });
    let room = room.map_err(|error| match error {
        libc::ENOTCONN => libc::EPIPE,
        other => other,
    })?;
    let mut bytes = vec![0; CHUNK.min(len).min(room)];
    let (to, room) = (bytes.as_mut_ptr(), bytes.len());
    let read = signals::outside(|state| {
        cancel::point(state, (pipe, to, room), |(pipe, to, room)| {
            // SAFETY: the buffer has as many bytes.
            unsafe { real::read(pipe, to.cast(), room) }
        })
    });
    let read = usize::try_from(read).map_err(|_| last_errno())?;
    let mut sent = 0;
    while sent < read {
        // What was read must be sent.
        match send_parts(sock, &[IoSlice::new(&bytes[sent..read])], 0, None) {
            Ok(count) => sent += count,
            Err(libc::EAGAIN | libc::EINTR) => {
                Wait::blocking(sock, Side::Send).wait()?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}
