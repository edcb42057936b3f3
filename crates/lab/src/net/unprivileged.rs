//! Runs code and processes without privilege: uid and gid `nobody`, no
//! capabilities.
#![allow(unsafe_code)] // What a child does before it becomes the program.

use crate::command::Command;
use rustix::fs::{CWD, FileType, Mode, OFlags, chmod, makedev, mknodat, open};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capability_is_in_bounding_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid, unshare_unsafe,
};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

/// Capabilities; see capabilities(7).
pub type Capabilities = CapabilitySet;

/// The user and the group `nobody`.
pub const NOBODY: u32 = 65534;

/// Runs `f` on a new thread that has irrevocably become `nobody`. A panic in
/// `f` is propagated.
///
/// The thread has no privilege but is not isolated: memory and open descriptors
/// are the process's. To isolate code from them, use a process: see
/// [`command`]. The thread stays in the caller's namespaces; for a host's, call
/// [`Host::enter`] before, on a thread of [`Host::run`].
///
/// [`Host::enter`]: super::Host::enter
/// [`Host::run`]: super::Host::run
///
/// # Panics
/// If the caller lacks the privilege to change its user.
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

/// A program of this checkout (see [`Command::built`]) that runs as `nobody`,
/// without groups and capabilities: [`command_as`].
pub fn command(program: impl AsRef<Path>) -> Command {
    command_as(program, NOBODY)
}

/// As [`command`], with the user `uid` and the group of the same number.
///
/// The process has its own mount namespace, with a `/dev/net/tun` that every
/// user may open, whatever the machine's mode is (0600 without udev). The
/// program is mounted there too, since the user may lack search permission on
/// the folders of the checkout. On a machine without `/dev/net` the process has
/// neither.
///
/// # Panics
/// If the path is relative or too long.
pub fn command_as(program: impl AsRef<Path>, uid: u32) -> Command {
    command_with(program, uid, Capabilities::empty())
}

/// As [`command_as`], with these capabilities, also in its bounding set, and no
/// other: as a service manager starts it (systemd.exec(5),
/// `AmbientCapabilities=`).
///
/// # Panics
/// As [`command_as`].
pub fn command_with(program: impl AsRef<Path>, uid: u32, kept: Capabilities) -> Command {
    let program = program.as_ref();
    assert!(program.is_absolute(), "{program:?} is no absolute path");
    let own = Path::new(DEV_NET).is_dir().then(|| Own::of(program));
    let path = own.as_ref().map_or(program, |own| &own.path);
    let mut command = std::process::Command::new(path);
    let become_user = move || {
        if let Some(own) = &own {
            own.mount()?;
        }
        if !kept.is_empty() {
            bound(kept)?;
            set_keep_capabilities(true)?;
        }
        // Leaving uid 0 clears every capability else, and without a set-uid
        // program none is regained.
        set_thread_groups(&[])?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        if kept.is_empty() {
            return Ok(());
        }
        set_no_new_privs(true)?;
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: kept,
        };
        set_capabilities(None, sets)?;
        for one in kept.iter() {
            configure_capability_in_ambient_set(one, true)?;
        }
        Ok(())
    };
    // SAFETY: everything that the closure needs was prepared before; it makes
    // system calls only, which neither allocate nor take a lock. The child has
    // one thread.
    unsafe { command.pre_exec(become_user) };
    Command::of(command)
}

const DEV_NET: &str = "/dev/net";

/// The files in a process's own `/dev/net`.
struct Own {
    /// The path of the program.
    path: PathBuf,
    /// The same path, and the program's origin.
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

    /// Mounts the files, in a new mount namespace of the calling process.
    fn mount(&self) -> io::Result<()> {
        let [path, program] = &self.program;
        // SAFETY: threads need not share a mount namespace for memory safety,
        // and the process has one thread.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
        // Mounts made here do not propagate.
        let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change(c"/", slave)?;
        // An executable file for the program; a file on a mount without `nodev`
        // for the device.
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
        // The umask may have removed mode bits.
        chmod(c"/dev/net/tun", anybody)?;
        let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        drop(open(path.as_c_str(), create, Mode::from_raw_mode(0o755))?);
        Ok(mount_bind(program.as_c_str(), path.as_c_str())?)
    }
}

/// Removes all capabilities but these from the calling thread's bounding set.
fn bound(kept: Capabilities) -> io::Result<()> {
    for bit in 0..u64::BITS {
        let Some(capability) = CapabilitySet::from_bits(1 << bit) else {
            continue;
        };
        if !kept.contains(capability) && capability_is_in_bounding_set(capability) == Ok(true) {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    Ok(())
}

/// Drops all privileges of the calling thread only, by raw system calls: the C
/// library's functions would change the whole process.
fn become_nobody() -> io::Result<()> {
    set_no_new_privs(true)?;
    bound(Capabilities::empty())?;
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
