//! The daemon: one thread that accepts connections, and answers each connection
//! in turn.
//!
//! The thread never waits for a client. Sockets do not block. Descriptors whose
//! closing may block are closed on other threads. One request of a connection
//! is answered before the next connection's. Unread answers are limited, and
//! users whose requests take too much time are served later. The superuser is
//! served first; after a long request of the superuser, the users are, for as
//! long. An invalid message ends its connection, with a reason.

mod access;
mod admit;
mod budget;
mod client;
mod closer;
mod connections;
mod request;
mod turns;

use crate::engine::{Backend, Engine, Finished, NATIVE_HOLD, Owner, Reloaded, Takeover};
use crate::policy::{Accounts, Policy};
use crate::protocol::{
    ErrorKind, Listener, MESSAGE_LEN_MAX, PortStatus, Refusal, Request, Response, ServerMessage,
    decode, encode,
};
use crate::runtime_dir::RuntimeDir;
use access::Access;
use budget::{Budget, Spending};
use client::Client;
use closer::Closer;
use connections::Connections;
use request::Deferred;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use turns::{SLICE, Stage, Turns};

/// Upper bounds on connections.
pub mod limits {
    use std::time::Duration;

    /// All connections.
    pub const CONNECTIONS_MAX: usize = 1 << 12;
    /// Connections reserved for the superuser.
    pub const SUPERUSER_CONNECTIONS_MAX: usize = 1 << 9;
    /// Connections of one user: each port of a program has one, and a user may run a
    /// hundred of them. A quarter of what all users of a grant have.
    pub const USER_CONNECTIONS_MAX: usize = 256;
    /// Connections of all users admitted by one grant.
    pub const GRANT_CONNECTIONS_MAX: usize = 1 << 10;
    /// Connections of one user that wait to be closed, at which the user can no
    /// longer connect.
    pub const USER_UNCLOSED_MAX: usize = 64;
    /// Connections of all users that wait to be closed, at which only the
    /// superuser can connect.
    pub const UNCLOSED_MAX: usize = 1 << 12;
    /// Groups of a process that needs a grant.
    pub const GROUPS_MAX: usize = 1 << 10;
    /// Bytes of answers that a connection may leave unread.
    pub const UNREAD_MAX: usize = 256 << 10;
    /// Time limit for the first request of a connection.
    pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
    /// Longest wait of a request to open a port for the memory of ports that
    /// the user has closed.
    pub const FREEING_MAX: Duration = Duration::from_secs(2);
    /// Requests that wait for memory.
    pub const DEFERRED_MAX: usize = 256;
    /// Requests of one connection that wait for memory.
    pub const CONNECTION_DEFERRED_MAX: usize = 4;
    /// Requests of one user that wait for memory.
    pub const USER_DEFERRED_MAX: usize = 8;
    /// Requests of all users admitted by one grant that wait for memory.
    pub const GRANT_DEFERRED_MAX: usize = DEFERRED_MAX / 2;
}

/// Event numbers, in the order in which events are handled.
const SUPERUSER_LISTENER: u64 = 0;
const STOP: u64 = 1;
const ENGINE_EVENTS: u64 = 2;
const CHANGES: u64 = 3;
const RELOAD: u64 = 4;
const LISTENER: u64 = 5;
/// The first number of a connection.
const FIRST_CLIENT: u64 = 16;

/// Interval of checks of time limits, while any applies.
const TICK: Duration = Duration::from_millis(50);

/// Largest number of events from one call.
const EVENTS_MAX: usize = 256;

fn data(number: u64) -> EventData {
    EventData::new_u64(number)
}

/// The callback that reads the policy again.
type Reload<F> = Box<dyn FnMut(&mut Daemon<F>)>;

/// A callback that watches the daemon: how often, when last, and what it does.
type Watch<F> = (Duration, Option<Instant>, Box<dyn FnMut(&Daemon<F>)>);

/// The daemon.
pub struct Daemon<F: Backend> {
    engine: Engine<F>,
    /// The socket for processes of user 0; `None` where there cannot be one. It is
    /// dropped before the usual one, so that a successor finds both names free.
    superuser_listener: Option<Listener>,
    superuser_socket_error: Option<io::Error>,
    listener: Listener,
    accounts: Accounts,
    epoll: OwnedFd,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    connections: Connections,
    closer: Closer,
    access: Access,
    spending: Spending,
    /// For connections that arrive, and end without a request, by the
    /// listener's number.
    accept_budget: Budget<u64>,
    deferred: Vec<Deferred>,
    /// The superuser's client and the user's client that were served last.
    served: [u64; 2],
    turns: Turns,
    reload: Option<(OwnedFd, Reload<F>)>,
    ping: Option<(Duration, Box<dyn FnMut()>)>,
    watch: Option<Watch<F>>,
    /// Time of the last check for processes with ports of an earlier broker.
    swept: Instant,
    /// Time of the last check of time limits.
    checked: Instant,
    /// The numbers of listeners that accept nothing for a moment.
    accept_paused: BTreeSet<u64>,
    /// Whether ports remain to be bound, for lack of time.
    is_behind: bool,
    /// Asked to end, and to close all ports.
    stops: bool,
    /// Asked to end, and to leave the ports to the next broker.
    leaves: bool,
}

impl<F: Backend> Daemon<F> {
    /// A daemon that listens, for the interfaces of a fabric.
    ///
    /// # Errors
    /// If the process has no free file descriptors.
    pub fn new(
        listener: Listener,
        fabric: F,
        policy: Policy,
        accounts: Accounts,
    ) -> io::Result<Daemon<F>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, data(LISTENER), EventFlags::IN)?;
        let (superuser_listener, superuser_socket_error) = match listener.bind_for_superuser() {
            Ok(listener) => (Some(listener), None),
            Err(error) => (None, Some(error)),
        };
        if let Some(listener) = &superuser_listener {
            epoll::add(&epoll, listener, data(SUPERUSER_LISTENER), EventFlags::IN)?;
        }
        for (fd, number) in [
            (fabric.wake_fd(), ENGINE_EVENTS),
            (fabric.changes(), CHANGES),
        ] {
            if let Some(fd) = fd {
                epoll::add(&epoll, fd, data(number), EventFlags::IN)?;
            }
        }
        let mut engine = Engine::new(fabric, policy);
        engine.hold_native(NATIVE_HOLD);
        let ms = Duration::from_millis;
        Ok(Daemon {
            engine,
            listener,
            superuser_listener,
            superuser_socket_error,
            accounts,
            epoll,
            clients: BTreeMap::new(),
            next_client: FIRST_CLIENT,
            connections: Connections::default(),
            closer: Closer::default(),
            access: Access::default(),
            spending: Spending::new(),
            accept_budget: Budget::new(ms(20), 20),
            deferred: Vec::new(),
            served: [0; 2],
            turns: Turns::default(),
            reload: None,
            ping: None,
            watch: None,
            swept: Instant::now(),
            checked: Instant::now(),
            accept_paused: BTreeSet::new(),
            is_behind: false,
            stops: false,
            leaves: false,
        })
    }

    /// Why processes of user 0 have no socket apart, if they have none. Their
    /// connections then wait behind those of all users.
    pub fn superuser_socket_error(&self) -> Option<&io::Error> {
        self.superuser_socket_error.as_ref()
    }

    /// Keeps in a folder what outlives this process, and takes over what an
    /// earlier broker has left there. Without, everything goes with this.
    ///
    /// # Errors
    /// If the kernel refuses to remove stale objects.
    pub fn persist_in(&mut self, keep: RuntimeDir) -> Result<Takeover, Refusal> {
        self.engine.persist_in(keep, &self.accounts)
    }

    /// Sets how long native XDP stays at an interface that no longer needs it;
    /// [`NATIVE_HOLD`] by default.
    pub fn hold_native(&mut self, time: Duration) {
        self.engine.hold_native(time);
    }

    /// Calls `ping` on the thread that answers requests, at least once in each
    /// `every`.
    pub fn ping_every(&mut self, every: Duration, ping: impl FnMut() + 'static) {
        self.ping = Some((every, Box::new(ping)));
    }

    /// Calls `watch` at the beginning and once in each `every`, between requests.
    pub fn watch_every(&mut self, every: Duration, watch: impl FnMut(&Daemon<F>) + 'static) {
        self.watch = Some((every, None, Box::new(watch)));
    }

    /// The open ports, in the order of their numbers.
    pub fn ports(&self) -> impl Iterator<Item = PortStatus> {
        self.engine.all_status()
    }

    /// Number of open ports.
    pub fn port_count(&self) -> usize {
        self.engine.len()
    }

    /// Number of connections of programs.
    pub fn connection_count(&self) -> usize {
        self.clients.len()
    }

    /// Calls `reload` when `hangup` is readable; `reload` reads the policy and
    /// calls [`reload`](Self::reload).
    ///
    /// # Errors
    /// If the kernel refuses to watch the descriptor.
    pub fn on_hangup(
        &mut self,
        hangup: OwnedFd,
        reload: impl FnMut(&mut Daemon<F>) + 'static,
    ) -> io::Result<()> {
        epoll::add(&self.epoll, &hangup, data(RELOAD), EventFlags::IN)?;
        self.reload = Some((hangup, Box::new(reload)));
        Ok(())
    }

    /// Replaces the policy. Ports that it does not grant are closed, and their
    /// processes notified; connections of users without a grant are ended.
    /// Other ports continue, with the filters of their present grants in front.
    ///
    /// # Errors
    /// If the host's own filter cannot be bound; then the previous policy
    /// stays.
    pub fn reload(&mut self, policy: Policy, accounts: Accounts) -> Result<Reloaded, Refusal> {
        let ping = &mut self.ping;
        let is_alive = || {
            if let Some((_, ping)) = ping {
                ping();
            }
        };
        let (reloaded, events) = self.engine.reload(policy, &accounts, is_alive)?;
        self.accounts = accounts;
        for (connection, port, event) in events {
            self.say(
                connection,
                &ServerMessage::Event { port, event },
                Vec::new(),
            );
        }
        self.answer_finished();
        for number in self.numbers() {
            let Some(client) = self.clients.get_mut(&number) else {
                continue;
            };
            let who = &mut client.owner.who;
            if who.is_superuser {
                continue;
            }
            self.accounts.update(who);
            let (uid, before) = (who.uid, client.grant);
            let now = self.engine.policy().grant_position(who);
            client.grant = now;
            match now {
                Some(_) => {
                    self.connections.leave(uid, before);
                    self.connections.enter(uid, now);
                }
                None => {
                    client.grant = before;
                    let reason = format!("the policy of now grants user {uid} nothing");
                    self.dismiss(number, reason, Some(ErrorKind::Denied));
                }
            }
        }
        Ok(reloaded)
    }

    /// Serves until `stop` is readable, or the superuser asks the daemon to
    /// end. In the first case the ports continue, if there is a folder for
    /// [`persist_in`](Self::persist_in).
    ///
    /// # Errors
    /// If waiting fails, which is not expected.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        epoll::add(&self.epoll, stop, data(STOP), EventFlags::IN)?;
        self.watched();
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
                &ServerMessage::Shutdown {
                    reason: reason.clone(),
                    kind: None,
                },
                Vec::new(),
            );
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let orphans = self.engine.has_orphans();
        let waits = !self.accept_paused.is_empty()
            || orphans
            || !self.deferred.is_empty()
            || self.engine.has_ready()
            || !self.closer.is_idle()
            || self.access.is_limited()
            || self.clients.values().any(Client::has_deadline);
        let mut times = Vec::from_iter(waits.then_some(TICK));
        times.extend(self.is_behind.then_some(Duration::ZERO));
        times.extend(self.ping.as_ref().map(|(every, _)| *every));
        times.extend(self.watch.as_ref().map(|(every, ..)| *every));
        let now = Instant::now();
        let next = self.engine.next_time();
        times.extend(next.map(|next| next.saturating_duration_since(now)));
        let time = times.into_iter().min();
        let time = time.map(|time| Timespec::try_from(time).unwrap_or_default());
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, spare, time.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.handle(&events);
        if waits && self.checked.elapsed() >= TICK {
            self.checked = Instant::now();
            self.keep_time();
            self.retry_deferred();
        }
        self.answer_finished();
        if orphans && self.swept.elapsed() > TICK {
            self.swept = Instant::now();
            self.engine.sweep_orphans();
        }
        self.engine.keep_time(Instant::now());
        if let Some((_, ping)) = &mut self.ping {
            ping();
        }
        self.watched();
        Ok(())
    }

    fn watched(&mut self) {
        if let Some((every, last, mut watch)) = self.watch.take() {
            let is_due = last.is_none_or(|last| last.elapsed() >= every);
            if is_due {
                watch(self);
            }
            let last = if is_due { Some(Instant::now()) } else { last };
            self.watch = Some((every, last, watch));
        }
    }

    /// Handles events: first those of the daemon itself, then requests, in the
    /// order of [`Turns`]. The kernel reports events again that are left.
    fn handle(&mut self, events: &[Event]) {
        let mut events: Vec<(u64, EventFlags)> = events
            .iter()
            .map(|event| (event.data.u64(), event.flags))
            .collect();
        events.sort_by_key(|(number, _)| *number);
        let (mut of_superuser, mut of_users) = (Vec::new(), Vec::new());
        for (number, flags) in events {
            match number {
                SUPERUSER_LISTENER | LISTENER => self.accept(number),
                STOP => self.leaves = true,
                // The descriptor is read later.
                ENGINE_EVENTS => self.engine.fabric().clear_wake(),
                CHANGES => {
                    self.engine.fabric().saw_changes();
                    for (connection, port, event) in self.engine.poll_interfaces() {
                        self.say(
                            connection,
                            &ServerMessage::Event { port, event },
                            Vec::new(),
                        );
                    }
                }
                RELOAD => {
                    if let Some((hangup, mut reload)) = self.reload.take() {
                        let _ = rustix::io::read(&hangup, &mut [0; 64]);
                        reload(self);
                        self.reload = Some((hangup, reload));
                    }
                }
                number if self.is_users(number) => of_users.push((number, flags)),
                number => of_superuser.push((number, flags)),
            }
        }
        let order = self.turns.begin(Stage::Requests);
        if order.users_first {
            self.serve_each(true, &mut of_users, order.users_limit);
        }
        let time = self.serve_each(false, &mut of_superuser, SLICE);
        self.turns.superuser_took(time);
        if !order.users_first {
            self.serve_each(true, &mut of_users, order.users_limit);
        }
    }

    /// Serves connections of users, or of the superuser, in turn: at least one,
    /// and none after `limit`. Returns the time taken.
    fn serve_each(
        &mut self,
        are_users: bool,
        events: &mut [(u64, EventFlags)],
        limit: Duration,
    ) -> Duration {
        let side = usize::from(are_users);
        let served = self.served[side];
        events.sort_by_key(|(number, _)| (*number <= served, *number));
        let began = Instant::now();
        for (number, flags) in events {
            self.served[side] = *number;
            self.serve(*number, *flags);
            if began.elapsed() > limit {
                break;
            }
        }
        began.elapsed()
    }

    /// Whether a number is that of a user's connection, not of the superuser's.
    fn is_users(&self, number: u64) -> bool {
        let client = self.clients.get(&number);
        client.is_some_and(|client| !client.owner.who.is_superuser)
    }

    fn numbers(&self) -> Vec<u64> {
        self.clients.keys().copied().collect()
    }

    /// Records work for a user.
    fn spend(&mut self, uid: u32, grant: Option<usize>, time: Duration) {
        if let Some(grant) = grant {
            self.spending.spend(uid, grant, time);
        }
    }

    /// Whether a user must wait.
    fn is_overdrawn(&self, client: &Client, now: Instant) -> bool {
        self.spending.is_overdrawn(client, &self.closer, now)
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
            let (uid, grant) = (client.owner.who.uid, client.grant);
            let ended = match self.read(number) {
                Ok(Some(request)) => {
                    self.request(number, request);
                    Ok(())
                }
                other => other.map(|_| ()),
            };
            // Invalid requests also cost time.
            self.spend(uid, grant, began.elapsed());
            match ended {
                Ok(()) => {}
                Err(None) => return self.forget(number),
                Err(Some(reason)) => return self.dismiss(number, reason, None),
            }
        }
        self.watch(number);
    }

    /// The next request of a connection, if there is one. Fails if the
    /// connection must be ended, with the reason if the peer is still there.
    fn read(&self, number: u64) -> Result<Option<Request>, Option<String>> {
        let channel = &self.clients.get(&number).ok_or(None)?.channel;
        if !self.listener.refuses_descriptors() && channel.has_descriptors() {
            return Err(Some("a message with descriptors; none are accepted".into()));
        }
        match channel.receive(false) {
            Ok(None) => Ok(None),
            Err(_) => Err(None),
            Ok(Some(message)) if message.is_cut => {
                let reason = format!("a message longer than {MESSAGE_LEN_MAX} bytes");
                Err(Some(reason))
            }
            Ok(Some(message)) => match decode::<Request>(&message.bytes) {
                Ok(request) => Ok(Some(request)),
                Err(error) => Err(Some(error.to_string())),
            },
        }
    }

    /// Answers requests that are complete, and binds ports whose rings are
    /// ready, in the order of [`Turns`].
    fn answer_finished(&mut self) {
        for finished in self.engine.take_done() {
            self.answer(finished);
        }
        let order = self.turns.begin(Stage::Bindings);
        let users_before = order.users_first && self.bind_each(true, order.users_limit);
        let began = Instant::now();
        let superuser = self.bind_each(false, SLICE);
        self.turns.superuser_took(began.elapsed());
        let users_after = !order.users_first && self.bind_each(true, order.users_limit);
        self.is_behind = users_before || superuser || users_after;
    }

    /// Binds ports of users, or of the superuser: at least one, and none after
    /// `limit`, since binding may take the kernel long. Users with an overdrawn
    /// budget wait. Returns whether ports may be left for lack of time.
    fn bind_each(&mut self, are_users: bool, limit: Duration) -> bool {
        let began = Instant::now();
        loop {
            let now = Instant::now();
            let spending = &self.spending;
            let closer = &self.closer;
            let may = |owner: &Owner| {
                let client = self.clients.get(&owner.connection);
                owner.who.is_superuser != are_users
                    && client.is_none_or(|client| !spending.is_overdrawn(client, closer, now))
            };
            let Some(finished) = self.engine.finish_next(may) else {
                return false;
            };
            let client = self.clients.get(&finished.owner.connection);
            let grant = client.and_then(|client| client.grant);
            self.spend(finished.owner.who.uid, grant, now.elapsed());
            self.answer(finished);
            if began.elapsed() > limit {
                return true;
            }
        }
    }

    fn answer(&mut self, finished: Finished) {
        let number = finished.owner.connection;
        let asked = self
            .clients
            .get_mut(&number)
            .and_then(|one| one.pending.remove(&finished.port));
        let Some(to) = asked else { return };
        let (answer, fds) = match finished.result {
            Ok(done) => done,
            Err(refusal) => (Response::Refused(refusal), Vec::new()),
        };
        self.say(number, &ServerMessage::Answer { to, answer }, fds);
    }

    /// Sends or queues a message; a client that never reads is disconnected.
    fn say(&mut self, number: u64, said: &ServerMessage, fds: Vec<OwnedFd>) {
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

    /// Updates the events that the connection waits for.
    fn watch(&mut self, number: u64) {
        let Some(client) = self.clients.get(&number) else {
            return;
        };
        let is_paused = self.is_overdrawn(client, Instant::now());
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.is_paused = is_paused;
        let mut flags = EventFlags::empty();
        // A client with unread answers is not read from.
        if !client.is_paused && client.unsent.is_empty() {
            flags |= EventFlags::IN;
        }
        if !client.unsent.is_empty() {
            flags |= EventFlags::OUT;
        }
        if flags != client.watched {
            client.watched = flags;
            let _ = epoll::modify(&self.epoll, &client.channel, data(number), flags);
        }
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        self.listen_again(now);
        if self.access.is_limited() {
            self.access.update(&self.listener, &self.closer);
        }
        let silent = |(number, one): (&u64, &Client)| one.is_silent(now).then_some(*number);
        let silent: Vec<u64> = self.clients.iter().filter_map(silent).collect();
        for number in silent {
            let limit = limits::FIRST_REQUEST_TIMEOUT.as_secs();
            let reason = format!("nothing was asked within {limit} seconds");
            self.dismiss(number, reason, None);
        }
        let paused = |(number, one): (&u64, &Client)| one.is_paused.then_some(*number);
        let paused: Vec<u64> = self.clients.iter().filter_map(paused).collect();
        for number in paused {
            self.watch(number);
        }
    }
}

impl<F: Backend> AsFd for Daemon<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
