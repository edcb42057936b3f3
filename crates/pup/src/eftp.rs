//! EFTP, the Easy File Transfer Protocol: one Pup at a time, each acknowledged.
//!
//! ```text
//!  sender                         receiver
//!    data n ───────────────────────► n is expected: taken
//!      ◄──────────────────────── ack n
//!    end n  ───────────────────────►
//!      ◄──────────────────────── ack n
//!    end n+1 ──────────────────────► the sender knows that all is there
//! ```

use crate::datagram::{PAYLOAD_LEN_MAX, Port, Pup, kind};
use std::time::Duration;

/// Time between retransmissions.
const RETRY: Duration = Duration::from_millis(250);
/// Retransmissions before the transfer fails.
const RETRIES_MAX: u32 = 20;
/// How long the receiver stays for the sender's second end.
const DALLY: Duration = Duration::from_secs(2);

/// Why a transfer failed.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum EftpError {
    /// The peer does not answer.
    #[error("the peer does not answer")]
    NoAnswer,
    /// The peer aborted the transfer.
    #[error("the peer aborted the transfer: {text} (code {code})")]
    Aborted {
        /// The peer's reason.
        code: u16,
        /// The peer's text.
        text: String,
    },
}

fn aborted(pup: &Pup) -> EftpError {
    let (code, text) = match pup.payload.split_first_chunk() {
        Some((code, text)) => (u16::from_be_bytes(*code), String::from_utf8_lossy(text)),
        None => (0, "".into()),
    };
    EftpError::Aborted {
        code,
        text: text.into_owned(),
    }
}

/// The sender of bytes.
#[derive(Debug)]
pub struct Sender {
    local: Port,
    remote: Port,
    bytes: Vec<u8>,
    /// Number of the Pup under way; after the data come two ends.
    number: u32,
    is_due: bool,
    deadline: Duration,
    retries: u32,
    result: Option<Result<(), EftpError>>,
}

impl Sender {
    /// Sends bytes to a port.
    pub fn new(local: Port, remote: Port, bytes: Vec<u8>) -> Sender {
        Sender {
            local,
            remote,
            bytes,
            number: 0,
            is_due: true,
            deadline: Duration::ZERO,
            retries: 0,
            result: None,
        }
    }

    /// The outcome, once there is one.
    pub fn result(&self) -> Option<&Result<(), EftpError>> {
        self.result.as_ref()
    }

    fn chunks(&self) -> u32 {
        self.bytes.len().div_ceil(PAYLOAD_LEN_MAX) as u32
    }

    /// Takes a Pup to the sender's port.
    pub fn handle(&mut self, pup: &Pup) {
        if self.result.is_some() || pup.head.src.host != self.remote.host {
            return;
        }
        match pup.head.pup_type {
            kind::EFTP_ACK if pup.head.identifier == self.number => {
                // The peer may answer from another socket than was asked.
                self.remote.socket = pup.head.src.socket;
                self.number += 1;
                self.retries = 0;
                self.is_due = true;
            }
            kind::EFTP_ABORT => self.result = Some(Err(aborted(pup))),
            _ => {}
        }
    }

    /// The next Pup to send; `None` if there is none now.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Pup> {
        if self.result.is_some() || !std::mem::take(&mut self.is_due) {
            return None;
        }
        self.deadline = now + RETRY;
        let chunks = self.chunks();
        let (pup_type, payload) = match self.bytes.chunks(PAYLOAD_LEN_MAX).nth(self.number as usize)
        {
            Some(chunk) => (kind::EFTP_DATA, chunk),
            None => (kind::EFTP_END, &[][..]),
        };
        let pup = Pup::new(pup_type, self.number, self.remote, self.local, payload);
        if self.number > chunks {
            // The second end is not acknowledged.
            self.result = Some(Ok(()));
        }
        Some(pup)
    }

    /// When [`handle_timeout`](Sender::handle_timeout) is due.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.result.is_none().then_some(self.deadline)
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.result.is_some() || self.deadline > now {
            return;
        }
        self.retries += 1;
        self.is_due = true;
        if self.retries > RETRIES_MAX {
            self.result = Some(Err(EftpError::NoAnswer));
        }
    }
}

/// The receiver of bytes.
#[derive(Debug)]
pub struct Receiver {
    bytes: Vec<u8>,
    len_max: usize,
    number: u32,
    peer: Option<Port>,
    /// Since when the first end has been there.
    ended: Option<Duration>,
    is_done: bool,
    failed: Option<EftpError>,
}

impl Receiver {
    /// A receiver of at most `len_max` bytes.
    pub fn new(len_max: usize) -> Receiver {
        Receiver {
            bytes: Vec::new(),
            len_max,
            number: 0,
            peer: None,
            ended: None,
            is_done: false,
            failed: None,
        }
    }

    /// Takes a Pup to the receiver's port; returns the answer.
    pub fn handle(&mut self, now: Duration, pup: &Pup) -> Option<Pup> {
        let head = &pup.head;
        let starts = head.pup_type == kind::EFTP_DATA || head.pup_type == kind::EFTP_END;
        if self.peer.is_none() && starts && head.identifier == 0 {
            self.peer = Some(head.src);
        }
        if self.peer != Some(head.src) || self.is_done || self.failed.is_some() {
            return None;
        }
        match head.pup_type {
            kind::EFTP_DATA if self.ended.is_none() && head.identifier == self.number => {
                if self.bytes.len() + pup.payload.len() > self.len_max {
                    let text = "the file is too long";
                    self.failed = Some(EftpError::Aborted {
                        code: 3,
                        text: text.to_owned(),
                    });
                    let payload = [&[0, 3][..], text.as_bytes()].concat();
                    return Some(pup.reply(kind::EFTP_ABORT, &payload));
                }
                self.bytes.extend(&pup.payload);
                self.number += 1;
                Some(pup.reply(kind::EFTP_ACK, &[]))
            }
            // A repetition, whose acknowledgment was lost.
            kind::EFTP_DATA if head.identifier.wrapping_add(1) == self.number => {
                Some(pup.reply(kind::EFTP_ACK, &[]))
            }
            kind::EFTP_END if head.identifier == self.number => {
                self.ended.get_or_insert(now);
                Some(pup.reply(kind::EFTP_ACK, &[]))
            }
            kind::EFTP_END if self.ended.is_some() && head.identifier == self.number + 1 => {
                self.is_done = true;
                None
            }
            kind::EFTP_ABORT => {
                self.failed = Some(aborted(pup));
                None
            }
            _ => None,
        }
    }

    /// The bytes, once all are there: after the second end, or a dally after the
    /// first.
    ///
    /// # Errors
    /// If the transfer failed.
    pub fn finish(&mut self, now: Duration) -> Option<Result<Vec<u8>, EftpError>> {
        if let Some(failure) = &self.failed {
            return Some(Err(failure.clone()));
        }
        let dallied = self.ended.is_some_and(|since| now >= since + DALLY);
        (self.is_done || dallied).then(|| Ok(std::mem::take(&mut self.bytes)))
    }
}
