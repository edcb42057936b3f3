//! Where sockets are: one at a place, or several if all of them agree
//! (`SO_REUSEPORT`), at one version of IP, or at both (RFC 3493 §5.3).
//!
//! A socket that has a peer keeps its place taken, and hears by its connection
//! alone.

use crate::pcb::{InsertError, Key, KeyHash, Listeners, PcbId};
use crate::slab::Slab;
use std::net::{IpAddr, SocketAddr};

/// An address, or any of a version or of both, and a transport port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BindKey {
    pub(super) local: SocketAddr,
    /// At any address of either version; `local` is that of IPv6.
    pub(super) both: bool,
    /// Others may be there that say so too.
    pub(super) shared: bool,
}

/// Who is at one place.
struct ReuseportGroup {
    place: BindKey,
    /// All of them.
    members: usize,
    /// Those that hear whoever speaks.
    open: Vec<PcbId>,
}

/// See the module.
pub(super) struct BindTable {
    /// The sets, by their places.
    table: Listeners,
    sets: Slab<ReuseportGroup>,
    /// Chooses among those that share a place.
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

    /// Whether somebody is at this address and transport port, or at any address
    /// of its version.
    pub(super) fn is_taken(&mut self, ip: IpAddr, port: u16) -> bool {
        self.table.find(ip, port).is_some()
    }

    /// Enters a socket, which hears whoever speaks if it is `open`.
    ///
    /// # Errors
    /// If another is there, and one of them does not share.
    pub(super) fn insert(
        &mut self,
        place: BindKey,
        socket: PcbId,
        open: bool,
    ) -> Result<(), InsertError> {
        let set = ReuseportGroup {
            place,
            members: 1,
            open: open.then_some(socket).into_iter().collect(),
        };
        let name = self.sets.insert(set);
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

    /// Lets a socket share the place of the set that is in its way.
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
        // Equal places are shared both or neither.
        let set = set.filter(|set| place.shared && set.place == place);
        let set = set.ok_or(error)?;
        set.members += 1;
        set.open.extend(open.then_some(socket));
        Ok(())
    }

    /// Takes a socket out of the place it was entered at.
    pub(super) fn remove(&mut self, place: BindKey, socket: PcbId) {
        let (ip, port) = (place.local.ip(), place.local.port());
        let exact = self.table.find(ip, port).and_then(|id| self.sets.at(id.0));
        let Some((name, set)) = exact.and_then(|name| Some((name, self.sets.get_mut(name)?)))
        else {
            return;
        };
        debug_assert_eq!(set.place, place, "a socket is where it was entered");
        set.members -= 1;
        set.open.retain(|other| *other != socket);
        if set.members == 0 {
            self.sets.remove(name);
            self.table.remove(ip, port);
        }
    }

    /// Who hears what comes to this address and transport port: those at the
    /// place that fits best of those where somebody does.
    fn lookup(&mut self, local: SocketAddr) -> &[PcbId] {
        let sets = &self.sets;
        let open = |PcbId(index): PcbId| {
            let set = sets.at(index).and_then(|name| sets.get(name))?;
            (!set.open.is_empty()).then_some(&set.open[..])
        };
        let found = self.table.find_that(local.ip(), local.port(), open);
        found.unwrap_or_default()
    }

    /// Who hears what comes for this key: of several always the same, while they
    /// are the same.
    pub(super) fn select(&mut self, local: SocketAddr, key: &Key) -> Option<PcbId> {
        let hash = match key {
            Key::V4(key) => self.v4.hash(key),
            Key::V6(key) => self.v6.hash(key),
        };
        match self.lookup(local) {
            [] => None,
            [one] => Some(*one),
            all => Some(all[(((hash >> 32) * all.len() as u64) >> 32) as usize]),
        }
    }

    /// All who hear what comes to this address and transport port.
    pub(super) fn all(&mut self, local: SocketAddr) -> Vec<PcbId> {
        self.lookup(local).to_vec()
    }
}
