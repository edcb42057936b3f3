//! Accounting of the resources that the policy grants, and of shared resources.

use super::ports::{Engine, limits};
use super::{Backend, Owner};
use crate::Bytes;
use crate::policy::{AccessRequest, Denied, Usage};
use crate::protocol::{Attach, ErrorKind, OpenPort, Refusal};

/// Number of lingering rings of a user, for each port that the user may have
/// open.
const LINGERING_RINGS_MAX: usize = 4;

impl<F: Backend> Engine<F> {
    /// The size of the ring that a port gets: the requested one, or if the request also accepts smaller
    /// ones, the largest for which the grant has room beside open ports. Rings of closed ports do not
    /// make it smaller, since a request waits until they are gone.
    pub(super) fn ring_that_fits(&self, owner: &Owner, asked: &OpenPort, ring: Bytes) -> Bytes {
        let Some(least) = asked.ring_min.filter(|_| !owner.who.is_superuser) else {
            return ring;
        };
        let Some((place, grant)) = self.policy.grant(&owner.who, &asked.interface) else {
            return ring;
        };
        let usage = self.usage(place, owner.who.uid);
        let of_user = grant.memory_max.0.saturating_sub(usage.memory.0);
        let of_all = grant.memory_total.0.saturating_sub(usage.memory_total.0);
        let fits = of_user
            .min(of_all)
            .checked_ilog2()
            .map_or(0, |log| 1 << log);
        let least = least.0.clamp(limits::RING_MIN.0, ring.0);
        Bytes(ring.0.min(fits.max(least.next_power_of_two())))
    }

    /// The grant that allows one more port; `None` for the superuser, who needs
    /// no grant.
    pub(super) fn allowed(
        &mut self,
        owner: &Owner,
        asked: &OpenPort,
        ring: Bytes,
    ) -> Result<Option<usize>, Refusal> {
        let Some(place) = self.granted(owner, asked, ring)? else {
            return Ok(None);
        };
        // Closed rings that a process still holds, maps or pins, or that are
        // still being made, occupy memory, too.
        let uid = owner.who.uid;
        let asked = wish(asked, ring);
        // Ask the kernel which of them still exist only if that matters.
        if self.allowed_beside_lingering(place, uid, &asked).is_err() {
            let fabric = &self.fabric;
            self.ghosts
                .reap(place, uid, |rings| fabric.gone_rings(rings));
            self.allowed_beside_lingering(place, uid, &asked)?;
        }
        Ok(Some(place))
    }

    /// Whether one more port is allowed beside open ports and lingering rings.
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

    /// The grant that allows one more port beside the open ones.
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

    /// The resources in use under a grant.
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

    /// Checks that there is room for one more port that needs a grant, outside
    /// the superuser's reserve.
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
