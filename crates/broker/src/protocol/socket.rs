//! The protocol's socket: whole messages, with descriptors.

use super::{MESSAGE_LEN_MAX, Peer};
use crate::trusted_path::owner_of;
use rustix::fs::{FileType, Mode, OFlags, XattrFlags, setxattr};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg, shutdown, socket_with,
    sockopt,
};
use rustix::process::geteuid;
use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_link::net::{peer_credentials, set_pass_rights};

/// Largest number of descriptors in one message of the broker.
pub const FDS_MAX: usize = 4;

/// Largest number of messages drained from a queue before its connection is
/// closed: the kernel's bounds on socket memory let fewer wait.
const QUEUE_LEN_MAX: usize = 1 << 12;

/// Largest number of connections that wait to be accepted.
const BACKLOG: i32 = 256;

thread_local! {
    /// The receive buffer, one for each thread: few messages have the full
    /// length.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A connection.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

/// The result of sending a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The kernel has accepted the message.
    Whole,
    /// The socket buffer is full: try again later.
    Later,
}

/// A received message.
#[derive(Debug)]
pub struct Received {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
    /// Whether the message exceeded the length limit, or the number of
    /// descriptors, and was truncated.
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
    /// Connects to a broker's socket. User 0 connects to the socket for user 0
    /// beside it, if a broker listens there: a process of user 0, or of the owner
    /// of the socket's folder, where no other user can put a socket.
    ///
    /// # Errors
    /// If no broker listens there, or the path may not be used.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        if geteuid().is_root()
            && let Ok(channel) = Channel::connect_at(&superuser_path(path))
            && is_brokers(path, &channel)
        {
            return Ok(channel);
        }
        Channel::connect_at(path)
    }

    fn connect_at(path: &Path) -> io::Result<Channel> {
        let fd = seqpacket()?;
        connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Channel { fd })
    }

    /// The two ends of a connection, for tests.
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

    /// Sets the longest wait of a blocking [`receive`](Self::receive), which
    /// then returns `None`.
    ///
    /// # Errors
    /// If `time` is zero.
    pub fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        let timeout = sockopt::Timeout::Recv;
        Ok(sockopt::set_socket_timeout(&self.fd, timeout, Some(time))?)
    }

    /// The peer process.
    ///
    /// # Errors
    /// If the kernel does not report the credentials.
    pub fn peer(&self) -> io::Result<Peer> {
        Peer::of(self.fd.as_fd())
    }

    /// Sends a message; with `blocking`, waits for room.
    ///
    /// # Errors
    /// If the peer has closed the connection.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], blocking: bool) -> io::Result<Sent> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut flags = SendFlags::NOSIGNAL;
        if !blocking {
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

    /// Receives the next message; `None` if there is none without waiting, or
    /// the time limit has passed.
    ///
    /// # Errors
    /// `UnexpectedEof` if the peer has closed the connection.
    pub fn receive(&self, wait: bool) -> io::Result<Option<Received>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        BUFFER.with_borrow_mut(|buffer| self.receive_by(buffer, &mut space, wait))
    }

    /// Whether the next message has descriptors. Receiving it would install
    /// them in this process, and close those without room, which may block for
    /// as long as their sender likes.
    pub(crate) fn has_descriptors(&self) -> bool {
        self.peek(&mut RecvAncillaryBuffer::default()) == Ok(true)
    }

    /// Closes the connection, unless that would close descriptors sent by the
    /// peer: then returns the connection.
    pub(crate) fn close(self) -> Result<(), Channel> {
        // No message is added to the queue any more. Every queued message has
        // its sender's credentials, and the end of the queue has none.
        let _ = shutdown(&self.fd, Shutdown::Both);
        if sockopt::set_socket_passcred(&self.fd, true).is_err() {
            return Err(self);
        }
        for _ in 0..QUEUE_LEN_MAX {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            match self.peek(&mut control) {
                Ok(false) if control.drain().next().is_none() => return Ok(()),
                Ok(false) => drop(self.receive(false)),
                // The peer has closed its end with unread messages.
                Err(Errno::CONNRESET | Errno::INTR) => {}
                Ok(true) | Err(_) => break,
            }
        }
        Err(self)
    }

    /// Peeks at the next message; returns whether it has more control messages
    /// than fit.
    fn peek(&self, control: &mut RecvAncillaryBuffer<'_>) -> rustix::io::Result<bool> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = recvmsg(&self.fd, &mut [IoSliceMut::new(&mut [0])], control, flags)?;
        Ok(message.flags.contains(ReturnFlags::CTRUNC))
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
            // An empty packet looks the same; no client has a reason to send
            // one.
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

/// Whether the process at the other end is root's, or that of the user whose
/// folder the socket is in, and no other user's.
fn is_brokers(path: &Path, channel: &Channel) -> bool {
    let Ok(peer) = peer_credentials(channel.as_fd()) else {
        return false;
    };
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let owner = || owner_of(folder.unwrap_or(Path::new(".")), peer.uid);
    peer.uid == 0 || owner().is_ok_and(|owner| owner == Some(peer.uid))
}

/// Whether some process has the socket there, without a wait for it.
fn is_listened_at(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let connected = connect(&fd, &SocketAddrUnix::new(path)?);
    Ok(!matches!(connected, Err(Errno::CONNREFUSED | Errno::NOENT)))
}

/// The path of the socket for user 0: that of the usual one, and `.root`.
fn superuser_path(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".root");
    path.into()
}

/// The broker's socket. Its file goes with it.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Whether the kernel refuses descriptors from peers.
    refuses_descriptors: bool,
}

impl Listener {
    /// Listens at `path`, to which every user may connect: the policy decides
    /// on their rights. Replaces a socket file on which no process listens.
    ///
    /// # Errors
    /// If another broker listens there (`AddrInUse`), another file is there
    /// (`AlreadyExists`), or the file cannot be made.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        Listener::bind_with_mode(path, 0o666)
    }

    /// Listens beside the usual socket for processes of user 0, whose connections
    /// then wait in a queue that no other user can fill. User 0 without the
    /// superuser's capabilities can connect too: the policy decides on those.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind), and if the path gets too long.
    pub(crate) fn bind_for_superuser(&self) -> io::Result<Listener> {
        let mut listener = Listener::bind_with_mode(&superuser_path(&self.path), 0o600)?;
        if !self.refuses_descriptors {
            listener.accept_descriptors();
        }
        Ok(listener)
    }

    fn bind_with_mode(path: &Path, mode: u32) -> io::Result<Listener> {
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let address = SocketAddrUnix::new(path)?;
        match bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                Listener::remove_stale_at(path)?;
                bind(&fd, &address)?;
            }
            other => other?,
        }
        // Before any process can connect.
        let refuses_descriptors = set_pass_rights(&fd, false).is_ok();
        let listener = Listener {
            fd,
            path: path.to_owned(),
            refuses_descriptors,
        };
        listener.set_mode(mode)?;
        listen(&listener.fd, BACKLOG)?;
        Ok(listener)
    }

    /// The same socket under another name in the file system, instead of one that is there.
    ///
    /// # Errors
    /// Those of `rename(2)`.
    pub(crate) fn renamed(mut self, path: &Path) -> io::Result<Listener> {
        std::fs::rename(&self.path, path)?;
        path.clone_into(&mut self.path);
        Ok(self)
    }

    /// Removes the socket files that a broker has left, if there are any.
    ///
    /// # Errors
    /// If a broker listens there (`AddrInUse`), or the file is not a socket
    /// (`AlreadyExists`): it stays.
    pub fn remove_stale(path: &Path) -> io::Result<()> {
        Listener::remove_stale_at(path)?;
        Listener::remove_stale_at(&superuser_path(path))
    }

    fn remove_stale_at(path: &Path) -> io::Result<()> {
        use std::os::unix::fs::FileTypeExt;
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Ok(_) if is_listened_at(path)? => {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        std::fs::remove_file(path)
    }

    /// Lets peers pass descriptors, as before Linux 6.16: for tests of the
    /// daemon.
    #[doc(hidden)]
    pub fn accept_descriptors(&mut self) {
        let _ = set_pass_rights(&self.fd, true);
        self.refuses_descriptors = false;
    }

    /// Whether the kernel refuses descriptors from peers.
    pub(crate) fn refuses_descriptors(&self) -> bool {
        self.refuses_descriptors
    }

    /// Permits connections only to the superuser, or to all users except those
    /// that are [excluded](Self::exclude).
    ///
    /// # Errors
    /// If the file system refuses.
    pub(crate) fn admit_superuser_only(&self, only: bool) -> io::Result<()> {
        self.set_mode(if only { 0o600 } else { 0o666 })
    }

    /// Excludes these users from connecting, by the access control list of the
    /// socket's file; all others may.
    ///
    /// # Errors
    /// If the file system refuses; some have no access control lists.
    pub(crate) fn exclude(&self, uids: impl IntoIterator<Item = u32>) -> io::Result<()> {
        let list = access_list(uids);
        let name = "system.posix_acl_access";
        self.by_fd(|path| Ok(setxattr(path, name, &list, XattrFlags::empty())?))
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(mode);
        self.by_fd(|path| std::fs::set_permissions(path, mode))
    }

    /// Runs a function with a path of the socket's file that leads nowhere else,
    /// whatever replaces the file.
    fn by_fd<T>(&self, run: impl FnOnce(&str) -> io::Result<T>) -> io::Result<T> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let about = rustix::fs::fstat(&file)?;
        let is_own = about.st_uid == geteuid().as_raw();
        if !is_own || FileType::from_raw_mode(about.st_mode) != FileType::Socket {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        run(&format!("/proc/self/fd/{}", file.as_raw_fd()))
    }

    /// Accepts the next connection; `None` if none waits.
    ///
    /// # Errors
    /// In particular if the process has no more descriptors.
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
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The access control list of a file that all users except these may read and
/// write, in the kernel's format (`linux/posix_acl_xattr.h`): version 2, then
/// tag, permissions and id of each entry.
fn access_list(uids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    const NO_NUMBER: u32 = u32::MAX;
    const OWNER: u16 = 1;
    const USER: u16 = 2;
    const GROUP: u16 = 4;
    const MASK: u16 = 16;
    const OTHER: u16 = 32;
    const READ_WRITE: u16 = 6;
    let own = |tag| (tag, READ_WRITE, NO_NUMBER);
    let excluded = uids.into_iter().map(|uid| (USER, 0, uid));
    let entries = std::iter::once(own(OWNER))
        .chain(excluded)
        .chain([GROUP, MASK, OTHER].map(own));
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, number) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(permissions));
        list.extend(number.to_le_bytes());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown};
    use weir_lab::net::unprivileged::{self, NOBODY};

    #[test]
    fn users_do_not_fill_the_superusers_queue() {
        if !weir_lab::testenv::root() {
            return;
        }
        let name = format!("weir-queues-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = Listener::bind(&path).unwrap();
        let superusers = listener.bind_for_superuser().unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let mut waiting = Vec::new();
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            match connect(&fd, &address) {
                Ok(()) => waiting.push(fd),
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("{error}"),
            }
            assert!(waiting.len() < 1000, "the queue is never full");
        }
        let _channel = Channel::connect(&path).unwrap();
        assert!(superusers.accept().unwrap().is_some());
        drop(superusers);
        assert!(!superuser_path(&path).exists(), "its file goes with it");
        // As beside an older broker.
        drop(waiting);
        while listener.accept().unwrap().is_some() {}
        let _channel = Channel::connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some());
    }

    /// A folder below one that root alone may write to.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = format!("/run/weir-{name}-{}", std::process::id());
            create_dir(&path).unwrap();
            set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            Folder(path.into())
        }

        fn with(&self, name: &str, owner: u32, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            create_dir(&path).unwrap();
            chown(&path, Some(owner), Some(owner)).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// The socket for user 0 is taken for the broker's if its process is root's,
    /// or of the user whose folder it is in.
    #[test]
    fn no_user_can_pose_as_the_broker_to_root() {
        if !weir_lab::testenv::root() {
            return;
        }
        let root = Folder::new("posed");
        let is_taken = |folder: &Path| {
            let path = folder.join("socket");
            let _usual = Listener::bind(&path).unwrap();
            let special = superuser_path(&path);
            let _posed = unprivileged::run(|| Listener::bind_with_mode(&special, 0o600).unwrap());
            let channel = Channel::connect(&path).unwrap();
            peer_credentials(channel.as_fd()).unwrap().uid == NOBODY
        };
        assert!(is_taken(&root.with("own", NOBODY, 0o755)));
        assert!(!is_taken(&root.with("sticky", 0, 0o1777)), "as /tmp is");
        assert!(!is_taken(&root.with("written", NOBODY, 0o777)));
        let below = root.with("all", 0, 0o1777).join("own");
        create_dir(&below).unwrap();
        chown(&below, Some(NOBODY), Some(NOBODY)).unwrap();
        assert!(!is_taken(&below), "other users could have made it");
    }

    /// As if the user of a folder put another file in the socket's place.
    #[test]
    fn the_mode_of_a_file_that_replaced_the_socket_stays() {
        if !weir_lab::testenv::root() {
            return;
        }
        let root = Folder::new("replaced");
        let (path, other) = (root.0.join("socket"), root.0.join("other"));
        std::fs::write(&other, "").unwrap();
        set_permissions(&other, Permissions::from_mode(0o600)).unwrap();
        let listener = Listener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(listener.set_mode(0o666).is_err());
        assert!(listener.exclude([1]).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(listener.set_mode(0o666).is_err());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
