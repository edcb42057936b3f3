//! Replacing the policy while ports are open.

use super::ports::{BoundClaim, Engine, Finished, Port, bind_claims, no_port};
use super::tx_state::TxState;
use super::{Backend, InterfaceDemux};
use crate::policy::{Accounts, PeerCred, Policy};
use crate::protocol::{Event, Refusal};
use crate::runtime_dir::EgressRecord;
use weir_demux::BindingId;

/// The result of a reload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reloaded {
    /// Number of ports that continue, the superuser's included.
    pub kept: usize,
    /// Number of ports that the new policy does not grant.
    pub ended: usize,
}

/// Events of ports, each with connection and port number.
type Events = Vec<(u64, u32, Event)>;

/// The grant of ports that were not examined yet: they count for no grant.
const NOT_YET: Option<usize> = Some(usize::MAX);

impl<F: Backend> Engine<F> {
    /// Replaces the policy. Ports that the new policy grants continue, in the
    /// order of their numbers as far as its limits allow, with the filters of
    /// its grants; other ports are closed. The host's claims of the new policy
    /// are bound before any port changes; the ports change together. Calls
    /// `is_alive` with each port meanwhile.
    ///
    /// # Errors
    /// If a claim cannot be bound; then everything stays.
    pub fn reload(
        &mut self,
        policy: Policy,
        accounts: &Accounts,
        mut is_alive: impl FnMut(),
    ) -> Result<(Reloaded, Events), Refusal> {
        self.rebind_claims(&policy)?;
        self.policy = policy;
        self.guards.clear();
        let (policy, fabric) = (&self.policy, &self.fabric);
        let grant =
            |who: &PeerCred, interface: &str| policy.grant(who, interface).map(|(at, _)| at);
        self.ghosts.regrant(|rings| fabric.gone_rings(rings), grant);
        for path in &mut self.retired {
            path.grant = grant(&path.who, &path.interface);
        }
        let granted = |port: &&mut Port| port.grant.is_some();
        for port in self.ports.values_mut().filter(granted) {
            port.grant = NOT_YET;
        }
        for interface in self.interfaces.values_mut() {
            interface.divider.begin_batch();
        }
        let mut events = Vec::new();
        for number in self.ports.keys().copied().collect::<Vec<u32>>() {
            is_alive();
            if let Err(refusal) = self.grant_again(number, accounts) {
                self.revoke(number, refusal, &mut events);
            }
        }
        for ifindex in self.interfaces.keys().copied().collect::<Vec<u32>>() {
            is_alive();
            let interface = self.interfaces.get_mut(&ifindex);
            let Some(Err(refusal)) = interface.map(|one| one.divider.commit()) else {
                continue;
            };
            // Their filters include guards that the new policy may not grant.
            let of = |(number, port): (&u32, &Port)| {
                (port.ifindex == ifindex && port.grant.is_some()).then_some(*number)
            };
            for number in self.ports.iter().filter_map(of).collect::<Vec<u32>>() {
                self.revoke(number, refusal.clone(), &mut events);
            }
        }
        let (kept, ended) = (self.ports.len(), events.len());
        Ok((Reloaded { kept, ended }, events))
    }

    /// Closes a port that the new policy does not grant.
    fn revoke(&mut self, number: u32, refusal: Refusal, events: &mut Events) {
        let grant = self.grant_of(number);
        if let Some(port) = self.ports.get_mut(&number) {
            // Lingering memory of the port is charged to the new grant.
            port.grant = grant;
            let owner = port.owner.clone();
            let reason = refusal.message.clone();
            events.push((owner.connection, number, Event::Revoked { reason }));
            // For a request in progress.
            self.done.push(Finished {
                port: number,
                owner,
                result: Err(refusal),
            });
        }
        self.remove(number);
    }

    /// Binds the claims of a new policy on every interface, then removes the
    /// old claims that it does not have.
    fn rebind_claims(&mut self, policy: &Policy) -> Result<(), Refusal> {
        let mut bound: Vec<(u32, Vec<BoundClaim>)> = Vec::new();
        let mut result = Ok(());
        for (ifindex, interface) in &mut self.interfaces {
            let known = &interface.claims;
            match bind_claims(policy, &interface.info, &mut interface.divider, known) {
                Ok(claims) => bound.push((*ifindex, claims)),
                Err(refusal) => {
                    result = Err(refusal);
                    break;
                }
            }
        }
        for (ifindex, claims) in bound {
            if let Some(interface) = self.interfaces.get_mut(&ifindex) {
                let gone = if result.is_ok() {
                    std::mem::replace(&mut interface.claims, claims)
                } else {
                    claims
                };
                let kept: Vec<BindingId> = interface.claims.iter().map(|one| one.binding).collect();
                let gone = gone.into_iter().map(|one| one.binding);
                let gone = gone.filter(|binding| !kept.contains(binding));
                gone.for_each(|binding| interface.divider.unbind(binding));
            }
        }
        result
    }

    /// Applies the new policy to a port.
    fn grant_again(&mut self, number: u32, accounts: &Accounts) -> Result<(), Refusal> {
        let port = self.ports.get_mut(&number).ok_or_else(|| no_port(number))?;
        if port.grant.is_none() {
            return Ok(());
        }
        accounts.update(&mut port.owner.who);
        let (owner, ifindex) = (port.owner.clone(), port.ifindex);
        let mut asked = port.asked.clone();
        let interface = self.interfaces.get(&ifindex);
        let facts = interface.ok_or_else(|| no_port(number))?.info.clone();
        asked.interface.clone_from(&facts.name);
        let grant = self.granted(&owner, &asked, asked.ring)?;
        let filter = self.filter(grant, &facts, &asked.filter, asked.snap_len)?;
        let effort = self.check_effort(grant, owner.who.uid, ifindex, Some(number), &filter)?;
        let port = self.ports.get_mut(&number).ok_or_else(|| no_port(number))?;
        if let Some(interface) = self.interfaces.get_mut(&ifindex) {
            // Also a member whose own filter is the same: its group may have another one now.
            port.rebind(interface, number, filter, true)?;
        }
        port.grant = grant;
        port.effort = effort;
        self.send_again(number);
        // If recording fails, the next broker recomputes it.
        let _ = self.note(number);
        Ok(())
    }

    /// The new policy's grant for a port's user and interface, regardless of
    /// its rights.
    fn grant_of(&self, number: u32) -> Option<usize> {
        let port = self.ports.get(&number)?;
        let interface = &self.interfaces.get(&port.ifindex)?.info.name;
        let grant = self.policy.grant(&port.owner.who, interface);
        grant.map(|(place, _)| place)
    }

    /// Ends a port's egress path if the new policy has other rules; its program
    /// then requests another one.
    fn send_again(&mut self, number: u32) {
        let Some(port) = self.ports.get(&number) else {
            return;
        };
        let before = match &port.sending {
            TxState::None => return,
            TxState::Pending(rules) | TxState::Egress(EgressRecord { rules, .. }) => rules.clone(),
        };
        let interface = self.interfaces.get(&port.ifindex);
        let facts = interface.map(|one| one.info.clone());
        let rules = port.grant.zip(facts.as_ref());
        let rules = rules.map(|(place, facts)| self.rules_text(place, facts));
        if matches!(rules, Some(Ok(now)) if now == before) {
            return;
        }
        let (owner, begun) = (
            port.owner.clone(),
            matches!(port.sending, TxState::Pending(_)),
        );
        self.stop_sending(number);
        if begun {
            // Repeat the request, by the new policy.
            let sent = self.send(&owner, number);
            if let Err(refusal) = sent {
                self.done.push(Finished {
                    port: number,
                    owner,
                    result: Err(refusal),
                });
            }
        }
    }
}
