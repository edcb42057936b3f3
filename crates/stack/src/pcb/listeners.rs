//! Listeners by address and port, found in constant time.

use super::{InsertError, Key, Key4, Key6, PcbId, Table, Weir};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The listening PCBs by local address and port.
///
/// A look-up is at most three of [`Weir`]: the exact address, any address of its version, and, for
/// IPv4, any address of IPv6 if that listener accepts both versions (RFC 3493 §5.3). The most exact
/// listener wins.
pub struct Listeners {
    table: Weir,
}

impl Listeners {
    /// An empty table; peers must not know the seed.
    pub fn new(seed: u128) -> Listeners {
        Listeners {
            table: Weir::new(seed),
        }
    }

    /// Enters a listener; the unspecified address means any of its version.
    ///
    /// # Errors
    /// If there is one at that address and port already.
    pub fn insert(&mut self, local: IpAddr, port: u16, pcb: PcbId) -> Result<(), InsertError> {
        if local == IpAddr::V4(Ipv4Addr::UNSPECIFIED)
            && let Some(other) = self.table.find(&at(ANY6, port, BOTH))
        {
            return Err(InsertError::Exists(other));
        }
        self.table.insert(at(local, port, VERSION), pcb)
    }

    /// Enters a listener at any address of either version.
    ///
    /// # Errors
    /// If there is one of either version at any address and that port;
    /// nothing has changed then.
    pub fn insert_dual(&mut self, port: u16, pcb: PcbId) -> Result<(), InsertError> {
        let any4 = at(Ipv4Addr::UNSPECIFIED.into(), port, VERSION);
        if let Some(other) = self.table.find(&any4) {
            return Err(InsertError::Exists(other));
        }
        self.insert(ANY6, port, pcb)?;
        self.table.insert(at(ANY6, port, BOTH), pcb)
    }

    /// Removes a listener of either kind.
    pub fn remove(&mut self, local: IpAddr, port: u16) -> Option<PcbId> {
        if local == ANY6 {
            self.table.remove(&at(local, port, BOTH));
        }
        self.table.remove(&at(local, port, VERSION))
    }

    /// The listener for a connection to this address and port.
    pub fn find(&mut self, local: IpAddr, port: u16) -> Option<PcbId> {
        self.find_that(local, port, Some)
    }

    /// The result of `fits` for the most exact listener for which it returns one.
    pub(crate) fn find_that<T>(
        &mut self,
        local: IpAddr,
        port: u16,
        mut fits: impl FnMut(PcbId) -> Option<T>,
    ) -> Option<T> {
        if self.table.is_empty() {
            return None;
        }
        let any: IpAddr = match local {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => ANY6,
        };
        let table = &mut self.table;
        let mut found = |key: Key| table.find(&key).and_then(&mut fits);
        found(at(local, port, VERSION))
            .or_else(|| found(at(any, port, VERSION)))
            .or_else(|| {
                local.is_ipv4().then_some(())?;
                found(at(ANY6, port, BOTH))
            })
    }

    /// PCBs examined by all look-ups so far.
    pub fn examined(&self) -> u64 {
        self.table.examined()
    }
}

const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// In place of the remote port: a listener of one version.
const VERSION: u16 = 0;
/// In place of the remote port: a listener of both versions.
const BOTH: u16 = 1;

fn at(local: IpAddr, port: u16, mark: u16) -> Key {
    match local {
        IpAddr::V4(local) => Key::V4(Key4::new((local, port), (Ipv4Addr::UNSPECIFIED, mark))),
        IpAddr::V6(local) => Key::V6(Key6::new((local, port), (Ipv6Addr::UNSPECIFIED, mark))),
    }
}
