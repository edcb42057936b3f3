//! The policy: who may do what on which interface.
//!
//! Nobody may do anything but what a [`Grant`] says. The first grant, in the
//! order of the file, that names the user (or a group of theirs, or everyone)
//! and the interface is the one that applies; grants never add up. What a
//! user holds under one grant counts against that grant. The superuser needs
//! no grant: the same could be done without a broker.
//!
//! Taking frames is a right of its own, and so is sending. And a [`Reservation`] is
//! what the host keeps for itself: no port of a lower priority can take those
//! frames, whatever its filter says.

mod accounts;
mod doubts;
mod file;
mod glob;

pub use accounts::{AccountError, Accounts};
pub use doubts::{Doubt, Machine};
pub use file::PolicyError;
pub use glob::Glob;

use crate::Bytes;
use std::net::IpAddr;
use std::sync::Arc;
use weir_link::live::SendRules;

/// Upper bounds on a policy.
pub mod limits {
    /// Bytes of the file.
    pub const FILE_LEN_MAX: u64 = 1 << 20;
    /// Grants and claims, each.
    pub const RULES_MAX: usize = 1 << 10;
    /// Bytes of one filter text in the policy.
    pub const FILTER_LEN_MAX: usize = 16 << 10;
}

/// A process that asks, by what the kernel says of the socket's other end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerCred {
    /// The user's number.
    pub uid: u32,
    /// The numbers of the process's groups, the effective one included; shared
    /// by all that is of the process.
    pub gids: Arc<[u32]>,
    /// The process.
    pub pid: u32,
    /// Whether this is the superuser, whom no policy binds: user 0 with the
    /// capabilities to do the same without a broker. User 0 without them needs
    /// a grant.
    pub is_superuser: bool,
}

/// To whom a grant is given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grantees {
    /// Users, by number.
    pub uids: Vec<u32>,
    /// Groups, by number.
    pub gids: Vec<u32>,
    /// Every user there is.
    pub everyone: bool,
}

impl Grantees {
    fn include(&self, who: &PeerCred) -> bool {
        self.everyone
            || self.uids.contains(&who.uid)
            || self.gids.iter().any(|gid| who.gids.contains(gid))
    }
}

/// What some users may do on some interfaces.
#[derive(Clone, PartialEq, Debug)]
pub struct Grant {
    /// To whom.
    pub to: Grantees,
    /// On which interfaces, by name.
    pub interfaces: Vec<Glob>,
    /// The highest priority a port may have.
    pub priority_max: u16,
    /// How many ports one user may have open.
    pub ports_max: u32,
    /// How much memory the rings of one user's ports may have together, those
    /// of closed ports included as long as they have any.
    pub memory_max: Bytes,
    /// How many ports all users of this grant may have open together.
    pub ports_total: u32,
    /// How much memory the rings of all users of this grant may have together.
    pub memory_total: Bytes,
    /// Whether frames may be taken, from ports of lower priority and from the
    /// host.
    pub take: bool,
    /// Which frames may be sent; none if `None`.
    pub send: Option<Send>,
    /// ANDed to every filter: no other frame is ever seen. The empty text is
    /// all frames.
    pub filter: String,
}

/// Which frames may be sent, beside those that the rules of
/// [`SendRules`] refuse to everybody.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Send {
    /// A filter that every frame sent must pass; the empty text passes all.
    pub filter: String,
    /// The link-layer source; the interface's own if `None`.
    pub source: Option<[u8; 6]>,
    /// The network sources; those that the interface has, when sending
    /// begins, if `None`.
    pub addresses: Option<Vec<IpAddr>>,
    /// Ethernet types beside IPv4, ARP and IPv6.
    pub ethertypes: Vec<u16>,
    /// Whether sources and types may be any: only the filter holds.
    pub any_source: bool,
}

/// What the host keeps for itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Reservation {
    /// On which interfaces, by name.
    pub interfaces: Vec<Glob>,
    /// Ports of a lower priority cannot take these frames.
    pub priority: u16,
    /// Which frames.
    pub filter: String,
}

/// The whole policy; see [`Policy::parse`] for its file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Policy {
    /// In the order of the file.
    pub grants: Vec<Grant>,
    /// In the order of the file.
    pub claims: Vec<Reservation>,
    positions: doubts::RulePositions,
}

/// What somebody asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessRequest<'a> {
    /// The interface's name.
    pub interface: &'a str,
    /// The port's priority.
    pub priority: u16,
    /// Whether frames are to be taken.
    pub take: bool,
    /// Whether frames are to be sent.
    pub send: bool,
    /// Whether frames are to be divided at XDP, taken or not.
    pub xdp: bool,
    /// The ring's size.
    pub memory: Bytes,
}

/// What is held under one grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Open ports of the user.
    pub ports: u32,
    /// Memory of the user's rings.
    pub memory: Bytes,
    /// Open ports of all users.
    pub ports_total: u32,
    /// Memory of all users' rings.
    pub memory_total: Bytes,
}

/// Why the policy refuses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Denied {
    /// No grant names this user and interface.
    #[error(
        "the policy grants user {uid} nothing on interface {interface}; ask who administers this machine"
    )]
    NoGrant {
        /// The user.
        uid: u32,
        /// The interface.
        interface: String,
    },
    /// The priority is too high.
    #[error("priority {asked} is above {max}, the highest that the policy grants here")]
    Priority {
        /// As asked for.
        asked: u16,
        /// As granted.
        max: u16,
    },
    /// Frames may be copied only.
    #[error("the policy does not grant taking frames here; ask for copies")]
    Take,
    /// Copies are made where they cost the host least.
    #[error(
        "the policy does not grant taking frames here, and so not XDP either, \
         which may slow the host down; copies are made at tc"
    )]
    Xdp,
    /// Frames may not be sent.
    #[error("the policy does not grant sending frames here")]
    Send,
    /// Too many paths to send by are in use.
    #[error(
        "{max} sending paths are in use, as many as the policy grants one user here; those of closed ports count as long as their sockets are held"
    )]
    Paths {
        /// As granted.
        max: usize,
    },
    /// All users of the grant have too many paths to send by.
    #[error(
        "{max} sending paths are in use, as many as the policy grants all users here together; those of closed ports count as long as their sockets are held"
    )]
    PathsTotal {
        /// As granted.
        max: usize,
    },
    /// Too many ports are open.
    #[error("{}, as many as the policy grants one user here; close one first", open(*max))]
    Ports {
        /// As granted.
        max: u32,
    },
    /// All users of the grant have too many ports open.
    #[error("{}, as many as the policy grants all users here together", open(*max))]
    PortsTotal {
        /// As granted.
        max: u32,
    },
    /// All users of the grant have too much memory in use.
    #[error(
        "a ring of {asked} beside {used} in use is more than {max}, what the policy grants all users here together"
    )]
    MemoryTotal {
        /// The ring's size.
        asked: Bytes,
        /// In use already.
        used: Bytes,
        /// As granted.
        max: Bytes,
    },
    /// Too much memory is in use.
    #[error(
        "a ring of {asked} beside {used} in use is more than {max}, what the policy grants one user here; ask for a smaller queue"
    )]
    Memory {
        /// The ring's size.
        asked: Bytes,
        /// In use already.
        used: Bytes,
        /// As granted.
        max: Bytes,
    },
}

impl Send {
    /// The rules for an interface of that link-layer address and those
    /// network addresses.
    pub fn rules(&self, own: [u8; 6], own_addresses: &[IpAddr]) -> SendRules {
        SendRules {
            source: self.source.unwrap_or(own),
            addresses: match &self.addresses {
                Some(addresses) => addresses.clone(),
                None => own_addresses.to_vec(),
            },
            ethertypes: self.ethertypes.clone(),
            predicate: self.filter.clone(),
            any_source: self.any_source,
        }
    }
}

impl Policy {
    /// The grant that applies to this user on this interface, and its place
    /// in the file.
    pub fn grant(&self, who: &PeerCred, interface: &str) -> Option<(usize, &Grant)> {
        let mut grants = self.grants.iter().enumerate();
        grants.find(|(_, grant)| grant.to.include(who) && Glob::any(&grant.interfaces, interface))
    }

    /// The place of the first grant that names this user, on whatever
    /// interface.
    pub fn grant_position(&self, who: &PeerCred) -> Option<usize> {
        self.grants.iter().position(|grant| grant.to.include(who))
    }

    /// The claims of the host on this interface.
    pub fn claims<'a>(&'a self, interface: &'a str) -> impl Iterator<Item = &'a Reservation> {
        let mut claims = self.claims.iter();
        std::iter::from_fn(move || claims.find(|claim| Glob::any(&claim.interfaces, interface)))
    }
}

impl Grant {
    /// Whether the wish is granted beside what is in use.
    ///
    /// # Errors
    /// What is not granted, the first that was found.
    pub fn allows(&self, wish: &AccessRequest<'_>, usage: Usage) -> Result<(), Denied> {
        if wish.priority > self.priority_max {
            return Err(Denied::Priority {
                asked: wish.priority,
                max: self.priority_max,
            });
        }
        if wish.take && !self.take {
            return Err(Denied::Take);
        }
        if wish.xdp && !self.take {
            return Err(Denied::Xdp);
        }
        if wish.send && self.send.is_none() {
            return Err(Denied::Send);
        }
        if usage.ports >= self.ports_max {
            let max = self.ports_max;
            return Err(Denied::Ports { max });
        }
        let after = usage.memory.0.saturating_add(wish.memory.0);
        if after > self.memory_max.0 {
            return Err(Denied::Memory {
                asked: wish.memory,
                used: usage.memory,
                max: self.memory_max,
            });
        }
        if usage.ports_total >= self.ports_total {
            let max = self.ports_total;
            return Err(Denied::PortsTotal { max });
        }
        let after = usage.memory_total.0.saturating_add(wish.memory.0);
        if after > self.memory_total.0 {
            return Err(Denied::MemoryTotal {
                asked: wish.memory,
                used: usage.memory_total,
                max: self.memory_total,
            });
        }
        Ok(())
    }
}

/// How many ports are open, in words.
fn open(ports: u32) -> String {
    match ports {
        1 => "1 port is open".to_owned(),
        _ => format!("{ports} ports are open"),
    }
}
