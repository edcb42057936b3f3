//! Egress paths: sending for unprivileged users, with a check of each frame.
//!
//! ```text
//!  user: AF_XDP socket ─► u ══ veth ══ p ─► tc: rules ─► redirect ─► interface
//!        and memory       │            │        └─► refused, counted
//!        (nothing else)   └ namespace  └ the interface's namespace
//!                           of its own
//! ```
//!
//! The user gets the bound `AF_XDP` socket and its UMEM. The kernel copies each
//! frame out of the UMEM before the check, so that the user cannot change it
//! afterwards.
//!
//! The path lives as long as the socket, which alone holds the namespace. When
//! the last descriptor is closed, also by the death of the user's process, the
//! kernel removes the veth and all attachments. The check is pinned, so that it
//! outlives the process that created the path: at no time can frames bypass the
//! check.
#![allow(unsafe_code)] // Mapped memory.

use super::egress_rules::{EgressRules, RulesError};
use super::privileged::Privileged;
use crate::bpf::{
    AttachError, Attachment, Hook, Load, LoadError, Map, MapError, MapMemory, MapSpec, PinError,
    PinFolder, Program, ProgramType,
};
use crate::net::{
    FarNamespace, Interface, InterfaceError, Interfaces, NamespaceError, find_index, find_index_by,
    veth,
};
use crate::xdp::raise_tx_budget;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{bind, sockopt};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use weir_filter::backend::ebpf::{
    Access, Asm, EmitError, Fragment, Insn, Limits, Reg, WireLen, emit_fragment, helper, op,
};
use weir_filter::ir::Program as Filter;

/// Frames in flight on one path: a power of two.
const FRAMES: usize = 1024;

/// Bytes of a chunk: 2,048 suffice for an MTU of 1,500; otherwise a page.
const CHUNKS_BYTES: [usize; 2] = [2048, 4096];

/// Why an egress path was not created.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The rules are not valid.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The rules are too large for an eBPF program.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// The interface is missing.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The interface's frames are longer than a chunk.
    #[error("frames of `{interface}` have up to {len} bytes; a sending path carries at most 4096")]
    TooLong {
        /// Its name.
        interface: String,
        /// Bytes of its longest frame.
        len: usize,
    },
    /// The check could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The counters could not be created.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The check could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The check could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The path belongs to another network namespace and is in use.
    #[error(
        "the sending path {name} belongs to another network namespace, and is in use: clean up there (`ip netns exec`, `nsenter`)"
    )]
    Elsewhere {
        /// The path's name.
        name: String,
    },
    /// The namespace of the user's device could not be created.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Any other error.
    #[error(
        "a sending path could not {what} ({source}); it needs root, or a broker's capabilities and \
         2 or 4 MiB that may be locked (LimitMEMLOCK=, `ulimit -l`)"
    )]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> EgressError {
    move |error| EgressError::System {
        what,
        source: error.into(),
    }
}

/// The user's part of a path. Pass both descriptors to the user, and close them
/// here.
#[derive(Debug)]
pub struct EgressSocket {
    /// The `AF_XDP` socket.
    pub socket: OwnedFd,
    /// The UMEM, which contains the frames.
    pub memory: OwnedFd,
    /// Size of the UMEM, in bytes.
    pub memory_bytes: usize,
    /// Size of a chunk, in bytes.
    pub chunk_bytes: usize,
}

/// The privileged end of a path.
#[derive(Debug)]
pub struct EgressPath {
    name: String,
    attachment: Attachment,
    counts: MapMemory,
}

/// Frame counts of a path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EgressCounts {
    /// Frames passed to the interface.
    pub passed: u64,
    /// Frames dropped by the rules.
    pub refused: u64,
}

impl EgressPath {
    /// Creates a path to an interface in the calling thread's network
    /// namespace. `name` is the name of the near veth device and of the check's
    /// pin; the counters' pin is `<name>-counts`.
    ///
    /// # Errors
    /// Without privilege, and see [`EgressError`].
    pub fn open(
        name: &str,
        ifindex: u32,
        rules: &EgressRules,
        pins: &PinFolder,
        privileged: &Privileged,
    ) -> Result<(EgressPath, EgressSocket), EgressError> {
        let interface = Interface::numbered(ifindex)?;
        let len = interface.frame_bytes_max();
        let Some(chunk_bytes) = CHUNKS_BYTES.into_iter().find(|bytes| len <= *bytes) else {
            let interface = interface.name;
            return Err(EgressError::TooLong { interface, len });
        };
        let spec = MapSpec {
            mmapable: true,
            ..MapSpec::array(16, 1)
        };
        let counts = Map::create("weir_sent", &spec)?;
        let check = check(&rules.program()?, ifindex, &counts)?;
        let far = privileged.namespace()?;
        let made = veth::veth(name, FAR, far.namespace.as_fd(), interface.mtu);
        made.map_err(failed("make a pair of devices"))?;
        let guard = DropGuard(Some(name));
        let near = find_index(name).map_err(failed("find its device"))?;
        // The check is attached before the first frame can arrive.
        let attachment = Attachment::new(&check, near, Hook::TcIngress)?;
        unpin(name, pins)?;
        pins.pin(name, &attachment)?;
        pins.pin(&counts_of(name), &counts)?;
        veth::up(near).map_err(failed("set its device up"))?;
        let made = far_end(far, chunk_bytes);
        let (socket, memory) = made.map_err(failed("make its socket"))?;
        guard.defuse();
        let path = EgressPath {
            name: name.to_owned(),
            attachment,
            counts: counts.map_memory(false)?,
        };
        let end = EgressSocket {
            socket,
            memory,
            memory_bytes: FRAMES * chunk_bytes,
            chunk_bytes,
        };
        Ok((path, end))
    }

    /// The path that an earlier process created and pinned; `None` if there is
    /// none.
    ///
    /// # Errors
    /// See [`EgressError`].
    pub fn adopt(name: &str, pins: &PinFolder) -> Result<Option<EgressPath>, EgressError> {
        let (Some(attachment), Some(counts)) = (pins.get(name)?, pins.get(&counts_of(name))?)
        else {
            return Ok(None);
        };
        Ok(Some(EgressPath {
            name: name.to_owned(),
            attachment: Attachment::from_fd(attachment),
            counts: Map::from_fd(counts)?.map_memory(false)?,
        }))
    }

    /// The path's frame counts.
    pub fn counts(&self) -> EgressCounts {
        let count = |at| self.counts.load_u64(0, at).unwrap_or_default();
        EgressCounts {
            passed: count(PASSED),
            refused: count(REFUSED),
        }
    }

    /// Whether the user still holds the socket; otherwise the path is gone.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn is_open(&self) -> Result<bool, EgressError> {
        Ok(self.attachment.info()?.ifindex.is_some())
    }

    /// Drops all further frames. The device stays while the user holds the
    /// socket, so that the path's user remains visible. Call in the network
    /// namespace in which the path was created.
    ///
    /// # Errors
    /// See [`EgressError`].
    pub fn retire(&self) -> Result<(), EgressError> {
        match self.attachment.info()?.ifindex {
            Some(near) => veth::down(near).map_err(failed("set its device down")),
            None => Ok(()),
        }
    }

    /// Removes the path, also if its socket is still open, and the pins.
    ///
    /// # Errors
    /// See [`EgressError`].
    pub fn close(self, pins: &PinFolder) -> Result<(), EgressError> {
        close_egress(&self.name, pins)
    }
}

/// Removes a path that an earlier process left, by name, with its pins;
/// succeeds if there is none. Call in the network namespace in which the path
/// was created; in another namespace only the remains of an unused path can be
/// removed.
///
/// # Errors
/// See [`EgressError`].
pub fn close_egress(name: &str, pins: &PinFolder) -> Result<(), EgressError> {
    // The device is removed first: it must not exist without its check.
    match veth::delete(name) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
            if let Some(check) = pins.get(name)?
                && Attachment::from_fd(check).info()?.ifindex.is_some()
            {
                let name = name.to_owned();
                return Err(EgressError::Elsewhere { name });
            }
        }
        Err(error) => return Err(failed("remove its device")(error)),
    }
    unpin(name, pins)
}

fn unpin(name: &str, pins: &PinFolder) -> Result<(), EgressError> {
    pins.unpin(name)?;
    pins.unpin(&counts_of(name))?;
    Ok(())
}

/// The name of the counters' pin.
fn counts_of(name: &str) -> String {
    format!("{name}-counts")
}

/// Removes the partly created path if a later step fails.
struct DropGuard<'a>(Option<&'a str>);

impl DropGuard<'_> {
    fn defuse(mut self) {
        self.0 = None;
    }
}

impl Drop for DropGuard<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.0 {
            let _ = veth::delete(name);
        }
    }
}

/// The name of the user's device, alone in its namespace.
const FAR: &str = "u";

/// Offsets of the counters in the map's value.
const PASSED: usize = 0;
const REFUSED: usize = 8;

/// `TC_ACT_SHOT`.
const SHOT: i32 = 2;

/// `bpf_skb_pull_data`: copies the whole frame into linear kernel memory.
const SKB_PULL_DATA: i32 = 39;

/// Offsets in `struct __sk_buff`.
const SKB_LEN: i16 = 0;
const SKB_VLAN_PRESENT: i16 = 20;
const SKB_DATA: i16 = 76;
const SKB_DATA_END: i16 = 80;

/// How the rules read a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Through pointers. For an offset that is computed, as that of a UDP port
    /// behind an IPv4 header, the verifier requires `CAP_PERFMON`: it has no
    /// barrier for pointers into a frame.
    Pointers,
    /// By a call for each load.
    Calls,
}

fn check(rules: &Filter, ifindex: u32, counts: &Map) -> Result<Program, EgressError> {
    match load_check(rules, ifindex, counts, Reads::Pointers) {
        Err(EgressError::Load(LoadError::Refused { .. })) => {
            load_check(rules, ifindex, counts, Reads::Calls)
        }
        loaded => loaded,
    }
}

fn load_check(
    rules: &Filter,
    ifindex: u32,
    counts: &Map,
    reads: Reads,
) -> Result<Program, EgressError> {
    let mut asm = Asm::new();
    let (accept, refuse) = (asm.label(), asm.label());
    asm.extend([
        Insn::mov64(Reg::R6, Reg::R1),
        Insn::load(op::W, Reg::R2, Reg::R6, SKB_LEN),
        Insn::call(SKB_PULL_DATA),
    ]);
    asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), refuse);
    // The kernel has moved a VLAN tag out of the frame, and would insert it
    // again.
    asm.push(Insn::load(op::W, Reg::R0, Reg::R6, SKB_VLAN_PRESENT));
    asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), refuse);
    asm.extend([
        Insn::load(op::W, Reg::R9, Reg::R6, SKB_LEN),
        Insn::load(op::W, Reg::R7, Reg::R6, SKB_DATA),
        Insn::load(op::W, Reg::R8, Reg::R6, SKB_DATA_END),
    ]);
    let access = match reads {
        Reads::Pointers => Access::Direct {
            start: Reg::R7,
            end: Reg::R8,
        },
        Reads::Calls => Access::Call {
            helper: helper::SKB_LOAD_BYTES,
            context: Reg::R6,
        },
    };
    let fragment = Fragment {
        access,
        wire_len: WireLen::Reg(Reg::R9),
        result: Reg::R0,
        free: &[Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5],
        stack_top: 0,
        accept,
        reject: refuse,
        short: refuse,
        is_hidden: reads == Reads::Calls,
    };
    emit_fragment(&mut asm, rules, &fragment)?;
    asm.bind(accept);
    asm.extend(count(PASSED));
    asm.extend([
        Insn::mov32(Reg::R1, ifindex as i32),
        Insn::mov32(Reg::R2, 0),
        Insn::call(helper::REDIRECT),
        Insn::exit(),
    ]);
    asm.bind(refuse);
    asm.extend(count(REFUSED));
    asm.extend([Insn::mov32(Reg::R0, SHOT), Insn::exit()]);
    let insns = asm.finish(&Limits::default())?;
    let load = Load {
        name: "weir_send_check",
        maps: &[counts.as_fd()],
        ..Load::new(ProgramType::SchedCls)
    };
    Ok(Program::load(&insns, &load)?)
}

/// Atomically increments a counter.
fn count(at: usize) -> [Insn; 4] {
    /// `BPF_ATOMIC`.
    const ATOMIC: u8 = 0xc0;
    let [value, upper] = Insn::load_map_value(Reg::R1, 0, at as u32);
    let add = Insn {
        code: op::STX | ATOMIC | op::DW,
        ..Insn::store(op::DW, Reg::R1, 0, Reg::R2)
    };
    [value, upper, Insn::mov64(Reg::R2, 1), add]
}

/// The user's end: a socket bound to the far device, and its UMEM.
fn far_end(namespace: FarNamespace, chunk_bytes: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut interfaces = Interfaces::of(namespace.netlink);
    let far = find_index_by(&mut interfaces, FAR)?;
    veth::up_by(interfaces.netlink(), far)?;
    let bytes = FRAMES * chunk_bytes;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("weir-send", flags)?;
    ftruncate(&memory, bytes as u64)?;
    fcntl_add_seals(
        &memory,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    let socket = namespace.xdp;
    with_mapped(&memory, bytes, |start| {
        let umem = XdpUmemReg {
            addr: start as u64,
            len: bytes as u64,
            chunk_size: chunk_bytes as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&socket, umem)
    })?;
    // The kernel requires a fill ring even for a socket that never receives.
    sockopt::set_xdp_umem_fill_ring_size(&socket, 1)?;
    sockopt::set_xdp_umem_completion_ring_size(&socket, FRAMES as u32)?;
    sockopt::set_xdp_tx_ring_size(&socket, FRAMES as u32)?;
    raise_tx_budget(&socket, FRAMES as u32);
    let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, far, 0);
    bind(&socket, &address)?;
    Ok((socket, memory))
}

/// Maps the memory while `run` runs; the kernel keeps the pages, not the
/// mapping.
fn with_mapped(
    memory: &OwnedFd,
    bytes: usize,
    run: impl FnOnce(*mut libc::c_void) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice; no reference
    // to it exists when it is removed.
    unsafe {
        let anywhere = std::ptr::null_mut();
        let start = mmap(anywhere, bytes, protection, MapFlags::SHARED, memory, 0)?;
        let result = run(start);
        munmap(start, bytes)?;
        Ok(result?)
    }
}
