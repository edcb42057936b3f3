//! [`Builder`]: the links, stacks and seed of a net to be started.

use super::driver::StackDriver;
use super::driver::park::Parker;
use super::driver::state::NetState;
use super::io::links::{LinkSlot, OnGone};
use super::io::remote_link::RemoteLink;
use super::shards::mailbox::{FrameBatch, Mailbox};
use super::shards::shard_io::ShardIo;
use super::shards::table_memory;
use super::sock::ready_fd::Hide;
use super::{Net, Running, seed};
use crate::link::Link;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use weir_stack::iface::DadMode;
use weir_stack::tcp::MEMORY_DEFAULT;
use weir_stack::{Config, SHARDS_MAX, Shards, Stack};

/// Configures and starts a [`Net`].
///
/// ```
/// use weir_socket::{Net, link};
/// use weir_stack::Config;
/// use weir_wire::ethernet::Address;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (near, _far) = link::mem()?;
/// let config = Config::new(Address([2, 0, 0, 0, 0, 1])).address("192.0.2.1/24".parse()?);
/// let net = Net::builder().link(near, &config).shards(2).start()?;
/// assert_eq!(net.shards(), 2);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Builder {
    links: Vec<(Vec<Box<dyn Link>>, Config)>,
    shards: usize,
    seed: Option<u128>,
    hide: Hide,
    on_gone: Option<Arc<OnGone>>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            links: Vec::new(),
            shards: 1,
            seed: None,
            hide: |fd| fd,
            on_gone: None,
        }
    }
}

impl Builder {
    /// Adds a link, with the host's addresses and routes on it. Links are numbered in the
    /// order in which they are added: see [`Stack::with_links`].
    pub fn link(self, link: impl Link + 'static, config: &Config) -> Builder {
        self.queues(vec![Box::new(link)], config)
    }

    /// As [`Builder::link`], for a link with several queues
    /// ([`link::Tap::queues`](crate::link::Tap::queues)): each stack gets one queue, as far as
    /// there are enough. All queues must have the same offloads ([`Link::offload`]).
    pub fn queues(mut self, queues: Vec<Box<dyn Link>>, config: &Config) -> Builder {
        self.links.push((queues, config.clone()));
        self
    }

    /// Sets the number of stacks that form the host; default 1, at most
    /// [`SHARDS_MAX`](weir_stack::SHARDS_MAX). A good number is that of the available cores.
    ///
    /// Each stack has its own thread, connections, timers and memory, and waits for no lock
    /// of another stack. One stack owns a TCP connection for its life, by a keyed hash of
    /// addresses and ports; likewise the datagrams between a peer and a local transport port.
    /// The first stack owns everything else. A stack that receives a frame of another stack
    /// hands it over, and so does a stack that sends by a link with fewer queues. The memory
    /// of TCP buffers is divided equally. A listener's backlog and the limits on connections
    /// hold for each stack.
    pub fn shards(mut self, shards: usize) -> Builder {
        self.shards = shards;
        self
    }

    /// Sets the seed, instead of one from the system: see [`Stack::new`].
    pub fn seed(mut self, seed: u128) -> Builder {
        self.seed = Some(seed);
        self
    }

    /// Passes each descriptor that a socket has beside the application's own through `hide`,
    /// which may move it to another number. Without this call the numbers are the system's
    /// choice, the least that are free.
    pub fn hide_fds(mut self, hide: fn(OwnedFd) -> OwnedFd) -> Builder {
        self.hide = hide;
        self
    }

    /// Calls `report` with the number of each link that turns out to be gone, and the reason; once
    /// for each of its queues. The net's lock is held meanwhile: `report` must not use the net.
    pub fn on_link_gone(
        mut self,
        report: impl Fn(u8, &io::Error) + Send + Sync + 'static,
    ) -> Builder {
        self.on_gone = Some(Arc::new(report));
        self
    }

    /// Starts the host.
    ///
    /// # Errors
    /// As [`Net::new`]; also if the number of stacks is 0 or too large, or if a link has no
    /// queue, more queues than stacks, or queues with different offloads.
    pub fn start(self) -> io::Result<Net> {
        let count = self.shards;
        let seed = self.seed.unwrap_or_else(seed);
        let shards = Shards::new(count, seed).map_err(wrong)?;
        let mut links = Vec::new();
        let mut configs = Vec::new();
        for (queues, mut config) in self.links {
            check(&queues, count)?;
            config.offload = queues[0].offload();
            links.push(queues);
            configs.push(config);
        }
        let mut stacks = stacks(&configs, &shards, seed)?;
        let supply = table_memory::chunk_source()?;
        for stack in &mut stacks {
            stack.set_pcb_chunk_source(&supply);
        }
        let wakes = (0..count).map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK));
        let wakes: Vec<OwnedFd> = wakes.collect::<Result<_, _>>()?;
        let mut posts = Vec::new();
        let mut parts = Vec::new();
        for wake in &wakes {
            let (post, queue) = Mailbox::new(wake.try_clone()?);
            posts.push(post);
            parts.push(queue);
        }
        let posts: Arc<[Mailbox]> = posts.into();
        let mut dealt = assign_links(links, &posts);
        let own = dealt.iter_mut().flatten().filter(|held| !held.remote);
        own.for_each(|held| held.on_gone.clone_from(&self.on_gone));
        let mut shared = Vec::new();
        let each = stacks.into_iter().zip(dealt).zip(parts).zip(wakes);
        for (number, (((stack, links), queue), wake)) in each.enumerate() {
            let part = ShardIo::new(number, shards.clone(), Arc::clone(&posts), queue);
            let dup = |held: &LinkSlot| held.link.fd().try_clone_to_owned();
            let fds = links.iter().map(dup).collect::<io::Result<Vec<_>>>()?;
            let part = (count > 1).then(|| Box::new(part));
            let mut state = NetState::new(stack, links, part);
            state.hide = self.hide;
            shared.push(Arc::new(StackDriver {
                state: Mutex::new(state),
                waiting: AtomicUsize::new(0),
                wake,
                wake_call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
                start: Instant::now(),
                parker: Parker::default(),
                links: fds,
            }));
        }
        // All stacks share one key, derived from a seed that no stack uses.
        let key = shards.seed(SHARDS_MAX).to_le_bytes();
        run(shared, posts, shards, key)
    }
}

fn wrong(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// Fails unless a link has queues, at most one for each stack, with equal offloads.
fn check(queues: &[Box<dyn Link>], shards: usize) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    match queues {
        [] => refuse("a link without queues: give it one".to_owned()),
        _ if queues.len() > shards => refuse(format!(
            "{} queues for {shards} shards: open as many as there are shards at most",
            queues.len()
        )),
        [first, rest @ ..] if rest.iter().any(|one| one.offload() != first.offload()) => {
            refuse("queues of one link that do different things: open all alike".to_owned())
        }
        _ => Ok(()),
    }
}

/// Makes the host's stacks. The first manages addresses and all else that a host has once;
/// the other stacks take its addresses and routes over.
fn stacks(configs: &[Config], shards: &Shards, seed: u128) -> io::Result<Vec<Stack>> {
    let mut first = Stack::with_links(configs, seed).map_err(wrong)?;
    let count = shards.count();
    if count == 1 {
        return Ok(vec![first]);
    }
    let follower = |config: &Config| Config {
        addresses: Vec::new(),
        routes: Vec::new(),
        dad_mode: DadMode::Off,
        autoconf: false,
        dhcp: false,
        ..config.clone()
    };
    let followers: Vec<Config> = configs.iter().map(follower).collect();
    let addressing = first.addressing();
    first.tcp_shard(shards.clone(), 0);
    first.tcp_limit_memory(MEMORY_DEFAULT / count);
    let mut stacks = vec![first];
    for number in 1..count {
        let seed = shards.seed(number);
        let mut stack = Stack::with_links(&followers, seed).map_err(wrong)?;
        stack.apply_addressing(&addressing);
        stack.tcp_shard(shards.clone(), number);
        stack.tcp_limit_memory(MEMORY_DEFAULT / count);
        stacks.push(stack);
    }
    Ok(stacks)
}

/// Assigns links to stacks: each stack gets a queue, or a relay to a stack that has one.
fn assign_links(links: Vec<Vec<Box<dyn Link>>>, posts: &Arc<[Mailbox]>) -> Vec<Vec<LinkSlot>> {
    let mut dealt: Vec<Vec<LinkSlot>> = posts.iter().map(|_| Vec::new()).collect();
    for (link, queues) in (0..).zip(links) {
        let gone: Vec<_> = queues
            .iter()
            .map(|_| Arc::new(AtomicBool::new(false)))
            .collect();
        let mut queues = queues.into_iter();
        for (number, held) in dealt.iter_mut().enumerate() {
            held.push(match queues.next() {
                Some(queue) if posts.len() == 1 => LinkSlot::own(queue),
                Some(queue) => LinkSlot {
                    gone_flag: Some(Arc::clone(&gone[number])),
                    ..LinkSlot::own(queue)
                },
                None => {
                    let holder = number % gone.len();
                    let relay = RemoteLink {
                        mailboxes: Arc::clone(posts),
                        number,
                        owner: holder,
                        link,
                        gone: Arc::clone(&gone[holder]),
                        batch: FrameBatch::default(),
                        full: false,
                    };
                    LinkSlot {
                        link: Box::new(relay),
                        remote: true,
                        gone_flag: None,
                        on_gone: None,
                    }
                }
            });
        }
    }
    dealt
}

/// Starts the threads.
fn run(
    shards: Vec<Arc<StackDriver>>,
    posts: Arc<[Mailbox]>,
    owners: Shards,
    fast_open_key: [u8; 16],
) -> io::Result<Net> {
    // If a thread does not start, dropping `Running` ends the threads already started.
    let mut running = Running {
        shards: shards.into(),
        threads: Vec::new(),
        next_shard: AtomicUsize::new(0),
        fast_open_key: Mutex::new(fast_open_key),
        mailboxes: posts,
        owners,
    };
    for (number, shared) in running.shards.iter().map(Arc::clone).enumerate() {
        let all: Vec<_> = running.shards.iter().map(Arc::clone).collect();
        let name = match number {
            0 => "weir-net".to_owned(),
            _ => format!("weir-net-{number}"),
        };
        let thread = std::thread::Builder::new().name(name);
        match thread.spawn(move || shared.drive_among(&all)) {
            Ok(thread) => running.threads.push(thread),
            Err(error) => {
                // The other stacks' calls would wait for frames of this stack.
                running.stop_by(Instant::now());
                return Err(error);
            }
        }
    }
    Ok(Net(Arc::new(running)))
}
