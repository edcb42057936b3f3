//! Loading eBPF programs and running them on bytes.

use super::Hook;
use super::{is_not_permitted, kernel_name, sys};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use weir_filter::backend::ebpf::Insn;

/// Largest number of lines, the last of the verifier's log, in an error.
pub const LOG_LINES_MAX: usize = 12;

/// Bytes of the verifier's log buffer after a failed load. Linux 6.4 keeps the
/// end of a longer log, earlier kernels the start.
const LOG_BYTES: usize = 1 << 20;

/// Largest number of retries of a load that a signal interrupts.
const RETRIES_MAX: usize = 5;

/// The shortest frame that [`Program::test_run`] takes: an Ethernet header.
pub const FRAME_BYTES_MIN: usize = weir_wire::ethernet::Repr::LEN;

/// The type of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProgramType {
    /// Filters of sockets.
    SocketFilter,
    /// The tc hooks.
    SchedCls,
    /// The XDP hook.
    Xdp,
    /// Tracepoints of the kernel.
    RawTracepoint,
}

impl ProgramType {
    /// The number in `enum bpf_prog_type`.
    fn number(self) -> u32 {
        match self {
            ProgramType::SocketFilter => 1,
            ProgramType::SchedCls => 3,
            ProgramType::Xdp => 6,
            ProgramType::RawTracepoint => 17,
        }
    }
}

/// The arguments of [`Program::load`].
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// The program's type.
    pub program_type: ProgramType,
    /// The name that `bpftool` shows; at most 15 bytes are kept.
    pub name: &'a str,
    /// For XDP: whether the program accepts multi-buffer frames (Linux 5.18).
    pub frags: bool,
    /// Whether the program contains filters of users. The program is then
    /// loaded without `CAP_PERFMON` and `CAP_SYS_ADMIN`, so that the verifier
    /// adds barriers against speculative execution. If the verifier accepts the
    /// program only with these capabilities, it is loaded with them.
    pub is_users: bool,
    /// The program's maps, by index: see [`Insn::load_map`].
    pub maps: &'a [BorrowedFd<'a>],
}

impl Load<'_> {
    /// Arguments for that type: name `weir`, without multi-buffer frames.
    pub fn new(program_type: ProgramType) -> Load<'static> {
        Load {
            program_type,
            name: "weir",
            frags: false,
            is_users: false,
            maps: &[],
        }
    }

    /// Arguments for a hook: name `weir`; at XDP, with multi-buffer frames.
    pub fn at(hook: Hook) -> Load<'static> {
        let program_type = if hook.is_xdp() {
            ProgramType::Xdp
        } else {
            ProgramType::SchedCls
        };
        Load {
            frags: hook.is_xdp(),
            ..Load::new(program_type)
        }
    }

    /// The hook in `enum bpf_attach_type`, for types that need it at load:
    /// programs that tail-call each other must agree on it.
    fn attach_type(&self) -> u32 {
        match self.program_type {
            ProgramType::Xdp => sys::ATTACH_XDP,
            ProgramType::SocketFilter | ProgramType::SchedCls | ProgramType::RawTracepoint => 0,
        }
    }

    fn flags(&self) -> u32 {
        const XDP_HAS_FRAGS: u32 = 1 << 5;
        if self.frags { XDP_HAS_FRAGS } else { 0 }
    }
}

/// Why a program was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The caller lacks privilege.
    #[error(
        "loading an eBPF program is not permitted: run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
    )]
    NotPermitted,
    /// The kernel has no bpf(2).
    #[error("this kernel has no bpf(2): Linux 6.1 or later with CONFIG_BPF_SYSCALL is needed")]
    NoBpf,
    /// The program refers to a map that was not passed.
    #[error("instruction {at} names map {map_index}, but the program was given {maps}")]
    NoSuchMap {
        /// The instruction's index.
        at: usize,
        /// The map's index in the instruction.
        map_index: i32,
        /// Number of maps passed.
        maps: usize,
    },
    /// The program is longer than the kernel accepts.
    #[error("the kernel takes no eBPF program of {insns} instructions, at most 1000000")]
    TooLong {
        /// Number of instructions.
        insns: usize,
    },
    /// The verifier rejected the program.
    #[error("the kernel's verifier refused the program of {insns} instructions ({source}):\n{log}")]
    Refused {
        /// Number of instructions.
        insns: usize,
        /// The last lines of the verifier's log, at most [`LOG_LINES_MAX`].
        log: String,
        /// The system's error.
        source: io::Error,
    },
    /// Any other error.
    #[error(
        "the kernel did not load the program ({source}); `gotol` needs Linux 6.6, XDP with fragments 5.18"
    )]
    System {
        /// The system's error.
        source: io::Error,
    },
}

/// An eBPF program. The kernel frees it when its last descriptor and last use
/// are gone.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    /// `None` for a program loaded elsewhere.
    program_type: Option<ProgramType>,
    needs_perfmon: bool,
}

impl Program {
    /// Loads a program.
    ///
    /// Costs about 80 µs, and 1 µs for each instruction.
    ///
    /// # Errors
    /// See [`LoadError`]; a rejection contains the end of the verifier's log.
    pub fn load(insns: &[Insn], load: &Load<'_>) -> Result<Program, LoadError> {
        check_maps(insns, load.maps.len())?;
        let words: Vec<u64> = insns.iter().map(|insn| insn.to_u64()).collect();
        let barred = load.is_users.then(Barred::this_thread).flatten();
        let first = barred.map(|_barred| attempt(&words, load, &mut []));
        let needs_perfmon = first.as_ref().is_some_and(is_verdict);
        let loaded = match first {
            Some(first) if !needs_perfmon => first,
            _ => attempt(&words, load, &mut []),
        };
        match loaded {
            Ok(fd) => Ok(Program {
                fd,
                program_type: Some(load.program_type),
                needs_perfmon,
            }),
            Err(error) => Err(explain(error, &words, load)),
        }
    }

    /// Wraps the descriptor of a program loaded elsewhere.
    pub fn from_fd(fd: OwnedFd) -> Program {
        Program {
            fd,
            program_type: None,
            needs_perfmon: false,
        }
    }

    /// Whether the verifier accepted a program with users' filters only with
    /// `CAP_PERFMON`, and therefore without its barriers against speculative
    /// execution.
    pub fn needs_perfmon(&self) -> bool {
        self.needs_perfmon
    }

    /// Runs the program on a frame without a device (`BPF_PROG_TEST_RUN`).
    ///
    /// `output` receives the frame as the program left it, truncated to the
    /// buffer's length; `output` may be empty.
    ///
    /// # Errors
    /// See [`TestRunError`].
    pub fn test_run(&self, run: &TestRun<'_>, output: &mut [u8]) -> Result<Ran, TestRunError> {
        let len = run.frame.len();
        if len < FRAME_BYTES_MIN {
            return Err(TestRunError::FrameTooShort { len });
        }
        let with_meta = [run.meta, run.frame].concat();
        let context = self.context(run);
        let fd = self.fd.as_fd();
        let asked = sys::TestRun {
            input: &with_meta,
            context: &context,
            output,
            repeat: run.repeat,
            flags: 0,
            batch: 0,
        };
        match sys::prog_test_run(fd, asked) {
            Ok(ran) => Ok(Ran {
                returned: ran.retval,
                duration: Duration::from_nanos(ran.duration_ns.into()),
                output_len: ran.out_len,
            }),
            Err(error) if is_not_permitted(&error) => Err(TestRunError::NotPermitted),
            Err(source) => Err(TestRunError::System { len, source }),
        }
    }

    /// The context structure for a run; empty for the kernel's default.
    fn context(&self, run: &TestRun<'_>) -> Vec<u8> {
        if run.meta.is_empty() && run.linear.is_none() {
            return Vec::new();
        }
        let meta = run.meta.len();
        let end = (meta + run.linear.unwrap_or(run.frame.len())) as u32;
        let fields = match self.program_type {
            // `struct xdp_md`: data, data_end, data_meta, and three words about
            // the device.
            Some(ProgramType::Xdp) | None => vec![meta as u32, end, 0, 0, 0, 0],
            // This type has no frame.
            Some(ProgramType::RawTracepoint) => Vec::new(),
            // `struct __sk_buff`: 20 numbers before data_end.
            Some(ProgramType::SchedCls | ProgramType::SocketFilter) => {
                let mut fields = vec![0; 21];
                fields[20] = end;
                fields
            }
        };
        fields.iter().flat_map(|f| f.to_ne_bytes()).collect()
    }
}

impl From<Program> for OwnedFd {
    fn from(program: Program) -> OwnedFd {
        program.fd
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Checks that every map the program refers to was passed: the kernel reads
/// descriptors from the array without knowing its length.
fn check_maps(insns: &[Insn], maps: usize) -> Result<(), LoadError> {
    for (at, map_index) in insns
        .iter()
        .enumerate()
        .filter_map(|(at, insn)| Some((at, insn.map_value_address()?)))
    {
        if usize::try_from(map_index).is_ok_and(|map_index| map_index < maps) {
            continue;
        }
        return Err(LoadError::NoSuchMap {
            at,
            map_index,
            maps,
        });
    }
    Ok(())
}

/// Removes, from the calling thread, the capabilities by which the verifier
/// omits its barriers (`bpf_bypass_spec_v1` in `include/linux/bpf.h`), and
/// restores them on drop.
struct Barred {
    before: CapabilitySets,
}

impl Barred {
    /// `None` if the thread could not load programs without the capabilities,
    /// or has none of them.
    fn this_thread() -> Option<Barred> {
        let before = capabilities(None).ok()?;
        let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
        let barred = CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
        if !before.effective.contains(needed) || !before.effective.intersects(barred) {
            return None;
        }
        let sets = CapabilitySets {
            effective: before.effective - barred,
            ..before
        };
        set_capabilities(None, sets).ok()?;
        Some(Barred { before })
    }
}

impl Drop for Barred {
    fn drop(&mut self) {
        // A permitted capability can be made effective again at any time.
        set_capabilities(None, self.before).expect("permitted capabilities are given");
    }
}

/// Whether the verifier rejected a program that it might accept with more
/// capabilities. Its rules return EACCES, EPERM or EINVAL, its complexity
/// limits E2BIG, and EFAULT before Linux 6.17.
fn is_verdict(loaded: &io::Result<OwnedFd>) -> bool {
    let codes = [
        libc::EACCES,
        libc::EPERM,
        libc::EINVAL,
        libc::E2BIG,
        libc::EFAULT,
    ];
    let error = loaded.as_ref().err().and_then(io::Error::raw_os_error);
    error.is_some_and(|error| codes.contains(&error))
}

fn attempt(words: &[u64], load: &Load<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut retries = 0;
    let maps: Vec<i32> = load.maps.iter().map(|map| map.as_raw_fd()).collect();
    loop {
        let result = sys::prog_load(sys::Load {
            program_type: load.program_type.number(),
            insns: words,
            name: kernel_name(load.name),
            flags: load.flags(),
            attach_type: load.attach_type(),
            maps: &maps,
            log,
        });
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && retries < RETRIES_MAX => {
                retries += 1;
            }
            other => return other,
        }
    }
}

/// Finds the reason of a failed load by loading once more with a log.
fn explain(first: io::Error, words: &[u64], load: &Load<'_>) -> LoadError {
    let insns = words.len();
    if first.raw_os_error() == Some(libc::ENOSYS) {
        return LoadError::NoBpf;
    }
    let mut log = vec![0; LOG_BYTES];
    // The second load may fail with ENOSPC because of the log, so the first
    // error is returned.
    let _ = attempt(words, load, &mut log);
    let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    if text.trim().is_empty() {
        return match first {
            error if is_not_permitted(&error) => LoadError::NotPermitted,
            error if error.raw_os_error() == Some(libc::E2BIG) => LoadError::TooLong { insns },
            source => LoadError::System { source },
        };
    }
    LoadError::Refused {
        insns,
        log: last_lines(&text),
        source: first,
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
}

/// The arguments of [`Program::test_run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestRun<'a> {
    /// The frame, at least [`FRAME_BYTES_MIN`] bytes. For XDP without
    /// multi-buffer frames it must fit into a page with head and tail room:
    /// 3,520 bytes always fit.
    pub frame: &'a [u8],
    /// For XDP: metadata before the frame, a multiple of 4 bytes.
    pub meta: &'a [u8],
    /// Bytes of the frame in its first fragment, at least 14; by default as
    /// many as fit (Linux 6.18).
    pub linear: Option<usize>,
    /// Number of runs; the reported time is the average of one.
    pub repeat: u32,
}

impl TestRun<'_> {
    /// One run on `frame`.
    pub fn new(frame: &[u8]) -> TestRun<'_> {
        TestRun {
            frame,
            meta: &[],
            linear: None,
            repeat: 1,
        }
    }
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// The program's return value.
    pub returned: u32,
    /// The average time of one run, in whole nanoseconds.
    pub duration: Duration,
    /// The frame's length after the run, at most the output's.
    pub output_len: usize,
}

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
pub enum TestRunError {
    /// The caller lacks privilege.
    #[error(
        "running an eBPF program on a frame is not permitted: run as root, or with CAP_BPF and CAP_NET_ADMIN"
    )]
    NotPermitted,
    /// The frame is shorter than an Ethernet header.
    #[error("the frame has {len} bytes, a test run needs at least {FRAME_BYTES_MIN}")]
    FrameTooShort {
        /// Its length.
        len: usize,
    },
    /// Any other error.
    #[error("the kernel did not run the program on a frame of {len} bytes ({source})")]
    System {
        /// The frame's length.
        len: usize,
        /// The system's error.
        source: io::Error,
    },
}
