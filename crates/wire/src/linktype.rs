//! Link-layer header types, numbered as in capture files (the LINKTYPE_
//! registry of tcpdump.org and draft-ietf-opsawg-pcaplinktype).

use std::fmt;
use std::str::FromStr;

/// A link-layer header type: the format of a frame's first bytes.
///
/// Any number is valid, since a capture file may contain any; the types that weir
/// understands have constants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkType(pub u32);

impl LinkType {
    /// BSD loopback: a 4-byte address family in the capturing host's order.
    pub const NULL: LinkType = LinkType(0);
    /// Ethernet.
    pub const EN10MB: LinkType = LinkType(1);
    /// The 3 Mb/s experimental Ethernet of the 1987 paper: destination,
    /// source (a byte each), type (two bytes).
    pub const EN3MB: LinkType = LinkType(2);
    /// PPP, with or without HDLC-like framing.
    pub const PPP: LinkType = LinkType(9);
    /// Raw IP, version 4 or 6 by the first nibble.
    pub const RAW: LinkType = LinkType(101);
    /// OpenBSD loopback: a 4-byte address family in network order.
    pub const LOOP: LinkType = LinkType(108);
    /// Linux "cooked" capture, version 1.
    pub const LINUX_SLL: LinkType = LinkType(113);
    /// Raw IPv4.
    pub const IPV4: LinkType = LinkType(228);
    /// Raw IPv6.
    pub const IPV6: LinkType = LinkType(229);
    /// Linux "cooked" capture, version 2.
    pub const LINUX_SLL2: LinkType = LinkType(276);

    /// All link types with a constant, and their names.
    pub const NAMED: [(LinkType, &'static str); 10] = [
        (LinkType::NULL, "NULL"),
        (LinkType::EN10MB, "EN10MB"),
        (LinkType::EN3MB, "EN3MB"),
        (LinkType::PPP, "PPP"),
        (LinkType::RAW, "RAW"),
        (LinkType::LOOP, "LOOP"),
        (LinkType::LINUX_SLL, "LINUX_SLL"),
        (LinkType::IPV4, "IPV4"),
        (LinkType::IPV6, "IPV6"),
        (LinkType::LINUX_SLL2, "LINUX_SLL2"),
    ];

    /// tcpdump's name of the type; `None` without a constant.
    pub fn name(self) -> Option<&'static str> {
        let row = Self::NAMED.iter().find(|(known, _)| *known == self);
        row.map(|(_, name)| *name)
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => f.pad(&self.0.to_string()),
        }
    }
}

/// The error of a text that is neither a name nor a number of a link type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownLinkType(pub String);

impl fmt::Display for UnknownLinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown link type `{}`; expected a number or one of",
            self.0
        )?;
        for (index, (_, name)) in LinkType::NAMED.iter().enumerate() {
            write!(f, "{} {name}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownLinkType {}

impl FromStr for LinkType {
    type Err = UnknownLinkType;

    /// Parses a name in any case, with or without the prefix `DLT_` or `LINKTYPE_`,
    /// or a number of the registry.
    fn from_str(text: &str) -> Result<LinkType, UnknownLinkType> {
        let upper = text.trim().to_ascii_uppercase();
        let bare = upper
            .strip_prefix("DLT_")
            .or_else(|| upper.strip_prefix("LINKTYPE_"))
            .unwrap_or(&upper);
        let named = Self::NAMED.iter().find(|(_, name)| *name == bare);
        named
            .map(|(linktype, _)| *linktype)
            .or_else(|| text.trim().parse().ok().map(LinkType))
            .ok_or_else(|| UnknownLinkType(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case_and_numbers_too() {
        assert_eq!("en10mb".parse(), Ok(LinkType::EN10MB));
        assert_eq!("DLT_Linux_SLL2".parse(), Ok(LinkType::LINUX_SLL2));
        assert_eq!("147".parse(), Ok(LinkType(147)));
        let error = "token".parse::<LinkType>().unwrap_err().to_string();
        assert!(
            error.contains("`token`") && error.contains("LINUX_SLL2"),
            "{error}"
        );
    }
}
