//! libpcap's types, as `pcap/pcap.h` and `pcap/bpf.h` lay them out.

use libc::{c_char, c_int, c_uchar, c_uint, c_void, timeval};
use weir_filter::lang::cbpf::Insn;

/// `PCAP_ERRBUF_SIZE`: bytes of an error message, with its end.
pub const ERRBUF_SIZE: usize = 256;

/// `PCAP_ERROR`: an error that `pcap_geterr` describes.
pub const ERROR: c_int = -1;
/// `PCAP_ERROR_BREAK`: `pcap_breakloop` was called.
pub const ERROR_BREAK: c_int = -2;
/// `PCAP_ERROR_NOT_ACTIVATED`.
pub const ERROR_NOT_ACTIVATED: c_int = -3;
/// `PCAP_ERROR_ACTIVATED`.
pub const ERROR_ACTIVATED: c_int = -4;
/// `PCAP_ERROR_NO_SUCH_DEVICE`.
pub const ERROR_NO_SUCH_DEVICE: c_int = -5;
/// `PCAP_ERROR_RFMON_NOTSUP`.
pub const ERROR_RFMON_NOTSUP: c_int = -6;
/// `PCAP_ERROR_PERM_DENIED`.
pub const ERROR_PERM_DENIED: c_int = -8;
/// `PCAP_ERROR_TSTAMP_PRECISION_NOTSUP`.
pub const ERROR_TSTAMP_PRECISION_NOTSUP: c_int = -12;
/// `PCAP_WARNING_TSTAMP_TYPE_NOTSUP`.
pub const WARNING_TSTAMP_TYPE_NOTSUP: c_int = 3;

/// `PCAP_TSTAMP_PRECISION_MICRO`.
pub const TSTAMP_PRECISION_MICRO: c_int = 0;
/// `PCAP_TSTAMP_PRECISION_NANO`.
pub const TSTAMP_PRECISION_NANO: c_int = 1;
/// `PCAP_TSTAMP_HOST`: timestamps of the host.
pub const TSTAMP_HOST: c_int = 0;

/// `pcap_t`, whose contents are its library's.
#[repr(C)]
#[derive(Debug)]
pub struct Pcap([u8; 0]);

/// `pcap_dumper_t`, likewise.
#[repr(C)]
#[derive(Debug)]
pub struct Dumper([u8; 0]);

/// `struct pcap_pkthdr`: what precedes a frame.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PktHdr {
    /// When the frame was received; `tv_usec` may be nanoseconds.
    pub ts: timeval,
    /// Number of bytes that are there.
    pub caplen: u32,
    /// Number of bytes on the wire.
    pub len: u32,
}

/// `struct bpf_program`.
#[repr(C)]
#[derive(Debug)]
pub struct BpfProgram {
    /// Number of instructions.
    pub len: c_uint,
    /// The instructions, laid out as the kernel's.
    pub insns: *const Insn,
}

/// `struct pcap_stat` on Unix.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Frames that the filter accepted, with those that were dropped.
    pub recv: c_uint,
    /// Frames dropped for lack of room.
    pub drop: c_uint,
    /// Frames that the interface dropped.
    pub ifdrop: c_uint,
}

/// `pcap_if_t`, an item of a list of devices.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    /// The next item, or null.
    pub next: *mut Device,
    /// The name.
    pub name: *mut c_char,
    /// A description, or null.
    pub description: *mut c_char,
    /// Addresses, or null.
    pub addresses: *mut c_void,
    /// `PCAP_IF_` flags.
    pub flags: u32,
}

/// `pcap_handler`: called for each frame.
pub type Handler = unsafe extern "C" fn(*mut c_uchar, *const PktHdr, *const c_uchar);
