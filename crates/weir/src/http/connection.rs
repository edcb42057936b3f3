//! A connection of a server, as far as bytes have come and go: it never waits.

use super::files::Folder;
use super::request::{self, NoRequest};
use super::server::{self, Answered, Payload};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Requests on one connection; then it is closed.
const REQUESTS_MAX: usize = 10_000;
/// Bytes that are read of a file at once, and gathered to be sent.
const BLOCK_LEN: usize = 256 << 10;
/// Answers that are sent in a row, and blocks, before others have their turn.
const TURN: usize = 16;

/// How long the whole head of a request may take from its first byte on.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a client may have no request, or take nothing of an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What bytes come and go by.
pub(crate) trait Pipe {
    fn poll_read(&self, context: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>>;
    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
}

/// What a connection is about after its turn.
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

/// What all connections use in turn.
pub(crate) struct Common<'a> {
    pub(crate) folder: &'a Folder,
    /// Bytes that were just read.
    pub(crate) block: Vec<u8>,
    /// Whether no further request is read.
    pub(crate) ends: bool,
    pub(crate) log: &'a dyn Fn(&Answered),
    /// Whether anybody wants to know what was answered.
    pub(crate) logs: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    /// What came and was not used.
    ahead: Vec<u8>,
    /// What is to be sent, and how much of it was.
    out: Vec<u8>,
    sent: usize,
    /// The rest of the answer's file, behind `out`.
    file: Option<(std::fs::File, u64)>,
    /// What was answered and is not sent yet.
    answered: VecDeque<Answered>,
    requests: usize,
    /// Nothing is read any more; once all is sent, it is over.
    closes: bool,
    /// When the client must have done what is waited for.
    deadline: Instant,
    /// Whether the deadline is that of a head which has begun.
    in_head: bool,
}

impl Connection {
    pub(crate) fn new(now: Instant) -> Connection {
        Connection {
            ahead: Vec::new(),
            out: Vec::new(),
            sent: 0,
            file: None,
            answered: VecDeque::new(),
            requests: 0,
            closes: false,
            // Who connects and says nothing is as one who does not go on.
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

    /// Does what can be done now.
    pub(crate) fn step<P: Pipe>(
        &mut self,
        pipe: &P,
        context: &mut Context<'_>,
        now: Instant,
        common: &mut Common<'_>,
    ) -> Turn {
        for _ in 0..TURN {
            match self.send(pipe, context, now, common) {
                Ok(Poll::Ready(())) => {}
                Ok(Poll::Pending) => return Turn::Waits,
                Err(_) => return Turn::Broken,
            }
            if self.closes || common.ends {
                return Turn::Over;
            }
            if self.answer(common) {
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
                    self.answer(common);
                }
            }
        }
        Turn::GoesOn
    }

    /// Sends what there is; ready when all is sent.
    fn send<P: Pipe>(
        &mut self,
        pipe: &P,
        context: &mut Context<'_>,
        now: Instant,
        common: &Common<'_>,
    ) -> io::Result<Poll<()>> {
        if !self.is_answering() {
            return Ok(Poll::Ready(()));
        }
        loop {
            while self.sent < self.out.len() {
                match pipe.poll_write(context, &self.out[self.sent..]) {
                    Poll::Pending => return Ok(Poll::Pending),
                    Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(count) => {
                        self.sent += count?;
                        self.deadline = now + PATIENCE;
                    }
                }
            }
            self.out.clear();
            self.sent = 0;
            if !self.fill()? {
                break;
            }
        }
        // An idle connection keeps nothing.
        self.out = Vec::new();
        self.deadline = now + PATIENCE;
        while let Some(answered) = self.answered.pop_front() {
            (common.log)(&answered);
        }
        Ok(Poll::Ready(()))
    }

    /// The file's next bytes behind what is to be sent; `false` if there are
    /// none.
    fn fill(&mut self) -> io::Result<bool> {
        let Some((file, left)) = &mut self.file else {
            return Ok(false);
        };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(BLOCK_LEN);
        let before = self.out.len();
        self.out.reserve(most);
        let count = Read::take(&mut *file, most as u64).read_to_end(&mut self.out)?;
        if count < most {
            // It has become shorter: only the connection's end says so.
            self.out.truncate(before);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *left -= most as u64;
        if *left == 0 {
            self.file = None;
        }
        Ok(true)
    }

    /// Answers the requests that have come, as far as answers are short; whether
    /// there was one.
    fn answer(&mut self, common: &Common<'_>) -> bool {
        let mut used = 0;
        while !self.closes && self.file.is_none() && self.out.len() < BLOCK_LEN {
            let (request, answer) = match request::parse(&self.ahead[used..]) {
                Ok(Some((request, count))) => {
                    used += count;
                    let answer = server::answer(common.folder, &request);
                    (Some(request), answer)
                }
                Ok(None) if self.ahead.len() - used <= super::HEAD_LEN_MAX => break,
                Ok(None) => (None, server::Answer::of(431)),
                Err(NoRequest::Wrong(status)) => (None, server::Answer::of(status)),
            };
            self.requests += 1;
            let persists = request.as_ref().is_some_and(|one| one.persists);
            let stays = persists && self.requests < REQUESTS_MAX && !common.ends;
            let to_head = request.as_ref().is_some_and(|one| one.method == "HEAD");
            let len = server::head(&answer, stays, &mut self.out);
            let bytes = if to_head { 0 } else { len };
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
            match answer.body {
                Payload::Text(text) if !to_head => self.out.extend_from_slice(text.as_bytes()),
                Payload::File(served, range) if bytes > 0 => {
                    let opened = server::from(served.file, range.start);
                    let filled = opened.and_then(|file| {
                        self.file = Some((file, bytes));
                        self.fill()
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
        match used == self.ahead.len() {
            // An idle connection keeps nothing.
            true => self.ahead = Vec::new(),
            false => _ = self.ahead.drain(..used),
        }
        used > 0 || self.closes
    }
}

#[cfg(test)]
mod tests;
