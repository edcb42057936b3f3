//! Attachments: what ties a program to a hook of an interface.
//!
//! Each is a BPF link of the kernel (the word link is taken here): it goes,
//! and the program with it, when its last descriptor and its last pin are
//! gone, or with the interface.

use super::program::Program;
use super::{is_not_permitted, sys};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Where on an interface a program runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hook {
    /// XDP in the driver, before the kernel spends anything on a frame.
    XdpNative,
    /// XDP after the driver, on any interface.
    XdpGeneric,
    /// tc, frames that come in (tcx, Linux 6.6).
    TcIngress,
    /// tc, frames that go out (tcx, Linux 6.6).
    TcEgress,
}

impl Hook {
    /// The number in `enum bpf_attach_type`.
    fn attach_type(self) -> u32 {
        match self {
            Hook::XdpNative | Hook::XdpGeneric => sys::ATTACH_XDP,
            Hook::TcIngress => 46,
            Hook::TcEgress => 47,
        }
    }

    /// `XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`.
    fn flags(self) -> u32 {
        match self {
            Hook::XdpGeneric => 1 << 1,
            Hook::XdpNative => 1 << 2,
            Hook::TcIngress | Hook::TcEgress => 0,
        }
    }

    /// Whether it is one of XDP.
    pub fn is_xdp(self) -> bool {
        matches!(self, Hook::XdpNative | Hook::XdpGeneric)
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Hook::XdpNative => "XDP native",
            Hook::XdpGeneric => "XDP generic",
            Hook::TcIngress => "tc ingress",
            Hook::TcEgress => "tc egress",
        })
    }
}

/// Why a program was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Privilege is missing.
    #[error("attaching a program is not permitted: run as root, or with CAP_BPF and CAP_NET_ADMIN")]
    NotPermitted,
    /// There is no such interface here.
    #[error("there is no interface {ifindex} in this network namespace")]
    NoInterface {
        /// Its number.
        ifindex: u32,
    },
    /// Someone else's XDP program is there, and XDP has room for one.
    #[error(
        "another XDP program is attached to interface {ifindex}; detach it (`ip link set dev … xdp off`), or use tc"
    )]
    Busy {
        /// Its number.
        ifindex: u32,
    },
    /// The driver has no XDP, or not on this interface as it is set up.
    #[error(
        "the driver of interface {ifindex} cannot run {hook} ({source}); use XDP generic or tc, or see `dmesg`"
    )]
    NotByDriver {
        /// Its number.
        ifindex: u32,
        /// Which hook.
        hook: Hook,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel does not know the hook.
    #[error(
        "this kernel does not know {hook} by BPF link ({source}): tcx needs Linux 6.6, XDP 5.9"
    )]
    OldKernel {
        /// Which hook.
        hook: Hook,
        /// What the system said.
        source: io::Error,
    },
    /// The attachment has lost its interface or was detached.
    #[error("the program is attached no longer: its interface is gone, or someone detached it")]
    Gone,
    /// Anything else.
    #[error("the kernel refused to {what} ({source})")]
    System {
        /// What was asked.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A program at a hook.
#[derive(Debug)]
pub struct Attachment {
    fd: OwnedFd,
}

/// What the kernel says of an attachment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachmentInfo {
    /// The kernel's number for it.
    pub id: u32,
    /// The kernel's number for the program.
    pub program_id: u32,
    /// The interface, while there is one.
    pub ifindex: Option<u32>,
    /// Whether it is at an XDP hook (else at tc).
    pub xdp: bool,
}

impl Attachment {
    /// Attaches a program, of the type that the hook runs.
    ///
    /// At tc it comes behind those that are there already.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn new(program: &Program, ifindex: u32, hook: Hook) -> Result<Attachment, AttachError> {
        let made = sys::link_create(&sys::LinkCreate {
            program: program.as_fd(),
            ifindex,
            attach_type: hook.attach_type(),
            flags: hook.flags(),
        });
        match made {
            Ok(fd) => Ok(Attachment { fd }),
            Err(source) => Err(refused(source, ifindex, hook)),
        }
    }

    /// Has a program of the type [`RawTracepoint`](super::ProgramType::RawTracepoint)
    /// run each time that the kernel comes by the tracepoint of that name.
    ///
    /// # Errors
    /// See [`AttachError`]; also where the kernel has no such tracepoint.
    pub fn tracepoint(program: &Program, name: &CStr) -> Result<Attachment, AttachError> {
        let opened = sys::raw_tracepoint_open(name, program.as_fd());
        let fd = opened.map_err(|source| failed("attach a program to a tracepoint", source))?;
        Ok(Attachment { fd })
    }

    /// Takes a descriptor of a BPF link that was made elsewhere.
    pub fn from_fd(fd: OwnedFd) -> Attachment {
        Attachment { fd }
    }

    /// Puts another program in place, without a gap. Waits for the kernel's
    /// grace period (8 ms): to change often, change a slot that the program
    /// calls.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn replace(&self, program: &Program) -> Result<(), AttachError> {
        let updated = sys::link_update(self.fd.as_fd(), program.as_fd());
        updated.map_err(|source| failed("replace an attached program", source))
    }

    /// Takes the program off its hook, at once; descriptors and pins remain,
    /// of nothing.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn detach(&self) -> Result<(), AttachError> {
        match sys::link_detach(self.fd.as_fd()) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => Ok(()),
            Err(source) => Err(failed("detach a program", source)),
        }
    }

    /// Asks the kernel.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn info(&self) -> Result<AttachmentInfo, AttachError> {
        const LINK_TYPE_XDP: u32 = 6;
        let info = sys::link_info(self.fd.as_fd());
        let info = info.map_err(|source| failed("say what is attached", source))?;
        Ok(AttachmentInfo {
            id: info.id,
            program_id: info.program_id,
            ifindex: (info.ifindex != 0).then_some(info.ifindex),
            xdp: info.link_type == LINK_TYPE_XDP,
        })
    }
}

impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Attachment> for OwnedFd {
    fn from(attachment: Attachment) -> OwnedFd {
        attachment.fd
    }
}

/// The kernel's numbers of the programs at a tc hook, in the order they run.
///
/// # Errors
/// See [`AttachError`]; kernels before 6.6 have no such hooks.
pub fn programs_at(ifindex: u32, hook: Hook) -> Result<Vec<u32>, AttachError> {
    match sys::prog_query(ifindex, hook.attach_type()) {
        Ok(query) => Ok(query.program_ids),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(refused(source, ifindex, hook)),
    }
}

fn failed(what: &'static str, source: io::Error) -> AttachError {
    match source.raw_os_error() {
        _ if is_not_permitted(&source) => AttachError::NotPermitted,
        Some(libc::ENOLINK) => AttachError::Gone,
        _ => AttachError::System { what, source },
    }
}

fn refused(source: io::Error, ifindex: u32, hook: Hook) -> AttachError {
    match source.raw_os_error() {
        _ if is_not_permitted(&source) => AttachError::NotPermitted,
        Some(libc::ENODEV) => AttachError::NoInterface { ifindex },
        // XDP has the same number for this as for everything else.
        Some(libc::EINVAL) if is_missing(ifindex) => AttachError::NoInterface { ifindex },
        Some(libc::EBUSY | libc::EEXIST) if hook.is_xdp() => AttachError::Busy { ifindex },
        // tcx never says EINVAL of an interface; XDP does for drivers that
        // find the MTU or the queues wrong.
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE | libc::EMSGSIZE | libc::ENOSPC)
            if hook == Hook::XdpNative =>
        {
            AttachError::NotByDriver {
                ifindex,
                hook,
                source,
            }
        }
        Some(libc::EINVAL | libc::EOPNOTSUPP) => AttachError::OldKernel { hook, source },
        _ => AttachError::System {
            what: "attach a program",
            source,
        },
    }
}

/// Whether the calling thread's network namespace has no interface of that
/// number.
pub(crate) fn is_missing(ifindex: u32) -> bool {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    socket(AddressFamily::UNIX, SocketType::DGRAM, None)
        .is_ok_and(|socket| netdevice::index_to_name(&socket, ifindex).is_err())
}
