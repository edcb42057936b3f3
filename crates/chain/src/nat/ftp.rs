//! The application gateway of FTP (RFC 959 §3.2, RFC 2428; RFC 3022 §4.4): what a host of the
//! inside writes of its own address and port on a control connection becomes that of a mapping.
//!
//! | direction of the host | text | becomes |
//! |---|---|---|
//! | client inside | `PORT 10,0,0,9,19,136` | `PORT 203,0,113,1,8,12` |
//! | | `EPRT \|1\|10.0.0.9\|5000\|` | `EPRT \|1\|203.0.113.1\|2060\|` |
//! | server inside | `227 … (10,0,0,9,19,136)` | `227 … (203,0,113,1,8,12)` |
//! | | `229 … (\|\|\|5000\|)` | `229 … (\|\|\|2060\|)` |
//!
//! The text may come in segments split anywhere. Its first byte becomes the whole new text, with a
//! port that is reserved then; its other bytes become nothing, and are acknowledged by the gateway:
//! the peer will never see them. When the old text ends, the port is bound to what it said. So
//! nothing waits in the gateway, and a repeated segment becomes what it became before.
//!
//! ```text
//!  host:  P O R T _ 1 0 , 0 , 0 , 9 , 1 9 , 1 3 6 CR LF        sequence numbers of the host
//!  peer:  P O R T _ [203,0,113,1,8,12]            CR LF        and of the peer
//!                   └─ at the first byte of the old text
//! ```
//!
//! A segment behind a gap is dropped, and comes again. Options of the handshake that would carry
//! sequence numbers (SACK), data in SYN (Fast Open) or fields that the gateway's own segments lack
//! (timestamps) are taken out. No frame of a control connection makes an entry in the kernel.

use crate::edits;
use crate::layers::Layers;
use std::fmt::Write;
use std::net::Ipv4Addr;
use weir_wire::checksum::{self, Sum};
use weir_wire::field::{array, read_u16, read_u32, write};
use weir_wire::{AddrPair, Protocol, ipv4};

/// The port of control connections.
pub(super) const CONTROL_PORT: u16 = 21;

/// Lowest port that a host may name: none of a service of its own.
const PORT_MIN: u16 = 1024;

/// Longest old text, in bytes; `255,255,255,255,255,255` has 23.
const TEXT_MAX: usize = 32;

/// Farthest, in bytes, that a segment of the peer may lie from those before it. A control connection
/// has some hundred bytes under way.
const WINDOW: u32 = 1 << 20;

/// Texts that the peer has not acknowledged, at most.
const EDITS_MAX: usize = 8;

/// What the host writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Commands.
    Client,
    /// Replies.
    Server,
}

/// An address and port.
pub(super) type End = (Ipv4Addr, u16);

/// The form of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Six numbers with commas.
    Commas,
    /// Address and port, with this delimiter in between.
    Extended(u8),
    /// A port alone.
    Port,
}

/// The place in a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// This many bytes of the first word, which the line may continue.
    Word(usize, [u8; 5]),
    /// Behind `PORT ` or `227 `: a digit begins the text.
    BeforeCommas,
    /// Behind `EPRT `, and this many of the bytes `|1|`.
    BeforeExtended(usize, u8),
    /// Behind `229 `, and this many of the bytes `(|||`.
    BeforePort(usize, u8),
    /// In the text, whose new one is that of the last edit.
    Text(Form),
    /// Anywhere else: the rest of the line does not matter.
    Rest,
}

/// A text that became another one.
#[derive(Clone, Debug)]
struct Edit {
    /// Sequence numbers of the host: the first byte, and behind the last one so far.
    start: u32,
    end: u32,
    new: Vec<u8>,
    is_ended: bool,
}

impl Edit {
    fn growth(&self) -> u32 {
        (self.new.len() as u32).wrapping_sub(self.end.wrapping_sub(self.start))
    }
}

/// Where ports of the pool come from.
pub(super) trait Ports {
    /// An address and port of the pool; `None` if there is none.
    fn reserve(&mut self) -> Option<End>;

    /// Has `outside`, which was reserved, lead to `inside`, whose address is unspecified if it is
    /// the host's.
    fn bind(&mut self, inside: End, outside: End);
}

/// What becomes of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rewritten {
    pub(super) sequence: u32,
    pub(super) payload: Vec<u8>,
    /// The host is to get an acknowledgment of all it has sent: the peer will send none.
    pub(super) is_answered: bool,
}

/// A control connection, as the gateway follows it.
#[derive(Clone, Debug)]
pub(super) struct Control {
    role: Role,
    place: Place,
    /// The next new byte of the host.
    next: u32,
    /// The growth by edits that are acknowledged.
    base: u32,
    edits: Vec<Edit>,
    old: Vec<u8>,
    /// The port of the text that has not ended.
    reserved: Option<End>,
    /// Of the peer: its next sequence number, its last acknowledgment (in its own numbers), its
    /// window.
    pub(super) peer: (u32, u32, u16),
    /// Whether the peer has sent anything.
    is_heard: bool,
}

/// Whether `a` is before `b`.
fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Control {
    /// The connection whose host has sent SYN with this sequence number.
    pub(super) fn new(role: Role, iss: u32) -> Control {
        let next = iss.wrapping_add(1);
        Control {
            role,
            place: Place::Word(0, [0; 5]),
            next,
            base: 0,
            edits: Vec::new(),
            old: Vec::new(),
            reserved: None,
            peer: (0, next, 0),
            is_heard: false,
        }
    }

    /// Whether a SYN begins this connection, or repeats it.
    pub(super) fn is_begun_by(&self, iss: u32) -> bool {
        self.edits.is_empty() && self.base == 0 && self.next == iss.wrapping_add(1)
    }

    /// The next new byte of the host.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Whether a segment can be the peer's: near those before it, and acknowledging what was sent
    /// (RFC 9293 §3.10.7.4; RFC 5961 §5.2).
    pub(super) fn is_plausible(&self, segment: &Segment<'_>) -> bool {
        let is_near = |a: u32, b: u32| a.wrapping_sub(b).wrapping_add(WINDOW) <= 2 * WINDOW;
        // A FIN has a number, too.
        let sent = self.map(self.next).wrapping_add(1);
        let ack = segment.ack();
        let is_acked = !before(sent, ack) && is_near(ack, self.peer.1);
        (!self.is_heard || is_near(segment.sequence(), self.peer.0))
            && (!segment.has_ack() || is_acked)
    }

    /// The peer has sent a segment.
    pub(super) fn heard(&mut self, segment: &Segment<'_>) {
        let end = segment.end();
        if !self.is_heard || before(self.peer.0, end) {
            self.peer.0 = end;
        }
        self.peer.2 = segment.window();
        self.is_heard = true;
    }

    /// The port that is reserved and not bound.
    pub(super) fn reserved(&self) -> Option<End> {
        self.reserved
    }

    /// A segment of the host. `reserve` gives an address and port of the pool, and `bind` has the
    /// second end lead to the first one. `None`: the segment must not pass.
    pub(super) fn outward(
        &mut self,
        sequence: u32,
        payload: &[u8],
        ports: &mut impl Ports,
    ) -> Option<Rewritten> {
        if before(self.next, sequence) && !payload.is_empty() {
            return None;
        }
        let known = self.next.wrapping_sub(sequence);
        let new = if before(sequence, self.next) {
            payload.get(known as usize..).unwrap_or_default()
        } else {
            payload
        };
        if !new.is_empty() && self.edits.len() >= EDITS_MAX {
            return None;
        }
        for byte in new {
            self.byte(*byte, ports);
            self.next = self.next.wrapping_add(1);
        }
        let mut out = Vec::with_capacity(payload.len() + 16);
        let mut at = sequence;
        for byte in payload {
            let inside = |edit: &&Edit| !before(at, edit.start) && before(at, edit.end);
            match self.edits.iter().find(inside) {
                Some(edit) if edit.start == at => out.extend_from_slice(&edit.new),
                Some(_) => {}
                None => out.push(*byte),
            }
            at = at.wrapping_add(1);
        }
        let end = self.map(at);
        Some(Rewritten {
            sequence: self.map(sequence),
            // Nothing of it goes on, and the peer has all before.
            is_answered: out.is_empty() && !payload.is_empty() && self.peer.1 == end,
            payload: out,
        })
    }

    /// The peer's sequence number of a byte of the host.
    pub(super) fn map(&self, sequence: u32) -> u32 {
        let mut growth = self.base;
        for edit in &self.edits {
            if !before(edit.start, sequence) {
                break;
            }
            if before(sequence, edit.end) {
                // Within the old text: behind the new one.
                let new = edit.new.len() as u32;
                return edit.start.wrapping_add(growth).wrapping_add(new);
            }
            growth = growth.wrapping_add(edit.growth());
        }
        sequence.wrapping_add(growth)
    }

    /// The host's sequence number that an acknowledgment of the peer stands for.
    pub(super) fn acknowledged(&mut self, ack: u32) -> u32 {
        // What was never sent is not acknowledged; a FIN has a number, too.
        let sent = self.map(self.next);
        if before(self.peer.1, ack) && !before(sent.wrapping_add(1), ack) {
            self.peer.1 = if before(sent, ack) { sent } else { ack };
        }
        let mut growth = self.base;
        let mut found = None;
        let mut ended = 0;
        for edit in &self.edits {
            let start = edit.start.wrapping_add(growth);
            let end = start.wrapping_add(edit.new.len() as u32);
            if !before(start, ack) {
                break;
            }
            if before(ack, end) {
                found = Some(edit.start);
                break;
            }
            growth = growth.wrapping_add(edit.growth());
            if edit.is_ended {
                ended += 1;
            }
        }
        let found = found.unwrap_or_else(|| ack.wrapping_sub(growth));
        for edit in self.edits.drain(..ended) {
            self.base = self.base.wrapping_add(edit.growth());
        }
        found
    }

    /// A new byte of the host.
    fn byte(&mut self, byte: u8, ports: &mut impl Ports) {
        if let Place::Text(form) = self.place {
            if self.goes_on(form, byte) {
                self.old.push(byte);
                if let Some(edit) = self.edits.last_mut() {
                    edit.end = edit.end.wrapping_add(1);
                }
                return;
            }
            self.end_text(form, ports);
            self.place = Place::Rest;
        }
        if byte == b'\n' {
            self.place = Place::Word(0, [0; 5]);
            return;
        }
        self.place = match self.place {
            Place::Word(len, word) => self.word(len, word, byte),
            Place::BeforeCommas if byte.is_ascii_digit() => {
                self.begin_text(Form::Commas, byte, ports)
            }
            // A client's command has nothing in between, a reply has words.
            Place::BeforeCommas if self.role == Role::Server || byte == b' ' => Place::BeforeCommas,
            Place::BeforeExtended(0, _) if byte == b' ' => self.place,
            Place::BeforeExtended(0, _) if byte.is_ascii_graphic() && !byte.is_ascii_digit() => {
                Place::BeforeExtended(1, byte)
            }
            Place::BeforeExtended(1, delimiter) if byte == b'1' => {
                Place::BeforeExtended(2, delimiter)
            }
            Place::BeforeExtended(2, delimiter) if byte == delimiter => {
                Place::BeforeExtended(3, delimiter)
            }
            Place::BeforeExtended(3, delimiter) if byte.is_ascii_digit() => {
                self.begin_text(Form::Extended(delimiter), byte, ports)
            }
            Place::BeforePort(0, _) if byte == b'(' => Place::BeforePort(1, 0),
            Place::BeforePort(0, _) => self.place,
            Place::BeforePort(1, _) if byte.is_ascii_graphic() && !byte.is_ascii_digit() => {
                Place::BeforePort(2, byte)
            }
            Place::BeforePort(2, delimiter) if byte == delimiter => Place::BeforePort(3, delimiter),
            Place::BeforePort(3, delimiter) if byte == delimiter => Place::BeforePort(4, delimiter),
            Place::BeforePort(4, _) if byte.is_ascii_digit() => {
                self.begin_text(Form::Port, byte, ports)
            }
            _ => Place::Rest,
        };
    }

    fn word(&self, len: usize, mut word: [u8; 5], byte: u8) -> Place {
        word[len] = byte.to_ascii_uppercase();
        let len = len + 1;
        let words: [(&[u8], Place); 2] = match self.role {
            Role::Client => [
                (b"PORT ", Place::BeforeCommas),
                (b"EPRT ", Place::BeforeExtended(0, 0)),
            ],
            Role::Server => [
                (b"227 ", Place::BeforeCommas),
                (b"229 ", Place::BeforePort(0, 0)),
            ],
        };
        for (whole, place) in words {
            if word[..len] == *whole {
                return place;
            }
            if whole.starts_with(&word[..len]) {
                return Place::Word(len, word);
            }
        }
        Place::Rest
    }

    /// The first byte of a text; without a port the text stays as it is.
    fn begin_text(&mut self, form: Form, byte: u8, ports: &mut impl Ports) -> Place {
        if self.reserved.is_none() {
            self.reserved = ports.reserve();
        }
        let Some((address, port)) = self.reserved else {
            return Place::Rest;
        };
        let mut new = String::new();
        let [a, b, c, d] = address.octets();
        let _ = match form {
            Form::Commas => {
                let [high, low] = port.to_be_bytes();
                write!(new, "{a},{b},{c},{d},{high},{low}")
            }
            Form::Extended(delimiter) => {
                write!(new, "{address}{}{port}", char::from(delimiter))
            }
            Form::Port => write!(new, "{port}"),
        };
        self.old.clear();
        self.old.push(byte);
        self.edits.push(Edit {
            start: self.next,
            end: self.next.wrapping_add(1),
            new: new.into_bytes(),
            is_ended: false,
        });
        Place::Text(form)
    }

    /// Whether a byte is of the text.
    fn goes_on(&self, form: Form, byte: u8) -> bool {
        let is_of_it = match form {
            Form::Commas => byte.is_ascii_digit() || byte == b',',
            Form::Extended(delimiter) => {
                // Up to the second delimiter.
                let seen = self.old.iter().filter(|it| **it == delimiter).count();
                byte.is_ascii_digit() || byte == b'.' || byte == delimiter && seen == 0
            }
            Form::Port => byte.is_ascii_digit(),
        };
        is_of_it && self.old.len() < TEXT_MAX
    }

    /// The end of the text: the port leads to what it said.
    fn end_text(&mut self, form: Form, ports: &mut impl Ports) {
        if let Some(edit) = self.edits.last_mut() {
            edit.is_ended = true;
        }
        let said = parse(form, &self.old);
        if let Some(inside) = said.filter(|(_, port)| *port >= PORT_MIN)
            && let Some(outside) = self.reserved.take()
        {
            ports.bind(inside, outside);
        }
    }
}

/// What a text says; the address is unspecified where the text has none.
fn parse(form: Form, old: &[u8]) -> Option<End> {
    let old = std::str::from_utf8(old).ok()?;
    match form {
        Form::Commas => {
            let numbers: Option<Vec<u8>> = old.split(',').map(|it| it.parse().ok()).collect();
            let [a, b, c, d, high, low] = numbers?.try_into().ok()?;
            Some((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])))
        }
        Form::Extended(delimiter) => {
            let (address, port) = old.split_once(char::from(delimiter))?;
            Some((address.parse().ok()?, port.parse().ok()?))
        }
        Form::Port => Some((Ipv4Addr::UNSPECIFIED, old.parse().ok()?)),
    }
}

/// Takes options out of the header of a SYN: what the gateway could not keep right.
pub(super) fn plain_syn(header: &mut [u8]) {
    const NOP: u8 = 1;
    const MSS: u8 = 2;
    const SACK_PERMITTED: u8 = 4;
    const TIMESTAMPS: u8 = 8;
    const FAST_OPEN: u8 = 34;
    let mut at = 20;
    while let Some(&kind) = header.get(at) {
        match kind {
            0 => return,
            NOP => at += 1,
            _ => {
                let len = header.get(at + 1).map_or(0, |len| usize::from(*len));
                let Some(option) = header.get_mut(at..at + len).filter(|_| len >= 2) else {
                    return;
                };
                match kind {
                    SACK_PERMITTED | TIMESTAMPS | FAST_OPEN => option.fill(NOP),
                    // Room for texts that grow.
                    MSS if len == 4 => {
                        let mss = u16::from_be_bytes([option[2], option[3]]);
                        let less = mss.saturating_sub(40).max(mss.min(500));
                        option[2..].copy_from_slice(&less.to_be_bytes());
                    }
                    _ => {}
                }
                at += len;
            }
        }
    }
}

/// Offsets in the header of TCP.
const SEQUENCE: usize = 4;
const ACKNOWLEDGMENT: usize = 8;
const CHECKSUM: usize = 16;
const URGENT: usize = 18;

/// TCP flags.
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;

/// A segment in a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    frame: &'a [u8],
    ip: usize,
    /// The header of TCP with its options.
    pub(super) header: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The segment of a whole packet of IPv4 that is no fragment; `None` if its header is cut short.
    pub(super) fn of(frame: &'a [u8], layers: &Layers) -> Option<Segment<'a>> {
        let tcp = frame.get(layers.payload..layers.end)?;
        let len = usize::from(tcp.get(12)? >> 4) * 4;
        let (header, payload) = tcp.split_at_checked(len).filter(|_| len >= 20)?;
        Some(Segment {
            frame,
            ip: layers.ip,
            header,
            payload,
        })
    }

    pub(super) fn flags(&self) -> u8 {
        self.header[13]
    }

    pub(super) fn has_ack(&self) -> bool {
        self.flags() & ACK != 0
    }

    pub(super) fn sequence(&self) -> u32 {
        read_u32(self.header, SEQUENCE)
    }

    pub(super) fn ack(&self) -> u32 {
        read_u32(self.header, ACKNOWLEDGMENT)
    }

    pub(super) fn window(&self) -> u16 {
        read_u16(self.header, 14)
    }

    /// The sequence number behind the segment.
    pub(super) fn end(&self) -> u32 {
        let flags = self.flags();
        let more = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        self.sequence()
            .wrapping_add(self.payload.len() as u32 + more)
    }

    /// The frame with another header and payload. Its checksums are right if they were.
    pub(super) fn with(&self, change: impl FnOnce(&mut [u8]), payload: &[u8]) -> Vec<u8> {
        let start = self.frame.len() - self.rest().len();
        let mut frame = self.frame[..start].to_vec();
        frame.extend_from_slice(self.header);
        change(&mut frame[start..]);
        frame.extend_from_slice(payload);
        let total = (frame.len() - self.ip) as u16;
        write(&mut frame, self.ip + 2, &total.to_be_bytes());
        write(&mut frame, self.ip + 10, &[0, 0]);
        let sum = checksum::internet_checksum(&frame[self.ip..start]);
        write(&mut frame, self.ip + 10, &sum.to_be_bytes());
        let was = self.sum(&[self.header, self.payload]);
        let is = self.sum(&[&frame[start..]]);
        // HC' = ~(~HC + ~m + m'), as for words (RFC 1624).
        let field = !read_u16(self.header, CHECKSUM);
        let sum = !edits::add(edits::add(field, !was), is);
        write(&mut frame, start + CHECKSUM, &sum.to_be_bytes());
        frame
    }

    /// The frame from the header of TCP on, with padding.
    fn rest(&self) -> &[u8] {
        let ip_header = usize::from(self.frame[self.ip] & 0xf) * 4;
        &self.frame[self.ip + ip_header..]
    }

    /// The sum of a segment and the pseudo-header, with a checksum of 0.
    fn sum(&self, parts: &[&[u8]]) -> u16 {
        let mut bytes = parts.concat();
        write(&mut bytes, CHECKSUM, &[0, 0]);
        let address = |at: usize| Ipv4Addr::from(array::<4>(self.frame, self.ip + at));
        !Sum::new()
            .pseudo_header(
                AddrPair::V4(address(12), address(16)),
                6,
                bytes.len() as u32,
            )
            .bytes(&bytes)
            .finish()
    }
}

/// A frame with these numbers, and what the urgent pointer becomes.
pub(super) fn renumbered(
    segment: &Segment<'_>,
    sequence: u32,
    ack: u32,
    payload: &[u8],
    control: &Control,
) -> Vec<u8> {
    let urgent = segment
        .sequence()
        .wrapping_add(read_u16(segment.header, URGENT).into());
    let is_urgent = segment.flags() & URG != 0;
    let change = |header: &mut [u8]| {
        write(header, SEQUENCE, &sequence.to_be_bytes());
        write(header, ACKNOWLEDGMENT, &ack.to_be_bytes());
        if is_urgent && payload != segment.payload {
            let pointer = control.map(urgent).wrapping_sub(sequence);
            let pointer = u16::try_from(pointer).unwrap_or_default();
            write(header, URGENT, &pointer.to_be_bytes());
        }
    };
    segment.with(change, payload)
}

/// The acknowledgment of all that a host has sent, as if from the peer.
pub(super) fn acknowledgment(peer: End, host: End, control: &Control) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + 20];
    write(&mut frame, 0, &[0xff; 6]);
    write(&mut frame, 12, &[8, 0]);
    ipv4::Repr {
        src: peer.0,
        dst: host.0,
        protocol: Protocol::TCP,
        ttl: 64,
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: 20,
    }
    .emit(&mut frame[14..]);
    let (sequence, _, window) = control.peer;
    write(&mut frame, 34, &peer.1.to_be_bytes());
    write(&mut frame, 36, &host.1.to_be_bytes());
    write(&mut frame, 38, &sequence.to_be_bytes());
    write(&mut frame, 42, &control.next().to_be_bytes());
    write(&mut frame, 46, &[0x50, ACK]);
    write(&mut frame, 48, &window.to_be_bytes());
    let sum = Sum::new()
        .pseudo_header(AddrPair::V4(peer.0, host.0), 6, 20)
        .bytes(&frame[34..])
        .finish();
    write(&mut frame, 50, &sum.to_be_bytes());
    frame
}
