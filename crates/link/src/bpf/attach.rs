//! Attachments of eBPF programs to hooks of network interfaces.
//!
//! An attachment is a BPF link (`BPF_LINK_CREATE`). The kernel removes it, and releases the
//! program, when its last descriptor and last pin are gone or when the interface is removed.

use super::program::Program;
use super::{is_not_permitted, sys};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A hook of an interface at which a program runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hook {
    /// XDP in the driver, before the kernel allocates a socket buffer.
    XdpNative,
    /// XDP after the driver (skb mode), on any interface.
    XdpGeneric,
    /// tc ingress: received frames (tcx, Linux 6.6).
    TcIngress,
    /// tc egress: frames to be sent (tcx, Linux 6.6).
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

    /// Whether the hook is one of the two XDP hooks.
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
    /// The caller lacks privilege.
    #[error("attaching a program is not permitted: run as root, or with CAP_BPF and CAP_NET_ADMIN")]
    NotPermitted,
    /// The namespace has no interface with that number.
    #[error("there is no interface {ifindex} in this network namespace")]
    NoInterface {
        /// Its number.
        ifindex: u32,
    },
    /// Another XDP program is attached; XDP accepts one program.
    #[error(
        "another XDP program is attached to interface {ifindex}; detach it (`ip link set dev … xdp off`), or use tc"
    )]
    Busy {
        /// Its number.
        ifindex: u32,
    },
    /// The driver does not support XDP on this interface in its present configuration.
    #[error(
        "the driver of interface {ifindex} cannot run {hook} ({source}); use XDP generic or tc, or see `dmesg`"
    )]
    NotByDriver {
        /// Its number.
        ifindex: u32,
        /// The hook.
        hook: Hook,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel does not support the hook.
    #[error(
        "this kernel does not know {hook} by BPF link ({source}): tcx needs Linux 6.6, XDP 5.9"
    )]
    OldKernel {
        /// The hook.
        hook: Hook,
        /// The system's error.
        source: io::Error,
    },
    /// The attachment was detached, or its interface was removed.
    #[error(
        "the program is no longer attached: its interface is gone, or another process detached it"
    )]
    Gone,
    /// Any other error.
    #[error("the kernel refused to {what} ({source})")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A program attached to a hook.
#[derive(Debug)]
pub struct Attachment {
    fd: OwnedFd,
}

/// The kernel's information about an attachment (`struct bpf_link_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachmentInfo {
    /// The BPF link's id.
    pub id: u32,
    /// The program's id.
    pub program_id: u32,
    /// The interface's number; `None` if the interface is gone.
    pub ifindex: Option<u32>,
    /// Whether the hook is an XDP hook; otherwise it is a tc hook.
    pub xdp: bool,
}

impl Attachment {
    /// Attaches a program of the hook's type.
    ///
    /// At tc the program runs after those that are already attached.
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

    /// Attaches a program of type [`RawTracepoint`](super::ProgramType::RawTracepoint) to the
    /// tracepoint with that name.
    ///
    /// # Errors
    /// See [`AttachError`]; also if the kernel has no such tracepoint.
    pub fn tracepoint(program: &Program, name: &CStr) -> Result<Attachment, AttachError> {
        let opened = sys::raw_tracepoint_open(name, program.as_fd());
        let fd = opened.map_err(|source| failed("attach a program to a tracepoint", source))?;
        Ok(Attachment { fd })
    }

    /// Wraps the descriptor of an existing BPF link.
    pub fn from_fd(fd: OwnedFd) -> Attachment {
        Attachment { fd }
    }

    /// Replaces the attached program without a gap. Waits for an RCU grace period (8 ms), so
    /// frequent changes should go to a slot that the program tail-calls.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn replace(&self, program: &Program) -> Result<(), AttachError> {
        let updated = sys::link_update(self.fd.as_fd(), program.as_fd());
        updated.map_err(|source| failed("replace an attached program", source))
    }

    /// Detaches the program at once. Descriptors and pins of the attachment remain, without a
    /// program.
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

    /// Queries the kernel.
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

/// The ids of the programs at a tc hook, in the order in which they run.
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
        // XDP returns the same error number for this case as for others.
        Some(libc::EINVAL) if is_missing(ifindex) => AttachError::NoInterface { ifindex },
        Some(libc::EBUSY | libc::EEXIST) if hook.is_xdp() => AttachError::Busy { ifindex },
        // tcx never returns EINVAL because of the interface; XDP does if the MTU or the queues do
        // not suit the driver.
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

/// Whether the calling thread's network namespace lacks an interface with that number.
pub(crate) fn is_missing(ifindex: u32) -> bool {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    socket(AddressFamily::UNIX, SocketType::DGRAM, None)
        .is_ok_and(|socket| netdevice::index_to_name(&socket, ifindex).is_err())
}
