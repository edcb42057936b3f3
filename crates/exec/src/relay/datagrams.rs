//! One relayed UDP socket: datagrams between the socket and the owner's end of its pair, each behind
//! a [`Header`]. A program without the library has its connected socket's datagrams without headers.

use super::protocol::{DATAGRAM_MAX, HEADER, Header, Key};
use super::pump::Interest;
use crate::address;
use crate::calls::connect::of_this_host;
use crate::control::{BESIDE, Beside, Given};
use crate::sock::{Sock, errno};
use libc::c_int;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use weir_socket::UdpSocket;
use weir_stack::udp::SendInfo;

/// Datagrams of one turn each way, so that no socket keeps the others waiting.
const DATAGRAMS_MAX: usize = 64;

/// A UDP socket and the owner's end of its pair.
pub(super) struct Datagrams {
    sock: Sock,
    udp: UdpSocket,
    fd: OwnedFd,
    key: Key,
    /// A datagram for which the host had no room.
    up: Option<(SocketAddr, SendInfo, Vec<u8>)>,
    /// A message for which the application had no room.
    down: Option<Vec<u8>>,
    /// Whether the application has shut its end down for writing.
    up_done: bool,
    /// Whether datagrams have no headers: those of the connected peer.
    is_plain: bool,
}

impl Datagrams {
    /// A plain one is connected, and its datagrams have no headers.
    pub(super) fn new(
        sock: Sock,
        udp: UdpSocket,
        fd: OwnedFd,
        key: Key,
        is_plain: bool,
    ) -> Datagrams {
        Datagrams {
            sock,
            udp,
            fd,
            key,
            up: None,
            down: None,
            up_done: false,
            is_plain,
        }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn socket(&self) -> (&Key, &Sock) {
        (&self.key, &self.sock)
    }

    /// Passes datagrams on; returns `None` once all processes have closed the socket.
    pub(super) fn turn(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut [u8],
        again: &mut bool,
    ) -> Option<Interest> {
        self.pass_down(context, again)?;
        self.pass_up(context, scratch, again)?;
        Some(Interest {
            read: self.up.is_none() && !self.up_done,
            write: self.down.is_some(),
        })
    }

    /// From the network to the application.
    fn pass_down(&mut self, context: &mut Context<'_>, again: &mut bool) -> Option<()> {
        for _ in 0..DATAGRAMS_MAX {
            if let Some(message) = self.down.take()
                && !self.give(message)?
            {
                return Some(());
            }
            let message = match self.udp.poll_recv_datagram(context) {
                Poll::Pending => return Some(()),
                Poll::Ready(Ok(datagram)) if self.is_plain => datagram.bytes.to_vec(),
                Poll::Ready(Ok(datagram)) => {
                    let beside = Beside::of(&self.sock, &self.udp, &datagram);
                    let beside = beside.map_or([0; BESIDE], Beside::to_bytes);
                    let header = Header::Address(datagram.from).with(beside);
                    [&header, &datagram.bytes[..]].concat()
                }
                Poll::Ready(Err(error)) => match errno(&error) {
                    // The host has ended, and the socket with it.
                    libc::ENETDOWN => {
                        self.report(libc::ENETDOWN);
                        return None;
                    }
                    _ if self.is_plain => continue,
                    error => Header::Error(error).to_bytes().to_vec(),
                },
            };
            self.down = Some(message);
        }
        *again = true;
        Some(())
    }

    /// Sends a message to the application; false if it has no room, `None` if no process has it.
    fn give(&mut self, message: Vec<u8>) -> Option<bool> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&self.fd, &message, flags) {
            Ok(_) => Some(true),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => {
                self.down = Some(message);
                Some(false)
            }
            Err(_) if self.is_hung_up() => None,
            // No process reads any more, but the application may still write.
            Err(_) => Some(true),
        }
    }

    /// The error that the application's next call reports; lost if the application has no room.
    fn report(&self, error: c_int) {
        if self.is_plain {
            return;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = send(&self.fd, &Header::Error(error).to_bytes(), flags);
    }

    /// From the application to the network.
    fn pass_up(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut [u8],
        again: &mut bool,
    ) -> Option<()> {
        for _ in 0..DATAGRAMS_MAX {
            if let Some((to, info, bytes)) = self.up.take() {
                match self.udp.poll_send_with(context, &bytes, to, &info) {
                    Poll::Pending => {
                        self.up = Some((to, info, bytes));
                        return Some(());
                    }
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => self.report(errno(&error)),
                }
            }
            if self.up_done {
                return (!self.is_hung_up()).then_some(());
            }
            match recv(&self.fd, &mut *scratch, RecvFlags::DONTWAIT) {
                Ok((0, _)) if !self.is_plain || self.has_ended() => {
                    if self.is_hung_up() {
                        return None;
                    }
                    self.up_done = true;
                }
                Ok((count, _)) => match self.destination(&scratch[..count]) {
                    Ok((to, info)) => {
                        let start = if self.is_plain { 0 } else { HEADER };
                        self.up = Some((to, info, scratch[start..count].to_vec()));
                    }
                    Err(error) => self.report(error),
                },
                Err(Errno::AGAIN) => return Some(()),
                // As a close with unread messages looks once, before the application's last ones.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(_) => return None,
            }
        }
        *again = true;
        Some(())
    }

    /// Where a message of the application goes, and how.
    fn destination(&self, message: &[u8]) -> Result<(SocketAddr, SendInfo), c_int> {
        if self.is_plain {
            if message.len() > DATAGRAM_MAX {
                return Err(libc::EMSGSIZE);
            }
            let peer = self.udp.peer_addr().map_err(|_| libc::EDESTADDRREQ)?;
            return Ok((peer, Given::default().resolve()?));
        }
        if message.len() > HEADER + DATAGRAM_MAX {
            return Err(libc::EMSGSIZE);
        }
        let to = match Header::from_bytes(message) {
            Some(Header::Address(to)) => {
                of_this_host(address::unmapped(to), || self.udp.local_addr().ok())
            }
            Some(Header::Connected) => {
                let peer = self.udp.peer_addr();
                peer.map_err(|_| libc::EDESTADDRREQ)?
            }
            Some(Header::Error(_)) | None => return Err(libc::EINVAL),
        };
        let given = Given::from_bytes(&Header::ancillary(message));
        Ok((to, given.resolve()?))
    }

    /// Whether all processes have closed the application's end.
    fn is_hung_up(&self) -> bool {
        self.polled().contains(PollFlags::HUP)
    }

    /// Whether the application sends no more, and has sent no more than a message of no bytes: that may be
    /// an empty datagram as well as the end.
    fn has_ended(&self) -> bool {
        let waiting = rustix::io::ioctl_fionread(&self.fd);
        self.polled().contains(PollFlags::RDHUP) && waiting.unwrap_or(0) == 0
    }

    fn polled(&self) -> PollFlags {
        let mut fds = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let _ = poll(&mut fds, Some(&none));
        fds[0].revents()
    }
}
