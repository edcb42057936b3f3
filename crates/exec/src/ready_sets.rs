//! Epoll sets whose readable connections this library knows by itself.
//!
//! The kernel learns by two system calls that a connection of weir is readable, and that it is not
//! any more: when bytes arrive and when they are read. A program that waits for a set by `epoll_wait(2)`
//! asks this library anyway. So a connection that is in one set, by one descriptor, is in the set's
//! [`ReadyList`] instead; the rest of its events, and all other descriptors, the kernel reports.
//!
//! Only a set that `epoll_create(2)` has made in this process has a list. The list ends, and the kernel
//! reports everything, as soon as something else may wait for the set: a thread that waits already when
//! a first connection comes, or while another call drives the host; `poll(2)` on the set, a set of sets,
//! a copy of the set's descriptor, a fork. It ends, too, with a wait that has room for one event: other
//! descriptors would have none. A connection that a call waits for otherwise, as `poll(2)` or a `recv(2)`
//! that blocks, leaves its list for good.

use crate::sock::Sock;
use crate::{host, real, signals, table};
use libc::{c_int, epoll_event};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_socket::{Net, ReadyList};

/// The events that say that a connection is readable, and writable.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// What the kernel does with an event that it reports: it must report that one itself.
const BY_KERNEL: u32 = (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;

/// The readable connections of an epoll set.
#[derive(Default)]
pub(crate) struct ReadySet {
    list: ReadyList,
    again: Mutex<Again>,
}

/// What of a set is reported next.
#[derive(Default)]
struct Again {
    /// Descriptors that were reported level-triggered, or had no room: they are looked at again.
    numbers: Vec<u64>,
    /// The last one that was reported.
    last: u64,
    /// Whether the last report took all the room, so that the kernel's descriptors had none.
    was_full: bool,
}

type Sets = HashMap<c_int, Arc<ReadySet>>;

static SETS: Mutex<Option<Sets>> = Mutex::new(None);

/// Threads that wait for a set and do not ask for a list, and those that were cancelled meanwhile.
static WAITING: [AtomicU32; table::FDS_MAX] = [const { AtomicU32::new(0) }; table::FDS_MAX];

fn sets() -> MutexGuard<'static, Option<Sets>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's wait for a set, for which the kernel must report everything. A thread that is cancelled in the
/// kernel's own call never ends it.
#[derive(Clone, Copy)]
pub(crate) struct Waiting(Option<&'static AtomicU32>);

impl Waiting {
    /// To be called before the thread looks for a list.
    #[inline]
    pub(crate) fn begin(set: c_int) -> Waiting {
        let count = table::is_plain_set(set).then(|| &WAITING[set as usize]);
        if let Some(count) = count {
            count.fetch_add(1, SeqCst);
        }
        Waiting(count)
    }

    #[inline]
    pub(crate) fn end(self) {
        if let Some(count) = self.0 {
            count.fetch_sub(1, SeqCst);
        }
    }

    /// The wait ends with the value.
    pub(crate) fn kept(self) -> Kept {
        Kept(self)
    }
}

pub(crate) struct Kept(Waiting);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The readable connections of this set, unless the kernel reports all of them.
pub(crate) fn of(set: c_int) -> Option<Arc<ReadySet>> {
    let ready = Arc::clone(sets().as_ref()?.get(&set)?);
    (!ready.list.is_ended()).then_some(ready)
}

/// The list of a set for another connection; `None` if it has none.
fn list_of(set: c_int) -> Option<Arc<ReadySet>> {
    if !table::is_plain_set(set) {
        return None;
    }
    let ready = {
        let mut sets = sets();
        // A fork may have ended it meanwhile.
        if !table::is_plain_set(set) {
            return None;
        }
        Arc::clone(sets.get_or_insert_default().entry(set).or_default())
    };
    // A thread that comes now finds the list.
    if WAITING[set as usize].load(SeqCst) > 0 {
        end(set);
    }
    Some(ready)
}

/// Has the kernel report all of a set from now on.
#[cold]
pub(crate) fn end(set: c_int) {
    let _inside = signals::enter();
    table::mark_plain_set(set, false);
    let ready = sets().as_ref().and_then(|all| all.get(&set).cloned());
    if let (Some(ready), Some(net)) = (ready, host::running()) {
        net.end_ready_list(&ready.list);
    }
}

/// Forgets a set whose descriptor is closed.
#[cold]
pub(crate) fn close(set: c_int) {
    end(set);
    let _inside = signals::enter();
    let forgotten = sets().as_mut().and_then(|all| all.remove(&set));
    drop(forgotten);
    // Its number may be another set's soon.
    for (_, sock) in table::range(0, usize::MAX) {
        sock.forget_set(set);
    }
}

/// The sets: no other thread makes one, nor a list, while the value lives. It is held over a fork.
pub(crate) struct Held(MutexGuard<'static, Option<Sets>>);

pub(crate) fn hold() -> Held {
    Held(sets())
}

impl Held {
    /// Ends the lists of all sets, before a fork: both processes have them.
    pub(crate) fn end_all(&self, net: Option<&Net>) {
        for set in table::plain_sets() {
            table::mark_plain_set(set, false);
            let ready = self.0.as_ref().and_then(|all| all.get(&set));
            if let (Some(ready), Some(net)) = (ready, net) {
                net.end_ready_list(&ready.list);
            }
        }
    }

    /// Forgets the sets, in the child.
    pub(crate) fn forget(mut self) {
        // Its parent's threads may have had locks that dropping would wait for.
        std::mem::forget(self.0.take());
    }
}

/// Whether a connection is in a list.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Place {
    /// It is not, but may be.
    #[default]
    None,
    Listed,
    /// Another call than `epoll_wait(2)` waits for it, or has: the kernel reports everything.
    Left,
}

/// Puts a connection into the list of its set, if it can be there, or takes it out of it. To be called
/// when its descriptors or its places in sets have changed.
pub(crate) fn update(sock: &Sock) {
    let Ok(stream) = sock.stream() else {
        return;
    };
    let mut place = sock.place_in_list();
    if *place == Place::Left {
        return;
    }
    let only = sock.only_place().filter(|(_, _, event)| {
        let is_kernels = event.events & BY_KERNEL != 0;
        !is_kernels && host::refuses_io_uring()
    });
    let ready = only.and_then(|(set, fd, _)| Some((list_of(set)?, fd as u64)));
    if ready.is_none() && *place == Place::None {
        return;
    }
    let list = ready.as_ref().map(|(ready, fd)| (&ready.list, *fd));
    *place = match stream.list_in(list) {
        Ok(true) => Place::Listed,
        _ => Place::None,
    };
}

/// Has the kernel report all events of a connection from now on.
pub(crate) fn leave(sock: &Sock) {
    let mut place = sock.place_in_list();
    let before = std::mem::replace(&mut *place, Place::Left);
    if before == Place::Listed
        && let Ok(stream) = sock.stream()
    {
        let _ = stream.list_in(None);
    }
}

impl ReadySet {
    pub(crate) fn list(&self) -> &ReadyList {
        &self.list
    }

    /// The connections of `set` that are readable, `most` at most, which are two or more. After a report of
    /// as many, half of the room is left to the kernel.
    pub(crate) fn report(&self, set: c_int, most: usize) -> Vec<epoll_event> {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let Again {
            numbers,
            last,
            was_full,
        } = &mut *again;
        let limit = if *was_full { most / 2 } else { most };
        self.list.take(numbers);
        // Each once, and in turn, though there may be more than the program takes.
        numbers.sort_unstable();
        numbers.dedup();
        let middle = numbers.partition_point(|number| number <= last);
        numbers.rotate_left(middle);
        let mut events = Vec::new();
        numbers.retain(|number| {
            if events.len() == limit {
                return true;
            }
            let Some((event, is_edge)) = readable(set, *number as c_int) else {
                return false;
            };
            events.push(event);
            *last = *number;
            !is_edge
        });
        *was_full = events.len() == most;
        events
    }

    /// `epoll_pwait(2)` without waiting.
    ///
    /// # Safety
    /// As `epoll_pwait(2)`.
    pub(crate) unsafe fn ask(
        &self,
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        mask: *const libc::sigset_t,
    ) -> c_int {
        let ours = self.report(set, most as usize);
        // SAFETY: the caller's promise.
        unsafe { ask_kernel(set, events, most, mask, ours) }
    }
}

/// `epoll_pwait(2)` without waiting, with these events of this library beside the kernel's.
///
/// # Safety
/// As `epoll_pwait(2)`; there are `most` events at most.
pub(crate) unsafe fn ask_kernel(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    mask: *const libc::sigset_t,
    ours: Vec<epoll_event>,
) -> c_int {
    let room = most - ours.len() as c_int;
    let count = match room {
        0 => 0,
        // SAFETY: the caller's promise; the events are those behind ours.
        _ => unsafe { real::epoll_pwait(set, events.add(ours.len()), room, 0, mask) },
    };
    if ours.is_empty() {
        return count;
    }
    let kernels = 0..usize::try_from(count).unwrap_or(0);
    let from = ours.len();
    // SAFETY: the kernel has written as many.
    let kernels = kernels.map(|at| unsafe { events.add(from + at).read_unaligned() });
    let all = joined(ours, kernels.collect());
    // SAFETY: there are not more than before.
    unsafe { fill(events, &all) }
}

/// # Safety
/// `to` has room for the events.
unsafe fn fill(to: *mut epoll_event, events: &[epoll_event]) -> c_int {
    for (at, event) in events.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { to.add(at).write_unaligned(*event) };
    }
    events.len() as c_int
}

/// All events, one for each descriptor: a program that has handled one may have freed what the next
/// one names. The program's own word says which descriptor it is.
fn joined(ours: Vec<epoll_event>, kernels: Vec<epoll_event>) -> Vec<epoll_event> {
    if kernels.is_empty() {
        return ours;
    }
    let places = ours.iter().enumerate().map(|(at, event)| (event.u64, at));
    let places: HashMap<u64, usize> = places.collect();
    let mut all = ours;
    for event in kernels {
        match places.get(&{ event.u64 }) {
            Some(at) => all[*at].events |= event.events,
            None => all.push(event),
        }
    }
    all
}

/// The event of a descriptor of `set`, and whether it is edge-triggered, if its connection is readable
/// and the kernel does not know.
fn readable(set: c_int, fd: c_int) -> Option<(epoll_event, bool)> {
    let sock = table::own(fd)?;
    let wanted = sock.place(set, fd)?;
    let is_writable = sock.stream().ok()?.is_listed_ready()?;
    let ready = if is_writable {
        READABLE | WRITABLE
    } else {
        READABLE
    };
    let events = wanted.events & ready;
    let is_edge = wanted.events & libc::EPOLLET as u32 != 0;
    // `epoll_ctl(2)` puts a connection into the list again.
    let event = epoll_event {
        events,
        u64: wanted.u64,
    };
    (events & READABLE != 0).then_some((event, is_edge))
}
