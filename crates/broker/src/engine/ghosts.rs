//! Rings of ports that are closed, and that somebody still has: by a
//! descriptor, a mapping or a pin. Their memory is their user's share until
//! they are gone, so that nobody gets around the policy's limit by closing
//! and opening.

/// A ring of a closed port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ghost {
    /// The grant's place in the policy.
    pub(super) grant: usize,
    pub(super) uid: u32,
    /// Its size in bytes.
    pub(super) memory: u64,
    /// The ring's number.
    pub(super) ring: u32,
}

/// All of them, and some that are gone.
#[derive(Default)]
pub(super) struct Ghosts(Vec<Ghost>);

/// How many are kept before those that are gone are looked for.
const UNCHECKED_MAX: usize = 256;

impl Ghosts {
    pub(super) fn add(&mut self, ghost: Ghost) {
        self.0.push(ghost);
    }

    /// Bytes that a user has beside open ports, under a grant.
    pub(super) fn memory(&mut self, grant: usize, uid: u32, is_there: impl Fn(u32) -> bool) -> u64 {
        let is_own = |ghost: &Ghost| (ghost.grant, ghost.uid) == (grant, uid);
        let all = self.0.len() > UNCHECKED_MAX;
        self.0
            .retain(|ghost| !(all || is_own(ghost)) || is_there(ghost.ring));
        self.0
            .iter()
            .filter(|ghost| is_own(ghost))
            .map(|ghost| ghost.memory)
            .sum()
    }
}
