//! The log of a counter's session events, in a file of its own: an event waits for no chunk.

use crate::LedgerError;
use crate::store::{Layout, bits, immediate, of, open};
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};
use weir_meter::SessionEvent;

/// "weiE": what SQLite's `application_id` says of a log of sessions.
const LAYOUT: Layout = Layout {
    application: 0x7765_6945,
    schema: SCHEMA,
    upgrades: &[],
};

const SCHEMA: &str = "
CREATE TABLE event (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    event  TEXT NOT NULL
) STRICT;
";

/// The log. The counter's process alone has it, by the lock of its spool.
#[derive(Debug)]
pub struct SessionLog {
    path: PathBuf,
    db: Connection,
}

impl SessionLog {
    /// Opens the log of the counter with this spool, `SPOOL.sessions`, or makes one.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or made, is no log of sessions, or of another version.
    pub fn beside(spool: &Path) -> Result<SessionLog, LedgerError> {
        let mut name = spool.as_os_str().to_owned();
        name.push(".sessions");
        let path = PathBuf::from(name);
        let db = open(&path, &LAYOUT)?;
        Ok(SessionLog { path, db })
    }

    /// Puts session events on the disk, all or none, and numbers them. When this returns, they are
    /// durable and may be answered.
    ///
    /// # Errors
    ///
    /// If the disk is full or fails: then none of them is stored.
    pub fn append(&mut self, events: &mut [SessionEvent]) -> Result<(), LedgerError> {
        let path = self.path.clone();
        let mut append = || {
            let transaction = immediate(&mut self.db)?;
            {
                let mut insert =
                    transaction.prepare_cached("INSERT INTO event (event) VALUES (?1)")?;
                for event in &mut *events {
                    let json = serde_json::to_string(event).expect("an event is JSON");
                    let number = insert.insert([json])?;
                    event.number = number.cast_unsigned();
                }
            }
            transaction.commit()
        };
        append().map_err(of(&path))
    }

    /// The session events behind this number, in order, at most `limit`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has an event that cannot be.
    pub fn events(&self, after: u64, limit: u32) -> Result<Vec<SessionEvent>, LedgerError> {
        let rows = self
            .db
            .prepare_cached(
                "SELECT number, event FROM event WHERE number > ?1 ORDER BY number LIMIT ?2",
            )
            .and_then(|mut select| {
                select
                    .query_map(params![bits(after), limit], |row| {
                        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
                    })?
                    .collect::<rusqlite::Result<Vec<_>>>()
            })
            .map_err(of(&self.path))?;
        let events = rows.into_iter().map(|(number, json)| {
            let mut event: SessionEvent =
                serde_json::from_str(&json).map_err(|error| LedgerError::Damaged {
                    id: format!("session event {number} of {}", self.path.display()),
                    why: error.to_string(),
                })?;
            event.number = number.cast_unsigned();
            Ok(event)
        });
        events.collect()
    }

    /// Deletes the events of these numbers, all or none. Missing numbers are skipped.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn remove(&mut self, numbers: &[u64]) -> Result<(), LedgerError> {
        let path = self.path.clone();
        let mut remove = || {
            let transaction = immediate(&mut self.db)?;
            {
                let mut delete =
                    transaction.prepare_cached("DELETE FROM event WHERE number = ?1")?;
                for number in numbers {
                    delete.execute([bits(*number)])?;
                }
            }
            transaction.commit()
        };
        remove().map_err(of(&path))
    }
}
