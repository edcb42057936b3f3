//! Bytes in and out of sockets.

use crate::socket::{Stage, errno, take_address};
use crate::world::{AGAIN, Inner, World};
use crate::{Answer, Errno, memory};
use weir_stack::tcp::{State, TcpError, TcpId};

/// Pieces of one scattered transfer, at most (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;
const WORD: usize = size_of::<usize>();

/// A `struct msghdr` of the caller's.
pub(crate) struct Message {
    at: usize,
    pub(crate) pieces: Vec<(usize, usize)>,
    pub(crate) control: (usize, usize),
}

impl Message {
    fn take(at: usize) -> Answer<Message> {
        let bytes = memory::take(at, 7 * WORD)?;
        let word = |index: usize| {
            let bytes = &bytes[index * WORD..][..WORD];
            usize::from_ne_bytes(bytes.try_into().expect("a word"))
        };
        Ok(Message {
            at,
            pieces: pieces(word(2), word(3))?,
            control: (word(4), word(5)),
        })
    }

    /// Says what was written: flags, and bytes of control messages.
    pub(crate) fn finish(&self, flags: i32, control_len: usize) -> Answer<()> {
        memory::give(self.at + 5 * WORD, &control_len.to_ne_bytes())?;
        memory::give(self.at + 6 * WORD, &flags.to_ne_bytes())
    }
}

/// The caller's `struct iovec`s.
fn pieces(at: usize, count: usize) -> Answer<Vec<(usize, usize)>> {
    if count > PIECES_MAX {
        return Err(Errno(libc::EMSGSIZE));
    }
    let bytes = memory::take(at, 2 * WORD * count)?;
    let words: Vec<usize> = bytes
        .chunks_exact(WORD)
        .map(|word| usize::from_ne_bytes(word.try_into().expect("a word")))
        .collect();
    Ok(words
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect())
}

fn gather(pieces: &[(usize, usize)]) -> Answer<Vec<u8>> {
    let mut bytes = Vec::new();
    for (at, len) in pieces {
        bytes.extend(memory::take(*at, *len)?);
    }
    Ok(bytes)
}

fn scatter(pieces: &[(usize, usize)], mut bytes: &[u8]) -> Answer<()> {
    for (at, len) in pieces {
        let (piece, rest) = bytes.split_at(bytes.len().min(*len));
        memory::give(*at, piece)?;
        bytes = rest;
    }
    Ok(())
}

impl World {
    pub(crate) fn read(&self, fd: i32, bytes: usize, len: usize) -> Answer {
        self.recv(fd, bytes, len, 0)
    }

    pub(crate) fn readv(&self, fd: i32, at: usize, count: i32) -> Answer {
        let pieces = pieces(at, usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?)?;
        self.receive_into(fd, &pieces, 0)
    }

    pub(crate) fn recv(&self, fd: i32, bytes: usize, len: usize, flags: i32) -> Answer {
        self.receive_into(fd, &[(bytes, len)], flags)
    }

    pub(crate) fn recvfrom(
        &self,
        fd: i32,
        bytes: usize,
        len: usize,
        flags: i32,
        _address: usize,
        address_len: usize,
    ) -> Answer {
        let received = self.recv(fd, bytes, len, flags)?;
        if address_len != 0 {
            // A stream's bytes come from nobody else.
            memory::give(address_len, &[0; 4])?;
        }
        Ok(received)
    }

    pub(crate) fn recvmsg(&self, fd: i32, message: usize, flags: i32) -> Answer {
        let message = Message::take(message)?;
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.receive_notice(fd, &message);
        }
        let received = self.receive_into(fd, &message.pieces, flags)?;
        let mut inner = self.lock();
        let control = inner.control(fd)?;
        let control_len = control.len().min(message.control.1);
        memory::give(message.control.0, &control[..control_len])?;
        message.finish(0, control_len)?;
        Ok(received)
    }

    /// Bytes are taken only when they are where the caller wants them.
    fn receive_into(&self, fd: i32, pieces: &[(usize, usize)], flags: i32) -> Answer {
        let len = pieces.iter().map(|(_, len)| len).sum();
        let (nonblocking, until_ns) = {
            let mut inner = self.lock();
            let now_ns = inner.now_ns;
            let socket = inner.socket(fd)?;
            let timeout_ns = socket.options.receive_timeout_ns;
            let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
            (nonblocking, (timeout_ns > 0).then(|| now_ns + timeout_ns))
        };
        let attempt = |inner: &mut Inner| match inner.look(fd, len) {
            Err(error) if error == AGAIN && !nonblocking => None,
            Err(error) => Some(Err(error)),
            Ok(bytes) => Some(scatter(pieces, &bytes).map(|()| {
                if flags & libc::MSG_PEEK == 0 {
                    inner.consume(fd, bytes.len());
                }
                bytes.len() as i64
            })),
        };
        self.wait(until_ns, attempt).unwrap_or(Err(AGAIN))
    }

    pub(crate) fn write(&self, fd: i32, bytes: usize, len: usize) -> Answer {
        self.send(fd, bytes, len, 0)
    }

    pub(crate) fn writev(&self, fd: i32, at: usize, count: i32) -> Answer {
        let pieces = pieces(at, usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?)?;
        self.transmit(fd, &gather(&pieces)?, 0)
    }

    pub(crate) fn send(&self, fd: i32, bytes: usize, len: usize, flags: i32) -> Answer {
        let bytes = memory::take(bytes, len)?;
        self.transmit(fd, &bytes, flags)
    }

    pub(crate) fn sendto(
        &self,
        fd: i32,
        bytes: usize,
        len: usize,
        flags: i32,
        address: usize,
        address_len: u32,
    ) -> Answer {
        let _remote = take_address(address, address_len)?;
        let bytes = memory::take(bytes, len)?;
        self.transmit(fd, &bytes, flags)
    }

    pub(crate) fn sendmsg(&self, fd: i32, message: usize, flags: i32) -> Answer {
        let message = Message::take(message)?;
        let bytes = gather(&message.pieces)?;
        self.transmit(fd, &bytes, flags)
    }

    /// Writes bytes; a socket that blocks takes all of them.
    pub(crate) fn transmit(&self, fd: i32, bytes: &[u8], flags: i32) -> Answer {
        let (nonblocking, until_ns) = {
            let mut inner = self.lock();
            let now_ns = inner.now_ns;
            let socket = inner.socket(fd)?;
            let timeout_ns = socket.options.send_timeout_ns;
            let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
            (nonblocking, (timeout_ns > 0).then(|| now_ns + timeout_ns))
        };
        let mut done = 0;
        let attempt = |inner: &mut Inner| {
            let answer = inner.put(fd, &bytes[done..], flags);
            match answer {
                Ok(taken) => done += taken,
                Err(error) if error == AGAIN => {}
                Err(error) if done == 0 => return Some(Err(error)),
                Err(_) => return Some(Ok(done as i64)),
            }
            match (done == bytes.len(), nonblocking, done) {
                (true, ..) => Some(Ok(done as i64)),
                (false, true, 0) => Some(Err(AGAIN)),
                (false, true, _) => Some(Ok(done as i64)),
                (false, false, _) => None,
            }
        };
        match self.wait(until_ns, attempt) {
            Some(answer) => answer,
            None if done > 0 => Ok(done as i64),
            None => Err(AGAIN),
        }
    }

    pub(crate) fn splice(
        &self,
        _from: i32,
        _from_offset: usize,
        _to: i32,
        _to_offset: usize,
        _len: usize,
        _flags: u32,
    ) -> Answer {
        Err(Errno(libc::EINVAL))
    }

    pub(crate) fn pipe(&self, _fds: usize) -> Answer {
        Err(Errno(libc::EMFILE))
    }
}

impl Inner {
    fn stream(&mut self, fd: i32) -> Answer<TcpId> {
        match self.socket(fd)?.stage {
            Stage::Stream(id) => Ok(id),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// The bytes that can be read, at most `len`; they stay.
    fn look(&mut self, fd: i32, len: usize) -> Answer<Vec<u8>> {
        let id = self.stream(fd)?;
        let mut bytes = vec![0; len];
        match self.stack.tcp_look(id, &mut bytes) {
            Ok(count) => {
                bytes.truncate(count);
                Ok(bytes)
            }
            Err(TcpError::NotNow) if self.socket(fd)?.deaf => Ok(Vec::new()),
            Err(TcpError::NotNow) => Err(AGAIN),
            Err(error) => match self.socket(fd)?.told.replace(error) {
                Some(_) => Ok(Vec::new()),
                None => Err(errno(error)),
            },
        }
    }

    fn consume(&mut self, fd: i32, count: usize) {
        if let Ok(id) = self.stream(fd) {
            // The connection was there to look at.
            let _ = self.stack.tcp_consume(id, count);
        }
    }

    /// Writes what there is room for.
    fn put(&mut self, fd: i32, bytes: &[u8], flags: i32) -> Answer<usize> {
        let socket = self.socket(fd)?;
        let Stage::Stream(id) = socket.stage else {
            return Err(Errno(libc::EPIPE));
        };
        match self.stack.tcp_state(id) {
            Some(State::SynSent | State::SynReceived) => return Err(AGAIN),
            Some(State::Closed) | None => {
                let told = self.socket(fd)?.told;
                return Err(match (told, self.failure(fd, id)) {
                    (Some(_), _) | (None, Errno(libc::ENOTCONN)) => Errno(libc::EPIPE),
                    (None, error) => error,
                });
            }
            Some(_) => {}
        }
        let _ = flags;
        let taken = self.stack.tcp_write(id, bytes).map_err(errno)?;
        self.socket(fd)?.written += taken as u64;
        Ok(taken)
    }

    /// What is told beside bytes that were read.
    fn control(&mut self, _fd: i32) -> Answer<Vec<u8>> {
        Ok(Vec::new())
    }
}
