//! Datagrams of IPv4 in fragments and without checksum. UDP of IPv6 must have one (RFC 8200 §8.1), which
//! covers the whole datagram: so it is put together first (RFC 6146 §3.4).

use super::header::{Fragment, Header};
use crate::fragments::{FRAGMENT_MIN, FragmentKey};
use ahash::RandomState;
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Datagrams at a time, at most: each has up to 64 KiB.
const DATAGRAMS_MAX: usize = 64;

/// Those of one source, at most.
const PER_SOURCE_MAX: usize = 8;

/// Fragments of a datagram, at most: the longest one in packets of 576 bytes has 119.
const FRAGMENTS_MAX: usize = 128;

/// The first fragment's header, and the receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) header: Header<Ipv4Addr>,
    pub(super) to: (Ipv6Addr, u16),
}

#[derive(Debug)]
struct Partial {
    first: First,
    /// Bytes by their offset.
    pieces: BTreeMap<usize, Vec<u8>>,
    bytes: usize,
    /// The length of the whole, once the last fragment has come.
    len: Option<usize>,
}

impl Partial {
    /// Adds a fragment; returns whether it fits the others.
    fn add(&mut self, part: Fragment, bytes: &[u8]) -> bool {
        let (begin, end) = (part.offset, part.offset + bytes.len());
        if self.pieces.get(&begin).is_some_and(|same| same == bytes) {
            return true;
        }
        let before = self.pieces.range(..=begin).next_back();
        let is_behind = before.is_none_or(|(at, piece)| at + piece.len() <= begin);
        let next = self.pieces.range(begin..).next();
        let is_before = next.is_none_or(|(at, _)| end <= *at);
        let is_within = match self.len {
            Some(len) => part.more && end <= len,
            None => part.more || next.is_none(),
        };
        // All but the last one are of whole units (RFC 791 §3.2).
        let is_whole = !bytes.is_empty() && (!part.more || bytes.len().is_multiple_of(8));
        if !(is_behind && is_before && is_within && is_whole) || self.pieces.len() == FRAGMENTS_MAX
        {
            return false;
        }
        if !part.more {
            self.len = Some(end);
        }
        self.bytes += bytes.len();
        self.pieces.insert(begin, bytes.to_vec());
        true
    }
}

/// The datagrams whose fragments come.
#[derive(Debug)]
pub(super) struct Datagrams {
    partial: HashMap<FragmentKey, Partial, RandomState>,
    /// In order of time.
    order: VecDeque<(u64, FragmentKey)>,
    /// Datagrams that stayed incomplete.
    pub(super) expired: u64,
}

impl Datagrams {
    pub(super) fn new(seed: u64) -> Datagrams {
        Datagrams {
            partial: HashMap::with_hasher(RandomState::with_seeds(seed, 11, !seed, 2)),
            order: VecDeque::new(),
            expired: 0,
        }
    }

    /// Whether fragments of this datagram are awaited.
    pub(super) fn has(&self, key: &FragmentKey) -> bool {
        self.partial.contains_key(key)
    }

    /// Awaits the fragments of a datagram from now on; returns whether there is room for it.
    pub(super) fn begin(&mut self, now: u64, key: FragmentKey, first: First) -> bool {
        self.poll(now);
        if self.has(&key) {
            return true;
        }
        let of_source = self.partial.keys().filter(|other| other.src == key.src);
        if self.partial.len() >= DATAGRAMS_MAX || of_source.count() >= PER_SOURCE_MAX {
            return false;
        }
        let until = now.saturating_add(FRAGMENT_MIN);
        let partial = Partial {
            first,
            pieces: BTreeMap::new(),
            bytes: 0,
            len: None,
        };
        self.partial.insert(key, partial);
        self.order.push_back((until, key));
        true
    }

    /// Adds a fragment of a datagram that [`has`](Self::has) knows. Returns the whole payload with the
    /// last one that was missing.
    ///
    /// # Errors
    /// If it contradicts others: the datagram is forgotten (RFC 5722).
    pub(super) fn add(
        &mut self,
        key: &FragmentKey,
        part: Fragment,
        bytes: &[u8],
    ) -> Result<Option<(First, Vec<u8>)>, &'static str> {
        let Some(partial) = self.partial.get_mut(key) else {
            return Ok(None);
        };
        if !partial.add(part, bytes) {
            self.forget(key);
            return Err("fragment-overlap");
        }
        if partial.len != Some(partial.bytes) {
            return Ok(None);
        }
        let whole = self.forget(key);
        Ok(whole.map(|it| (it.first, it.pieces.into_values().flatten().collect())))
    }

    fn forget(&mut self, key: &FragmentKey) -> Option<Partial> {
        let partial = self.partial.remove(key)?;
        self.order.retain(|(_, other)| other != key);
        Some(partial)
    }

    /// Forgets a datagram: its key is that of another packet now.
    pub(super) fn replace(&mut self, key: &FragmentKey) {
        self.expired += u64::from(self.forget(key).is_some());
    }

    /// Forgets what is over.
    pub(super) fn poll(&mut self, now: u64) {
        while let Some(&(until, key)) = self.order.front()
            && until <= now
        {
            self.replace(&key);
        }
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.order.front().map(|(until, _)| *until)
    }
}
