//! `poll`, `select` and `epoll_wait`: the kernel reports which descriptors are ready, and the wait
//! drives the host.
//!
//! A call that none of weir's sockets takes part in goes straight to the kernel.

use super::answer;
use crate::cancel;
use crate::host::{self, running};
use crate::ready_sets::{self, ReadySet, Waiting};
use crate::signals;
use crate::sock::Endpoint;
use crate::wait::drive;
use crate::{real, table};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use rustix::event::{PollFd, PollFlags};
use std::os::fd::BorrowedFd;
use std::ptr::null;
use std::slice::from_raw_parts;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weir_socket::Net;

/// The end of a wait of this many milliseconds; `None` for a wait without end.
fn deadline_ms(time_ms: c_int) -> Option<Instant> {
    let ms = u64::try_from(time_ms).ok()?;
    Instant::now().checked_add(Duration::from_millis(ms))
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|at| Instant::now() >= at)
}

/// How long a call waits, which is `None` within for a wait without end. `None` if it does not wait,
/// or the time is not valid: then the kernel has the answer.
///
/// # Safety
/// The pointer is null or to a time.
unsafe fn wait_of(time: *const timespec) -> Option<Option<Duration>> {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { time.as_ref() }) else {
        return Some(None);
    };
    let wait = duration(time)?;
    (!wait.is_zero()).then_some(Some(wait))
}

/// A time; `None` if it is not valid.
fn duration(time: &timespec) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let ns = u32::try_from(time.tv_nsec).ok()?;
    (ns < 1_000_000_000).then(|| Duration::new(seconds, ns))
}

/// Drives the host for these descriptors, and then asks the kernel without waiting, until it has
/// an answer other than 0. The caller is inside the library.
fn until(
    net: &Net,
    fds: &[pollfd],
    deadline: Option<Instant>,
    mask: *const sigset_t,
    mut ask: impl FnMut() -> c_int,
) -> c_int {
    until_listed(net, fds, deadline, mask, &|| None, &mut ask)
}

/// As [`until`], and drives also until a connection is in the list of `ready`.
fn until_listed(
    net: &Net,
    fds: &[pollfd],
    deadline: Option<Instant>,
    mask: *const sigset_t,
    ready: &dyn Fn() -> Option<Arc<ReadySet>>,
    ask: &mut dyn FnMut() -> c_int,
) -> c_int {
    let interrupts = signals::interrupts();
    let own = |fd: &pollfd| table::own(fd.fd).map(|sock| sock.endpoint());
    let open = fds.iter().filter(|fd| fd.fd >= 0);
    loop {
        let ready = ready();
        let list = ready.as_ref().map(|ready| ready.list());
        let open: Vec<(&pollfd, Option<Endpoint>)> = open.clone().map(|fd| (fd, own(fd))).collect();
        let mut waits = open.iter().map(waiting).collect();
        let driven = drive(net, list, &mut waits, deadline, interrupts, mask);
        if let Err(error) = driven {
            return answer(Err(error.raw_os_error()));
        }
        match ask() {
            0 if !is_over(deadline) => {}
            ready => return ready,
        }
    }
}

/// What is waited for of a descriptor, which may be a socket of weir: then its own descriptor, whose number
/// stays. If another process's use moves the socket, that one ends (`Sock::hand_over`), and the number that
/// the application knows is another file: poll(2), woken for the file of before, would look up the number
/// again, and go on waiting for a file that nothing changes any more.
fn waiting<'a>((fd, own): &'a (&pollfd, Option<Endpoint>)) -> PollFd<'a> {
    let ready = own.as_ref().and_then(Endpoint::ready_fd);
    // SAFETY: the number is not -1. If the descriptor is not open, the kernel says so.
    let known = || unsafe { BorrowedFd::borrow_raw(fd.fd) };
    let waited = ready.and_then(Result::ok).unwrap_or_else(known);
    PollFd::from_borrowed_fd(waited, PollFlags::from_bits_retain(fd.events as u16))
}

/// `poll(2)`.
///
/// # Safety
/// As `poll(2)`.
pub(super) unsafe fn poll(fds: *mut pollfd, count: nfds_t, time_ms: c_int) -> c_int {
    // SAFETY: the caller's promises.
    let Some((net, all)) = unsafe { polled(fds, count) }.filter(|_| time_ms != 0) else {
        // SAFETY: the caller's promises.
        return unsafe { real::poll(fds, count, time_ms) };
    };
    let _inside = signals::enter();
    // SAFETY: the caller's promises.
    let ask = || unsafe { real::poll(fds, count, 0) };
    until(&net, &all, deadline_ms(time_ms), null(), ask)
}

/// `poll(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As `poll(2)`.
pub(super) unsafe fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time_ms: c_int,
    len: usize,
) -> c_int {
    super::data::check_room((count as usize).saturating_mul(size_of::<pollfd>()), len);
    // SAFETY: the caller's promises.
    unsafe { poll(fds, count, time_ms) }
}

/// `ppoll(2)`.
///
/// # Safety
/// As `ppoll(2)`.
pub(super) unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promises.
    let wait = unsafe { wait_of(time) };
    // SAFETY: the caller's promises.
    let (Some((net, all)), Some(wait)) = (unsafe { polled(fds, count) }, wait) else {
        // SAFETY: the caller's promises.
        return unsafe { real::ppoll(fds, count, time, mask) };
    };
    let _inside = signals::enter();
    // SAFETY: the caller's promises.
    let ask = || unsafe { real::poll(fds, count, 0) };
    let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
    until(&net, &all, deadline, mask, ask)
}

/// `ppoll(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As `ppoll(2)`.
pub(super) unsafe fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    len: usize,
) -> c_int {
    super::data::check_room((count as usize).saturating_mul(size_of::<pollfd>()), len);
    // SAFETY: the caller's promises.
    unsafe { ppoll(fds, count, time, mask) }
}

/// Whether a socket of weir, or a set of some, has this descriptor. From now on the kernel reports all
/// about it.
fn is_ours(fd: c_int) -> bool {
    if table::is_plain_set(fd) {
        ready_sets::end(fd);
    }
    if !table::is_live(fd) {
        return table::is_set(fd);
    }
    if let Some(sock) = table::own(fd) {
        let _inside = signals::enter();
        ready_sets::leave(&sock);
    }
    true
}

/// The host and the descriptors of a poll that a socket of weir takes part in.
///
/// # Safety
/// `fds` are `count` descriptors.
unsafe fn polled(fds: *const pollfd, count: nfds_t) -> Option<(Net, Vec<pollfd>)> {
    if fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    let all = unsafe { from_raw_parts(fds, count as usize) };
    let is_ours = |fd: &pollfd| is_ours(fd.fd);
    // All of them are asked, since a leased socket is taken by that.
    if all.iter().filter(|fd| is_ours(fd)).count() == 0 {
        return None;
    }
    cancel::test();
    let _inside = signals::enter();
    Some((running()?, all.to_vec()))
}

/// `epoll_create(2)`.
///
/// # Safety
/// As `epoll_create(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return answer(Err(libc::EINVAL));
    }
    // SAFETY: the call takes a number.
    unsafe { epoll_create1(0) }
}

/// `epoll_create1(2)`.
///
/// # Safety
/// As `epoll_create1(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    if !host::is_configured() {
        // SAFETY: the call takes a number.
        return unsafe { real::epoll_create1(flags) };
    }
    let _inside = signals::enter();
    // A fork of another thread comes before the set, or finds it.
    let _sets = ready_sets::hold();
    // SAFETY: the call takes a number.
    let set = unsafe { real::epoll_create1(flags) };
    if set >= 0 {
        table::mark_plain_set(set, true);
    }
    set
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As `epoll_wait(2)`.
pub(super) unsafe fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    time_ms: c_int,
) -> c_int {
    let waits = Waiting::begin(set);
    if !table::is_set(set) {
        // SAFETY: the caller's promises.
        let ready = unsafe { real::epoll_wait(set, events, most, time_ms) };
        waits.end();
        return ready;
    }
    let wait = u64::try_from(time_ms).ok().map(Duration::from_millis);
    // SAFETY: the caller's promises.
    unsafe { wait_for(waits, set, (events, most), wait, null()) }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As `epoll_pwait(2)`.
pub(super) unsafe fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    time_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    let waits = Waiting::begin(set);
    if !table::is_set(set) {
        // SAFETY: the caller's promises.
        let ready = unsafe { real::epoll_pwait(set, events, most, time_ms, mask) };
        waits.end();
        return ready;
    }
    let wait = u64::try_from(time_ms).ok().map(Duration::from_millis);
    // SAFETY: the caller's promises.
    unsafe { wait_for(waits, set, (events, most), wait, mask) }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As `epoll_pwait2(2)`.
pub(super) unsafe fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promises.
    let time_ref = unsafe { time.as_ref() };
    let wait = match time_ref {
        None => Some(None),
        Some(time) => duration(time).map(Some),
    };
    let Some(wait) = wait else {
        return answer(Err(libc::EINVAL));
    };
    let waits = Waiting::begin(set);
    if table::is_set(set) {
        // SAFETY: the caller's promises.
        return unsafe { wait_for(waits, set, (events, most), wait, mask) };
    }
    // SAFETY: the caller's promises.
    let ready = unsafe {
        if has_epoll_pwait2() {
            real::epoll_pwait2(set, events, most, time, mask)
        } else {
            // By its number, with a C library that does not know it.
            real::epoll_pwait(set, events, most, milliseconds(wait), mask)
        }
    };
    waits.end();
    ready
}

/// Whether the C library has the function (since glibc 2.35), looked up once.
fn has_epoll_pwait2() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| real::has(c"epoll_pwait2"))
}

/// The argument of `epoll_wait(2)` for a wait, rounded up.
fn milliseconds(wait: Option<Duration>) -> c_int {
    wait.map_or(-1, |wait| {
        let ms = wait.as_nanos().div_ceil(1_000_000);
        c_int::try_from(ms).unwrap_or(c_int::MAX)
    })
}

/// Waits for a set that sockets of weir are in.
///
/// # Safety
/// As `epoll_pwait(2)`.
unsafe fn wait_for(
    waits: Waiting,
    set: c_int,
    (events, most): (*mut epoll_event, c_int),
    wait: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    cancel::test();
    let is_short = wait == Some(Duration::ZERO);
    let Some(net) = (most > 0).then(running).flatten() else {
        let ms = milliseconds(wait);
        // SAFETY: the caller's promises.
        let ready = unsafe { real::epoll_pwait(set, events, most, ms, mask) };
        waits.end();
        return ready;
    };
    let waits = waits.kept();
    let _inside = signals::enter();
    if most == 1 && table::is_plain_set(set) {
        // There is no room for the kernel's descriptors beside a connection.
        ready_sets::end(set);
    }
    let ready = || ready_sets::of(set);
    // The mask counts in a wait.
    let now = if is_short { mask } else { null() };
    let mut ask = || match ready() {
        // SAFETY: the caller's promises.
        Some(ready) => unsafe { ready.ask(set, events, most, now) },
        // SAFETY: the caller's promises.
        None => unsafe { real::epoll_pwait(set, events, most, 0, now) },
    };
    if is_short {
        return ask();
    }
    let listed = ready();
    let ours = listed
        .as_ref()
        .map(|ready| ready.report(set, most as usize));
    if let Some(ours) = ours.filter(|ours| !ours.is_empty()) {
        // SAFETY: the caller's promises.
        return unsafe { ready_sets::ask_kernel(set, events, most, null(), ours) };
    }
    let _waits = listed.is_none().then_some(waits);
    let one = pollfd {
        fd: set,
        events: libc::POLLIN,
        revents: 0,
    };
    let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
    until_listed(&net, &[one], deadline, mask, &ready, &mut ask)
}

/// `select(2)`.
///
/// # Safety
/// As `select(2)`.
pub(super) unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promises.
    let wait = unsafe { time.as_ref() }.map(|time| {
        let us = time.tv_usec.max(0) as u64;
        Duration::from_secs(time.tv_sec.max(0) as u64) + Duration::from_micros(us)
    });
    // SAFETY: the caller's promises.
    let chosen = unsafe { selected(count, [read, write, except]) };
    let Some((net, fds)) = chosen.filter(|_| wait != Some(Duration::ZERO)) else {
        // SAFETY: the caller's promises.
        return unsafe { real::select(count, read, write, except, time) };
    };
    let _inside = signals::enter();
    let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
    // SAFETY: the caller's promises.
    let ready = unsafe { select_until(&net, &fds, count, [read, write, except], deadline, null()) };
    if let (Some(deadline), false) = (deadline, time.is_null()) {
        // As Linux, which returns the remaining time.
        let left = deadline.saturating_duration_since(Instant::now());
        // SAFETY: the caller's promise.
        unsafe {
            (*time).tv_sec = left.as_secs() as libc::time_t;
            (*time).tv_usec = left.subsec_micros().into();
        }
    }
    ready
}

/// `pselect(2)`.
///
/// # Safety
/// As `pselect(2)`.
pub(super) unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promises.
    let wait = unsafe { wait_of(time) };
    // SAFETY: the caller's promises.
    let chosen = unsafe { selected(count, [read, write, except]) };
    let (Some((net, fds)), Some(wait)) = (chosen, wait) else {
        // SAFETY: the caller's promises.
        return unsafe { real::pselect(count, read, write, except, time, mask) };
    };
    let _inside = signals::enter();
    let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
    // SAFETY: the caller's promises.
    unsafe { select_until(&net, &fds, count, [read, write, except], deadline, mask) }
}

/// Whether a set has a descriptor.
///
/// # Safety
/// The set is null or has a bit for the descriptor.
unsafe fn has(set: *mut fd_set, fd: usize) -> bool {
    if set.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let word = unsafe { set.cast::<u64>().add(fd / 64).read() };
    word >> (fd % 64) & 1 != 0
}

/// The host and the descriptors of a `select` that a socket of weir takes part in.
///
/// # Safety
/// The sets are null or have `count` bits.
unsafe fn selected(count: c_int, sets: [*mut fd_set; 3]) -> Option<(Net, Vec<pollfd>)> {
    let kinds = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    let events = |fd: c_int| {
        let chosen = sets.into_iter().zip(kinds);
        // SAFETY: the caller's promise.
        let chosen = chosen.filter(|(set, _)| unsafe { has(*set, fd as usize) });
        chosen.fold(0, |events, (_, kind)| events | kind)
    };
    let is_known =
        |fd: &c_int| table::is_known(*fd) || table::is_set(*fd) || table::is_plain_set(*fd);
    let chosen = (0..count).filter(is_known);
    let chosen = chosen.filter(|fd| events(*fd) != 0);
    // All of them are asked, since a leased socket is taken by that.
    if chosen.filter(|fd| is_ours(*fd)).count() == 0 {
        return None;
    }
    cancel::test();
    let all = (0..count).map(|fd| pollfd {
        fd,
        events: events(fd),
        revents: 0,
    });
    let _inside = signals::enter();
    Some((running()?, all.filter(|fd| fd.events != 0).collect()))
}

/// # Safety
/// As [`selected`].
unsafe fn select_until(
    net: &Net,
    fds: &[pollfd],
    count: c_int,
    sets: [*mut fd_set; 3],
    deadline: Option<Instant>,
    mask: *const sigset_t,
) -> c_int {
    // The sets may be longer than the C library's type.
    let len = (count.max(0) as usize).div_ceil(64);
    // The kernel replaces the sets by those that are ready.
    let wanted = sets.map(|set| {
        if set.is_null() {
            Vec::new()
        } else {
            // SAFETY: the caller's promise.
            unsafe { from_raw_parts(set.cast::<u64>(), len) }.to_vec()
        }
    });
    until(net, fds, deadline, mask, || {
        for (set, wanted) in sets.iter().zip(&wanted).filter(|(set, _)| !set.is_null()) {
            // SAFETY: the caller's promise.
            unsafe { set.cast::<u64>().copy_from(wanted.as_ptr(), len) };
        }
        let mut none = timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let [read, write, except] = sets;
        // SAFETY: the caller's promise.
        unsafe { real::select(count, read, write, except, &raw mut none) }
    })
}
