//! Who has a core first.

/// Has this process before others: those that want the core can be served some
/// milliseconds later, frames cannot. Without privilege it stays as it was.
pub(crate) fn first_in_line() {
    let _ = rustix::process::setpriority_process(None, -20);
}
