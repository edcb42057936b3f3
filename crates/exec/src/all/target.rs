//! A process of the program: its memory, its descriptors, and their places in epoll sets.

use crate::sock::last_errno;
use crate::{address, real};
use libc::{c_int, iovec, socklen_t};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};

/// The error if this user may not trace the process (ptrace(2)). No error of Linux has this number.
pub(super) const UNSEEN: c_int = 4093;

/// Longest value of a socket option that is read.
pub(super) const VALUE_MAX: usize = 256;

/// The process, by one of its threads: the first one may have ended.
pub(super) struct Target {
    thread: i32,
    pidfd: OwnedFd,
}

/// Where a call has something written, and where its length: addresses of the program.
pub(super) type Room = (u64, u64);

/// Whether the call waits, and its process is the one that is meant.
///
/// # Errors
/// If not.
pub(super) type Check<'a> = &'a dyn Fn() -> Result<(), c_int>;

/// A descriptor's number, and whether `exec` closes it.
pub(super) type Number = (RawFd, bool);

/// A descriptor's place in an epoll set.
pub(super) struct Place {
    set: RawFd,
    fd: RawFd,
    /// The number of the member's file.
    inode: u64,
    events: u32,
    data: u64,
}

/// The first thread of a thread's process.
fn leader(thread: i32) -> Result<i32, Errno> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    let status = status.map_err(|_| Errno::SRCH)?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let leader = line.and_then(|number| number.trim().parse().ok());
    leader.ok_or(Errno::SRCH)
}

impl Target {
    /// The process of a thread.
    ///
    /// # Errors
    /// If it has ended, or is another user's.
    pub(super) fn of(thread: i32) -> Result<Target, c_int> {
        let open = |id, flags| pidfd_open(Pid::from_raw(id).ok_or(Errno::SRCH)?, flags);
        let of_thread = PidfdFlags::from_bits_retain(libc::PIDFD_THREAD);
        let pidfd = match open(thread, of_thread) {
            // Linux before 6.9.
            Err(Errno::INVAL) => leader(thread).and_then(|id| open(id, PidfdFlags::empty())),
            opened => opened,
        };
        let pidfd = pidfd.map_err(Errno::raw_os_error)?;
        Ok(Target { thread, pidfd })
    }

    /// A copy of one of its descriptors.
    ///
    /// # Errors
    /// `EBADF` if there is none; [`UNSEEN`].
    pub(super) fn copy(&self, fd: RawFd) -> Result<OwnedFd, c_int> {
        let copy = pidfd_getfd(&self.pidfd, fd, PidfdGetfdFlags::empty());
        copy.map_err(|why| match why {
            Errno::PERM => UNSEEN,
            why => why.raw_os_error(),
        })
    }

    /// Bytes of its memory.
    ///
    /// # Errors
    /// `EFAULT` if they are not there.
    pub(super) fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, c_int> {
        let mut bytes = vec![0; len];
        let own = part(bytes.as_mut_ptr(), len);
        let its = part(at as *mut u8, len);
        // SAFETY: the buffer has the stated length; the other address is the other process's.
        let count =
            unsafe { libc::process_vm_readv(self.thread, &raw const own, 1, &raw const its, 1, 0) };
        match usize::try_from(count) {
            Ok(count) if count == len => Ok(bytes),
            Ok(_) => Err(libc::EFAULT),
            Err(_) => Err(last_errno()),
        }
    }

    /// Writes to its memory.
    ///
    /// # Errors
    /// As [`Target::read`]; that of the check.
    fn write(&self, at: u64, bytes: &[u8], check: Check<'_>) -> Result<(), c_int> {
        if bytes.is_empty() {
            return Ok(());
        }
        check()?;
        let own = part(bytes.as_ptr().cast_mut(), bytes.len());
        let its = part(at as *mut u8, bytes.len());
        // SAFETY: the kernel reads the own buffer; the other address is the other process's.
        let count = unsafe {
            libc::process_vm_writev(self.thread, &raw const own, 1, &raw const its, 1, 0)
        };
        match usize::try_from(count) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(libc::EFAULT),
            Err(_) => Err(last_errno()),
        }
    }

    /// Reads a socket address and its family.
    ///
    /// # Errors
    /// As `connect(2)`.
    pub(super) fn address(&self, at: u64, len: u64) -> (c_int, Result<SocketAddr, c_int>) {
        let len = (len as u32 as usize).min(size_of::<libc::sockaddr_storage>());
        let bytes = match self.read(at, len) {
            Ok(bytes) => bytes,
            Err(error) => return (-1, Err(error)),
        };
        let (at, len) = (bytes.as_ptr().cast(), bytes.len() as socklen_t);
        // SAFETY: the buffer has the stated length.
        unsafe { (address::family(at, len), address::read(at, len)) }
    }

    /// Writes a socket address as `getsockname(2)` does.
    ///
    /// # Errors
    /// `EINVAL` for a length that is not one, `EFAULT`; that of the check.
    pub(super) fn write_address(
        &self,
        address: SocketAddr,
        (at, len_at): Room,
        check: Check<'_>,
    ) -> Result<(), c_int> {
        if at == 0 {
            return Ok(());
        }
        let given = self.read(len_at, 4)?;
        let given = given
            .first_chunk()
            .map_or(0, |len| u32::from_ne_bytes(*len));
        let mut room = [0_u8; size_of::<libc::sockaddr_storage>()];
        let mut len = given.min(room.len() as u32);
        if i32::try_from(given).is_err() {
            return Err(libc::EINVAL);
        }
        let to = room.as_mut_ptr().cast();
        // SAFETY: the buffer has at least the stated length.
        unsafe { address::write(address, to, &raw mut len) }?;
        let written = &room[..(len.min(given) as usize).min(room.len())];
        self.write(at, written, check)?;
        self.write(len_at, &len.to_ne_bytes(), check)
    }

    /// Writes an option's value as `getsockopt(2)` does.
    ///
    /// # Errors
    /// As [`Target::write_address`].
    pub(super) fn write_value(
        &self,
        value: &[u8],
        (at, len_at): Room,
        check: Check<'_>,
    ) -> Result<(), c_int> {
        let given = self.read(len_at, 4)?;
        let given = given
            .first_chunk()
            .map_or(0, |len| i32::from_ne_bytes(*len));
        let given = usize::try_from(given).map_err(|_| libc::EINVAL)?;
        let len = value.len().min(given);
        self.write(at, &value[..len], check)?;
        self.write(len_at, &(len as u32).to_ne_bytes(), check)
    }

    /// The process's descriptors, with what each is.
    fn fds(&self) -> Vec<(RawFd, String)> {
        let folder = format!("/proc/{}/fd", self.thread);
        let Ok(all) = std::fs::read_dir(&folder) else {
            return Vec::new();
        };
        let numbers = all.filter_map(|one| one.ok()?.file_name().into_string().ok()?.parse().ok());
        let known = numbers.filter_map(|fd: RawFd| {
            let what = std::fs::read_link(format!("{folder}/{fd}")).ok()?;
            Some((fd, what.into_os_string().into_string().ok()?))
        });
        known.collect()
    }

    fn about(&self, fd: RawFd) -> String {
        let path = format!("/proc/{}/fdinfo/{fd}", self.thread);
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// The numbers of a socket's descriptors, by the number of its file.
    pub(super) fn numbers(&self, inode: u64) -> (Vec<Number>, Vec<Place>) {
        let all = self.fds();
        let name = format!("socket:[{inode}]");
        let own = all.iter().filter(|(_, what)| *what == name);
        let numbers = own.map(|(fd, _)| (*fd, is_cloexec(&self.about(*fd))));
        let numbers: Vec<Number> = numbers.collect();
        let sets = all
            .iter()
            .filter(|(_, what)| what == "anon_inode:[eventpoll]");
        let places = sets.flat_map(|(set, _)| places(*set, &self.about(*set)));
        let is_own =
            |place: &Place| place.inode == inode && numbers.iter().any(|(fd, _)| *fd == place.fd);
        let places = places.filter(is_own).collect();
        (numbers, places)
    }

    /// Gives a descriptor the places in epoll sets that the one had which it has replaced. The kernel knows a
    /// member by file and number: a thread with descriptors of its own gives it that number there.
    pub(super) fn enter(&self, places: &[Place], fd: &OwnedFd) {
        let sets = places
            .iter()
            .filter_map(|place| Some((self.copy(place.set).ok()?, place)));
        let sets: Vec<(OwnedFd, &Place)> = sets.collect();
        let Some(last) = sets.iter().map(|(_, place)| place.fd).max() else {
            return;
        };
        let enter = || {
            // SAFETY: the call takes a flag. It copies the table of descriptors for this thread, so that no
            // number changes in another one.
            if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
                return;
            }
            // None of the sets' numbers. All end with the thread's table.
            let above = |fd: &OwnedFd| {
                let moved = rustix::io::fcntl_dupfd_cloexec(fd, last + 1);
                moved.map_or(-1, IntoRawFd::into_raw_fd)
            };
            let fd = above(fd);
            let moved: Vec<RawFd> = sets.iter().map(|(set, _)| above(set)).collect();
            for (set, (_, place)) in moved.into_iter().zip(&sets) {
                let mut event = libc::epoll_event {
                    events: place.events,
                    u64: place.data,
                };
                // SAFETY: the calls take numbers, and an event that lives as long; no value has the numbers
                // of this thread's table that they change.
                unsafe {
                    if real::dup3(fd, place.fd, libc::O_CLOEXEC) == place.fd {
                        real::epoll_ctl(set, libc::EPOLL_CTL_ADD, place.fd, &raw mut event);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            // Without a thread the places are lost.
            let _ = std::thread::Builder::new().spawn_scoped(scope, enter);
        });
    }
}

fn part(at: *mut u8, len: usize) -> iovec {
    iovec {
        iov_base: at.cast(),
        iov_len: len,
    }
}

/// Whether `exec` closes a descriptor, by `/proc/PID/fdinfo/FD` (proc_pid_fdinfo(5)).
fn is_cloexec(about: &str) -> bool {
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|digits| i32::from_str_radix(digits.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_CLOEXEC != 0)
}

/// The members of an epoll set, by its `fdinfo`.
fn places(set: RawFd, about: &str) -> Vec<Place> {
    let lines = about.lines().filter_map(|line| line.strip_prefix("tfd:"));
    let places = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let mut value = |name: &str| {
            let word = words.next()?;
            let digits = if word == name {
                words.next()?
            } else {
                word.strip_prefix(name)?
            };
            u64::from_str_radix(digits, 16).ok()
        };
        let events = value("events:")?;
        let data = value("data:")?;
        let inode = words.find_map(|word| word.strip_prefix("ino:"))?;
        Some(Place {
            set,
            fd,
            inode: u64::from_str_radix(inode, 16).ok()?,
            events: events as u32,
            data,
        })
    });
    places.collect()
}
