//! Entity identifiers.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// The identifier of an entity: a client, a server, or a group of servers (RFC
/// 1045 §2.1), in domain 1.
///
/// ```text
///  RAE 1 bit │ GRP 1 │ LEE 1 │ unused 1 │ discriminator 28 │ IPv4 address 32
/// ```
///
/// The address is that of the entity's host, or a group's host group address
/// (RFC 1112). VMTP directly on Ethernet sends nothing to it; it only makes
/// identifiers unique.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Entity(pub u64);

/// The flag GRP: the entity is a group.
const GROUP: u64 = 1 << 62;
/// The bits of the discriminator.
const DISCRIMINATOR: u64 = (1 << 28) - 1;

impl Entity {
    /// No entity.
    pub const NONE: Entity = Entity(0);

    /// The group of all VMTP managers, at 224.0.1.0: every host answers its
    /// probe.
    pub const MANAGERS: Entity = Entity::group(1, Ipv4Addr::new(224, 0, 1, 0));

    /// The entity of a process; of `discriminator` the lowest 28 bits count.
    pub const fn process(discriminator: u32, host: Ipv4Addr) -> Entity {
        let number = discriminator as u64 & DISCRIMINATOR;
        Entity(number << 32 | host.to_bits() as u64)
    }

    /// A group at an IP host group address; of `discriminator` the lowest 28
    /// bits count.
    pub const fn group(discriminator: u32, address: Ipv4Addr) -> Entity {
        Entity(GROUP | Entity::process(discriminator, address).0)
    }

    /// Whether the entity is a group.
    pub const fn is_group(self) -> bool {
        self.0 & GROUP != 0
    }

    /// The host's address; a group's host group address.
    pub const fn host(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.0 as u32)
    }

    /// The number that distinguishes the entities of a host.
    pub const fn discriminator(self) -> u32 {
        (self.0 >> 32 & DISCRIMINATOR) as u32
    }

    /// The IP host group to which packets go whose receiver's link address is not
    /// known: the group's own, or that of all managers.
    pub(crate) fn host_group(self) -> Ipv4Addr {
        let address = self.host();
        if self.is_group() && address.is_multicast() {
            address
        } else {
            Entity::MANAGERS.host()
        }
    }
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.discriminator(), self.host())
    }
}

/// The error of a text that is not an entity.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error(
    "`{0}` is no VMTP entity: write NUMBER@ADDRESS, such as 7@10.0.0.1, \
     with a number below 268435456; a multicast address is a group"
)]
pub struct ParseEntityError(pub String);

impl FromStr for Entity {
    type Err = ParseEntityError;

    /// Parses `NUMBER@ADDRESS`, as `Display` prints; a multicast address is a
    /// group.
    fn from_str(text: &str) -> Result<Entity, ParseEntityError> {
        let refuse = || ParseEntityError(text.chars().take(60).collect());
        let (number, address) = text.split_once('@').ok_or_else(refuse)?;
        let number: u32 = number.parse().map_err(|_| refuse())?;
        let address: Ipv4Addr = address.parse().map_err(|_| refuse())?;
        if u64::from(number) > DISCRIMINATOR {
            return Err(refuse());
        }
        Ok(if address.is_multicast() {
            Entity::group(number, address)
        } else {
            Entity::process(number, address)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_reads_back_as_it_prints() {
        for text in ["7@10.0.0.1", "268435455@192.0.2.1", "3@232.0.0.9"] {
            let entity: Entity = text.parse().unwrap();
            assert_eq!(entity.to_string(), text);
            assert_eq!(entity.is_group(), text.contains("@232"));
        }
        for text in [
            "",
            "7",
            "@1.2.3.4",
            "7@",
            "7@1.2.3",
            "268435456@1.2.3.4",
            "-1@1.2.3.4",
        ] {
            let error = text.parse::<Entity>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is no VMTP entity")),
                "{error}"
            );
        }
    }

    #[test]
    fn fields_are_where_domain_1_has_them() {
        assert_eq!(
            Entity::process(7, [10, 0, 0, 1].into()).0,
            0x0000_0007_0a00_0001
        );
        assert_eq!(Entity::MANAGERS.0, 0x4000_0001_e000_0100);
    }
}
