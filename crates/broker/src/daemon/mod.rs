//! The daemon: one thread that listens, and answers each connection in turn.
//!
//! Nobody is waited for: sockets do not block, one request of a connection is
//! answered before the next connection's, answers that are not read are
//! bounded, and who makes the daemon work too much is heard later. What a
//! connection sends that makes no sense ends it, with a reason.

mod budget;
mod client;

use crate::engine::{Adopted, Engine, Fabric, Finished, Owner};
use crate::keep::Keep;
use crate::policy::{Accounts, Policy, Who};
use crate::protocol::{
    Answer, Ask, Channel, ErrorKind, Listener, MESSAGE_LEN_MAX, Refusal, Request, Said, decode,
    encode,
};
use budget::Budget;
use client::Client;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Upper bounds on connections.
pub mod limits {
    use std::time::Duration;

    /// All connections.
    pub const CONNECTIONS_MAX: usize = 1 << 12;
    /// Connections of one user; the superuser has eight times as many.
    pub const USER_CONNECTIONS_MAX: usize = 64;
    /// Bytes of answers that a connection may leave unread.
    pub const UNREAD_MAX: usize = 256 << 10;
    /// How long a new connection may stay silent.
    pub const SILENCE_MAX: Duration = Duration::from_secs(5);
}

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const NEWS: u64 = 2;
const CHANGES: u64 = 3;
/// Connections are numbered from here.
const FIRST_CLIENT: u64 = 16;

/// How often time limits are looked at, while there is anyone they concern.
const TICK: Duration = Duration::from_millis(50);

/// Events of one look.
const EVENTS_MAX: usize = 256;

/// The daemon.
pub struct Daemon<F: Fabric> {
    engine: Engine<F>,
    listener: Listener,
    accounts: Accounts,
    epoll: OwnedFd,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    budget: Budget,
    /// When it was last looked who has ports of an earlier broker.
    swept: Instant,
    /// When time limits were looked at last.
    looked: Instant,
    is_deaf: bool,
    /// Asked to end, ports and all.
    stops: bool,
    /// Told to end, and leave the ports to the next broker.
    leaves: bool,
}

impl<F: Fabric> Daemon<F> {
    /// A daemon that listens, over a fabric's interfaces.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn new(
        listener: Listener,
        fabric: F,
        policy: Policy,
        accounts: Accounts,
    ) -> io::Result<Daemon<F>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64;
        epoll::add(&epoll, &listener, data(LISTENER), EventFlags::IN)?;
        for (fd, number) in [(fabric.news(), NEWS), (fabric.changes(), CHANGES)] {
            if let Some(fd) = fd {
                epoll::add(&epoll, fd, data(number), EventFlags::IN)?;
            }
        }
        Ok(Daemon {
            engine: Engine::new(fabric, policy),
            listener,
            accounts,
            epoll,
            clients: BTreeMap::new(),
            next_client: FIRST_CLIENT,
            budget: Budget::default(),
            swept: Instant::now(),
            looked: Instant::now(),
            is_deaf: false,
            stops: false,
            leaves: false,
        })
    }

    /// Keeps in a folder what outlives this process, and takes over what an
    /// earlier broker has left there. Without, everything goes with this.
    ///
    /// # Errors
    /// If the kernel refuses to remove what is left.
    pub fn keep(&mut self, keep: Keep) -> Result<Adopted, Refusal> {
        self.engine.keep(keep)
    }

    /// Serves until `stop` is readable, or the superuser asks it to end. In
    /// the first case the ports go on, where there is a folder to
    /// [`keep`](Self::keep) them in.
    ///
    /// # Errors
    /// If waiting fails, which it has no reason to.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        epoll::add(&self.epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        while !self.stops && !self.leaves {
            self.turn()?;
        }
        if self.stops {
            self.engine.close_every();
        } else {
            self.engine.hand_over();
        }
        let reason = "the broker ends".to_owned();
        for number in self.numbers() {
            self.say(
                number,
                &Said::Goodbye {
                    reason: reason.clone(),
                },
                Vec::new(),
            );
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let orphans = self.engine.has_orphans();
        let waits = self.is_deaf || orphans || self.clients.values().any(Client::has_deadline);
        let tick = Timespec::try_from(TICK).unwrap_or_default();
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, spare, waits.then_some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let flags = event.flags;
            match event.data.u64() {
                LISTENER => self.accept(),
                STOP => self.leaves = true,
                // What it is about is looked at below.
                NEWS => self.engine.fabric().saw_news(),
                CHANGES => {
                    self.engine.fabric().saw_changes();
                    for (connection, port, event) in self.engine.look() {
                        self.say(connection, &Said::Event { port, event }, Vec::new());
                    }
                }
                number => self.serve(number, flags),
            }
        }
        self.answer_finished();
        if waits && self.looked.elapsed() >= TICK {
            self.looked = Instant::now();
            self.keep_time();
        }
        if orphans && self.swept.elapsed() > TICK {
            self.swept = Instant::now();
            self.engine.sweep_orphans();
        }
        Ok(())
    }

    fn numbers(&self) -> Vec<u64> {
        self.clients.keys().copied().collect()
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(None) => {}
            Ok(Some(channel)) => self.admit(channel),
            // No descriptors are left: nobody is accepted for a moment.
            Err(_) => {
                self.is_deaf = true;
                let _ = epoll::delete(&self.epoll, &self.listener);
            }
        }
    }

    fn admit(&mut self, channel: Channel) {
        let Ok(peer) = channel.peer() else { return };
        let of_user = self
            .clients
            .values()
            .filter(|one| one.owner.who.uid == peer.uid);
        let user_max = match peer.uid {
            0 => limits::USER_CONNECTIONS_MAX * 8,
            _ => limits::USER_CONNECTIONS_MAX,
        };
        let refused = if self.clients.len() >= limits::CONNECTIONS_MAX {
            Some("the broker has as many connections as it can have".to_owned())
        } else if of_user.count() >= user_max {
            Some(format!(
                "user {} has {user_max} connections, the most there may be",
                peer.uid
            ))
        } else {
            None
        };
        if let Some(reason) = refused {
            if let Ok(bytes) = encode(&Said::Goodbye { reason }) {
                let _ = channel.send(&bytes, &[], false);
            }
            return;
        }
        let mut gids = self.accounts.gids(peer.uid);
        gids.push(peer.gid);
        let number = self.next_client;
        self.next_client += 1;
        let data = EventData::new_u64(number);
        if epoll::add(&self.epoll, &channel, data, EventFlags::IN).is_err() {
            return;
        }
        let (uid, pid) = (peer.uid, peer.pid);
        let owner = Owner {
            connection: number,
            who: Who { uid, gids, pid },
        };
        self.clients.insert(number, Client::new(channel, owner));
    }

    /// Reads and answers one request of a connection.
    fn serve(&mut self, number: u64, flags: EventFlags) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        if flags.contains(EventFlags::OUT) && client.flush().is_err() {
            return self.forget(number);
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            return self.forget(number);
        }
        if flags.contains(EventFlags::IN) && !client.is_paused {
            let began = Instant::now();
            let uid = client.owner.who.uid;
            match client.channel.receive(false) {
                Ok(None) => {}
                Err(_) => return self.forget(number),
                Ok(Some(message)) if message.is_cut => {
                    let reason = format!(
                        "a message longer than {MESSAGE_LEN_MAX} bytes, or with too many descriptors"
                    );
                    return self.dismiss(number, reason);
                }
                Ok(Some(message)) => match decode::<Request>(&message.bytes) {
                    Ok(request) => self.request(number, request, message.fds),
                    Err(error) => return self.dismiss(number, error.to_string()),
                },
            }
            if uid != 0 {
                self.budget.spend(uid, began.elapsed(), Instant::now());
            }
        }
        self.watch(number);
    }

    fn request(&mut self, number: u64, request: Request, fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.has_asked = true;
        let owner = client.owner.clone();
        let done = |result: Result<(), Refusal>| match result {
            Ok(()) => Answer::Done,
            Err(refusal) => Answer::Refused(refusal),
        };
        let answer = match request.ask {
            Ask::Open(asked) => match self.engine.open(owner, asked) {
                Err(refusal) => Answer::Refused(refusal),
                Ok(port) => return self.answer_later(number, port, request.id),
            },
            Ask::Send { port } => match self.engine.send(&owner, port) {
                Err(refusal) => Answer::Refused(refusal),
                Ok(()) => return self.answer_later(number, port, request.id),
            },
            Ask::PortInterface { port } => match self.engine.port_interface(&owner, port) {
                Ok(status) => Answer::Interface(status),
                Err(refusal) => Answer::Refused(refusal),
            },
            Ask::SetFilter { port, filter } => done(self.engine.set_filter(&owner, port, filter)),
            Ask::Close { port } => done(self.engine.close(&owner, port)),
            Ask::Interface { name } => match self.engine.interface_status(&owner, &name) {
                Ok(status) => Answer::Interface(status),
                Err(refusal) => Answer::Refused(refusal),
            },
            Ask::Ports { after } => self.engine.page(&owner, after.unwrap_or(0)),
            Ask::Resume { port } => done(match fds.first() {
                Some(held) => self.engine.resume(&owner, port, held.as_fd()),
                None => {
                    let message = "what holds the port must come with the request";
                    Err(Refusal::new(ErrorKind::Request, message))
                }
            }),
            Ask::Stop if owner.who.is_root() => {
                self.stops = true;
                Answer::Done
            }
            Ask::Stop => {
                let message = "only the superuser may end the broker";
                Answer::Refused(Refusal::new(ErrorKind::Denied, message))
            }
        };
        let to = request.id;
        self.say(number, &Said::Answer { to, answer }, Vec::new());
    }

    /// The answer comes when the engine is through with the port.
    fn answer_later(&mut self, number: u64, port: u32, request: u32) {
        if let Some(client) = self.clients.get_mut(&number) {
            client.waiting.insert(port, request);
        }
    }

    /// Answers requests that have come to their end.
    fn answer_finished(&mut self) {
        for Finished {
            port,
            owner,
            result,
        } in self.engine.finished()
        {
            let number = owner.connection;
            let asked = self
                .clients
                .get_mut(&number)
                .and_then(|one| one.waiting.remove(&port));
            let Some(to) = asked else { continue };
            let (answer, fds) = match result {
                Ok(done) => done,
                Err(refusal) => (Answer::Refused(refusal), Vec::new()),
            };
            self.say(number, &Said::Answer { to, answer }, fds);
        }
    }

    /// Sends, or puts in the queue; who does not read at all is dropped.
    fn say(&mut self, number: u64, said: &Said, fds: Vec<OwnedFd>) {
        let Ok(bytes) = encode(said) else { return };
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.unsent.push_back((bytes, fds));
        let failed = client.flush().is_err();
        if failed || client.unread() > limits::UNREAD_MAX {
            return self.forget(number);
        }
        self.watch(number);
    }

    /// Waits for what the connection needs next.
    fn watch(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.is_paused = self
            .budget
            .is_overdrawn(client.owner.who.uid, Instant::now());
        let mut flags = EventFlags::empty();
        // Who has answers to read is not asked for more.
        if !client.is_paused && client.unsent.is_empty() {
            flags |= EventFlags::IN;
        }
        if !client.unsent.is_empty() {
            flags |= EventFlags::OUT;
        }
        if flags != client.watched {
            client.watched = flags;
            let data = EventData::new_u64(number);
            let _ = epoll::modify(&self.epoll, &client.channel, data, flags);
        }
    }

    /// Ends a connection, with a reason.
    fn dismiss(&mut self, number: u64, reason: String) {
        self.say(number, &Said::Goodbye { reason }, Vec::new());
        self.forget(number);
    }

    fn forget(&mut self, number: u64) {
        if self.clients.remove(&number).is_some() {
            self.engine.close_all(number);
        }
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        if self.is_deaf {
            let data = EventData::new_u64(LISTENER);
            let added = epoll::add(&self.epoll, &self.listener, data, EventFlags::IN);
            self.is_deaf = added.is_err();
        }
        let silent = |(number, one): (&u64, &Client)| one.is_silent(now).then_some(*number);
        let silent: Vec<u64> = self.clients.iter().filter_map(silent).collect();
        for number in silent {
            let limit = limits::SILENCE_MAX.as_secs();
            self.dismiss(number, format!("nothing was asked within {limit} seconds"));
        }
        let paused = |(number, one): (&u64, &Client)| one.is_paused.then_some(*number);
        let paused: Vec<u64> = self.clients.iter().filter_map(paused).collect();
        for number in paused {
            self.watch(number);
        }
    }
}

impl<F: Fabric> AsFd for Daemon<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
