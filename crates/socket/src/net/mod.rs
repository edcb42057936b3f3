//! A host on its links: the stack, the thread that drives it, and its sockets'
//! doors.
//!
//! ```text
//!  link ──► thread ──► lock ─► stack ──► told: condition, waker, descriptor
//!                       ▲        │
//!  a socket's call ─────┘        └────► link
//! ```
//!
//! A host of several stacks has all this once for each, and nothing in common but the
//! thread that makes memory for their tables (`shards::table_memory`): `shards::shard_io`
//! deals out what comes, `shards::mailbox` is where a stack leaves what is another's.
//!
//! The thread waits for the link and for timers. A call takes the lock, does
//! its work and sends what it led to, itself; only if a timer is due earlier
//! than the thread thinks is that woken. A call that waits may do the thread's
//! work: see `driver::leader`.

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
use driver::{StackDriver, unlock, wait};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_stack::iface::Counters;
use weir_stack::tcp::TcpConfig;
use weir_stack::{Config, Shards, Stack};

/// How long a net that is dropped waits at most for peers to have what was
/// written on connections that are closed.
const LINGER: Duration = Duration::from_secs(5);

/// A host on a link, or on several. Clones are the same host; it ends with the last of them
/// and the last of its sockets.
#[derive(Clone)]
pub struct Net(Arc<Running>);

struct Running {
    /// One for each of its stacks.
    shards: Box<[Arc<StackDriver>]>,
    threads: Vec<JoinHandle<()>>,
    /// Where they leave what is each other's.
    mailboxes: Arc<[shards::mailbox::Mailbox]>,
    /// Who of them has which connections and datagrams.
    owners: Shards,
    /// Whose turn it is to open a connection.
    next_shard: AtomicUsize,
    /// The key of TCP Fast Open's cookies, of all its stacks.
    fast_open_key: Mutex<[u8; 16]>,
}

/// What a net has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetStats {
    /// Frames that came.
    pub received: u64,
    /// TCP connections there are, those in TIME-WAIT included.
    pub connections: usize,
    /// Frames that one of the net's stacks has handed to another: see
    /// [`Builder::shards`].
    pub forwarded: u64,
    /// Frames that were to be handed over and found no room.
    pub forwarded_lost: u64,
}

impl Net {
    /// A host on `link`, with a seed of the system's. What the link does for
    /// the stack ([`Config::offload`]) it says itself.
    ///
    /// # Errors
    /// If the configuration is wrong, or the system gives no thread or
    /// descriptor.
    pub fn new(link: impl Link + 'static, config: &Config) -> std::io::Result<Net> {
        Net::with_seed(link, config, seed())
    }

    /// As [`Net::new`], with a seed of the caller's: see [`Stack::new`].
    ///
    /// # Errors
    /// As there.
    pub fn with_seed(
        link: impl Link + 'static,
        config: &Config,
        seed: u128,
    ) -> std::io::Result<Net> {
        Net::builder().link(link, config).seed(seed).start()
    }

    /// A host on several links, each with its addresses and routes: see
    /// [`Stack::with_links`]. It goes on while one of them is left.
    ///
    /// # Errors
    /// As [`Net::new`]; if two links have the same address, or there are none or
    /// too many.
    pub fn with_links(links: Vec<(Box<dyn Link>, Config)>) -> std::io::Result<Net> {
        let add =
            |builder: Builder, (link, config): (_, Config)| builder.queues(vec![link], &config);
        links.into_iter().fold(Net::builder(), add).start()
    }

    /// A host that is told more: its links, its stacks, its seed.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// How TCP connections behave that begin from now on.
    pub fn tcp_configure(&self, config: TcpConfig) {
        for shared in &self.0.shards {
            shared.lock().stack.tcp_configure(config.clone());
        }
    }

    /// The key of the cookies that listeners give from now on
    /// ([`TcpSocket::set_fast_open`](crate::TcpSocket::set_fast_open)); until then
    /// it is the net's own, from its seed. Cookies are made as Linux makes them:
    /// servers behind one address can share a key (`TCP_FASTOPEN_KEY`,
    /// RFC 7413 §6.3.4).
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

    /// The host's addresses, the link-local one of IPv6 included.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.first().lock().stack.addresses().collect()
    }

    /// What happens to addresses and routers, and the latest that happened
    /// until now. Each is told once, to whoever asks first.
    pub fn events(&self) -> Events {
        Events(Arc::clone(&self.0.shards[0]))
    }

    /// Runs `look` on the stack: counters, states. Of several it is the first,
    /// which has all but the others' TCP connections and datagrams.
    pub fn with_stack<T>(&self, look: impl FnOnce(&Stack) -> T) -> T {
        look(&self.first().lock().stack)
    }

    /// As [`Net::with_stack`], of the stack of this number; `None` if there are
    /// fewer.
    pub fn with_shard<T>(&self, number: usize, look: impl FnOnce(&Stack) -> T) -> Option<T> {
        let shared = self.0.shards.get(number)?;
        Some(look(&shared.lock().stack))
    }

    /// How many stacks it has: see [`Builder::shards`].
    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    /// What all its stacks have counted.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for shared in &self.0.shards {
            sum.add(&shared.lock().stack.counters());
        }
        sum
    }

    /// What was counted, of all its stacks.
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

    /// [`NetStats::forwarded`] and [`NetStats::forwarded_lost`], without waiting for any
    /// stack.
    pub fn forwarded(&self) -> (u64, u64) {
        let counted = self
            .0
            .mailboxes
            .iter()
            .map(shards::mailbox::Mailbox::counted);
        counted.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Whether the link is gone, all of them if there are several: no frame will
    /// come or go any more.
    pub fn is_gone(&self) -> bool {
        self.first().lock().is_gone()
    }

    /// Whether one of its links is gone, by number; or never was.
    pub fn is_link_gone(&self, link: u8) -> bool {
        self.first().lock().links().is_gone(link)
    }

    /// The first of its stacks: it has all but the others' TCP connections and
    /// datagrams.
    pub(crate) fn first(&self) -> &StackDriver {
        &self.0.shards[0]
    }

    pub(crate) fn shard(&self, number: usize) -> &StackDriver {
        &self.0.shards[number]
    }

    /// Which of its stacks has the datagrams between these two.
    pub(crate) fn datagram_owner(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        match self.shards() {
            1 => 0,
            _ => self.0.owners.datagram_owner(local, remote),
        }
    }

    /// Its stacks' numbers, each time beginning with another.
    pub(crate) fn turn(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.shards();
        let first = match count {
            1 => 0,
            _ => self.0.next_shard.fetch_add(1, Relaxed),
        };
        (0..count).map(move |step| (first + step) % count)
    }

    /// Whether this is one of the net's threads, on which nobody may wait for
    /// the net.
    pub(crate) fn is_own_thread(&self) -> bool {
        self.0.is_own_thread()
    }
}

impl Running {
    /// Has the threads end, at this time at the latest, or where they were told
    /// an earlier one at that.
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
        // A waker that a thread itself drops may have held the last clone.
        if self.is_own_thread() {
            return;
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
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
