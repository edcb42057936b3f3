//! The receiving side of a byte stream.

use crate::datagram::PAYLOAD_LEN_MAX;
use std::collections::{BTreeMap, VecDeque};

/// Bytes granted to the peer at most; an acknowledgment counts them in 16 bits.
const WINDOW_LEN: usize = 60_000;
/// Pups granted to the peer at most.
const WINDOW_PUPS: usize = 112;
/// Pups that are kept before a gap.
const EARLY_PUPS_MAX: usize = 2 * WINDOW_PUPS;

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// Data of this length.
    Data(usize),
    /// A mark.
    Mark(u8),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    End,
}

#[derive(Debug)]
pub(super) struct Receiver {
    /// Bytes for the application, and how many there are before each mark.
    ready: VecDeque<u8>,
    marks: VecDeque<u64>,
    /// Bytes that the application has read.
    read: u64,
    /// Bytes that have arrived without a gap.
    arrived: u64,
    /// The first position.
    id: u32,
    /// Pups behind a gap, by their number of bytes before.
    early: BTreeMap<u64, (Vec<u8>, bool)>,
    early_len: usize,
    /// The grant that was sent last: the byte up to which the peer may send.
    granted_until: u64,
    /// Whether the peer had no more room for a whole Pup by the last grant.
    was_shut: bool,
}

impl Receiver {
    pub(super) fn new(id: u32) -> Receiver {
        Receiver {
            ready: VecDeque::new(),
            marks: VecDeque::new(),
            read: 0,
            arrived: 0,
            id,
            early: BTreeMap::new(),
            early_len: 0,
            granted_until: 0,
            was_shut: false,
        }
    }

    fn room(&self) -> usize {
        WINDOW_LEN.saturating_sub(self.ready.len())
    }

    pub(super) fn take(&mut self, position: u32, bytes: &[u8], is_mark: bool) {
        if bytes.is_empty() || is_mark && bytes.len() != 1 {
            return;
        }
        let next = self.id.wrapping_add(self.arrived as u32);
        let ahead = position.wrapping_sub(next) as i32;
        if ahead < 0 {
            // A repetition, whole or, if the sender has cut anew, in part.
            let known = ahead.unsigned_abs() as usize;
            if !is_mark && known < bytes.len() {
                self.append(&bytes[known..], false);
                self.join();
            }
            return;
        }
        let ahead = ahead as usize;
        if ahead + bytes.len() > self.room() {
            return;
        }
        if ahead == 0 {
            self.append(bytes, is_mark);
            self.join();
        } else if self.early.len() < EARLY_PUPS_MAX && self.early_len + bytes.len() <= WINDOW_LEN {
            let at = self.arrived + ahead as u64;
            if !self.early.contains_key(&at) {
                self.early_len += bytes.len();
                self.early.insert(at, (bytes.to_vec(), is_mark));
            }
        }
    }

    fn append(&mut self, bytes: &[u8], is_mark: bool) {
        if is_mark {
            self.marks.push_back(self.arrived);
        }
        let count = bytes.len().min(self.room());
        self.ready.extend(&bytes[..count]);
        self.arrived += count as u64;
    }

    /// Appends kept Pups that a gap no longer precedes.
    fn join(&mut self) {
        while let Some(entry) = self.early.first_entry() {
            if *entry.key() > self.arrived {
                return;
            }
            let (at, (bytes, is_mark)) = entry.remove_entry();
            self.early_len -= bytes.len();
            let known = (self.arrived - at) as usize;
            if known < bytes.len() {
                self.append(&bytes[known..], is_mark);
            }
        }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Read {
        let Some(&first) = self.ready.front() else {
            return Read::Nothing;
        };
        let to_mark = self.marks.front().map(|mark| (mark - self.read) as usize);
        if to_mark == Some(0) {
            self.marks.pop_front();
            self.ready.pop_front();
            self.read += 1;
            return Read::Mark(first);
        }
        let limit = to_mark.unwrap_or(usize::MAX);
        let count = buffer.len().min(self.ready.len()).min(limit);
        for (to, from) in buffer.iter_mut().zip(self.ready.drain(..count)) {
            *to = from;
        }
        self.read += count as u64;
        Read::Data(count)
    }

    /// Position and payload of an acknowledgment: bytes in a Pup, Pups, bytes.
    pub(super) fn acknowledgment(&mut self) -> (u32, [u8; 6]) {
        let room = self.room();
        let pups = (room / PAYLOAD_LEN_MAX).min(WINDOW_PUPS);
        self.granted_until = self.arrived + room as u64;
        self.was_shut = pups == 0;
        let [a, b] = (PAYLOAD_LEN_MAX as u16).to_be_bytes();
        let [c, d] = (pups as u16).to_be_bytes();
        let [e, f] = (room as u16).to_be_bytes();
        let position = self.id.wrapping_add(self.arrived as u32);
        (position, [a, b, c, d, e, f])
    }

    /// Whether the last grant was empty, and the peer may send now.
    pub(super) fn window_opened(&mut self) -> bool {
        self.was_shut && self.room() >= WINDOW_LEN / 2
    }
}
