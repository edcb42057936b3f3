//! What is in use of what the policy grants, and of what all share.

use super::ports::{Engine, limits};
use super::{Fabric, Owner};
use crate::Bytes;
use crate::policy::{Denied, Usage, Wish};
use crate::protocol::{Attach, ErrorKind, OpenPort, Refusal};

impl<F: Fabric> Engine<F> {
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
        let fabric = &self.fabric;
        let uid = owner.who.uid;
        let held = self.ghosts.memory(place, uid, |ring| fabric.has_ring(ring));
        let mut usage = self.usage(place, uid);
        usage.memory.0 += held.user;
        usage.memory_total.0 += held.grant;
        let allowed = self.policy.grants[place].allows(&wish(asked, ring), usage);
        allowed.map_err(|denied| Refusal {
            passes: true,
            ..denied.into()
        })?;
        Ok(Some(place))
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

fn wish(asked: &OpenPort, ring: Bytes) -> Wish<'_> {
    Wish {
        interface: &asked.interface,
        priority: asked.priority,
        take: asked.take,
        send: asked.send,
        xdp: matches!(asked.attach, Attach::XdpGeneric | Attach::XdpNative),
        memory: ring,
    }
}
