//! Waits of tests: each has a limit, and says what it waited for.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for anything that ought to happen on a machine that does other
/// work too.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// How often [`until`] looks.
const INTERVAL: Duration = Duration::from_millis(2);

/// Waits until `holds`, which is asked again and again.
///
/// # Panics
/// If it does not within [`WAIT_MAX`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < WAIT_MAX,
            "not within {WAIT_MAX:?}: {what}"
        );
        thread::sleep(INTERVAL);
    }
}

/// Ends the process of the tests if the test that calls takes 15 minutes, and
/// says where it waits. What starts a program, or asks for a need, calls it.
pub fn limit_this_test() {
    crate::watch::this_test();
}

/// Waits until there is something to read, or the end.
///
/// # Errors
/// `TimedOut` after `limit`.
pub fn readable(fd: impl AsFd, what: &str, limit: Duration) -> io::Result<()> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) => {
                let text = format!("not within {limit:?}: {what}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A pipe or a socket, each read of which waits for [`WAIT_MAX`] at most, and
/// fails with `TimedOut` then.
#[derive(Debug)]
pub struct Limited<R> {
    inner: R,
    what: String,
}

impl<R: Read + AsFd> Limited<R> {
    /// `what` the reads wait for, for the message.
    pub fn new(inner: R, what: impl Into<String>) -> Limited<R> {
        let what = what.into();
        Limited { inner, what }
    }

    /// Without limits again.
    pub fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: Read + AsFd> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        readable(&self.inner, &self.what, WAIT_MAX)?;
        self.inner.read(buffer)
    }
}

impl<R: AsFd> AsFd for Limited<R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// The next connection of the kernel's TCP, as [`TcpListener::accept`]; reads
/// and writes of it are [limited](limit).
///
/// # Errors
/// As there, and `TimedOut` if none comes within [`WAIT_MAX`].
pub fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let at = listener.local_addr()?;
    readable(listener, &format!("a connection to {at}"), WAIT_MAX)?;
    let (stream, from) = listener.accept()?;
    Ok((limit(stream)?, from))
}

/// A connection of the kernel's TCP, as [`TcpStream::connect`]; it, and reads
/// and writes of the stream, take [`WAIT_MAX`] at most.
///
/// # Errors
/// As there.
pub fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    limit(TcpStream::connect_timeout(&to, WAIT_MAX)?)
}

/// Has reads and writes of a stream fail after [`WAIT_MAX`].
///
/// # Errors
/// What the system says.
pub fn limit(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_write_timeout(Some(WAIT_MAX))?;
    Ok(stream)
}
