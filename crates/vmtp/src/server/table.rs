//! A server's records, and which of them make room for others.
//!
//! A record belongs to a client *and* the link address that its packets come
//! from: a packet from another address finds another record, so it neither
//! moves where responses go nor the client's transaction.
//!
//! A full table takes the place from the link address that has the most (the
//! rule by which queues that share a buffer drop from the longest): many made-up
//! clients of one address displace each other, and no other address' clients.
//!
//! ```text
//!   Spare      what is lost with the record
//!   Unmet      nothing: no answer to a probe yet, or an idempotent transaction
//!   Over       the number of the client's last transaction
//!   Kept       and the response to it
//!   Receiving  packets of a request, which was not executed
//! ```

use super::record::Record;
use crate::Entity;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long after its last packet a client is taken to have its response: it
/// repeats a request at least each second (`MOST` in `rtt.rs`), so three
/// repetitions in turn would have been lost. Table-full policy only.
pub(super) const QUIET: Duration = Duration::from_secs(3);

/// Kinds of records that may be dropped early.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Spare {
    Unmet,
    Over,
    Kept,
    Receiving,
}

/// The bytes that are given up for a request's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Victim {
    /// The record's response, not its transaction's number.
    Response(u64),
    /// The whole record.
    Record(u64),
}

/// A record's entries in the table's orders.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Places {
    deadline: Option<Duration>,
    spare: Option<(Spare, Duration)>,
    bytes: usize,
}

/// Counts of the clients of a link address.
#[derive(Clone, Copy, Default, Debug)]
struct Share {
    records: usize,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Table<L> {
    /// By a number that no other record has had.
    records: BTreeMap<u64, Record<L>>,
    numbers: BTreeMap<(Entity, L), u64>,
    next_number: u64,
    deadlines: BTreeSet<(Duration, u64)>,
    /// Records that may be forgotten early, oldest first: all, and by address.
    spare: BTreeSet<(Spare, Duration, u64)>,
    spare_of: BTreeSet<(L, Spare, Duration, u64)>,
    shares: BTreeMap<L, Share>,
    /// Addresses by their records, and by their bytes.
    by_records: BTreeSet<(usize, L)>,
    by_bytes: BTreeSet<(usize, L)>,
    bytes: usize,
}

impl<L: Copy + Ord> Table<L> {
    pub(super) fn new() -> Table<L> {
        Table {
            records: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_number: 0,
            deadlines: BTreeSet::new(),
            spare: BTreeSet::new(),
            spare_of: BTreeSet::new(),
            shares: BTreeMap::new(),
            by_records: BTreeSet::new(),
            by_bytes: BTreeSet::new(),
            bytes: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Bytes of segments that the records keep, or have reserved.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn find(&self, client: Entity, link: L) -> Option<u64> {
        self.numbers.get(&(client, link)).copied()
    }

    pub(super) fn get(&self, number: u64) -> Option<&Record<L>> {
        self.records.get(&number)
    }

    /// A record to change; [`settle`](Table::settle) must follow.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Record<L>> {
        self.records.get_mut(&number)
    }

    pub(super) fn insert(&mut self, record: Record<L>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let link = record.link;
        let old = self.numbers.insert((record.client, link), number);
        assert!(old.is_none(), "a client has one record at an address");
        self.records.insert(number, record);
        self.change_share(link, |share| share.records += 1);
        self.settle(number);
        number
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.set_deadline(number, None);
        self.place(number, None, 0);
        if let Some(record) = self.records.remove(&number) {
            self.numbers.remove(&(record.client, record.link));
            self.change_share(record.link, |share| share.records -= 1);
        }
    }

    /// Puts a record that has changed at its places in the orders.
    pub(super) fn settle(&mut self, number: u64) {
        if let Some(record) = self.records.get(&number) {
            let spare = record.spare().map(|spare| (spare, record.since));
            let bytes = record.bytes();
            self.place(number, spare, bytes);
        }
    }

    fn place(&mut self, number: u64, spare: Option<(Spare, Duration)>, bytes: usize) {
        let Some(record) = self.records.get_mut(&number) else {
            return;
        };
        let link = record.link;
        let old = record.places;
        (record.places.spare, record.places.bytes) = (spare, bytes);
        if old.spare != spare {
            if let Some((kind, since)) = old.spare {
                self.spare.remove(&(kind, since, number));
                self.spare_of.remove(&(link, kind, since, number));
            }
            if let Some((kind, since)) = spare {
                self.spare.insert((kind, since, number));
                self.spare_of.insert((link, kind, since, number));
            }
        }
        if old.bytes != bytes {
            self.bytes = self.bytes - old.bytes + bytes;
            self.change_share(link, |share| share.bytes = share.bytes - old.bytes + bytes);
        }
    }

    /// Each transaction changes an address's bytes: only the order that has changed is made anew.
    fn change_share(&mut self, link: L, change: impl FnOnce(&mut Share)) {
        let share = self.shares.entry(link).or_default();
        let old = *share;
        change(share);
        let new = *share;
        if old.records != new.records {
            self.by_records.remove(&(old.records, link));
            self.by_records.insert((new.records, link));
        }
        if old.bytes != new.bytes {
            self.by_bytes.remove(&(old.bytes, link));
            self.by_bytes.insert((new.bytes, link));
        }
        if new.records == 0 {
            self.shares.remove(&link);
            self.by_records.remove(&(0, link));
            self.by_bytes.remove(&(new.bytes, link));
        }
    }

    pub(super) fn set_deadline(&mut self, number: u64, deadline: Option<Duration>) {
        let Some(record) = self.records.get_mut(&number) else {
            return;
        };
        let old = std::mem::replace(&mut record.places.deadline, deadline);
        if let Some(old) = old {
            self.deadlines.remove(&(old, number));
        }
        self.deadlines.extend(deadline.map(|time| (time, number)));
    }

    /// The first deadline, and its client.
    pub(super) fn first_deadline(&self) -> Option<(Duration, u64)> {
        self.deadlines.first().copied()
    }

    /// A record to forget for a new one of an address; `None` if there is none.
    ///
    /// The address with the most records gives one up if it would still have as
    /// many as the new one's. Otherwise a record must be [quiet](QUIET), and of
    /// another address only if the new one's has less than its part of the table.
    pub(super) fn record_victim(&self, now: Duration, link: L) -> Option<u64> {
        let own = self.shares.get(&link).map_or(0, |share| share.records);
        let &(most, crowded) = self.by_records.last()?;
        if most > own + 1 {
            let oldest = |kind| self.oldest_of(crowded, kind);
            let victim = oldest(Spare::Unmet)
                .or_else(|| older(oldest(Spare::Over), oldest(Spare::Kept)))
                .or_else(|| oldest(Spare::Receiving));
            if let Some((_, number)) = victim {
                return Some(number);
            }
        }
        let is_quiet = |&(since, _): &(Duration, u64)| now.saturating_sub(since) >= QUIET;
        let quiet = |oldest: &dyn Fn(Spare) -> Option<(Duration, u64)>| {
            let over = older(oldest(Spare::Over), oldest(Spare::Kept));
            let victim = oldest(Spare::Unmet).or_else(|| over.filter(is_quiet));
            victim.map(|(_, number)| number)
        };
        let has_part = own * self.shares.len() >= self.records.len();
        quiet(&|kind| self.oldest_of(link, kind)).or_else(|| {
            let all = || quiet(&|kind| self.oldest(kind));
            if has_part { None } else { all() }
        })
    }

    /// What makes room for bytes of a record; `None` if nothing does. The address
    /// with the most bytes gives up: first a response, then a request that is not
    /// whole, unless it is the record's own address.
    pub(super) fn byte_victim(&self, number: u64) -> Option<Victim> {
        let link = self.records.get(&number)?.link;
        let own = self.shares.get(&link).map_or(0, |share| share.bytes);
        let &(most, crowded) = self.by_bytes.last()?;
        let of = |link, kind| {
            let mut all = self.range_of(link, kind);
            let other = all.find(|(_, other)| *other != number);
            other.map(|(_, other)| other)
        };
        let (response, request) = (Victim::Response, Victim::Record);
        let crowded = (most > own).then_some(crowded);
        let theirs = crowded.and_then(|crowded| {
            let kept = of(crowded, Spare::Kept).map(response);
            kept.or_else(|| of(crowded, Spare::Receiving).map(request))
        });
        theirs.or_else(|| of(link, Spare::Kept).map(response))
    }

    fn range_of(&self, link: L, kind: Spare) -> impl Iterator<Item = (Duration, u64)> {
        let (first, last) = (Duration::ZERO, Duration::MAX);
        self.spare_of
            .range((link, kind, first, 0)..=(link, kind, last, u64::MAX))
            .map(|&(_, _, since, number)| (since, number))
    }

    fn oldest_of(&self, link: L, kind: Spare) -> Option<(Duration, u64)> {
        self.range_of(link, kind).next()
    }

    fn oldest(&self, kind: Spare) -> Option<(Duration, u64)> {
        self.spare
            .range((kind, Duration::ZERO, 0)..=(kind, Duration::MAX, u64::MAX))
            .next()
            .map(|&(_, since, number)| (since, number))
    }
}

/// The older of two records.
fn older(one: Option<(Duration, u64)>, other: Option<(Duration, u64)>) -> Option<(Duration, u64)> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
