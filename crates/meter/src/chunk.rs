//! Chunks: some records of one period with all that is needed to read and check them.

use crate::{Direction, Measure, Owner, Record, Totals};
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

/// The head of a chunk: its identity and its period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Which chunk.
    pub id: ChunkId,
    /// Whether it is the period's last one.
    pub last: bool,
    /// Start and end of the period on the monotonic clock, nanoseconds.
    pub monotonic_ns: [u64; 2],
    /// Start and end of the period as Unix time, nanoseconds, by the wall clock as it was at the
    /// start: its length is that of the period even if the wall clock was set within it.
    pub unix_ns: [i64; 2],
    /// How far the wall clock was set within the period, nanoseconds; 0 if it was not. The next
    /// period starts so much later than this one ends.
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
    /// The metered interfaces' own counts of the period; empty if unknown.
    #[serde(default)]
    pub interfaces: Vec<InterfaceCounts>,
    /// SHA-256 of the chunk before this one of the same counter (zero for the first).
    pub previous: [u8; 32],
}

/// An interface's own counts of a period, read from the kernel (`struct rtnl_link_stats64`) with
/// the cuts at its begin and end: an account of the link without a part of weir.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceCounts {
    /// The interface's name.
    pub name: String,
    /// Frames and bytes that it received.
    pub rx: [u64; 2],
    /// Frames and bytes that it sent.
    pub tx: [u64; 2],
    /// Which way frames go that it receives; `None` if they go both ways, as at a mirror port.
    pub ingress: Option<Direction>,
    /// Whether frames that it sends are metered here, too.
    pub meters_tx: bool,
}

impl InterfaceCounts {
    /// Frames and bytes of what is metered at the interface.
    pub fn metered(&self) -> [u64; 2] {
        let [rx, tx] = [self.rx, self.tx];
        if self.meters_tx {
            [rx[0].saturating_add(tx[0]), rx[1].saturating_add(tx[1])]
        } else {
            rx
        }
    }
}

/// Some records of one period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Its head.
    pub manifest: Manifest,
    /// The meaning of the columns of counts.
    pub measures: Vec<Measure>,
    /// Names of services, as records number them.
    pub services: Vec<String>,
    /// Owners, as records number them.
    pub owners: Vec<Owner>,
    /// The records.
    pub records: Vec<Record>,
}
