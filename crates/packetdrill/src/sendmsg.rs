//! Reading from and writing to sockets.

use crate::errqueue::{ACKNOWLEDGED, SCHEDULED, SENT, TxWatch, control_message};
use crate::options::CLIENT;
use crate::simulation::{AGAIN, Inner, Simulation};
use crate::socket::{Socket, SocketPhase, errno, take_address};
use crate::{Answer, Errno, user_memory};
use std::net::SocketAddr;
use weir_stack::tcp::{State, TcpError, TcpId};

/// Largest number of buffers in one call (UIO_MAXIOV).
const IOVECS_MAX: usize = 1024;
const WORD: usize = size_of::<usize>();

/// The caller's `struct msghdr`.
pub(crate) struct Message {
    at: usize,
    name: (usize, u32),
    pub(crate) pieces: Vec<(usize, usize)>,
    pub(crate) control: (usize, usize),
}

impl Message {
    fn take(at: usize) -> Answer<Message> {
        let bytes = user_memory::take(at, 7 * WORD)?;
        let word = |index: usize| {
            let bytes = &bytes[index * WORD..][..WORD];
            usize::from_ne_bytes(bytes.try_into().expect("a word"))
        };
        Ok(Message {
            at,
            name: (word(0), word(1) as u32),
            pieces: iovecs(word(2), word(3))?,
            control: (word(4), word(5)),
        })
    }

    /// Writes the result fields: flags and length of control messages.
    pub(crate) fn finish(&self, flags: i32, control_len: usize) -> Answer<()> {
        user_memory::give(self.at + 5 * WORD, &control_len.to_ne_bytes())?;
        user_memory::give(self.at + 6 * WORD, &flags.to_ne_bytes())
    }
}

/// The caller's `struct iovec`s.
fn iovecs(at: usize, count: usize) -> Answer<Vec<(usize, usize)>> {
    if count > IOVECS_MAX {
        return Err(Errno(libc::EMSGSIZE));
    }
    let bytes = user_memory::take(at, 2 * WORD * count)?;
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
        bytes.extend(user_memory::take(*at, *len)?);
    }
    Ok(bytes)
}

fn scatter(pieces: &[(usize, usize)], mut bytes: &[u8]) -> Answer<()> {
    for (at, len) in pieces {
        let (piece, rest) = bytes.split_at(bytes.len().min(*len));
        user_memory::give(*at, piece)?;
        bytes = rest;
    }
    Ok(())
}

impl Simulation {
    pub(crate) fn read(&self, fd: i32, bytes: usize, len: usize) -> Answer {
        self.recv(fd, bytes, len, 0)
    }

    pub(crate) fn readv(&self, fd: i32, at: usize, count: i32) -> Answer {
        let pieces = iovecs(at, usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?)?;
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
            // Data of a stream has no sender address.
            user_memory::give(address_len, &[0; 4])?;
        }
        Ok(received)
    }

    pub(crate) fn recvmsg(&self, fd: i32, message: usize, flags: i32) -> Answer {
        let message = Message::take(message)?;
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.receive_event(fd, &message);
        }
        let received = self.receive_into(fd, &message.pieces, flags)?;
        let mut inner = self.lock();
        let control = inner.control(fd)?;
        let control_len = control.len().min(message.control.1);
        user_memory::give(message.control.0, &control[..control_len])?;
        message.finish(0, control_len)?;
        Ok(received)
    }

    /// Data is consumed only after it was copied to the caller.
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
        let attempt = |inner: &mut Inner| match inner.peek(fd, len) {
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
        let pieces = iovecs(at, usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?)?;
        self.transmit_to(fd, &gather(&pieces)?, 0, Ok(None))
    }

    pub(crate) fn send(&self, fd: i32, bytes: usize, len: usize, flags: i32) -> Answer {
        let bytes = user_memory::take(bytes, len)?;
        self.transmit_to(fd, &bytes, flags, Ok(None))
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
        let remote = take_address(address, address_len);
        let bytes = user_memory::take(bytes, len)?;
        self.transmit_to(fd, &bytes, flags, remote)
    }

    pub(crate) fn sendmsg(&self, fd: i32, message: usize, flags: i32) -> Answer {
        let message = Message::take(message)?;
        let bytes = gather(&message.pieces)?;
        let remote = match message.name {
            (0, _) => Ok(None),
            (at, len) => take_address(at, len),
        };
        self.transmit_to(fd, &bytes, flags, remote)
    }

    /// Writes data, which may open the connection (TCP Fast Open).
    fn transmit_to(
        &self,
        fd: i32,
        bytes: &[u8],
        flags: i32,
        remote: Answer<Option<SocketAddr>>,
    ) -> Answer {
        let begun = self.act(|inner| {
            let socket = inner.socket(fd)?;
            let asked = flags & libc::MSG_FASTOPEN != 0;
            let remote = match (socket.phase, socket.deferred) {
                (SocketPhase::New(_), Some(remote)) => remote,
                (SocketPhase::New(_), None) if asked => {
                    if inner.settings.fast_open() & CLIENT == 0 {
                        return Err(Errno(libc::EOPNOTSUPP));
                    }
                    remote?.ok_or(Errno(libc::EOPNOTSUPP))?
                }
                (SocketPhase::Stream(id), _) if asked => {
                    let opening = State::SynSent;
                    return if inner.stack.tcp_state(id) == Some(opening) {
                        Err(Errno(libc::EALREADY))
                    } else {
                        Ok(None)
                    };
                }
                _ => return Ok(None),
            };
            inner.begin_fast(fd, remote, bytes, flags).map(Some)
        })?;
        let Some(done) = begun else {
            return self.transmit(fd, bytes, flags);
        };
        let nonblocking = self.lock().socket(fd)?.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        match (nonblocking, done) {
            (true, 0) => Err(Errno(libc::EINPROGRESS)),
            (true, done) => Ok(done as i64),
            (false, done) => {
                let rest = self.transmit(fd, &bytes[done..], flags)?;
                Ok(done as i64 + rest)
            }
        }
    }

    /// Writes data; a blocking socket accepts all of it.
    pub(crate) fn transmit(&self, fd: i32, bytes: &[u8], flags: i32) -> Answer {
        let (nonblocking, until_ns) = {
            let mut inner = self.lock();
            let now_ns = inner.now_ns;
            let socket = inner.socket(fd)?;
            let timeout_ns = socket.options.send_timeout_ns;
            let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
            (nonblocking, (timeout_ns > 0).then(|| now_ns + timeout_ns))
        };
        let (mut done, mut early) = (0, false);
        let attempt = |inner: &mut Inner| {
            // Data written while the connection opens is sent once it is open.
            let opening = inner.is_opening(fd);
            if opening && nonblocking {
                return Some(Err(AGAIN));
            }
            match inner.put(fd, &bytes[done..], flags) {
                Ok(taken) => done += taken,
                Err(error) if error == AGAIN => {}
                Err(error) if done == 0 || early => return Some(Err(error)),
                Err(_) => return Some(Ok(done as i64)),
            }
            early = opening;
            match (done == bytes.len() && !opening, nonblocking, done) {
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

    /// Sends from a kernel file, at an offset that is advanced.
    pub(crate) fn sendfile(&self, fd: i32, from: i32, offset: usize, count: usize) -> Answer {
        let at = user_memory::take(offset, 8)?;
        let at = u64::from_ne_bytes(at.try_into().expect("eight bytes"));
        let bytes = user_memory::of_file(from, at, count)?;
        let sent = self.transmit(fd, &bytes, 0)?;
        user_memory::give(offset, &(at + sent as u64).to_ne_bytes())?;
        Ok(sent)
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
        let socket = self.socket(fd)?;
        match socket.phase {
            SocketPhase::Stream(id) => Ok(id),
            SocketPhase::New(_) if socket.deferred.is_some() => Err(AGAIN),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Readable data, at most `len` bytes, without consuming it.
    fn peek(&mut self, fd: i32, len: usize) -> Answer<Vec<u8>> {
        let id = self.stream(fd)?;
        let mut bytes = vec![0; len];
        match self.stack.tcp_peek(id, &mut bytes) {
            Ok(count) => {
                bytes.truncate(count);
                Ok(bytes)
            }
            Err(TcpError::WouldBlock) if self.socket(fd)?.deaf => Ok(Vec::new()),
            Err(TcpError::WouldBlock) => Err(AGAIN),
            Err(error) => match self.socket(fd)?.reported.replace(error) {
                Some(_) => Ok(Vec::new()),
                None => Err(errno(error)),
            },
        }
    }

    fn consume(&mut self, fd: i32, count: usize) {
        if let Ok(id) = self.stream(fd) {
            // The connection existed a moment ago.
            let _ = self.stack.tcp_consume(id, count);
        }
    }

    /// Whether a socket has sent a SYN that is unanswered.
    fn is_opening(&mut self, fd: i32) -> bool {
        let id = self.stream(fd).ok();
        id.and_then(|id| self.stack.tcp_state(id)) == Some(State::SynSent)
    }

    /// Writes as much as there is room for.
    fn put(&mut self, fd: i32, bytes: &[u8], flags: i32) -> Answer<usize> {
        let socket = self.socket(fd)?;
        let SocketPhase::Stream(id) = socket.phase else {
            return Err(Errno(libc::EPIPE));
        };
        match self.stack.tcp_state(id) {
            Some(State::Closed) | None => {
                let reported = self.socket(fd)?.reported;
                return Err(match (reported, self.failure(fd, id)) {
                    (None, Some(error)) => error,
                    _ => Errno(libc::EPIPE),
                });
            }
            Some(_) => {}
        }
        let written = match flags & libc::MSG_OOB {
            0 => self.stack.tcp_write(id, bytes),
            _ => self.stack.tcp_write_urgent(id, bytes),
        };
        let taken = match written {
            Ok(taken) => taken,
            Err(TcpError::WouldBlock) => 0,
            Err(error) => return Err(errno(error)),
        };
        let more = flags & libc::MSG_MORE != 0;
        self.stack.tcp_set_more(id, more).map_err(errno)?;
        if flags & libc::MSG_EOR != 0 && taken == bytes.len() {
            self.stack.tcp_end_record(id).map_err(errno)?;
        }
        let socket = self.socket(fd)?;
        socket.starved |= taken < bytes.len();
        socket.watch(taken, flags);
        match taken {
            0 if !bytes.is_empty() => Err(AGAIN),
            taken => Ok(taken),
        }
    }

    /// The control messages for received data.
    fn control(&mut self, fd: i32) -> Answer<Vec<u8>> {
        let now_ns = self.now_ns;
        let socket = self.socket(fd)?;
        let asked = socket.options.number(libc::IPPROTO_TCP, libc::TCP_INQ) != 0;
        let id = socket.stream().filter(|_| asked);
        let Some(info) = id.and_then(|id| self.stack.tcp_info(now_ns, id)) else {
            return Ok(Vec::new());
        };
        // The end of the stream counts as readable.
        let left = match info.readable {
            0 => i32::from(info.peer_closed),
            readable => readable as i32,
        };
        let inq = left.to_ne_bytes();
        Ok(control_message(libc::SOL_TCP, libc::TCP_INQ, &inq))
    }
}

impl Socket {
    /// Records a write, for a requested timestamp.
    pub(crate) fn watch(&mut self, taken: usize, flags: i32) {
        let end = self.written + taken as u64;
        self.written = end;
        if taken == 0 {
            return;
        }
        let copies = self.options.number(libc::SOL_SOCKET, libc::SO_ZEROCOPY) == 0;
        if flags & libc::MSG_ZEROCOPY != 0 && !copies {
            let write = self.zero_copies;
            self.zero_copies = write.wrapping_add(1);
            self.watched.push(TxWatch::Free { write, end });
        }
        let asked = self.options.number(libc::SOL_SOCKET, libc::SO_TIMESTAMPING) as u32;
        let byte = (end - 1).wrapping_sub(self.stamps_from) as u32;
        for (bit, of) in [
            (libc::SOF_TIMESTAMPING_TX_SCHED, SCHEDULED),
            (libc::SOF_TIMESTAMPING_TX_SOFTWARE, SENT),
            (libc::SOF_TIMESTAMPING_TX_ACK, ACKNOWLEDGED),
        ] {
            if asked & bit != 0 {
                self.watched.push(TxWatch::Stamp { of, byte, end });
            }
        }
    }
}
