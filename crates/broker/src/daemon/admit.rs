//! Connections: admission and end.
//!
//! Every user of the machine can connect, so admission is bounded: a user that has
//! no grant is turned away at once, and new connections take at most a twentieth
//! of a processor's time. Above that, connections wait in the listener's queue.
//! Processor time is what counts, not the clock's: on a machine with other work
//! the queue would get longer for every user. Processes of user 0, with the
//! superuser's capabilities or without, have a socket, a queue and a budget apart,
//! which are served first.

use super::client::Client;
use super::{Daemon, SUPERUSER_LISTENER, data, limits};
use crate::engine::{Backend, Owner};
use crate::policy::PeerCred;
use crate::protocol::{Channel, ErrorKind, Listener, ServerMessage, encode};
use rustix::event::epoll::{self, EventFlags};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Largest number of connections accepted before other work is done.
const ACCEPTS_MAX: usize = 64;

impl<F: Backend> Daemon<F> {
    /// Accepts waiting connections.
    pub(super) fn accept(&mut self, number: u64) {
        let began = spent();
        let mut is_out_of_descriptors = false;
        for _ in 0..ACCEPTS_MAX {
            match self.listener(number).map(Listener::accept) {
                None | Some(Ok(None)) => break,
                Some(Ok(Some(channel))) => self.admit(channel, number),
                // No descriptors are left: none is accepted for a moment.
                Some(Err(_)) => {
                    is_out_of_descriptors = true;
                    break;
                }
            }
        }
        let now = Instant::now();
        self.accept_budget.spend(number, spent() - began, now);
        if is_out_of_descriptors || self.accept_budget.is_overdrawn(&number, now) {
            self.accept_paused.insert(number);
            if let Some(listener) = self.listener(number) {
                let _ = epoll::delete(&self.epoll, listener);
            }
        }
    }

    fn listener(&self, number: u64) -> Option<&Listener> {
        match number {
            SUPERUSER_LISTENER => self.superuser_listener.as_ref(),
            _ => Some(&self.listener),
        }
    }

    /// Accepts connections again, on listeners whose pause is over.
    pub(super) fn listen_again(&mut self, now: Instant) {
        for number in self.accept_paused.clone() {
            if self.accept_budget.is_overdrawn(&number, now) {
                continue;
            }
            let added = self
                .listener(number)
                .map(|listener| epoll::add(&self.epoll, listener, data(number), EventFlags::IN));
            if !matches!(added, Some(Err(_))) {
                self.accept_paused.remove(&number);
            }
        }
    }

    /// Lets in a connection that came by the listener of that number, or turns it away.
    fn admit(&mut self, channel: Channel, listener: u64) {
        let Ok(peer) = channel.peer() else {
            return self.close(u32::MAX, channel);
        };
        let who = PeerCred {
            uid: peer.uid,
            gids: if peer.is_superuser {
                [].into()
            } else {
                peer.gids.into()
            },
            pid: peer.pid,
            is_superuser: peer.is_superuser,
        };
        let uid = who.uid;
        let grant = match self.let_in(&who) {
            Ok(grant) => grant,
            Err((kind, reason)) => {
                let kind = Some(kind);
                if let Ok(bytes) = encode(&ServerMessage::Shutdown { reason, kind }) {
                    let _ = channel.send(&bytes, &[], false);
                }
                return self.close(uid, channel);
            }
        };
        let number = self.next_client;
        if epoll::add(&self.epoll, &channel, data(number), EventFlags::IN).is_err() {
            return self.close(uid, channel);
        }
        self.next_client += 1;
        let owner = Owner {
            connection: number,
            who,
        };
        self.connections.enter(uid, grant);
        self.clients
            .insert(number, Client::new(channel, owner, listener, grant));
        // The requests of a user over its budget are not read yet.
        self.watch(number);
    }

    /// The grant that admits a user; `None` for the superuser.
    fn let_in(&self, who: &PeerCred) -> Result<Option<usize>, (ErrorKind, String)> {
        let (groups, max) = (who.gids.len(), limits::GROUPS_MAX);
        if groups > max {
            let reason = format!("the process is in {groups} groups; at most {max} are possible");
            return Err((ErrorKind::Limit, reason));
        }
        let grant = if who.is_superuser {
            None
        } else {
            Some(self.engine.policy().grant_position(who).ok_or_else(|| {
                let uid = who.uid;
                let reason = format!(
                    "the policy grants user {uid} nothing; ask who administers this machine"
                );
                (ErrorKind::Denied, reason)
            })?)
        };
        let closing = self.closer.len_of(who.uid);
        let room = self.connections.check(who.uid, grant, closing);
        room.map(|()| grant)
            .map_err(|reason| (ErrorKind::Limit, reason))
    }

    /// Ends a connection, with a reason.
    pub(super) fn dismiss(&mut self, number: u64, reason: String, kind: Option<ErrorKind>) {
        self.say(
            number,
            &ServerMessage::Shutdown { reason, kind },
            Vec::new(),
        );
        self.forget(number);
    }

    /// Cleans up after a connection has ended: its ports are closed.
    pub(super) fn forget(&mut self, number: u64) {
        let Some(client) = self.clients.remove(&number) else {
            return;
        };
        let (began, spent_before) = (Instant::now(), spent());
        let (uid, grant) = (client.owner.who.uid, client.grant);
        self.connections.leave(uid, grant);
        self.deferred.retain(|one| one.connection != number);
        if client.has_ports {
            self.engine.close_all(number);
        }
        self.close(uid, client.channel);
        let now = Instant::now();
        if client.has_requested {
            self.spend(uid, grant, now - began)
        } else {
            self.accept_budget
                .spend(client.listener, spent() - spent_before, now);
        }
    }

    /// Closes a connection, with the descriptors that may be in its queue.
    fn close(&mut self, uid: u32, channel: Channel) {
        if self.listener.refuses_descriptors() {
            return;
        }
        if let Err(channel) = channel.close() {
            // Closing may take long.
            let _ = epoll::delete(&self.epoll, &channel);
            self.closer.close(uid, channel);
            self.access.update(&self.listener, &self.closer);
        }
    }
}

/// Processor time of this thread.
fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::LISTENER;
    use super::super::budget::Budget;
    use super::*;
    use crate::engine::mem::MemBackend;
    use crate::policy::{Accounts, Policy};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect};
    use std::path::PathBuf;

    fn path(name: &str) -> PathBuf {
        let name = format!("weir-{name}-{}.sock", std::process::id());
        std::env::temp_dir().join(name)
    }

    fn daemon(path: &std::path::Path) -> Daemon<MemBackend> {
        let listener = Listener::bind(path).unwrap();
        let (policy, accounts) = (Policy::default(), Accounts::default());
        Daemon::new(listener, MemBackend::new(), policy, accounts).unwrap()
    }

    /// Also the superuser may come by the socket of all users.
    #[test]
    fn a_connection_is_charged_to_the_listener_that_it_came_by() {
        if !weir_lab::testenv::root() {
            return;
        }
        let path = path("charged");
        let mut daemon = daemon(&path);
        let flags = SocketFlags::CLOEXEC;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        daemon.accept(LISTENER);
        let (number, client) = daemon.clients.first_key_value().expect("it is let in");
        assert!(client.owner.who.is_superuser);
        let number = *number;
        daemon.accept_budget = Budget::new(Duration::ZERO, 20);
        daemon.forget(number);
        let now = Instant::now();
        let charged = [LISTENER, SUPERUSER_LISTENER]
            .map(|listener| daemon.accept_budget.remaining(&listener, now) > Duration::ZERO);
        assert_eq!(charged, [true, false]);
    }

    #[test]
    fn a_socket_for_user_0_that_cannot_be_is_reported() {
        let path = path("refused");
        let mut other = path.clone().into_os_string();
        other.push(".root");
        std::fs::create_dir(&other).unwrap();
        let refused = daemon(&path);
        std::fs::remove_dir(&other).unwrap();
        assert!(refused.superuser_socket_error().is_some());
        drop(refused);
        assert!(daemon(&path).superuser_socket_error().is_none());
    }
}
