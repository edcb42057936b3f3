//! The sending side of a byte stream.

use super::{RETRY, RETRY_MAX};
use crate::datagram::{PAYLOAD_LEN_MAX, kind};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes that wait to be sent or acknowledged at most.
const BUFFER_LEN: usize = 256 << 10;
/// Pups in flight at most, whatever the peer grants: each is looked at for each that is sent.
const FLIGHT_MAX: usize = 256;
/// Least time before data is repeated.
const REPEAT_MIN: Duration = Duration::from_millis(10);

/// A Pup that is not acknowledged.
#[derive(Debug)]
struct Sent {
    position: u32,
    bytes: Vec<u8>,
    mark: bool,
    /// Whether the Pup is to be sent again.
    again: bool,
}

impl Sent {
    fn end(&self) -> u32 {
        self.position.wrapping_add(self.bytes.len() as u32)
    }
}

#[derive(Debug)]
pub(super) struct Sender {
    /// Bytes that were not sent yet, from `next` on, and which of them are marks.
    unsent: VecDeque<u8>,
    marks: VecDeque<u32>,
    sent: VecDeque<Sent>,
    sent_len: usize,
    /// Position of the first byte that is not acknowledged, and of the next byte.
    unacknowledged: u32,
    next: u32,
    /// The peer's grant beyond `unacknowledged`.
    pup_len: usize,
    pups: usize,
    bytes: usize,
    /// Pups sent since one asked for an acknowledgment.
    since_asked: usize,
    /// Position at which the last question stands: an acknowledgment of less means
    /// a loss.
    asked_at: u32,
    deadline: Option<Duration>,
    /// Smoothed round trip, and the question that measures it.
    round_trip: Option<Duration>,
    timing: Option<(u32, Duration)>,
    /// The position that was last sent again, and when; and the position that
    /// must be acknowledged before all losses of that time are mended.
    repeated: Option<(u32, Duration)>,
    recover: Option<u32>,
    timeouts: u32,
    probe: bool,
}

impl Sender {
    pub(super) fn new(id: u32) -> Sender {
        Sender {
            unsent: VecDeque::new(),
            marks: VecDeque::new(),
            sent: VecDeque::new(),
            sent_len: 0,
            unacknowledged: id,
            next: id,
            pup_len: PAYLOAD_LEN_MAX,
            // Nothing is granted before the first acknowledgment.
            pups: 0,
            bytes: 0,
            since_asked: 0,
            asked_at: id,
            deadline: None,
            round_trip: None,
            timing: None,
            repeated: None,
            recover: None,
            timeouts: 0,
            probe: false,
        }
    }

    pub(super) fn position(&self) -> u32 {
        self.next
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.sent.is_empty()
    }

    fn room(&self) -> usize {
        BUFFER_LEN - self.unsent.len() - self.sent_len
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        self.unsent.extend(&bytes[..count]);
        count
    }

    pub(super) fn write_mark(&mut self, mark: u8) -> bool {
        if self.room() == 0 {
            return false;
        }
        let position = self.next.wrapping_add(self.unsent.len() as u32);
        self.marks.push_back(position);
        self.unsent.push_back(mark);
        true
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    fn pause(&self) -> Duration {
        let base = self
            .round_trip
            .map_or(RETRY, |time| (time * 3).max(REPEAT_MIN));
        (base * (1 << self.timeouts.min(9))).min(RETRY_MAX)
    }

    /// The next Pup: its type, position and bytes.
    pub(super) fn next(&mut self, now: Duration) -> Option<(u8, u32, Vec<u8>)> {
        if std::mem::take(&mut self.probe) {
            self.asked(now, self.next);
            return Some((kind::ADATA, self.next, Vec::new()));
        }
        if let Some(again) = self.sent.iter_mut().find(|sent| sent.again) {
            again.again = false;
            let pup_type = if again.mark { kind::AMARK } else { kind::ADATA };
            let pup = (pup_type, again.position, again.bytes.clone());
            let next = self.next;
            self.timing = None;
            self.asked(now, next);
            return Some(pup);
        }
        if self.unsent.is_empty() {
            return None;
        }
        if self.pups == 0 {
            // No grant: ask for one, once.
            if self.deadline.is_none() {
                self.asked(now, self.next);
                return Some((kind::ADATA, self.next, Vec::new()));
            }
            return None;
        }
        let flight = self.next.wrapping_sub(self.unacknowledged) as usize;
        let granted = self.bytes.saturating_sub(flight);
        if self.sent.len() >= self.pups || granted == 0 {
            return None;
        }
        let is_mark = self.marks.front() == Some(&self.next);
        let len = if is_mark {
            self.marks.pop_front();
            1
        } else {
            let to_mark = self
                .marks
                .front()
                .map(|mark| mark.wrapping_sub(self.next) as usize);
            let limit = self.pup_len.min(granted).min(self.unsent.len());
            to_mark.map_or(limit, |to_mark| limit.min(to_mark))
        };
        // Small pieces wait for the grant of a whole Pup, unless nothing is in flight.
        if len < self.pup_len && len < self.unsent.len() && !is_mark && granted == len && flight > 0
        {
            return None;
        }
        let bytes: Vec<u8> = self.unsent.drain(..len).collect();
        let position = self.next;
        self.next = position.wrapping_add(len as u32);
        self.sent_len += len;
        self.sent.push_back(Sent {
            position,
            bytes: bytes.clone(),
            mark: is_mark,
            again: false,
        });
        self.since_asked += 1;
        // Asks at the end of what there is, or may be sent, and on the way.
        let left = self.bytes.saturating_sub(flight + len);
        let asks = self.unsent.is_empty()
            || self.sent.len() >= self.pups
            || left < self.pup_len
            || self.since_asked >= (self.pups / 3).max(1);
        if asks {
            self.asked(now, self.next);
        } else if self.deadline.is_none() {
            self.deadline = Some(now + self.pause());
        }
        let pup_type = match (is_mark, asks) {
            (false, false) => kind::DATA,
            (false, true) => kind::ADATA,
            (true, false) => kind::MARK,
            (true, true) => kind::AMARK,
        };
        Some((pup_type, position, bytes))
    }

    /// A Pup asked for an acknowledgment up to this position.
    fn asked(&mut self, now: Duration, position: u32) {
        self.since_asked = 0;
        self.asked_at = position;
        self.timing.get_or_insert((position, now));
        self.deadline = Some(now + self.pause());
    }

    /// The peer has everything before `position`.
    pub(super) fn acknowledged(&mut self, now: Duration, position: u32, grant: &[u8]) {
        let ahead = position.wrapping_sub(self.unacknowledged);
        let flight = self.next.wrapping_sub(self.unacknowledged);
        if ahead > flight {
            // An old acknowledgment, or one of what was never sent.
            return;
        }
        let Some([pup_len, pups, bytes]) = grant_of(grant) else {
            return;
        };
        self.pup_len = usize::from(pup_len).clamp(1, PAYLOAD_LEN_MAX);
        (self.pups, self.bytes) = (usize::from(pups).min(FLIGHT_MAX), bytes.into());
        self.timeouts = 0;
        self.unacknowledged = position;
        self.recover = self
            .recover
            .filter(|end| (position.wrapping_sub(*end) as i32) < 0);
        while let Some(first) = self.sent.front() {
            // A Pup is acknowledged as a whole.
            if (position.wrapping_sub(first.end()) as i32) < 0 {
                break;
            }
            self.sent_len -= first.bytes.len();
            self.sent.pop_front();
        }
        if let Some((asked, at)) = self.timing
            && position.wrapping_sub(asked) as i32 >= 0
        {
            let time = now.saturating_sub(at);
            let smoothed = self.round_trip.map_or(time, |old| old * 7 / 8 + time / 8);
            self.round_trip = Some(smoothed);
            self.timing = None;
        }
        let idle = self.sent.is_empty() && (self.unsent.is_empty() || self.pups > 0);
        self.deadline = if idle { None } else { Some(now + self.pause()) };
        // What was asked for has not arrived: its first Pup is lost, or late.
        if position != self.asked_at
            && let Some(first) = self.sent.front_mut()
            && first.position == position
        {
            let patience = self.round_trip.unwrap_or(RETRY);
            let is_due = match self.repeated {
                Some((repeated, at)) => repeated != position || now >= at + patience,
                None => true,
            };
            // With several requests in flight, an early answer is no sign of loss:
            // only an answer that does not move does.
            if is_due && (ahead == 0 || self.recover.is_some()) {
                first.again = true;
                self.repeated = Some((position, now));
                self.recover.get_or_insert(self.next);
            }
        }
    }

    /// No acknowledgment came in time.
    pub(super) fn timed_out(&mut self, now: Duration, retries: u32) {
        self.timeouts = retries + 1;
        self.timing = None;
        self.deadline = Some(now + self.pause());
        match self.sent.front_mut() {
            Some(first) if self.pups > 0 => first.again = true,
            _ => self.probe = true,
        }
    }
}

fn grant_of(payload: &[u8]) -> Option<[u16; 3]> {
    let bytes: [u8; 6] = *payload.first_chunk()?;
    let word = |at| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    Some([word(0), word(2), word(4)])
}
