//! A place where another thread puts what a running stage takes next.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Interval at which a stage looks for what was put, in ns.
pub(crate) const RELOAD_INTERVAL: u64 = 100_000_000;

/// Where another thread puts a new configuration, or a part of it, for a running stage.
pub struct Reload<T>(Arc<Mutex<Option<T>>>);

impl<T> Reload<T> {
    /// Has the stage take this value; an earlier one that it has not taken yet is
    /// forgotten.
    pub fn put(&self, value: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    }

    /// The new value; `None` if there is none, or one is being put.
    pub(crate) fn take(&self) -> Option<T> {
        self.0.try_lock().ok()?.take()
    }
}

impl<T> Default for Reload<T> {
    fn default() -> Reload<T> {
        Reload(Arc::default())
    }
}

impl<T> Clone for Reload<T> {
    fn clone(&self) -> Reload<T> {
        Reload(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Reload<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload(…)")
    }
}
