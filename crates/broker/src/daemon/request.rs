//! Handles requests.

use super::{Daemon, limits};
use crate::engine::Backend;
use crate::protocol::{
    ErrorKind, OpenPort, Refusal, Request, RequestKind, Response, ServerMessage,
};
use std::time::Instant;

/// A request to open a port that waits until the kernel has freed the memory of
/// the user's closed ports.
pub(super) struct Deferred {
    pub(super) connection: u64,
    request: u32,
    open: OpenPort,
    until: Instant,
}

impl<F: Backend> Daemon<F> {
    /// Carries out a request, or starts to.
    pub(super) fn request(&mut self, number: u64, request: Request) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.has_requested = true;
        let owner = client.owner.clone();
        let done = |result: Result<(), Refusal>| match result {
            Ok(()) => Response::Done,
            Err(refusal) => Response::Refused(refusal),
        };
        let answer = match request.kind {
            RequestKind::Open(asked) => {
                client.has_ports = true;
                match self.engine.open(owner, asked.clone()) {
                    Err(refusal) if refusal.passes && self.may_defer(number) => {
                        return self.defer(number, request.id, asked);
                    }
                    Err(refusal) => Response::Refused(refusal),
                    Ok(port) => return self.answer_later(number, port, request.id),
                }
            }
            RequestKind::Send { port } => match self.engine.send(&owner, port) {
                Err(refusal) => Response::Refused(refusal),
                Ok(()) => return self.answer_later(number, port, request.id),
            },
            RequestKind::PortInterface { port } => match self.engine.port_interface(&owner, port) {
                Ok(status) => Response::Interface(status),
                Err(refusal) => Response::Refused(refusal),
            },
            RequestKind::SetFilter { port, filter } => {
                done(self.engine.set_filter(&owner, port, filter))
            }
            RequestKind::Close { port } => done(self.engine.close(&owner, port)),
            RequestKind::Interface { name } => match self.engine.interface_status(&owner, &name) {
                Ok(status) => Response::Interface(status),
                Err(refusal) => Response::Refused(refusal),
            },
            RequestKind::Ports { after } => self.engine.page(&owner, after.unwrap_or(0)),
            RequestKind::Resume { port, secret } => {
                client.has_ports = true;
                done(self.engine.resume(&owner, port, &secret))
            }
            RequestKind::Stop if owner.who.is_superuser => {
                self.stops = true;
                Response::Done
            }
            RequestKind::Stop => {
                let message = "only the superuser may end the broker";
                Response::Refused(Refusal::new(ErrorKind::Denied, message))
            }
        };
        let to = request.id;
        self.say(number, &ServerMessage::Answer { to, answer }, Vec::new());
    }

    /// The answer is sent when the engine has finished the port.
    fn answer_later(&mut self, number: u64, port: u32, request: u32) {
        if let Some(client) = self.clients.get_mut(&number) {
            client.pending.insert(port, request);
        }
    }

    fn may_defer(&self, number: u64) -> bool {
        let Some(asker) = self.clients.get(&number) else {
            return false;
        };
        let (mut own, mut users, mut grants) = (0, 0, 0);
        for one in &self.deferred {
            let Some(client) = self.clients.get(&one.connection) else {
                continue;
            };
            own += usize::from(one.connection == number);
            users += usize::from(client.owner.who.uid == asker.owner.who.uid);
            grants += usize::from(client.grant == asker.grant);
        }
        self.deferred.len() < limits::DEFERRED_MAX
            && own < limits::CONNECTION_DEFERRED_MAX
            && users < limits::USER_DEFERRED_MAX
            && grants < limits::GRANT_DEFERRED_MAX
    }

    fn defer(&mut self, connection: u64, request: u32, asked: OpenPort) {
        self.deferred.push(Deferred {
            connection,
            request,
            open: asked,
            until: Instant::now() + limits::FREEING_MAX,
        });
    }

    /// Tries again to open the ports that wait for memory. Users with an
    /// overdrawn budget keep waiting.
    pub(super) fn retry_deferred(&mut self) {
        for one in std::mem::take(&mut self.deferred) {
            let Some(client) = self.clients.get(&one.connection) else {
                continue;
            };
            let began = Instant::now();
            if began < one.until && self.is_overdrawn(client, began) {
                self.deferred.push(one);
                continue;
            }
            let (owner, grant) = (client.owner.clone(), client.grant);
            let uid = owner.who.uid;
            match self.engine.open(owner, one.open.clone()) {
                Ok(port) => self.answer_later(one.connection, port, one.request),
                Err(refusal) if refusal.passes && began < one.until => self.deferred.push(one),
                Err(refusal) => {
                    let answer = Response::Refused(refusal);
                    let to = one.request;
                    self.say(
                        one.connection,
                        &ServerMessage::Answer { to, answer },
                        Vec::new(),
                    );
                }
            }
            self.spend(uid, grant, began.elapsed());
        }
    }
}
