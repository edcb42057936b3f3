//! Sending from ports: the sockets and egress paths.
//!
//! The superuser gets a packet socket. Other users get an egress path that
//! checks each frame against the policy's rules. Making a path takes some ten
//! milliseconds; so one is prepared when a port that may send is opened, and a
//! request for it is finished later.

use super::ports::{Engine, Finished, Port};
use super::{Backend, MadePath, Owner};
use crate::interface::InterfaceInfo;
use crate::policy::{Denied, PeerCred};
use crate::protocol::{ErrorKind, Refusal, Response, TxReady};
use crate::runtime_dir::EgressRecord;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use weir_link::live::{EgressCounts, EgressRules};
use weir_wire::LinkType;

/// The state of sending from a port.
#[derive(Clone, Debug)]
pub(super) enum TxState {
    /// No egress path; the superuser's packet socket is not tracked.
    None,
    /// A path with these rules is being made.
    Pending(String),
    /// An egress path.
    Egress(EgressRecord),
}

/// An egress path of a closed port, or one that another path replaced.
#[derive(Debug)]
pub(super) struct RetiredPath {
    /// The grant's index; `None` if the present policy has no such grant.
    pub(super) grant: Option<usize>,
    pub(super) who: PeerCred,
    /// The interface's name.
    pub(super) interface: String,
    name: String,
}

impl<F: Backend> Engine<F> {
    /// Starts to enable sending from a port;
    /// [`poll_finished`](Self::poll_finished) returns the means to send.
    ///
    /// # Errors
    /// If the port is another connection's, or the policy does not grant
    /// sending.
    pub fn send(&mut self, owner: &Owner, number: u32) -> Result<(), Refusal> {
        let port = self.port(owner, number)?;
        let (grant, ifindex) = (port.grant, port.ifindex);
        if port.place.is_none() || matches!(port.sending, TxState::Pending(_)) {
            let message = format!("port {number} is still being opened, or begins to send already");
            return Err(Refusal::new(ErrorKind::Request, message));
        }
        let facts = self.fabric.by_index(ifindex);
        let facts = facts.ok_or_else(|| Refusal::new(ErrorKind::Interface, "it is gone"))?;
        let Some(place) = grant else {
            let sender = self.fabric.sender(&facts)?;
            let sends = TxReady {
                fds: vec!["packet".to_owned()],
                memory: 0,
                chunk: 0,
            };
            self.done.push(Finished {
                port: number,
                owner: owner.clone(),
                result: Ok((Response::TxReady(sends), vec![sender])),
            });
            return Ok(());
        };
        let rules = self.rules(place, &facts)?;
        self.check_paths(place, owner.who.uid)?;
        let text = text(&rules)?;
        self.stop_sending(number);
        if let Some(port) = self.ports.get_mut(&number) {
            port.sending = TxState::Pending(text);
        }
        self.fabric.make_path(number, &facts, rules);
        Ok(())
    }

    /// Prepares an egress path if the port's grant allows sending: most
    /// applications with that right send, and making a path takes long.
    pub(super) fn prepare_path(&mut self, number: u32) {
        let Some(port) = self.ports.get(&number) else {
            return;
        };
        if let (Some(place), Some(one)) = (port.grant, self.interfaces.get(&port.ifindex))
            && let Ok(rules) = self.rules(place, &one.info)
        {
            self.fabric.prepare_path(&one.info, rules);
        }
    }

    /// The rules of a grant on an interface.
    fn rules(&self, place: usize, facts: &InterfaceInfo) -> Result<EgressRules, Refusal> {
        let send = self.policy.grants.get(place);
        let Some(send) = send.and_then(|grant| grant.send.as_ref()) else {
            return Err(Denied::Send.into());
        };
        let own = <[u8; 6]>::try_from(facts.address.as_slice());
        let (Ok(own), LinkType::EN10MB) = (own, facts.linktype) else {
            let message = format!("only the superuser can send on {}: no Ethernet", facts.name);
            return Err(Refusal::new(ErrorKind::Interface, message));
        };
        let addresses: Vec<IpAddr> = facts.addresses.iter().map(|(ip, _)| *ip).collect();
        Ok(send.rules(own, &addresses))
    }

    /// Checks the number of egress paths, which hold memory: at most twice the
    /// number of ports, including paths that are closed but still held.
    fn check_paths(&mut self, place: usize, uid: u32) -> Result<(), Refusal> {
        let fabric = &self.fabric;
        self.retired.retain(|path| fabric.has_path(&path.name));
        let retired = self.retired.iter();
        let retired = retired.filter(|path| path.grant == Some(place));
        let open = self
            .ports
            .values()
            .filter(|port| port.grant == Some(place) && !matches!(port.sending, TxState::None));
        let users = retired.map(|path| path.who.uid);
        let users = users.chain(open.map(|port| port.owner.who.uid));
        let users: Vec<u32> = users.collect();
        let granted = self.policy.grants.get(place);
        let max = |ports: Option<u32>| ports.map_or(0, |ports| ports as usize).saturating_mul(2);
        let own_max = max(granted.map(|grant| grant.ports_max));
        if users.iter().filter(|of| **of == uid).count() >= own_max {
            return Err(Denied::Paths { max: own_max }.into());
        }
        let max = max(granted.map(|grant| grant.ports_total));
        if users.len() >= max {
            return Err(Denied::PathsTotal { max }.into());
        }
        Ok(())
    }

    /// Assigns finished paths to the requests that wait for them.
    pub(super) fn attach_ready_paths(&mut self, all: &mut Vec<Finished>) {
        for (number, made) in self.fabric.made_paths() {
            let Some(port) = self.ports.get_mut(&number) else {
                // The port was closed meanwhile; the path's descriptors are
                // closed here.
                if let Ok(made) = made {
                    self.fabric.retire_path(&made.name);
                }
                continue;
            };
            let owner = port.owner.clone();
            let begun = std::mem::replace(&mut port.sending, TxState::None);
            let result = made.map(|MadePath { name, end }| {
                let rules = match begun {
                    TxState::Pending(rules) => rules,
                    _ => String::new(),
                };
                port.sending = TxState::Egress(EgressRecord { name, rules });
                let sends = TxReady {
                    fds: vec!["xdp".to_owned(), "memory".to_owned()],
                    memory: end.memory_bytes as u64,
                    chunk: u32::try_from(end.chunk_bytes).unwrap_or(u32::MAX),
                };
                let fds: Vec<OwnedFd> = vec![end.socket, end.memory];
                (Response::TxReady(sends), fds)
            });
            // If recording fails, the next broker ends the path, and the
            // program requests another.
            let _ = self.note(number);
            all.push(Finished {
                port: number,
                owner,
                result,
            });
        }
    }

    /// Disables sending from a port.
    pub(super) fn stop_sending(&mut self, number: u32) {
        if let Some(mut port) = self.ports.remove(&number) {
            self.retire(number, &mut port);
            self.ports.insert(number, port);
        }
    }

    /// Disables sending from a port that is not in the list of open ports.
    pub(super) fn retire(&mut self, number: u32, port: &mut Port) {
        match std::mem::replace(&mut port.sending, TxState::None) {
            TxState::None => {}
            TxState::Pending(_) => self.fabric.cancel_path(number),
            TxState::Egress(EgressRecord { name, .. }) => {
                self.fabric.retire_path(&name);
                self.retired.push(RetiredPath {
                    grant: port.grant,
                    who: port.owner.who.clone(),
                    interface: port.asked.interface.clone(),
                    name,
                });
            }
        }
    }

    /// The rules of a grant on an interface, as a filter text.
    pub(super) fn rules_text(
        &self,
        place: usize,
        facts: &InterfaceInfo,
    ) -> Result<String, Refusal> {
        self.rules(place, facts).and_then(|rules| text(&rules))
    }

    /// Adopts an egress path of a former broker, if its rules match the present
    /// policy.
    pub(super) fn adopt_path(
        &mut self,
        grant: Option<usize>,
        facts: &InterfaceInfo,
        kept: Option<EgressRecord>,
    ) -> TxState {
        let (Some(place), Some(kept)) = (grant, kept) else {
            return TxState::None;
        };
        let rules = self.rules_text(place, facts);
        if rules.is_ok_and(|rules| rules == kept.rules) && self.fabric.adopt_path(&kept.name) {
            return TxState::Egress(kept);
        }
        TxState::None
    }

    /// Whether an interface is the device of an egress path.
    pub(super) fn is_path(&self, name: &str) -> bool {
        self.fabric.has_path(name)
    }

    /// The counters of a port's egress path.
    pub(super) fn sent(&self, port: &Port) -> EgressCounts {
        match &port.sending {
            TxState::Egress(path) => self.fabric.egress_counts(&path.name),
            _ => EgressCounts::default(),
        }
    }
}

fn text(rules: &EgressRules) -> Result<String, Refusal> {
    let text = rules.text();
    text.map_err(|error| Refusal::new(ErrorKind::Denied, format!("the policy's rules: {error}")))
}
