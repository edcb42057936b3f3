//! Relayed descriptors: how other processes use a socket of this one.
//!
//! A socket belongs to the process that runs the host, its owner. When a descriptor of the socket
//! crosses `fork`, `exec` or `SCM_RIGHTS`, the owner moves the socket onto a pair of Unix sockets:
//! the application's descriptors, in all processes, become one end, and the owner's relay thread
//! copies between the other end and the stack. From then on the kernel does what it does with
//! every descriptor: it shares the end, counts its users, and says when the last has closed it.
//!
//! ```text
//!  parent, child, exec'ed program                  owner
//!   read, write, poll, dup, close ──► pair ──► relay thread ──► stack ──► link
//!   accept ──► descriptors of pairs ◄── pair ◄── relay thread ◄── listener
//! ```
//!
//! | file | what |
//! |---|---|
//! | `name` | what a descriptor stands for, and why it has ended |
//! | `pair` | one connection |
//! | `pump` | the thread |
//! | `calls` | the calls of an application on its end |
//!
//! A child does not get pairs at once: see [`crate::fork`].
//!
//! # Limits
//!
//! Connections and listeners of TCP are relayed, UDP sockets are not.

pub(crate) mod calls;
pub(crate) mod name;
mod pair;
mod pump;

use crate::options::Recorded;
use crate::sock::{Endpoint, Sock, errno};
use crate::status::Status;
use crate::{host, real, table};
use libc::c_int;
use name::Name;
use pair::Pair;
pub(crate) use pump::Pump;
use pump::{Interest, Item};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use weir_socket::{Net, TcpListener, TcpStream};

/// Connections that a listener accepts in one turn.
const ACCEPTS_MAX: usize = 64;

/// A fork must not see a socket that is half moved.
static GATE: Mutex<()> = Mutex::new(());

/// No socket moves while the result lives.
pub(crate) fn hold() -> std::sync::MutexGuard<'static, ()> {
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the relay thread of a host. Without it the process's sockets are its own, and not listed.
pub(crate) fn start(net: &Net) {
    let Ok(pump) = Pump::start(net.clone()) else {
        return;
    };
    if let Some(status) = Status::open() {
        pump.add(Item::Status(status));
    }
    let kept = host::process().pump.lock();
    *kept.unwrap_or_else(PoisonError::into_inner) = Some(pump);
}

/// The relay thread, if it runs.
pub(crate) fn running() -> Option<Pump> {
    let pump = host::process().pump.lock();
    pump.unwrap_or_else(PoisonError::into_inner).clone()
}

fn pair_of(kind: SocketType, name: Name) -> Result<(OwnedFd, OwnedFd), c_int> {
    let made = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (own, other) = made.map_err(|error| error.raw_os_error())?;
    name.give(&other)?;
    Ok((host::hide(own), other))
}

/// The pair of a connection: the application's end, and the item for the thread.
fn relay_stream(sock: &Sock, stream: TcpStream) -> Result<(OwnedFd, Item), c_int> {
    let name = Name {
        domain: sock.domain,
        local: stream.local_addr().map_err(|error| errno(&error))?,
        peer: Some(stream.peer_addr().map_err(|error| errno(&error))?),
    };
    let (own, other) = pair_of(SocketType::STREAM, name)?;
    // The relay must neither gather bytes that no later call would send, nor wait at a close.
    let _ = stream.set_cork(false);
    let _ = stream.set_nodelay(true);
    if stream.linger().is_some_and(|linger| !linger.is_zero()) {
        stream.set_linger(None);
    }
    stream.set_recv_lowat(1);
    Ok((other, Item::Pair(Pair::new(stream, own))))
}

/// Moves a socket of this process onto a pair, and returns the application's end; a socket that has
/// moved before has one.
///
/// # Errors
/// `EOPNOTSUPP` for a socket that cannot be relayed; the system's error if it provides no pair.
pub(crate) fn convert(sock: &Arc<Sock>) -> Result<Arc<OwnedFd>, c_int> {
    let pump = running().ok_or(libc::EOPNOTSUPP)?;
    let _gate = hold();
    let _moving = sock.moving.write().unwrap_or_else(PoisonError::into_inner);
    let before = sock.endpoint();
    let (end, item) = match &before {
        Endpoint::Relay(end) => return Ok(Arc::clone(end)),
        Endpoint::Stream(stream) => relay_stream(sock, stream.clone())?,
        Endpoint::Listener(listener) => {
            let name = Name {
                domain: sock.domain,
                local: listener.local_addr().map_err(|error| errno(&error))?,
                peer: None,
            };
            let (own, other) = pair_of(SocketType::SEQPACKET, name)?;
            let options = sock.options.lock();
            let options = options.unwrap_or_else(PoisonError::into_inner).clone();
            let listening = Listening::new(listener.clone(), own, sock.domain, options);
            (other, Item::Listening(listening))
        }
        Endpoint::Udp(_) | Endpoint::Open | Endpoint::Foreign(_) => return Err(libc::EOPNOTSUPP),
    };
    let end = Arc::new(end);
    sock.hand_over(&end)?;
    pump.add(item);
    Ok(end)
}

/// A listener, and the owner's end of its pair: each message to the other end passes a descriptor
/// of a connection.
pub(crate) struct Listening {
    listener: TcpListener,
    fd: OwnedFd,
    /// Gives connections the listener's options.
    template: Sock,
    /// A connection that waits until there is room for it.
    accepted: Option<OwnedFd>,
}

impl Listening {
    fn new(listener: TcpListener, fd: OwnedFd, domain: c_int, options: Recorded) -> Listening {
        let template = Sock::open(domain, libc::SOCK_STREAM, false);
        *template
            .options
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = options;
        Listening {
            listener,
            fd,
            template,
            accepted: None,
        }
    }

    fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Passes connections on; returns `None` once all processes have closed the listener.
    fn turn(&mut self, context: &mut Context<'_>, pump: &Pump) -> Option<Interest> {
        for _ in 0..ACCEPTS_MAX {
            if let Some(accepted) = &self.accepted {
                match pass(&self.fd, accepted) {
                    Ok(()) => self.accepted = None,
                    Err(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ETOOMANYREFS) => {
                        return Some(Interest {
                            read: false,
                            write: true,
                        });
                    }
                    Err(_) => return None,
                }
            }
            match self.listener.poll_accept(context) {
                Poll::Pending => break,
                Poll::Ready(Ok((stream, _))) => {
                    // With the options of the listener.
                    let sock = Sock::accepted(&self.template, stream.clone(), false);
                    if let Ok((end, item)) = relay_stream(&sock, stream) {
                        self.accepted = Some(end);
                        pump.add(item);
                    }
                }
                Poll::Ready(Err(_)) => return None,
            }
        }
        if self.accepted.is_some() {
            context.waker().wake_by_ref();
        }
        let mut byte = [0];
        // The other end sends nothing: a message of no bytes is its end.
        match rustix::net::recv(&self.fd, &mut byte, rustix::net::RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Some(Interest {
                read: true,
                write: false,
            }),
            _ => None,
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Though another thread may still have the listener.
        self.listener.shutdown();
    }
}

/// A child of this process, and the sockets that it has from its parent and has not used.
pub(crate) struct Child {
    control: OwnedFd,
    leases: HashMap<u64, Arc<Sock>>,
}

/// A child's request: what, and the socket's number.
pub(crate) const TAKE: u8 = 1;
pub(crate) const CLOSE: u8 = 2;
pub(crate) const REQUEST: usize = 9;

impl Child {
    pub(crate) fn new(control: OwnedFd, sockets: impl Iterator<Item = Arc<Sock>>) -> Child {
        Child {
            control,
            leases: sockets.map(|sock| (sock.id, sock)).collect(),
        }
    }

    fn fd(&self) -> &OwnedFd {
        &self.control
    }

    /// Answers requests; returns `None` once the child has ended or runs another program.
    fn turn(&mut self) -> Option<Interest> {
        let mut request = [0; REQUEST];
        loop {
            let flags = rustix::net::RecvFlags::DONTWAIT;
            match rustix::net::recv(&self.control, &mut request, flags) {
                Ok((REQUEST, _)) => self.answer(&request)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    return Some(Interest {
                        read: true,
                        write: false,
                    });
                }
                Ok(_) | Err(_) => return None,
            }
        }
    }

    fn answer(&mut self, request: &[u8; REQUEST]) -> Option<()> {
        let mut id = [0; 8];
        id.copy_from_slice(&request[1..]);
        let lease = self.leases.remove(&u64::from_ne_bytes(id));
        if request[0] != TAKE {
            return Some(());
        }
        let end = match lease {
            Some(sock) => match convert(&sock) {
                Ok(end) => Ok(end),
                Err(error) => {
                    self.leases.insert(sock.id, sock);
                    Err(error)
                }
            },
            None => Err(libc::EBADF),
        };
        match end {
            Ok(end) => pass(&self.control, &end).ok(),
            Err(error) => {
                let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
                let sent = rustix::net::send(&self.control, &error.to_ne_bytes(), flags);
                sent.ok().map(drop)
            }
        }
    }
}

impl Pump {
    /// Looks after a child's sockets.
    pub(crate) fn add_child(&self, child: Child) {
        self.add(Item::Child(child));
    }
}

/// The ancillary data of one descriptor.
#[repr(C, align(8))]
struct Passed([u8; 24]);

/// Sends a message that passes a descriptor; its data is a 0.
fn pass(to: &OwnedFd, fd: &OwnedFd) -> Result<(), c_int> {
    let mut zero = 0_i32.to_ne_bytes();
    let mut part = libc::iovec {
        iov_base: zero.as_mut_ptr().cast(),
        iov_len: zero.len(),
    };
    let mut control = Passed([0; 24]);
    // SAFETY: all fields of a zeroed message are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: the room is that of a header and a descriptor.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
        let data = libc::CMSG_DATA(header).cast::<c_int>();
        data.write_unaligned(fd.as_raw_fd());
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        real::sendmsg(to.as_raw_fd(), &raw const message, flags)
    };
    if sent < 0 {
        Err(crate::sock::last_errno())
    } else {
        Ok(())
    }
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
    let mut bytes = [0; 4];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Passed([0; 24]);
    // SAFETY: all fields of a zeroed message are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: the message is valid.
    let count = unsafe { real::recvmsg(from, &raw mut message, flags) };
    match count {
        0 => return Ok(Got::End),
        count if count < 0 => return Err(crate::sock::last_errno()),
        _ => {}
    }
    // SAFETY: the kernel has written the ancillary data.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
        {
            let fd = libc::CMSG_DATA(header).cast::<c_int>().read_unaligned();
            return Ok(Got::Descriptor(fd));
        }
    }
    // A descriptor was lost if the process has as many as it may.
    match c_int::from_ne_bytes(bytes) {
        0 => Ok(Got::Error(libc::EMFILE)),
        error => Ok(Got::Error(error)),
    }
}

/// Marks the relayed ones of these descriptors, which have come from another program or process.
pub(crate) fn recognise(fds: impl Iterator<Item = c_int>) {
    for fd in fds {
        if Name::of(fd).is_some() {
            table::mark_relay(fd);
        }
    }
}
