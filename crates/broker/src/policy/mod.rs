//! The policy: the rights of users on interfaces.
//!
//! A user has only the rights of a [`Grant`]. The first grant in the order of
//! the file that names the user (or one of the user's groups, or everyone) and
//! the interface applies; grants never add up. A user's resources under a grant
//! count against that grant. The superuser needs no grant, since the superuser
//! could do the same without a broker.
//!
//! Taking frames is a separate right, and so is sending. A [`Reservation`]
//! keeps frames for the host: no port of a lower priority can take those
//! frames, whatever its filter accepts.

mod accounts;
mod file;
mod glob;
mod warnings;

pub use accounts::{AccountError, Accounts};
pub use file::PolicyError;
pub use glob::Glob;
pub use warnings::{Machine, Warning};

use crate::Bytes;
use std::net::IpAddr;
use std::sync::Arc;
use weir_link::live::EgressRules;

/// Upper bounds on a policy.
pub mod limits {
    /// Length of the file, in bytes.
    pub const FILE_LEN_MAX: u64 = 1 << 20;
    /// Number of grants, and of claims.
    pub const RULES_MAX: usize = 1 << 10;
    /// Length of one filter in the policy, in bytes.
    pub const FILTER_LEN_MAX: usize = 16 << 10;
}

/// The credentials of a requesting process, as the kernel reports them for the
/// socket's peer (`SO_PEERCRED`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerCred {
    /// The user's number.
    pub uid: u32,
    /// The group numbers of the process, the effective one included; shared by
    /// all objects of the process.
    pub gids: Arc<[u32]>,
    /// The process id.
    pub pid: u32,
    /// Whether the process is the superuser, to whom no policy applies: user 0
    /// with the capabilities to do the same without a broker. User 0 without
    /// them needs a grant.
    pub is_superuser: bool,
}

/// The users to whom a grant applies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grantees {
    /// Users, by number.
    pub uids: Vec<u32>,
    /// Groups, by number.
    pub gids: Vec<u32>,
    /// Every user.
    pub everyone: bool,
}

impl Grantees {
    fn include(&self, who: &PeerCred) -> bool {
        self.everyone
            || self.uids.contains(&who.uid)
            || self.gids.iter().any(|gid| who.gids.contains(gid))
    }
}

/// The rights of some users on some interfaces.
#[derive(Clone, PartialEq, Debug)]
pub struct Grant {
    /// The users.
    pub to: Grantees,
    /// The interfaces, by name.
    pub interfaces: Vec<Glob>,
    /// The highest priority a port may have.
    pub priority_max: u16,
    /// Largest number of open ports of one user.
    pub ports_max: u32,
    /// Largest memory of the rings of one user's ports, in bytes, including
    /// closed ports as long as their rings have memory.
    pub memory_max: Bytes,
    /// Largest number of open ports of all users of this grant together.
    pub ports_total: u32,
    /// Largest memory of the rings of all users of this grant together, in
    /// bytes.
    pub memory_total: Bytes,
    /// Whether ports may take frames, from ports of lower priority and from the
    /// host.
    pub take: bool,
    /// The frames that may be sent; `None` for no sending.
    pub send: Option<Send>,
    /// A filter ANDed to every port's filter, which hides all other frames. The
    /// empty text accepts all frames.
    pub filter: String,
}

/// The frames that may be sent, beside those that [`EgressRules`] refuse to every
/// user.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Send {
    /// A filter that every sent frame must pass; the empty text accepts all
    /// frames.
    pub filter: String,
    /// The permitted link-layer source; the interface's own if `None`.
    pub source: Option<[u8; 6]>,
    /// The permitted network sources; if `None`, the interface's addresses at
    /// the time when sending starts.
    pub addresses: Option<Vec<IpAddr>>,
    /// Permitted EtherTypes beside IPv4, ARP and IPv6.
    pub ethertypes: Vec<u16>,
    /// Whether any source and EtherType is permitted: only the filter applies.
    pub any_source: bool,
}

/// A claim: frames that the host keeps for itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Reservation {
    /// The interfaces, by name.
    pub interfaces: Vec<Glob>,
    /// Ports of a lower priority cannot take these frames.
    pub priority: u16,
    /// The filter that selects the frames.
    pub filter: String,
}

/// A policy; see [`Policy::parse`] for its file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Policy {
    /// The grants, in the order of the file.
    pub grants: Vec<Grant>,
    /// The claims, in the order of the file.
    pub claims: Vec<Reservation>,
    positions: warnings::RulePositions,
}

/// The properties of a requested port that the policy decides on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessRequest<'a> {
    /// The interface's name.
    pub interface: &'a str,
    /// The port's priority.
    pub priority: u16,
    /// Whether the port takes frames.
    pub take: bool,
    /// Whether the port sends frames.
    pub send: bool,
    /// Whether the port requires XDP, for taking or copying.
    pub xdp: bool,
    /// The ring's size, in bytes.
    pub memory: Bytes,
}

/// The resources in use under one grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Number of open ports of the user.
    pub ports: u32,
    /// Memory of the user's rings, in bytes.
    pub memory: Bytes,
    /// Number of open ports of all users.
    pub ports_total: u32,
    /// Memory of all users' rings, in bytes.
    pub memory_total: Bytes,
}

/// The reason why the policy refuses a request.
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
    /// The priority exceeds the grant's.
    #[error("priority {asked} is above {max}, the highest that the policy grants here")]
    Priority {
        /// The requested priority.
        asked: u16,
        /// The granted maximum.
        max: u16,
    },
    /// The grant permits copying only.
    #[error("the policy does not grant taking frames here; ask for copies")]
    Take,
    /// XDP is not granted; copies are made where they cost the host least.
    #[error(
        "the policy does not grant taking frames here, and so not XDP either, \
         which may slow the host down; copies are made at tc"
    )]
    Xdp,
    /// Sending is not granted.
    #[error("the policy does not grant sending frames here")]
    Send,
    /// The user has too many egress paths in use.
    #[error(
        "{max} sending paths are in use, as many as the policy grants one user here; those of closed ports count as long as their sockets are held"
    )]
    Paths {
        /// The granted maximum.
        max: usize,
    },
    /// All users of the grant have too many egress paths in use.
    #[error(
        "{max} sending paths are in use, as many as the policy grants all users here together; those of closed ports count as long as their sockets are held"
    )]
    PathsTotal {
        /// The granted maximum.
        max: usize,
    },
    /// Too many ports are open.
    #[error("{}, as many as the policy grants one user here; close one first", open(*max))]
    Ports {
        /// The granted maximum.
        max: u32,
    },
    /// All users of the grant have too many ports open.
    #[error("{}, as many as the policy grants all users here together", open(*max))]
    PortsTotal {
        /// The granted maximum.
        max: u32,
    },
    /// All users of the grant have too much memory in use.
    #[error(
        "a ring of {asked} beside {used} in use is more than {max}, what the policy grants all users here together"
    )]
    MemoryTotal {
        /// The ring's size.
        asked: Bytes,
        /// Memory in use.
        used: Bytes,
        /// The granted maximum.
        max: Bytes,
    },
    /// The user has too much memory in use.
    #[error(
        "a ring of {asked} beside {used} in use is more than {max}, what the policy grants one user here; ask for a smaller queue"
    )]
    Memory {
        /// The ring's size.
        asked: Bytes,
        /// Memory in use.
        used: Bytes,
        /// The granted maximum.
        max: Bytes,
    },
}

impl Send {
    /// The send rules for an interface with these link-layer and network
    /// addresses.
    pub fn rules(&self, own: [u8; 6], own_addresses: &[IpAddr]) -> EgressRules {
        EgressRules {
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
    /// The grant that applies to this user on this interface, and its index in
    /// the file; `None` if no grant names them.
    pub fn grant(&self, who: &PeerCred, interface: &str) -> Option<(usize, &Grant)> {
        let mut grants = self.grants.iter().enumerate();
        grants.find(|(_, grant)| grant.to.include(who) && Glob::any(&grant.interfaces, interface))
    }

    /// The index of the first grant that names this user, on any interface.
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
    /// Checks a request against the grant and the resources in use.
    ///
    /// # Errors
    /// The first requested property that is not granted.
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
