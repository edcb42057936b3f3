//! As a user without any rights: uid and gid `nobody`, no capability.
#![allow(unsafe_code)] // What a child does before it becomes the program.

use crate::command::Command;
use rustix::fs::{CWD, FileType, Mode, OFlags, chmod, makedev, mknodat, open};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
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
    let name = thread::current().name().unwrap_or("nobody").to_owned();
    let thread = thread::Builder::new().name(name);
    let result = thread::scope(|scope| {
        let running = thread.spawn_scoped(scope, inside);
        running.expect("a thread is started").join()
    });
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A program of this checkout (see [`Command::built`]) that will run as nobody,
/// without groups and capabilities: [`command_as`].
pub fn command(program: impl AsRef<Path>) -> Command {
    command_as(program, NOBODY)
}

/// The same as the user `uid` and the group of that number.
///
/// The process has a mount namespace of its own, and in that a `/dev/net/tun`
/// that every user may open, whatever the machine's mode is: 0600 where no
/// udev runs. The program is there too, since a user may not be allowed to
/// search the folders above a checkout. On a machine without `/dev/net` the
/// process has neither.
///
/// # Panics
/// If the path is relative, or too long for the system.
pub fn command_as(program: impl AsRef<Path>, uid: u32) -> Command {
    let program = program.as_ref();
    assert!(program.is_absolute(), "{program:?} is no absolute path");
    let own = Path::new(DEV_NET).is_dir().then(|| Own::of(program));
    let path = own.as_ref().map_or(program, |own| &own.path);
    let mut command = std::process::Command::new(path);
    let become_user = move || {
        if let Some(own) = &own {
            own.mount()?;
        }
        // Leaving uid 0 clears every capability, and without a capability or a
        // set-uid program to execute none comes back.
        set_thread_groups(&[])?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_res_gid(gid, gid, gid)?;
        Ok(set_thread_res_uid(uid, uid, uid)?)
    };
    // SAFETY: what the closure needs was made before; it makes system calls
    // only, which neither allocate nor take a lock. The child has one thread.
    unsafe { command.pre_exec(become_user) };
    Command::of(command)
}

const DEV_NET: &str = "/dev/net";

/// What a process has in its own `/dev/net`.
struct Own {
    /// Where the program is.
    path: PathBuf,
    /// The same, and where it comes from.
    program: [CString; 2],
}

impl Own {
    fn of(program: &Path) -> Own {
        let name = program.file_name().expect("a program has a name");
        let path = Path::new(DEV_NET).join(name);
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let program = [&path, program].map(|path| text(path).expect("a path has no zero byte"));
        Own { path, program }
    }

    /// Mounts it, in a namespace that the calling process has from now on.
    fn mount(&self) -> io::Result<()> {
        let [path, program] = &self.program;
        // SAFETY: the file systems are not among what threads must share for
        // memory safety, and the process has one thread.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
        // What is mounted here stays here.
        let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change(c"/", slave)?;
        // A program is made to be executed; a mode without `nodev` for the device.
        let flags = MountFlags::NOSUID;
        mount(c"weir", c"/dev/net", c"tmpfs", flags, Some(c"mode=755"))?;
        let tun = makedev(10, 200);
        let anybody = Mode::from_raw_mode(0o666);
        mknodat(
            CWD,
            c"/dev/net/tun",
            FileType::CharacterDevice,
            anybody,
            tun,
        )?;
        // As the umask may have it otherwise.
        chmod(c"/dev/net/tun", anybody)?;
        let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        drop(open(path.as_c_str(), create, Mode::from_raw_mode(0o755))?);
        Ok(mount_bind(program.as_c_str(), path.as_c_str())?)
    }
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
