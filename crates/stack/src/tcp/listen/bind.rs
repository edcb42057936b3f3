//! Bound listeners: one for each address and port, or several that agree (`SO_REUSEPORT`); of one
//! IP version, or of both (RFC 3493 §5.3).

use super::handshake::Listener;
use crate::links::{Interfaces, strip_zone};
use crate::pcb::{InsertError, PcbId};
use crate::ports;
use crate::slab::Handle;
use crate::tcp::{Listen, ListenerId, Tcp, TcpError, TcpOptions};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Groups of listeners that share an address and port, by the handle that the table of listeners
/// has; that one is a member, too.
pub(in crate::tcp) type ReuseportGroups = BTreeMap<u32, Vec<Handle>>;

impl Tcp {
    pub(crate) fn listen(
        &mut self,
        hosts: &Interfaces,
        local: SocketAddr,
        listen: Listen,
    ) -> Result<ListenerId, TcpError> {
        if !local.ip().is_unspecified() && !hosts.is_ours(local.ip()) {
            return Err(TcpError::AddrNotAvailable(local));
        }
        let mut local = strip_zone(local);
        let both = listen.both_versions && local.ip() == Ipv6Addr::UNSPECIFIED;
        if local.port() == 0 {
            let listening = &mut self.listening;
            let port = ports::free(&mut self.rng, |port| {
                let any4 = IpAddr::from(Ipv4Addr::UNSPECIFIED);
                listening.find(local.ip(), port).is_none()
                    && !(both && listening.find(any4, port).is_some())
            });
            local.set_port(port.ok_or(TcpError::Full)?);
        }
        let name = self.listeners.insert(Listener {
            local,
            both,
            reuse_port: listen.reuse_port,
            options: TcpOptions::default(),
            backlog: listen.backlog.max(1),
            half_open: 0,
            fast_open: None,
            tfo_pending: 0,
            accept_queue: VecDeque::new(),
            cookie_ns: None,
            in_notify_queue: false,
        });
        let taken = match self.bind_listener(name) {
            Ok(()) => return Ok(ListenerId(name)),
            Err(InsertError::Exists(first)) if self.join_reuseport(first, name) => {
                return Ok(ListenerId(name));
            }
            Err(InsertError::Exists(_)) => TcpError::AddrInUse(local),
            Err(InsertError::Full | InsertError::Name(_)) => TcpError::Full,
        };
        self.listeners.remove(name);
        Err(taken)
    }

    /// Enters a listener in the table.
    fn bind_listener(&mut self, name: Handle) -> Result<(), InsertError> {
        let Some(listener) = self.listeners.get(name) else {
            return Ok(());
        };
        let (ip, port) = (listener.local.ip(), listener.local.port());
        if listener.both {
            self.listening.insert_dual(port, PcbId(name.index))
        } else {
            self.listening.insert(ip, port, PcbId(name.index))
        }
    }

    /// Adds a listener to the group of `first`, if both allow sharing.
    fn join_reuseport(&mut self, first: PcbId, name: Handle) -> bool {
        let at = |name: Handle| {
            let listener = self.listeners.get(name).filter(|one| one.reuse_port);
            listener.map(|one| (one.local, one.both))
        };
        let Some(other) = self.listeners.at(first.0) else {
            return false;
        };
        let agree = at(other).is_some() && at(other) == at(name);
        if agree {
            let mates = self.reuseport.entry(first.0);
            mates.or_insert_with(|| vec![other]).push(name);
        }
        agree
    }

    /// The listener for a connection from `remote`. A group's member is chosen by a keyed hash,
    /// which peers cannot compute, so that it is always the same for one peer.
    pub(in crate::tcp) fn lookup_listener(
        &mut self,
        local: &SocketAddr,
        remote: &SocketAddr,
    ) -> Option<Handle> {
        let first = self.listening.find(local.ip(), local.port())?;
        match self.reuseport.get(&first.0) {
            None => self.listeners.at(first.0),
            Some(mates) => {
                let hash = self.secret.reuseport_hash(*local, *remote);
                mates.get(hash as usize % mates.len()).copied()
            }
        }
    }

    /// Removes a listener; another of its group takes its entry.
    pub(in crate::tcp) fn unbind_listener(&mut self, name: Handle, local: SocketAddr) {
        let shared = self
            .reuseport
            .iter()
            .find(|(_, mates)| mates.contains(&name));
        let Some((&first, _)) = shared else {
            self.listening.remove(local.ip(), local.port());
            return;
        };
        let Some(mut mates) = self.reuseport.remove(&first) else {
            return;
        };
        mates.retain(|mate| *mate != name);
        let next = mates[0];
        if first == name.index {
            self.listening.remove(local.ip(), local.port());
            let entered = self.bind_listener(next);
            debug_assert!(entered.is_ok(), "its place was just given up");
        }
        if mates.len() > 1 {
            let first = if first == name.index {
                next.index
            } else {
                first
            };
            self.reuseport.insert(first, mates);
        }
    }
}
