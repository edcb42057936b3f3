//! A host on its links: the stack, the thread that drives it, and its sockets'
//! doors.
//!
//! ```text
//!  link ──► thread ──► lock ─► stack ──► told: condition, waker, descriptor
//!                       ▲        │
//!  a socket's call ─────┘        └────► link
//! ```
//!
//! The thread waits for the link and for timers. A call takes the lock, does
//! its work and sends what it led to, itself; only if a timer is due earlier
//! than the thread thinks is that woken.

mod core;
mod events;
mod links;
mod ready;
mod state;
mod watch;

pub use self::events::Events;

pub(crate) use self::core::{Core, Side, waits};
pub(crate) use state::{Id, State};

use crate::link::Link;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_stack::host::ConfigError;
use weir_stack::tcp::TcpConfig;
use weir_stack::{Config, Stack};

/// How long a net that is dropped waits at most for peers to have what was
/// written on connections that are closed.
const LINGER: Duration = Duration::from_secs(5);

/// How often the thread yields to calls that wait, before it goes on.
const YIELDS_MAX: usize = 100;

/// A host on a link, or on several. Clones are the same host; it ends with the last of them
/// and the last of its sockets.
#[derive(Clone)]
pub struct Net(Arc<Running>);

struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// Calls that wait for the lock.
    waiting: AtomicUsize,
    /// Wakes the thread.
    wake: OwnedFd,
    start: Instant,
}

/// What a net has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Frames that came.
    pub received: u64,
    /// TCP connections there are, those in TIME-WAIT included.
    pub connections: usize,
}

impl Net {
    /// A host on `link`, with a seed of the system's. What the link does for
    /// the stack ([`Config::offload`]) it says itself.
    ///
    /// # Errors
    /// If the configuration is wrong, or the system gives no thread or
    /// descriptor.
    pub fn new(link: impl Link + 'static, config: &Config) -> io::Result<Net> {
        Net::with_seed(link, config, seed())
    }

    /// As [`Net::new`], with a seed of the caller's: see [`Stack::new`].
    ///
    /// # Errors
    /// As there.
    pub fn with_seed(link: impl Link + 'static, config: &Config, seed: u128) -> io::Result<Net> {
        Net::start(vec![(Box::new(link), config.clone())], seed)
    }

    /// A host on several links, each with its addresses and routes: see
    /// [`Stack::with_links`]. It goes on while one of them is left.
    ///
    /// # Errors
    /// As [`Net::new`]; if two links have the same address, or there are none or
    /// too many.
    pub fn with_links(links: Vec<(Box<dyn Link>, Config)>) -> io::Result<Net> {
        Net::start(links, seed())
    }

    fn start(links: Vec<(Box<dyn Link>, Config)>, seed: u128) -> io::Result<Net> {
        let wrong = |error: ConfigError| io::Error::new(io::ErrorKind::InvalidInput, error);
        let (links, mut configs): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        for (config, link) in configs.iter_mut().zip(&links) {
            config.offload = link.offload();
        }
        let stack = Stack::with_links(&configs, seed).map_err(wrong)?;
        let fds = links.iter().map(|link| link.fd().try_clone_to_owned());
        let fds: Vec<OwnedFd> = fds.collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(stack, links)),
            waiting: AtomicUsize::new(0),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            start: Instant::now(),
        });
        let thread = std::thread::Builder::new().name("weir-net".to_owned());
        let its = Arc::clone(&shared);
        let thread = Some(thread.spawn(move || its.drive(&fds))?);
        Ok(Net(Arc::new(Running { shared, thread })))
    }

    /// How TCP connections behave that begin from now on.
    pub fn tcp_configure(&self, config: TcpConfig) {
        self.shared().lock().stack.tcp_configure(config);
    }

    /// The host's addresses, the link-local one of IPv6 included.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.shared().lock().stack.addresses().collect()
    }

    /// What happens to addresses and routers, and the latest that happened
    /// until now. Each is told once, to whoever asks first.
    pub fn events(&self) -> Events {
        Events(Arc::clone(&self.0.shared))
    }

    /// Runs `look` on the stack: counters, states.
    pub fn with_stack<T>(&self, look: impl FnOnce(&Stack) -> T) -> T {
        look(&self.shared().lock().stack)
    }

    /// What was counted.
    pub fn counted(&self) -> Counted {
        let state = self.shared().lock();
        Counted {
            received: state.received,
            connections: state.stack.tcp_connections(),
        }
    }

    /// Whether the link is gone, all of them if there are several: no frame will
    /// come or go any more.
    pub fn is_gone(&self) -> bool {
        self.shared().lock().is_gone()
    }

    /// Whether one of its links is gone, by number; or never was.
    pub fn is_link_gone(&self, link: u8) -> bool {
        self.shared().lock().links().is_gone(link)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// Whether this is the net's thread, on which nobody may wait for the net.
    pub(crate) fn is_own_thread(&self) -> bool {
        self.0.is_own_thread()
    }
}

impl Running {
    fn is_own_thread(&self) -> bool {
        let own = self.thread.as_ref().map(|thread| thread.thread().id());
        own == Some(std::thread::current().id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.lock().stop_at = Some(Instant::now() + LINGER);
        self.shared.wake();
        // A waker that the thread itself drops may have held the last clone.
        if !self.is_own_thread()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.waiting.fetch_add(1, Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Relaxed);
        state
    }

    /// Lets calls have the lock that wait for it: the thread, which takes it
    /// again at once while frames come, would leave them none.
    fn give_way(&self) {
        for _ in 0..YIELDS_MAX {
            if self.waiting.load(Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// After a call on the stack: sends what it led to, and tells whom it
    /// concerns.
    pub(crate) fn after(&self, state: &mut State) {
        if state.settle(self.now_ns()) {
            self.wake();
        }
    }

    /// As [`Shared::after`], and gives the lock back.
    pub(crate) fn finish(&self, mut state: MutexGuard<'_, State>) {
        self.after(&mut state);
        unlock(state);
    }

    /// The thread's work, until the net ends.
    fn drive(&self, links: &[OwnedFd]) {
        let mut fds = Vec::with_capacity(1 + links.len());
        loop {
            let mut state = self.lock();
            state.receive(self.now_ns());
            state.settle(self.now_ns());
            // Not before: what just came may be what was waited for.
            if state.is_over() {
                state.leave(self.now_ns());
                return;
            }
            let rest = state.rest(self.now_ns());
            fds.clear();
            fds.push(PollFd::new(&self.wake, PollFlags::IN));
            let waits = state.links().waits().zip(links);
            fds.extend(waits.filter_map(|(wait, fd)| Some(PollFd::new(fd, wait?))));
            unlock(state);
            let Some(wait) = rest else {
                self.give_way();
                continue;
            };
            if woken(&mut fds, wait) {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
        }
    }
}

/// Waits for one of these, or `time`; whether it was the first.
fn woken(fds: &mut [PollFd<'_>], time: Duration) -> bool {
    let time = Timespec::try_from(time).ok();
    match poll(fds, time.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        // Out of memory, which passes: not at full speed.
        Err(_) => std::thread::sleep(Duration::from_millis(10)),
    }
    !fds[0].revents().is_empty()
}

/// Gives the lock back, and then wakes the tasks that are to be: they may do
/// whatever they like at once.
fn unlock(mut state: MutexGuard<'_, State>) {
    let tasks = state.take_tasks();
    drop(state);
    for task in tasks {
        task.wake();
    }
}

/// Gives the lock back until the condition is told, for so long at most.
fn wait<'s>(
    condition: &Condvar,
    state: MutexGuard<'s, State>,
    left: Option<Duration>,
) -> MutexGuard<'s, State> {
    match left {
        None => condition
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner),
        Some(left) => {
            let waited = condition.wait_timeout(state, left);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

/// Bits that nobody can guess.
fn seed() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    // Each state has keys of the system's randomness, and more of it mixed in.
    let bits = || u128::from(RandomState::new().hash_one(Instant::now()));
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => u128::from_ne_bytes(bytes),
        _ => bits() << 64 | bits(),
    }
}
