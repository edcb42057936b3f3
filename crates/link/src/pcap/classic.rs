//! The pcap format (draft-ietf-opsawg-pcap).
//!
//! ```text
//!  magic 4 │ major 2 │ minor 2 │ zone 4 │ figures 4 │ snaplen 4 │ linktype 4
//!  then per frame:  seconds 4 │ fraction 4 │ captured 4 │ wire 4 │ the bytes
//! ```

use super::byte_order::{ByteOrder, array};
use super::input::Input;
use super::{Damage, Error, FrameRef, Interface, Record, Region, Resolution};
use super::{frame_len_max, linktype, snaplen};

const FILE_HEADER_LEN: usize = 24;
const FRAME_HEADER_LEN: usize = 16;
/// Header of patched libpcaps, which also contains interface, protocol and
/// packet type.
const MODIFIED_HEADER_LEN: usize = 24;
/// Bits of the link type field besides the link type: frame check sequence
/// length.
const LINKTYPE_RESERVED: u32 = 0x03ff_0000;

const MAGIC_MICRO: u32 = 0xa1b2_c3d4;
const MAGIC_NANO: u32 = 0xa1b2_3c4d;
const MAGIC_MODIFIED: u32 = 0xa1b2_cd34;

/// A file's header as [`Writer`](super::Writer) has it.
pub(super) fn file_header(snaplen: u32, linktype: u16) -> [u8; FILE_HEADER_LEN] {
    let mut header = [0; FILE_HEADER_LEN];
    header[..4].copy_from_slice(&MAGIC_NANO.to_le_bytes());
    header[4..6].copy_from_slice(&2_u16.to_le_bytes());
    header[6..8].copy_from_slice(&4_u16.to_le_bytes());
    header[16..20].copy_from_slice(&snaplen.to_le_bytes());
    header[20..22].copy_from_slice(&linktype.to_le_bytes());
    header
}

/// A frame's header behind [`file_header`].
pub(super) fn frame_header(frame: &FrameRef<'_>) -> [u8; FRAME_HEADER_LEN] {
    const SECOND_NS: u64 = 1_000_000_000;
    let time_ns = u64::try_from(frame.time_ns.unwrap_or(0)).unwrap_or(0);
    let (seconds, rest) = match u32::try_from(time_ns / SECOND_NS) {
        Ok(seconds) => (seconds, (time_ns % SECOND_NS) as u32),
        Err(_) => (0, 0),
    };
    let mut header = [0; FRAME_HEADER_LEN];
    let fields = [seconds, rest, frame.bytes.len() as u32, frame.wire_len];
    for (field, word) in header.chunks_exact_mut(4).zip(fields) {
        field.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// The length of what begins at a byte of a file with these headers.
pub(super) fn block_len(block: &[u8], at: u64) -> usize {
    if at == 0 {
        return FILE_HEADER_LEN;
    }
    let captured = block[8..].first_chunk().expect("headers are whole");
    FRAME_HEADER_LEN + u32::from_le_bytes(*captured) as usize
}

/// How the two length fields of a frame are ordered.
#[derive(Clone, Copy)]
enum Lengths {
    CapturedFirst,
    WireFirst,
    /// Version 2.3 was written in both orders: the captured length is the
    /// smaller.
    Either,
}

/// Properties of the file's frames, from its header.
pub(super) struct Classic {
    order: ByteOrder,
    nano: bool,
    header_len: usize,
    lengths: Lengths,
    snaplen: u32,
    frame_max: u32,
}

/// Whether a file's first four bytes `start` are a pcap magic number.
pub(super) fn is_magic(start: [u8; 4]) -> bool {
    let magic = u32::from_ne_bytes(start);
    [MAGIC_MICRO, MAGIC_NANO, MAGIC_MODIFIED]
        .iter()
        .any(|known| magic == *known || magic.swap_bytes() == *known)
}

impl Classic {
    /// Reads the file's header after its magic number was recognised.
    pub(super) fn open(input: &mut Input) -> Result<(Classic, Interface), Error> {
        if !input.has_unread(FILE_HEADER_LEN)? {
            return Err(input.cut_short(Region::FileHeader, FILE_HEADER_LEN));
        }
        let bytes = input.unread();
        let magic = u32::from_ne_bytes(array(bytes, 0));
        let swapped = ![MAGIC_MICRO, MAGIC_NANO, MAGIC_MODIFIED].contains(&magic);
        let order = ByteOrder { swapped };
        let magic = order.word(bytes, 0);
        let lengths = match (order.half(bytes, 4), order.half(bytes, 6)) {
            (2, 0..=2) | (543, 0) => Lengths::WireFirst,
            (2, 3) => Lengths::Either,
            (2, 4) => Lengths::CapturedFirst,
            (major, minor) => {
                let format = "pcap";
                return Err(input.damaged(Damage::Version {
                    format,
                    major,
                    minor,
                }));
            }
        };
        let field = order.word(bytes, 20);
        if field & LINKTYPE_RESERVED != 0 {
            return Err(input.damaged(Damage::LinkType(field)));
        }
        let linktype = linktype(field as u16);
        let modified = magic == MAGIC_MODIFIED;
        let snaplen = snaplen(linktype, order.word(bytes, 16));
        let nano = magic == MAGIC_NANO;
        input.take(FILE_HEADER_LEN);
        let classic = Classic {
            order,
            nano,
            header_len: if modified {
                MODIFIED_HEADER_LEN
            } else {
                FRAME_HEADER_LEN
            },
            lengths,
            snaplen,
            frame_max: frame_len_max(linktype),
        };
        let interface = Interface {
            linktype,
            snaplen,
            resolution: if nano {
                Resolution::NANO
            } else {
                Resolution::MICRO
            },
            offset_s: 0,
            name: None,
        };
        Ok((classic, interface))
    }

    #[inline]
    pub(super) fn next(&self, input: &mut Input) -> Result<Option<Record>, Error> {
        if !input.has_unread(self.header_len)? {
            return match input.unread() {
                [] => Ok(None),
                _ => Err(input.cut_short(Region::FrameHeader, self.header_len)),
            };
        }
        let header: [u8; FRAME_HEADER_LEN] = array(input.unread(), 0);
        let word = |at: usize| self.order.word(&header, at);
        let (captured, wire_len) = self.lengths(word(8), word(12));
        if captured > self.frame_max {
            let max = self.frame_max;
            return Err(input.damaged(Damage::FrameLength { captured, max }));
        }
        let whole = self.header_len + captured as usize;
        if !input.has_unread(whole)? {
            return Err(self.cut_inside(input, captured));
        }
        let position = input.position() + self.header_len;
        input.take(whole);
        let fraction = i64::from(word(4)) * if self.nano { 1 } else { 1000 };
        Ok(Some(Record {
            position,
            len: captured.min(self.snaplen) as usize,
            wire_len,
            time_ns: Some(i64::from(word(0)) * 1_000_000_000 + fraction),
            interface: 0,
        }))
    }

    /// The captured and the wire length, from the frame header's two length
    /// fields.
    #[inline]
    fn lengths(&self, first: u32, second: u32) -> (u32, u32) {
        match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::Either if first <= second => (first, second),
            Lengths::Either | Lengths::WireFirst => (second, first),
        }
    }

    /// The error for a file that ends inside a frame's bytes.
    #[cold]
    fn cut_inside(&self, input: &Input, captured: u32) -> Error {
        let have = input.unread().len() - self.header_len;
        input.damaged(Damage::CutShort {
            region: Region::Frame,
            have: have as u64,
            need: u64::from(captured),
        })
    }
}
