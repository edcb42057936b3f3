//! Byte streams: the Rendezvous and Termination Protocol (RTP) and the Byte
//! Stream Protocol (BSP) of PupSpec 1978, without I/O.
//!
//! ```text
//!             open ──► Opening ──RFC──► Open ──close, all acknowledged──► Ending
//!   RFC arrives: accept ─────────────► Open                                │ EndReply
//!                                       │ End arrives                      ▼
//!                                       └───────► Dallying ──EndReply──► Closed
//! ```
//!
//! A position is the number of bytes before it, plus the connection's number;
//! data, marks and acknowledgments name positions. A mark takes one position. An
//! acknowledgment grants the sender a number of Pups and of bytes beyond its
//! position; the last Pup that a sender may send asks for the next one.

mod receive;
mod send;

use crate::datagram::{PAYLOAD_LEN_MAX, Port, Pup, kind};
use receive::Receiver;
use send::Sender;
use std::collections::VecDeque;
use std::time::Duration;
use weir_wire::pup::Repr;

pub use receive::Read;

/// Time between retransmissions at first; doubled up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_millis(250);
/// Longest time between retransmissions.
const RETRY_MAX: Duration = Duration::from_secs(4);
/// Retransmissions without an answer before the connection is given up, if the peer has also
/// been silent for [`SILENCE_MAX`].
const RETRIES_MAX: u32 = 10;
/// How long a peer may be silent. On a fast link, ten retransmissions take only four seconds,
/// and so does a peer's disk now and then.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long the side that replied to an end stays for repeated ends (PupSpec: "say,
/// 10 seconds").
pub const DALLY: Duration = Duration::from_secs(10);
/// Interval of empty Pups on an open connection that ask for a sign of life.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Interrupts that wait to be sent, and to be read.
const INTERRUPTS_MAX: usize = 8;
/// Longest text of an abort or an interrupt, in bytes.
const TEXT_LEN_MAX: usize = PAYLOAD_LEN_MAX - 2;

/// Why a connection ended.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Both sides have ended it.
    #[error("the connection has ended")]
    Closed,
    /// The peer does not answer.
    #[error("the peer does not answer")]
    NoAnswer,
    /// The peer aborted it.
    #[error("the peer aborted the connection: {text} (code {code})")]
    Aborted {
        /// The peer's reason.
        code: u16,
        /// The peer's text.
        text: String,
    },
    /// An error Pup said that the peer cannot be reached.
    #[error("{text} (error {code:o})")]
    Unreachable {
        /// The code of the error Pup.
        code: u16,
        /// Its text.
        text: String,
    },
    /// This side aborted it.
    #[error("the connection was aborted")]
    AbortedHere,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// The request for connection was sent.
    Opening,
    Open,
    /// Everything is acknowledged, and the end was sent.
    Ending,
    /// The peer has ended the connection; repeated ends are answered.
    Dallying {
        until: Duration,
    },
    Ended(Ended),
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    local: Port,
    /// The port asked at first, then the peer's connection port.
    remote: Port,
    /// The connection's number, where both streams start.
    id: u32,
    state: State,
    /// Whether this side accepted the connection, and from where: then a repeated
    /// request is answered from the port that was asked.
    accepted: Option<(Port, Port)>,
    closing: bool,
    sender: Sender,
    receiver: Receiver,
    retries: u32,
    /// The last sign of life of the peer.
    received_at: Duration,
    /// Whether the peer has sent anything since its request.
    is_proven: bool,
    /// When the request, the end or a sign of life is due.
    deadline: Duration,
    interrupts_out: VecDeque<(u16, String)>,
    interrupt_out: u32,
    interrupt_deadline: Option<Duration>,
    interrupts_in: VecDeque<(u16, String)>,
    interrupt_in: u32,
    out: VecDeque<Pup>,
}

impl Connection {
    /// Opens a connection from a port to a well-known one; `id` should be
    /// random.
    pub fn open(now: Duration, local: Port, remote: Port, id: u32) -> Connection {
        let mut connection = Connection::new(now, local, remote, id, State::Opening);
        connection.deadline = now + RETRY;
        connection.request();
        connection
    }

    /// Accepts a request for connection that came to `asked`; `local` is the new
    /// connection's port. `None` if the Pup is not such a request.
    pub fn accept(now: Duration, local: Port, request: &Pup) -> Option<Connection> {
        let peer = rfc_port(request)?;
        let id = request.head.identifier;
        let mut connection = Connection::new(now, local, peer, id, State::Open);
        connection.accepted = Some((request.head.dst, request.head.src));
        connection.answer_request();
        Some(connection)
    }

    fn new(now: Duration, local: Port, remote: Port, id: u32, state: State) -> Connection {
        Connection {
            local,
            remote,
            id,
            state,
            accepted: None,
            closing: false,
            sender: Sender::new(id),
            receiver: Receiver::new(id),
            retries: 0,
            received_at: now,
            is_proven: false,
            deadline: now + KEEP_ALIVE,
            interrupts_out: VecDeque::new(),
            interrupt_out: id,
            interrupt_deadline: None,
            interrupts_in: VecDeque::new(),
            interrupt_in: id,
            out: VecDeque::new(),
        }
    }

    /// The connection's own port.
    pub fn local(&self) -> Port {
        self.local
    }

    /// The peer's port.
    pub fn remote(&self) -> Port {
        self.remote
    }

    /// Whether a Pup is a repetition of the request that this connection accepted.
    pub fn is_request(&self, pup: &Pup) -> bool {
        let asked = self.accepted.map(|(asked, from)| (asked.socket, from));
        asked == Some((pup.head.dst.socket, pup.head.src)) && self.id == pup.head.identifier
    }

    /// Whether the peer has sent anything on this connection since its request; the sender of a
    /// forged request does not.
    pub fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// When the peer last gave a sign of life.
    pub fn received_at(&self) -> Duration {
        self.received_at
    }

    /// Whether both sides have ended it, and it stays for repeated ends only.
    pub fn is_dallying(&self) -> bool {
        matches!(self.state, State::Dallying { .. })
    }

    /// Whether the connection is open in both directions.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Why the connection is over; `None` while it is not. During the dally it
    /// is over for the application.
    pub fn ended(&self) -> Option<Ended> {
        match &self.state {
            State::Dallying { .. } => Some(Ended::Closed),
            State::Ended(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Whether nothing remains to be done: the connection may be dropped.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Ended(_)) && self.out.is_empty()
    }

    /// Queues bytes to send; returns how many were taken, as the buffer has room.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if self.closing || self.ended().is_some() {
            return 0;
        }
        self.sender.write(bytes)
    }

    /// Queues a mark; `false` if the buffer has no room.
    pub fn write_mark(&mut self, mark: u8) -> bool {
        !self.closing && self.ended().is_none() && self.sender.write_mark(mark)
    }

    /// Whether all that was written is acknowledged.
    pub fn is_flushed(&self) -> bool {
        self.sender.is_empty()
    }

    /// Reads what has arrived.
    pub fn read(&mut self, buffer: &mut [u8]) -> Read {
        match self.receiver.read(buffer) {
            Read::Nothing if self.ended().is_some() => Read::End,
            read => read,
        }
    }

    /// Sends an interrupt past the byte stream; `false` if too many wait.
    pub fn interrupt(&mut self, code: u16, text: &str) -> bool {
        let room = self.interrupts_out.len() < INTERRUPTS_MAX;
        if room {
            let text = text.chars().take(TEXT_LEN_MAX / 4).collect();
            self.interrupts_out.push_back((code, text));
        }
        room
    }

    /// The next interrupt of the peer.
    pub fn poll_interrupt(&mut self) -> Option<(u16, String)> {
        self.interrupts_in.pop_front()
    }

    /// Ends the connection once everything is acknowledged.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether [`close`](Connection::close) was called.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Ends the connection at once.
    pub fn abort(&mut self, code: u16, text: &str) {
        if self.ended().is_some() {
            return;
        }
        let mut payload = code.to_be_bytes().to_vec();
        payload.extend(text.bytes().take(TEXT_LEN_MAX));
        self.emit(kind::ABORT, self.id, &payload);
        self.state = State::Ended(Ended::AbortedHere);
    }

    fn emit(&mut self, pup_type: u8, identifier: u32, payload: &[u8]) {
        let pup = Pup::new(pup_type, identifier, self.remote, self.local, payload);
        self.out.push_back(pup);
    }

    fn request(&mut self) {
        let payload = port_bytes(self.local);
        self.emit(kind::RFC, self.id, &payload);
    }

    /// Answers a request, from the port that was asked.
    fn answer_request(&mut self) {
        if let Some((asked, from)) = self.accepted {
            let src = Port {
                socket: asked.socket,
                ..self.local
            };
            let payload = port_bytes(self.local);
            let answer = Pup::new(kind::RFC, self.id, from, src, &payload);
            self.out.push_back(answer);
        }
    }

    /// Takes a Pup to the connection's port, or the repetition of its request.
    pub fn handle(&mut self, now: Duration, pup: &Pup) {
        let head = &pup.head;
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        if head.pup_type == kind::RFC {
            self.handle_request(now, pup);
            return;
        }
        if head.pup_type == kind::ERROR {
            if let (State::Opening, Some((code, text))) = (&self.state, pup.error_reason())
                && self.is_quoted(pup)
            {
                self.state = State::Ended(Ended::Unreachable { code, text });
            }
            return;
        }
        let from_peer = head.src.host == self.remote.host && head.src.socket == self.remote.socket;
        if !from_peer {
            return;
        }
        self.is_proven = true;
        if self.state == State::Opening {
            // Only an abort has a meaning before the connection is there.
            if head.pup_type == kind::ABORT && head.identifier == self.id {
                self.aborted(pup);
            }
            return;
        }
        match head.pup_type {
            kind::ABORT if head.identifier == self.id => self.aborted(pup),
            kind::END if head.identifier == self.id => {
                self.emit(kind::END_REPLY, self.id, &[]);
                // Repeated ends do not make the dally longer.
                if !self.is_dallying() {
                    self.state = State::Dallying { until: now + DALLY };
                }
            }
            kind::END_REPLY if head.identifier == self.id => match self.state {
                State::Ending => {
                    self.emit(kind::END_REPLY, self.id, &[]);
                    self.state = State::Ended(Ended::Closed);
                }
                State::Dallying { .. } => self.state = State::Ended(Ended::Closed),
                _ => {}
            },
            _ if !matches!(self.state, State::Open | State::Ending) => {}
            kind::DATA | kind::ADATA | kind::MARK | kind::AMARK => {
                self.heard(now);
                let is_mark = matches!(head.pup_type, kind::MARK | kind::AMARK);
                self.receiver.take(head.identifier, &pup.payload, is_mark);
                if matches!(head.pup_type, kind::ADATA | kind::AMARK) {
                    self.acknowledge();
                }
            }
            kind::ACK => {
                self.heard(now);
                self.sender.acknowledged(now, head.identifier, &pup.payload);
            }
            kind::INTERRUPT => self.take_interrupt(pup),
            kind::INTERRUPT_REPLY
                if head.identifier == self.interrupt_out && self.interrupt_deadline.is_some() =>
            {
                self.interrupt_deadline = None;
                self.interrupts_out.pop_front();
                self.interrupt_out = self.interrupt_out.wrapping_add(1);
                self.heard(now);
            }
            _ => {}
        }
    }

    /// Whether an error quotes this connection's request.
    fn is_quoted(&self, error: &Pup) -> bool {
        let quoted = error.payload.get(..Repr::LEN);
        let quoted = quoted.and_then(|head| Some((*head.get(4..8)?.first_chunk()?, head[3])));
        quoted == Some((self.id.to_be_bytes(), kind::RFC))
    }

    fn handle_request(&mut self, now: Duration, pup: &Pup) {
        if self.is_request(pup) {
            self.answer_request();
            return;
        }
        let answers = self.state == State::Opening
            && pup.head.identifier == self.id
            && pup.head.src.socket == self.remote.socket;
        if let (true, Some(peer)) = (answers, rfc_port(pup)) {
            self.remote = peer;
            self.state = State::Open;
            self.heard(now);
        }
    }

    /// A sign of life of the peer.
    fn heard(&mut self, now: Duration) {
        // A peer that acknowledges, but does not reply to the end, is not waited for longer.
        if self.state == State::Open {
            (self.retries, self.received_at) = (0, now);
            self.deadline = now + KEEP_ALIVE;
        }
    }

    fn aborted(&mut self, pup: &Pup) {
        let (code, text) = match pup.payload.split_first_chunk() {
            Some((code, text)) => (u16::from_be_bytes(*code), String::from_utf8_lossy(text)),
            None => (0, "".into()),
        };
        let text = text.into_owned();
        self.state = State::Ended(Ended::Aborted { code, text });
    }

    fn acknowledge(&mut self) {
        let (position, payload) = self.receiver.acknowledgment();
        self.emit(kind::ACK, position, &payload);
    }

    fn take_interrupt(&mut self, pup: &Pup) {
        let ahead = pup.head.identifier.wrapping_sub(self.interrupt_in) as i32;
        if ahead > 0 {
            return;
        }
        if ahead == 0 {
            let Some((code, text)) = pup.payload.split_first_chunk() else {
                return;
            };
            if self.interrupts_in.len() >= INTERRUPTS_MAX {
                return;
            }
            let text = String::from_utf8_lossy(text).into_owned();
            self.interrupts_in
                .push_back((u16::from_be_bytes(*code), text));
            self.interrupt_in = self.interrupt_in.wrapping_add(1);
        }
        self.emit(kind::INTERRUPT_REPLY, pup.head.identifier, &[]);
    }

    /// The next Pup to send; `None` if there is none now.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Pup> {
        if let Some(pup) = self.out.pop_front() {
            return Some(pup);
        }
        if self.state != State::Open {
            return None;
        }
        // The application has read: inform a sender that had stopped.
        if self.receiver.window_opened() {
            self.acknowledge();
            return self.out.pop_front();
        }
        if self.interrupt_deadline.is_none()
            && let Some((code, text)) = self.interrupts_out.front()
        {
            let payload = [&code.to_be_bytes(), text.as_bytes()].concat();
            self.interrupt_deadline = Some(now + RETRY);
            let number = self.interrupt_out;
            return Some(Pup::new(
                kind::INTERRUPT,
                number,
                self.remote,
                self.local,
                &payload,
            ));
        }
        if let Some((pup_type, position, payload)) = self.sender.next(now) {
            return Some(Pup::new(
                pup_type,
                position,
                self.remote,
                self.local,
                &payload,
            ));
        }
        if self.closing && self.sender.is_empty() && self.interrupts_out.is_empty() {
            self.state = State::Ending;
            self.retries = 0;
            self.deadline = now + RETRY;
            return Some(Pup::new(kind::END, self.id, self.remote, self.local, &[]));
        }
        None
    }

    /// When [`handle_timeout`](Connection::handle_timeout) is due.
    pub fn next_timeout(&self) -> Option<Duration> {
        match &self.state {
            State::Ended(_) => None,
            State::Dallying { until } => Some(*until),
            State::Opening | State::Ending => Some(self.deadline),
            State::Open => [self.sender.deadline(), self.interrupt_deadline]
                .into_iter()
                .flatten()
                .chain([self.deadline])
                .min(),
        }
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        match &self.state {
            State::Ended(_) => return,
            State::Dallying { until } => {
                if *until <= now {
                    self.state = State::Ended(Ended::Closed);
                }
                return;
            }
            State::Opening | State::Ending | State::Open => {}
        }
        if self.state == State::Open {
            if self.interrupt_deadline.is_some_and(|due| due <= now) {
                self.interrupt_deadline = None;
                self.retries += 1;
            }
            if self.sender.deadline().is_some_and(|due| due <= now) {
                self.sender.timed_out(now, self.retries);
                self.retries += 1;
            }
        }
        if self.deadline <= now {
            self.retries += 1;
            let pause = (RETRY * (1 << self.retries.min(6))).min(RETRY_MAX);
            self.deadline = now + pause;
            match self.state {
                State::Opening => self.request(),
                State::Ending => self.emit(kind::END, self.id, &[]),
                _ => {
                    // Nothing but a question for an acknowledgment.
                    let position = self.sender.position();
                    self.emit(kind::ADATA, position, &[]);
                }
            }
        }
        let is_silent = now.saturating_sub(self.received_at) >= SILENCE_MAX;
        if self.retries > RETRIES_MAX && is_silent {
            let reason = match self.state {
                // The peer may not dally.
                State::Ending => Ended::Closed,
                _ => Ended::NoAnswer,
            };
            self.out.clear();
            self.state = State::Ended(reason);
        }
    }
}

fn port_bytes(port: Port) -> [u8; 6] {
    let [a, b, c, d] = port.socket.to_be_bytes();
    [port.net, port.host, a, b, c, d]
}

/// The connection port in a request, a port of the sender's own; `None` if it names another host,
/// which has asked for nothing. Its net and host may be 0, if the sender does not know them.
pub(crate) fn rfc_port(pup: &Pup) -> Option<Port> {
    if pup.head.pup_type != kind::RFC {
        return None;
    }
    let [net, host, socket @ ..] = *pup.payload.first_chunk::<6>()?;
    let src = pup.head.src;
    let is_own = [0, src.host].contains(&host) && [0, src.net].contains(&net);
    (is_own && src.host != 0).then(|| Port {
        net: if net == 0 { src.net } else { net },
        host: src.host,
        socket: u32::from_be_bytes(socket),
    })
}
