//! The forwarding database of a learning bridge (IEEE 802.1D §7.9): maps
//! stations to ports. No I/O, no clock.
//!
//! ```text
//!  hash of (VLAN, address) ─► bucket of four entries, a cache line
//!  entry: u64 address and VLAN │ u32 last seen, in seconds │ u16 port
//! ```
//!
//! The table never grows: in a full bucket, the station that was silent the
//! longest is evicted, and counted. The hash has a seed, so that stations
//! cannot choose addresses that collide.

use weir_wire::ethernet::Address;

/// Number of entries of a bucket.
const BUCKET_ENTRIES: usize = 4;

/// Largest number of stations.
pub const STATIONS_MAX: usize = 1 << 20;

/// The key of an empty entry.
const VACANT: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    seen: u32,
    port: u16,
}

/// The result of learning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Learned {
    /// The station was known behind this port.
    Known,
    /// The station is new.
    New,
    /// The station has moved from another port.
    Moved,
    /// The station is new, and another station was evicted for it.
    Evicted,
}

/// Stations and their ports.
#[derive(Clone, Debug)]
pub struct Fdb {
    entries: Vec<Entry>,
    buckets: u64,
    seed: u64,
    age_max: u32,
}

impl Fdb {
    /// A table for about this number of stations (1 to [`STATIONS_MAX`]), which
    /// are forgotten after more than `age_max` seconds of silence.
    pub fn new(stations: usize, age_max: u32, seed: u64) -> Fdb {
        let stations = stations.clamp(1, STATIONS_MAX);
        let buckets = stations.div_ceil(BUCKET_ENTRIES).next_power_of_two();
        let vacant = Entry {
            key: VACANT,
            seen: 0,
            port: 0,
        };
        Fdb {
            entries: vec![vacant; buckets * BUCKET_ENTRIES],
            buckets: buckets as u64,
            seed: seed | 1,
            age_max,
        }
    }

    fn key(vlan: u16, address: Address) -> u64 {
        let [a, b, c, d, e, f] = address.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f]) << 12 | u64::from(vlan & 0xfff)
    }

    fn bucket(&self, key: u64) -> usize {
        let mixed = u128::from(key ^ self.seed.rotate_left(32)) * u128::from(self.seed);
        let mixed = (mixed as u64 ^ (mixed >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 32) & (self.buckets - 1)) as usize * BUCKET_ENTRIES
    }

    fn is_old(&self, entry: &Entry, now: u32) -> bool {
        now.saturating_sub(entry.seen) > self.age_max
    }

    /// Learns that a station sent a frame through a port at second `now`.
    pub fn learn(&mut self, vlan: u16, address: Address, port: u16, now: u32) -> Learned {
        let key = Fdb::key(vlan, address);
        let first = self.bucket(key);
        let bucket = &self.entries[first..first + BUCKET_ENTRIES];
        if let Some(way) = bucket.iter().position(|entry| entry.key == key) {
            let was_old = self.is_old(&bucket[way], now);
            let entry = &mut self.entries[first + way];
            let moved = entry.port != port;
            (entry.seen, entry.port) = (now, port);
            return match (was_old, moved) {
                (true, _) => Learned::New,
                (false, true) => Learned::Moved,
                (false, false) => Learned::Known,
            };
        }
        let vacant = bucket
            .iter()
            .position(|entry| entry.key == VACANT || self.is_old(entry, now));
        let (way, learned) = match vacant {
            Some(way) => (way, Learned::New),
            None => {
                let silent = (0..BUCKET_ENTRIES).min_by_key(|way| bucket[*way].seen);
                (silent.unwrap_or_default(), Learned::Evicted)
            }
        };
        self.entries[first + way] = Entry {
            key,
            seen: now,
            port,
        };
        learned
    }

    /// The port of a station at second `now`; `None` if it is unknown or aged.
    pub fn port(&self, vlan: u16, address: Address, now: u32) -> Option<u16> {
        let key = Fdb::key(vlan, address);
        let first = self.bucket(key);
        let bucket = &self.entries[first..first + BUCKET_ENTRIES];
        let entry = bucket.iter().find(|entry| entry.key == key)?;
        (!self.is_old(entry, now)).then_some(entry.port)
    }

    /// Forgets all stations behind a port, whose link is down.
    pub fn forget(&mut self, port: u16) {
        for entry in &mut self.entries {
            if entry.key != VACANT && entry.port == port {
                entry.key = VACANT;
            }
        }
    }

    /// Number of stations known at second `now`.
    pub fn stations(&self, now: u32) -> usize {
        let known = |entry: &&Entry| entry.key != VACANT && !self.is_old(entry, now);
        self.entries.iter().filter(known).count()
    }
}
