//! An engine in this process, for the superuser without a broker.

use super::PortError;
use super::connection::unexpected_reply;
use crate::engine::kernel::{KernelBackend, namespace};
use crate::engine::{Backend, Engine, Finished, Owner};
use crate::policy::PeerCred;
use crate::protocol::{Event, Listener, OpenPort, Opened, RequestKind, Response};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Number of events of one port that are stored until it asks; the newest
/// remain.
const EVENTS_MAX: usize = 256;

/// An engine, and the thread that drives it.
struct Shared {
    state: Mutex<State>,
    /// Signals that a request has finished.
    finished: Condvar,
    /// An eventfd that wakes the thread so that it can end.
    wake: OwnedFd,
}

struct State {
    engine: Engine<KernelBackend>,
    /// Finished requests that were not fetched yet, by port.
    finished: BTreeMap<u32, Finished>,
    /// Events by connection.
    events: BTreeMap<u64, Vec<Event>>,
    /// Number of [`Local`]s.
    users: usize,
    /// The socket at which other processes list the ports of this process. Its
    /// file is removed with the last port, not with the thread, which the
    /// process may not outlive.
    registry: Option<Listener>,
}

/// The engines of this process: one for each network namespace in use.
static ENGINES: Mutex<Vec<(u64, Weak<Shared>)>> = Mutex::new(Vec::new());

/// This process's engine, as one owner of ports.
pub(super) struct Local {
    shared: Arc<Shared>,
    owner: Owner,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn root() -> PeerCred {
    PeerCred {
        uid: 0,
        gids: [].into(),
        pid: std::process::id(),
        is_superuser: true,
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> PortError {
    move |source| PortError::System { what, source }
}

impl State {
    /// Fetches the requests that the engine has finished.
    fn attend(&mut self) {
        for finished in self.engine.poll_finished() {
            self.finished.insert(finished.port, finished);
        }
    }

    /// The status of every port, and of the interfaces in use.
    fn all(&mut self) -> Vec<Response> {
        let owner = Owner {
            connection: 0,
            who: root(),
        };
        let mut all = Vec::new();
        let mut after = 0;
        loop {
            let page = self.engine.page(&owner, after);
            let last = match &page {
                Response::Ports { ports, more: true } => ports.last().map(|last| last.port),
                _ => None,
            };
            all.push(page);
            match last {
                Some(last) => after = last,
                None => break,
            }
        }
        all.extend(
            self.engine
                .interfaces()
                .into_iter()
                .map(Response::Interface),
        );
        all
    }

    /// Checks the interfaces for changes.
    fn check_interfaces(&mut self) {
        self.engine.fabric().saw_changes();
        for (connection, _, event) in self.engine.poll_interfaces() {
            let events = self.events.entry(connection).or_default();
            if events.len() == EVENTS_MAX {
                events.remove(0);
            }
            events.push(event);
        }
    }
}

impl Shared {
    fn start() -> Result<Arc<Shared>, PortError> {
        let mut fabric = KernelBackend::open().map_err(failed("open a netlink socket"))?;
        let clone = |fd: Option<BorrowedFd<'_>>| {
            let fd = fd.ok_or(io::ErrorKind::Unsupported)?;
            fd.try_clone_to_owned()
        };
        let fds = || Ok([clone(fabric.wake_fd())?, clone(fabric.changes())?]);
        let fds: [OwnedFd; 2] = fds().map_err(failed("watch the interfaces"))?;
        let registry = super::local_registry::announce(namespace().unwrap_or(0));
        let asked = registry
            .as_ref()
            .map(|registry| registry.as_fd().try_clone_to_owned());
        let asked = asked.transpose().map_err(failed("tell of ports"))?;
        let wake = fds[0].try_clone().map_err(failed("watch the interfaces"))?;
        fabric.clear_wake();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                engine: Engine::alone(fabric),
                finished: BTreeMap::new(),
                events: BTreeMap::new(),
                users: 0,
                registry,
            }),
            finished: Condvar::new(),
            wake,
        });
        let weak = Arc::downgrade(&shared);
        let thread = std::thread::Builder::new().name("weir-engine".into());
        let spawned = thread.spawn(move || attend(&weak, &fds, asked.as_ref()));
        spawned.map_err(failed("start a thread"))?;
        Ok(shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Drives the engine while there are ports, so that changes of filters finish
/// even without further requests.
fn attend(shared: &Weak<Shared>, fds: &[OwnedFd; 2], asked: Option<&OwnedFd>) {
    loop {
        let watched = fds.iter().chain(asked).map(AsFd::as_fd);
        let mut polled: Vec<PollFd<'_>> = watched
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let result = poll(&mut polled, None);
        let is_ready = |place: usize| {
            let one: Option<&PollFd<'_>> = polled.get(place);
            one.is_some_and(|one| !one.revents().is_empty())
        };
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if result.is_err() {
            continue;
        }
        let mut state = lock(&shared.state);
        if is_ready(0) {
            state.engine.fabric().clear_wake();
            state.attend();
            shared.finished.notify_all();
        }
        if is_ready(1) {
            state.check_interfaces();
        }
        let coming = state.registry.as_ref().filter(|_| is_ready(2));
        if let Some(Ok(Some(channel))) = coming.map(Listener::accept) {
            super::local_registry::serve_listing(channel, state.all());
        }
    }
}

impl Local {
    /// The engine of the calling thread's network namespace.
    pub(super) fn new() -> Result<Local, PortError> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        let namespace = namespace().map_err(failed("find the network namespace"))?;
        let mut engines = lock(&ENGINES);
        engines.retain(|(_, engine)| engine.strong_count() > 0);
        let known = engines.iter().find(|(of, _)| *of == namespace);
        let known = known.and_then(|(_, engine)| engine.upgrade());
        // An engine without users is about to end with its thread.
        let shared = match known.filter(|shared| lock(&shared.state).users > 0) {
            Some(shared) => shared,
            None => {
                engines.retain(|(of, _)| *of != namespace);
                let shared = Shared::start()?;
                engines.push((namespace, Arc::downgrade(&shared)));
                shared
            }
        };
        lock(&shared.state).users += 1;
        Ok(Local {
            shared,
            owner: Owner {
                connection: CONNECTIONS.fetch_add(1, Ordering::Relaxed),
                who: root(),
            },
        })
    }

    pub(super) fn open(&self, asked: OpenPort) -> Result<(Opened, Vec<OwnedFd>), PortError> {
        let mut state = lock(&self.shared.state);
        let number = state.engine.open(self.owner.clone(), asked)?;
        match self.finished(state, number)? {
            (Response::Opened(opened), fds) => Ok((opened, fds)),
            _ => Err(unexpected_reply()),
        }
    }

    /// Waits until the engine has finished a port's request.
    fn finished(
        &self,
        mut state: MutexGuard<'_, State>,
        number: u32,
    ) -> Result<(Response, Vec<OwnedFd>), PortError> {
        // With a spare ring the port is open at once.
        state.attend();
        self.shared.finished.notify_all();
        loop {
            if let Some(finished) = state.finished.remove(&number) {
                return Ok(finished.result?);
            }
            let finished = &self.shared.finished;
            state = finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends a request other than opening a port.
    pub(super) fn request(&self, ask: RequestKind) -> Result<(Response, Vec<OwnedFd>), PortError> {
        let mut state = lock(&self.shared.state);
        let engine = &mut state.engine;
        let answer = match ask {
            RequestKind::SetFilter { port, filter } => {
                engine.set_filter(&self.owner, port, filter)?;
                Response::Done
            }
            RequestKind::Close { port } => {
                engine.close(&self.owner, port)?;
                Response::Done
            }
            RequestKind::Send { port } => {
                engine.send(&self.owner, port)?;
                return self.finished(state, port);
            }
            RequestKind::Interface { name } => {
                Response::Interface(engine.interface_status(&self.owner, &name)?)
            }
            RequestKind::PortInterface { port } => {
                Response::Interface(engine.port_interface(&self.owner, port)?)
            }
            RequestKind::Ports { after } => Response::Ports {
                ports: engine.status(&self.owner, after.unwrap_or(0)).collect(),
                more: false,
            },
            RequestKind::Open(_) | RequestKind::Resume { .. } | RequestKind::Stop => {
                return Err(unexpected_reply());
            }
        };
        Ok((answer, Vec::new()))
    }

    /// The events of the port since the last call.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut state = lock(&self.shared.state);
        state.check_interfaces();
        state
            .events
            .remove(&self.owner.connection)
            .unwrap_or_default()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Holding the lock keeps other threads from adding users meanwhile.
        let _engines = lock(&ENGINES);
        let mut state = lock(&self.shared.state);
        state.engine.close_all(self.owner.connection);
        state.events.remove(&self.owner.connection);
        state.users -= 1;
        if state.users == 0 {
            state.registry = None;
        }
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Local")
    }
}
