//! Ethernet II frames (IEEE 802.3) and 802.1Q tags.
//!
//! ```text
//!  destination 6 │ source 6 │ [ 0x8100 2 │ priority 3 bits, DEI 1, VID 12 ]… │ type 2
//! ```

use std::fmt;

use crate::Error;
use crate::error::require_len;
use crate::field::{array, read_u16, write};

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Address(pub [u8; 6]);

impl Address {
    /// All stations.
    pub const BROADCAST: Address = Address([0xff; 6]);

    /// Whether it names a group, all stations included.
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

/// A text that is no Ethernet address.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("`{0}` is no Ethernet address: write six bytes in hexadecimal, with colons between them")]
pub struct ParseAddressError(pub String);

impl std::str::FromStr for Address {
    type Err = ParseAddressError;

    /// Reads `02:00:00:00:00:2a`, as it is shown.
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

/// The type of what a frame carries; below 1,536 it is a length (IEEE 802.3).
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

    /// Whether a tag follows.
    pub fn is_tag(self) -> bool {
        matches!(self, EtherType::VLAN | EtherType::QINQ)
    }
}

/// A frame's header, in place.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a>(&'a [u8]);

impl<'a> Frame<'a> {
    /// Takes a frame, without its check sequence.
    ///
    /// # Errors
    /// If the header is cut short.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Frame<'a>, Error> {
        require_len("an Ethernet header", bytes, Repr::LEN)?;
        Ok(Frame(bytes))
    }

    /// The destination.
    #[inline]
    pub fn dst(&self) -> Address {
        Address(array(self.0, 0))
    }

    /// The source.
    #[inline]
    pub fn src(&self) -> Address {
        Address(array(self.0, 6))
    }

    /// The type, or that of the first tag.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(read_u16(self.0, 12))
    }

    /// What follows the type.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.0[Repr::LEN..]
    }
}

/// A frame's header by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The destination.
    pub dst: Address,
    /// The source.
    pub src: Address,
    /// The type.
    pub ether_type: EtherType,
}

impl Repr {
    /// The header's length, in bytes.
    pub const LEN: usize = 14;

    /// The header's values.
    pub fn parse(frame: &Frame<'_>) -> Repr {
        Repr {
            dst: frame.dst(),
            src: frame.src(),
            ether_type: frame.ether_type(),
        }
    }

    /// Writes the header.
    ///
    /// # Panics
    /// If `out` is shorter than [`Repr::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        write(out, 0, &self.dst.0);
        write(out, 6, &self.src.0);
        write(out, 12, &self.ether_type.0.to_be_bytes());
    }
}

/// A tag, in place: what follows the type that announces it.
#[derive(Clone, Copy, Debug)]
pub struct Tag<'a>(&'a [u8]);

impl<'a> Tag<'a> {
    /// Takes what follows [`EtherType::VLAN`] or [`EtherType::QINQ`].
    ///
    /// # Errors
    /// If the tag is cut short.
    pub fn new(bytes: &'a [u8]) -> Result<Tag<'a>, Error> {
        require_len("a VLAN tag", bytes, TagRepr::LEN)?;
        Ok(Tag(bytes))
    }

    /// The type of what follows the tag, perhaps another.
    pub fn ether_type(&self) -> EtherType {
        EtherType(read_u16(self.0, 2))
    }

    /// What follows the tag.
    pub fn payload(&self) -> &'a [u8] {
        &self.0[TagRepr::LEN..]
    }
}

/// A tag by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagRepr {
    /// Priority code point, 0 to 7.
    pub priority: u8,
    /// Drop-eligible indicator.
    pub drop_eligible: bool,
    /// VLAN identifier, 0 to 4,095.
    pub vlan: u16,
    /// The type of what follows.
    pub ether_type: EtherType,
}

impl TagRepr {
    /// The tag's length behind the type that announces it, in bytes.
    pub const LEN: usize = 4;

    /// The tag's values.
    pub fn parse(tag: &Tag<'_>) -> TagRepr {
        let control = read_u16(tag.0, 0);
        TagRepr {
            priority: (control >> 13) as u8,
            drop_eligible: control & 0x1000 != 0,
            vlan: control & 0xfff,
            ether_type: tag.ether_type(),
        }
    }

    /// Writes the tag.
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
