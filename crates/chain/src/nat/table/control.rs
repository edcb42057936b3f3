//! Control connections of FTP, and the mappings that their texts make.

use super::{Mapping, Table};
use crate::flow::Direction;
use crate::nat::config::Transport;
use crate::nat::ftp::{self, CONTROL_PORT, Control, Role};
use crate::nat::inside::Inside;
use std::net::Ipv4Addr;

impl<A: Inside> Table<A> {
    /// Forgets a control connection of FTP.
    pub(super) fn end_control(&mut self, now: u64, at: u32, subscriber: u32) {
        let reserved = self.controls.remove(&at).and_then(|it| it.reserved());
        if let Some(outside) = reserved {
            self.give_back(now, subscriber, Transport::Tcp, outside);
        }
    }
}

impl Table<Ipv4Addr> {
    /// The control connection of a session; `None` if its begin was not seen.
    pub(in crate::nat) fn control(&mut self, at: u32) -> Option<&mut Control> {
        self.controls.get_mut(&at)
    }

    /// A SYN of the inside begins a control connection.
    pub(in crate::nat) fn begin_control(&mut self, now: u64, at: u32, iss: u32) {
        if self.controls.get(&at).is_some_and(|it| it.is_begun_by(iss)) {
            return;
        }
        let Some(session) = self.sessions.get(at) else {
            return;
        };
        let Some(mapping) = self.mappings.get(session.mapping) else {
            return;
        };
        let role = match mapping.inside.1 {
            CONTROL_PORT => Role::Server,
            _ => Role::Client,
        };
        let subscriber = mapping.subscriber;
        self.end_control(now, at, subscriber);
        self.controls.insert(at, Control::new(role, iss));
    }

    /// A segment of the inside on a control connection; `None` if it must not pass.
    pub(in crate::nat) fn control_outward(
        &mut self,
        now: u64,
        at: u32,
        sequence: u32,
        payload: &[u8],
    ) -> Option<ftp::Rewritten> {
        let mut control = self.controls.remove(&at)?;
        let mut ports = ControlPorts {
            table: self,
            now,
            at,
        };
        let rewritten = control.outward(sequence, payload, &mut ports);
        self.controls.insert(at, control);
        rewritten
    }

    /// A port of the pool for a text, of the subscriber of a control connection.
    fn reserve(&mut self, now: u64, at: u32) -> Option<(Ipv4Addr, u16)> {
        let mapping = self.mappings.get(self.sessions.get(at)?.mapping)?;
        let subscriber = mapping.subscriber;
        self.port_for(now, subscriber, Transport::Tcp, 0).ok()
    }

    /// The port leads to what a text said, if that is the host's own; for as long as a connection
    /// takes to begin, and for one of the peer.
    fn expect(&mut self, now: u64, at: u32, said: (Ipv4Addr, u16), outside: (Ipv4Addr, u16)) {
        let Some(session) = self.sessions.get(at) else {
            return;
        };
        let Some(control) = self.mappings.get(session.mapping) else {
            return;
        };
        let (host, subscriber, peer) = (control.inside.0, control.subscriber, session.remote.0);
        if !said.0.is_unspecified() && said.0 != host {
            self.texts[1] += 1;
            self.give_back(now, subscriber, Transport::Tcp, outside);
            return;
        }
        let mapping = self.enter_mapping(Mapping {
            transport: Transport::Tcp,
            inside: (host, said.1),
            outside,
            subscriber,
            sessions: 0,
            is_static: false,
            expected: Some(peer),
        });
        // A session without packets keeps it meanwhile.
        let kept = self.begin(now, mapping, (peer, 0), Direction::Outward);
        self.texts[usize::from(kept.is_err())] += 1;
    }
}

/// Ports for the texts of a control connection.
struct ControlPorts<'a> {
    table: &'a mut Table<Ipv4Addr>,
    now: u64,
    at: u32,
}

impl ftp::Ports for ControlPorts<'_> {
    fn reserve(&mut self) -> Option<ftp::End> {
        let reserved = self.table.reserve(self.now, self.at);
        self.table.texts[1] += u64::from(reserved.is_none());
        reserved
    }

    fn bind(&mut self, inside: ftp::End, outside: ftp::End) {
        self.table.expect(self.now, self.at, inside, outside);
    }
}
