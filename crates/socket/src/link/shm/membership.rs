//! [`Membership`]: a station's membership of a link in shared memory, as files of its user.
//!
//! ```text
//!  /run/weir-link, /run/user/UID/weir-link, /dev/shm/weir-link-UID   mode 0700, the user's
//!    NAME/                 locked (flock) while a station joins or leaves
//!      memory              see weir_ring::shared_link
//!      0 … 15              a FIFO for each station, locked by its process: a byte wakes it
//! ```
//!
//! The kernel unlocks the FIFO of a process that has ended, however that was. The last station that
//! leaves removes the files; those of a link whose stations were all killed are removed by the next
//! process that joins any link of the user.

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, mkdir, mkdirat, mknodat, open,
    openat, unlinkat,
};
use rustix::io::{Errno, Result as SysResult};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_ring::SharedLink;
use weir_ring::shared_link::STATIONS_MAX;

/// Longest name of a link in bytes.
const NAME_LEN_MAX: usize = 64;
/// Longest wait for another station to join or leave.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// As [`LOCK_TIMEOUT`] when a station leaves, which holds its host up. Files that stay are removed by the next
/// station that joins and leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long an address may be that of a station whose process is about to end, which another process
/// replaces.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(1);
const ADDRESS_PAUSE: Duration = Duration::from_millis(10);
/// Links of the user that are looked at, when one is joined, whether their stations are dead.
const SWEPT_MAX: usize = 64;

const MEMORY: &str = "memory";
const DIR: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const FIFO: OFlags = OFlags::NONBLOCK
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The folders in which links of a user may be: the first that the user can use.
fn folders(uid: u32) -> [PathBuf; 2] {
    let first = match uid {
        0 => PathBuf::from("/run/weir-link"),
        uid => PathBuf::from(format!("/run/user/{uid}/weir-link")),
    };
    [first, PathBuf::from(format!("/dev/shm/weir-link-{uid}"))]
}

/// Whether a file that a process of this machine has open, by its path, belongs to a link in shared memory.
pub fn is_of_shared_link(path: &str) -> bool {
    path.contains("/weir-link")
}

/// A station's membership. While it lives, no other process is this station.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) station: usize,
    pub(super) memory: SharedLink,
    /// The FIFO, which is never writable to this descriptor, and which holds the lock.
    pub(super) wake: OwnedFd,
    /// The FIFOs of all stations, for both directions: a write to one without a reader would end the
    /// process by SIGPIPE.
    fifos: Vec<OwnedFd>,
    folder: OwnedFd,
    links: OwnedFd,
    name: String,
    has_left: bool,
}

impl Membership {
    /// Joins the link, which is made if no station is there.
    ///
    /// # Errors
    /// If the name is not one, a folder or file is another user's, all stations are taken, another station
    /// has the address, or the system refuses.
    pub(super) fn join(name: &str, address: u64) -> io::Result<Membership> {
        check_name(name)?;
        let links = links_folder()?;
        sweep(&links, name);
        let began = Instant::now();
        loop {
            let folder = match private_folder(&links, name) {
                // The last station has removed it meanwhile.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && began.elapsed() < LOCK_TIMEOUT =>
                {
                    std::thread::sleep(LOCK_PAUSE);
                    continue;
                }
                folder => folder?,
            };
            lock(&folder, name, began, LOCK_TIMEOUT)?;
            // The last station may have removed the folder since it was opened.
            if fstat(&folder)?.st_nlink == 0 {
                continue;
            }
            let links = links.try_clone()?;
            match Membership::join_in(links, folder, name, address) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && began.elapsed() < ADDRESS_TIMEOUT =>
                {
                    std::thread::sleep(ADDRESS_PAUSE);
                }
                joined => return joined,
            }
        }
    }

    fn join_in(
        links: OwnedFd,
        folder: OwnedFd,
        name: &str,
        address: u64,
    ) -> io::Result<Membership> {
        let fifos = (0..STATIONS_MAX).map(|station| fifo(&folder, station, name));
        let fifos: Vec<OwnedFd> = fifos.collect::<io::Result<_>>()?;
        let locked = (0..STATIONS_MAX).map(|station| {
            let wake = open_fifo(&folder, station)?;
            let locked = flock(&wake, FlockOperation::NonBlockingLockExclusive);
            Ok(locked.is_ok().then_some((station, wake)))
        });
        let locked: Vec<Option<(usize, OwnedFd)>> = locked.collect::<io::Result<_>>()?;
        if locked.iter().all(Option::is_some) {
            // What stations have left that were killed, perhaps of another version.
            let _ = unlinkat(&folder, MEMORY, AtFlags::empty());
        }
        let memory = map(&folder, name)?;
        for (station, free) in locked.iter().enumerate() {
            if free.is_some() {
                memory.set_address(station, 0);
            } else if memory.address(station) == address {
                unlock(locked);
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    format!(
                        "another station of shm:{name} has this MAC address: give another --mac"
                    ),
                ));
            }
        }
        let mut locked = locked;
        let free = locked.iter_mut().find_map(Option::take);
        unlock(locked);
        let Some((station, wake)) = free else {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "all {STATIONS_MAX} stations of shm:{name} are taken: end one of them, or give another name"
                ),
            ));
        };
        // Before the unlock, since the next process compares it. From now on others send to it.
        memory.set_address(station, address);
        flock(&folder, FlockOperation::Unlock)?;
        Ok(Membership {
            station,
            memory,
            wake,
            fifos,
            folder,
            links,
            name: name.to_owned(),
            has_left: false,
        })
    }

    /// Wakes a station that has said that it sleeps or waits.
    pub(super) fn wake(&self, station: usize) {
        // A full FIFO is readable already.
        let _ = rustix::io::write(&self.fifos[station], &[1]);
    }

    /// Takes the bytes that have woken this station.
    pub(super) fn drain(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 64]);
    }

    /// Removes the address of a station whose process has ended. A process that joins meanwhile becomes
    /// another station.
    pub(super) fn clear_if_dead(&self, station: usize) {
        // A description of its own, since a lock belongs to the description.
        let Ok(fifo) = open_fifo(&self.folder, station) else {
            return;
        };
        if flock(&fifo, FlockOperation::NonBlockingLockShared).is_ok() {
            self.memory.set_address(station, 0);
        }
    }

    /// Ends the membership; the last station removes the files.
    pub(super) fn leave(&mut self) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        self.memory.set_address(self.station, 0);
        // They may wait for room for a frame to this station.
        let others = (0..STATIONS_MAX).filter(|station| self.memory.address(*station) != 0);
        others.for_each(|station| self.wake(station));
        let _ = flock(&self.wake, FlockOperation::Unlock);
        if lock(&self.folder, &self.name, Instant::now(), LEAVE_TIMEOUT).is_ok() {
            remove_if_empty(&self.links, self.folder.as_fd(), &self.name);
            let _ = flock(&self.folder, FlockOperation::Unlock);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Unlocks stations that were only looked at. A child that is forked meanwhile has the descriptors, too,
/// so that closing them is not enough.
fn unlock(locked: Vec<Option<(usize, OwnedFd)>>) {
    for (_, wake) in locked.into_iter().flatten() {
        let _ = flock(&wake, FlockOperation::Unlock);
    }
}

fn check_name(name: &str) -> io::Result<()> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_of_name) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "`{name}` is not a name of a link in shared memory: give up to {NAME_LEN_MAX} letters, digits, \
             - and _, such as shm:lan"
        ),
    ))
}

/// Maps the memory, which is made if it is missing.
fn map(folder: &OwnedFd, name: &str) -> io::Result<SharedLink> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, MEMORY, flags, Mode::RUSR | Mode::WUSR)?;
    check_own(&file, FileType::RegularFile, name)?;
    SharedLink::map(file.as_fd())
}

/// The folder of the user's links, which is made if it is missing.
fn links_folder() -> io::Result<OwnedFd> {
    let uid = rustix::process::geteuid().as_raw();
    let mut failed = Vec::new();
    for path in folders(uid) {
        match open_links_folder(&path) {
            Ok(folder) => return Ok(folder),
            Err(error) => failed.push((path, error)),
        }
    }
    // That a folder is another user's says more than that one is missing.
    failed.sort_by_key(|(_, error)| error.kind() != io::ErrorKind::PermissionDenied);
    let (path, error) = failed.into_iter().next().ok_or(Errno::NOENT)?;
    Err(io::Error::new(
        error.kind(),
        format!("cannot use {}: {error}", path.display()),
    ))
}

fn open_links_folder(path: &Path) -> io::Result<OwnedFd> {
    match mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = open(path, DIR, Mode::empty())?;
    check_own(&folder, FileType::Directory, &path.display().to_string())?;
    Ok(folder)
}

fn private_folder(links: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(links, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = openat(links, name, DIR, Mode::empty())?;
    check_own(&folder, FileType::Directory, name)?;
    Ok(folder)
}

/// Refuses a file that is not of this kind, or that another user has made or may use.
fn check_own(file: &OwnedFd, kind: FileType, name: &str) -> io::Result<()> {
    let about = fstat(file)?;
    let is_own = about.st_uid == rustix::process::geteuid().as_raw()
        && FileType::from_raw_mode(about.st_mode) == kind
        && about.st_mode & 0o077 == 0;
    if is_own {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{name} is not this user's alone: another user has made it, or may use it; remove it"
        ),
    ))
}

/// A station's FIFO, which is made if it is missing, for both directions.
fn fifo(folder: &OwnedFd, station: usize, name: &str) -> io::Result<OwnedFd> {
    let at = station.to_string();
    match mknodat(folder, &at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let opened = openat(folder, &at, FIFO | OFlags::RDWR, Mode::empty())?;
    check_own(&opened, FileType::Fifo, name)?;
    Ok(opened)
}

fn open_fifo(folder: &OwnedFd, station: usize) -> SysResult<OwnedFd> {
    openat(
        folder,
        station.to_string(),
        FIFO | OFlags::RDONLY,
        Mode::empty(),
    )
}

/// Locks the folder of a link, by this time after `began`.
fn lock(folder: &OwnedFd, name: &str, began: Instant, timeout: Duration) -> io::Result<()> {
    loop {
        match flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if began.elapsed() < timeout => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "a process has been joining or leaving shm:{name} for {} s: is it stopped?",
                        timeout.as_secs()
                    ),
                ));
            }
            locked => return Ok(locked?),
        }
    }
}

/// Removes the files of a link without stations; its folder is locked.
fn remove_if_empty(links: &OwnedFd, folder: BorrowedFd<'_>, name: &str) {
    let is_free = |station: usize| {
        let flags = FIFO | OFlags::RDONLY;
        match openat(folder, station.to_string(), flags, Mode::empty()) {
            Ok(fifo) => flock(&fifo, FlockOperation::NonBlockingLockExclusive).is_ok(),
            Err(error) => error == Errno::NOENT,
        }
    };
    // A folder that was removed already may have a successor of its name, in which a process joins.
    let is_there = fstat(folder).is_ok_and(|about| about.st_nlink != 0);
    if !is_there || !(0..STATIONS_MAX).all(is_free) {
        return;
    }
    for station in 0..STATIONS_MAX {
        let _ = unlinkat(folder, station.to_string(), AtFlags::empty());
    }
    let _ = unlinkat(folder, MEMORY, AtFlags::empty());
    let _ = unlinkat(links, name, AtFlags::REMOVEDIR);
}

/// Removes the files of other links whose stations were killed.
fn sweep(links: &OwnedFd, joined: &str) {
    let Ok(entries) = rustix::fs::Dir::read_from(links) else {
        return;
    };
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().to_str().ok()?;
        (check_name(name).is_ok() && name != joined).then(|| name.to_owned())
    });
    for name in names.take(SWEPT_MAX) {
        let Ok(folder) = openat(links, &name, DIR, Mode::empty()) else {
            continue;
        };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove_if_empty(links, folder.as_fd(), &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: &str) -> String {
        format!("unit-{test}-{}", std::process::id())
    }

    /// Otherwise a second process with this address could join before the first has set it.
    #[test]
    fn the_address_is_there_once_the_folder_is_unlocked() {
        let one = Membership::join(&name("address"), 7).unwrap();
        assert_eq!(one.memory.address(one.station), 7);
    }

    #[test]
    fn only_the_address_of_a_dead_station_is_cleared() {
        let name = name("dead");
        let one = Membership::join(&name, 7).unwrap();
        let mut other = Membership::join(&name, 8).unwrap();
        one.clear_if_dead(other.station);
        assert_eq!(one.memory.address(other.station), 8);
        // As if its process had been killed.
        other.leave();
        one.memory.set_address(other.station, 8);
        one.clear_if_dead(other.station);
        assert_eq!(one.memory.address(other.station), 0);
    }
}
