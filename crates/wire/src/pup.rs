//! Pup, the PARC Universal Packet, and the 3 Mb/s Ethernet that carried it.
//!
//! Boggs, Shoch, Taft and Metcalfe, "Pup: An Internetwork Architecture", IEEE
//! Transactions on Communications, 1980; figure 3-7 of the packet filter paper
//! of 1987.
//!
//! ```text
//!  EN3MB:  destination 1 │ source 1 │ type 2
//!  Pup:    length 2 │ control 1 │ type 1 │ identifier 4
//!          │ destination: net 1, host 1, socket 4 │ source: net 1, host 1, socket 4
//!          │ payload, padded to a word │ checksum 2
//! ```

use crate::Error;
use crate::error::require_len;
use crate::field::{array, read_u16, read_u32, write};

const HEADER: &str = "a Pup header";
/// Value of the checksum field that means "no checksum".
const NO_CHECKSUM: u16 = 0xffff;

/// Value of the header of a 3 Mb/s Ethernet frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreeMegabit {
    /// The destination station; 0 is broadcast.
    pub dst: u8,
    /// The source station.
    pub src: u8,
    /// The type of the payload.
    pub frame_type: u16,
}

impl ThreeMegabit {
    /// Length of the header, in bytes.
    pub const LEN: usize = 4;
    /// The type of Pup, from the figures of the 1987 paper.
    pub const PUP: u16 = 2;

    /// Splits a frame into its header and payload.
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

    /// Writes the header into the first [`ThreeMegabit::LEN`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`ThreeMegabit::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        write(out, 0, &[self.dst, self.src]);
        write(out, 2, &self.frame_type.to_be_bytes());
    }
}

/// A Pup port: the address of a socket on a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port {
    /// The network; 0 is the local network.
    pub net: u8,
    /// The host; 0 is every host.
    pub host: u8,
    /// The socket on the host.
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

/// View of a Pup.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8]);

impl<'a> Packet<'a> {
    /// Checks the header. The bytes may end with padding, and the payload may be cut
    /// short.
    ///
    /// # Errors
    /// If the header is cut short, or its length field is below the length of header
    /// and checksum.
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

    /// Length of header, payload and checksum by the header, without padding, in bytes.
    pub fn length(&self) -> usize {
        read_u16(self.0, 0).into()
    }

    /// The payload; shorter than the header says if the Pup was cut short.
    pub fn payload(&self) -> &'a [u8] {
        let end = (self.length() - Repr::CHECKSUM_LEN).min(self.0.len());
        &self.0[Repr::LEN..end]
    }

    /// Whether the checksum is right; `None` if the Pup has no checksum or was cut
    /// short.
    pub fn checksum_is_right(&self) -> Option<bool> {
        let end = (self.length() - Repr::CHECKSUM_LEN).next_multiple_of(2);
        self.0.get(..end + Repr::CHECKSUM_LEN)?;
        let stated = read_u16(self.0, end);
        (stated != NO_CHECKSUM).then(|| stated == checksum(&self.0[..end]))
    }
}

/// Value of a Pup's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Transport control: the hop count is in the upper four bits.
    pub control: u8,
    /// The Pup's type.
    pub pup_type: u8,
    /// The Pup's identifier.
    pub identifier: u32,
    /// The destination port.
    pub dst: Port,
    /// The source port.
    pub src: Port,
}

impl Repr {
    /// Length of the header, in bytes.
    pub const LEN: usize = 20;
    /// Length of the checksum behind the payload, in bytes.
    pub const CHECKSUM_LEN: usize = 2;

    /// Reads all fields of the header.
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

    /// Length of a Pup with `payload_len` bytes of payload, in bytes, with padding.
    pub fn packet_len(payload_len: usize) -> usize {
        Repr::LEN + payload_len.next_multiple_of(2) + Repr::CHECKSUM_LEN
    }

    /// Writes header, padding and checksum around the payload, which is in place.
    ///
    /// # Panics
    /// If `packet` is not exactly [`Repr::packet_len`] bytes long, or its length
    /// field would exceed 65,535.
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

/// Pup's checksum: ones' complement additions, each followed by a left rotation by
/// one bit. A result of all ones, which would mean "no checksum", becomes zero.
pub fn checksum(words: &[u8]) -> u16 {
    let mut sum = 0u16;
    for word in words.chunks(2) {
        let word = u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]);
        let (added, carry) = sum.overflowing_add(word);
        sum = (added + u16::from(carry)).rotate_left(1);
    }
    if sum == NO_CHECKSUM { 0 } else { sum }
}
