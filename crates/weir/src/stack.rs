//! The stack of the main thread, where the process was started with little.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;

/// What Linux gives the main thread by default (`ulimit -s 8192`), in bytes.
const BYTES: usize = 8 << 20;

/// What every command has enough of, in bytes. Without the optimiser the
/// parser of arguments takes more than 256 KiB, the commands take less.
const BYTES_MIN: u64 = 1 << 20;

/// Runs the command with enough stack.
///
/// The kernel grows the main thread's stack up to the soft limit of the moment,
/// which is raised where the hard limit allows. Where it does not, the command
/// runs in a thread, whose stack has no limit of that kind.
pub(crate) fn with_enough(command: fn() -> ExitCode) -> ExitCode {
    if raised() {
        return command();
    }
    let thread = thread::Builder::new().name("weir".to_owned());
    match thread.stack_size(BYTES).spawn(command) {
        Ok(running) => running.join().unwrap_or_else(|panic| resume_unwind(panic)),
        // Perhaps it is enough for this command.
        Err(_) => command(),
    }
}

/// Whether the main thread's stack is long enough, or could be made so.
fn raised() -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Stack);
    if current.is_none_or(|bytes| bytes >= BYTES_MIN) {
        return true;
    }
    let wanted = BYTES as u64;
    let current = Some(maximum.map_or(wanted, |most| most.min(wanted)));
    current >= Some(BYTES_MIN) && setrlimit(Resource::Stack, Rlimit { current, maximum }).is_ok()
}
