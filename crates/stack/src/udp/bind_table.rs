//! The table of bound UDP sockets: one socket at an address and port, or
//! several that share it (`SO_REUSEPORT`, `SO_REUSEADDR`), for one IP version or both
//! (RFC 3493 §5.3).
//!
//! A connected socket keeps its address and port occupied, and receives only
//! through its connection.

use crate::pcb::{InsertError, Key, KeyHash, Listeners, PcbId};
use crate::slab::Slab;
use std::net::{IpAddr, SocketAddr};

/// A bind address: an address, or the unspecified address of one or both IP
/// versions, with a transport port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BindKey {
    pub(super) local: SocketAddr,
    /// Bound for both IP versions; `local` is then the unspecified IPv6
    /// address.
    pub(super) both: bool,
    /// Whether sockets with this flag may share the address and port, and its datagrams.
    pub(super) shared: bool,
    /// Whether sockets with this flag may have the address and port: the last one receives.
    pub(super) reuse_address: bool,
}

/// The sockets bound to one address and port.
struct Group {
    local: SocketAddr,
    both: bool,
    /// Number of all of them, and of those with each flag of [`BindKey`].
    members: usize,
    shared: usize,
    reuse_address: usize,
    /// The unconnected ones, which receive from any peer, in the order of their binds.
    open: Vec<PcbId>,
}

impl Group {
    fn new(place: BindKey, socket: PcbId, open: bool) -> Group {
        let mut group = Group {
            local: place.local,
            both: place.both,
            members: 0,
            shared: 0,
            reuse_address: 0,
            open: Vec::new(),
        };
        group.add(place, socket, open);
        group
    }

    /// Whether the sockets let another one have their place too.
    fn admits(&self, other: BindKey) -> bool {
        (self.local, self.both) == (other.local, other.both)
            && (other.shared && self.is_shared()
                || other.reuse_address && self.reuse_address == self.members)
    }

    /// Whether all share the datagrams.
    fn is_shared(&self) -> bool {
        self.shared == self.members
    }

    fn add(&mut self, place: BindKey, socket: PcbId, open: bool) {
        self.members += 1;
        self.shared += usize::from(place.shared);
        self.reuse_address += usize::from(place.reuse_address);
        self.open.extend(open.then_some(socket));
    }

    fn remove(&mut self, place: BindKey, socket: PcbId) {
        self.members -= 1;
        self.shared -= usize::from(place.shared);
        self.reuse_address -= usize::from(place.reuse_address);
        self.open.retain(|other| *other != socket);
    }
}

/// The table of bound sockets.
pub(super) struct BindTable {
    /// The groups, by their address and port.
    table: Listeners,
    sets: Slab<Group>,
    /// Chooses among the sockets of a group.
    v4: KeyHash<1>,
    v6: KeyHash<4>,
}

impl BindTable {
    pub(super) fn new(mut wide: impl FnMut() -> u128) -> BindTable {
        BindTable {
            table: Listeners::new(wide()),
            sets: Slab::new(),
            v4: KeyHash::new(wide()),
            v6: KeyHash::new(wide()),
        }
    }

    /// Whether a socket is bound to this address and transport port, or to the
    /// unspecified address of its version.
    pub(super) fn is_taken(&mut self, ip: IpAddr, port: u16) -> bool {
        self.table.find(ip, port).is_some()
    }

    /// Adds a socket; it receives from any peer if it is `open`.
    ///
    /// # Errors
    /// If another socket is bound there, and not both share.
    pub(super) fn insert(
        &mut self,
        place: BindKey,
        socket: PcbId,
        open: bool,
    ) -> Result<(), InsertError> {
        let name = self.sets.insert(Group::new(place, socket, open));
        let (ip, port) = (place.local.ip(), place.local.port());
        let entered = if place.both {
            self.table.insert_dual(port, PcbId(name.index))
        } else {
            self.table.insert(ip, port, PcbId(name.index))
        };
        if let Err(error) = entered {
            self.sets.remove(name);
            return self.join(error, place, socket, open);
        }
        Ok(())
    }

    /// Adds a socket to the group that is bound there.
    fn join(
        &mut self,
        error: InsertError,
        place: BindKey,
        socket: PcbId,
        open: bool,
    ) -> Result<(), InsertError> {
        let InsertError::Exists(PcbId(index)) = error else {
            return Err(error);
        };
        let name = self.sets.at(index);
        let set = name.and_then(|name| self.sets.get_mut(name));
        let set = set.filter(|set| set.admits(place));
        set.ok_or(error)?.add(place, socket, open);
        Ok(())
    }

    /// Removes a socket from its group.
    pub(super) fn remove(&mut self, place: BindKey, socket: PcbId) {
        let (ip, port) = (place.local.ip(), place.local.port());
        let exact = self.table.find(ip, port).and_then(|id| self.sets.at(id.0));
        let Some((name, set)) = exact.and_then(|name| Some((name, self.sets.get_mut(name)?)))
        else {
            return;
        };
        debug_assert_eq!(
            (set.local, set.both),
            (place.local, place.both),
            "a socket is where it was entered"
        );
        set.remove(place, socket);
        if set.members == 0 {
            self.sets.remove(name);
            self.table.remove(ip, port);
        }
    }

    /// The open sockets of the most specific group for this address and
    /// transport port that has any, and whether they share its datagrams.
    fn lookup(&mut self, local: SocketAddr) -> (&[PcbId], bool) {
        let sets = &self.sets;
        let open = |PcbId(index): PcbId| {
            let set = sets.at(index).and_then(|name| sets.get(name))?;
            (!set.open.is_empty()).then_some((&set.open[..], set.is_shared()))
        };
        let found = self.table.find_that(local.ip(), local.port(), open);
        found.unwrap_or_default()
    }

    /// The socket for this key: of several that share the datagrams always the same, while the
    /// group is unchanged; else the one that was bound last.
    pub(super) fn select(&mut self, local: SocketAddr, key: &Key) -> Option<PcbId> {
        let hash = match key {
            Key::V4(key) => self.v4.hash(key),
            Key::V6(key) => self.v6.hash(key),
        };
        match self.lookup(local) {
            ([.., last], false) => Some(*last),
            ([], _) => None,
            ([one], _) => Some(*one),
            (all, true) => Some(all[(((hash >> 32) * all.len() as u64) >> 32) as usize]),
        }
    }

    /// All open sockets that receive datagrams to this address and transport
    /// port.
    pub(super) fn all(&mut self, local: SocketAddr) -> Vec<PcbId> {
        self.lookup(local).0.to_vec()
    }
}
