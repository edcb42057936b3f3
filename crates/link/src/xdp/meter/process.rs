//! Counting of frames whose subscriber the process knows, and no program before it.

use super::Meter;
use super::error::MeterError;
use super::layout::at;
use super::program::{count_program, settle_program};
use super::stage::{MeterStage, When};
use crate::bpf::{Load, LoadError, MapMemory, Program, ProgramType, TestRun, TestRunError};
use std::os::fd::BorrowedFd;
use weir_filter::backend::ebpf::Insn;
use weir_meter::Direction;

/// Bytes of a frame that are given to the program, at most: they fit into one page with room before
/// and behind. A filter sees no byte beyond them.
const BYTES_MAX: usize = 3000;
/// Bytes of a frame, at least: those of an Ethernet header.
const BYTES_MIN: usize = weir_wire::ethernet::Repr::LEN;

/// Frames that programs gave to the process, and those of them that were counted since.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HandedFrames {
    handed: [u64; 2],
    taken: [u64; 2],
}

impl HandedFrames {
    fn of(control: &MapMemory) -> HandedFrames {
        let word = |at| control.load_u64(0, at).unwrap_or(0);
        let words = |first| [word(first), word(first + 8)];
        // Those taken first: what is taken was handed before.
        let taken = words(at::TAKEN);
        HandedFrames {
            handed: words(at::HANDED),
            taken,
        }
    }

    /// Whether all were counted.
    pub fn are_counted(&self) -> bool {
        self.handed == self.taken
    }
}

/// Counts frames for the process that decides whose they are, in the kernel (`BPF_PROG_TEST_RUN` with
/// metadata, Linux 5.14): a kill leaves a frame counted once, or not yet.
#[derive(Debug)]
pub struct ProcessCounter {
    count: Program,
    settle: Program,
    control: MapMemory,
}

impl Meter {
    /// As [`stage`](Self::stage), for a link whose frames the process translates: each is counted
    /// when its way is decided, with the addresses that it has then. The link's program counts what
    /// an entry of the flow cache forwards, and what it drops or gives to the host; a
    /// [`ProcessCounter`] counts frames that arrive at the process.
    pub fn translated_stage(&self, direction: Direction) -> MeterStage {
        let mut stage = self.stage(direction);
        stage.when = When::Decided;
        stage
    }

    /// Counts as unattributed the frames going this way that came to an earlier process, if that left
    /// some uncounted; see [`ProcessCounter::settle`].
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn settle_handed(&self, direction: Direction) -> Result<(), MeterError> {
        let frames = HandedFrames::of(&self.control);
        if frames.are_counted() {
            return Ok(());
        }
        // The program that counts might not fit an earlier configuration's cells.
        let stage = self.translated_stage(direction);
        let settle = loaded(&stage, &settle_program(&stage.spec)?)?;
        Ok(run_settle(&settle, frames)?)
    }
}

fn loaded(stage: &MeterStage, insns: &[Insn]) -> Result<Program, LoadError> {
    let maps: Vec<BorrowedFd<'_>> = stage.maps().collect();
    let load = Load {
        name: "weir_meter_proc",
        program_type: ProgramType::Xdp,
        maps: &maps,
        ..Load::new(ProgramType::Xdp)
    };
    Program::load(insns, &load)
}

fn run_settle(settle: &Program, until: HandedFrames) -> Result<(), TestRunError> {
    let [packets, bytes] = until.handed.map(u64::to_ne_bytes);
    let up_to = [packets, bytes].concat();
    settle.test_run(&TestRun::new(&up_to), &mut []).map(drop)
}

impl ProcessCounter {
    /// What counts for a [translated stage](Meter::translated_stage).
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn new(stage: &MeterStage) -> Result<ProcessCounter, MeterError> {
        Ok(ProcessCounter {
            count: loaded(stage, &count_program(&stage.spec)?)?,
            settle: loaded(stage, &settle_program(&stage.spec)?)?,
            control: stage.maps.control.map_memory(false)?,
        })
    }

    /// Counts a frame as it is now, which had `came_bytes` bytes when it came. Costs a system call.
    ///
    /// # Errors
    /// If the kernel refuses: the frame is not counted, and will be [settled](Self::settle).
    pub fn count(&self, frame: &[u8], came_bytes: usize) -> Result<(), TestRunError> {
        let mut padded = [0; BYTES_MIN];
        let mut bytes = &frame[..frame.len().min(BYTES_MAX)];
        if bytes.len() < BYTES_MIN {
            padded[..bytes.len()].copy_from_slice(bytes);
            bytes = &padded;
        }
        let came = u32::try_from(came_bytes).unwrap_or(u32::MAX).to_ne_bytes();
        let run = TestRun {
            meta: &came,
            ..TestRun::new(bytes)
        };
        self.count.test_run(&run, &mut []).map(drop)
    }

    /// The frames that came to the process so far.
    pub fn handed(&self) -> HandedFrames {
        HandedFrames::of(&self.control)
    }

    /// Counts as unattributed what had come to the process at some time, and was not counted: it was
    /// lost, or a process that was killed had it. No frame of that time may be in hand any more.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn settle(&self, until: HandedFrames) -> Result<(), TestRunError> {
        run_settle(&self.settle, until)
    }
}
