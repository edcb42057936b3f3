//! What stands in a port's ring: a header, then the frame's bytes.
//!
//! ```text
//!   0        4        8        12       16       20       24       28       32               40
//!   ┌────────┬────────┬────────┬────────┬────────┬────────┬────────┬────────┬────────────────┬────────
//!   │wire_len│captured│  tag   │ flags  │lost    │ifindex │gso     │ queue  │ timestamp      │ bytes …
//!   │        │        │        │        │ before │        │segs:sz │        │ ns, or 0       │ padding
//!   └────────┴────────┴────────┴────────┴────────┴────────┴────────┴────────┴────────────────┴────────
//! ```
//!
//! Numbers are in the host's order. A record may be longer than header and
//! bytes: the kernel reserves room by size classes. What stands behind the
//! bytes means nothing.

/// Bytes of the header.
pub const HEADER_BYTES: usize = 40;

/// The frame stands for several on the wire: segmentation is left to the
/// device (or was undone by it). Its checksums may be partial.
pub const FLAG_GSO: u32 = 1 << 0;
/// The device had taken a VLAN tag out of the frame; it was put back.
pub const FLAG_VLAN: u32 = 1 << 1;
/// The frame leaves the host.
pub const FLAG_EGRESS: u32 = 1 << 2;
/// The filter or the port asked for fewer bytes than the frame has.
pub const FLAG_CUT: u32 = 1 << 3;

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
        /// What it claims.
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
        let short = RecordError::Short { len };
        let (header, behind) = record.split_at_checked(HEADER_BYTES).ok_or(short)?;
        let word = |at: i16| {
            let bytes = header
                .get(at as usize..)
                .and_then(|rest| rest.first_chunk());
            u32::from_ne_bytes(*bytes.unwrap_or(&[0; 4]))
        };
        let half = |at: i16| {
            let bytes = header
                .get(at as usize..)
                .and_then(|rest| rest.first_chunk());
            u16::from_ne_bytes(*bytes.unwrap_or(&[0; 2]))
        };
        let captured = word(at::CAPTURED);
        let bytes = behind.get(..captured as usize);
        let timestamp = header.get(at::TIMESTAMP as usize..);
        let timestamp = timestamp.and_then(|rest| rest.first_chunk());
        Ok(Record {
            wire_len: word(at::WIRE_LEN),
            tag: word(at::TAG),
            flags: word(at::FLAGS),
            lost_before: word(at::LOST),
            ifindex: word(at::IFINDEX),
            gso_size: half(at::GSO_SIZE),
            gso_segs: half(at::GSO_SEGS),
            queue: word(at::QUEUE),
            timestamp_ns: u64::from_ne_bytes(*timestamp.unwrap_or(&[0; 8])),
            bytes: bytes.ok_or(RecordError::Cut { len, captured })?,
        })
    }
}
