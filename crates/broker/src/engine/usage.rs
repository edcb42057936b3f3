//! What is in use of what the policy grants, and of what all share.

use super::ports::{Engine, limits};
use super::{Backend, Owner};
use crate::Bytes;
use crate::policy::{AccessRequest, Denied, Usage};
use crate::protocol::{Attach, ErrorKind, OpenPort, Refusal};

/// Rings of a user's closed ports, for each port that may be open.
const LINGERING_RINGS_MAX: usize = 4;

impl<F: Backend> Engine<F> {
    /// The grant that allows one more port; `None` for the superuser, who
    /// needs none.
    pub(super) fn allowed(
        &mut self,
        owner: &Owner,
        asked: &OpenPort,
        ring: Bytes,
    ) -> Result<Option<usize>, Refusal> {
        let Some(place) = self.granted(owner, asked, ring)? else {
            return Ok(None);
        };
        // What was closed and is still held, mapped or pinned by a process, or
        // still being made, has its memory too.
        let uid = owner.who.uid;
        let asked = wish(asked, ring);
        // The kernel is asked which of it is there still only where that
        // matters.
        if self.allowed_beside_lingering(place, uid, &asked).is_err() {
            let fabric = &self.fabric;
            self.ghosts.reap(place, uid, |ring| fabric.has_ring(ring));
            self.allowed_beside_lingering(place, uid, &asked)?;
        }
        Ok(Some(place))
    }

    /// Whether one more port is allowed beside what is open and what is held of
    /// closed ports.
    fn allowed_beside_lingering(
        &self,
        place: usize,
        uid: u32,
        asked: &AccessRequest<'_>,
    ) -> Result<(), Refusal> {
        let held = self.ghosts.lingering(place, uid);
        let mut usage = self.usage(place, uid);
        usage.memory.0 += held.user;
        usage.memory_total.0 += held.grant;
        let grant = &self.policy.grants[place];
        let mut result = grant.allows(asked, usage).map_err(Refusal::from);
        let rings_max = LINGERING_RINGS_MAX.saturating_mul(grant.ports_max as usize);
        if result.is_ok() && held.user_rings >= rings_max {
            let message = format!(
                "{rings_max} rings of closed ports are held, mapped or pinned still, the most of one user here"
            );
            result = Err(Refusal::new(ErrorKind::Limit, message));
        }
        result.map_err(|refusal| Refusal {
            passes: true,
            ..refusal
        })
    }

    /// The grant that allows a port beside those that are open.
    pub(super) fn granted(
        &self,
        owner: &Owner,
        asked: &OpenPort,
        ring: Bytes,
    ) -> Result<Option<usize>, Refusal> {
        if owner.who.is_superuser {
            return Ok(None);
        }
        let uid = owner.who.uid;
        let Some((place, grant)) = self.policy.grant(&owner.who, &asked.interface) else {
            let interface = asked.interface.clone();
            return Err(Denied::NoGrant { uid, interface }.into());
        };
        grant.allows(&wish(asked, ring), self.usage(place, uid))?;
        Ok(Some(place))
    }

    /// What is open under a grant.
    fn usage(&self, place: usize, uid: u32) -> Usage {
        let mut usage = Usage::default();
        let of_grant = self.ports.values();
        for port in of_grant.filter(|port| port.grant == Some(place)) {
            usage.ports_total += 1;
            usage.memory_total.0 += port.asked.ring.0;
            if port.owner.who.uid == uid {
                usage.ports += 1;
                usage.memory.0 += port.asked.ring.0;
            }
        }
        usage
    }

    /// Whether there is room for one more port that needs a grant, beside the
    /// superuser's reserve.
    pub(super) fn check_room(&self, grant: Option<usize>, ifindex: u32) -> Result<(), Refusal> {
        if grant.is_none() {
            return Ok(());
        }
        let granted = || self.ports.values().filter(|port| port.grant.is_some());
        let all = granted().count();
        if all >= limits::USERS_PORTS_MAX {
            let message = format!("{all} ports are open, the most there can be of users");
            return Err(Refusal::new(ErrorKind::Limit, message));
        }
        let there = granted().filter(|port| port.ifindex == ifindex).count();
        if there >= limits::USERS_INTERFACE_PORTS_MAX {
            let message =
                format!("{there} ports are open on this interface, the most there can be of users");
            return Err(Refusal::new(ErrorKind::Limit, message));
        }
        Ok(())
    }
}

fn wish(asked: &OpenPort, ring: Bytes) -> AccessRequest<'_> {
    AccessRequest {
        interface: &asked.interface,
        priority: asked.priority,
        take: asked.take,
        send: asked.send,
        xdp: matches!(asked.attach, Attach::XdpGeneric | Attach::XdpNative),
        memory: ring,
    }
}
