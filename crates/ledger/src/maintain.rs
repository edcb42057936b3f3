//! Keeping a ledger: back-up, restoring, retention, erasure.

use crate::ledger::{LAYOUT, owner_id};
use crate::store::{immediate, make_private, of, open_read};
use crate::{Ledger, LedgerError};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use weir_meter::{Owner, OwnerKind};

impl Ledger {
    /// Copies the whole ledger, as it is at one time, while others may use it. The copy appears whole,
    /// and may take the place of an earlier one.
    ///
    /// # Errors
    ///
    /// If the copy cannot be written, or if another file than a ledger is there.
    pub fn back_up(&self, to: &Path) -> Result<(), LedgerError> {
        if to.exists() {
            drop(open_read(to, &LAYOUT).map(Some).or_else(an_older_one)?);
        }
        let beside = beside(to)?;
        copy(&self.db, &beside)?;
        if !self.is_consistent() {
            // A program has begun to write: it has the ledger open now, so this is the last time.
            return Ledger::open_read(&self.path)?.back_up(to);
        }
        put_in_place(&beside, to)
    }

    /// Makes a ledger of a back-up. Its numbering of chunks goes on at the next multiple of
    /// 100,000,000, so that no file of an output has the name of one that was written after the
    /// back-up.
    ///
    /// # Errors
    ///
    /// If the back-up cannot be read, is damaged or no ledger; or if a file is there already.
    pub fn restore(from: &Path, to: &Path) -> Result<Ledger, LedgerError> {
        if to.exists() {
            return Err(LedgerError::Occupied(to.to_owned()));
        }
        let source = match open_read(from, &LAYOUT) {
            Ok((source, _)) => source,
            // The copy is brought up to date, not the back-up.
            Err(LedgerError::Layout { found, known, .. }) if found < known => {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
                Connection::open_with_flags(from, flags).map_err(of(from))?
            }
            Err(error) => return Err(error),
        };
        let beside = beside(to)?;
        copy(&source, &beside)?;
        let ledger = Ledger::open(&beside)?;
        let checked: String = ledger
            .db
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(of(from))?;
        if checked != "ok" {
            return Err(LedgerError::Damaged {
                id: format!("of {}", from.display()),
                why: checked,
            });
        }
        ledger
            .db
            .execute(
                "UPDATE sqlite_sequence SET seq = (seq / 100000000 + 1) * 100000000
                 WHERE name = 'chunk'",
                [],
            )
            .map_err(of(&beside))?;
        drop(ledger);
        put_in_place(&beside, to)?;
        Ledger::open(to)
    }

    /// From when to when the ledger has periods, Unix nanoseconds; `None` if it has none.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn extent(&self) -> Result<Option<[i64; 2]>, LedgerError> {
        let extent = self
            .db
            .query_row("SELECT min(start_ns), max(end_ns) FROM chunk", [], |row| {
                let (start, end): (Option<i64>, Option<i64>) = (row.get(0)?, row.get(1)?);
                Ok(start.zip(end).map(<[i64; 2]>::from))
            });
        extent.map_err(of(&self.path))
    }

    /// Deletes the periods that ended before this time (Unix nanoseconds), with their rows, if all
    /// outputs have had them. Gives the number of chunks deleted.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn delete_before(&mut self, unix_ns: i64) -> Result<u64, LedgerError> {
        let path = self.path.clone();
        let which = "end_ns < ?1
             AND sequence <= (SELECT coalesce(min(position), 9223372036854775807) FROM output)";
        let mut delete = || {
            let transaction = immediate(&mut self.db)?;
            transaction.execute(
                &format!("INSERT OR IGNORE INTO deleted SELECT hash FROM chunk WHERE {which}"),
                [unix_ns],
            )?;
            let deleted =
                transaction.execute(&format!("DELETE FROM chunk WHERE {which}"), [unix_ns])?;
            transaction.execute(
                "DELETE FROM owner WHERE id NOT IN (SELECT owner FROM usage)
                 AND id NOT IN (SELECT owner FROM reported)",
                [],
            )?;
            transaction.commit()?;
            Ok(deleted as u64)
        };
        delete().map_err(of(&path))
    }

    /// Replaces what identifies a subscriber (name, sessions, keys, Class, Chargeable-User-Identity)
    /// in all records by one mark; the counts stay, so that totals and proofs stay true. Gives the
    /// number of owners erased.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn erase(&mut self, subscriber: &str) -> Result<u64, LedgerError> {
        let path = self.path.clone();
        let mut erase = || {
            let transaction = immediate(&mut self.db)?;
            let ids = transaction
                .prepare("SELECT id FROM owner WHERE subscriber = ?1 AND kind = 0")?
                .query_map([subscriber], |row| row.get::<_, i64>(0))?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            let erased = Owner {
                kind: OwnerKind::Session,
                subscriber: "(erased)".to_owned(),
                session: String::new(),
                keys: Vec::new(),
                class: Vec::new(),
                chargeable_user: None,
                started_unix_ns: 0,
                reported: None,
            };
            if !ids.is_empty() {
                let to = owner_id(&transaction, &erased)?;
                for id in &ids {
                    transaction.execute("DELETE FROM reported WHERE owner = ?1", [id])?;
                    transaction
                        .execute("UPDATE usage SET owner = ?1 WHERE owner = ?2", [to, *id])?;
                    transaction.execute("DELETE FROM owner WHERE id = ?1", [id])?;
                }
            }
            transaction.commit()?;
            Ok(ids.len() as u64)
        };
        let erased = erase().map_err(of(&path))?;
        // The old pages may still hold the name: write the file anew without them.
        self.db
            .execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")
            .map_err(of(&path))?;
        Ok(erased)
    }
}

/// That a file is a ledger of an earlier version is no reason not to replace it.
fn an_older_one<T>(error: LedgerError) -> Result<Option<T>, LedgerError> {
    match error {
        LedgerError::Layout { .. } => Ok(None),
        error => Err(error),
    }
}

/// The name under which a file is written; what a crash has left there goes.
fn beside(path: &Path) -> Result<PathBuf, LedgerError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let beside = PathBuf::from(name);
    match fs::remove_file(&beside) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(LedgerError::Output {
            path: beside,
            source,
        }),
        _ => Ok(beside),
    }
}

/// All pages as they are at one time: a writer does not make it begin again.
fn copy(from: &Connection, to: &Path) -> Result<(), LedgerError> {
    make_private(to);
    let mut copy = Connection::open(to).map_err(of(to))?;
    let backup = Backup::new(from, &mut copy).map_err(of(to))?;
    loop {
        match backup.step(-1).map_err(of(to))? {
            StepResult::Done => return Ok(()),
            _ => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
}

fn put_in_place(beside: &Path, to: &Path) -> Result<(), LedgerError> {
    let place = || {
        File::open(beside)?.sync_all()?;
        fs::rename(beside, to)?;
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    };
    place().map_err(|source| LedgerError::Output {
        path: to.to_owned(),
        source,
    })
}
