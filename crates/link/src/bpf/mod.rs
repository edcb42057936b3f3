//! eBPF in the kernel by our own bpf(2) calls: load a program, run it on
//! bytes, maps, attachments. No ELF, no clang, no libbpf.
//!
//! Programs come from `weir_filter::backend::ebpf`. All of this needs
//! privilege: root, or `CAP_BPF`, `CAP_PERFMON` and `CAP_NET_ADMIN`.
//!
//! ```no_run
//! use weir_filter::backend::ebpf::{Options, Target, XdpLen, emit};
//! use weir_link::bpf::{Load, Program, ProgramType, TestRun};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let filter = "filter {\nb0:\n  v0 = load.2 [12]\n  ret v0\n}".parse()?;
//! let insns = emit(&filter, &Options::new(Target::Xdp(XdpLen::Linear)))?;
//! let program = Program::load(&insns, &Load::new(ProgramType::Xdp))?;
//! let ran = program.test_run(&TestRun::new(&[0; 64]), &mut [])?;
//! assert_eq!(ran.returned, 0);
//! # Ok(())
//! # }
//! ```

mod attach;
mod grace_period;
mod live_frames;
mod map;
mod map_memory;
mod map_spec;
mod object;
mod pin;
mod program;
mod sys;

pub(crate) use attach::is_missing;
pub use attach::{AttachError, Attachment, AttachmentInfo, Hook, programs_at};
pub(crate) use grace_period::grace_period;
pub use live_frames::{LIVE_BATCH_MAX, LiveRun};
pub use map::ring;
pub use map::{BatchError, Map, MapError};
pub use map_memory::MapMemory;
pub use map_spec::{MapSpec, MapType, possible_cpus};
pub use object::{
    MapInfo, ObjectError, ObjectKind, ProgramInfo, attachment, ids, open, program_info,
};
pub use pin::{PinError, PinFolder};
pub use program::{
    FRAME_BYTES_MIN, LOG_LINES_MAX, Load, LoadError, Program, ProgramType, Ran, TestRun,
    TestRunError,
};

/// Whether an error of the system means that privilege is missing.
fn is_not_permitted(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied
}

/// A name as the kernel takes it: letters, digits, `_` and `.`; others become
/// `_`, what is too long is cut.
fn kernel_name(name: &str) -> [u8; sys::NAME_BYTES] {
    let mut bytes = [0; sys::NAME_BYTES];
    for (to, from) in bytes[..sys::NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
        let fine = from.is_ascii_alphanumeric() || matches!(from, b'_' | b'.');
        *to = if fine { from } else { b'_' };
    }
    bytes
}
