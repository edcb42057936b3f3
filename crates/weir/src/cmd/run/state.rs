//! The stages' state from one process to the next, in memory of the supervisor (`--restart`).
//!
//! ```text
//!  "weirstat"   monotonic time at the stages' time 0, in ns   number of bytes   Chain::save
//! ```
//!
//! The header is written last: a process that dies while it writes leaves nothing. The next one
//! takes the state and empties the memory, so that a state is used once: an older one would have
//! ports in it that other hosts have by now.

use crate::error::{CliError, say};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use weir_chain::Chain;

const MAGIC: &[u8; 8] = b"weirstat";

const HEADER: usize = 24;

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

    /// Takes the state out; `None` if there is none.
    pub(super) fn take(&self) -> Option<SavedState> {
        let mut bytes = Vec::new();
        let read = (&self.file).take(BYTES_MAX).read_to_end(&mut bytes);
        let emptied = self.file.set_len(0);
        if let Err(error) = read.map(drop).and(emptied) {
            say(&format!("weir: cannot take the earlier state: {error}"));
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
        let passed = Duration::from_nanos(monotonic().checked_sub(number(8))?);
        Some(SavedState {
            began: Instant::now().checked_sub(passed)?,
            bytes: bytes.split_off(HEADER),
        })
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
        header[16..].copy_from_slice(&(state.len() as u64).to_be_bytes());
        self.file.write_all_at(&header, 0)
    }
}

impl SavedState {
    /// Has a chain go on from it, and reports the result.
    pub(super) fn give(&self, chain: &mut Chain) {
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
