//! Capture files: pcap and pcapng, uncompressed or compressed with gzip or
//! zstd.
//!
//! ```text
//! file, standard input, ─► unpack ─► buffer ─┬─► pcap   ─┬─► FrameRef
//! any Read                 gzip, zstd        └─► pcapng ─┘
//! ```
//!
//! [`Reader`] lends one frame at a time from one buffer, without copies; its
//! memory does not grow with the file. [`Writer`] writes pcapng.
//!
//! Sources: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.
//!
//! # Supported formats
//!
//! - **pcap** in both byte orders, with microseconds or nanoseconds; versions
//!   2.0 to 2.4 and 543.0, with the length fields in the older order of early
//!   versions; the "modified" format of patched libpcaps (magic `a1b2cd34`). A
//!   frame longer than the file's snap length is cut to the snap length, as by
//!   libpcap.
//! - **pcapng**: any number of sections, each with its own byte order;
//!   interfaces with their own link type, snap length, timestamp resolution and
//!   offset; enhanced, simple and obsolete packet blocks. Other blocks are
//!   skipped.
//! - gzip with several members and zstd with several frames, recognised by
//!   their magic numbers.
//!
//! # Damage
//!
//! [`Error::Damaged`] contains the offset of the first damaged record; every
//! frame before it has been returned. libpcap's limits apply: a frame has at
//! most 262,144 bytes ([`frame_len_max`]; more for three link types), a block
//! 16 MiB. Reading a file needs at most that much memory, plus up to 128 MiB
//! for the window of a zstd file that requests it.

mod block_writer;
mod byte_order;
mod classic;
mod decompress;
mod error;
mod input;
mod ng;
mod reader;
mod writer;

pub use decompress::Compression;
pub use error::{Damage, Error, Region};
pub use reader::{Progress, Reader};
pub use writer::{WriteError, Writer};

use weir_wire::LinkType;

/// The unit of an interface's timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Resolution {
    /// 10 to the power of minus this number of seconds; at most 19.
    Decimal(u8),
    /// 2 to the power of minus this number of seconds; at most 63.
    Binary(u8),
}

impl Resolution {
    /// Microseconds: the default of both formats.
    pub const MICRO: Resolution = Resolution::Decimal(6);
    /// Nanoseconds.
    pub const NANO: Resolution = Resolution::Decimal(9);
}

/// A capturing interface: an interface of a pcapng section, or a whole pcap
/// file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Interface {
    /// The link-layer header type.
    pub linktype: LinkType,
    /// Largest number of captured bytes of a frame; never 0 (0 in a file means
    /// no limit, and becomes [`frame_len_max`]).
    pub snaplen: u32,
    /// The unit of its timestamps in the file.
    pub resolution: Resolution,
    /// Seconds added to its timestamps in the file.
    pub offset_s: i64,
    /// Its name, cut to [`NAME_LEN_MAX`] bytes.
    pub name: Option<String>,
}

impl Interface {
    /// An Ethernet interface without further properties.
    pub fn ethernet() -> Interface {
        Interface {
            linktype: LinkType::EN10MB,
            snaplen: frame_len_max(LinkType::EN10MB),
            resolution: Resolution::NANO,
            offset_s: 0,
            name: None,
        }
    }
}

/// Largest length of an interface's name, in bytes.
pub const NAME_LEN_MAX: usize = 256;

/// Largest number of distinct interfaces in one file. Sections that describe
/// the same interfaces again do not count.
pub const INTERFACES_MAX: usize = 65_536;

/// A frame, lent by a [`Reader`] until the next call.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// The frame's length on the wire, in bytes.
    pub wire_len: u32,
    /// Capture time: nanoseconds since 1970-01-01 UTC, rounded down and clamped
    /// to the type's range. `None` in a simple packet block, which has no
    /// timestamp.
    pub time_ns: Option<i64>,
    /// The index of its interface in [`Reader::interfaces`].
    pub interface_index: u32,
    /// Its interface.
    pub interface: &'a Interface,
}

impl FrameRef<'_> {
    /// The link-layer header type.
    #[inline]
    pub fn linktype(&self) -> LinkType {
        self.interface.linktype
    }
}

/// A frame in the buffer, as both formats return it to the reader.
struct Record {
    position: usize,
    len: usize,
    wire_len: u32,
    time_ns: Option<i64>,
    interface: u32,
}

/// Largest captured length of a frame of `linktype`, in bytes: libpcap's
/// limits.
pub const fn frame_len_max(linktype: LinkType) -> u32 {
    const DBUS: u32 = 231;
    const USBPCAP: u32 = 249;
    const EBHSCR: u32 = 279;
    match linktype.0 {
        DBUS => 128 << 20,
        EBHSCR => 8 << 20,
        USBPCAP => 1 << 20,
        _ => 262_144,
    }
}

/// The snap length that a file's field means: 0, and numbers beyond libpcap's
/// signed field, mean no limit.
fn snaplen(linktype: LinkType, field: u32) -> u32 {
    match field {
        0 | 0x8000_0000.. => frame_len_max(linktype),
        some => some,
    }
}

/// The link type that a file's number means: 12 is DLT_RAW, which old files
/// contain instead of LINKTYPE_RAW.
fn linktype(number: u16) -> LinkType {
    match number {
        12 => LinkType::RAW,
        other => LinkType(u32::from(other)),
    }
}

/// Reads `bytes` as a capture to its end or first damage; returns the number of
/// frames. The entry point for fuzzing: never panics.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) -> u64 {
    let Ok(mut reader) = Reader::new(std::io::Cursor::new(bytes.to_vec())) else {
        return 0;
    };
    let mut frames = 0;
    while let Ok(Some(frame)) = reader.next_frame() {
        assert!(frame.bytes.len() <= frame.interface.snaplen as usize);
        frames += 1;
    }
    assert!(matches!(reader.next_frame(), Ok(None)), "damage ends it");
    frames
}
