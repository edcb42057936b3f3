//! Fragments (RFC 4787 §11): the first one has the ports, and says how the
//! others are translated; those that come before it wait.

use crate::flow::Direction;
use ahash::RandomState;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Packets whose fragments are being translated, at most.
const PACKETS_MAX: usize = 4096;

/// Fragments of each direction that wait for the first one of their packet, at most: one side
/// does not fill the other's places.
const WAITING_MAX: usize = 128;

/// Those of one source, or of sources that are one subscriber.
const WAITING_PER_SOURCE_MAX: usize = 32;

/// Time for which the fragments of a packet are translated, in ns: that of
/// reassembly in hosts (RFC 1122 §3.3.2, its shortest).
const LIFE: u64 = 60_000_000_000;

/// Time for which a fragment waits for others of its packet, in ns (RFC 6146 §4: at least 2 s).
pub(crate) const FRAGMENT_MIN: u64 = 2_000_000_000;

/// The common part of a packet's fragments, on one side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FragmentKey {
    pub(crate) direction: Direction,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) id: u32,
}

#[derive(Debug)]
struct Waiting {
    until: u64,
    key: FragmentKey,
    /// Frame or packet, as the caller has it.
    frame: Vec<u8>,
}

/// The fragmented packets on their way.
#[derive(Debug)]
pub(crate) struct Fragments {
    known: HashMap<FragmentKey, (u64, IpAddr), RandomState>,
    /// In order of time.
    order: VecDeque<(u64, FragmentKey)>,
    waiting: VecDeque<Waiting>,
    /// Fragments whose first one did not come.
    pub(crate) expired: u64,
}

impl Fragments {
    pub(crate) fn new(seed: u64) -> Fragments {
        Fragments {
            known: HashMap::with_hasher(RandomState::with_seeds(seed, 7, !seed, 1)),
            order: VecDeque::new(),
            waiting: VecDeque::new(),
            expired: 0,
        }
    }

    /// Records how the first fragment was translated; returns the fragments
    /// that have waited for it.
    pub(crate) fn first(&mut self, now: u64, key: FragmentKey, to: IpAddr) -> Vec<Vec<u8>> {
        self.poll(now);
        if self.order.len() >= PACKETS_MAX
            && let Some((until, oldest)) = self.order.pop_front()
        {
            self.forget(until, oldest);
        }
        let until = now.saturating_add(LIFE);
        self.known.insert(key, (until, to));
        self.order.push_back((until, key));
        self.waited(key)
    }

    /// Takes the fragments that have waited for the first one of their packet.
    pub(crate) fn waited(&mut self, key: FragmentKey) -> Vec<Vec<u8>> {
        let (ready, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<Waiting>, _>(|waiting| waiting.key == key);
        self.waiting = waiting.into();
        ready.into_iter().map(|waiting| waiting.frame).collect()
    }

    /// How a later fragment is translated; `None` before the first one came.
    pub(crate) fn find(&self, now: u64, key: &FragmentKey) -> Option<IpAddr> {
        let (until, to) = self.known.get(key)?;
        (now < *until).then_some(*to)
    }

    /// Whether a further fragment of this packet can wait; `owner` gives what sources share that are
    /// one.
    pub(crate) fn has_room(&self, key: &FragmentKey, owner: impl Fn(IpAddr) -> IpAddr) -> bool {
        let keys = || self.waiting.iter().map(|waiting| &waiting.key);
        let beside = || keys().filter(|other| other.direction == key.direction);
        let of_source = beside().filter(|other| owner(other.src) == owner(key.src));
        beside().count() < WAITING_MAX && of_source.count() < WAITING_PER_SOURCE_MAX
    }

    pub(crate) fn wait(&mut self, now: u64, key: FragmentKey, frame: Vec<u8>) {
        let until = now.saturating_add(FRAGMENT_MIN);
        self.waiting.push_back(Waiting { until, key, frame });
    }

    /// Forgets what is over.
    pub(crate) fn poll(&mut self, now: u64) {
        while let Some(&(until, key)) = self.order.front()
            && until <= now
        {
            self.order.pop_front();
            self.forget(until, key);
        }
        while let Some(waiting) = self.waiting.front()
            && waiting.until <= now
        {
            self.waiting.pop_front();
            self.expired += 1;
        }
    }

    /// Forgets what was recorded until a time, unless it was recorded again since.
    fn forget(&mut self, until: u64, key: FragmentKey) {
        if self.known.get(&key).is_some_and(|known| known.0 == until) {
            self.known.remove(&key);
        }
    }

    pub(crate) fn next_due(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_was_recorded_again_outlives_its_first_place() {
        let key = |id| FragmentKey {
            direction: Direction::Outward,
            src: [10, 0, 0, 1].into(),
            dst: [192, 0, 2, 1].into(),
            protocol: 17,
            id,
        };
        let to = [203, 0, 113, 1].into();
        let mut fragments = Fragments::new(1);
        fragments.first(0, key(0), to);
        fragments.first(1, key(0), to);
        // As many more as have room: the first place of the packet goes.
        for id in 1..PACKETS_MAX as u32 {
            fragments.first(2, key(id), to);
        }
        assert_eq!(fragments.find(3, &key(0)), Some(to));
        fragments.first(3, key(PACKETS_MAX as u32), to);
        assert_eq!(fragments.find(3, &key(0)), None, "the oldest of all");
    }
}
