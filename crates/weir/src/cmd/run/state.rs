//! The stages' state from one process to the next, in memory of the supervisor (`--restart`).
//!
//! ```text
//!  "weirstat"   monotonic time at the stages' time 0, in ns   number of bytes
//!  starts that have read it   Chain::save
//! ```
//!
//! The header is written last: a process that dies while it writes leaves nothing. The next one
//! reads the state, and empties the memory before its first frame, so that a state is used once: an
//! older one would have ports in it that other hosts have by now. A process that dies before its
//! first frame leaves the state for the next one, at most [`STARTS_MAX`] times, lest a state end
//! each process.

use crate::error::{CliError, say};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use weir_chain::Chain;

const MAGIC: &[u8; 8] = b"weirstat";

const HEADER: usize = 32;

/// Starts that may read a state, of which all but the last have failed: half a minute of the
/// supervisor's pauses.
const STARTS_MAX: u64 = 10;

/// Longest state: four million sessions of several translators.
const BYTES_MAX: u64 = 1 << 30;

/// The memory of the supervisor.
pub(super) struct StateMemory {
    file: File,
}

/// A state.
pub(super) struct SavedState {
    bytes: Vec<u8>,
    /// The stages' time 0.
    pub(super) began: Instant,
}

impl StateMemory {
    /// The memory behind this descriptor.
    pub(super) fn open(fd: u32) -> Result<StateMemory, CliError> {
        let path = format!("/proc/self/fd/{fd}");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| {
            CliError::run(format!(
                "cannot open the supervisor's memory {path}: {error}"
            ))
        })?;
        Ok(StateMemory { file })
    }

    /// Reads the state, which stays until the memory is [emptied](StateMemory::empty); `None` if
    /// there is none, or if too many starts have read it.
    pub(super) fn read(&self) -> Option<SavedState> {
        let mut bytes = Vec::new();
        let mut file = &self.file;
        let read = file.rewind();
        let read = read.and_then(|()| file.take(BYTES_MAX).read_to_end(&mut bytes));
        if let Err(error) = read {
            say(&format!("weir: cannot read the earlier state: {error}"));
            return None;
        }
        let (header, state) = bytes.split_first_chunk::<HEADER>()?;
        let number = |at: usize| {
            let bytes: [u8; 8] = header[at..at + 8].try_into().unwrap_or_default();
            u64::from_be_bytes(bytes)
        };
        if header[..8] != *MAGIC || number(16) != state.len() as u64 {
            return None;
        }
        let starts = number(24);
        if starts >= STARTS_MAX {
            say(&format!(
                "weir: the earlier state is given up: {starts} starts with it have failed"
            ));
            self.empty();
            return None;
        }
        if let Err(error) = self.file.write_all_at(&(starts + 1).to_be_bytes(), 24) {
            say(&format!("weir: cannot use the earlier state: {error}"));
            return None;
        }
        let passed = Duration::from_nanos(monotonic().checked_sub(number(8))?);
        Some(SavedState {
            began: Instant::now().checked_sub(passed)?,
            bytes: bytes.split_off(HEADER),
        })
    }

    /// Forgets the state, which has been used.
    pub(super) fn empty(&self) {
        if let Err(error) = self.file.set_len(0) {
            say(&format!(
                "weir: cannot empty the supervisor's memory: {error}"
            ));
        }
    }

    /// Puts the state of a chain whose time 0 was `began`.
    pub(super) fn put(&self, chain: &Chain, began: Instant) -> io::Result<()> {
        let state = chain.save();
        let zero = monotonic().saturating_sub(began.elapsed().as_nanos() as u64);
        self.file.set_len(0)?;
        self.file.write_all_at(&state, HEADER as u64)?;
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&zero.to_be_bytes());
        header[16..24].copy_from_slice(&(state.len() as u64).to_be_bytes());
        self.file.write_all_at(&header, 0)
    }
}

impl SavedState {
    /// Has a chain go on from it, and reports the result.
    pub(super) fn give(self, chain: &mut Chain) {
        let now = self.began.elapsed().as_nanos() as u64;
        let done = chain.restore(now, &self.bytes);
        for (number, result) in done {
            let number = number + 1;
            match result {
                Ok(restored) => say(&format!(
                    "weir: stage {number} goes on with {} sessions; {} have ended",
                    restored.sessions, restored.left_out
                )),
                Err(error) => say(&format!(
                    "weir: stage {number} begins without the earlier state: {error}"
                )),
            }
        }
    }
}

/// The clock of [`Instant`], in ns.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
