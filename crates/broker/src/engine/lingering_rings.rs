//! Rings of closed ports that still occupy memory: a process holds a
//! descriptor, mapping or pin of the ring, or the ring is still being made.
//! Their memory is charged to the grant and the user, so that closing and
//! reopening does not evade the policy.

use crate::policy::PeerCred;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Weak;

/// A ring of a closed port.
#[derive(Clone, Debug)]
pub(super) struct LingeringRing {
    /// The grant's index in the policy; `None` if the present policy has no
    /// such grant.
    pub(super) grant: Option<usize>,
    pub(super) who: PeerCred,
    /// The name of the interface.
    pub(super) interface: String,
    /// Its size in bytes.
    pub(super) memory: u64,
    /// The ring's id; `None` while it is being made.
    pub(super) ring: Option<u32>,
}

/// The charges beside those of open ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LingeringBytes {
    /// Bytes of one user under a grant.
    pub(super) user: u64,
    /// Number of the rings with these bytes.
    pub(super) user_rings: usize,
    /// Bytes of all users under the grant.
    pub(super) grant: u64,
}

/// Number of other users' rings that are checked at a time.
const CHECKED_MAX: usize = 256;

/// The lingering rings, some of which may be gone.
#[derive(Default)]
pub(super) struct LingeringRings {
    made: VecDeque<LingeringRing>,
    /// Rings being made, by port, each with its interface.
    unmade: BTreeMap<u32, (u32, LingeringRing)>,
    /// Rings that were being made when their interface was given up: they are
    /// gone when the threads that make them have ended.
    ending: Vec<(Weak<()>, LingeringRing)>,
}

impl LingeringRings {
    /// Adds the ring of a closed port on an interface.
    pub(super) fn add(&mut self, port: u32, ifindex: u32, ghost: LingeringRing) {
        match ghost.ring {
            Some(_) => self.made.push_back(ghost),
            None => drop(self.unmade.insert(port, (ifindex, ghost))),
        }
    }

    /// Notes that the ring of a closed port is made, or failed.
    pub(super) fn made(&mut self, port: u32, ring: Option<u32>) {
        if let Some((_, ghost)) = self.unmade.remove(&port)
            && ring.is_some()
        {
            self.made.push_back(LingeringRing { ring, ..ghost });
        }
    }

    /// Notes that an interface is given up, with the rings being made for it by
    /// threads that hold `life`.
    pub(super) fn close_interface(&mut self, ifindex: u32, life: &Weak<()>) {
        let left = self.unmade.extract_if(.., |_, (of, _)| *of == ifindex);
        let left = left.map(|(_, (_, ghost))| (life.clone(), ghost));
        self.ending.extend(left);
    }

    /// Forgets rings that are gone: all of a user under a grant, and up to
    /// [`CHECKED_MAX`] others of the grant. `gone` selects those that are, by
    /// their ids; each check takes the kernel one or two microseconds.
    pub(super) fn reap(&mut self, grant: usize, uid: u32, gone: impl FnOnce(&[u32]) -> Vec<u32>) {
        self.ending.retain(|(life, _)| life.strong_count() > 0);
        // Rings of other grants are checked with requests under those grants.
        let is_others = |of: Option<usize>| of.is_some_and(|of| of != grant);
        let is_own = |ghost: &LingeringRing| !is_others(ghost.grant) && ghost.who.uid == uid;
        let own = self.made.iter().filter(|ghost| is_own(ghost));
        let mut asked: Vec<u32> = own.filter_map(|ghost| ghost.ring).collect();
        let mut left = CHECKED_MAX;
        for _ in 0..self.made.len() {
            // The next check continues after this one.
            let next = self.made.pop_front_if(|_| left > 0);
            let Some(ghost) = next else { break };
            if !is_others(ghost.grant) && !is_own(&ghost) {
                left -= 1;
                asked.extend(ghost.ring);
            }
            self.made.push_back(ghost);
        }
        self.forget(&gone(&asked));
    }

    fn forget(&mut self, gone: &[u32]) {
        let gone: BTreeSet<u32> = gone.iter().copied().collect();
        let is_gone = |ring: u32| gone.contains(&ring);
        self.made.retain(|ghost| !ghost.ring.is_none_or(is_gone));
    }

    /// The charges beside those of open ports under a grant, of a user and of
    /// all.
    pub(super) fn lingering(&self, grant: usize, uid: u32) -> LingeringBytes {
        let mut held = LingeringBytes::default();
        let unmade = self.unmade.values().map(|(_, ghost)| ghost);
        let ending = self.ending.iter().map(|(_, ghost)| ghost);
        for ghost in self.made.iter().chain(unmade).chain(ending) {
            if ghost.grant == Some(grant) {
                held.grant += ghost.memory;
                if ghost.who.uid == uid {
                    held.user += ghost.memory;
                    held.user_rings += 1;
                }
            }
        }
        held
    }

    /// Assigns the rings to the grants of a new policy. A ring without a grant
    /// is forgotten once it is gone.
    pub(super) fn regrant(
        &mut self,
        gone: impl FnOnce(&[u32]) -> Vec<u32>,
        grant: impl Fn(&PeerCred, &str) -> Option<usize>,
    ) {
        let made: Vec<u32> = self.made.iter().filter_map(|ghost| ghost.ring).collect();
        self.forget(&gone(&made));
        let unmade = self.unmade.values_mut().map(|(_, ghost)| ghost);
        let ending = self.ending.iter_mut().map(|(_, ghost)| ghost);
        for ghost in self.made.iter_mut().chain(unmade).chain(ending) {
            ghost.grant = grant(&ghost.who, &ghost.interface);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn ghost(uid: u32, ring: Option<u32>) -> LingeringRing {
        LingeringRing {
            grant: Some(0),
            who: PeerCred {
                uid,
                ..PeerCred::default()
            },
            interface: "eth0".into(),
            memory: 1 << uid,
            ring,
        }
    }

    fn without(rings: &[u32], is_there: impl Fn(u32) -> bool) -> Vec<u32> {
        let rings = rings.iter().copied();
        rings.filter(|ring| !is_there(*ring)).collect()
    }

    #[test]
    fn an_interface_that_is_given_up_leaves_what_is_being_made_until_it_is() {
        let (mut ghosts, life) = (LingeringRings::default(), Arc::new(()));
        ghosts.add(1, 7, ghost(1, None));
        ghosts.add(2, 8, ghost(2, None));
        ghosts.add(3, 7, ghost(3, Some(33)));
        ghosts.close_interface(7, &Arc::downgrade(&life));
        let held = |ghosts: &mut LingeringRings, uid| {
            ghosts.reap(0, uid, |rings| without(rings, |ring| ring == 33));
            let held = ghosts.lingering(0, uid);
            (held.user, held.grant)
        };
        assert_eq!(held(&mut ghosts, 1), (2, 14));
        drop(life);
        assert_eq!(held(&mut ghosts, 1), (0, 12));
        assert_eq!(held(&mut ghosts, 2).0, 4, "of another interface");
        ghosts.reap(0, 3, <[u32]>::to_vec);
        assert_eq!(ghosts.lingering(0, 3).grant, 4);
    }

    #[test]
    fn few_of_other_users_are_looked_for_at_a_time_and_all_in_the_end() {
        let mut ghosts = LingeringRings::default();
        let many = 8 * CHECKED_MAX as u32;
        for ring in 0..many {
            ghosts.add(ring, 7, ghost(1, Some(ring)));
        }
        ghosts.add(many, 7, ghost(2, Some(many)));
        let looks = std::cell::Cell::new(0);
        for _ in 0..7 {
            looks.set(0);
            // Every second ring is gone.
            ghosts.reap(0, 2, |rings| {
                looks.set(looks.get() + rings.len());
                without(rings, |ring| ring % 2 == 0)
            });
            assert_eq!(looks.get(), CHECKED_MAX + 1);
        }
        assert!(ghosts.made.len() > many as usize / 2 + 1);
        ghosts.reap(0, 2, |rings| without(rings, |ring| ring % 2 == 0));
        assert_eq!(ghosts.made.len(), many as usize / 2 + 1);
        ghosts.reap(0, 1, <[u32]>::to_vec);
        assert_eq!(ghosts.made.len(), 0, "the own are all looked for");
    }
}
