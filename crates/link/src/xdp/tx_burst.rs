//! Sends many frames at once, without a socket buffer for each.
//!
//! In copy mode the kernel allocates a socket buffer for each frame that an `AF_XDP` socket sends,
//! and runs the device's softirq between frames. Frames that an XDP program redirects are queued
//! together and need no socket buffer. Therefore an XDP program is run on as many live frames as
//! there are frames to send; it overwrites each live frame with one of the frames and redirects it.
//!
//! ```text
//!  page, shared with the program
//!  0   u32 the frame that is next │ u32 the link │ u32 pools that stay
//!  64  for each frame: u32 where behind these │ u32 its length
//!      the frames, one behind the other, each in cache lines of its own
//! ```
//!
//! The kernel waits for an RCU grace period before and after each run of a program that is attached
//! nowhere (`bpf_dispatcher_change_prog`). This program is therefore attached to the loopback
//! interface of an empty namespace.
//!
//! Each call still takes the machine-wide lock of XDP program changes, whose holder waits for such
//! grace periods: the caller may then block for 10 ms or more. Callers should measure that and stop
//! using bursts.
//!
//! For each call the kernel creates a page pool, which ends with the last of its frames: at the end
//! of the call, or, if a receiver keeps a frame, within a second after the frame is freed. The
//! number of remaining pools is limited ([`PAGE_POOLS_MAX`]), since the kernel has 65,534 page-pool
//! ids for the machine and scans all pools when one ends. The tracepoint `page_pool_release`
//! reports each pool and its missing pages; a program at the tracepoint counts the remaining pools
//! of all users.

use super::abi::{XDP_ADJUST_TAIL, XDP_DROP, atomic_add_u32};
use super::gate::shared_page::LINKS_MAX;
use crate::bpf::{
    AttachError, Attachment, Hook, LiveRun, Load, LoadError, Map, MapError, MapMemory, MapSpec,
    Program, ProgramType, TestRunError,
};
use crate::net::{Namespace, NamespaceError};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_filter::backend::ebpf::{Asm, Insn, Limits, Reg, helper, op};

/// Largest number of frames in one call: half of a veth's queue.
pub const BURST_FRAMES_MAX: usize = 128;

/// Number of frames that the kernel flushes at once: later frames then reuse the pages of earlier
/// ones.
const BATCH: u32 = 64;

/// Number of remaining page pools at which no more are created.
pub const PAGE_POOLS_MAX: u32 = 256;

/// Valid lengths of frames, in bytes.
pub const BURST_FRAME_BYTES: std::ops::RangeInclusive<usize> = 14..=ROOM;

/// Room for one frame, in bytes.
const ROOM: usize = 2048;
/// Bytes of a cache line.
const LINE: usize = 64;
const POOLS_AT: usize = 8;
const SLOTS_AT: usize = 64;
const SLOT_BYTES: usize = 8;
const FRAMES_AT: usize = SLOTS_AT + BURST_FRAMES_MAX * SLOT_BYTES;
const FRAMES_BYTES: usize = BURST_FRAMES_MAX * ROOM;
const PAGE_BYTES: usize = FRAMES_AT + FRAMES_BYTES;

/// The initial content of each live frame: few frames are shorter, and extending a frame costs time
/// for each added byte.
const BLANK: [u8; 60] = [0; 60];

/// The loopback interface's number in every namespace.
const LOOPBACK: u32 = 1;

/// `bpf_map_update_elem(map, key, value, flags)`, with `BPF_NOEXIST`, and
/// `bpf_map_delete_elem(map, key)`.
const MAP_UPDATE_ELEM: i32 = 2;
const NOEXIST: i32 = 1;
const MAP_DELETE_ELEM: i32 = 3;

/// `bpf_xdp_store_bytes(xdp, at, from, bytes)`. Linux 5.18.
const XDP_STORE_BYTES: i32 = 190;

/// Why sending in bursts is not possible.
#[derive(Debug, thiserror::Error)]
pub enum TxBurstError {
    /// The program was not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A shared map could not be created.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The program could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The program could not be run.
    #[error(transparent)]
    Run(#[from] TestRunError),
    /// The empty namespace could not be created.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
}

/// Sends many frames at once on devices that accept redirected frames.
#[derive(Debug)]
pub struct TxBurst {
    program: Program,
    page: MapMemory,
    links: Map,
    _attached: Attachment,
    _counted: Attachment,
    _namespace: Namespace,
}

impl TxBurst {
    /// Loads the programs; no link is added yet.
    ///
    /// # Errors
    /// See [`TxBurstError`]; also if the kernel has no live frames (Linux 5.18).
    pub fn new() -> Result<TxBurst, TxBurstError> {
        let spec = MapSpec {
            mmapable: true,
            ..MapSpec::array(PAGE_BYTES as u32, 1)
        };
        let page = Map::create("weir_bulk_page", &spec)?;
        let links = Map::create("weir_bulk_out", &MapSpec::dev_map(LINKS_MAX))?;
        let load = Load {
            name: "weir_bulk",
            maps: &[page.as_fd(), links.as_fd()],
            ..Load::new(ProgramType::Xdp)
        };
        let program = Program::load(&insns(), &load)?;
        let pools = Map::create("weir_bulk_pools", &MapSpec::hash(8, 1, 2 * PAGE_POOLS_MAX))?;
        let load = Load {
            name: "weir_bulk_count",
            maps: &[page.as_fd(), pools.as_fd()],
            ..Load::new(ProgramType::RawTracepoint)
        };
        let counts = Program::load(&count_pools(), &load)?;
        let namespace = Namespace::new()?;
        let attach = || Attachment::new(&program, LOOPBACK, Hook::XdpGeneric);
        let attached = namespace.run(attach)??;
        let mut bulk = TxBurst {
            program,
            page: page.map_memory(true)?,
            links,
            _attached: attached,
            _counted: Attachment::tracepoint(&counts, c"page_pool_release")?,
            _namespace: namespace,
        };
        // A trial run that sends nothing checks for live frames.
        bulk.put(0, &BLANK);
        bulk.send(LINKS_MAX, 1)?;
        Ok(bulk)
    }

    /// Adds an interface of the calling thread's network namespace as link number `link` (below
    /// [`LINKS_MAX`]).
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn add(&self, link: u32, ifindex: u32) -> Result<(), MapError> {
        let value = ifindex.to_ne_bytes();
        self.links.update(&link.to_ne_bytes(), &value)
    }

    /// Puts a frame at index `place` of the next call, in order from 0; `false` for an invalid
    /// length or index.
    #[inline]
    pub fn put(&mut self, place: usize, frame: &[u8]) -> bool {
        if place >= BURST_FRAMES_MAX || !BURST_FRAME_BYTES.contains(&frame.len()) {
            return false;
        }
        let at = match place.checked_sub(1).and_then(|before| self.slot(before)) {
            Some([at, len]) => at.load(Ordering::Relaxed) + len.load(Ordering::Relaxed),
            None => 0,
        };
        let at = (at as usize).next_multiple_of(LINE);
        let Some([to, len]) = self.slot(place) else {
            return false;
        };
        if at + ROOM > FRAMES_BYTES {
            return false;
        }
        to.store(at as u32, Ordering::Relaxed);
        len.store(frame.len() as u32, Ordering::Relaxed);
        self.page.write(0, FRAMES_AT + at, frame)
    }

    /// The words with a frame's position and length.
    #[inline]
    fn slot(&self, place: usize) -> Option<[&AtomicU32; 2]> {
        let at = SLOTS_AT + place * SLOT_BYTES;
        Some([self.page.u32(0, at)?, self.page.u32(0, at + 4)?])
    }

    /// Number of page pools, of this and other users, that remain because some of their frames are
    /// still in use.
    pub fn pools(&self) -> u32 {
        self.page.load_u32(0, POOLS_AT).unwrap_or_default()
    }

    /// Sends the first `count` frames on a link; returns how many the kernel accepted: all, unless
    /// memory is short or too many [pools](Self::pools) remain. Frames for which the device has no
    /// room are lost.
    ///
    /// # Errors
    /// The system's error; then no frame was sent.
    pub fn send(&self, link: u32, count: usize) -> Result<usize, TestRunError> {
        if self.pools() >= PAGE_POOLS_MAX {
            return Ok(0);
        }
        let count = count.min(BURST_FRAMES_MAX) as u32;
        let (Some(next), Some(out)) = (self.page.u32(0, 0), self.page.u32(0, 4)) else {
            return Ok(0);
        };
        next.store(0, Ordering::Relaxed);
        out.store(link, Ordering::Release);
        let ran = self.program.run_live(&LiveRun {
            frame: &BLANK,
            repeat: count,
            batch: count.min(BATCH),
            ifindex: None,
        });
        match next.load(Ordering::Acquire).min(count) {
            0 => ran.map(|()| 0),
            // These frames were sent, whatever happened to the later ones.
            sent => Ok(sent as usize),
        }
    }
}

/// Program: adds a pool with missing pages to the table, and removes it when no page is missing.
fn count_pools() -> Vec<Insn> {
    const MISSING: Reg = Reg::R7;
    let mut asm = Asm::new();
    let [gone, end] = [(); 2].map(|()| asm.label());
    // `page_pool_release(pool, missing, …)`
    asm.push(Insn::load(op::DW, MISSING, Reg::R1, 8));
    asm.push(Insn::load(op::DW, Reg::R1, Reg::R1, 0));
    asm.push(Insn::store(op::DW, Reg::FP, -8, Reg::R1));
    asm.extend(Insn::load_map(Reg::R1, 1));
    asm.push(Insn::mov64(Reg::R2, Reg::FP));
    asm.push(Insn::alu64(op::ADD, Reg::R2, -8));
    // A signed 32-bit number.
    asm.push(Insn::alu64(op::LSH, MISSING, 32));
    asm.jump(Insn::jump64(op::JEQ, MISSING, 0), gone);
    asm.push(Insn::mov64(Reg::R3, Reg::R2));
    asm.push(Insn::mov64(Reg::R4, NOEXIST));
    asm.push(Insn::call(MAP_UPDATE_ELEM));
    asm.push(Insn::mov64(Reg::R2, 1));
    asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), end);
    add_to_pools(&mut asm);
    asm.bind(gone);
    asm.push(Insn::call(MAP_DELETE_ELEM));
    asm.push(Insn::mov64(Reg::R2, -1));
    asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), end);
    add_to_pools(&mut asm);
    asm.bind(end);
    asm.push(Insn::mov64(Reg::R0, 0));
    asm.push(Insn::exit());
    let insns = asm.finish(&Limits::default());
    insns.expect("the program is short")
}

/// Adds r2 to the number of remaining pools, and exits.
fn add_to_pools(asm: &mut Asm) {
    asm.extend(Insn::load_map_value(Reg::R1, 0, 0));
    asm.push(atomic_add_u32(Reg::R1, POOLS_AT as i16, Reg::R2));
    asm.push(Insn::mov64(Reg::R0, 0));
    asm.push(Insn::exit());
}

/// Program: overwrites a live frame with the next frame, and redirects it.
fn insns() -> Vec<Insn> {
    const CTX: Reg = Reg::R6;
    const PAGE: Reg = Reg::R7;
    const LEN: Reg = Reg::R8;
    const AT: Reg = Reg::R9;
    let mut asm = Asm::new();
    let [same, drop] = [(); 2].map(|()| asm.label());
    asm.push(Insn::mov64(CTX, Reg::R1));
    asm.extend(Insn::load_map_value(PAGE, 0, 0));
    asm.push(Insn::load(op::W, Reg::R2, PAGE, 0));
    let beyond = Insn::jump64(op::JGE, Reg::R2, BURST_FRAMES_MAX as i32);
    asm.jump(beyond, drop);
    asm.push(Insn::mov64(Reg::R1, Reg::R2));
    asm.push(Insn::alu64(op::ADD, Reg::R1, 1));
    asm.push(Insn::store(op::W, PAGE, 0, Reg::R1));
    let shift = SLOT_BYTES.trailing_zeros() as i32;
    asm.push(Insn::alu64(op::LSH, Reg::R2, shift));
    asm.push(Insn::alu64(op::ADD, Reg::R2, PAGE));
    asm.push(Insn::load(op::W, AT, Reg::R2, SLOTS_AT as i16));
    asm.push(Insn::load(op::W, LEN, Reg::R2, SLOTS_AT as i16 + 4));
    let last = (FRAMES_BYTES - ROOM) as i32;
    asm.jump(Insn::jump64(op::JGT, AT, last), drop);
    let (least, most) = (
        *BURST_FRAME_BYTES.start() as i32,
        *BURST_FRAME_BYTES.end() as i32,
    );
    asm.jump(Insn::jump64(op::JLT, LEN, least), drop);
    asm.jump(Insn::jump64(op::JGT, LEN, most), drop);
    asm.push(Insn::mov64(Reg::R2, LEN));
    asm.push(Insn::alu64(op::SUB, Reg::R2, BLANK.len() as i32));
    asm.jump(Insn::jump64(op::JEQ, Reg::R2, 0), same);
    asm.push(Insn::mov64(Reg::R1, CTX));
    asm.push(Insn::call(XDP_ADJUST_TAIL));
    asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), drop);
    asm.bind(same);
    asm.push(Insn::mov64(Reg::R1, CTX));
    asm.push(Insn::mov64(Reg::R2, 0));
    asm.push(Insn::mov64(Reg::R3, PAGE));
    asm.push(Insn::alu64(op::ADD, Reg::R3, AT));
    asm.push(Insn::alu64(op::ADD, Reg::R3, FRAMES_AT as i32));
    asm.push(Insn::mov64(Reg::R4, LEN));
    asm.push(Insn::call(XDP_STORE_BYTES));
    asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), drop);
    asm.extend(Insn::load_map(Reg::R1, 1));
    asm.push(Insn::load(op::W, Reg::R2, PAGE, 4));
    asm.push(Insn::mov64(Reg::R3, XDP_DROP));
    asm.push(Insn::call(helper::REDIRECT_MAP));
    asm.push(Insn::exit());
    asm.bind(drop);
    asm.push(Insn::mov64(Reg::R0, XDP_DROP));
    asm.push(Insn::exit());
    let insns = asm.finish(&Limits::default());
    insns.expect("the program is short")
}
