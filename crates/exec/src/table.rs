//! The table of the application's descriptors that are sockets of weir, or may become some.
//!
//! Each call on a descriptor asks this table first. The answer for other descriptors is one load,
//! so that their calls cost next to nothing more.

use crate::signals;
use crate::sock::{Endpoint, Sock};
use libc::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Limit on the number of a descriptor that can be a socket of weir: Linux' default for
/// `fs.nr_open`. The sockets of larger numbers stay the kernel's.
pub(crate) const FDS_MAX: usize = 1 << 20;
/// Slots that are allocated together.
const CHUNK: usize = 1 << 10;

/// The kind of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    /// Not of this library.
    Other = 0,
    /// A socket of the kernel that may become one of weir.
    Open = 1,
    /// A socket of weir.
    Live = 2,
    /// A socket of weir in the process that forked this one.
    Leased = 3,
    /// The application's end of a relayed pair, which the kernel looks after.
    Relay = 4,
    /// As above, of a UDP socket.
    Datagrams = 5,
}

static KINDS: [AtomicU8; FDS_MAX] = [const { AtomicU8::new(Kind::Other as u8) }; FDS_MAX];
/// Descriptors of this library itself, a bit each: the application cannot close them.
static HIDDEN: [AtomicU8; FDS_MAX / 8] = [const { AtomicU8::new(0) }; FDS_MAX / 8];

/// Relayed descriptors whose error was reported, a bit each.
static REPORTED: [AtomicU8; FDS_MAX / 8] = [const { AtomicU8::new(0) }; FDS_MAX / 8];

/// Relayed descriptors of which `connect(2)` has not said that they are open, a bit each.
static OPENING: [AtomicU8; FDS_MAX / 8] = [const { AtomicU8::new(0) }; FDS_MAX / 8];

/// One more than the largest number of a descriptor that was ever entered.
static END: AtomicUsize = AtomicUsize::new(0);

/// Descriptors of epoll sets that sockets of weir are in, a bit each.
static SETS: [AtomicU8; FDS_MAX / 8] = [const { AtomicU8::new(0) }; FDS_MAX / 8];

/// Descriptors of epoll sets that were made by `epoll_create(2)` and that nothing but
/// `epoll_wait(2)` has to do with, a bit each.
static PLAIN_SETS: [AtomicU8; FDS_MAX / 8] = [const { AtomicU8::new(0) }; FDS_MAX / 8];
/// One more than the largest number of both.
static SETS_END: AtomicUsize = AtomicUsize::new(0);

type Slot = Mutex<Option<Arc<Sock>>>;

/// The sockets by descriptor. The child of a fork has a new one.
struct Slots([OnceLock<Box<[Slot]>>; FDS_MAX / CHUNK]);

static FIRST: Slots = Slots([const { OnceLock::new() }; FDS_MAX / CHUNK]);
static SLOTS: AtomicPtr<Slots> = AtomicPtr::new(std::ptr::null_mut());

fn slot(fd: usize) -> &'static Slot {
    let own = SLOTS.load(Acquire);
    let slots = if own.is_null() {
        &FIRST
    } else {
        // SAFETY: the pointer is to a value that is never freed.
        unsafe { &*own }
    };
    let chunk = slots.0[fd / CHUNK]
        .get_or_init(|| std::iter::repeat_with(Slot::default).take(CHUNK).collect());
    &chunk[fd % CHUNK]
}

fn lock(fd: usize) -> MutexGuard<'static, Option<Arc<Sock>>> {
    slot(fd).lock().unwrap_or_else(PoisonError::into_inner)
}

fn index(fd: c_int) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < FDS_MAX)
}

#[inline]
fn kind(fd: c_int) -> u8 {
    match KINDS.get(fd as usize) {
        Some(kind) => kind.load(Relaxed),
        // Also negative numbers.
        None => Kind::Other as u8,
    }
}

/// The socket of weir with this descriptor. A leased one is taken first, and then the kernel's to
/// share, so that there is `None`.
#[inline]
pub(crate) fn live(fd: c_int) -> Option<Arc<Sock>> {
    match kind(fd) {
        LIVE | LEASED => found(fd),
        _ => None,
    }
}

/// As [`live`], behind the load that is enough for other descriptors.
#[inline(never)]
fn found(fd: c_int) -> Option<Arc<Sock>> {
    if kind(fd) == LEASED {
        return taken(fd);
    }
    // A handler must not wait for the lock that its own thread has.
    let _inside = signals::enter();
    lock(fd as usize).clone()
}

const OPEN: u8 = Kind::Open as u8;
const LIVE: u8 = Kind::Live as u8;
const LEASED: u8 = Kind::Leased as u8;
const RELAY: u8 = Kind::Relay as u8;
const DATAGRAMS: u8 = Kind::Datagrams as u8;

/// Takes a leased socket; returns it if that is not possible.
#[cold]
fn taken(fd: c_int) -> Option<Arc<Sock>> {
    let _inside = signals::enter();
    let sock = lock(fd as usize).clone()?;
    match sock.endpoint() {
        Endpoint::Foreign(0) => Some(sock),
        Endpoint::Foreign(id) => match crate::fork::take(&sock, id) {
            Ok(()) => None,
            Err(_) => Some(sock),
        },
        _ => None,
    }
}

/// The socket of weir with this descriptor, unless it is leased.
pub(crate) fn own(fd: c_int) -> Option<Arc<Sock>> {
    if kind(fd) == LIVE { found(fd) } else { None }
}

/// The socket with this descriptor, which is of weir or may become so. A leased one as in
/// [`live`].
#[inline]
pub(crate) fn any(fd: c_int) -> Option<Arc<Sock>> {
    match kind(fd) {
        OPEN | LIVE | LEASED => found(fd),
        _ => None,
    }
}

/// Whether the descriptor is of a socket of weir. A leased one as in [`live`].
#[inline]
pub(crate) fn is_live(fd: c_int) -> bool {
    match kind(fd) {
        LIVE => true,
        LEASED => taken(fd).is_some(),
        _ => false,
    }
}

/// Whether the descriptor is in the table.
#[inline]
pub(crate) fn is_known(fd: c_int) -> bool {
    kind(fd) != Kind::Other as u8
}

/// Whether the descriptor is the application's end of a relayed pair.
#[inline]
pub(crate) fn is_relay(fd: c_int) -> bool {
    matches!(kind(fd), RELAY | DATAGRAMS)
}

/// Whether the descriptor is the application's end of a relayed UDP socket.
#[inline]
pub(crate) fn is_datagrams(fd: c_int) -> bool {
    kind(fd) == DATAGRAMS
}

/// Records that a descriptor is the application's end of a relayed pair; `is_datagrams` says of a
/// UDP socket.
pub(crate) fn mark_relay(fd: c_int, is_datagrams: bool) {
    if let Some(at) = index(fd) {
        END.fetch_max(at + 1, Relaxed);
        REPORTED[at / 8].fetch_and(!(1 << (at % 8)), Relaxed);
        OPENING[at / 8].fetch_and(!(1 << (at % 8)), Relaxed);
        let kind = if is_datagrams { DATAGRAMS } else { RELAY };
        KINDS[at].store(kind, Release);
    }
}

/// Ends [`mark_relay`].
pub(crate) fn forget_relay(fd: c_int) {
    if let Some(at) = index(fd) {
        let other = Kind::Other as u8;
        for relay in [RELAY, DATAGRAMS] {
            let _ = KINDS[at].compare_exchange(relay, other, Release, Relaxed);
        }
    }
}

/// Records whether `connect(2)` has yet to say that a relayed connection is open.
pub(crate) fn set_opening(fd: c_int, is_opening: bool) {
    if let Some(at) = index(fd) {
        let bit = 1 << (at % 8);
        if is_opening {
            OPENING[at / 8].fetch_or(bit, Relaxed);
        } else {
            OPENING[at / 8].fetch_and(!bit, Relaxed);
        }
    }
}

/// Whether `connect(2)` has yet to say that a relayed connection is open.
#[inline]
pub(crate) fn is_opening(fd: c_int) -> bool {
    match OPENING.get(fd as usize / 8) {
        Some(bits) => bits.load(Relaxed) >> (fd as usize % 8) & 1 != 0,
        None => false,
    }
}

/// Marks a relayed descriptor's error as reported; returns whether it was not before.
pub(crate) fn report_once(fd: c_int) -> bool {
    index(fd).is_some_and(|at| {
        let bit = 1 << (at % 8);
        REPORTED[at / 8].fetch_or(bit, Relaxed) & bit == 0
    })
}

/// The descriptors from `first` to `last` that are relayed.
pub(crate) fn relays(first: usize, last: usize) -> Vec<c_int> {
    of_kind(first, last, |kind| matches!(kind, RELAY | DATAGRAMS))
}

/// The descriptors that are leased.
pub(crate) fn leased() -> Vec<c_int> {
    of_kind(0, usize::MAX, |kind| kind == LEASED)
}

fn of_kind(first: usize, last: usize, wanted: impl Fn(u8) -> bool) -> Vec<c_int> {
    let end = last.saturating_add(1).min(END.load(Relaxed));
    let all = (first.min(end)..end).filter(|fd| wanted(KINDS[*fd].load(Relaxed)));
    all.map(|fd| fd as c_int).collect()
}

/// Gives a descriptor of `sock` to `end`, the application's end of a pair.
pub(crate) fn hand_over(fd: c_int, sock: &Sock, end: &OwnedFd) -> Result<(), c_int> {
    let mut slot = lock(fd as usize);
    if !slot.as_ref().is_some_and(|at| std::ptr::eq(&**at, sock)) {
        // It was closed meanwhile.
        return Ok(());
    }
    crate::sock::replace(end.as_fd(), fd)?;
    mark_relay(fd, sock.kind == libc::SOCK_DGRAM);
    let before = slot.take();
    drop(slot);
    // The caller has the socket, so that it does not end here.
    drop(before);
    Ok(())
}

/// Enters a socket for its descriptor; false if the number is too large.
pub(crate) fn insert(fd: c_int, sock: &Arc<Sock>) -> bool {
    let Some(at) = index(fd) else {
        return false;
    };
    let _inside = signals::enter();
    END.fetch_max(at + 1, Relaxed);
    let mut slot = lock(at);
    // A socket whose descriptor was closed past this library: its number is another's now.
    let before = slot.replace(Arc::clone(sock));
    if let Some(before) = &before {
        before.remove_fd(fd);
    }
    sock.add_fd(fd);
    if let Some(end) = sock.relay() {
        // It has moved since the caller looked.
        let replaced = crate::sock::replace(end.as_fd(), fd);
        sock.remove_fd(fd);
        slot.take();
        mark_relay(fd, sock.kind == libc::SOCK_DGRAM);
        drop(slot);
        drop(before);
        return replaced.is_ok();
    }
    let kind = if sock.is_foreign() {
        Kind::Leased
    } else if sock.is_live() {
        Kind::Live
    } else {
        Kind::Open
    };
    KINDS[at].store(kind as u8, Release);
    drop(slot);
    drop(before);
    true
}

/// Takes a descriptor's socket out; the caller then closes the descriptor.
pub(crate) fn remove(fd: c_int) -> Option<Arc<Sock>> {
    if kind(fd) == Kind::Other as u8 {
        return None;
    }
    let _inside = signals::enter();
    let mut slot = lock(fd as usize);
    KINDS[fd as usize].store(Kind::Other as u8, Release);
    let sock = slot.take();
    if let Some(sock) = &sock {
        sock.remove_fd(fd);
    }
    sock
}

/// Records that the socket of these descriptors is now one of weir.
pub(crate) fn set_live(fds: &[c_int]) {
    for fd in fds.iter().filter_map(|fd| index(*fd)) {
        KINDS[fd].store(Kind::Live as u8, Release);
    }
}

/// Gives a descriptor of `sock` to a socket of the kernel, of which an address decides again.
pub(crate) fn reopen(fd: c_int, sock: &Sock, kernels: &OwnedFd) -> Result<(), c_int> {
    let slot = lock(fd as usize);
    if !slot.as_ref().is_some_and(|at| std::ptr::eq(&**at, sock)) {
        // It was closed meanwhile.
        return Ok(());
    }
    crate::sock::replace(kernels.as_fd(), fd)?;
    KINDS[fd as usize].store(Kind::Open as u8, Release);
    Ok(())
}

/// The descriptors from `first` to `last` that are sockets, with their sockets.
pub(crate) fn range(first: usize, last: usize) -> Vec<(c_int, Arc<Sock>)> {
    let end = last.saturating_add(1).min(END.load(Relaxed));
    let all = (first.min(end)..end).filter(|fd| KINDS[*fd].load(Relaxed) != Kind::Other as u8);
    all.filter_map(|fd| Some((fd as c_int, lock(fd).clone()?)))
        .collect()
}

/// Begins a new table in the child of a fork, where the locks of the old one may be held by threads
/// that do not exist. `inherit` makes the child's socket for a descriptor; the argument says
/// whether it was a socket of weir. Relayed descriptors stay so.
pub(crate) fn begin_anew(inherit: impl Fn(c_int, bool) -> Option<Arc<Sock>>) {
    let slots = Box::new(Slots([const { OnceLock::new() }; FDS_MAX / CHUNK]));
    SLOTS.store(Box::into_raw(slots), Release);
    for (fd, kind) in KINDS.iter().enumerate().take(END.load(Relaxed)) {
        let was = kind.load(Relaxed);
        if matches!(was, RELAY | DATAGRAMS) {
            continue;
        }
        kind.store(Kind::Other as u8, Relaxed);
        if was != Kind::Other as u8
            && let Some(sock) = inherit(fd as c_int, was != OPEN)
        {
            insert(fd as c_int, &sock);
        }
    }
}

/// Records whether a descriptor is of an epoll set with sockets of weir.
pub(crate) fn mark_set(fd: c_int, has: bool) {
    if let Some(at) = index(fd) {
        let bit = 1 << (at % 8);
        if has {
            SETS_END.fetch_max(at + 1, Relaxed);
            SETS[at / 8].fetch_or(bit, SeqCst);
        } else {
            SETS[at / 8].fetch_and(!bit, SeqCst);
        }
    }
}

/// Whether a descriptor is of an epoll set with sockets of weir.
#[inline]
pub(crate) fn is_set(fd: c_int) -> bool {
    match SETS.get(fd as usize / 8) {
        Some(bits) => bits.load(SeqCst) >> (fd as usize % 8) & 1 != 0,
        None => false,
    }
}

/// Records whether a descriptor is of an epoll set that only `epoll_wait(2)` waits for.
pub(crate) fn mark_plain_set(fd: c_int, is_plain: bool) {
    if let Some(at) = index(fd) {
        let bit = 1 << (at % 8);
        if is_plain {
            SETS_END.fetch_max(at + 1, Relaxed);
            PLAIN_SETS[at / 8].fetch_or(bit, SeqCst);
        } else {
            PLAIN_SETS[at / 8].fetch_and(!bit, SeqCst);
        }
    }
}

/// Whether a descriptor is of an epoll set that only `epoll_wait(2)` waits for.
#[inline]
pub(crate) fn is_plain_set(fd: c_int) -> bool {
    match PLAIN_SETS.get(fd as usize / 8) {
        Some(bits) => bits.load(SeqCst) >> (fd as usize % 8) & 1 != 0,
        None => false,
    }
}

/// The descriptors of epoll sets that only `epoll_wait(2)` waits for.
pub(crate) fn plain_sets() -> Vec<c_int> {
    let all = 0..SETS_END.load(Relaxed) as c_int;
    all.filter(|fd| is_plain_set(*fd)).collect()
}

/// The descriptors of epoll sets that only `epoll_wait(2)` waits for, or that sockets of weir are in.
pub(crate) fn sets() -> Vec<c_int> {
    let all = 0..SETS_END.load(Relaxed) as c_int;
    all.filter(|fd| is_plain_set(*fd) || is_set(*fd)).collect()
}

/// Marks a descriptor as this library's own.
pub(crate) fn hide(fd: c_int) {
    if let Some(at) = index(fd) {
        HIDDEN[at / 8].fetch_or(1 << (at % 8), Relaxed);
    }
}

/// The library's own descriptors from `first` to `last`, in order.
pub(crate) fn hidden(first: usize, last: usize) -> Vec<u32> {
    let end = last.saturating_add(1).min(FDS_MAX);
    let bytes = first / 8..end.div_ceil(8);
    let some = bytes.filter(|at| HIDDEN.get(*at).is_some_and(|bits| bits.load(Relaxed) != 0));
    let fds = some.flat_map(|at| at * 8..at * 8 + 8);
    fds.filter(|fd| (first..end).contains(fd) && is_hidden(*fd as c_int))
        .map(|fd| fd as u32)
        .collect()
}

/// Closes the library's own descriptors, in the child of a fork.
pub(crate) fn close_hidden() {
    for fd in hidden(0, usize::MAX) {
        unhide(fd as c_int);
        // SAFETY: the parent's host, whose descriptor it is, does not run in the child.
        unsafe { crate::real::close(fd as c_int) };
    }
}

/// Ends [`hide`]; returns whether the descriptor was hidden.
pub(crate) fn unhide(fd: c_int) -> bool {
    index(fd).is_some_and(|at| {
        let bit = 1 << (at % 8);
        HIDDEN[at / 8].fetch_and(!bit, Relaxed) & bit != 0
    })
}

/// Whether the descriptor is this library's own.
#[inline]
pub(crate) fn is_hidden(fd: c_int) -> bool {
    match HIDDEN.get(fd as usize / 8) {
        Some(bits) => bits.load(Relaxed) >> (fd as usize % 8) & 1 != 0,
        None => false,
    }
}
