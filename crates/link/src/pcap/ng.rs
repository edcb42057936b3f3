//! The pcapng format (draft-ietf-opsawg-pcapng).
//!
//! ```text
//!  type 4 │ length 4 │ body … │ length 4         every block
//!  section:    magic 4 │ major 2 │ minor 2 │ length 8 │ options
//!  interface:  linktype 2 │ 0 2 │ snaplen 4 │ options
//!  enhanced:   interface 4 │ time 8 │ captured 4 │ wire 4 │ bytes │ options
//!  simple:     wire 4 │ bytes
//!  obsolete:   interface 2 │ drops 2 │ time 8 │ captured 4 │ wire 4 │ bytes │ …
//! ```
//!
//! Numbers are in the section's byte order; the 8 bytes of a timestamp are two
//! words, the high one first.

use std::collections::HashMap;

use super::byte_order::{ByteOrder, array};
use super::input::Input;
use super::{Damage, Error, INTERFACES_MAX, Interface, NAME_LEN_MAX, Record, Region, Resolution};
use super::{frame_len_max, linktype, snaplen};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OBSOLETE: u32 = 2;
const SIMPLE: u32 = 3;
const ENHANCED: u32 = 6;

const ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const HEADER_LEN: usize = 8;
const TRAILER_LEN: usize = 4;
/// Bytes of an enhanced or obsolete packet block before the frame's bytes.
const FIXED_LEN: usize = 20;
/// Largest length of a block: libpcap's limit, enough for the longest frame of
/// most link types and for blocks of secrets and names.
const BLOCK_LEN_MAX: u32 = 16 << 20;
/// Additional bytes for options in a block with a longer frame.
const OPTIONS_LEN: u32 = 128 << 10;

mod option {
    pub(super) const END: u16 = 0;
    pub(super) const NAME: u16 = 2;
    pub(super) const RESOLUTION: u16 = 9;
    pub(super) const OFFSET: u16 = 14;
}

/// An interface's properties that its frames' parsing needs.
struct Local {
    /// Its index among all interfaces of the file.
    index: u32,
    snaplen: u32,
    frame_max: u32,
    clock: Clock,
}

/// Converts an interface's timestamps to nanoseconds.
#[derive(Clone, Copy)]
struct Clock {
    /// If the resolution is decimal, `multiply` or `divide` is 1.
    multiply: u64,
    ticks_per_unit: u64,
    shift: u32,
    offset_ns: i128,
}

impl Clock {
    fn new(resolution: Resolution, offset_s: i64) -> Clock {
        let (multiply, ticks_per_unit, shift) = match resolution {
            Resolution::Decimal(digits @ 0..=9) => (10u64.pow(9 - u32::from(digits)), 1, 0),
            Resolution::Decimal(digits) => (1, 10u64.pow(u32::from(digits) - 9), 0),
            Resolution::Binary(bits) => (1_000_000_000, 1, u32::from(bits)),
        };
        let offset_ns = i128::from(offset_s) * 1_000_000_000;
        Clock {
            multiply,
            ticks_per_unit,
            shift,
            offset_ns,
        }
    }

    #[inline]
    fn nanoseconds(&self, units: u64) -> i64 {
        let plain = self.ticks_per_unit == 1 && self.shift == 0 && self.offset_ns == 0;
        if plain && let Some(Ok(time_ns)) = units.checked_mul(self.multiply).map(i64::try_from) {
            return time_ns;
        }
        self.nanoseconds_wide(units)
    }

    #[cold]
    fn nanoseconds_wide(&self, units: u64) -> i64 {
        let scaled = (i128::from(units) * i128::from(self.multiply)) >> self.shift;
        let time_ns = scaled / i128::from(self.ticks_per_unit) + self.offset_ns;
        time_ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// A pcapng file, positioned between two blocks.
pub(super) struct Ng {
    order: ByteOrder,
    block_max: u32,
    /// The interfaces of this section.
    locals: Vec<Local>,
    /// Interfaces by their number in their section, to recognise those of
    /// earlier sections.
    known: HashMap<(u32, Interface), u32>,
}

/// The position of a block's body in the buffer.
#[derive(Clone, Copy)]
struct Body {
    position: usize,
    len: usize,
}

/// Whether a file's first four bytes `start` begin a pcapng file.
pub(super) fn is_magic(start: [u8; 4]) -> bool {
    u32::from_ne_bytes(start) == SECTION
}

impl Ng {
    pub(super) fn new() -> Ng {
        Ng {
            order: ByteOrder { swapped: false },
            block_max: BLOCK_LEN_MAX,
            locals: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// Reads the first block, whose type was recognised, and further blocks up
    /// to the first interface description, the first frame or the end of the
    /// file.
    pub(super) fn open(
        &mut self,
        input: &mut Input,
        interfaces: &mut Vec<Interface>,
    ) -> Result<(), Error> {
        while let Some((kind, length)) = self.header(input)? {
            if matches!(kind, ENHANCED | SIMPLE | OBSOLETE) {
                break;
            }
            self.uncommon_block(input, kind, length, interfaces)?;
            if !interfaces.is_empty() {
                break;
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn next(
        &mut self,
        input: &mut Input,
        interfaces: &mut Vec<Interface>,
    ) -> Result<Option<Record>, Error> {
        while let Some((kind, length)) = self.header(input)? {
            if kind != ENHANCED {
                match self.uncommon_block(input, kind, length, interfaces)? {
                    None => continue,
                    record => return Ok(record),
                }
            }
            let whole = length as usize;
            let body = self.body(input, whole)?;
            let record = self.enhanced(input, body, length)?;
            input.take(whole);
            return Ok(Some(record));
        }
        Ok(None)
    }

    /// Processes a block other than an enhanced packet block; returns its frame
    /// if it contains one. Separate from the common path, so that the latter
    /// stays short.
    #[cold]
    fn uncommon_block(
        &mut self,
        input: &mut Input,
        kind: u32,
        length: u32,
        interfaces: &mut Vec<Interface>,
    ) -> Result<Option<Record>, Error> {
        let whole = length as usize;
        if kind == SECTION {
            self.section(input, whole)?;
            return Ok(None);
        }
        let body = self.body(input, whole)?;
        let record = match kind {
            SIMPLE => Some(self.simple(input, body, length)?),
            OBSOLETE => Some(self.obsolete(input, body, length)?),
            INTERFACE => {
                self.describe(input, body, interfaces)?;
                None
            }
            _ => None,
        };
        input.take(whole);
        Ok(record)
    }

    /// The next block's type and length, checked; `None` at the end of the
    /// file. A section header sets the byte order.
    #[inline(always)]
    fn header(&mut self, input: &mut Input) -> Result<Option<(u32, u32)>, Error> {
        if !input.has_unread(HEADER_LEN)? {
            return match input.unread() {
                [] => Ok(None),
                _ => Err(input.cut_short(Region::BlockHeader, HEADER_LEN)),
            };
        }
        // The section header's block type reads the same in both byte orders.
        let mut start: [u8; HEADER_LEN] = array(input.unread(), 0);
        if self.order.word(&start, 0) == SECTION {
            self.byte_order(input)?;
            start = array(input.unread(), 0);
        }
        let kind = self.order.word(&start, 0);
        let length = self.order.word(&start, 4);
        if !length.is_multiple_of(4) || length < least(kind) || length > self.block_max {
            return Err(self.bad_length(input, kind, length));
        }
        Ok(Some((kind, length)))
    }

    #[cold]
    fn bad_length(&self, input: &Input, kind: u32, length: u32) -> Error {
        input.damaged(Damage::BlockLength {
            kind,
            length,
            min: least(kind),
            max: self.block_max,
        })
    }

    /// Determines the byte order of the section that starts here.
    #[cold]
    fn byte_order(&mut self, input: &mut Input) -> Result<(), Error> {
        if !input.has_unread(HEADER_LEN + 4)? {
            return Err(input.cut_short(Region::BlockHeader, HEADER_LEN + 4));
        }
        let magic = u32::from_ne_bytes(array(input.unread(), HEADER_LEN));
        self.order.swapped = match magic {
            ORDER_MAGIC => false,
            _ if magic.swap_bytes() == ORDER_MAGIC => true,
            _ => return Err(input.damaged(Damage::ByteOrder(magic))),
        };
        Ok(())
    }

    /// Reads the whole block into the buffer and compares its two lengths.
    #[inline(always)]
    fn body(&self, input: &mut Input, whole: usize) -> Result<Body, Error> {
        if !input.has_unread(whole)? {
            return Err(input.cut_short(Region::Block, whole));
        }
        let behind = self.order.word(input.unread(), whole - TRAILER_LEN);
        if behind as usize != whole {
            let before = whole as u32;
            return Err(input.damaged(Damage::BlockTrailer { before, behind }));
        }
        Ok(Body {
            position: input.position() + HEADER_LEN,
            len: whole - HEADER_LEN - TRAILER_LEN,
        })
    }

    /// Starts a section, which describes its own interfaces.
    fn section(&mut self, input: &mut Input, whole: usize) -> Result<(), Error> {
        let body = self.body(input, whole)?;
        let bytes = input.slice(body.position, body.len);
        let (major, minor) = (self.order.half(bytes, 4), self.order.half(bytes, 6));
        if major != 1 {
            let format = "pcapng";
            return Err(input.damaged(Damage::Version {
                format,
                major,
                minor,
            }));
        }
        self.locals.clear();
        input.take(whole);
        Ok(())
    }

    /// Parses an interface description.
    fn describe(
        &mut self,
        input: &Input,
        body: Body,
        interfaces: &mut Vec<Interface>,
    ) -> Result<(), Error> {
        let bytes = input.slice(body.position, body.len);
        let linktype = linktype(self.order.half(bytes, 0));
        let mut interface = Interface {
            linktype,
            snaplen: snaplen(linktype, self.order.word(bytes, 4)),
            resolution: Resolution::MICRO,
            offset_s: 0,
            name: None,
        };
        self.options(&bytes[8..], &mut interface)
            .map_err(|damage| input.damaged(damage))?;
        let number = self.locals.len() as u32;
        let frame_max = frame_len_max(linktype);
        let local = Local {
            index: interfaces.len() as u32,
            snaplen: interface.snaplen,
            frame_max,
            clock: Clock::new(interface.resolution, interface.offset_s),
        };
        let key = (number, interface);
        let index = match self.known.get(&key) {
            Some(index) => *index,
            None if interfaces.len() < INTERFACES_MAX => {
                interfaces.push(key.1.clone());
                self.known.insert(key, local.index);
                local.index
            }
            None => return Err(input.damaged(Damage::Interfaces(INTERFACES_MAX))),
        };
        self.locals.push(Local { index, ..local });
        let block_max = frame_max + OPTIONS_LEN;
        self.block_max = self.block_max.max(block_max);
        Ok(())
    }

    /// Parses an interface's options; those that weir does not use are skipped.
    fn options(&self, mut bytes: &[u8], interface: &mut Interface) -> Result<(), Damage> {
        while !bytes.is_empty() {
            let (mut code, mut length) = (0, 0);
            if bytes.len() >= 4 {
                (code, length) = (self.order.half(bytes, 0), self.order.half(bytes, 2));
            }
            let padded = usize::from(length).next_multiple_of(4);
            let malformed = Damage::Option { code, length };
            if bytes.len() < 4 + padded {
                return Err(malformed);
            }
            let value = &bytes[4..4 + usize::from(length)];
            bytes = &bytes[4 + padded..];
            match (code, value) {
                (option::END, _) => return Ok(()),
                (option::NAME, name) => interface.name = Some(text(name)),
                (option::RESOLUTION, [byte]) => interface.resolution = resolution(*byte)?,
                (option::OFFSET, [_, _, _, _, _, _, _, _]) => {
                    interface.offset_s = self.order.long(value, 0) as i64;
                }
                (option::RESOLUTION | option::OFFSET, _) => return Err(malformed),
                _ => {}
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn enhanced(&self, input: &Input, body: Body, length: u32) -> Result<Record, Error> {
        let bytes = input.slice(body.position, body.len);
        let number = self.order.word(bytes, 0);
        self.frame(input, body, length, number)
    }

    fn obsolete(&self, input: &Input, body: Body, length: u32) -> Result<Record, Error> {
        let bytes = input.slice(body.position, body.len);
        let number = u32::from(self.order.half(bytes, 0));
        self.frame(input, body, length, number)
    }

    /// A frame whose block has its timestamp, captured and wire length from
    /// byte 4 on.
    #[inline(always)]
    fn frame(&self, input: &Input, body: Body, length: u32, number: u32) -> Result<Record, Error> {
        let local = self.local(input, number)?;
        let bytes: [u8; FIXED_LEN] = array(input.slice(body.position, FIXED_LEN), 0);
        let captured = self.order.word(&bytes, 12);
        if captured > local.frame_max {
            let max = local.frame_max;
            return Err(input.damaged(Damage::FrameLength { captured, max }));
        }
        if captured as usize > body.len - FIXED_LEN {
            return Err(self.overrun(input, length, captured, FIXED_LEN));
        }
        let units =
            u64::from(self.order.word(&bytes, 4)) << 32 | u64::from(self.order.word(&bytes, 8));
        Ok(Record {
            position: body.position + FIXED_LEN,
            len: captured.min(local.snaplen) as usize,
            wire_len: self.order.word(&bytes, 16),
            time_ns: Some(local.clock.nanoseconds(units)),
            interface: local.index,
        })
    }

    /// A frame of interface 0 without a timestamp, cut to the snap length.
    fn simple(&self, input: &Input, body: Body, length: u32) -> Result<Record, Error> {
        let local = self.local(input, 0)?;
        let bytes = input.slice(body.position, body.len);
        let wire_len = self.order.word(bytes, 0);
        let captured = wire_len.min(local.snaplen);
        if captured > local.frame_max {
            let max = local.frame_max;
            return Err(input.damaged(Damage::FrameLength { captured, max }));
        }
        if captured as usize > body.len - 4 {
            return Err(self.overrun(input, length, captured, 4));
        }
        Ok(Record {
            position: body.position + 4,
            len: captured as usize,
            wire_len,
            time_ns: None,
            interface: local.index,
        })
    }

    /// The error for a block that is too short for its frame.
    #[cold]
    fn overrun(&self, input: &Input, length: u32, captured: u32, fixed_len: usize) -> Error {
        let kind = self.order.word(input.unread(), 0);
        let around = (HEADER_LEN + fixed_len + TRAILER_LEN) as u32;
        input.damaged(Damage::BlockLength {
            kind,
            length,
            min: around + captured.next_multiple_of(4),
            max: self.block_max,
        })
    }

    #[inline]
    fn local(&self, input: &Input, number: u32) -> Result<&Local, Error> {
        self.locals.get(number as usize).ok_or_else(|| {
            input.damaged(Damage::Interface {
                interface: number,
                known: self.locals.len() as u32,
            })
        })
    }
}

/// Minimum length of a block of type `kind`: its fixed fields.
#[inline]
fn least(kind: u32) -> u32 {
    12 + match kind {
        SECTION => 16,
        INTERFACE => 8,
        OBSOLETE | ENHANCED => 20,
        SIMPLE => 4,
        _ => 0,
    }
}

/// The resolution that an interface's if_tsresol option means.
fn resolution(byte: u8) -> Result<Resolution, Damage> {
    match (byte & 0x80 != 0, byte & 0x7f) {
        (false, digits @ 0..=19) => Ok(Resolution::Decimal(digits)),
        (true, bits @ 0..=63) => Ok(Resolution::Binary(bits)),
        _ => Err(Damage::Resolution(byte)),
    }
}

/// An option's text without the trailing zeros that some writers add.
fn text(bytes: &[u8]) -> String {
    // An invalid byte becomes three bytes (U+FFFD); the name is cut to its
    // limit after that.
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(NAME_LEN_MAX)]);
    let text = text.trim_end_matches('\0');
    text[..text.floor_char_boundary(NAME_LEN_MAX)].to_owned()
}
