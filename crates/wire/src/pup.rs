//! Pup, the PARC Universal Packet, and the 3 Mb/s Ethernet that carried it.
//!
//! Boggs, Shoch, Taft and Metcalfe, "Pup: An Internetwork Architecture", IEEE
//! Transactions on Communications, 1980; figure 3-7 of the packet filter paper
//! of 1987.
//!
//! ```text
//!  EN3MB:  destination 1 │ source 1 │ type 2
//!  Pup:    length 2 │ control 1 │ type 1 │ identifier 4
//!          │ destination: net 1, host 1, socket 4 │ source: the same
//!          │ payload, padded to a word │ checksum 2
//! ```

use crate::Error;
use crate::error::require_len;
use crate::field::{array, read_u16, read_u32, write};

const HEADER: &str = "a Pup header";
/// In the checksum's place: there is none.
const NO_CHECKSUM: u16 = 0xffff;

/// The header of a frame on the 3 Mb/s Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreeMegabit {
    /// The destination; 0 is every station.
    pub dst: u8,
    /// The source.
    pub src: u8,
    /// The type of what follows.
    pub frame_type: u16,
}

impl ThreeMegabit {
    /// The header's length, in bytes.
    pub const LEN: usize = 4;
    /// The type of Pup, as the 1987 paper's figures have it.
    pub const PUP: u16 = 2;

    /// Reads the header of a frame, and what follows it.
    ///
    /// # Errors
    /// If the header is cut short.
    pub fn parse(frame: &[u8]) -> Result<(ThreeMegabit, &[u8]), Error> {
        require_len("a 3 Mb/s Ethernet header", frame, ThreeMegabit::LEN)?;
        let header = ThreeMegabit {
            dst: frame[0],
            src: frame[1],
            frame_type: read_u16(frame, 2),
        };
        Ok((header, &frame[ThreeMegabit::LEN..]))
    }

    /// Writes the header.
    ///
    /// # Panics
    /// If `out` is shorter than [`ThreeMegabit::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        write(out, 0, &[self.dst, self.src]);
        write(out, 2, &self.frame_type.to_be_bytes());
    }
}

/// One end of a Pup's way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port {
    /// The network; 0 is this one.
    pub net: u8,
    /// The host; 0 is every one.
    pub host: u8,
    /// The socket.
    pub socket: u32,
}

impl Port {
    fn parse(bytes: &[u8], at: usize) -> Port {
        Port {
            net: bytes[at],
            host: bytes[at + 1],
            socket: read_u32(bytes, at + 2),
        }
    }

    fn emit(&self, out: &mut [u8], at: usize) {
        write(out, at, &[self.net, self.host]);
        write(out, at + 2, &self.socket.to_be_bytes());
    }
}

/// A Pup, in place.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8]);

impl<'a> Packet<'a> {
    /// Takes a Pup, perhaps with padding behind it, perhaps cut short behind
    /// its header.
    ///
    /// # Errors
    /// If the header is cut short, or its length is less than header and
    /// checksum have.
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        require_len(HEADER, bytes, Repr::LEN)?;
        let length = read_u16(bytes, 0);
        if usize::from(length) < Repr::LEN + Repr::CHECKSUM_LEN {
            return Err(Error::Field {
                header: HEADER,
                field: "length",
                value: length.into(),
            });
        }
        Ok(Packet(bytes))
    }

    /// Header, payload and checksum together by the header, without padding, in
    /// bytes.
    pub fn length(&self) -> usize {
        read_u16(self.0, 0).into()
    }

    /// The payload; less than the header says if the Pup was cut short.
    pub fn payload(&self) -> &'a [u8] {
        let end = (self.length() - Repr::CHECKSUM_LEN).min(self.0.len());
        &self.0[Repr::LEN..end]
    }

    /// Whether the checksum is right; `None` if there is none, or the Pup was
    /// cut short.
    pub fn checksum_is_right(&self) -> Option<bool> {
        let end = (self.length() - Repr::CHECKSUM_LEN).next_multiple_of(2);
        self.0.get(..end + Repr::CHECKSUM_LEN)?;
        let told = read_u16(self.0, end);
        (told != NO_CHECKSUM).then(|| told == checksum(&self.0[..end]))
    }
}

/// A Pup's header by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Hops so far, in its upper four bits.
    pub control: u8,
    /// The Pup's type.
    pub pup_type: u8,
    /// The Pup's identifier.
    pub identifier: u32,
    /// Where it goes.
    pub dst: Port,
    /// Where it comes from.
    pub src: Port,
}

impl Repr {
    /// The header's length, in bytes.
    pub const LEN: usize = 20;
    /// The length of the checksum behind the payload, in bytes.
    pub const CHECKSUM_LEN: usize = 2;

    /// The header's values.
    pub fn parse(packet: &Packet<'_>) -> Repr {
        let bytes = packet.0;
        Repr {
            control: bytes[2],
            pup_type: bytes[3],
            identifier: u32::from_be_bytes(array(bytes, 4)),
            dst: Port::parse(bytes, 8),
            src: Port::parse(bytes, 14),
        }
    }

    /// The length of a Pup with `payload_len` bytes of payload, padding
    /// included, in bytes.
    pub fn packet_len(payload_len: usize) -> usize {
        Repr::LEN + payload_len.next_multiple_of(2) + Repr::CHECKSUM_LEN
    }

    /// Writes header, padding and checksum around the payload of `payload_len`
    /// bytes, which is in place.
    ///
    /// # Panics
    /// If `packet` does not have [`Repr::packet_len`] bytes, or more than
    /// 65,535.
    pub fn emit(&self, packet: &mut [u8], payload_len: usize) {
        assert_eq!(
            packet.len(),
            Repr::packet_len(payload_len),
            "a Pup's length"
        );
        let length = Repr::LEN + payload_len + Repr::CHECKSUM_LEN;
        let length = u16::try_from(length).expect("a Pup has at most 65,535 bytes");
        write(packet, 0, &length.to_be_bytes());
        write(packet, 2, &[self.control, self.pup_type]);
        write(packet, 4, &self.identifier.to_be_bytes());
        self.dst.emit(packet, 8);
        self.src.emit(packet, 14);
        let end = packet.len() - Repr::CHECKSUM_LEN;
        packet[Repr::LEN + payload_len..end].fill(0);
        let checksum = checksum(&packet[..end]);
        write(packet, end, &checksum.to_be_bytes());
    }
}

/// Pup's checksum: each word is added in ones' complement, and the sum cycled
/// left by a bit. All ones, which would mean that there is none, becomes zero.
pub fn checksum(words: &[u8]) -> u16 {
    let mut sum = 0u16;
    for word in words.chunks(2) {
        let word = u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]);
        let (added, carry) = sum.overflowing_add(word);
        sum = (added + u16::from(carry)).rotate_left(1);
    }
    if sum == NO_CHECKSUM { 0 } else { sum }
}
