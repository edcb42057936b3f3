//! The client's connection to the broker.

use super::PortError;
use crate::protocol::{
    Channel, ErrorKind, Event, InterfaceStatus, PortStatus, Refusal, Request, RequestKind,
    Response, ServerMessage, decode, encode,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time to spin before sleeping: most answers arrive sooner than a sleeping
/// thread would wake up. While it spins, the thread yields to others.
const SPIN_BEFORE_SLEEP: Duration = Duration::from_micros(100);

/// A connection to the broker; one request at a time.
#[derive(Debug)]
pub struct Connection {
    path: PathBuf,
    channel: Channel,
    last_id: u32,
    events: VecDeque<(u32, Event)>,
}

impl Connection {
    /// Connects to the broker that listens at `path`.
    ///
    /// # Errors
    /// If no broker listens there.
    pub fn to(path: &Path) -> Result<Connection, PortError> {
        let channel = Channel::connect(path).map_err(|source| PortError::NoBroker {
            path: path.to_owned(),
            source,
        })?;
        Ok(Connection {
            path: path.to_owned(),
            channel,
            last_id: 0,
            events: VecDeque::new(),
        })
    }

    /// Reconnects to the broker that listens there now.
    pub(super) fn reconnected(&mut self) -> Result<(), PortError> {
        let events = std::mem::take(&mut self.events);
        *self = Connection {
            events,
            ..Connection::to(&self.path)?
        };
        Ok(())
    }

    /// The error for a broker that ended without an answer.
    pub(super) fn no_broker(&self, reason: String) -> PortError {
        PortError::NoBroker {
            path: self.path.clone(),
            source: io::Error::other(reason),
        }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// If the request is refused, or the broker is gone.
    pub fn request(&mut self, ask: RequestKind) -> Result<(Response, Vec<OwnedFd>), PortError> {
        self.last_id = self.last_id.wrapping_add(1);
        let id = self.last_id;
        let bytes = encode(&Request { id, kind: ask })?;
        if let Err(error) = self.channel.send(&bytes, &[], true) {
            return Err(self.why_ended(broker_gone(error)));
        }
        let asked = Instant::now();
        loop {
            let sleeps = asked.elapsed() > SPIN_BEFORE_SLEEP;
            let Some((said, fds)) = self.receive(sleeps)? else {
                std::thread::yield_now();
                continue;
            };
            match said {
                ServerMessage::Answer { to, answer } if to == id => {
                    return match answer {
                        Response::Refused(refusal) => Err(refusal.into()),
                        answer => Ok((answer, fds)),
                    };
                }
                ServerMessage::Answer { to, .. } => {
                    let message = format!("an answer to request {to}, of {id}");
                    return Err(PortError::Protocol(message));
                }
                ServerMessage::Event { port, event } => self.events.push_back((port, event)),
                ServerMessage::Shutdown { reason, kind } => return Err(ended(reason, kind)),
            }
        }
    }

    /// The reason that the broker sent before it closed the connection; `error`
    /// if it sent none.
    fn why_ended(&mut self, error: PortError) -> PortError {
        while let Ok(Some((said, _))) = self.receive(false) {
            if let ServerMessage::Shutdown { reason, kind } = said {
                return ended(reason, kind);
            }
        }
        error
    }

    /// The events of a port since the last call; does not wait.
    ///
    /// # Errors
    /// If the broker is gone.
    pub fn events(&mut self, port: u32) -> Result<Vec<Event>, PortError> {
        while let Some((said, _)) = self.receive(false)? {
            match said {
                ServerMessage::Event { port, event } => self.events.push_back((port, event)),
                ServerMessage::Shutdown { reason, kind } => return Err(ended(reason, kind)),
                ServerMessage::Answer { .. } => {}
            }
        }
        let (own, others) = self.events.drain(..).partition(|(of, _)| *of == port);
        self.events = others;
        let own: VecDeque<(u32, Event)> = own;
        Ok(own.into_iter().map(|(_, event)| event).collect())
    }

    /// The open ports: those of the caller's user, or all for the superuser.
    ///
    /// # Errors
    /// If the broker is gone.
    pub fn ports(&mut self) -> Result<Vec<PortStatus>, PortError> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let (Response::Ports { mut ports, more }, _) =
                self.request(RequestKind::Ports { after })?
            else {
                return Err(unexpected_reply());
            };
            after = ports.last().map(|last| last.port);
            all.append(&mut ports);
            if !more || after.is_none() {
                return Ok(all);
            }
        }
    }

    /// The inode of the network namespace that the broker serves; `None` if
    /// this process may not read it.
    pub fn namespace(&self) -> Option<u64> {
        let peer = self.channel.peer().ok()?;
        let path = format!("/proc/{}/ns/net", peer.pid);
        Some(std::fs::metadata(path).ok()?.ino())
    }

    /// The properties of an interface.
    ///
    /// # Errors
    /// If the interface does not exist, or the policy grants nothing on it.
    pub fn interface(&mut self, name: &str) -> Result<InterfaceStatus, PortError> {
        let name = name.to_owned();
        match self.request(RequestKind::Interface { name })? {
            (Response::Interface(status), _) => Ok(status),
            _ => Err(unexpected_reply()),
        }
    }

    fn receive(&mut self, wait: bool) -> Result<Option<(ServerMessage, Vec<OwnedFd>)>, PortError> {
        let received = match self.channel.receive(wait) {
            // The broker closed the connection before it read a request. The kernel
            // reports that once, ahead of the messages that came before the end.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                self.channel.receive(false)
            }
            received => received,
        };
        let Some(message) = received.map_err(broker_gone)? else {
            return Ok(None);
        };
        let said = decode(&message.bytes);
        let said = said.map_err(|error| PortError::Protocol(error.to_string()))?;
        Ok(Some((said, message.fds)))
    }
}

/// The error for a connection that was ended, or refused at the start.
fn ended(reason: String, kind: Option<ErrorKind>) -> PortError {
    match kind {
        Some(kind) => Refusal::new(kind, reason).into(),
        None => PortError::Ended { reason },
    }
}

/// The error for an answer of the wrong kind.
pub(super) fn unexpected_reply() -> PortError {
    PortError::Protocol("an answer to another question".to_owned())
}

fn broker_gone(source: io::Error) -> PortError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => PortError::Ended {
            reason: "it is gone".to_owned(),
        },
        _ => PortError::System {
            what: "speak to the broker",
            source,
        },
    }
}
