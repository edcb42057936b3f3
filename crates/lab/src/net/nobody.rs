//! As somebody without any rights: uid and gid `nobody`, no capability.

use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use std::io;
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;

/// The user and the group `nobody`.
pub const NOBODY: u32 = 65534;

/// Runs `f` on a thread of its own that is nobody and stays so. Panics in
/// `f` go on here.
///
/// It has the rights of nobody but is no prisoner: memory and open
/// descriptors are those of the whole process. Code that is to be kept from
/// them belongs into a process: see [`command`]. Of the namespaces only the
/// caller's are at hand; for a host's call [`Host::enter`] before, on a
/// thread of [`Host::run`].
///
/// [`Host::enter`]: super::Host::enter
/// [`Host::run`]: super::Host::run
///
/// # Panics
/// If the caller lacks the privilege to become somebody else.
pub fn run<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        become_nobody().expect("root can become nobody");
        f()
    };
    let result = thread::scope(|scope| scope.spawn(inside).join());
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A command that will run as nobody, without groups and capabilities.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    // Leaving uid 0 clears every capability, and without a capability or a
    // set-uid program to execute none comes back.
    command.uid(NOBODY).gid(NOBODY);
    command
}

/// Gives up all rights of the calling thread, the C library's view of them
/// apart, which is of the whole process.
fn become_nobody() -> io::Result<()> {
    set_no_new_privs(true)?;
    for bit in 0..u64::BITS {
        let Some(capability) = CapabilitySet::from_bits(1 << bit) else {
            continue;
        };
        if capability_is_in_bounding_set(capability) == Ok(true) {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(())
}
