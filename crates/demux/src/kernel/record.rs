//! A record of a port's ring: a header, then the frame's bytes.
//!
//! ```text
//!   0        4        8        12       16       20       24       28       32               40
//!   ┌────────┬────────┬────────┬────────┬────────┬────────┬────────┬────────┬────────────────┬────────
//!   │wire_len│captured│  tag   │ flags  │lost    │ifindex │gso     │ queue  │ timestamp      │ bytes …
//!   │        │        │        │        │ before │        │segs:sz │        │ ns, or 0       │ padding
//!   └────────┴────────┴────────┴────────┴────────┴────────┴────────┴────────┴────────────────┴────────
//!   ┌────────┬────────┬────────┬────────┬────────
//!   │wire_len│ifindex │  tag   │flags:  │ bytes …     short
//!   │        │        │        │  queue │ padding
//!   └────────┴────────┴────────┴────────┴────────
//! ```
//!
//! A frame of at most [`SHORT_FRAME_MAX`] bytes has the short header if there
//! is no more to say of it: all its bytes are there, none was lost before it,
//! its port asks for no timestamps. A record takes fewer cache lines so, which
//! go from the processor that writes it to the one that reads it.
//!
//! Numbers are in the host's order. A record may be longer than header and
//! bytes: the kernel reserves room by size classes. What stands behind the
//! bytes means nothing.

/// Bytes of the header.
pub const HEADER_BYTES: usize = 40;

/// Bytes of the short one.
pub const SHORT_HEADER_BYTES: usize = 16;

/// Bytes of the longest frame that has it.
pub const SHORT_FRAME_MAX: u32 = 64;

/// The frame stands for several on the wire: segmentation is left to the
/// device (or was undone by it). Its checksums may be partial.
pub const FLAG_GSO: u32 = 1 << 0;
/// The device had taken a VLAN tag out of the frame; it was put back.
pub const FLAG_VLAN: u32 = 1 << 1;
/// The frame leaves the host.
pub const FLAG_EGRESS: u32 = 1 << 2;
/// The filter or the port asked for fewer bytes than the frame has.
pub const FLAG_CUT: u32 = 1 << 3;

/// The header is the short one; nothing that is a reader's concern.
pub(super) const FLAG_SHORT: u32 = 1 << 4;

/// Where the queue stands in a short header's word of flags.
pub(super) const QUEUE_SHIFT: u32 = 16;

/// Offsets of the header's fields.
pub(super) mod at {
    pub(in super::super) const WIRE_LEN: i16 = 0;
    pub(in super::super) const CAPTURED: i16 = 4;
    pub(in super::super) const TAG: i16 = 8;
    pub(in super::super) const FLAGS: i16 = 12;
    pub(in super::super) const LOST: i16 = 16;
    pub(in super::super) const IFINDEX: i16 = 20;
    pub(in super::super) const GSO_SIZE: i16 = 24;
    pub(in super::super) const GSO_SEGS: i16 = 26;
    pub(in super::super) const QUEUE: i16 = 28;
    pub(in super::super) const TIMESTAMP: i16 = 32;
    /// Of a short header; what is not said stands where it does in the other.
    pub(in super::super) const SHORT_IFINDEX: i16 = 4;
}

/// A record, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The frame's length: as many bytes as the filter saw, the VLAN tag
    /// included, all segments together.
    pub wire_len: u32,
    /// The tag of the binding that delivered it.
    pub tag: u32,
    /// `FLAG_…`
    pub flags: u32,
    /// Frames that the port lost since the record before this one.
    pub lost_before: u32,
    /// The interface where the frame was seen.
    pub ifindex: u32,
    /// Bytes of payload in each segment, if [`FLAG_GSO`] is set.
    pub gso_size: u16,
    /// How many segments, if [`FLAG_GSO`] is set and the kernel knows.
    pub gso_segs: u16,
    /// The receive queue, or the queue it is to be sent by.
    pub queue: u32,
    /// Nanoseconds of the clock that the port asked for; 0 if it asked for
    /// none.
    pub timestamp_ns: u64,
    /// The frame's first bytes.
    pub bytes: &'a [u8],
}

/// Why a record was not understood: it was not made by the kernel half, or
/// was overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// Shorter than the header.
    #[error("a record of {len} bytes is shorter than its header of {HEADER_BYTES}")]
    Short {
        /// Its length.
        len: usize,
    },
    /// It claims more bytes than it has.
    #[error("a record of {len} bytes claims {captured} bytes of a frame")]
    Cut {
        /// Its length.
        len: usize,
        /// The length that the header claims.
        captured: u32,
    },
}

impl<'a> Record<'a> {
    /// Takes a record apart.
    ///
    /// # Errors
    /// If it is not one.
    pub fn parse(record: &'a [u8]) -> Result<Record<'a>, RecordError> {
        let len = record.len();
        if word(record, at::FLAGS) & FLAG_SHORT != 0 {
            return Record::parse_short(record);
        }
        let short = RecordError::Short { len };
        let (header, behind) = record.split_at_checked(HEADER_BYTES).ok_or(short)?;
        let captured = word(header, at::CAPTURED);
        let bytes = behind.get(..captured as usize);
        let timestamp = header.get(at::TIMESTAMP as usize..);
        let timestamp = timestamp.and_then(|rest| rest.first_chunk());
        Ok(Record {
            wire_len: word(header, at::WIRE_LEN),
            tag: word(header, at::TAG),
            flags: word(header, at::FLAGS),
            lost_before: word(header, at::LOST),
            ifindex: word(header, at::IFINDEX),
            gso_size: half(header, at::GSO_SIZE),
            gso_segs: half(header, at::GSO_SEGS),
            queue: word(header, at::QUEUE),
            timestamp_ns: u64::from_ne_bytes(*timestamp.unwrap_or(&[0; 8])),
            bytes: bytes.ok_or(RecordError::Cut { len, captured })?,
        })
    }

    fn parse_short(record: &'a [u8]) -> Result<Record<'a>, RecordError> {
        let len = record.len();
        let short = RecordError::Short { len };
        let (header, behind) = record.split_at_checked(SHORT_HEADER_BYTES).ok_or(short)?;
        let captured = word(header, at::WIRE_LEN);
        let flags = word(header, at::FLAGS);
        let bytes = behind.get(..captured as usize);
        Ok(Record {
            wire_len: captured,
            tag: word(header, at::TAG),
            flags: flags & ((1 << QUEUE_SHIFT) - 1) & !FLAG_SHORT,
            lost_before: 0,
            ifindex: word(header, at::SHORT_IFINDEX),
            gso_size: 0,
            gso_segs: 0,
            queue: flags >> QUEUE_SHIFT,
            timestamp_ns: 0,
            bytes: bytes.ok_or(RecordError::Cut { len, captured })?,
        })
    }
}

/// The number of 32 bits at a place of a header; 0 where it has none.
fn word(header: &[u8], at: i16) -> u32 {
    let bytes = header.get(at as usize..);
    let bytes = bytes.and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(*bytes.unwrap_or(&[0; 4]))
}

fn half(header: &[u8], at: i16) -> u16 {
    let bytes = header.get(at as usize..);
    let bytes = bytes.and_then(|rest| rest.first_chunk());
    u16::from_ne_bytes(*bytes.unwrap_or(&[0; 2]))
}
