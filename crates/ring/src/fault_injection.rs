//! Death at any instruction, for tests: from a number of writes to shared
//! memory on, those of this thread do not happen. What a process that was
//! killed there leaves is just that.

use std::cell::Cell;

thread_local! {
    /// Writes that are left; `None` for any number.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whether the next write happens.
pub(crate) fn may_write() -> bool {
    match LEFT.get() {
        None => true,
        Some(0) => false,
        Some(left) => {
            LEFT.set(Some(left - 1));
            true
        }
    }
}

/// Runs what dies after so many writes; tells whether it did.
pub(crate) fn dies_after(writes: u64, run: impl FnOnce()) -> bool {
    LEFT.set(Some(writes));
    run();
    LEFT.take() == Some(0)
}

/// Runs what others do, the kernel among them, called by this thread: not if it
/// is dead, and none of their writes counts.
pub(crate) fn by_others(run: impl FnOnce()) {
    let left = LEFT.get();
    if left != Some(0) {
        LEFT.set(None);
        run();
        LEFT.set(left);
    }
}
