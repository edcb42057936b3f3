//! Capture files: pcap and pcapng, plain or packed with gzip or zstd.
//!
//! ```text
//! file, standard input, ─► unpack ─► buffer ─┬─► pcap   ─┬─► FrameRef
//! any Read                 gzip, zstd        └─► pcapng ─┘
//! ```
//!
//! [`Reader`] lends one frame at a time out of one buffer; nothing is copied
//! and no memory grows with the file. [`Writer`] writes pcapng.
//!
//! Sources: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.
//!
//! # What is read
//!
//! - **pcap** in both byte orders, micro- and nanoseconds; versions 2.0 to 2.4
//!   and 543.0 with the length fields in their old order where they were so;
//!   the "modified" format of patched libpcaps (magic `a1b2cd34`). A frame
//!   longer than the file's snap length is cut to it, as libpcap does.
//! - **pcapng**: any number of sections, each in its own byte order; interfaces
//!   with their own link type, snap length, timestamp resolution and offset;
//!   enhanced, simple and obsolete packet blocks. Other blocks are skipped.
//! - gzip of several members and zstd of several frames, told by their magic.
//!
//! # Damage
//!
//! [`Error::Damaged`] says at which offset the first record starts that is not
//! whole; every frame before it has been given out. libpcap's limits hold: a
//! frame has at most 262,144 bytes ([`frame_len_max`]; more for three link
//! types), a block 16 MiB. A file costs no more memory than that, plus up to
//! 128 MiB for the window of a zstd file that asks for it.

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

/// The unit in which an interface counts time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Resolution {
    /// 10 to the minus this, of a second; at most 19.
    Decimal(u8),
    /// 2 to the minus this, of a second; at most 63.
    Binary(u8),
}

impl Resolution {
    /// Microseconds: the default of both formats.
    pub const MICRO: Resolution = Resolution::Decimal(6);
    /// Nanoseconds.
    pub const NANO: Resolution = Resolution::Decimal(9);
}

/// Where frames were captured: an interface of a pcapng section, or a whole
/// pcap file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Interface {
    /// How its frames begin.
    pub linktype: LinkType,
    /// The most bytes of a frame that were captured; never 0 (a file's 0 means
    /// no limit, and becomes [`frame_len_max`]).
    pub snaplen: u32,
    /// The unit of its timestamps in the file.
    pub resolution: Resolution,
    /// Seconds added to its timestamps in the file.
    pub offset_s: i64,
    /// Its name, cut at [`NAME_LEN_MAX`] bytes.
    pub name: Option<String>,
}

impl Interface {
    /// Ethernet, with nothing else known.
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

/// The longest name of an interface that is kept, in bytes.
pub const NAME_LEN_MAX: usize = 256;

/// The most interfaces of one file that are told apart. Further sections that
/// describe the same interfaces again do not count.
pub const INTERFACES_MAX: usize = 65_536;

/// A frame, lent by a [`Reader`] until the next one is asked for.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// The frame's length on the wire, in bytes.
    pub wire_len: u32,
    /// When it was captured: nanoseconds since 1970-01-01 UTC, rounded down,
    /// clamped to what fits. `None` in a simple packet block, which has none.
    pub time_ns: Option<i64>,
    /// The number of its interface in [`Reader::interfaces`].
    pub interface_index: u32,
    /// Its interface.
    pub interface: &'a Interface,
}

impl FrameRef<'_> {
    /// How the frame begins.
    #[inline]
    pub fn linktype(&self) -> LinkType {
        self.interface.linktype
    }
}

/// A frame still in the buffer: what the two formats give to the reader.
struct Record {
    position: usize,
    len: usize,
    wire_len: u32,
    time_ns: Option<i64>,
    interface: u32,
}

/// The most bytes that a captured frame of `linktype` can have: libpcap's
/// limits, in bytes.
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

/// The snap length that a file's field means: 0, and what libpcap's signed
/// field cannot hold, stand for no limit.
fn snaplen(linktype: LinkType, field: u32) -> u32 {
    match field {
        0 | 0x8000_0000.. => frame_len_max(linktype),
        some => some,
    }
}

/// The link type that a file's number means: 12 is DLT_RAW, which old files
/// carry instead of LINKTYPE_RAW.
fn linktype(number: u16) -> LinkType {
    match number {
        12 => LinkType::RAW,
        other => LinkType(u32::from(other)),
    }
}

/// Reads `bytes` as a capture to its end or first damage, counting frames: the
/// entry point for fuzzing. Never panics, whatever the bytes.
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
