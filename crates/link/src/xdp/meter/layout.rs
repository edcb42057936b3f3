//! The layout of the maps that the stage and the process share.
//!
//! ```text
//!  control   one value: version, active bank, kinds and prefix lengths in use   CONTROL_BYTES
//!  slots     key ─► row: pages of SLOTS slots, open addressing within a page     PAGE_BYTES a value
//!  v4        IPv4 address ─► row: lines of V4_SLOTS slots                         a line a value
//!  spill     key ─► row: keys for which their page has no slot (kernel hash)
//!  unknown   keys that no session has, entered by the stage itself: like slots; the row is the slot's
//!  cells     [bank][class][direction][row] packets and bytes in one word          a cell a value
//!  carry     cell ─► packets, bytes: what cells had when they were half full; pages of CARRY_SLOTS
//!  totals    [CPU] [bank][direction] {packets, bytes}                             a CPU a value
//!  services  protocol ─► service, then port ─► service for each of PORT_PROTOCOLS
//!  policies  row ─► meters up and down, quota, flags: a row a value    (one entry without policies)
//!  leases    [CPU][direction][row] bytes that a CPU has taken of the meters
//!  tags      row ─► a number of the process's own, for after a restart; the quota that was granted
//!  flows     flow ─► when its last packet came: pages of FLOW_SLOTS slots       (with that measure)
//! ```
//!
//! A word of a cell has packets in its lower [`PACKET_BITS`] bits and bytes above, so that one atomic
//! instruction counts a frame. The program that finds it half full takes all of it and adds that to the
//! cell's place in `carry`. A cell without a place there adds to the first places, which are those of
//! the overflow row: [bank][class][direction][word].
//!
//! With policies a cell has a word more and a total two: packets and bytes that were policed. Behind
//! these, a cell has the words of each measure: its columns, then its state, zero at the first frame of
//! a period.
//!
//! A slot is four words: key (2), kind and length of the key (32 bits) with the row plus 1 (32 bits),
//! and one that is unused; in `unknown`, if sessions adopt, when the key was entered. The third word
//! alone says whether the slot is in use; it is one store.
//!
//! A slot of `v4` is one word: the address as it is loaded from a frame, and above it the row plus 1. A
//! frame's address is looked up in one line of the cache; an address whose line is full is among `slots`.
//! Since a slot is written and read whole, one that is emptied may be used again at once.
//!
//! A slot of a flow is eight words: what its packets have in common (6), when the last one came, or a
//! state, and one unused.

/// Version of the layout; the words up to [`at::SEED`] keep their places in all versions.
pub(super) const VERSION: u64 = 7;
/// Version of the layout of counters with measures, which a program of version 7 cannot read.
pub(super) const VERSION_MEASURES: u64 = 8;

/// Bytes of the control value.
pub(super) const CONTROL_BYTES: u32 = 2048;

/// Places of the maps of the stage, behind those of the program that it is part of.
pub(super) mod place {
    pub(in crate::xdp::meter) const CONTROL: u16 = 0;
    pub(in crate::xdp::meter) const SLOTS: u16 = 1;
    pub(in crate::xdp::meter) const SPILL: u16 = 2;
    pub(in crate::xdp::meter) const UNKNOWN: u16 = 3;
    pub(in crate::xdp::meter) const CELLS: u16 = 4;
    pub(in crate::xdp::meter) const TOTALS: u16 = 5;
    pub(in crate::xdp::meter) const SERVICES: u16 = 6;
    pub(in crate::xdp::meter) const POLICIES: u16 = 7;
    pub(in crate::xdp::meter) const LEASES: u16 = 8;
    pub(in crate::xdp::meter) const CARRY: u16 = 9;
    pub(in crate::xdp::meter) const V4: u16 = 10;
    pub(in crate::xdp::meter) const FLOWS: u16 = 11;
}

/// Offsets in the control value, all of 64-bit words.
pub(super) mod at {
    pub(in crate::xdp::meter) const VERSION: usize = 0;
    /// A random number, made with the maps.
    pub(in crate::xdp::meter) const BOOT_EPOCH: usize = 8;
    /// The bank that is counted in: 0 or 1.
    pub(in crate::xdp::meter) const BANK: usize = 16;
    /// The period of each bank: two words.
    pub(in crate::xdp::meter) const PERIOD: usize = 24;
    pub(in crate::xdp::meter) const SUBSCRIBERS: usize = 40;
    pub(in crate::xdp::meter) const SLOT_PAGES: usize = 48;
    pub(in crate::xdp::meter) const UNKNOWN_PAGES: usize = 56;
    pub(in crate::xdp::meter) const CLASSES: usize = 64;
    /// Hash of what the classes and counts mean.
    pub(in crate::xdp::meter) const MEANING: usize = 72;
    pub(in crate::xdp::meter) const SEED: usize = 80;
    /// Kinds of keys in use, a bit each.
    pub(in crate::xdp::meter) const KINDS: usize = 88;
    /// Keys in the spill map.
    pub(in crate::xdp::meter) const SPILLED: usize = 96;
    /// Which of the two lists of prefix lengths is in force.
    pub(in crate::xdp::meter) const LIST: usize = 104;
    /// Always zero, which the verifier does not know.
    pub(in crate::xdp::meter) const ZERO: usize = 112;
    /// Rows of sessions that may have counts are below this number less 1; 0 if that is not known.
    pub(in crate::xdp::meter) const ROWS_USED: usize = 120;
    /// Whether rows may have policies.
    pub(in crate::xdp::meter) const POLICES: usize = 128;
    /// CPUs that have leases.
    pub(in crate::xdp::meter) const LEASE_CPUS: usize = 136;
    /// The number of the portal's interface, or 0.
    pub(in crate::xdp::meter) const PORTAL: usize = 144;
    /// When the counters were made: nanoseconds of the monotonic clock, and of Unix time.
    pub(in crate::xdp::meter) const MADE: usize = 152;
    /// Hash of what the measures are; 0 without any.
    pub(in crate::xdp::meter) const MEASURES: usize = 168;
    /// Words of a cell that are columns of measures, and that are their state.
    pub(in crate::xdp::meter) const COLUMNS: usize = 176;
    pub(in crate::xdp::meter) const STATES: usize = 184;
    /// Pages of flows, and after how many nanoseconds without a packet one ends.
    pub(in crate::xdp::meter) const FLOW_PAGES: usize = 192;
    pub(in crate::xdp::meter) const FLOW_IDLE: usize = 200;
    /// Which word of a cell says that a flow found no room, from its first one; 0: none.
    pub(in crate::xdp::meter) const AT_LEAST: usize = 208;
    /// Frames that programs gave to the process before they were counted: packets, and bytes on the
    /// wire; and of these those that were counted since.
    pub(in crate::xdp::meter) const HANDED: usize = 216;
    pub(in crate::xdp::meter) const TAKEN: usize = 232;
    /// [list][family][entry] {mask, mask, kind and length}: the longest first, ended by a zero.
    pub(in crate::xdp::meter) const PREFIXES: usize = 256;
    pub(in crate::xdp::meter) const PREFIX_BYTES: usize = 24;
    pub(in crate::xdp::meter) const FAMILY_BYTES: usize = PREFIX_BYTES * super::PREFIX_LENGTHS_MAX;
    pub(in crate::xdp::meter) const LIST_BYTES: usize = 2 * FAMILY_BYTES;
}

/// Prefix lengths of one family that are in use at a time, at most: each is a look-up a packet.
pub const PREFIX_LENGTHS_MAX: usize = 8;

/// Bytes of a value of `slots` and `unknown`.
pub(super) const PAGE_BYTES: u32 = 4096;
/// Bytes of a slot.
pub(super) const SLOT_BYTES: u32 = 32;
/// Slots of a page.
pub(super) const SLOTS: u32 = PAGE_BYTES / SLOT_BYTES;
/// Slots that a look-up reads, at most: four cache lines. At half load 0.4 % of the keys find no
/// place (bench `meter_kernel`).
pub(super) const PROBES: u32 = 8;

/// Bytes of a line of `v4`, and its slots.
pub(super) const LINE_BYTES: u32 = 64;
pub(super) const V4_SLOTS: u32 = LINE_BYTES / 8;

/// Bits of packets in a word of a cell; those above are of bytes. A word is half full after 2^25
/// packets or 2^37 bytes.
pub(super) const PACKET_BITS: u32 = 26;
/// The bits of a word of a cell that say that it is half full.
pub(super) const HALF_FULL: u64 = 1 << (PACKET_BITS - 1) | 1 << 63;

/// Packets and bytes of a word of a cell.
pub(super) fn counts(word: u64) -> [u64; 2] {
    [word & ((1 << PACKET_BITS) - 1), word >> PACKET_BITS]
}

/// Words of a cell that count: of all frames, and of those that were policed.
pub(super) fn count_words(polices: bool) -> u32 {
    if polices { 2 } else { 1 }
}

/// Bytes of packets and bytes in a total.
pub(super) const COUNT_BYTES: u32 = 16;

/// Bytes of a total.
pub(super) fn total_bytes(polices: bool) -> u32 {
    COUNT_BYTES * count_words(polices)
}

/// A place of `carry` has the cell's number times two plus that of the word, plus 1 (0: it is free),
/// packets, bytes, and an unused word.
pub(super) const CARRY_BYTES: u32 = 32;
pub(super) const CARRY_SLOTS: u32 = PAGE_BYTES / CARRY_BYTES;
/// Pages that all cells share, at most: 65,536 places are full after 2 × 10^12 packets in one period.
pub(super) const CARRY_PAGES_MAX: u32 = 512;
/// Places that are looked at for a cell.
pub(super) const CARRY_PROBES: u32 = 8;

/// Bytes of a row's policy.
pub(super) const POLICY_BYTES: u32 = 64;
/// Bytes of a row's lease on one CPU.
pub(super) const LEASE_BYTES: u32 = 16;
/// CPUs that lease, at most: those beyond use the meters themselves.
pub(super) const LEASE_CPUS: u32 = 8;

/// A row's lease of one direction on one CPU. Its process writes the kind, and zeros; the stage writes
/// the others.
pub(super) mod lease {
    /// Bytes that are left: 16 bits.
    pub(in crate::xdp::meter) const BYTES: i16 = 0;
    /// Frames of at least this many bytes are over until the time of the note: 16 bits.
    pub(in crate::xdp::meter) const LEAST: i16 = 2;
    /// One of the kinds below: 32 bits.
    pub(in crate::xdp::meter) const KIND: i16 = 4;
    /// The note: nanoseconds of the monotonic clock, but for the low bits, which are the action.
    pub(in crate::xdp::meter) const NOTE: i16 = 8;
    /// The policy says more than a lease may.
    pub(in crate::xdp::meter) const NONE: i32 = 0;
    /// Frames pass from the lease as long as it has bytes.
    pub(in crate::xdp::meter) const SOME: i32 = 1;
    /// All frames pass.
    pub(in crate::xdp::meter) const ALL: i32 = 2;
}

/// A policy: offsets of its words, and its flags.
pub(super) mod policy {
    /// Bytes of a meter; the one for up is followed by the one for down.
    pub(in crate::xdp::meter) const METER_BYTES: i16 = 24;
    /// The theoretical arrival time, nanoseconds of the monotonic clock.
    pub(in crate::xdp::meter) const TAT: i16 = 0;
    /// The cost of a byte, in the low bits; above, the quantum of a lease in bytes.
    pub(in crate::xdp::meter) const COST: i16 = 8;
    pub(in crate::xdp::meter) const COST_BITS: i32 = 40;
    /// How far the time may be behind, nanoseconds.
    pub(in crate::xdp::meter) const TOLERANCE: i16 = 16;
    /// Bytes that are left.
    pub(in crate::xdp::meter) const QUOTA: i16 = 48;
    /// 0: no policy.
    pub(in crate::xdp::meter) const FLAGS: i16 = 56;

    /// There is a rate up; the next bit: down.
    pub(in crate::xdp::meter) const HAS_RATE: i32 = 1;
    /// The exact clock is read for the rate up; the next bit: down.
    pub(in crate::xdp::meter) const IS_EXACT: i32 = 4;
    pub(in crate::xdp::meter) const HAS_QUOTA: i32 = 16;
    /// Where the actions stand.
    pub(in crate::xdp::meter) const OVER_SHIFT: i32 = 8;
    pub(in crate::xdp::meter) const SPENT_SHIFT: i32 = 18;

    /// An action: its kind, and a code point.
    pub(in crate::xdp::meter) const ACTION_MASK: i32 = 0x3ff;
    pub(in crate::xdp::meter) const KIND_MASK: i32 = 0xf;
    pub(in crate::xdp::meter) const CODE_POINT_SHIFT: i32 = 4;
    pub(in crate::xdp::meter) const DROP: i32 = 1;
    pub(in crate::xdp::meter) const MARK: i32 = 2;
    pub(in crate::xdp::meter) const PORTAL: i32 = 3;
}

/// Kinds of keys, as slots have them in the low byte; the length of a prefix is in the next.
pub(super) mod kind {
    pub(in crate::xdp::meter) const PPPOE: u32 = 1;
    pub(in crate::xdp::meter) const VLAN: u32 = 2;
    pub(in crate::xdp::meter) const VLAN_PAIR: u32 = 3;
    pub(in crate::xdp::meter) const MAC: u32 = 4;
    pub(in crate::xdp::meter) const V4: u32 = 5;
    pub(in crate::xdp::meter) const V6: u32 = 6;
    pub(in crate::xdp::meter) const PREFIX_V4: u32 = 7;
    pub(in crate::xdp::meter) const PREFIX_V6: u32 = 8;
    /// Of no key: IPv4 addresses that are among `slots`.
    pub(in crate::xdp::meter) const V4_AMONG_SLOTS: u32 = 9;
}

/// Slots of flows: their bytes, how many a page has, and how many a look-up reads at most.
pub(super) const FLOW_BYTES: u32 = 64;
pub(super) const FLOW_SLOTS: u32 = PAGE_BYTES / FLOW_BYTES;
pub(super) const FLOW_PROBES: u32 = 16;
/// Words that the packets of a flow have in common.
pub(super) const FLOW_WORDS: usize = 6;

/// The seventh word of a flow's slot: 0 if it is free, one of these, or the time of its last packet,
/// which is later.
pub(super) mod flow {
    /// Where the word is.
    pub(in crate::xdp::meter) const LAST: usize = 8 * super::FLOW_WORDS;
    /// The stage writes the flow.
    pub(in crate::xdp::meter) const BUSY: u64 = 1;
    /// The process frees it: the stage neither finds nor takes it.
    pub(in crate::xdp::meter) const RETIRING: u64 = 2;
}

/// States of slots of unknown keys, in the upper half of the third word.
pub(super) mod state {
    /// The stage writes the key.
    pub(in crate::xdp::meter) const BUSY: u32 = 1;
    pub(in crate::xdp::meter) const READY: u32 = 2;
    /// The process frees it: the stage neither finds nor takes it.
    pub(in crate::xdp::meter) const RETIRING: u32 = 3;
}

/// IP protocols that have a table of ports, in the order of the tables.
pub(super) const PORT_PROTOCOLS: [u8; 5] = [6, 17, 132, 33, 136];
/// Bytes of the services' value.
pub(super) const SERVICES_BYTES: u32 = 256 + 5 * 65536;

/// First multiplier of the hash: 2^64 divided by the golden ratio.
pub(super) const MUL_A: u64 = 0x9e37_79b9_7f4a_7c15;
/// Second multiplier, of MurmurHash3's finaliser.
pub(super) const MUL_B: u64 = 0xff51_afd7_ed55_8ccd;

/// The upper six bits of a flow's hash choose one of the 64 slots of a page.
pub(super) const HOME_SHIFT: u32 = 58;

/// The hash of a key, as the stage has it.
pub(super) fn hash(seed: u64, key: [u64; 2], meta: u32) -> u64 {
    let mut hash = (key[0] ^ seed).wrapping_mul(MUL_A);
    hash ^= hash >> 32;
    hash = hash.wrapping_add(key[1]).wrapping_mul(MUL_A);
    hash ^= hash >> 32;
    hash = (hash ^ u64::from(meta)).wrapping_mul(MUL_B);
    hash ^= hash >> 32;
    // Once more: addresses of one network differ in a byte or two, which are the upper ones of a
    // word in the frame's order.
    hash = hash.wrapping_mul(MUL_A);
    hash ^ hash >> 32
}

/// The line of an address in `v4`, and the offset of its first slot there.
pub(super) fn home_v4(seed: u64, address: u64, lines: u32) -> (usize, u32) {
    let mut hash = (address ^ seed).wrapping_mul(MUL_A);
    hash ^= hash >> 32;
    let home = hash.wrapping_mul(MUL_B) >> 32;
    (part_of(home, lines), (home << 3) as u32 & (LINE_BYTES - 8))
}

/// Which of `parts` a number of 32 bits chooses, by its upper bits: any number of parts, as the memory
/// that they take is what the keys need.
fn part_of(number: u64, parts: u32) -> usize {
    ((number * u64::from(parts)) >> 32) as usize
}

/// The offset of the slot of a line that is looked at as number `probe`.
pub(super) fn probe_v4(home: u32, probe: u32) -> usize {
    ((home + probe * 8) & (LINE_BYTES - 8)) as usize
}

/// The page of a key and the offset of its first slot there: of bits of the product that do not
/// depend on each other. In the lower half of the hash, keys that differ in their last bytes alone
/// differ as the page does.
pub(super) fn home(hash: u64, pages: u32) -> (usize, u32) {
    let home = hash >> 32;
    (part_of(home, pages), (home << 6) as u32 & (PAGE_BYTES - 64))
}

/// The offset of the slot that is probed as number `probe`.
pub(super) fn probe(home: u32, probe: u32) -> usize {
    ((home + probe * SLOT_BYTES) & (PAGE_BYTES - SLOT_BYTES)) as usize
}

#[cfg(test)]
mod tests {
    use super::super::keys::SlotKey;
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use weir_meter::Key;

    /// How many of these keys, which take a quarter of the slots, find none within the probes.
    fn without_a_slot(seed: u64, pages: u32, key: impl Fn(u32) -> Key) -> u32 {
        let mut taken = vec![false; (pages * SLOTS) as usize];
        let keys = pages * SLOTS / 4;
        let mut without = 0;
        for number in 0..keys {
            let slot_key = SlotKey::from(key(number));
            let hash = hash(seed, slot_key.words, slot_key.meta);
            let (page, home) = home(hash, pages);
            let slot = |number| page * SLOTS as usize + probe(home, number) / SLOT_BYTES as usize;
            match (0..PROBES).map(slot).find(|slot| !taken[*slot]) {
                Some(slot) => taken[slot] = true,
                None => without += 1,
            }
        }
        without
    }

    #[test]
    fn neighbouring_addresses_are_spread_over_the_lines() {
        for seed in 0..20_u64 {
            let seed = seed.wrapping_mul(MUL_A);
            for lines in [32, 1 << 12, 1 << 15] {
                let mut taken = vec![0; lines as usize];
                let keys = lines * V4_SLOTS / 2;
                let mut without = 0;
                for number in 0..keys {
                    let address = u32::from_ne_bytes((0x0a00_0000 + number).to_be_bytes());
                    let (line, _) = home_v4(seed, address.into(), lines);
                    taken[line] += 1;
                    without += u32::from(taken[line] > V4_SLOTS);
                }
                // Of Poisson's distribution: 0.9 %.
                assert!(
                    without <= 4 + keys / 50,
                    "{lines} lines, {seed:x}: {without}"
                );
            }
        }
    }

    #[test]
    fn neighbouring_addresses_are_spread_over_the_slots() {
        let v4 = |number| Key::Ipv4(Ipv4Addr::from_bits(0x0a00_0000 + number));
        let v6 = |number: u32| {
            Key::Ipv6(Ipv6Addr::from_bits(
                (0x2001_0db8 << 96) + u128::from(number),
            ))
        };
        let networks = |number: u32| {
            let bits = (0x2001_0db8 << 96) + (u128::from(number) << 64);
            Key::prefix(Ipv6Addr::from_bits(bits).into(), 64).unwrap()
        };
        for seed in 0..20_u64 {
            let seed = seed.wrapping_mul(MUL_A);
            for pages in [2, 32, 512] {
                for (name, without) in [
                    ("IPv4", without_a_slot(seed, pages, v4)),
                    ("IPv6", without_a_slot(seed, pages, v6)),
                    ("IPv6 prefixes", without_a_slot(seed, pages, networks)),
                ] {
                    let most = 2 + pages * SLOTS / 4 / 200;
                    assert!(
                        without <= most,
                        "{name}, {pages} pages, {seed:x}: {without}"
                    );
                }
            }
        }
    }
}
