//! A store that one process has for itself.

use crate::LedgerError;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The lock of a store, `STORE.lock`: the kernel releases it when the process ends, however it ends.
/// Its file stays, and names the process that had it last.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
}

impl StoreLock {
    pub(crate) fn take(store: &Path, remedy: &'static str) -> Result<StoreLock, LedgerError> {
        let mut path = store.as_os_str().to_owned();
        path.push(".lock");
        let path = Path::new(&path);
        let failed = |source| LedgerError::Lock {
            path: path.to_owned(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(path).unwrap_or_default();
                let holder = holder.trim().parse::<u32>();
                return Err(LedgerError::Locked {
                    path: store.to_owned(),
                    holder: holder.map_or_else(
                        |_| "another process".to_owned(),
                        |process| format!("process {process}"),
                    ),
                    remedy,
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(failed)?;
        Ok(StoreLock { _file: file })
    }
}
