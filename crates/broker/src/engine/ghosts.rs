//! Rings of ports that are closed, and that somebody still has, by a
//! descriptor, a mapping or a pin; or that are still being made. Their memory
//! is their user's share until they are gone, so that nobody gets around the
//! policy's limit by closing and opening.

use std::collections::BTreeMap;

/// A ring of a closed port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ghost {
    /// The grant's place in the policy.
    pub(super) grant: usize,
    pub(super) uid: u32,
    /// Its size in bytes.
    pub(super) memory: u64,
    /// The ring's number, once it has one.
    pub(super) ring: Option<u32>,
}

/// All of them, and some that are gone.
#[derive(Default)]
pub(super) struct Ghosts {
    made: Vec<Ghost>,
    /// Those that are being made, by port, with the interface.
    unmade: BTreeMap<u32, (u32, Ghost)>,
}

/// How many are kept before those that are gone are looked for.
const UNCHECKED_MAX: usize = 256;

impl Ghosts {
    /// The ring of a port that is closed, on that interface.
    pub(super) fn add(&mut self, port: u32, ifindex: u32, ghost: Ghost) {
        match ghost.ring {
            Some(_) => self.made.push(ghost),
            None => drop(self.unmade.insert(port, (ifindex, ghost))),
        }
    }

    /// The ring of a port that was closed before is made, or cannot be.
    pub(super) fn made(&mut self, port: u32, ring: Option<u32>) {
        if let Some((_, ghost)) = self.unmade.remove(&port)
            && ring.is_some()
        {
            self.made.push(Ghost { ring, ..ghost });
        }
    }

    /// An interface is given up, and what is being made for it.
    pub(super) fn close_interface(&mut self, ifindex: u32) {
        self.unmade.retain(|_, (of, _)| *of != ifindex);
    }

    /// Bytes that a user has beside open ports, under a grant.
    pub(super) fn memory(&mut self, grant: usize, uid: u32, is_there: impl Fn(u32) -> bool) -> u64 {
        let is_own = |ghost: &Ghost| (ghost.grant, ghost.uid) == (grant, uid);
        let all = self.made.len() > UNCHECKED_MAX;
        self.made
            .retain(|ghost| !(all || is_own(ghost)) || ghost.ring.is_some_and(&is_there));
        let unmade = self.unmade.values().map(|(_, ghost)| ghost);
        self.made
            .iter()
            .chain(unmade)
            .filter(|ghost| is_own(ghost))
            .map(|ghost| ghost.memory)
            .sum()
    }
}
