//! A connection of a server, as far as bytes have come and go: it never waits.

use super::files::Folder;
use super::request::{self, NoRequest};
use super::server::{self, Answered, Payload};
use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Requests on one connection; then it is closed.
const REQUESTS_MAX: usize = 10_000;
/// Answers and blocks of files that are sent in a row, before others have their turn.
const TURN: usize = 16;

/// How long the whole head of a request may take from its first byte on.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a client may have no request; and the window over which the rate is averaged at which a
/// client takes an answer.
pub(crate) const IO_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a file that a connection reads at once in the beginning. Each block that is sent doubles
/// the next one, up to [`Common::block_len`].
const BLOCK_LEN_INITIAL: usize = 16 << 10;

/// Blocks that are read until a block that waits for the client is kept: many clients may take no
/// more than the first ones, and few blocks are read twice for a client that does.
const BLOCKS_READ_MIN: usize = 2;

/// A source and sink of bytes.
pub(crate) trait Pipe {
    fn poll_read(&self, context: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>>;
    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
}

/// The state of a connection after its turn.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It waits for the client, until its deadline.
    Waits,
    /// It can go on: others come first.
    GoesOn,
    /// All is said.
    Over,
    /// It is broken.
    Broken,
}

/// State that all connections use in turn.
pub(crate) struct Common<'a> {
    pub(crate) folder: &'a Folder,
    /// Bytes that were just read.
    pub(crate) block: Vec<u8>,
    /// Bytes that are read of a file at once, and gathered to be sent.
    pub(crate) block_len: usize,
    /// Whether no further request is read.
    pub(crate) ends: bool,
    pub(crate) log: &'a dyn Fn(&Answered),
    /// Whether the answer is logged.
    pub(crate) logs: bool,
}

/// The part of a file that follows the bytes of [`Connection::out`].
#[derive(Debug)]
struct FileRest {
    file: std::fs::File,
    /// Bytes that were not read yet.
    left: u64,
    /// Bytes of the file at the end of [`Connection::out`].
    read_len: usize,
}

/// The state machine of one connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Received bytes that were not used yet.
    ahead: Vec<u8>,
    /// How many bytes of it were parsed, and are a part of a head; and how many were
    /// searched for its end.
    parsed: usize,
    searched: usize,
    /// Bytes to send, and how many of them were sent.
    out: Vec<u8>,
    sent: usize,
    /// The rest of the answer's file, behind `out`.
    file: Option<FileRest>,
    /// Bytes that are read of a file at once, and gathered to be sent.
    block_len: usize,
    /// Blocks of the answer's file that were read behind the first, since the file began or the
    /// client last stalled.
    blocks_read: usize,
    /// When the client last took bytes of an answer.
    progressed_at: Instant,
    /// Answers that are not sent yet.
    answered: VecDeque<Answered>,
    requests: usize,
    /// Nothing is read any more; once all is sent, it is over.
    closes: bool,
    /// The last request was refused before all of it was read.
    refused: bool,
    /// When the client must have done what is waited for.
    deadline: Instant,
    /// Whether the deadline is that of a head which has begun.
    in_head: bool,
}

impl Connection {
    pub(crate) fn new(now: Instant) -> Connection {
        Connection {
            ahead: Vec::new(),
            parsed: 0,
            searched: 0,
            out: Vec::new(),
            sent: 0,
            file: None,
            block_len: BLOCK_LEN_INITIAL,
            blocks_read: 0,
            progressed_at: now,
            answered: VecDeque::new(),
            requests: 0,
            closes: false,
            refused: false,
            // A client that connects and says nothing counts as one that stalls.
            deadline: now + HEAD_TIME,
            in_head: false,
        }
    }

    /// When the client must have done what is waited for.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether an answer is on its way; otherwise the client is to ask.
    pub(crate) fn is_answering(&self) -> bool {
        self.sent < self.out.len() || self.file.is_some()
    }

    /// Whether the client may still be sending a request that was refused.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether a request's head has begun and is not whole.
    pub(crate) fn is_in_head(&self) -> bool {
        self.in_head
    }

    /// When the client last took bytes of an answer, or the connection began.
    pub(crate) fn progressed_at(&self) -> Instant {
        self.progressed_at
    }

    /// Frees the block of a client that takes nothing any more; the next block is short again.
    pub(crate) fn stall(&mut self) {
        self.release_block();
        if self.file.is_some() {
            self.block_len = BLOCK_LEN_INITIAL;
            self.blocks_read = 0;
        }
    }

    /// Gives the client so much time from now on.
    pub(crate) fn extend(&mut self, now: Instant, time: Duration) {
        self.deadline = now + time;
    }

    /// Frees the block of the answer's file that waits to be sent; the block is read again as soon
    /// as the client takes more.
    fn release_block(&mut self) {
        let Some(rest) = &mut self.file else { return };
        let back = rest.read_len.min(self.out.len() - self.sent);
        if back == 0 || rest.file.seek(SeekFrom::Current(-(back as i64))).is_err() {
            return;
        }
        rest.left += back as u64;
        rest.read_len = 0;
        let end = self.out.len() - back;
        self.out = self.out[self.sent..end].to_vec();
        self.sent = 0;
    }

    /// Does what can be done now.
    pub(crate) fn step<P: Pipe>(
        &mut self,
        pipe: &P,
        context: &mut Context<'_>,
        now: Instant,
        common: &mut Common<'_>,
    ) -> Turn {
        let mut left = TURN;
        while left > 0 {
            left -= 1;
            match self.send(pipe, context, now, common, &mut left) {
                Ok(Poll::Ready(false)) => break,
                Ok(Poll::Ready(true)) => {}
                Ok(Poll::Pending) => return Turn::Waits,
                Err(_) => return Turn::Broken,
            }
            if self.closes || common.ends {
                return Turn::Over;
            }
            if self.answer(common, now) {
                continue;
            }
            match pipe.poll_read(context, &mut common.block) {
                Poll::Pending => return Turn::Waits,
                Poll::Ready(Ok(0)) => return Turn::Over,
                Poll::Ready(Err(_)) => return Turn::Broken,
                Poll::Ready(Ok(count)) => {
                    self.ahead.extend_from_slice(&common.block[..count]);
                    if !self.in_head {
                        self.in_head = true;
                        self.deadline = now + HEAD_TIME;
                    }
                    self.answer(common, now);
                }
            }
        }
        Turn::GoesOn
    }

    /// Sends what there is, `left` blocks of a file at most; ready with whether all
    /// is sent.
    fn send<P: Pipe>(
        &mut self,
        pipe: &P,
        context: &mut Context<'_>,
        now: Instant,
        common: &Common<'_>,
        left: &mut usize,
    ) -> io::Result<Poll<bool>> {
        if !self.is_answering() {
            return Ok(Poll::Ready(true));
        }
        loop {
            while self.sent < self.out.len() {
                match pipe.poll_write(context, &self.out[self.sent..]) {
                    Poll::Pending => {
                        if self.blocks_read < BLOCKS_READ_MIN {
                            self.release_block();
                        }
                        return Ok(Poll::Pending);
                    }
                    Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(count) => {
                        self.sent += count?;
                        self.progressed_at = now;
                    }
                }
            }
            self.out.clear();
            self.sent = 0;
            self.file.take_if(|rest| rest.left == 0);
            if self.file.is_some() && *left == 0 {
                return Ok(Poll::Ready(false));
            }
            if self.file.is_none() {
                break;
            }
            self.blocks_read += 1;
            self.block_len = (2 * self.block_len).min(common.block_len.max(BLOCK_LEN_INITIAL));
            self.fill(common)?;
            *left -= 1;
        }
        // An idle connection keeps nothing.
        self.out = Vec::new();
        self.block_len = BLOCK_LEN_INITIAL;
        self.blocks_read = 0;
        self.deadline = now + IO_TIMEOUT;
        while let Some(answered) = self.answered.pop_front() {
            (common.log)(&answered);
        }
        Ok(Poll::Ready(true))
    }

    /// Bytes to read of a file at once, and to gather.
    fn block_len(&self, common: &Common<'_>) -> usize {
        self.block_len.min(common.block_len)
    }

    /// Reads the file's next bytes behind what is to be sent.
    fn fill(&mut self, common: &Common<'_>) -> io::Result<()> {
        let block_len = self.block_len(common);
        let Some(rest) = &mut self.file else {
            return Ok(());
        };
        let most = usize::try_from(rest.left)
            .unwrap_or(usize::MAX)
            .min(block_len);
        let before = self.out.len();
        self.out.reserve(most);
        let count = Read::take(&mut rest.file, most as u64).read_to_end(&mut self.out)?;
        if count < most {
            // It has become shorter: only the connection's end says so.
            self.out.truncate(before);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        rest.left -= most as u64;
        rest.read_len = most;
        if rest.left == 0 && most <= BLOCK_LEN_INITIAL {
            // So little is not worth to be given back by `release_block`.
            self.file = None;
        }
        Ok(())
    }

    /// Answers the requests that have come, as far as answers are short; whether
    /// there was one.
    fn answer(&mut self, common: &Common<'_>, now: Instant) -> bool {
        let mut used = 0;
        let gather_max = self.block_len(common);
        while !self.closes && self.file.is_none() && self.out.len() < gather_max {
            used += blank_lines(&self.ahead[used..]);
            let ahead = &self.ahead[used..];
            let before = std::mem::replace(&mut self.searched, ahead.len());
            if !worth_parsing(ahead, self.parsed, before) {
                break;
            }
            let (request, answer) = match request::parse(ahead) {
                Ok(Some((request, count))) if count <= super::HEAD_LEN_MAX => {
                    used += count;
                    (self.parsed, self.searched) = (0, 0);
                    let answer = server::answer(common.folder, &request);
                    (Some(request), answer)
                }
                Ok(None) if ahead.len() <= super::HEAD_LEN_MAX => {
                    self.parsed = ahead.len();
                    break;
                }
                Ok(_) => (None, server::Answer::of(request::too_long(ahead))),
                Err(NoRequest::Wrong(status)) => (None, server::Answer::of(status)),
            };
            self.requests += 1;
            let persists = request.as_ref().is_some_and(|one| one.persists);
            let stays = persists && self.requests < REQUESTS_MAX && !common.ends;
            let to_head = request.as_ref().is_some_and(|one| one.method == "HEAD");
            let len = server::head(&answer, stays, &mut self.out);
            let bytes = if to_head { 0 } else { len };
            self.refused = request.as_ref().is_none_or(|one| one.has_body);
            if common.logs {
                let (method, target) =
                    request.map_or_else(Default::default, |one| (one.method, one.target));
                let status = answer.status;
                self.answered.push_back(Answered {
                    method,
                    target,
                    status,
                    bytes,
                });
            }
            self.closes = !stays;
            self.in_head = false;
            (self.deadline, self.progressed_at) = (now + IO_TIMEOUT, now);
            match answer.body {
                Payload::Text(text) if !to_head => self.out.extend_from_slice(text.as_bytes()),
                Payload::File(served, range) if bytes > 0 => {
                    let opened = server::from(served.file, range.start);
                    let filled = opened.and_then(|file| {
                        self.file = Some(FileRest {
                            file,
                            left: bytes,
                            read_len: 0,
                        });
                        self.fill(common)
                    });
                    if filled.is_err() {
                        // The head has promised what there is not: the
                        // connection's end says so.
                        (self.file, self.closes) = (None, true);
                    }
                }
                _ => {}
            }
        }
        if used == self.ahead.len() {
            // An idle connection keeps nothing.
            self.ahead = Vec::new()
        } else {
            _ = self.ahead.drain(..used)
        }
        used > 0 || self.closes
    }
}

/// How many bytes are lines without anything before a request, which say nothing
/// (RFC 9112 §2.2).
fn blank_lines(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let [b'\n', behind @ ..] | [b'\r', b'\n', behind @ ..] = rest {
        rest = behind;
    }
    bytes.len() - rest.len()
}

/// Whether a head that was a part of one up to `parsed` bytes, and has no end up to
/// `searched`, may be whole, wrong or too long now. A head that comes byte by byte
/// is not parsed with each: it is where a line without anything ends, or twice as
/// many bytes are there.
fn worth_parsing(bytes: &[u8], parsed: usize, searched: usize) -> bool {
    if bytes.len() >= 2 * parsed || bytes.len() > super::HEAD_LEN_MAX {
        return true;
    }
    let new = &bytes[searched.saturating_sub(3)..];
    let ends = |some: &[u8]| some.starts_with(b"\n\n") || some.starts_with(b"\n\r\n");
    (0..new.len()).any(|at| ends(&new[at..]))
}

#[cfg(test)]
mod tests;
