//! The thread that relays: it copies the bytes of pairs and the datagrams of UDP sockets, accepts for
//! listeners, and answers the requests of children, of guests and of `weir sockets`.
//!
//! The thread waits for the owner's ends by epoll, and for the streams as a task, by wakers. Its
//! wait drives the host, as other waits do.

use super::datagrams::Datagrams;
use super::door::{Door, GUESTS_MAX, Guest, Household, STRANGERS_MAX};
use super::lease::Child;
use super::listening::Listening;
use super::pair::{CHUNK, Pair};
use super::protocol::{DATAGRAM_MAX, HEADER, Key};
use crate::host;
use crate::signals;
use crate::sock::Sock;
use crate::status::{ANSWERS_MAX, Answer, List, Status};
use libc::c_int;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};
use weir_socket::Net;

/// Events that one wait takes.
const EVENTS: usize = 64;
/// The event of [`Shared::wake`].
const WAKE: u64 = 0;

/// Pause of an item whose next turn waits for what the kernel does not report.
const PAUSE: Duration = Duration::from_millis(20);

/// What to wait for at a descriptor, besides its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

const READ: Interest = Interest {
    read: true,
    write: false,
};

/// What the thread looks after.
pub(super) enum Item {
    Pair(Pair),
    Listening(Listening),
    Datagrams(Datagrams),
    Child(Child),
    Door(Door),
    Guest(Guest),
    Status(Status),
    Answer(Answer),
}

impl Item {
    /// Whether other processes may be using it.
    fn is_relay(&self) -> bool {
        self.socket().is_some()
    }

    /// The socket that is relayed, and its key.
    fn socket(&self) -> Option<(&Key, &Sock)> {
        match self {
            Item::Pair(pair) => Some(pair.socket()),
            Item::Listening(listening) => Some(listening.socket()),
            Item::Datagrams(datagrams) => Some(datagrams.socket()),
            Item::Child(_) | Item::Door(_) | Item::Guest(_) => None,
            Item::Status(_) | Item::Answer(_) => None,
        }
    }

    /// Whether it is a guest's connection; within, whether the guest has sent the secret.
    fn guest(&self) -> Option<bool> {
        match self {
            Item::Guest(guest) => Some(guest.is_known()),
            _ => None,
        }
    }

    fn fd(&self) -> &OwnedFd {
        match self {
            Item::Pair(pair) => pair.fd(),
            Item::Listening(listening) => listening.fd(),
            Item::Datagrams(datagrams) => datagrams.fd(),
            Item::Child(child) => child.fd(),
            Item::Door(door) => door.fd(),
            Item::Guest(guest) => guest.fd(),
            Item::Status(status) => status.fd(),
            Item::Answer(answer) => answer.fd(),
        }
    }
}

/// What the thread shares with others.
struct Shared {
    /// New items.
    new: Mutex<Vec<Item>>,
    /// Items whose streams have woken.
    woken: Mutex<Vec<u64>>,
    /// An eventfd, readable if either list has members.
    wake: OwnedFd,
    is_awake: AtomicBool,
    /// Pairs, listeners, UDP sockets: what other processes may be using.
    relays: AtomicUsize,
    /// Whether no guest gets a socket any more.
    is_closed: AtomicBool,
    /// Children that have leases, and when the last of them was forked.
    children: AtomicUsize,
    last_fork: Mutex<Option<Instant>>,
}

/// How long after a fork a child may still be about to use a socket of its parent that ends.
const YOUTH: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn wake(&self) {
        if !self.is_awake.swap(true, SeqCst) {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }
}

/// The thread, for those who give it items.
#[derive(Clone)]
pub(crate) struct Pump(Arc<Shared>);

struct ItemWaker {
    id: u64,
    shared: Arc<Shared>,
}

impl Wake for ItemWaker {
    fn wake(self: Arc<ItemWaker>) {
        lock(&self.shared.woken).push(self.id);
        self.shared.wake();
    }
}

impl Pump {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system provides no descriptors or no thread.
    pub(super) fn start(net: Net) -> Result<Pump, c_int> {
        let error = |error: rustix::io::Errno| error.raw_os_error();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(error)?;
        let set = epoll::create(CreateFlags::CLOEXEC).map_err(error)?;
        let shared = Shared {
            new: Mutex::default(),
            woken: Mutex::default(),
            wake: host::hide(wake),
            is_awake: AtomicBool::new(false),
            relays: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            children: AtomicUsize::new(0),
            last_fork: Mutex::default(),
        };
        let pump = Pump(Arc::new(shared));
        let data = EventData::new_u64(WAKE);
        epoll::add(&set, &pump.0.wake, data, EventFlags::IN).map_err(error)?;
        let mut thread = Thread {
            net,
            set: host::hide(set),
            shared: Arc::clone(&pump.0),
            items: HashMap::new(),
            keys: HashMap::new(),
            over: Over::default(),
            next: WAKE + 1,
            later: VecDeque::new(),
        };
        // The application's handlers do not run in this thread.
        let mask = signals::block_all();
        let spawned = std::thread::Builder::new()
            .name("weir-relay".to_owned())
            .spawn(move || thread.run());
        drop(mask);
        match spawned {
            Ok(_) => Ok(pump),
            Err(error) => Err(crate::sock::errno(&error)),
        }
    }

    /// Gives the thread an item.
    pub(super) fn add(&self, item: Item) {
        if item.is_relay() {
            self.0.relays.fetch_add(1, SeqCst);
        }
        if matches!(item, Item::Child(_)) {
            self.0.children.fetch_add(1, SeqCst);
            *lock(&self.0.last_fork) = Some(Instant::now());
        }
        lock(&self.0.new).push(item);
        self.0.wake();
    }

    /// Whether a child was forked a moment ago, and has not yet used, closed or left the sockets that
    /// it has from this process.
    pub(crate) fn has_young_children(&self) -> bool {
        let last_fork = *lock(&self.0.last_fork);
        let is_young = last_fork.is_some_and(|fork| fork.elapsed() < YOUTH);
        is_young && self.0.children.load(SeqCst) > 0
    }

    /// Closes the door for good if no socket is relayed; returns how many are.
    pub(crate) fn close(&self) -> usize {
        if self.relays() > 0 {
            return self.relays();
        }
        self.0.is_closed.store(true, SeqCst);
        // A guest that is being answered counts as a socket, or finds the door closed.
        let relays = self.relays();
        if relays > 0 {
            self.0.is_closed.store(false, SeqCst);
        }
        relays
    }

    /// Number of relayed sockets.
    pub(crate) fn relays(&self) -> usize {
        self.0.relays.load(SeqCst)
    }
}

struct Entry {
    item: Item,
    waker: Waker,
    /// What the descriptor is in the epoll set for; `None` if it is not a member any more.
    registered: Option<Interest>,
}

/// Connections that are over whose options are known: nothing says when the last process has closed one.
const OVER_MAX: usize = 1024;

/// The options of the last connections that have ended.
#[derive(Default)]
struct Over {
    options: HashMap<Key, Sock>,
    /// The oldest first.
    keys: VecDeque<Key>,
}

impl Over {
    fn add(&mut self, (key, sock): (&Key, &Sock)) {
        if self.keys.len() == OVER_MAX
            && let Some(oldest) = self.keys.pop_front()
        {
            self.options.remove(&oldest);
        }
        self.keys.push_back(*key);
        self.options.insert(*key, Sock::options_of(sock));
    }

    fn get(&self, key: &Key) -> Option<&Sock> {
        self.options.get(key)
    }
}

struct Thread {
    net: Net,
    set: OwnedFd,
    shared: Arc<Shared>,
    items: HashMap<u64, Entry>,
    /// The relayed sockets by key.
    keys: HashMap<Key, u64>,
    over: Over,
    next: u64,
    /// Items that have another turn after a pause, the earliest first.
    later: VecDeque<(Instant, u64)>,
}

impl Thread {
    fn run(&mut self) {
        let _inside = signals::enter();
        // A datagram with its header may be longer than a chunk.
        let mut scratch = vec![0; CHUNK.max(HEADER + DATAGRAM_MAX + 1)];
        let mut due: HashSet<u64> = HashSet::new();
        loop {
            if due.is_empty() {
                self.wait();
            }
            due.extend(self.ready());
            due.extend(self.paused());
            self.enter_new(&mut due);
            // Sockets that have ended free their addresses before guests ask for them.
            let (guests, others): (Vec<u64>, Vec<u64>) =
                due.drain().partition(|id| self.is_guest(*id));
            for id in others.into_iter().chain(guests) {
                if self.turn(id, &mut scratch) {
                    due.insert(id);
                }
            }
        }
    }

    fn is_guest(&self, id: u64) -> bool {
        let entry = self.items.get(&id);
        entry.is_some_and(|entry| matches!(entry.item, Item::Guest(_)))
    }

    /// Waits until a descriptor is ready, and drives the host.
    fn wait(&self) {
        if self.shared.relays.load(SeqCst) == 0 {
            // No stream is to be copied from: other threads' waits drive the host.
            let _ = poll(&mut [PollFd::new(&self.set, PollFlags::IN)], None);
            return;
        }
        // SAFETY: the set lives as long as the thread.
        let set = unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&self.set)) };
        let mut fds = vec![PollFd::from_borrowed_fd(set, PollFlags::IN)];
        let next = self.later.front().map(|(at, _)| *at);
        let polled = self
            .net
            .poll(&mut fds, next, &mut |fds, time| poll(fds, time));
        if polled.is_err() {
            // The host does not run: only the descriptors are left.
            let left = next.map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let _ = poll(&mut [PollFd::new(&self.set, PollFlags::IN)], left.as_ref());
        }
    }

    /// The items whose pause is over.
    fn paused(&mut self) -> Vec<u64> {
        let now = Instant::now();
        let over = self.later.partition_point(|(at, _)| *at <= now);
        self.later.drain(..over).map(|(_, id)| id).collect()
    }

    /// The items that descriptors or streams have made ready.
    fn ready(&mut self) -> Vec<u64> {
        let mut events = Vec::with_capacity(EVENTS);
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let _ = epoll::wait(
            &self.set,
            rustix::buffer::spare_capacity(&mut events),
            Some(&none),
        );
        let mut ready: Vec<u64> = Vec::new();
        for event in events {
            match event.data.u64() {
                WAKE => {
                    let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
                    self.shared.is_awake.store(false, SeqCst);
                }
                id => {
                    let flags = event.flags;
                    if flags.contains(EventFlags::HUP) {
                        self.note_end(id);
                    }
                    ready.push(id);
                }
            }
        }
        ready.append(&mut lock(&self.shared.woken));
        ready
    }

    /// The end of an item's descriptor, which epoll reports again and again, whatever the interest: an
    /// item that waits for its stream alone leaves the set.
    fn note_end(&mut self, id: u64) {
        let Some(entry) = self.items.get_mut(&id) else {
            return;
        };
        if entry.registered == Some(Interest::default()) {
            let _ = epoll::delete(&self.set, entry.item.fd());
            entry.registered = None;
            if let Item::Pair(pair) = &entry.item {
                pair.limit_rest();
            }
        }
    }

    fn enter_new(&mut self, due: &mut HashSet<u64>) {
        let new = std::mem::take(&mut *lock(&self.shared.new));
        for item in new {
            let id = self.next;
            self.next += 1;
            let data = EventData::new_u64(id);
            // A descriptor without interest still reports its end.
            let _ = epoll::add(&self.set, item.fd(), data, EventFlags::empty());
            let waker = Waker::from(Arc::new(ItemWaker {
                id,
                shared: Arc::clone(&self.shared),
            }));
            let entry = Entry {
                item,
                waker,
                registered: Some(Interest::default()),
            };
            if let Some((key, _)) = entry.item.socket() {
                self.keys.insert(*key, id);
            }
            self.items.insert(id, entry);
            due.insert(id);
        }
    }

    /// Does an item's work; returns whether there is more.
    fn turn(&mut self, id: u64, scratch: &mut [u8]) -> bool {
        // The item is out of the list meanwhile, so that a guest's requests find all others there.
        let Some(mut entry) = self.items.remove(&id) else {
            return false;
        };
        let mut context = Context::from_waker(&entry.waker);
        let mut again = false;
        let wanted = match &mut entry.item {
            Item::Pair(pair) => pair.turn(&mut context, scratch, &mut again),
            Item::Listening(listening) => {
                let mut later = false;
                let pump = Pump(self.shared.clone());
                let interest = listening.turn(&mut context, &pump, &mut later);
                let is_paused = self.later.iter().any(|(_, other)| *other == id);
                if later && !is_paused {
                    self.later.push_back((Instant::now() + PAUSE, id));
                }
                interest
            }
            Item::Datagrams(datagrams) => datagrams.turn(&mut context, scratch, &mut again),
            Item::Child(child) => child.turn(&mut again),
            Item::Guest(guest) => self.serve(guest, scratch, &mut again),
            Item::Door(door) => {
                let strangers = door.strangers();
                self.let_in(strangers);
                Some(READ)
            }
            Item::Status(status) => {
                let clients = status.clients();
                self.answer(clients);
                Some(READ)
            }
            Item::Answer(answer) => answer.turn().then_some(Interest {
                read: false,
                write: true,
            }),
        };
        match wanted {
            Some(wanted) => {
                self.set_interest(id, &mut entry, wanted);
                self.items.insert(id, entry);
                again
            }
            None => {
                self.forget(&entry);
                false
            }
        }
    }

    /// Forgets an item that is out of the list.
    fn forget(&mut self, entry: &Entry) {
        let _ = epoll::delete(&self.set, entry.item.fd());
        if matches!(entry.item, Item::Child(_)) {
            self.shared.children.fetch_sub(1, SeqCst);
        }
        if let Some((key, _)) = entry.item.socket() {
            self.keys.remove(key);
            self.shared.relays.fetch_sub(1, SeqCst);
        }
        if let Item::Pair(pair) = &entry.item
            && pair.is_over()
        {
            self.over.add(pair.socket());
        }
    }

    /// Answers a guest.
    fn serve(&self, guest: &mut Guest, scratch: &mut [u8], again: &mut bool) -> Option<Interest> {
        let find = |key: &Key| {
            let Some(id) = self.keys.get(key) else {
                return self.over.get(key);
            };
            let (_, sock) = self.items.get(id)?.item.socket()?;
            Some(sock)
        };
        // Before a look at whether the door is closed.
        self.shared.relays.fetch_add(1, SeqCst);
        let house = Household {
            has_room: self.shared.relays.load(SeqCst) < host::relays_max(),
            is_closed: self.shared.is_closed.load(SeqCst),
            find: &find,
        };
        let served = guest.turn(scratch, &house, again);
        let interest = served.map(|(interest, item)| {
            if let Some(item) = item {
                Pump(Arc::clone(&self.shared)).add(item);
            }
            interest
        });
        self.shared.relays.fetch_sub(1, SeqCst);
        interest
    }

    /// Takes in the connections of processes that may become guests.
    fn let_in(&mut self, strangers: Vec<OwnedFd>) {
        let guests = self.items.iter();
        let guests = guests.filter_map(|(id, entry)| Some((*id, entry.item.guest()?)));
        let (known, mut unknown): (Vec<_>, Vec<_>) = guests.partition(|(_, is_known)| *is_known);
        let room = GUESTS_MAX.saturating_sub(known.len()).min(STRANGERS_MAX);
        unknown.sort_unstable();
        let over = (unknown.len() + strangers.len()).saturating_sub(room);
        for (id, _) in unknown.into_iter().take(over) {
            if let Some(entry) = self.items.remove(&id) {
                self.forget(&entry);
            }
        }
        let new = strangers.into_iter().take(room);
        let new = new.map(|stranger| Item::Guest(Guest::new(stranger)));
        lock(&self.shared.new).extend(new);
        self.shared.wake();
    }

    /// Registers what an item waits for.
    fn set_interest(&self, id: u64, entry: &mut Entry, wanted: Interest) {
        let is_empty = wanted == Interest::default();
        if entry.registered == Some(wanted) || entry.registered.is_none() && is_empty {
            return;
        }
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, wanted.read);
        flags.set(EventFlags::OUT, wanted.write);
        let data = EventData::new_u64(id);
        let _ = match entry.registered {
            Some(_) => epoll::modify(&self.set, entry.item.fd(), data, flags),
            None => epoll::add(&self.set, entry.item.fd(), data, flags),
        };
        entry.registered = Some(wanted);
    }

    /// Lists the process's sockets for clients.
    fn answer(&mut self, clients: Vec<OwnedFd>) {
        if clients.is_empty() {
            return;
        }
        let mut list = List::new();
        for entry in self.items.values() {
            match &entry.item {
                Item::Pair(pair) => list.shared_stream(pair.socket().1, pair.fd(), pair.stream()),
                Item::Listening(listening) => {
                    list.shared_listener(listening.socket().1, listening.fd())
                }
                Item::Datagrams(datagrams) => list.shared_datagrams(datagrams.socket().1),
                Item::Child(_) | Item::Door(_) | Item::Guest(_) => {}
                Item::Status(_) | Item::Answer(_) => {}
            }
        }
        let is_answer = |entry: &Entry| matches!(entry.item, Item::Answer(_));
        let ids = self.items.iter().filter(|(_, entry)| is_answer(entry));
        let mut ids: Vec<u64> = ids.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let over = (ids.len() + clients.len()).saturating_sub(ANSWERS_MAX);
        for id in ids.into_iter().take(over) {
            self.items.remove(&id);
        }
        let new = clients.into_iter().map(|client| {
            let text = list.text();
            Item::Answer(Answer::new(client, text))
        });
        lock(&self.shared.new).extend(new);
        self.shared.wake();
    }
}
