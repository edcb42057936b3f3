//! Checks of one server: whether it accepts a connection (SYN, SYN ACK), and, if asked for, with
//! which status it answers a request of HTTP/1.1 (RFC 9112 §4).
//!
//! A check is a small TCP client (RFC 9293 §3.10.7) in which the server's answers arrive in order
//! or not at all: it has one segment to send at a time, which is sent again twice, and it takes
//! no more of the answer than the status. It ends each connection with a reset, so that neither
//! side keeps its state.

use std::ops::RangeInclusive;

/// TCP flags.
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
const PSH: u8 = 8;
pub(super) const ACK: u8 = 0x10;

/// Longest path, and longest host, of a request, in bytes: the whole request fits into one
/// segment of the least MSS, 536 bytes (RFC 9293 §3.7.1).
pub const HTTP_TEXT_MAX: usize = 200;

/// Number of ranges of expected statuses, at most.
pub const HTTP_RANGES_MAX: usize = 16;

/// Bytes of an answer up to its status: `HTTP/1.1 200`.
const STATUS_BYTES: usize = 12;

/// How often a segment is sent within the time-out of a check.
const SENDS: u64 = 3;

/// The request of a check by HTTP, and the statuses that are good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpCheck {
    /// The path, with a query if need be: visible ASCII that begins with `/`.
    pub path: String,
    /// The field `Host`: visible ASCII.
    pub host: String,
    /// The statuses of a server that is up.
    pub statuses: Vec<RangeInclusive<u16>>,
}

impl HttpCheck {
    /// What is wrong: which part, its value, and what would do; `None` if the check can
    /// be made.
    pub(super) fn wrong(&self) -> Option<(&'static str, String, &'static str)> {
        let is_plain = |text: &str| {
            (1..=HTTP_TEXT_MAX).contains(&text.len())
                && text.bytes().all(|it| it.is_ascii_graphic())
        };
        let is_status = |range: &RangeInclusive<u16>| {
            range.start() <= range.end() && *range.start() >= 100 && *range.end() <= 599
        };
        if !is_plain(&self.path) || !self.path.starts_with('/') {
            return Some((
                "path",
                format!("{:?}", self.path),
                "write `/` and up to 199 characters without spaces, as in \"/health\"",
            ));
        }
        if !is_plain(&self.host) {
            return Some((
                "host",
                format!("{:?}", self.host),
                "write up to 200 characters without spaces, as in \"www.example.com\"",
            ));
        }
        let wrong = self.statuses.iter().find(|range| !is_status(range));
        let is_count = (1..=HTTP_RANGES_MAX).contains(&self.statuses.len());
        if wrong.is_none() && is_count {
            return None;
        }
        let value = match wrong {
            Some(range) => format!("{}-{}", range.start(), range.end()),
            None => format!("of {} ranges", self.statuses.len()),
        };
        let remedy = "write up to 16 statuses or ranges of 100 to 599, as in \"200-399\"";
        Some(("status", value, remedy))
    }

    /// The bytes of the request.
    pub(super) fn request(&self) -> Vec<u8> {
        let HttpCheck { path, host, .. } = self;
        format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir\r\nConnection: close\r\n\r\n"
        )
        .into_bytes()
    }

    /// Whether the server is up by the beginning of its answer; `None` if that is too short.
    fn judge(&self, line: &[u8]) -> Option<bool> {
        let expected = b"HTTP/1.";
        let known = line.len().min(expected.len());
        if line[..known] != expected[..known] {
            return Some(false);
        }
        let line: &[u8; STATUS_BYTES] = line.try_into().ok()?;
        let digit = |at: usize| {
            line[at]
                .is_ascii_digit()
                .then(|| u16::from(line[at] - b'0'))
        };
        let status = || {
            let is_form = line[7].is_ascii_digit() && line[8] == b' ';
            is_form.then_some(digit(9)? * 100 + digit(10)? * 10 + digit(11)?)
        };
        let is_good = |status: u16| self.statuses.iter().any(|range| range.contains(&status));
        Some(status().is_some_and(is_good))
    }
}

/// A segment of a check to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Out {
    pub(super) flags: u8,
    pub(super) sequence: u32,
    pub(super) ack: u32,
    /// The request is its payload.
    pub(super) has_request: bool,
}

/// A segment of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived<'a> {
    pub(super) flags: u8,
    pub(super) sequence: u32,
    pub(super) ack: u32,
    pub(super) payload: &'a [u8],
}

/// What a check comes to: a segment to send, and its result.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Step {
    pub(super) out: Option<Out>,
    /// Whether the server is up; `None` while that is open.
    pub(super) result: Option<bool>,
}

/// What is checked, of all servers.
#[derive(Debug)]
pub(super) struct Request {
    http: Option<(HttpCheck, u32)>,
    /// Longest time of a check, in ns.
    timeout: u64,
}

impl Request {
    pub(super) fn new(http: Option<&HttpCheck>, timeout: u64) -> Request {
        Request {
            http: http.map(|http| (http.clone(), http.request().len() as u32)),
            timeout,
        }
    }

    fn bytes(&self) -> u32 {
        self.http.as_ref().map_or(0, |(_, bytes)| *bytes)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    Idle,
    /// SYN was sent.
    Connecting,
    /// The request was sent.
    Asked,
}

/// The check of a server.
#[derive(Debug, Default)]
pub(super) struct Probe {
    /// The time of the next check.
    pub(super) next: u64,
    state: State,
    /// The sequence number of the SYN.
    iss: u32,
    /// The next sequence number of the server.
    expected: u32,
    /// The beginning of the answer.
    line: [u8; STATUS_BYTES],
    line_len: usize,
    deadline: u64,
    resend: u64,
}

impl Probe {
    /// The time for [`poll`](Self::poll).
    pub(super) fn due(&self) -> u64 {
        match self.state {
            State::Idle => self.next,
            _ => self.deadline.min(self.resend),
        }
    }

    /// Begins a check.
    pub(super) fn begin(&mut self, now: u64, request: &Request, iss: u32) -> Step {
        (self.state, self.iss) = (State::Connecting, iss);
        self.deadline = now.saturating_add(request.timeout);
        self.line_len = 0;
        self.send(now, request)
    }

    /// Does what is due of a check that was begun.
    pub(super) fn poll(&mut self, now: u64, request: &Request) -> Step {
        if self.state == State::Idle {
            return Step::default();
        }
        if self.deadline <= now {
            let was = std::mem::take(&mut self.state);
            let reset = self.reset(request);
            return Step {
                out: (was == State::Asked).then_some(reset),
                result: Some(false),
            };
        }
        if self.resend <= now {
            self.send(now, request)
        } else {
            Step::default()
        }
    }

    /// Sends the segment that has no answer yet.
    fn send(&mut self, now: u64, request: &Request) -> Step {
        let pause = (request.timeout / SENDS).max(1);
        self.resend = now.saturating_add(pause);
        let out = match self.state {
            State::Connecting => Out {
                flags: SYN,
                sequence: self.iss,
                ack: 0,
                has_request: false,
            },
            _ => Out {
                flags: PSH | ACK,
                sequence: self.iss.wrapping_add(1),
                ack: self.expected,
                has_request: true,
            },
        };
        Step {
            out: Some(out),
            result: None,
        }
    }

    /// The segment that ends the connection.
    fn reset(&self, request: &Request) -> Out {
        Out {
            flags: RST | ACK,
            sequence: self.iss.wrapping_add(1).wrapping_add(request.bytes()),
            ack: self.expected,
            has_request: false,
        }
    }

    /// Takes a segment of the server.
    pub(super) fn arrived(&mut self, now: u64, segment: &Arrived<'_>, request: &Request) -> Step {
        match self.state {
            State::Idle => stray(segment),
            State::Connecting => self.connecting(now, segment, request),
            State::Asked => self.asked(segment, request),
        }
    }

    fn connecting(&mut self, now: u64, segment: &Arrived<'_>, request: &Request) -> Step {
        let next = self.iss.wrapping_add(1);
        if segment.flags & ACK == 0 || segment.ack != next {
            // Of an earlier connection; the server forgets it by the reset.
            return stray(segment);
        }
        if segment.flags & RST != 0 {
            self.state = State::Idle;
            return Step {
                out: None,
                result: Some(false),
            };
        }
        if segment.flags & SYN == 0 {
            return Step::default();
        }
        self.expected = segment.sequence.wrapping_add(1);
        if request.http.is_some() {
            self.state = State::Asked;
            return self.send(now, request);
        }
        self.state = State::Idle;
        Step {
            out: Some(self.reset(request)),
            result: Some(true),
        }
    }

    fn asked(&mut self, segment: &Arrived<'_>, request: &Request) -> Step {
        let Some((http, _)) = &request.http else {
            return Step::default();
        };
        if segment.flags & SYN != 0 || segment.sequence != self.expected {
            return Step::default();
        }
        if segment.flags & RST != 0 {
            self.state = State::Idle;
            return Step {
                out: None,
                result: Some(false),
            };
        }
        let taken = segment.payload.len().min(STATUS_BYTES - self.line_len);
        self.line[self.line_len..][..taken].copy_from_slice(&segment.payload[..taken]);
        self.line_len += taken;
        self.expected = self.expected.wrapping_add(segment.payload.len() as u32);
        let has_ended = segment.flags & FIN != 0;
        let result = http.judge(&self.line[..self.line_len]);
        let result = result.or(has_ended.then_some(false));
        let reset = self.reset(request);
        if result.is_some() {
            self.state = State::Idle;
            return Step {
                out: Some(reset),
                result,
            };
        }
        let acknowledgment = Out {
            flags: ACK,
            ..reset
        };
        Step {
            out: (taken > 0).then_some(acknowledgment),
            result: None,
        }
    }
}

/// The answer to a segment of no connection (RFC 9293 §3.10.7.1).
fn stray(segment: &Arrived<'_>) -> Step {
    let is_answered = segment.flags & (RST | ACK) == ACK;
    Step {
        out: is_answered.then_some(Out {
            flags: RST,
            sequence: segment.ack,
            ack: 0,
            has_request: false,
        }),
        result: None,
    }
}
