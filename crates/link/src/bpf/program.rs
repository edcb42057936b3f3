//! Programs: load them, and run them on bytes.

use super::Hook;
use super::{is_not_permitted, kernel_name, sys};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use weir_filter::backend::ebpf::Insn;

/// Lines of the verifier's log that an error shows, the last ones.
pub const LOG_LINES_MAX: usize = 12;

/// Bytes of log that are asked for when a load has failed. Linux 6.4 keeps
/// the end of a longer log, older ones keep the start.
const LOG_BYTES: usize = 1 << 20;

/// Times that a load is tried again when a signal came in between.
const RETRIES_MAX: usize = 5;

/// The shortest frame that [`Program::test_run`] takes: an Ethernet header.
pub const FRAME_BYTES_MIN: usize = weir_wire::ethernet::Repr::LEN;

/// What a program is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProgramType {
    /// Filters of sockets.
    SocketFilter,
    /// The tc hooks.
    SchedCls,
    /// The XDP hook.
    Xdp,
    /// Places in the kernel's code that tell what happens there.
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

/// How to load a program.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// What it is for.
    pub program_type: ProgramType,
    /// A name for `bpftool` to show; 15 bytes at most are kept.
    pub name: &'a str,
    /// For XDP: frames with fragments may come (Linux 5.18).
    pub frags: bool,
    /// Whether filters of users are in it: it is loaded without
    /// `CAP_PERFMON` and `CAP_SYS_ADMIN`, so that the verifier puts its
    /// barriers against speculative execution in. Where the verifier takes it
    /// only with these capabilities, it is loaded with them.
    pub is_users: bool,
    /// The maps that the program names, by place: see
    /// [`Insn::load_map`].
    pub maps: &'a [BorrowedFd<'a>],
}

impl Load<'_> {
    /// For that type, named `weir`, frames in one piece.
    pub fn new(program_type: ProgramType) -> Load<'static> {
        Load {
            program_type,
            name: "weir",
            frags: false,
            is_users: false,
            maps: &[],
        }
    }

    /// For a hook, named `weir`; at XDP, also for frames with fragments.
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

    /// The hook in `enum bpf_attach_type`, for types that want it at load:
    /// programs that call each other must agree on it.
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
    /// Privilege is missing.
    #[error(
        "loading an eBPF program is not permitted: run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
    )]
    NotPermitted,
    /// There is no bpf(2).
    #[error("this kernel has no bpf(2): Linux 6.1 or later with CONFIG_BPF_SYSCALL is needed")]
    NoBpf,
    /// The program names a map that it was not given.
    #[error("instruction {at} names map {map_index}, but the program was given {maps}")]
    NoSuchMap {
        /// Which instruction.
        at: usize,
        /// The place that it names.
        map_index: i32,
        /// How many maps there are.
        maps: usize,
    },
    /// Longer than the kernel takes.
    #[error("the kernel takes no eBPF program of {insns} instructions, at most 1000000")]
    TooLong {
        /// Its length.
        insns: usize,
    },
    /// The verifier did not accept it.
    #[error("the kernel's verifier refused the program of {insns} instructions ({source}):\n{log}")]
    Refused {
        /// Its length.
        insns: usize,
        /// The last lines of the verifier's log, [`LOG_LINES_MAX`] at most.
        log: String,
        /// What the system said.
        source: io::Error,
    },
    /// Anything else.
    #[error(
        "the kernel did not load the program ({source}); `gotol` needs Linux 6.6, XDP with fragments 5.18"
    )]
    System {
        /// What the system said.
        source: io::Error,
    },
}

/// A program in the kernel. It goes when the last descriptor and the last use
/// of it are gone.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    /// Unknown for one that was loaded elsewhere.
    program_type: Option<ProgramType>,
    needs_perfmon: bool,
}

impl Program {
    /// Loads a program.
    ///
    /// Costs about 80 µs and 1 µs an instruction.
    ///
    /// # Errors
    /// See [`LoadError`]; a refusal has the end of the verifier's log.
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

    /// Takes a descriptor of a program that was loaded elsewhere.
    pub fn from_fd(fd: OwnedFd) -> Program {
        Program {
            fd,
            program_type: None,
            needs_perfmon: false,
        }
    }

    /// Whether the verifier took a program with users' filters only with
    /// `CAP_PERFMON`, and so without its barriers against speculative execution.
    pub fn needs_perfmon(&self) -> bool {
        self.needs_perfmon
    }

    /// Runs the program on a frame, without any device.
    ///
    /// `output` receives the frame as the program left it, as far as it fits,
    /// and may be empty.
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

    /// The context that a run asks for; empty for the kernel's default.
    fn context(&self, run: &TestRun<'_>) -> Vec<u8> {
        if run.meta.is_empty() && run.linear.is_none() {
            return Vec::new();
        }
        let meta = run.meta.len();
        let end = (meta + run.linear.unwrap_or(run.frame.len())) as u32;
        let fields = match self.program_type {
            // `struct xdp_md`: data, data_end, data_meta, three of the device.
            Some(ProgramType::Xdp) | None => vec![meta as u32, end, 0, 0, 0, 0],
            // It has no frame.
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

/// Whether every map that is named was given: the kernel reads descriptors
/// from places it is told, not knowing how many there are.
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

/// The calling thread without the capabilities by which the verifier leaves
/// its barriers out (`bpf_bypass_spec_v1` of `include/linux/bpf.h`); it has
/// them again when this is dropped.
struct Barred {
    before: CapabilitySets,
}

impl Barred {
    /// `None` where the thread could load nothing without them, or has none.
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
        // What is permitted may be made effective at any time.
        set_capabilities(None, self.before).expect("permitted capabilities are given");
    }
}

/// Whether the verifier has refused a program, and may take it with more
/// capabilities: its rules say EACCES, EPERM or EINVAL, its bounds on what it
/// follows E2BIG, and EFAULT before Linux 6.17.
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

/// The reason of a failed load: asks once more, with a log.
fn explain(first: io::Error, words: &[u64], load: &Load<'_>) -> LoadError {
    let insns = words.len();
    if first.raw_os_error() == Some(libc::ENOSYS) {
        return LoadError::NoBpf;
    }
    let mut log = vec![0; LOG_BYTES];
    // The second error may be ENOSPC, for the log: the first one counts.
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

/// What to run a program on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestRun<'a> {
    /// The frame, at least [`FRAME_BYTES_MIN`] bytes. For XDP without
    /// fragments it must fit into a page with head and tail room: 3,520
    /// bytes always do.
    pub frame: &'a [u8],
    /// For XDP: metadata before the frame, a multiple of 4 bytes.
    pub meta: &'a [u8],
    /// How many bytes of the frame lie in its first piece, 14 at least; by
    /// default all that fit there (Linux 6.18).
    pub linear: Option<usize>,
    /// How many times to run; the time is that of one, on average.
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

/// How a run went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// What the program returned.
    pub returned: u32,
    /// The time of one run, on average, in whole nanoseconds.
    pub duration: Duration,
    /// The length of the frame after the run; more than the output holds is
    /// not possible.
    pub output_len: usize,
}

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
pub enum TestRunError {
    /// Privilege is missing.
    #[error(
        "running an eBPF program on a frame is not permitted: run as root, or with CAP_BPF and CAP_NET_ADMIN"
    )]
    NotPermitted,
    /// The kernel wants an Ethernet header.
    #[error("the frame has {len} bytes, a test run needs at least {FRAME_BYTES_MIN}")]
    FrameTooShort {
        /// Its length.
        len: usize,
    },
    /// Anything else.
    #[error("the kernel did not run the program on a frame of {len} bytes ({source})")]
    System {
        /// The frame's length.
        len: usize,
        /// What the system said.
        source: io::Error,
    },
}
