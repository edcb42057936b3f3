//! Records: what one owner used of one service in one direction in one period.

use crate::Key;
use serde::{Deserialize, Serialize};

/// The direction of traffic, seen from the subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Direction {
    /// From the subscriber (RADIUS: input octets of the access server).
    Up = 0,
    /// To the subscriber.
    Down = 1,
}

/// Whose traffic a record counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnerKind {
    /// A session of a subscriber.
    Session,
    /// A key that no session owned.
    Unattributed,
    /// Unattributed traffic beyond the limit of separate keys, in one sum.
    Overflow,
}

/// Whose traffic it was, as chunks carry it: complete without any table elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Which kind of owner.
    pub kind: OwnerKind,
    /// The subscriber's name (User-Name, RFC 2865 §5.1, or the name of the list); empty if unknown.
    pub subscriber: String,
    /// The session's identifier, unique for the counter; empty where there is no session.
    pub session: String,
    /// The session's keys, or the one key of unattributed traffic.
    pub keys: Vec<Key>,
    /// Class attributes (RFC 2865 §5.25), in order, for the billing system.
    #[serde(default)]
    pub class: Vec<Vec<u8>>,
    /// Chargeable-User-Identity (RFC 4372).
    #[serde(default)]
    pub chargeable_user: Option<Vec<u8>>,
    /// Start of the session, nanoseconds of Unix time; 0 if unknown.
    #[serde(default)]
    pub started_unix_ns: i64,
    /// The access server's own counts of the session up to the end of the period, for audit: octets,
    /// then packets, each up then down.
    #[serde(default)]
    pub reported: Option<[u64; 4]>,
}

impl Owner {
    /// Bytes of an owner's Class attributes at most, in sum: more than a RADIUS packet has. A ledger
    /// refuses others.
    pub const CLASS_BYTES_MAX: usize = 4096;
}

impl Owner {
    /// The owner of what no session owns: of this key, of all frames without a key, or of the
    /// overflow.
    pub fn unattributed(kind: OwnerKind, key: Option<Key>) -> Owner {
        Owner {
            kind,
            subscriber: String::new(),
            session: String::new(),
            keys: key.into_iter().collect(),
            class: Vec::new(),
            chargeable_user: None,
            started_unix_ns: 0,
            reported: None,
        }
    }
}

/// A measure: what one column of counts means.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Measure {
    /// Its name in configurations and outputs, for example `packets`, `bytes`, `flows`.
    pub name: String,
    /// Whether the values of two records of the same owner, service and direction add up to the value
    /// of both periods together.
    pub additive: bool,
}

/// Remarks on a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flags(pub u8);

impl Flags {
    /// A count of flows is a lower bound: the table of flows was full.
    pub const AT_LEAST: Flags = Flags(1);
    /// Unattributed traffic that a later session adopted.
    pub const ADOPTED: Flags = Flags(2);
    /// The record changes one of an earlier period (a late chunk).
    pub const ADJUSTMENT: Flags = Flags(4);
    /// Filled from an audit counter, since the charging counter had a gap.
    pub const FROM_AUDIT: Flags = Flags(8);

    /// Whether all flags of `other` are set.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags and those of `other`.
    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Values of the measures of a chunk, in the chunk's order.
pub type Counts = Vec<u64>;

/// One row: what an owner used of a service in a direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Index into the chunk's owners.
    pub owner: u32,
    /// Index into the chunk's services.
    pub service: u16,
    /// Direction.
    pub direction: Direction,
    /// Remarks.
    pub flags: Flags,
    /// Values of the chunk's measures, in their order.
    pub counts: Counts,
}

/// Totals of a link by direction, up then down: of the measures packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Packets.
    pub packets: [u64; 2],
    /// Bytes, in the unit that the configuration names.
    pub bytes: [u64; 2],
}
