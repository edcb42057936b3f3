//! `AF_XDP` sockets: one for each queue of a device, all on one UMEM.
#![allow(unsafe_code)] // The promise that a new socket is of one owner.

use crate::net::{Interface, set_option};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpDesc, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};
use rustix::process::{Resource, getrlimit};
use rustix::time::Timespec;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use weir_ring::{RingSizes, Umem, XskRings};

/// Whether frames are copied between device and UMEM.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CopyMode {
    /// The device reads and writes the UMEM itself.
    ZeroCopy,
    /// The kernel copies each frame once on reception and once on transmission.
    Copy,
}

impl std::fmt::Display for CopyMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            CopyMode::ZeroCopy => "zero-copy",
            CopyMode::Copy => "copy",
        })
    }
}

/// Advice for running with less memory.
const LESS: &str = "a lower `--ring`, or `Config::ring` and `Config::chunks` in a program";

/// Why a socket was not created.
#[derive(Debug, thiserror::Error)]
pub enum XskError {
    /// The caller lacks privilege.
    #[error("AF_XDP sockets are not permitted: run as root, or with CAP_NET_RAW")]
    NotPermitted,
    /// Another socket is bound to the queue.
    #[error("queue {queue} of `{interface}` is in use by another AF_XDP socket; end its program")]
    Busy {
        /// The interface's name, or number.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The device has no such queue.
    #[error("`{interface}` has no queue {queue}, or does not take frames of this length")]
    NoQueue {
        /// The interface's name, or number.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The driver does not support the mode.
    #[error("the driver of `{interface}` has no {mode} mode for AF_XDP: choose another")]
    NotByDriver {
        /// The interface's name, or number.
        interface: String,
        /// The mode.
        mode: CopyMode,
    },
    /// The kernel lacks `AF_XDP`.
    #[error("this kernel has no AF_XDP: CONFIG_XDP_SOCKETS is needed")]
    NoXdp,
    /// The user's limit of locked memory (`RLIMIT_MEMLOCK`) is too low.
    #[error(
        "the memory for frames, {asked_kib} KiB, is more than this user may lock beside what is \
         locked already: {limit_kib} KiB in all (RLIMIT_MEMLOCK). Allow more, as in \
         `ulimit -l {asked_kib}`, give the program CAP_IPC_LOCK, or ask for less: {LESS}"
    )]
    MemoryLocked {
        /// The needed memory, in KiB.
        asked_kib: u64,
        /// The limit, in KiB.
        limit_kib: u64,
    },
    /// The kernel has not enough memory.
    #[error("there is no memory to {what}, {asked_kib} KiB; ask for less: {LESS}")]
    NoMemory {
        /// The operation that failed.
        what: &'static str,
        /// The needed memory, in KiB.
        asked_kib: u64,
    },
    /// Any other error.
    #[error("the kernel refused to {what} ({source})")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(Errno) -> XskError {
    move |error| match error {
        Errno::PERM | Errno::ACCESS => XskError::NotPermitted,
        Errno::AFNOSUPPORT => XskError::NoXdp,
        error => XskError::System {
            what,
            source: error.into(),
        },
    }
}

/// The settings of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XskSpec {
    /// The interface's number.
    pub ifindex: u32,
    /// The queue.
    pub queue: u32,
    /// Numbers of entries of its rings.
    pub sizes: RingSizes,
    /// The copy mode.
    pub mode: CopyMode,
    /// Whether frames may be in several chunks (Linux 6.6).
    pub frags: bool,
    /// Busy polling: the kernel polls the device within this process's calls, for this time
    /// (`SO_PREFER_BUSY_POLL`, Linux 5.11).
    pub busy_poll: Option<Duration>,
}

/// A bound `AF_XDP` socket.
#[derive(Debug)]
pub struct Xsk {
    socket: OwnedFd,
    /// Address of the UMEM that the socket is bound to.
    memory: u64,
}

/// The kernel's counters of a socket (`XDP_STATISTICS`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct XskCounts {
    /// Frames dropped for other reasons than a full ring, mostly because they were too long.
    pub rx_dropped: u64,
    /// Frames dropped because the rx ring was full.
    pub rx_ring_full: u64,
    /// Frames dropped because no chunk was in the fill ring.
    pub fill_ring_empty: u64,
    /// Invalid entries in the fill ring.
    pub rx_invalid: u64,
    /// Invalid entries in the tx ring.
    pub tx_invalid: u64,
}

impl Xsk {
    /// Creates a socket, binds it and maps its rings. The first socket of a UMEM registers the
    /// UMEM; every further one passes an earlier socket in `shared_with`.
    ///
    /// A socket receives when it is in an XSKMAP and its fill ring has chunks.
    ///
    /// # Errors
    /// See [`XskError`].
    ///
    /// # Panics
    /// If `shared_with` is a socket of another UMEM.
    pub fn bind(
        umem: &Umem,
        shared_with: Option<&Xsk>,
        spec: &XskSpec,
    ) -> Result<(Xsk, XskRings), XskError> {
        let is_of = |other: &Xsk| other.memory == umem.registered().0;
        assert!(shared_with.is_none_or(is_of), "sockets share one memory");
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None);
        let socket = socket.map_err(failed("make an AF_XDP socket"))?;
        if shared_with.is_none() {
            register(&socket, umem)?;
        }
        sockopt::set_xdp_umem_fill_ring_size(&socket, spec.sizes.fill)
            .and_then(|()| {
                sockopt::set_xdp_umem_completion_ring_size(&socket, spec.sizes.completion)
            })
            .and_then(|()| sockopt::set_xdp_rx_ring_size(&socket, spec.sizes.rx))
            .and_then(|()| sockopt::set_xdp_tx_ring_size(&socket, spec.sizes.tx))
            .map_err(|error| no_rings(error, spec.sizes))?;
        raise_tx_budget(&socket, spec.sizes.tx);
        if let Some(time) = spec.busy_poll {
            poll_busily(&socket, time).map_err(|source| XskError::System {
                what: "poll the device busily",
                source,
            })?;
        }
        let bound = match shared_with {
            // The other settings are those of the first socket.
            Some(other) => {
                let flags = SocketAddrXdpFlags::XDP_SHARED_UMEM;
                let address = SocketAddrXdpWithSharedUmem {
                    addr: SocketAddrXdp::new(flags, spec.ifindex, spec.queue),
                    shared_umem_fd: other.socket.as_fd(),
                };
                bind(&socket, &address)
            }
            None => bind(
                &socket,
                &SocketAddrXdp::new(first_flags(spec), spec.ifindex, spec.queue),
            ),
        };
        bound.map_err(|error| refused(error, spec))?;
        // SAFETY: a new socket, not shared yet; bound to this UMEM, which it or `shared_with` has
        // registered.
        unsafe { Xsk::of_fd(socket, spec.sizes, umem) }
    }

    /// Wraps a socket that another process has bound, with rings of these sizes.
    ///
    /// # Safety
    /// As for [`XskRings::map`]: the socket is bound to this UMEM, and its rings are used only by
    /// the processes that share them.
    ///
    /// # Errors
    /// If the descriptor is not such a socket, or its rings have other sizes.
    pub unsafe fn of_fd(
        socket: OwnedFd,
        sizes: RingSizes,
        umem: &Umem,
    ) -> Result<(Xsk, XskRings), XskError> {
        // SAFETY: the caller's promise.
        let rings = unsafe { XskRings::map(&socket, sizes, umem) };
        let rings = rings.map_err(|source| XskError::System {
            what: "map the rings of an AF_XDP socket",
            source,
        })?;
        let memory = umem.registered().0;
        Ok((Xsk { socket, memory }, rings))
    }

    /// Wakes the kernel to send the entries of the tx ring; `false` if the kernel has not taken all
    /// of them, and must be called again.
    ///
    /// # Errors
    /// If the interface is down or gone; otherwise the system's error.
    #[inline]
    pub fn kick_tx(&self) -> io::Result<bool> {
        match send(&self.socket, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Wakes the kernel to read the fill ring, or to poll the device.
    ///
    /// # Errors
    /// The system's error.
    pub fn kick_rx(&self) -> io::Result<()> {
        match recv(&self.socket, &mut [0_u8; 0], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The copy mode in effect.
    ///
    /// # Errors
    /// The system's error.
    pub fn mode(&self) -> io::Result<CopyMode> {
        let options = sockopt::xdp_options(&self.socket)?;
        let zero = rustix::net::xdp::XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY;
        Ok(if options.contains(zero) {
            CopyMode::ZeroCopy
        } else {
            CopyMode::Copy
        })
    }

    /// The kernel's counters.
    ///
    /// # Errors
    /// The system's error.
    pub fn counts(&self) -> io::Result<XskCounts> {
        let counts = sockopt::xdp_statistics(&self.socket)?;
        Ok(XskCounts {
            rx_dropped: counts.rx_dropped,
            rx_ring_full: counts.rx_ring_full.unwrap_or_default(),
            fill_ring_empty: counts.rx_fill_ring_empty_descs.unwrap_or_default(),
            rx_invalid: counts.rx_invalid_descs,
            tx_invalid: counts.tx_invalid_descs,
        })
    }
}

impl AsFd for Xsk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits at most `time` until one of the descriptors is readable; `false` after that time or after
/// a signal.
///
/// # Errors
/// The system's error; also if a descriptor reports an error, for example because its interface is
/// down.
pub fn wait_readable(fds: &[BorrowedFd<'_>], time: Duration) -> io::Result<bool> {
    let mut fds: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let time = Timespec::try_from(time).unwrap_or_default();
    match poll(&mut fds, Some(&time)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR | Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn register(socket: &OwnedFd, umem: &Umem) -> Result<(), XskError> {
    let (addr, len) = umem.registered();
    let umem = XdpUmemReg {
        addr,
        len,
        chunk_size: umem.chunk_bytes(),
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, umem).map_err(|error| no_umem(error, len))
}

fn no_umem(error: Errno, bytes: u64) -> XskError {
    let what = "register the memory for frames";
    let asked_kib = bytes.div_ceil(1024);
    match (error, getrlimit(Resource::Memlock).current) {
        // Corresponds to xdp_umem_account_pages, for a process without CAP_IPC_LOCK.
        (Errno::NOBUFS, Some(limit)) => XskError::MemoryLocked {
            asked_kib,
            limit_kib: limit / 1024,
        },
        (Errno::NOMEM, _) => XskError::NoMemory { what, asked_kib },
        (error, _) => failed(what)(error),
    }
}

fn no_rings(error: Errno, sizes: RingSizes) -> XskError {
    let what = "give an AF_XDP socket rings of that size";
    let addresses = u64::from(sizes.fill) + u64::from(sizes.completion);
    let frames = u64::from(sizes.rx) + u64::from(sizes.tx);
    let bytes = addresses * size_of::<u64>() as u64 + frames * size_of::<XdpDesc>() as u64;
    match error {
        Errno::NOBUFS | Errno::NOMEM => XskError::NoMemory {
            what,
            asked_kib: bytes.div_ceil(1024),
        },
        error => failed(what)(error),
    }
}

fn first_flags(spec: &XskSpec) -> SocketAddrXdpFlags {
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    flags |= match spec.mode {
        CopyMode::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
        CopyMode::Copy => SocketAddrXdpFlags::XDP_COPY,
    };
    if spec.frags {
        flags |= SocketAddrXdpFlags::XDP_USE_SG;
    }
    flags
}

fn refused(error: Errno, spec: &XskSpec) -> XskError {
    let (queue, mode) = (spec.queue, spec.mode);
    let interface = Interface::numbered(spec.ifindex);
    let interface = interface.map_or_else(|_| spec.ifindex.to_string(), |one| one.name);
    match error {
        Errno::BUSY => XskError::Busy { interface, queue },
        Errno::INVAL | Errno::RANGE => XskError::NoQueue { interface, queue },
        Errno::OPNOTSUPP | Errno::PROTONOSUPPORT => XskError::NotByDriver { interface, mode },
        error => failed("bind an AF_XDP socket")(error),
    }
}

/// Lets one system call send the whole tx ring in copy mode (Linux 6.17; before that 32 frames,
/// which is not an error).
pub(crate) fn raise_tx_budget(socket: &OwnedFd, frames: u32) {
    const SOL_XDP: i32 = 283;
    const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
    let _ = set_option(socket, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &frames);
}

fn poll_busily(socket: &OwnedFd, time: Duration) -> io::Result<()> {
    /// Largest number of frames of one poll.
    const BUDGET: u32 = 64;
    let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1_u32)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &BUDGET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Rlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use weir_lab::net::Lab;
    use weir_lab::testenv;

    #[test]
    fn a_refused_memory_lock_names_the_limit() {
        if !testenv::root() {
            return;
        }
        let lab = Lab::new();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (device, _) = lab.link(&a, &b).connect().unwrap();
        let spec = XskSpec {
            ifindex: device.index(),
            queue: 0,
            sizes: RingSizes {
                fill: 64,
                completion: 64,
                rx: 64,
                tx: 64,
            },
            mode: CopyMode::Copy,
            frags: false,
            busy_poll: None,
        };
        let umem = Umem::create(2048, 2048).unwrap();
        let before = getrlimit(Resource::Memlock);
        let limited = Rlimit {
            current: Some(1 << 20),
            ..before
        };
        // The limit concerns all threads, but only those without the capability.
        setrlimit(Resource::Memlock, limited).unwrap();
        let bound = a.run(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::IPC_LOCK);
            std::thread::scope(|scope| {
                let own = scope.spawn(|| {
                    set_capabilities(None, sets).unwrap();
                    Xsk::bind(&umem, None, &spec).map(drop)
                });
                own.join().unwrap()
            })
        });
        setrlimit(Resource::Memlock, before).unwrap();
        let error = bound.unwrap_err();
        let is_named = matches!(
            error,
            XskError::MemoryLocked {
                asked_kib: 4096,
                limit_kib: 1024
            }
        );
        assert!(is_named, "{error:?}");
        let said = error.to_string();
        for part in ["4096 KiB", "1024 KiB", "ulimit -l 4096", "--ring"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
