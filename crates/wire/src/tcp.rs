//! TCP headers (RFC 9293 §3.1) with options: MSS, window scale, timestamps
//! (RFC 7323), SACK (RFC 2018), Fast Open (RFC 7413).
//!
//! [`Segment`] is the view, [`Repr`] the value, [`Plain`] the value of the most
//! frequent header. Options are written in the layouts that the fast paths of
//! other stacks expect: two NOPs precede a lone timestamp (RFC 7323, appendix A).

use crate::checksum::{AddrPair, Sum};
use crate::error::require_len;
use crate::field::{read_u16, read_u32, write};
use crate::{Error, Protocol};

const HEADER: &str = "a TCP header";

/// The control bits in byte 13 of the header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub u8);

impl Flags {
    /// The sender has no more data.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronises sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset of the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push: the receiver delivers buffered data to the application.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgment number is valid.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo: the receiver saw a congestion mark (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// The sender reduced its congestion window (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// Whether all of `flags` are set.
    #[inline]
    pub fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// View of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a>(&'a [u8]);

impl<'a> Segment<'a> {
    /// Checks the header; `bytes` are the whole payload of an IP packet.
    ///
    /// # Errors
    /// If the header is cut short, or its data offset is less than 5 words.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Segment<'a>, Error> {
        require_len(HEADER, bytes, Repr::LEN_MIN)?;
        let segment = Segment(bytes);
        let header_len = segment.header_len();
        if header_len < Repr::LEN_MIN {
            return Err(Error::Field {
                header: HEADER,
                field: "data offset",
                value: u32::from(bytes[12] >> 4),
            });
        }
        require_len(HEADER, bytes, header_len)?;
        Ok(segment)
    }

    /// The source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        read_u16(self.0, 0)
    }

    /// The destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        read_u16(self.0, 2)
    }

    /// The sequence number of SYN, or else of the first payload byte.
    #[inline]
    pub fn seq(&self) -> u32 {
        read_u32(self.0, 4)
    }

    /// The acknowledgment number.
    #[inline]
    pub fn ack(&self) -> u32 {
        read_u32(self.0, 8)
    }

    /// The control bits.
    #[inline]
    pub fn flags(&self) -> Flags {
        Flags(self.0[13])
    }

    /// The receive window, before scaling.
    #[inline]
    pub fn window(&self) -> u16 {
        read_u16(self.0, 14)
    }

    /// Length of the header with its options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0[12] >> 4) * 4
    }

    /// The header's options.
    #[inline]
    pub fn options(&self) -> &'a [u8] {
        &self.0[Repr::LEN_MIN..self.header_len()]
    }

    /// The bytes behind the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.0[self.header_len()..]
    }

    /// Whether the checksum is right; only a whole segment gives a meaningful answer.
    #[inline]
    pub fn checksum_is_right(&self, addresses: AddrPair) -> bool {
        let sum = Sum::new().pseudo_header(addresses, Protocol::TCP.0, self.0.len() as u32);
        sum.bytes(self.0).finish() == 0
    }
}

/// Value of the options that weir knows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// Maximum segment size that the sender accepts, in bytes (kind 2).
    pub mss: Option<u16>,
    /// Shift of the sender's window (kind 3).
    pub window_scale: Option<u8>,
    /// SACK permitted (kind 4).
    pub sack_permitted: bool,
    /// TSval and TSecr (kind 8).
    pub timestamps: Option<(u32, u32)>,
    /// SACK blocks: ranges received out of order (kind 5).
    pub sack: SackBlocks,
    /// TCP Fast Open (kind 34): a cookie, or a cookie request.
    pub fast_open: Option<FastOpen>,
}

/// The TCP Fast Open option of a SYN (RFC 7413 §4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpen {
    bytes: [u8; FastOpen::MAX],
    len: u8,
    /// Written as an experimental option (kind 254, RFC 6994), which preceded the
    /// assigned kind 34.
    pub experimental: bool,
}

impl FastOpen {
    /// Maximum cookie length, in bytes (RFC 7413 §4.1.1).
    pub const MAX: usize = 16;
    /// Minimum cookie length, in bytes (RFC 7413 §4.1.1).
    pub const MIN: usize = 4;
    const MAGIC: [u8; 2] = [0xf9, 0x89];

    /// A cookie request: an option with an empty cookie.
    pub fn request(experimental: bool) -> FastOpen {
        FastOpen {
            bytes: [0; FastOpen::MAX],
            len: 0,
            experimental,
        }
    }

    /// An option with a cookie; `None` if its length is odd, below [`FastOpen::MIN`] or
    /// above [`FastOpen::MAX`].
    pub fn cookie(cookie: &[u8], experimental: bool) -> Option<FastOpen> {
        let fits = (FastOpen::MIN..=FastOpen::MAX).contains(&cookie.len());
        let mut option = FastOpen::request(experimental);
        if !fits || !cookie.len().is_multiple_of(2) {
            return None;
        }
        option.bytes[..cookie.len()].copy_from_slice(cookie);
        option.len = cookie.len() as u8;
        Some(option)
    }

    /// The cookie; empty in a request.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Passes the option to `push` in 32-bit words, padded with NOPs.
    fn emit(&self, mut push: impl FnMut([u8; 4])) {
        let mut bytes = [kind::NOP; 4 + FastOpen::MAX];
        let len = self.len() as u8;
        let cookie_at = if self.experimental {
            let [a, b] = FastOpen::MAGIC;
            bytes[..4].copy_from_slice(&[kind::EXPERIMENT, len, a, b]);
            4
        } else {
            bytes[..2].copy_from_slice(&[kind::FAST_OPEN, len]);
            2
        };
        write(&mut bytes, cookie_at, self.as_slice());
        let padded = &bytes[..self.len().next_multiple_of(4)];
        for word in padded.as_chunks::<4>().0 {
            push(*word);
        }
    }

    fn parse(bytes: &[u8], experimental: bool) -> Option<FastOpen> {
        match bytes {
            [] => Some(FastOpen::request(experimental)),
            _ => FastOpen::cookie(bytes, experimental),
        }
    }

    /// Length without padding, in bytes.
    fn len(&self) -> usize {
        usize::from(self.len) + if self.experimental { 4 } else { 2 }
    }
}

/// The blocks of a SACK option (RFC 2018 §3): each is the first sequence number of
/// a received range, and the sequence number behind its last byte.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SackBlocks {
    blocks: [(u32, u32); SackBlocks::MAX],
    len: u8,
}

impl SackBlocks {
    /// Maximum number of blocks that a header has room for; beside timestamps three fit.
    pub const MAX: usize = 4;

    /// Adds a block; false if the option is full.
    pub fn push(&mut self, start: u32, end: u32) -> bool {
        let Some(free) = self.blocks.get_mut(usize::from(self.len)) else {
            return false;
        };
        *free = (start, end);
        self.len += 1;
        true
    }

    /// The blocks in the order of the header.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.len)]
    }

    fn parse(bytes: &[u8]) -> SackBlocks {
        let mut sack = SackBlocks::default();
        for block in bytes.as_chunks::<8>().0 {
            sack.push(read_u32(block, 0), read_u32(block, 4));
        }
        sack
    }
}

mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
    pub(super) const FAST_OPEN: u8 = 34;
    pub(super) const EXPERIMENT: u8 = 254;
}

impl Options {
    /// Parses a header's options. Unknown options are skipped; parsing stops at a
    /// malformed one.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Options {
        let mut options = Options::default();
        options.take(bytes);
        options
    }

    /// [`Options::parse`] into `self`, which has no options yet.
    #[inline]
    fn take(&mut self, bytes: &[u8]) {
        match *bytes {
            [] => {}
            // Fast path: the layout of almost all segments (RFC 7323, appendix A).
            [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10, ..] if bytes.len() == 12 => {
                self.timestamps = Some((read_u32(bytes, 4), read_u32(bytes, 8)));
            }
            // Fast path: the layout of almost all SYNs.
            [
                kind::MSS,
                4,
                a,
                b,
                kind::SACK_PERMITTED,
                2,
                kind::TIMESTAMPS,
                10,
                _,
                _,
                _,
                _,
                _,
                _,
                _,
                _,
                kind::NOP,
                kind::WINDOW_SCALE,
                3,
                shift,
            ] => {
                self.mss = Some(u16::from_be_bytes([a, b]));
                self.sack_permitted = true;
                self.timestamps = Some((read_u32(bytes, 8), read_u32(bytes, 12)));
                self.window_scale = Some(shift);
            }
            _ => self.read(bytes),
        }
    }

    fn read(&mut self, mut bytes: &[u8]) {
        let options = self;
        loop {
            let (option, rest) = match *bytes {
                [] | [kind::END, ..] => return,
                [kind::NOP, ..] => {
                    bytes = &bytes[1..];
                    continue;
                }
                [_, len, ..] if len >= 2 && usize::from(len) <= bytes.len() => {
                    bytes.split_at(len.into())
                }
                _ => return,
            };
            match *option {
                [kind::MSS, _, a, b] => options.mss = Some(u16::from_be_bytes([a, b])),
                [kind::WINDOW_SCALE, _, shift] => options.window_scale = Some(shift),
                [kind::SACK_PERMITTED, _] => options.sack_permitted = true,
                [kind::SACK, _, ref blocks @ ..] if blocks.len().is_multiple_of(8) => {
                    options.sack = SackBlocks::parse(blocks);
                }
                [kind::TIMESTAMPS, 10, ..] => {
                    options.timestamps = Some((read_u32(option, 2), read_u32(option, 6)));
                }
                [kind::FAST_OPEN, _, ref cookie @ ..] => {
                    options.fast_open = FastOpen::parse(cookie, false);
                }
                [kind::EXPERIMENT, _, a, b, ref cookie @ ..] if [a, b] == FastOpen::MAGIC => {
                    options.fast_open = FastOpen::parse(cookie, true);
                }
                _ => {}
            }
            bytes = rest;
        }
    }

    /// Length in a header with padding, in bytes. A header has room for 40; the
    /// result may exceed 40.
    pub fn len(&self) -> usize {
        let mss: usize = if self.mss.is_some() { 4 } else { 0 };
        let window_scale = if self.window_scale.is_some() { 4 } else { 0 };
        let timestamps_and_permitted = match (self.timestamps, self.sack_permitted) {
            (Some(_), _) => 12,
            (None, true) => 4,
            (None, false) => 0,
        };
        let sack = match self.sack.as_slice().len() {
            0 => 0,
            blocks => 4 + 8 * blocks,
        };
        let fast_open = self.fast_open.map_or(0, |option| option.len());
        mss + window_scale + timestamps_and_permitted + sack + fast_open.next_multiple_of(4)
    }

    /// Whether no option is present.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the options, a 32-bit word at a time, and returns their sum.
    fn emit(&self, out: &mut [u8]) -> Sum {
        let mut places = out.as_chunks_mut::<4>().0.iter_mut();
        let mut sum = Sum::new();
        let mut push = |word: [u8; 4]| {
            *places.next().expect("room as Options::len says") = word;
            sum = sum.double(u32::from_be_bytes(word));
        };
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            push([kind::MSS, 4, a, b]);
        }
        // The order of other stacks: firewalls know it.
        match (self.sack_permitted, self.timestamps.is_some()) {
            (true, true) => push([kind::SACK_PERMITTED, 2, kind::TIMESTAMPS, 10]),
            (true, false) => push([kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2]),
            (false, true) => push([kind::NOP, kind::NOP, kind::TIMESTAMPS, 10]),
            (false, false) => {}
        }
        if let Some((value, echo)) = self.timestamps {
            push(value.to_be_bytes());
            push(echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            push([kind::NOP, kind::WINDOW_SCALE, 3, shift]);
        }
        if let Some(option) = &self.fast_open {
            option.emit(&mut push);
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            push([kind::NOP, kind::NOP, kind::SACK, 2 + 8 * blocks.len() as u8]);
        }
        for (start, end) in blocks {
            push(start.to_be_bytes());
            push(end.to_be_bytes());
        }
        sum
    }
}

/// Value of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The source port.
    pub src_port: u16,
    /// The destination port.
    pub dst_port: u16,
    /// The sequence number.
    pub seq: u32,
    /// The acknowledgment number.
    pub ack: u32,
    /// The control bits.
    pub flags: Flags,
    /// The receive window, before scaling.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// The options.
    pub options: Options,
}

impl Repr {
    /// Length of the header without options, in bytes.
    pub const LEN_MIN: usize = 20;
    /// Offset of the checksum in the header, in bytes.
    pub const CHECKSUM_AT: u16 = 16;

    /// Reads all fields and options of the header.
    // Inlined, so that the large value is built in its final place and never moved.
    #[inline(always)]
    pub fn parse(segment: &Segment<'_>) -> Repr {
        let mut repr = Repr {
            src_port: segment.src_port(),
            dst_port: segment.dst_port(),
            seq: segment.seq(),
            ack: segment.ack(),
            flags: segment.flags(),
            window: segment.window(),
            urgent: read_u16(segment.0, 18),
            options: Options::default(),
        };
        repr.options.take(segment.options());
        repr
    }

    /// Length of the header with its options, in bytes. Only headers of at most 60
    /// bytes can be written.
    #[inline]
    pub fn header_len(&self) -> usize {
        Repr::LEN_MIN + self.options.len()
    }

    /// Writes the header and checksum of `segment`, whose payload is in place.
    ///
    /// # Panics
    /// If `segment` is shorter than [`Repr::header_len`] or longer than 4 GiB,
    /// or the options have more than 40 bytes.
    pub fn emit(&self, segment: &mut [u8], addresses: AddrPair) {
        let header_len = self.header_len();
        let len = u32::try_from(segment.len()).expect("a TCP segment is shorter than 4 GiB");
        let (header, payload) = segment.split_at_mut(header_len);
        let sum = Sum::new().pseudo_header(addresses, Protocol::TCP.0, len);
        let sum = sum.and(Sum::new().bytes(payload));
        self.emit_header(header, |header| header.and(sum).finish());
    }

    /// Writes the header of a segment; `rest` is the sum of pseudo-header and payload.
    ///
    /// # Panics
    /// If `header` is not exactly [`Repr::header_len`] bytes long, or the options have
    /// more than 40 bytes.
    pub fn emit_summed(&self, header: &mut [u8], rest: Sum) {
        self.emit_header(header, |header| header.and(rest).finish());
    }

    /// Writes the header of a segment whose checksum the link completes; `pseudo` is
    /// the sum of the pseudo-header.
    ///
    /// # Panics
    /// As [`Repr::emit_summed`].
    pub fn emit_partial(&self, header: &mut [u8], pseudo: Sum) {
        self.emit_header(header, |_| pseudo.partial());
    }

    /// Writes the header; `checksum` maps the sum of the header's other words to the
    /// checksum field. The sum is built from registers: reading bytes back would
    /// wait for the stores.
    #[inline]
    fn emit_header(&self, header: &mut [u8], checksum: impl FnOnce(Sum) -> u16) {
        let header_len = self.header_len();
        assert!(header_len <= 60, "TCP options have at most 40 bytes");
        assert_eq!(header.len(), header_len, "the header is written whole");
        let (start, options) = header.split_at_mut(Repr::LEN_MIN);
        let mut sum = self.options.emit(options).word(self.urgent);
        let words = [
            u32::from(self.src_port) << 16 | u32::from(self.dst_port),
            self.seq,
            self.ack,
            (header_len as u32) << 26 | u32::from(self.flags.0) << 16 | u32::from(self.window),
        ];
        let (places, _) = start.as_chunks_mut::<4>();
        for (place, word) in places.iter_mut().zip(words) {
            *place = word.to_be_bytes();
            sum = sum.double(word);
        }
        let last = u32::from(checksum(sum)) << 16 | u32::from(self.urgent);
        places[4] = last.to_be_bytes();
    }
}

/// Value of the most frequent header: without options, or with timestamps alone.
/// It is written like the equal [`Repr`], in a fraction of the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain {
    /// The source port.
    pub src_port: u16,
    /// The destination port.
    pub dst_port: u16,
    /// The sequence number.
    pub seq: u32,
    /// The acknowledgment number.
    pub ack: u32,
    /// The control bits.
    pub flags: Flags,
    /// The receive window, before scaling.
    pub window: u16,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
}

impl Plain {
    /// Two NOPs, then kind and length of the option (RFC 7323, appendix A).
    const TIMESTAMPS: u32 = 0x0101_080a;

    /// Length of the header, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        match self.timestamps {
            Some(_) => Repr::LEN_MIN + 12,
            None => Repr::LEN_MIN,
        }
    }

    /// The equal [`Repr`].
    #[inline]
    pub fn repr(&self) -> Repr {
        Repr {
            src_port: self.src_port,
            dst_port: self.dst_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: 0,
            options: Options {
                timestamps: self.timestamps,
                ..Options::default()
            },
        }
    }

    /// Writes the header; `checksum` maps the sum of the header's other words to the
    /// checksum field.
    ///
    /// # Panics
    /// If `header` is not exactly [`Plain::header_len`] bytes long.
    #[inline]
    pub fn emit(&self, header: &mut [u8], checksum: impl FnOnce(Sum) -> u16) {
        let offset = (self.header_len() as u32) << 26;
        let words = [
            u32::from(self.src_port) << 16 | u32::from(self.dst_port),
            self.seq,
            self.ack,
            offset | u32::from(self.flags.0) << 16 | u32::from(self.window),
        ];
        let mut sum = Sum::new();
        for word in words {
            sum = sum.double(word);
        }
        if let Some((value, echo)) = self.timestamps {
            sum = sum.double(Plain::TIMESTAMPS).double(value).double(echo);
        }
        let checksum = u32::from(checksum(sum)) << 16;
        let (places, rest) = header.as_chunks_mut::<4>();
        assert!(rest.is_empty(), "the header is written whole");
        match (self.timestamps, places) {
            (None, [a, b, c, d, e]) => {
                for (place, word) in [a, b, c, d].into_iter().zip(words) {
                    *place = word.to_be_bytes();
                }
                *e = checksum.to_be_bytes();
            }
            (Some((value, echo)), [a, b, c, d, e, f, g, h]) => {
                for (place, word) in [a, b, c, d].into_iter().zip(words) {
                    *place = word.to_be_bytes();
                }
                *e = checksum.to_be_bytes();
                *f = Plain::TIMESTAMPS.to_be_bytes();
                *g = value.to_be_bytes();
                *h = echo.to_be_bytes();
            }
            _ => panic!("the header is written whole"),
        }
    }
}
