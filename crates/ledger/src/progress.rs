//! How far a ledger is: until when it has a counter's records, and what its outputs have had.

use crate::LedgerError;
use crate::ledger::Ledger;
use crate::store::of;

/// How far a ledger is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of the last chunk; chunks are numbered in the order in which they were accepted.
    pub last: i64,
    /// Counters by name, and the end of the last period that the ledger has of each, Unix nanoseconds.
    pub counters: Vec<(String, i64)>,
    /// Outputs by name, and the number of the last chunk that each has had.
    pub outputs: Vec<(String, i64)>,
    /// Bytes of the ledger's file and of its write-ahead log.
    pub bytes: u64,
}

/// Walks from name to name by the index, so that the number of chunks costs nothing.
const COUNTERS: &str = "
    WITH RECURSIVE name (counter) AS (
        SELECT min(counter) FROM chunk
        UNION ALL
        SELECT (SELECT min(chunk.counter) FROM chunk WHERE chunk.counter > name.counter)
        FROM name WHERE counter IS NOT NULL
    )
    SELECT counter,
           (SELECT end_ns FROM chunk WHERE chunk.counter = name.counter
            ORDER BY start_ns DESC LIMIT 1)
    FROM name WHERE counter IS NOT NULL";

impl Ledger {
    /// How far it is.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn progress(&self) -> Result<Progress, LedgerError> {
        let error = of(&self.path);
        let pairs = |query: &str| {
            let mut rows = self.db.prepare_cached(query)?;
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<rusqlite::Result<Vec<(String, i64)>>>()
        };
        let last = "SELECT coalesce(max(sequence), 0) FROM chunk";
        let last = self.db.query_row(last, [], |row| row.get(0));
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        let len = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |facts| facts.len());
        Ok(Progress {
            last: last.map_err(&error)?,
            counters: pairs(COUNTERS).map_err(&error)?,
            outputs: pairs("SELECT name, position FROM output ORDER BY name").map_err(&error)?,
            bytes: len(&self.path) + len(log.as_ref()),
        })
    }
}
