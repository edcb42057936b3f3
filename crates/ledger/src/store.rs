//! The common base of spools and ledgers, which are files of SQLite.

use crate::LedgerError;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weir_meter::ChunkId;

/// How long a program waits for another one that writes to the same store.
const BUSY: Duration = Duration::from_secs(10);

/// The tables of a kind of store.
pub(crate) struct Layout {
    /// SQLite's `application_id`.
    pub(crate) application: i64,
    /// The tables of version 1.
    pub(crate) schema: &'static str,
    /// The statements that make version 2 of version 1, and so on.
    pub(crate) upgrades: &'static [&'static str],
}

impl Layout {
    /// The version that this program reads and writes.
    fn version(&self) -> i64 {
        1 + self.upgrades.len() as i64
    }

    fn wrong(&self, path: &Path, found: i64) -> LedgerError {
        LedgerError::Layout {
            path: path.to_owned(),
            found,
            known: self.version(),
        }
    }
}

/// SQLite's integers are signed: the same 64 bits.
pub(crate) fn bits(value: u64) -> i64 {
    value.cast_signed()
}

pub(crate) fn key(id: &ChunkId) -> (&str, i64, i64, u32) {
    let epoch = bits(id.boot_epoch);
    (&id.counter, epoch, bits(id.period), id.number)
}

pub(crate) fn of(path: &Path) -> impl Fn(rusqlite::Error) -> LedgerError + use<> {
    let path = path.to_owned();
    move |source| LedgerError::Database {
        path: path.clone(),
        source,
    }
}

/// A transaction that has the right to write from its beginning: one that reads first and then
/// finds that another process has written fails at once, however long it would wait.
pub(crate) fn immediate(db: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    db.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// Makes an empty file that only its user may read, if there is none: SQLite's other files of a
/// store have its mode. Opening the store says what is wrong.
pub(crate) fn make_private(path: &Path) {
    let mut options = OpenOptions::new();
    let _ = options.write(true).create_new(true).mode(0o600).open(path);
}

fn pragma(db: &Connection, name: &str) -> rusqlite::Result<i64> {
    db.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
}

/// The kind of a store by its `application_id`.
fn application(db: &Connection, path: &Path) -> Result<i64, LedgerError> {
    pragma(db, "application_id").map_err(|source| {
        if source.sqlite_error_code() == Some(ErrorCode::NotADatabase) {
            LedgerError::Foreign(path.to_owned())
        } else {
            of(path)(source)
        }
    })
}

/// Opens a store of this kind, or makes one; brings one of an earlier version up to date.
pub(crate) fn open(path: &Path, layout: &Layout) -> Result<Connection, LedgerError> {
    let error = of(path);
    make_private(path);
    let mut db = Connection::open(path).map_err(&error)?;
    db.busy_timeout(BUSY).map_err(&error)?;
    let found = application(&db, path)?;
    // A commit is on the disk when it returns; readers do not wait for a writer.
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        .map_err(&error)?;
    // Two programs that start together: one of them makes the tables.
    let transaction = immediate(&mut db).map_err(&error)?;
    let empty = transaction
        .query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| {
            row.get(0)
        })
        .map_err(&error)?;
    let found = if found == 0 {
        pragma(&transaction, "application_id").map_err(&error)?
    } else {
        found
    };
    if found == 0 && empty {
        let kind = layout.application;
        let versions = format!("PRAGMA application_id = {kind}; PRAGMA user_version = 1;");
        transaction
            .execute_batch(&format!("{}{versions}", layout.schema))
            .map_err(&error)?;
    } else if found != layout.application {
        return Err(LedgerError::Foreign(path.to_owned()));
    }
    let version = pragma(&transaction, "user_version").map_err(&error)?;
    if version < 1 || version > layout.version() {
        return Err(layout.wrong(path, version));
    }
    for (upgrade, from) in layout.upgrades.iter().zip(1..) {
        if from >= version {
            let now = format!("PRAGMA user_version = {};", from + 1);
            transaction
                .execute_batch(&format!("{upgrade}{now}"))
                .map_err(&error)?;
        }
    }
    transaction.commit().map_err(&error)?;
    Ok(db)
}

/// Removes a store's files if `is_unused` says so, while no other program has it open; returns whether
/// it did.
pub(crate) fn remove_if(
    path: &Path,
    is_unused: impl FnOnce(&Connection) -> rusqlite::Result<bool>,
) -> bool {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let Ok(db) = Connection::open_with_flags(path, flags) else {
        return false;
    };
    // Needs no shared memory, for which a full disk has no room, and fails while the store is open
    // elsewhere.
    let locked = db
        .busy_timeout(Duration::ZERO)
        .and_then(|()| db.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE;"));
    let removes = locked.is_ok() && is_unused(&db).unwrap_or(false);
    if removes {
        for suffix in ["", "-wal", "-shm"] {
            let mut file = path.as_os_str().to_owned();
            file.push(suffix);
            let _ = fs::remove_file(PathBuf::from(file));
        }
    }
    removes
}

/// Opens a store for reading, without a need to write to its file or folder. The second value is for
/// [`Stamp::is_current`], if nothing else shows whether the store changes meanwhile.
pub(crate) fn open_read(
    path: &Path,
    layout: &Layout,
) -> Result<(Connection, Option<Stamp>), LedgerError> {
    let error = of(path);
    readable(path)?;
    let stamp = Stamp::of_quiet(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = match stamp {
        // No other program has it open: then SQLite needs no files beside it.
        Some(_) => {
            let name = format!("file:{}?immutable=1", escaped(path));
            Connection::open_with_flags(name, flags | OpenFlags::SQLITE_OPEN_URI)
        }
        None => Connection::open_with_flags(path, flags),
    };
    let db = db.map_err(&error)?;
    db.busy_timeout(BUSY).map_err(&error)?;
    if application(&db, path)? != layout.application {
        return Err(LedgerError::Foreign(path.to_owned()));
    }
    let version = pragma(&db, "user_version").map_err(&error)?;
    if version != layout.version() {
        return Err(layout.wrong(path, version));
    }
    Ok((db, stamp))
}

/// Whether this user can read a file. SQLite would say less.
fn readable(path: &Path) -> Result<(), LedgerError> {
    let unreadable = |source| LedgerError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = fs::File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(unreadable(std::io::ErrorKind::IsADirectory.into()));
    }
    Ok(())
}

/// A store's file while no program has it open for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    /// `None` if the file is not there, or if it has a write-ahead log, as each store has that a
    /// program has open.
    fn of_quiet(path: &Path) -> Option<Stamp> {
        let facts = fs::metadata(path).ok()?;
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        if fs::symlink_metadata(PathBuf::from(log)).is_ok() {
            return None;
        }
        Some(Stamp {
            len: facts.len(),
            modified: facts.modified().ok(),
        })
    }

    /// Whether no program has written to the store since.
    pub(crate) fn is_current(&self, path: &Path) -> bool {
        Stamp::of_quiet(path).as_ref() == Some(self)
    }
}

/// A path in a URI of SQLite.
fn escaped(path: &Path) -> String {
    let mut uri = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            _ if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            _ => uri += &format!("%{byte:02x}"),
        }
    }
    uri
}
