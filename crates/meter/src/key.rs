//! The fields that identify on a link whose traffic a frame is.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use weir_wire::ethernet::Address;

/// A property of frames that belongs to one subscriber at a time.
///
/// Addresses and prefixes are compared with the subscriber's side of a frame: the source of a frame
/// that comes from the subscribers' side of the link, the destination of one that goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Key {
    /// An IPv4 address (Framed-IP-Address, RFC 2865 §5.8).
    Ipv4(Ipv4Addr),
    /// An IPv6 address (Framed-IPv6-Address, RFC 6911 §3.1).
    Ipv6(Ipv6Addr),
    /// An IPv4 or IPv6 prefix and its length in bits; bits beyond the length are zero
    /// (Framed-Route, RFC 2865 §5.22; Framed-IPv6-Prefix, RFC 3162 §2.3; Delegated-IPv6-Prefix,
    /// RFC 4818 §3).
    Prefix(IpAddr, u8),
    /// A VLAN: the outer VLAN identifier, and the inner one of a frame with two tags (IEEE 802.1Q).
    Vlan(u16, Option<u16>),
    /// A MAC address on the subscribers' side.
    Mac([u8; 6]),
    /// A PPPoE session identifier (RFC 2516 §4).
    Pppoe(u16),
}

/// The kinds of keys, from the one that is looked up first to the last.
///
/// Keys of lower layers come first: a subscriber can write any address into a packet, but cannot
/// choose the line that the packet comes in on. The exact VLAN (both tags) precedes the outer one
/// alone, and a longer prefix a shorter one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    /// [`Key::Pppoe`].
    Pppoe,
    /// [`Key::Vlan`].
    Vlan,
    /// [`Key::Mac`].
    Mac,
    /// [`Key::Ipv4`].
    Ipv4,
    /// [`Key::Ipv6`].
    Ipv6,
    /// [`Key::Prefix`].
    Prefix,
}

impl KeyKind {
    /// All kinds, in the order of looking up.
    pub const ALL: [KeyKind; 6] = [
        KeyKind::Pppoe,
        KeyKind::Vlan,
        KeyKind::Mac,
        KeyKind::Ipv4,
        KeyKind::Ipv6,
        KeyKind::Prefix,
    ];

    /// The word of configurations.
    pub fn name(self) -> &'static str {
        match self {
            KeyKind::Pppoe => "pppoe",
            KeyKind::Vlan => "vlan",
            KeyKind::Mac => "mac",
            KeyKind::Ipv4 => "ipv4",
            KeyKind::Ipv6 => "ipv6",
            KeyKind::Prefix => "prefix",
        }
    }
}

impl Key {
    /// The kind of the key.
    pub fn kind(&self) -> KeyKind {
        match self {
            Key::Ipv4(_) => KeyKind::Ipv4,
            Key::Ipv6(_) => KeyKind::Ipv6,
            Key::Prefix(..) => KeyKind::Prefix,
            Key::Vlan(..) => KeyKind::Vlan,
            Key::Mac(_) => KeyKind::Mac,
            Key::Pppoe(_) => KeyKind::Pppoe,
        }
    }

    /// The prefix of an address and a length, its other bits set to zero; a prefix of all bits is
    /// the address. `None` if the address has fewer bits.
    pub fn prefix(address: IpAddr, len: u8) -> Option<Key> {
        Some(match address {
            IpAddr::V4(address) if len == 32 => Key::Ipv4(address),
            IpAddr::V6(address) if len == 128 => Key::Ipv6(address),
            IpAddr::V4(address) if len < 32 => Key::Prefix(
                Ipv4Addr::from_bits(mask_v4(address.to_bits(), len)).into(),
                len,
            ),
            IpAddr::V6(address) if len < 128 => Key::Prefix(
                Ipv6Addr::from_bits(mask_v6(address.to_bits(), len)).into(),
                len,
            ),
            _ => return None,
        })
    }

    /// Whether another key is this one, or an address within this prefix.
    pub fn contains(&self, other: Key) -> bool {
        match other {
            Key::Ipv4(address) => self.covers(address.into()),
            Key::Ipv6(address) => self.covers(address.into()),
            _ => *self == other,
        }
    }

    /// Whether an address is this key or within this prefix.
    pub fn covers(&self, address: IpAddr) -> bool {
        match (*self, address) {
            (Key::Ipv4(own), IpAddr::V4(address)) => own == address,
            (Key::Ipv6(own), IpAddr::V6(address)) => own == address,
            (Key::Prefix(IpAddr::V4(own), len), IpAddr::V4(address)) => {
                mask_v4(address.to_bits(), len) == own.to_bits()
            }
            (Key::Prefix(IpAddr::V6(own), len), IpAddr::V6(address)) => {
                mask_v6(address.to_bits(), len) == own.to_bits()
            }
            _ => false,
        }
    }
}

/// The first `len` bits of an IPv4 address; `len` is at most 32.
#[inline]
pub(crate) fn mask_v4(bits: u32, len: u8) -> u32 {
    bits & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

/// The first `len` bits of an IPv6 address; `len` is at most 128.
#[inline]
pub(crate) fn mask_v6(bits: u128, len: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl fmt::Display for Key {
    /// As lists of subscribers have it: `192.0.2.1`, `2001:db8::/56`, `vlan:7`, `vlan:7.12`,
    /// `mac:02:00:00:00:00:01`, `pppoe:17`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Ipv4(address) => write!(f, "{address}"),
            Key::Ipv6(address) => write!(f, "{address}"),
            Key::Prefix(address, len) => write!(f, "{address}/{len}"),
            Key::Vlan(outer, None) => write!(f, "vlan:{outer}"),
            Key::Vlan(outer, Some(inner)) => write!(f, "vlan:{outer}.{inner}"),
            Key::Mac(address) => write!(f, "mac:{}", Address(*address)),
            Key::Pppoe(session) => write!(f, "pppoe:{session}"),
        }
    }
}

/// The error of a text that is no key.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("`{text}` is no key: {remedy}")]
pub struct ParseKeyError {
    /// The text, shortened.
    pub text: String,
    /// The correct form.
    pub remedy: String,
}

impl FromStr for Key {
    type Err = ParseKeyError;

    /// Reads what `Display` prints.
    fn from_str(text: &str) -> Result<Key, ParseKeyError> {
        let wrong = |remedy: &str| ParseKeyError {
            text: text.chars().take(60).collect(),
            remedy: remedy.to_owned(),
        };
        if let Some(vlan) = text.strip_prefix("vlan:") {
            let vid = |text: &str| text.parse().ok().filter(|vid| (1..4095).contains(vid));
            let key = match vlan.split_once('.') {
                None => vid(vlan).map(|outer| Key::Vlan(outer, None)),
                Some((outer, inner)) => vid(outer)
                    .zip(vid(inner))
                    .map(|(outer, inner)| Key::Vlan(outer, Some(inner))),
            };
            return key
                .ok_or_else(|| wrong("write vlan:7, or vlan:7.12 for two tags, of 1 to 4094"));
        }
        if let Some(mac) = text.strip_prefix("mac:") {
            let address = mac.parse::<Address>();
            let address = address.map_err(|_| wrong("write it as mac:02:00:00:00:00:01"))?;
            return Ok(Key::Mac(address.0));
        }
        if let Some(session) = text.strip_prefix("pppoe:") {
            let session = session.parse().ok().filter(|session| *session != 0);
            return session
                .map(Key::Pppoe)
                .ok_or_else(|| wrong("write pppoe: and a session identifier from 1 to 65535"));
        }
        let unknown =
            "write an address, a prefix such as 192.0.2.0/24, vlan:N, mac:ADDRESS or pppoe:N";
        let Some((address, len)) = text.split_once('/') else {
            let address: IpAddr = text.parse().map_err(|_| wrong(unknown))?;
            return Ok(match address {
                IpAddr::V4(address) => Key::Ipv4(address),
                IpAddr::V6(address) => Key::Ipv6(address),
            });
        };
        let address: IpAddr = address.parse().map_err(|_| wrong(unknown))?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let len = len.parse().ok().filter(|len| *len <= bits);
        let len = len.ok_or_else(|| wrong(&format!("a prefix has 0 to {bits} bits")))?;
        let key = Key::prefix(address, len).ok_or_else(|| wrong(unknown))?;
        match key {
            Key::Prefix(network, _) if network != address => Err(wrong(&format!(
                "it has bits behind the prefix: write {key}"
            ))),
            key => Ok(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_printed() {
        for text in [
            "192.0.2.1",
            "2001:db8::1",
            "192.0.2.0/24",
            "0.0.0.0/0",
            "2001:db8::/56",
            "vlan:7",
            "vlan:7.12",
            "mac:02:00:00:00:00:01",
            "pppoe:17",
        ] {
            let key: Key = text.parse().unwrap();
            assert_eq!(key.to_string(), text);
        }
        assert_eq!(
            "192.0.2.1/32".parse::<Key>().unwrap().to_string(),
            "192.0.2.1"
        );
    }

    #[test]
    fn what_is_no_key_says_what_would_be_one() {
        for (text, remedy) in [
            ("alice", "write an address"),
            ("192.0.2.1/33", "0 to 32 bits"),
            ("192.0.2.1/24", "write 192.0.2.0/24"),
            ("vlan:0", "1 to 4094"),
            ("vlan:1.4095", "1 to 4094"),
            ("mac:02", "mac:02:00:00:00:00:01"),
            ("pppoe:0", "from 1 to 65535"),
            ("", "write an address"),
        ] {
            let error = text.parse::<Key>().unwrap_err().to_string();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }

    #[test]
    fn a_prefix_covers_its_addresses() {
        let covers = |key: &str, address: &str| {
            let key: Key = key.parse().unwrap();
            key.covers(address.parse().unwrap())
        };
        assert!(covers("192.0.2.0/24", "192.0.2.255") && !covers("192.0.2.0/24", "192.0.3.0"));
        assert!(covers("::/0", "2001:db8::1") && !covers("::/0", "192.0.2.1"));
        assert!(covers("192.0.2.1", "192.0.2.1") && !covers("vlan:1", "192.0.2.1"));
    }
}
