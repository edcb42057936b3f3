//! What `weir sockets` shows of this process: a Unix socket in a folder of the user, where a client
//! of the same user, or of root, gets a line of JSON for each socket.

use crate::relay::name::Name;
use crate::sock::{Endpoint, Sock};
use crate::{address, host, relay, table};
use libc::c_int;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use weir_socket::TcpStream;
use weir_stack::tcp::State;

/// Clients that wait for the socket.
const BACKLOG: i32 = 8;
/// Clients that are answered at the same time: a further one ends the oldest.
pub(crate) const ANSWERS_MAX: usize = 8;

/// The socket that clients connect to.
pub(crate) struct Status(OwnedFd);

impl Status {
    /// Opens the socket; `None` if the user has no folder for it, or another user has made it: then
    /// the process is not listed, and says so in the second case.
    pub(crate) fn open() -> Option<Status> {
        let user = rustix::process::geteuid();
        let folders = weir_socket::status_folders(user.as_raw());
        let status = folders.iter().find_map(|folder| Status::open_in(folder));
        let is_there = |folder: &&PathBuf| folder.symlink_metadata().is_ok();
        if status.is_none()
            && let Some(folder) = folders.iter().find(is_there)
        {
            host::say(&format!(
                "weir sockets does not list process {}: {} is not a folder that user {} alone can use; \
                 remove it",
                std::process::id(),
                folder.display(),
                user.as_raw()
            ));
        }
        status
    }

    fn open_in(path: &Path) -> Option<Status> {
        let private = Mode::from_raw_mode(0o700);
        // It may be there.
        let _ = rustix::fs::mkdir(path, private);
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let about = rustix::fs::fstat(&folder).ok()?;
        let is_private = about.st_uid == rustix::process::geteuid().as_raw()
            && FileType::from_raw_mode(about.st_mode) == FileType::Directory
            && about.st_mode & 0o077 == 0;
        if !is_private {
            return None;
        }
        let name = std::process::id().to_string();
        // What an earlier process of this number has left.
        let _ = rustix::fs::unlinkat(&folder, &name, rustix::fs::AtFlags::empty());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = made.ok()?;
        let at = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
        rustix::net::bind(&socket, &SocketAddrUnix::new(at).ok()?).ok()?;
        relay::refuse_descriptors(&socket);
        rustix::net::listen(&socket, BACKLOG).ok()?;
        let kept = host::process().status.lock();
        *kept.unwrap_or_else(PoisonError::into_inner) = Some(path.join(name));
        Some(Status(host::hide(socket)))
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Clients that may ask.
    pub(crate) fn clients(&self) -> Vec<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let next = || rustix::net::accept_with(&self.0, flags).ok();
        let own = rustix::process::geteuid();
        let may = |client: &OwnedFd| {
            let about = rustix::net::sockopt::socket_peercred(client);
            about.is_ok_and(|about| about.uid.is_root() || about.uid == own)
        };
        let clients = std::iter::from_fn(next).take(ANSWERS_MAX);
        clients.filter(may).map(host::hide).collect()
    }
}

/// Removes the socket's name, at the end of the process.
pub(crate) fn remove() {
    let path = host::process().status.lock();
    let path: Option<PathBuf> = path.unwrap_or_else(PoisonError::into_inner).take();
    if let Some(path) = path {
        let _ = std::fs::remove_file(path);
    }
}

/// An answer that a client has not taken whole.
pub(crate) struct Answer {
    client: OwnedFd,
    text: Vec<u8>,
    sent: usize,
}

impl Answer {
    pub(crate) fn new(client: OwnedFd, text: String) -> Answer {
        Answer {
            client,
            text: text.into_bytes(),
            sent: 0,
        }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.client
    }

    /// Sends what the client has room for; false once it has all, or has gone.
    pub(crate) fn turn(&mut self) -> bool {
        while self.sent < self.text.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.client, &self.text[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    let mut byte = [0];
                    let got = rustix::net::recv(&self.client, &mut byte, RecvFlags::DONTWAIT);
                    return !matches!(got, Ok((0, _)));
                }
                Err(_) => return false,
            }
        }
        false
    }
}

/// The lines of the process's sockets.
pub(crate) struct List(String);

/// What a line says.
struct Line {
    protocol: &'static str,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    state: &'static str,
    /// Bytes that no call has read, and that the peer has not acknowledged.
    queues: Option<(usize, usize)>,
    is_shared: bool,
    /// Of a shared socket: that of the Unix socket by which processes use it.
    inode: Option<u64>,
}

impl List {
    /// The list, with the sockets that this process alone uses.
    pub(crate) fn new() -> List {
        let mut list = List(format!(
            "{{\"version\":1,\"pid\":{}}}\n",
            std::process::id()
        ));
        let mut sockets: BTreeMap<u64, (Arc<Sock>, Vec<c_int>)> = BTreeMap::new();
        for (fd, sock) in table::range(0, usize::MAX) {
            let entry = sockets.entry(sock.id);
            entry.or_insert_with(|| (sock, Vec::new())).1.push(fd);
        }
        for (sock, fds) in sockets.values() {
            if let Some(line) = line_of(sock) {
                list.add(&line, fds);
            }
        }
        list
    }

    /// A connection that several processes may use.
    pub(crate) fn shared_stream(&mut self, sock: &Sock, fd: &OwnedFd, stream: &TcpStream) {
        let name = name_of(fd);
        let (state, queues) = stream_state(stream);
        let line = Line {
            protocol: "tcp",
            local: name.map(|name| address::shown(name.local, name.domain)),
            peer: name.and_then(|name| Some(address::shown(name.peer?, name.domain))),
            state,
            queues,
            is_shared: true,
            inode: sock.end_inode(),
        };
        self.add(&line, &[]);
    }

    /// A listener that several processes may use.
    pub(crate) fn shared_listener(&mut self, sock: &Sock, fd: &OwnedFd) {
        let name = name_of(fd);
        let line = Line {
            protocol: "tcp",
            local: name.map(|name| address::shown(name.local, name.domain)),
            peer: None,
            state: "listen",
            queues: None,
            is_shared: true,
            inode: sock.end_inode(),
        };
        self.add(&line, &[]);
    }

    /// A UDP socket that several processes may use.
    pub(crate) fn shared_datagrams(&mut self, sock: &Sock) {
        if let Some(line) = line_of(sock) {
            let line = Line {
                is_shared: true,
                inode: sock.end_inode(),
                ..line
            };
            self.add(&line, &[]);
        }
    }

    fn add(&mut self, line: &Line, fds: &[c_int]) {
        let address = |address: Option<SocketAddr>| match address {
            Some(address) => format!("\"{address}\""),
            None => "null".to_owned(),
        };
        let queue = |queue: Option<usize>| queue.map_or("null".to_owned(), |len| len.to_string());
        let fds: Vec<String> = fds.iter().map(c_int::to_string).collect();
        let written = writeln!(
            self.0,
            "{{\"protocol\":\"{}\",\"local\":{},\"peer\":{},\"state\":\"{}\",\
             \"receive_queue\":{},\"send_queue\":{},\"descriptors\":[{}],\"shared\":{},\"inode\":{}}}",
            line.protocol,
            address(line.local),
            address(line.peer),
            line.state,
            queue(line.queues.map(|(receive, _)| receive)),
            queue(line.queues.map(|(_, send)| send)),
            fds.join(","),
            line.is_shared,
            line.inode
                .map_or("null".to_owned(), |inode| inode.to_string())
        );
        debug_assert!(written.is_ok(), "a string takes all");
    }

    pub(crate) fn text(&self) -> String {
        self.0.clone()
    }
}

/// The name of the application's end, which its owner's end knows as its peer.
fn name_of(fd: &OwnedFd) -> Option<Name> {
    Name::of_peer(fd.as_raw_fd())
}

fn line_of(sock: &Sock) -> Option<Line> {
    let shown = |address: SocketAddr| address::shown(address, sock.domain);
    let (protocol, peer, state, queues) = match sock.endpoint() {
        Endpoint::Stream(stream) => {
            let (state, queues) = stream_state(&stream);
            ("tcp", stream.peer_addr().ok(), state, queues)
        }
        Endpoint::Listener(_) => ("tcp", None, "listen", None),
        Endpoint::Udp(udp) => match udp.peer_addr().ok() {
            Some(peer) => ("udp", Some(peer), "connected", None),
            None => ("udp", None, "unconnected", None),
        },
        Endpoint::Open | Endpoint::Foreign(_) | Endpoint::Relay(_) => return None,
    };
    Some(Line {
        protocol,
        local: sock.local().map(shown),
        peer: peer.map(shown),
        state,
        queues,
        is_shared: false,
        inode: None,
    })
}

/// A connection's state, by its name in RFC 9293, and its queues.
fn stream_state(stream: &TcpStream) -> (&'static str, Option<(usize, usize)>) {
    let Ok(info) = stream.info() else {
        return ("closed", None);
    };
    let state = match info.state {
        State::SynSent => "syn-sent",
        State::SynReceived => "syn-received",
        State::Established => "established",
        State::FinWait1 => "fin-wait-1",
        State::FinWait2 => "fin-wait-2",
        State::CloseWait => "close-wait",
        State::Closing => "closing",
        State::LastAck => "last-ack",
        State::TimeWait => "time-wait",
        State::Closed => "closed",
    };
    let queues = (info.readable, info.unsent + info.unacknowledged);
    (state, Some(queues))
}
