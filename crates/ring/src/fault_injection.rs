//! Death at any instruction, for tests: from a number of writes to shared
//! memory on, those of this thread do not happen. What a process that was
//! killed there leaves is just that.

use std::cell::Cell;

thread_local! {
    /// Writes that are left; `None` for any number.
    static WRITES_REMAINING: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whether the next write happens.
pub(crate) fn write_allowed() -> bool {
    match WRITES_REMAINING.get() {
        None => true,
        Some(0) => false,
        Some(left) => {
            WRITES_REMAINING.set(Some(left - 1));
            true
        }
    }
}

/// Runs `f`, which dies after the given number of writes; returns whether it died.
pub(crate) fn crash_after(writes: u64, run: impl FnOnce()) -> bool {
    WRITES_REMAINING.set(Some(writes));
    run();
    WRITES_REMAINING.take() == Some(0)
}

/// Runs what others do, the kernel among them, called by this thread: not if it
/// is dead, and none of their writes counts.
pub(crate) fn interleave(run: impl FnOnce()) {
    let left = WRITES_REMAINING.get();
    if left != Some(0) {
        WRITES_REMAINING.set(None);
        run();
        WRITES_REMAINING.set(left);
    }
}
