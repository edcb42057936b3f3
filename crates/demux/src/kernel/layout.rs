//! Where things stand in the maps: what the control side writes and the
//! generated program reads.
//!
//! ```text
//!  index: entries of 64 bytes             store: units of 64 bytes
//!  ┌──────────────────────────────────┐   ┌─────────────────────────────────┐
//!  │ 0  links: see `table`            │ ┌►│ the key's words beyond three    │
//!  │ 8  rank                          │ │ │ tests of 16 bytes, and an end   │
//!  │ 16 slot                          │ │ ├─────────────────────────────────┤
//!  │ 24 tag, snap length              │ │ │ guards and hash of a subtable      │
//!  │ 32 rest, subtable                   ├─┘ ├─────────────────────────────────┤
//!  │ 40 key: its first three words    │   │ prefilters                          │
//!  └──────────────────────────────────┘   └─────────────────────────────────┘
//! ```
//!
//! An entry is one cache line, so that a frame of one of many bindings waits
//! for memory once: a key of an IPv4 connection is in it whole.
//!
//! Both are arrays of one value, so that the program has their address and
//! the control side maps them into its memory. All that changes under a
//! running program changes by one aligned store of 64 bits.

/// Bytes of a unit, and of an entry: a cache line.
pub(super) const UNIT_BYTES: u32 = 64;
/// Words of 64 bits in a unit.
pub(super) const UNIT_WORDS: u32 = 8;
/// The unit of the store that is all zeros: nothing is ever put there.
pub(super) const UNIT_ZERO: u32 = 0;

/// Words in an entry.
pub(super) mod entry {
    pub(in super::super) const LINKS: u32 = 0;
    pub(in super::super) const RANK: u32 = 1;
    pub(in super::super) const SLOT: u32 = 2;
    pub(in super::super) const TAG_SNAP: u32 = 3;
    /// Where the rest is, counted in tests, or 0 if there is none: the words of
    /// the key beyond [`KEY_WORDS`], and the residual tests.
    pub(in super::super) const REST_SUBTABLE: u32 = 4;
    pub(in super::super) const KEY: u32 = 5;
    /// Words of the key in the entry itself.
    pub(in super::super) const KEY_WORDS: usize = 3;

    /// Number of tests whose room the rest of a key of `words` words takes.
    pub(in super::super) fn rest_key_tests(lanes: usize) -> u32 {
        lanes.saturating_sub(KEY_WORDS).div_ceil(2) as u32
    }
}

/// Words of what the store has of a subtable.
pub(super) mod subtable {
    /// Value and mask of each guard.
    pub(in super::super) const GUARDS: u32 = 0;
    pub(in super::super) const GUARDS_MAX: usize = 4;
    /// The hash: see `plan::hash`.
    pub(in super::super) const START: u32 = 4;
    pub(in super::super) const MIX: u32 = 5;
    /// The least rank of its entries, or one before it.
    pub(in super::super) const BEST: u32 = 6;
    /// Two for each word of the key.
    pub(in super::super) const FACTORS: u32 = 8;
    /// Units of the longest.
    pub(in super::super) const UNITS_MAX: u32 =
        (FACTORS + 2 * super::LANES_MAX as u32).div_ceil(super::UNIT_WORDS);
}

/// Words of the longest key.
pub(super) const LANES_MAX: usize = crate::limits::FIELDS_MAX / 2;

/// Units that may be read from where an entry's rest begins.
pub(super) const REST_UNITS_MAX: u32 = 2;

/// A residual test: two words.
///
/// ```text
///  word 0:  0 kind │ 8 value │ 16 other value │ 24 comparison │ 32 a
///  word 1:  0 b
/// ```
pub(super) mod test {
    pub(in super::super) const END: u64 = 0;
    pub(in super::super) const RANGE: u64 = 1;
    pub(in super::super) const DIFFERS: u64 = 2;
    pub(in super::super) const EXTENT: u64 = 3;
    pub(in super::super) const EXTENT_FROM: u64 = 4;
    pub(in super::super) const COMPARE: u64 = 5;
}

/// Bytes of a test.
pub(super) const TEST_BYTES: u32 = 16;

/// Slots from this one on, below those that are no port's, are fan-outs: the rest
/// of the number is the unit where the store has the buckets.
pub(super) const SLOT_FANOUT: u32 = 1 << 31;

/// The buckets of a fan-out in the store: a word each, slot and tag of the port
/// that has the bucket.
pub(super) mod fanout {
    use crate::fanout::BUCKETS;

    /// The slot of a bucket that no port has.
    pub(in super::super) const NO_SLOT: u32 = u32::MAX;
    pub(in super::super) const UNITS: u32 = BUCKETS as u32 / super::UNIT_WORDS;
    const _: () = assert!(BUCKETS.is_power_of_two());
}

/// Slots that are no port's.
pub(super) const SLOT_KERNEL: u32 = u32::MAX - 1;
pub(super) const SLOT_DROP: u32 = u32::MAX;

/// A value of the map of ports' settings and losses.
pub(super) mod port {
    /// Frames lost since the last record, 64 bits, changed by the program.
    pub(in super::super) const LOST: i16 = 0;
    /// Snap length, all bits inverted, so that 0 is no limit; 32 bits.
    pub(in super::super) const SNAP: i16 = 8;
    /// Clock (bits 0-7), wake-up flags of the ring (bits 8-15); 32 bits.
    pub(in super::super) const FLAGS: i16 = 12;
    pub(in super::super) const BYTES: u32 = 16;
}

/// A value of the map of counters.
pub(super) mod counter {
    pub(in super::super) const DELIVERED: i16 = 0;
    pub(in super::super) const BYTES: i16 = 8;
    pub(in super::super) const LOST: i16 = 16;
    pub(in super::super) const SIZE: u32 = 24;
}

/// The program's own memory, one for each CPU.
pub(super) mod scratch {
    use super::super::record::HEADER_BYTES;

    /// The frame's first bytes.
    pub(in super::super) const HEAD: i16 = 0;
    /// As many at most.
    pub(in super::super) const HEAD_BYTES: u32 = 256;
    /// The record's header.
    pub(in super::super) const RECORD: i16 = HEAD + HEAD_BYTES as i16;
    /// The least rank that takes or claims, so far.
    pub(in super::super) const BEST: i16 = RECORD + HEADER_BYTES as i16;
    /// The rank behind which nothing matters, copies included: BEST, unless a
    /// claim is or may come before it.
    pub(in super::super) const LIMIT: i16 = BEST + 8;
    pub(in super::super) const LAST: i16 = LIMIT + 8;
    /// The links that are still to be followed.
    pub(in super::super) const LINKS: i16 = LAST + 8;
    pub(in super::super) const CANDIDATES: i16 = LINKS + 8;
    pub(in super::super) const CURSOR: i16 = CANDIDATES + 4;
    pub(in super::super) const MATCHES: i16 = CURSOR + 4;
    pub(in super::super) const PLACE: i16 = MATCHES + 4;
    pub(in super::super) const ENTRY: i16 = PLACE + 4;
    pub(in super::super) const TEST: i16 = ENTRY + 4;
    /// Bytes of the VLAN tag that is put back: 0 or 4.
    pub(in super::super) const SHIFT: i16 = TEST + 4;
    /// Bit 0: some binding took the frame; bit 1: the kernel gets it.
    pub(in super::super) const FATE: i16 = SHIFT + 4;
    /// Flags and queue, as a short header has them.
    pub(in super::super) const SHORT_FLAGS: i16 = FATE + 4;
    pub(in super::super) const CAPTURED: i16 = SHORT_FLAGS + 4;
    pub(in super::super) const WAKE: i16 = CAPTURED + 4;
    pub(in super::super) const CHUNK: i16 = WAKE + 4;
    /// The best taker's entry, and its snap length.
    pub(in super::super) const TAKER: i16 = CHUNK + 4;
    /// The frame's length.
    pub(in super::super) const LEN: i16 = TAKER + 8;
    /// The record's flags, as far as they are the frame's.
    pub(in super::super) const FLAGS: i16 = LEN + 4;
    /// The bucket of the frame's flow, or [`NO_FLOW`] if it is not known yet; and
    /// where the frame's packet begins, while it is hashed.
    pub(in super::super) const FLOW: i16 = FLAGS + 4;
    pub(in super::super) const NO_FLOW: i32 = -1;
    pub(in super::super) const PACKET_AT: i16 = FLOW + 4;
    /// Slot and snap length of the entry that is being noted.
    pub(in super::super) const NOTED_SLOT: i16 = PACKET_AT + 4;
    pub(in super::super) const NOTED_SNAP: i16 = NOTED_SLOT + 4;
    /// The slot of the port at hand.
    pub(in super::super) const PORT_SLOT: i16 = NOTED_SNAP + 4;
    /// Bytes of the frame from behind the copy of its start.
    pub(in super::super) const FAR: i16 = PORT_SLOT + 4;
    /// The results of the prefilters before a subtable: a byte each.
    pub(in super::super) const SWITCH: i16 = FAR + 4;
    pub(in super::super) const SWITCHES_MAX: u32 = 8;
    /// The pruned subtables that the cells let pass, a bit each; then the bits of
    /// the word at hand that remain to be looked up, and the word's number.
    pub(in super::super) const ALL_BITS: i16 = SWITCH + SWITCHES_MAX as i16;
    pub(in super::super) const BITS: i16 =
        ALL_BITS + 8 * (super::super::limits::SUBTABLES_MAX / 64) as i16;
    pub(in super::super) const WORD: i16 = BITS + 8;
    /// Values of expressions that pruned subtables share, in the form of a
    /// candidate's; behind them the values that only the subtable at hand uses.
    pub(in super::super) const SHARED: i16 = WORD + 8;
    pub(in super::super) const SHARED_MAX: usize = 24;
    pub(in super::super) const OWN_MAX: usize = super::candidate::VALUES_MAX;
    /// The key at hand, or its masks.
    pub(in super::super) const KEY: i16 = SHARED + 8 * (SHARED_MAX + OWN_MAX) as i16;
    /// Values in the middle of an expression.
    pub(in super::super) const VALUES: i16 = KEY + 8 * super::LANES_MAX as i16;
    pub(in super::super) const VALUES_MAX: u32 = 20;
    /// The candidates.
    pub(in super::super) const CANDIDATE: i16 = VALUES + 8 * VALUES_MAX as i16;
    /// Candidates at one time; subtables are looked up in groups of as many.
    pub(in super::super) const CANDIDATES_MAX: u32 = 64;
    /// The copies found.
    pub(in super::super) const MATCH: i16 =
        CANDIDATE + (CANDIDATES_MAX * super::candidate::BYTES) as i16;
    /// Limit on the copies of one frame; the port that takes it is noted apart.
    pub(in super::super) const MATCHES_MAX: u32 = 256;
    pub(in super::super) const MATCH_BYTES: u32 = 16;
    pub(in super::super) const BYTES: u32 = MATCH as u32 + MATCHES_MAX * MATCH_BYTES;
}

/// A key of the frame that a subtable may have an entry for.
pub(super) mod candidate {
    pub(in super::super) const SUBTABLE: i16 = 0;
    pub(in super::super) const LANES: i16 = 4;
    /// Where the store has the subtable.
    pub(in super::super) const UNIT: i16 = 8;
    /// The key's home, counted in cells; set when the key is looked up.
    pub(in super::super) const HOME: i16 = 12;
    pub(in super::super) const VALUES: i16 = 16;
    /// [`super::entry::rest_key_tests`] of the subtable.
    pub(in super::super) const REST_KEY: i16 = 20;
    /// Values that residual tests of the subtable use: 32 bits, or [`NO_VALUE`].
    pub(in super::super) const VALUE: i16 = 24;
    pub(in super::super) const VALUES_MAX: usize = 8;
    /// A pruned subtable has these in place of values: a byte each, the number of
    /// the value among the shared ones.
    pub(in super::super) const VALUE_INDICES: i16 = VALUE;
    /// The frame has no such value: all 64 bits are set.
    pub(in super::super) const NO_VALUE: i32 = -1;
    pub(in super::super) const KEY: i16 = VALUE + 8 * VALUES_MAX as i16;
    pub(in super::super) const BYTES: u32 = (KEY + 8 * super::LANES_MAX as i16) as u32;
}

const _: () = assert!(
    scratch::BYTES < 1 << 15,
    "offsets in instructions are signed"
);
