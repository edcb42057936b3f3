//! Chunks: some records of one period with all that is needed to read and check them.

use crate::{Measure, Owner, Record, Totals};
use serde::{Deserialize, Serialize};

/// The identity of a chunk; with a record's place in it, that of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkId {
    /// The counter's name.
    pub counter: String,
    /// Random number made when the counters in the kernel were made: a new one after a restart of
    /// the machine, the same one after a restart of the program.
    pub boot_epoch: u64,
    /// Number of the period, from 0 in each boot epoch.
    pub period: u64,
    /// Number of the chunk in the period, from 0.
    pub number: u32,
}

/// What a chunk says of itself and of its period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Which chunk.
    pub id: ChunkId,
    /// Whether it is the period's last one.
    pub last: bool,
    /// Start and end of the period on the monotonic clock, nanoseconds.
    pub monotonic_ns: [u64; 2],
    /// Start and end of the period as Unix time, nanoseconds: read with the monotonic clock at the
    /// cut; a step of the wall clock between them is `wall_step_ns`.
    pub unix_ns: [i64; 2],
    /// How far the wall clock was set within the period, nanoseconds; 0 if it was not.
    pub wall_step_ns: i64,
    /// Number of records in the chunk.
    pub records: u32,
    /// Sums of the chunk's records.
    pub totals: Totals,
    /// Totals of the link in the whole period, counted apart from the records: the sum over the
    /// period's chunks equals it.
    pub link: Totals,
    /// Frames that weir itself lost in the period after it had counted them.
    pub lost_inside: u64,
    /// If counts before this period are missing (the machine restarted): from when to when, Unix
    /// nanoseconds.
    pub gap_unix_ns: Option<[i64; 2]>,
    /// SHA-256 of the chunk before this one of the same counter (zero for the first).
    pub previous: [u8; 32],
}

/// Some records of one period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// What it says of itself.
    pub manifest: Manifest,
    /// What the columns of counts mean.
    pub measures: Vec<Measure>,
    /// Names of services, as records number them.
    pub services: Vec<String>,
    /// Owners, as records number them.
    pub owners: Vec<Owner>,
    /// The records.
    pub records: Vec<Record>,
}
