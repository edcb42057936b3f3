//! The native back end: compiles a program to machine code for x86-64 and aarch64.
//!
//! ```text
//! Program ─► liveness ─► regalloc ─► generate ─► bytes ─► arena ─► Code
//!            required    registers   checks,     x64,     write once,
//!            lengths     and slots   moves       a64      run anywhere
//! ```
//!
//! Compilation is as fast as execution matters: three passes over the program, no
//! hashing, instructions encoded by `dynasmrt`. So binding a filter costs
//! microseconds. The code itself is fast for three reasons:
//!
//! - Bounds checks are merged and moved up as far as verdicts allow
//!   (`required_len.rs`).
//! - Values that are only tested for equality or for bits stay in the frame's byte
//!   order (`liveness.rs`).
//! - Blocks fall through to one another.
//!
//! Positions are computed in 64 bits from zero-extended values, so base plus offset
//! cannot wrap, and every load follows a check of its last byte.
//!
//! This folder is the only one in `filter` with unsafe code and a file descriptor:
//! executable memory is a mapping (`arena.rs`). Calling generated code is sound only
//! for a program that passes [`Program::verify`], so [`Code::compile`] calls it.

mod a64;
mod arena;
mod fork_guard;
mod free_list;
mod generate;
mod icache;
mod listing;
mod liveness;
mod location;
mod moves;
mod regalloc;
mod required_len;
mod target;
mod x64;

use crate::ir::{Program, VerifyError};

/// Maximum number of stack slots of one program, which bounds the live values beyond the
/// registers. 1,000 slots of 4 bytes stay below a page, so the stack frame cannot step
/// over the guard page.
pub const SLOTS_MAX: usize = 1_000;

/// Maximum number of bytes of code of one program.
pub const CODE_BYTES_MAX: usize = 8 << 20;

/// Bytes of code memory for all programs of a process.
pub const ARENA_BYTES: usize = 64 << 20;

/// Registers this process for the memory of native code, which the first compilation does otherwise.
///
/// While the process has one thread, this takes a microsecond. Later the kernel waits until each core
/// has passed through its scheduler, which takes some 15 ms (`membarrier(2)`).
pub fn register_early() {
    // A kernel that cannot do it says so again at the first compilation.
    let _ = icache::register();
}

/// The reason why a program has no native code; the interpreter can still run it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NativeError {
    /// The machine is neither x86-64 nor aarch64, or the system is not Linux.
    #[error("there is no native code for this machine; use the interpreter")]
    Unsupported,
    /// The program breaks an invariant of the IR.
    #[error("the program is invalid: {0}")]
    Invalid(#[from] VerifyError),
    /// More values live at one time than the stack frame holds.
    #[error("more than {max} values are needed at the same time; use the interpreter")]
    TooManyLive {
        /// The limit, [`SLOTS_MAX`].
        max: usize,
    },
    /// The code is too long.
    #[error("the code is longer than {max} bytes; use the interpreter")]
    TooLong {
        /// The limit, [`CODE_BYTES_MAX`].
        max: usize,
    },
    /// The arena has no free range that is long enough.
    #[error(
        "no room for {wanted} bytes of code: {used} of {max} are in use, or the free memory is fragmented; drop filters"
    )]
    ArenaFull {
        /// Bytes of this program's code.
        wanted: usize,
        /// Bytes in use.
        used: usize,
        /// The limit, [`ARENA_BYTES`].
        max: usize,
    },
    /// The limit on file sizes is below the size of the arena, which is a memory file.
    #[error(
        "files may have {limit} bytes at most (ulimit -f), and the memory that native code lives in has {wanted}; use the interpreter"
    )]
    FileLimit {
        /// The limit, `RLIMIT_FSIZE`.
        limit: u64,
        /// [`ARENA_BYTES`].
        wanted: usize,
    },
    /// The system refused executable memory.
    #[error("the system refuses executable memory ({0}); use the interpreter")]
    Memory(#[from] rustix::io::Errno),
}

/// A processor architecture for which code can be generated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    /// x86-64, called as `extern "sysv64"`.
    X64,
    /// aarch64, called as AAPCS64 specifies.
    A64,
}

impl Arch {
    /// The architecture of this machine; `None` if no code can be generated for it.
    pub fn host() -> Option<Arch> {
        match () {
            () if !cfg!(target_os = "linux") => None,
            () if cfg!(target_arch = "x86_64") => Some(Arch::X64),
            () if cfg!(all(target_arch = "aarch64", target_endian = "little")) => Some(Arch::A64),
            () => None,
        }
    }

    /// The usual name of the architecture.
    pub fn name(self) -> &'static str {
        match self {
            Arch::X64 => "x86-64",
            Arch::A64 => "aarch64",
        }
    }
}

fn generate(
    program: &Program,
    arch: Arch,
    marks: bool,
) -> Result<generate::Generated, NativeError> {
    program.verify()?;
    match arch {
        Arch::X64 => generate::generate::<x64::X64>(program, marks),
        Arch::A64 => generate::generate::<a64::A64>(program, marks),
    }
}

/// Returns the position-independent machine code of `program` for any architecture.
///
/// # Errors
/// Those of [`Code::compile`] that do not concern memory.
pub fn assemble(program: &Program, arch: Arch) -> Result<Vec<u8>, NativeError> {
    Ok(generate(program, arch, false)?.bytes)
}

/// Returns the machine code of `program` as text: each instruction of the IR with its
/// bytes and the location of its value.
///
/// # Errors
/// Those of [`Code::compile`] that do not concern memory.
pub fn listing(program: &Program, arch: Arch) -> Result<String, NativeError> {
    Ok(listing::text(
        program,
        arch,
        &generate(program, arch, true)?,
    ))
}

/// Bytes of executable memory in use in this process.
pub fn bytes_used() -> usize {
    arena::bytes_used()
}

/// A program compiled for this machine.
///
/// A child process made by `fork(2)` shares the memory with its parent. The child may
/// run the code as long as the parent keeps it, and compiles into memory of its own.
/// As with any lock, the child of a multithreaded process must not compile or drop
/// code if another thread might have done so during the fork.
#[derive(Debug)]
pub struct Code {
    memory: arena::Memory,
}

/// The signature of generated code: bytes, their number, length on the wire.
#[cfg(target_arch = "x86_64")]
type Entry = unsafe extern "sysv64" fn(*const u8, usize, u32) -> u32;
#[cfg(not(target_arch = "x86_64"))]
type Entry = unsafe extern "C" fn(*const u8, usize, u32) -> u32;

/// Runs the code at `start`; returns the verdict.
///
/// # Safety
/// `start` points to the complete code of a verified program for this processor.
#[inline]
#[expect(unsafe_code, reason = "the jump into generated code")]
unsafe fn call(start: *const u8, bytes: &[u8], wire_len: u32) -> u32 {
    // SAFETY: the caller guarantees that code with this signature starts there.
    let entry: Entry = unsafe { std::mem::transmute(start) };
    // SAFETY: the code reads `bytes` behind a check of each position, and
    // writes nothing but its own stack frame of less than a page.
    unsafe { entry(bytes.as_ptr(), bytes.len(), wire_len) }
}

impl Code {
    /// Verifies and compiles `program`.
    ///
    /// # Errors
    /// On a machine without native code, for an invalid program, beyond [`SLOTS_MAX`],
    /// [`CODE_BYTES_MAX`] or [`ARENA_BYTES`], and if the system refuses executable
    /// memory.
    pub fn compile(program: &Program) -> Result<Code, NativeError> {
        let arch = Arch::host().ok_or(NativeError::Unsupported)?;
        let generated = generate(program, arch, false)?;
        Ok(Code {
            memory: arena::Memory::install(&generated.bytes)?,
        })
    }

    /// Runs the program on the captured `bytes` of a frame of `wire_len` bytes. Returns
    /// the snap length; zero rejects the frame.
    ///
    /// An inlined call is one indirect call, so no entry point for batches is needed.
    #[inline]
    #[expect(unsafe_code, reason = "runs generated code")]
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        // SAFETY: the arena holds the code of a verified program, whole and
        // unchanged for as long as `self` lives.
        unsafe { call(self.memory.start(), bytes, wire_len) }
    }

    /// Length of the code, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.memory.len()
    }
}
