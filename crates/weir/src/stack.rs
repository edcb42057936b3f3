//! The main thread's stack, if the process was started with a small one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;

/// Linux's default stack of the main thread (`ulimit -s 8192`), in bytes.
const BYTES: usize = 8 << 20;

/// Stack that suffices for every command, in bytes. Without compiler
/// optimisation the argument parser needs more than 256 KiB, the commands need
/// less.
const BYTES_MIN: u64 = 1 << 20;

/// Runs the command with sufficient stack.
///
/// The kernel grows the main thread's stack up to the present soft limit, which
/// is raised if the hard limit allows. Otherwise the command runs in a thread,
/// whose stack has no such limit.
pub(crate) fn with_enough(command: fn() -> ExitCode) -> ExitCode {
    if raised() {
        return command();
    }
    let thread = thread::Builder::new().name("weir".to_owned());
    match thread.stack_size(BYTES).spawn(command) {
        Ok(running) => running.join().unwrap_or_else(|panic| resume_unwind(panic)),
        // The stack may suffice for this command.
        Err(_) => command(),
    }
}

/// Whether the main thread's stack is, or could be made, long enough.
fn raised() -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Stack);
    if current.is_none_or(|bytes| bytes >= BYTES_MIN) {
        return true;
    }
    let wanted = BYTES as u64;
    let current = Some(maximum.map_or(wanted, |most| most.min(wanted)));
    current >= Some(BYTES_MIN) && setrlimit(Resource::Stack, Rlimit { current, maximum }).is_ok()
}
