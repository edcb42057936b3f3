//! The socket: whole messages, with descriptors.

use super::{MESSAGE_LEN_MAX, Peer};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};
use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_link::net::set_pass_rights;

/// Descriptors in one message of the broker's.
pub const FDS_MAX: usize = 4;

/// Descriptors in one message of any process (`SCM_MAX_FD` of
/// `include/net/scm.h`).
const FOREIGN_FDS_MAX: usize = 253;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 256;

thread_local! {
    /// Where messages are received: few are as long as they may be.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A connection.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

/// What became of a message to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The kernel has it.
    Whole,
    /// There is no room now: again later.
    Later,
}

/// A message that came.
#[derive(Debug)]
pub struct Received {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
    /// Whether it was longer than a message may be, or had more descriptors,
    /// and was cut.
    pub is_cut: bool,
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

impl Channel {
    /// Connects to a broker's socket.
    ///
    /// # Errors
    /// If nobody listens there, or the path may not be used.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        let fd = seqpacket()?;
        connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Channel { fd })
    }

    /// Two ends of one connection, for tests.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Channel { fd: a }, Channel { fd: b }))
    }

    /// How long [`receive`](Self::receive) waits at most, when it does; then
    /// it gives `None`.
    ///
    /// # Errors
    /// For no time at all.
    pub fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        let timeout = sockopt::Timeout::Recv;
        Ok(sockopt::set_socket_timeout(&self.fd, timeout, Some(time))?)
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn peer(&self) -> io::Result<Peer> {
        Peer::of(self.fd.as_fd())
    }

    /// Sends a message; with `wait`, once there is room.
    ///
    /// # Errors
    /// If the other end is gone.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], wait: bool) -> io::Result<Sent> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut flags = SendFlags::NOSIGNAL;
        if !wait {
            flags |= SendFlags::DONTWAIT;
        }
        loop {
            match sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(_) => return Ok(Sent::Whole),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(Sent::Later),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next message; `None` if there is none and `wait` is not set.
    ///
    /// # Errors
    /// If the other end is gone: then `UnexpectedEof`.
    pub fn receive(&self, wait: bool) -> io::Result<Option<Received>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        BUFFER.with_borrow_mut(|buffer| self.receive_by(buffer, &mut space, wait))
    }

    /// The same, of a process that is not trusted: with as many descriptors as
    /// it may have sent. The kernel closes those that there is no room for in
    /// the call, which may block for as long as their sender likes.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub(crate) fn receive_foreign(&self) -> io::Result<Option<Received>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FOREIGN_FDS_MAX))];
        BUFFER.with_borrow_mut(|buffer| self.receive_by(buffer, &mut space, false))
    }

    fn receive_by(
        &self,
        buffer: &mut Vec<u8>,
        space: &mut [MaybeUninit<u8>],
        wait: bool,
    ) -> io::Result<Option<Received>> {
        buffer.resize(MESSAGE_LEN_MAX, 0);
        let mut control = RecvAncillaryBuffer::new(space);
        let mut flags = RecvFlags::CMSG_CLOEXEC;
        if !wait {
            flags |= RecvFlags::DONTWAIT;
        }
        let message = loop {
            let mut parts = [IoSliceMut::new(buffer)];
            match recvmsg(&self.fd, &mut parts, &mut control, flags) {
                Ok(message) => break message,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        if message.bytes == 0 && fds.is_empty() {
            // An empty packet looks the same; nobody has a reason to send one.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let bytes = buffer[..message.bytes.min(MESSAGE_LEN_MAX)].to_vec();
        let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
        Ok(Some(Received {
            bytes,
            fds,
            is_cut: message.flags.intersects(cut),
        }))
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.fd
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The broker's socket. Its file goes with it.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: Option<PathBuf>,
    /// Whether the kernel keeps peers from passing descriptors.
    refuses_descriptors: bool,
}

impl Listener {
    /// Listens at `path`, which everybody may connect to: what they may do is
    /// the policy's to say. A socket file that nobody listens on is replaced.
    ///
    /// # Errors
    /// If another broker listens there (`AddrInUse`), something else is there
    /// (`AlreadyExists`), or the file cannot be made.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let address = SocketAddrUnix::new(path)?;
        match bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                Listener::remove_stale(path)?;
                bind(&fd, &address)?;
            }
            other => other?,
        }
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        // Before anything can connect.
        let refuses_descriptors = set_pass_rights(&fd, false).is_ok();
        listen(&fd, BACKLOG)?;
        Ok(Listener {
            fd,
            path: Some(path.to_owned()),
            refuses_descriptors,
        })
    }

    /// Removes a socket file that a broker has left, if there is one.
    ///
    /// # Errors
    /// If a broker listens there (`AddrInUse`), or what is there is no socket
    /// (`AlreadyExists`): it stays.
    pub fn remove_stale(path: &Path) -> io::Result<()> {
        use std::os::unix::fs::FileTypeExt;
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Ok(_) if Channel::connect(path).is_ok() => {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        std::fs::remove_file(path)
    }

    /// Takes a socket that listens already, as a service manager passes it.
    pub fn from_fd(fd: OwnedFd) -> Listener {
        let refuses_descriptors = set_pass_rights(&fd, false).is_ok();
        Listener {
            fd,
            path: None,
            refuses_descriptors,
        }
    }

    /// Lets peers pass descriptors, as before Linux 6.16: for tests of what
    /// the daemon does there.
    #[doc(hidden)]
    pub fn accept_descriptors(&mut self) {
        let _ = set_pass_rights(&self.fd, true);
        self.refuses_descriptors = false;
    }

    /// Whether the kernel keeps peers from passing descriptors.
    pub(crate) fn refuses_descriptors(&self) -> bool {
        self.refuses_descriptors
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// When the process has no more descriptors, above all.
    pub fn accept(&self) -> io::Result<Option<Channel>> {
        match accept_with(&self.fd, SocketFlags::CLOEXEC) {
            Ok(fd) => Ok(Some(Channel { fd })),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}
