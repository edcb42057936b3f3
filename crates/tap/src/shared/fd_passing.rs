//! Descriptor passing to a process that joins a tap, over a socket on which
//! every process of the tap listens.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// Largest number of descriptors in one message: those of a link with all its
/// queues.
pub(crate) const FDS_MAX: usize = weir_link::xdp::QUEUES_MAX as usize + 8;

/// Largest length of a message, in bytes.
const BYTES_MAX: usize = 256;

/// Time that a joining process waits for an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Largest number of processes that wait for an answer.
const BACKLOG: i32 = 64;

/// A message: bytes and descriptors.
pub(crate) type Message<F> = (Vec<u8>, Vec<F>);

fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Listens at a path, to which only this user may connect. Replaces the socket
/// file of processes that have ended.
pub(crate) fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let listener = socket()?;
    let bound = match bind(&listener, &address) {
        Err(Errno::ADDRINUSE) if connect(&socket()?, &address) == Err(Errno::CONNREFUSED) => {
            // No process answers at a file of another kind, either.
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                let why = "there is a file that is not a socket";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            std::fs::remove_file(path)?;
            bind(&listener, &address)
        }
        bound => bound,
    };
    bound?;
    // No process can connect before the socket listens.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listen(&listener, BACKLOG)?;
    rustix::fs::fcntl_setfl(&listener, rustix::fs::OFlags::NONBLOCK)?;
    Ok(listener)
}

/// A process that wants to join, if one waits; only of this user, or root.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let peer = accept_with(listener, flags).ok()?;
    is_trusted(&peer).ok()?.then_some(peer)
}

/// Whether the peer's user is root, or this process's own.
fn is_trusted(peer: &OwnedFd) -> io::Result<bool> {
    let user = sockopt::socket_peercred(peer)?.uid;
    Ok(user.is_root() || user == rustix::process::geteuid())
}

/// Sends a message without waiting; an error if there is no room.
pub(crate) fn send(to: &OwnedFd, (bytes, fds): &Message<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(to, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// Connects to the process that listens at a path.
pub(crate) fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    // The listener provides the memory that this process works on.
    if !is_trusted(&socket)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER))?;
    Ok(socket)
}

/// Receives the next message.
pub(crate) fn receive(from: &OwnedFd) -> io::Result<Message<OwnedFd>> {
    let mut bytes = [0; BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg(
        from.as_fd(),
        &mut parts,
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    match message.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok((bytes[..count].to_vec(), fds)),
    }
}
