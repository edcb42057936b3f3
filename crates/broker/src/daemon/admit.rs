//! Connections: admission and end.
//!
//! Every user of the machine can connect, so the cost is bounded: a user
//! without a grant is rejected at once, and new connections take at most a
//! twentieth of a processor's time. Beyond that, connections wait in the
//! listener's queue. The daemon counts processor time instead of elapsed time:
//! on a machine with other load, the queue would otherwise get longer for every
//! user. The superuser has a separate socket, queue and budget, which are
//! served first.

use super::client::Client;
use super::{Daemon, LISTENER, SUPERUSER_LISTENER, data, limits};
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
                Some(Ok(Some(channel))) => self.admit(channel),
                // No free descriptors: connections are not accepted for a
                // moment.
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

    fn admit(&mut self, channel: Channel) {
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
            .insert(number, Client::new(channel, owner, grant));
        // A new connection of an overdrawn user is not read yet.
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
        let is_superuser = client.owner.who.is_superuser;
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
            let listener = if is_superuser {
                SUPERUSER_LISTENER
            } else {
                LISTENER
            };
            self.accept_budget
                .spend(listener, spent() - spent_before, now);
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
