//! Ethernet II frames (IEEE 802.3) and 802.1Q tags.
//!
//! ```text
//!  destination 6 │ source 6 │ [ 0x8100 2 │ priority 3 bits, DEI 1, VID 12 ]… │ type 2
//! ```

use std::fmt;

use crate::Error;
use crate::error::require_len;
use crate::field::{array, read_u16, write};

/// A 48-bit Ethernet (MAC) address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Address(pub [u8; 6]);

impl Address {
    /// The broadcast address.
    pub const BROADCAST: Address = Address([0xff; 6]);

    /// Whether the address is a group address; broadcast is one.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The error of a text that is not an Ethernet address.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("`{0}` is no Ethernet address: write six bytes in hexadecimal, with colons between them")]
pub struct ParseAddressError(pub String);

impl std::str::FromStr for Address {
    type Err = ParseAddressError;

    /// Parses six bytes in hexadecimal with colons between them, as `Display` prints.
    fn from_str(text: &str) -> Result<Address, ParseAddressError> {
        let refuse = || ParseAddressError(text.chars().take(40).collect());
        let mut parts = text.split(':');
        let mut address = [0; 6];
        for byte in &mut address {
            let part = parts.next().unwrap_or_default();
            let digits = part.bytes().filter(u8::is_ascii_hexdigit).count();
            if digits != part.len() || !matches!(digits, 1 | 2) {
                return Err(refuse());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        match parts.next() {
            None => Ok(Address(address)),
            Some(_) => Err(refuse()),
        }
    }
}

/// EtherType of a frame; a value below 1,536 is a length instead (IEEE 802.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EtherType(pub u16);

impl EtherType {
    /// Pup over 10 Mb/s Ethernet.
    pub const PUP: EtherType = EtherType(0x0200);
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP.
    pub const ARP: EtherType = EtherType(0x0806);
    /// Reverse ARP (RFC 903).
    pub const RARP: EtherType = EtherType(0x8035);
    /// An 802.1Q tag.
    pub const VLAN: EtherType = EtherType(0x8100);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
    /// An 802.1ad service tag.
    pub const QINQ: EtherType = EtherType(0x88a8);

    /// Whether a VLAN tag follows.
    #[inline]
    pub fn is_tag(self) -> bool {
        matches!(self, EtherType::VLAN | EtherType::QINQ)
    }
}

/// View of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a>(&'a [u8]);

impl<'a> Frame<'a> {
    /// Checks the header's length; `bytes` end before the frame check sequence.
    ///
    /// # Errors
    /// If the header is cut short.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Frame<'a>, Error> {
        require_len("an Ethernet header", bytes, Repr::LEN)?;
        Ok(Frame(bytes))
    }

    /// The destination address.
    #[inline]
    pub fn dst(&self) -> Address {
        Address(array(self.0, 0))
    }

    /// The source address.
    #[inline]
    pub fn src(&self) -> Address {
        Address(array(self.0, 6))
    }

    /// The EtherType of the payload, or of the first tag.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(read_u16(self.0, 12))
    }

    /// The bytes behind the header; a tag is part of them.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.0[Repr::LEN..]
    }
}

/// Value of a frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The destination address.
    pub dst: Address,
    /// The source address.
    pub src: Address,
    /// The EtherType.
    pub ether_type: EtherType,
}

impl Repr {
    /// Length of the header without tags, in bytes.
    pub const LEN: usize = 14;

    /// Reads all fields of the header.
    pub fn parse(frame: &Frame<'_>) -> Repr {
        Repr {
            dst: frame.dst(),
            src: frame.src(),
            ether_type: frame.ether_type(),
        }
    }

    /// Writes the header into the first [`Repr::LEN`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`Repr::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        write(out, 0, &self.dst.0);
        write(out, 6, &self.src.0);
        write(out, 12, &self.ether_type.0.to_be_bytes());
    }
}

/// View of a VLAN tag, which starts behind the EtherType that announces it.
#[derive(Clone, Copy, Debug)]
pub struct Tag<'a>(&'a [u8]);

impl<'a> Tag<'a> {
    /// Checks the length of the bytes behind [`EtherType::VLAN`] or [`EtherType::QINQ`].
    ///
    /// # Errors
    /// If the tag is cut short.
    pub fn new(bytes: &'a [u8]) -> Result<Tag<'a>, Error> {
        require_len("a VLAN tag", bytes, TagRepr::LEN)?;
        Ok(Tag(bytes))
    }

    /// The EtherType of the payload, or of the next tag.
    pub fn ether_type(&self) -> EtherType {
        EtherType(read_u16(self.0, 2))
    }

    /// The bytes behind the tag.
    pub fn payload(&self) -> &'a [u8] {
        &self.0[TagRepr::LEN..]
    }
}

/// Value of a VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagRepr {
    /// Priority code point, 0 to 7.
    pub priority: u8,
    /// Drop-eligible indicator.
    pub drop_eligible: bool,
    /// VLAN identifier, 0 to 4,095.
    pub vlan: u16,
    /// The EtherType of the payload.
    pub ether_type: EtherType,
}

impl TagRepr {
    /// Length of the tag behind the EtherType that announces it, in bytes.
    pub const LEN: usize = 4;

    /// Reads all fields of the tag.
    pub fn parse(tag: &Tag<'_>) -> TagRepr {
        let control = read_u16(tag.0, 0);
        TagRepr {
            priority: (control >> 13) as u8,
            drop_eligible: control & 0x1000 != 0,
            vlan: control & 0xfff,
            ether_type: tag.ether_type(),
        }
    }

    /// Writes the tag into the first [`TagRepr::LEN`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`TagRepr::LEN`], or a field is out of range.
    pub fn emit(&self, out: &mut [u8]) {
        assert!(self.priority < 8 && self.vlan < 4096, "a tag out of range");
        let drop_eligible = u16::from(self.drop_eligible) << 12;
        let control = u16::from(self.priority) << 13 | drop_eligible | self.vlan;
        write(out, 0, &control.to_be_bytes());
        write(out, 2, &self.ether_type.0.to_be_bytes());
    }
}
