//! Native code for x86-64 and aarch64.
//!
//! ```text
//! Program ─► facts ─► allocate ─► generate ─► bytes ─► arena ─► Code
//!            needs,   registers   checks,     x64,      write once,
//!            lives    and slots   moves       a64       run anywhere
//! ```
//!
//! Made for being fast to make as much as to run: three passes over the
//! program, no hashing, instructions encoded by `dynasmrt`, so that binding a
//! filter costs microseconds. What makes the code itself fast: bounds checks
//! are merged and made as early as verdicts allow (`required_len.rs`), values that
//! are only tested for equality or for bits stay in the frame's byte order
//! (`liveness.rs`), and blocks fall through to one another.
//!
//! Positions are computed in 64 bits from zero-extended values, so base plus
//! offset cannot wrap, and every load is behind a check of its last byte.
//!
//! This folder is the one place in `filter` with unchecked code and with a
//! file descriptor: executable memory is made of a mapping (`arena.rs`), and
//! calling into it is an act of trust. That trust rests on [`Program::verify`],
//! which [`Code::compile`] therefore calls itself.

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

/// Stack slots of one program, and so the values it may hold at a time beyond
/// the registers. A frame stays below a page: it cannot step over the guard
/// page at a stack's end.
pub const SLOTS_MAX: usize = 1_000;

/// Bytes of code of one program.
pub const CODE_BYTES_MAX: usize = 8 << 20;

/// Bytes of code of all programs of a process.
pub const ARENA_BYTES: usize = 64 << 20;

/// Why a program has no native code. The interpreter runs it all the same.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NativeError {
    /// Neither x86-64 nor aarch64, or not Linux.
    #[error("there is no native code for this machine; use the interpreter")]
    Unsupported,
    /// The program breaks an invariant of the IR.
    #[error("the program is invalid: {0}")]
    Invalid(#[from] VerifyError),
    /// More values are alive at once than the stack frame takes.
    #[error("more than {max} values are needed at the same time; use the interpreter")]
    TooManyLive {
        /// [`SLOTS_MAX`].
        max: usize,
    },
    /// The code is too long.
    #[error("the code is longer than {max} bytes; use the interpreter")]
    TooLong {
        /// [`CODE_BYTES_MAX`].
        max: usize,
    },
    /// The arena has no room.
    #[error(
        "no room for {wanted} bytes of code: {used} of {max} are in use, or what is free is in pieces; drop filters"
    )]
    ArenaFull {
        /// Bytes of this program.
        wanted: usize,
        /// Bytes that hold code.
        used: usize,
        /// [`ARENA_BYTES`].
        max: usize,
    },
    /// Files must be smaller than the memory that code lives in, which counts
    /// as one.
    #[error(
        "files may have {limit} bytes at most (ulimit -f), and the memory that native code lives in has {wanted}; use the interpreter"
    )]
    FileLimit {
        /// The limit, `RLIMIT_FSIZE`.
        limit: u64,
        /// [`ARENA_BYTES`].
        wanted: usize,
    },
    /// The system gave no executable memory.
    #[error("the system gives no executable memory ({0}); use the interpreter")]
    Memory(#[from] rustix::io::Errno),
}

/// A kind of processor that code can be generated for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    /// x86-64, called as `extern "sysv64"`.
    X64,
    /// aarch64, called as AAPCS64 says.
    A64,
}

impl Arch {
    /// The one this runs on, if code can be generated for it.
    pub fn host() -> Option<Arch> {
        match () {
            () if !cfg!(target_os = "linux") => None,
            () if cfg!(target_arch = "x86_64") => Some(Arch::X64),
            () if cfg!(all(target_arch = "aarch64", target_endian = "little")) => Some(Arch::A64),
            () => None,
        }
    }

    /// Its usual name.
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

/// The machine code of `program` for any processor, position-independent.
///
/// # Errors
/// As [`Code::compile`], but for what concerns memory.
pub fn assemble(program: &Program, arch: Arch) -> Result<Vec<u8>, NativeError> {
    Ok(generate(program, arch, false)?.bytes)
}

/// The machine code of `program` as text: each instruction of the IR beside
/// the bytes it became, and where its value lives.
///
/// # Errors
/// As [`Code::compile`], but for what concerns memory.
pub fn listing(program: &Program, arch: Arch) -> Result<String, NativeError> {
    Ok(listing::text(
        program,
        arch,
        &generate(program, arch, true)?,
    ))
}

/// Bytes of executable memory that hold code now, in this process.
pub fn bytes_used() -> usize {
    arena::bytes_used()
}

/// A program as code of the machine this runs on.
///
/// Its memory is shared with a child that `fork(2)` makes: the child may go on
/// using it while the parent keeps it, and compiles into memory of its own. As
/// with any lock, a child of a process with several threads must not compile or
/// drop code if another thread might have been doing so.
#[derive(Debug)]
pub struct Code {
    memory: arena::Memory,
}

/// How generated code is called: bytes, how many, length on the wire.
#[cfg(target_arch = "x86_64")]
type Entry = unsafe extern "sysv64" fn(*const u8, usize, u32) -> u32;
#[cfg(not(target_arch = "x86_64"))]
type Entry = unsafe extern "C" fn(*const u8, usize, u32) -> u32;

/// Runs the code at `start`.
///
/// # Safety
/// There is the whole code of a verified program for this processor.
#[inline]
#[expect(unsafe_code, reason = "the jump into generated code")]
unsafe fn call(start: *const u8, bytes: &[u8], wire_len: u32) -> u32 {
    // SAFETY: the caller promises that code with this signature starts there.
    let entry: Entry = unsafe { std::mem::transmute(start) };
    // SAFETY: the code reads `bytes` behind a check of each position, and
    // writes nothing but its own stack frame of less than a page.
    unsafe { entry(bytes.as_ptr(), bytes.len(), wire_len) }
}

impl Code {
    /// Compiles `program`, which is verified first.
    ///
    /// # Errors
    /// On a machine without native code, for an invalid program, beyond
    /// [`SLOTS_MAX`], [`CODE_BYTES_MAX`] or [`ARENA_BYTES`], and where the
    /// system refuses executable memory.
    pub fn compile(program: &Program) -> Result<Code, NativeError> {
        let arch = Arch::host().ok_or(NativeError::Unsupported)?;
        let generated = generate(program, arch, false)?;
        Ok(Code {
            memory: arena::Memory::install(&generated.bytes)?,
        })
    }

    /// Runs on one frame: its captured bytes and its length on the wire.
    /// Gives the snap length; zero means rejected.
    ///
    /// This is one indirect call when inlined, so a batch needs no entry of
    /// its own.
    #[inline]
    #[expect(unsafe_code, reason = "runs generated code")]
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        // SAFETY: the arena holds the code of a verified program, whole and
        // unchanged for as long as `self` lives.
        unsafe { call(self.memory.start(), bytes, wire_len) }
    }

    /// Bytes of code.
    pub fn size_bytes(&self) -> usize {
        self.memory.len()
    }
}
