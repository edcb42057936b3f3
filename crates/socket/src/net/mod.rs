//! [`Net`]: a host on its links, with its stacks, the threads that drive them, and its
//! sockets.
//!
//! ```text
//!  link ──► thread ──► lock ─► stack ──► notify: condition, waker, descriptor
//!                       ▲        │
//!  a socket's call ─────┘        └────► link
//! ```
//!
//! A host of several stacks has all of this once for each stack. The stacks share only the
//! thread that makes memory for their tables (`shards::table_memory`). `shards::shard_io`
//! distributes arriving frames; a stack leaves a frame of another stack in
//! `shards::mailbox`.
//!
//! The thread waits for the link and for timers. A call takes the lock, does its work and
//! sends the resulting frames itself; the call wakes the thread only if a timer is due
//! earlier than the thread expects. A call that waits may do the thread's work: see
//! `driver::leader`.

mod builder;
mod driver;
mod events;
mod io;
mod shards;
mod sock;

pub use builder::Builder;
pub use events::Events;

pub(crate) use driver::state::{Id, NetState};
pub(crate) use sock::inner::{Operation, SocketInner, waits};
pub(crate) use sock::readiness::Interest;
pub(crate) use sock::sharded::ShardedSocket;

use crate::link::Link;
pub use driver::PollWait;
use driver::{StackDriver, unlock, wait};
use rustix::event::PollFd;
pub use sock::ready_list::ReadyList;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_stack::iface::Counters;
use weir_stack::tcp::TcpConfig;
use weir_stack::{Config, Shards, Stack};

/// Longest time that dropping a net waits for peers to acknowledge the data of closed
/// connections.
const LINGER: Duration = Duration::from_secs(5);

/// A host on one link or several. A clone is the same host; the host ends with its last
/// clone and its last socket.
#[derive(Clone)]
pub struct Net(Arc<Running>);

struct Running {
    /// One driver for each stack.
    shards: Box<[Arc<StackDriver>]>,
    threads: Vec<JoinHandle<()>>,
    /// Mailboxes, one for each stack, for frames of other stacks.
    mailboxes: Arc<[shards::mailbox::Mailbox]>,
    /// Which stack owns which connections and datagrams.
    owners: Shards,
    /// The shard that opens the next connection (round robin).
    next_shard: AtomicUsize,
    /// Secret of TCP Fast Open cookies (RFC 7413 §4.1.2), shared by all stacks.
    fast_open_key: Mutex<[u8; 16]>,
}

/// Counts of a net.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetStats {
    /// Frames received.
    pub received: u64,
    /// Current number of TCP connections, those in TIME-WAIT included.
    pub connections: usize,
    /// Frames that one stack of the net has handed to another: see [`Builder::shards`].
    pub forwarded: u64,
    /// Frames that were dropped because the mailbox of their stack was full.
    pub forwarded_lost: u64,
}

impl Net {
    /// Starts a host on `link`, with a seed from the system. The link itself states its
    /// offloads ([`Config::offload`]).
    ///
    /// # Errors
    /// If the configuration is invalid, or the system provides no thread or descriptor.
    pub fn new(link: impl Link + 'static, config: &Config) -> std::io::Result<Net> {
        Net::with_seed(link, config, seed())
    }

    /// As [`Net::new`], with the caller's seed: see [`Stack::new`].
    ///
    /// # Errors
    /// As [`Net::new`].
    pub fn with_seed(
        link: impl Link + 'static,
        config: &Config,
        seed: u128,
    ) -> std::io::Result<Net> {
        Net::builder().link(link, config).seed(seed).start()
    }

    /// Starts a host on several links, each with its own addresses and routes: see
    /// [`Stack::with_links`]. The host runs as long as one of its links remains.
    ///
    /// # Errors
    /// As [`Net::new`]; also if two links have the same address, or if there is no link or
    /// more than [`LINKS_MAX`](weir_stack::LINKS_MAX).
    pub fn with_links(links: Vec<(Box<dyn Link>, Config)>) -> std::io::Result<Net> {
        let add =
            |builder: Builder, (link, config): (_, Config)| builder.queues(vec![link], &config);
        links.into_iter().fold(Net::builder(), add).start()
    }

    /// Configures a host with more settings: links, stacks, seed.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Sets the configuration of TCP connections that begin from now on.
    pub fn tcp_configure(&self, config: TcpConfig) {
        for shared in &self.0.shards {
            shared.lock().stack.tcp_configure(config.clone());
        }
    }

    /// Sets the secret of the TCP Fast Open cookies that listeners issue from now on
    /// ([`TcpSocket::set_fast_open`](crate::TcpSocket::set_fast_open)). The default is derived
    /// from the net's seed. Cookies are made as Linux makes them, so that servers behind one
    /// address can share a secret (`TCP_FASTOPEN_KEY`, RFC 7413 §6.3.4).
    pub fn set_fast_open_key(&self, key: [u8; 16]) {
        *self.lock_fast_open_key() = key;
    }

    pub(crate) fn fast_open_key(&self) -> [u8; 16] {
        *self.lock_fast_open_key()
    }

    fn lock_fast_open_key(&self) -> MutexGuard<'_, [u8; 16]> {
        let key = self.0.fast_open_key.lock();
        key.unwrap_or_else(PoisonError::into_inner)
    }

    /// The host's addresses, IPv6 link-local ones included.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.first().lock().stack.addresses().collect()
    }

    /// Whether an address is the host's own; with one of 127.0.0.0/8 all of them are.
    pub fn is_own_address(&self, address: IpAddr) -> bool {
        self.first().lock().stack.is_own_address(address)
    }

    /// Events of addresses and routers, including the latest that have already happened.
    /// Each event is delivered once, to the first reader.
    pub fn events(&self) -> Events {
        Events(Arc::clone(&self.0.shards[0]))
    }

    /// Runs `look` on the stack and returns its result, for counters and states. With several
    /// stacks this is the first, which holds everything but the other stacks' TCP connections
    /// and datagrams.
    pub fn with_stack<T>(&self, look: impl FnOnce(&Stack) -> T) -> T {
        look(&self.first().lock().stack)
    }

    /// As [`Net::with_stack`], for the stack of this number; `None` if there is none.
    pub fn with_shard<T>(&self, number: usize, look: impl FnOnce(&Stack) -> T) -> Option<T> {
        let shared = self.0.shards.get(number)?;
        Some(look(&shared.lock().stack))
    }

    /// Number of stacks: see [`Builder::shards`].
    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    /// The counters, summed over all stacks.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for shared in &self.0.shards {
            sum.add(&shared.lock().stack.counters());
        }
        sum
    }

    /// Leaves what the links share with other processes. For a process that ends without dropping the net;
    /// no frame is sent or received any more.
    pub fn leave_links(&self) {
        for shared in &self.0.shards {
            shared.lock().leave_links();
        }
    }

    /// The net's counts, summed over all stacks.
    pub fn stats(&self) -> NetStats {
        let mut sum = NetStats::default();
        for shared in &self.0.shards {
            let state = shared.lock();
            sum.received += state.received;
            sum.connections += state.stack.tcp_connections();
        }
        (sum.forwarded, sum.forwarded_lost) = self.forwarded();
        sum
    }

    /// [`NetStats::forwarded`] and [`NetStats::forwarded_lost`], without waiting for the lock
    /// of a stack.
    pub fn forwarded(&self) -> (u64, u64) {
        let counted = self
            .0
            .mailboxes
            .iter()
            .map(shards::mailbox::Mailbox::counted);
        counted.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Waits until one of these descriptors may be ready, up to `deadline`, and drives the net
    /// meanwhile if no other call does. Afterwards the application asks `poll(2)` or
    /// `epoll_wait(2)` without waiting: the readiness of a socket's descriptor may have changed
    /// after the wait.
    ///
    /// `wait` is `poll(2)` itself, which the application may surround with what its signals
    /// need: it gets all descriptors that the call waits for, and a time limit.
    ///
    /// The application waits by this call instead of by `poll(2)` so that no frame wakes another
    /// thread. A net of several stacks is driven by its threads.
    ///
    /// # Errors
    /// As `wait`: `EINTR` after a signal.
    pub fn poll<'a>(
        &'a self,
        fds: &mut Vec<PollFd<'a>>,
        deadline: Option<Instant>,
        wait: &mut PollWait<'_>,
    ) -> std::io::Result<()> {
        Ok(self.first().poll(None, None, fds, deadline, wait)?)
    }

    /// As [`Net::poll`], and also until a connection is in this list, from which the application then
    /// takes it.
    ///
    /// The list ends if another call drives the net, since the kernel alone wakes this one then.
    ///
    /// # Errors
    /// As [`Net::poll`].
    pub fn poll_listed<'a>(
        &'a self,
        list: &ReadyList,
        fds: &mut Vec<PollFd<'a>>,
        deadline: Option<Instant>,
        wait: &mut PollWait<'_>,
    ) -> std::io::Result<()> {
        Ok(self.first().poll(None, Some(list), fds, deadline, wait)?)
    }

    /// Ends a list of readable connections: their descriptors show everything again.
    pub fn end_ready_list(&self, list: &ReadyList) {
        let mut state = self.first().lock();
        state.end_list(list);
        self.first().finish(state);
    }

    /// Whether all links are gone, so that no frame can arrive or leave any more.
    pub fn is_gone(&self) -> bool {
        self.first().lock().is_gone()
    }

    /// Whether the link of this number is gone, or never existed.
    pub fn is_link_gone(&self, link: u8) -> bool {
        self.first().lock().links().is_gone(link)
    }

    /// The first stack, which holds everything but the other stacks' TCP connections and
    /// datagrams.
    pub(crate) fn first(&self) -> &StackDriver {
        &self.0.shards[0]
    }

    pub(crate) fn shard(&self, number: usize) -> &StackDriver {
        &self.0.shards[number]
    }

    /// The number of the stack that owns the datagrams between these two addresses.
    pub(crate) fn datagram_owner(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        match self.shards() {
            1 => 0,
            _ => self.0.owners.datagram_owner(local, remote),
        }
    }

    /// The numbers of all stacks, beginning with another stack at each call.
    pub(crate) fn turn(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.shards();
        let first = match count {
            1 => 0,
            _ => self.0.next_shard.fetch_add(1, Relaxed),
        };
        (0..count).map(move |step| (first + step) % count)
    }

    /// Whether the calling thread is one of the net's threads, which must not wait for the
    /// net.
    pub(crate) fn is_own_thread(&self) -> bool {
        self.0.is_own_thread()
    }
}

impl Running {
    /// Makes the threads end by this time, or by an earlier time that was set before.
    fn stop_by(&self, at: Instant) {
        for shared in &self.shards {
            let mut state = shared.lock();
            state.stop_at.get_or_insert(at);
            shared.wake(&state);
            shared.hand_over(&mut state);
        }
    }

    fn is_own_thread(&self) -> bool {
        let own = std::thread::current().id();
        self.threads
            .iter()
            .any(|thread| thread.thread().id() == own)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_by(Instant::now() + LINGER);
        // The last clone may have been inside a waker that the net's own thread drops.
        if self.is_own_thread() {
            return;
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// An unpredictable seed.
fn seed() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    // `RandomState` has keys from the system's randomness; the time adds to them.
    let bits = || u128::from(RandomState::new().hash_one(Instant::now()));
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => u128::from_ne_bytes(bytes),
        _ => bits() << 64 | bits(),
    }
}
