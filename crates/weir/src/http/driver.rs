//! One thread that drives all connections of a server: each has its turn when
//! its socket may be read or written, and is closed when its deadline passes.
//!
//! ```text
//!  socket ──► waker ──► ready: numbers of connections ──► step, step, step …
//!                          │                                    │
//!                          └── eventfd, while the thread sleeps ┘
//! ```

use super::connection::{Common, Connection, IO_TIMEOUT, Pipe, Turn};
use super::files::Folder;
use super::server::Answered;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use weir_socket::{TcpListener, TcpStream};

/// Connections at one time, at most; see [`Limits::connections`].
pub(crate) const CONNECTIONS_MAX: usize = 32 << 10;
/// Connections that are accepted in a row, before others have their turn.
const ACCEPT_MAX: usize = 64;
/// How long no connection is looked for whose place a new one may have, after there was none: each
/// look is at all connections.
const SCAN_INTERVAL: Duration = Duration::from_millis(20);
/// How often deadlines are looked at.
const DEADLINE_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Bytes that are read of a socket at once.
const BLOCK_LEN: usize = 64 << 10;
/// Blocks that are read and forgotten in a row, before others have their turn.
const DISCARD_MAX: usize = 16;
/// How long the rest of a refused request is read.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// Bytes that are gathered at once to be sent on a connection.
const SEND_LEN_MAX: usize = 256 << 10;
const SEND_LEN_MIN: usize = 8 << 10;
/// The same over all connections: with many of them each has its share.
const SEND_TOTAL: usize = 64 << 20;

/// Bytes of the stack's buffer for a connection to send, in the beginning; it grows with the
/// windows of congestion and of the client.
pub(crate) const SEND_BUFFER_INITIAL: usize = 16 << 10;

/// Limits of clients that take their answers slowly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at one time, [`CONNECTIONS_MAX`] at most. A connection beyond them has the place
    /// of the one that has waited longest for a request; if all are being answered, of the one
    /// whose client has taken nothing for longest, [`Limits::stall`] at least.
    pub(crate) connections: usize,
    /// Bytes that a client must acknowledge of an answer in each window of [`IO_TIMEOUT`].
    pub(crate) window_bytes_min: u64,
    /// Bytes of the buffers of all connections of the stack. Beyond them, connections are reset
    /// that hold more than their clients take in the time [`Limits::stall`].
    pub(crate) memory: usize,
    /// See [`Limits::memory`].
    pub(crate) stall: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: CONNECTIONS_MAX,
            // 1 KiB/s, as the least rate of Apache's mod_reqtimeout is 500 bytes/s.
            window_bytes_min: 1024 * IO_TIMEOUT.as_secs(),
            memory: 192 << 20,
            stall: Duration::from_secs(3),
        }
    }
}

/// How long a client takes nothing until the block that waits for the client is freed.
const RELEASE_TIME: Duration = Duration::from_secs(1);

impl Pipe for TcpStream {
    fn poll_read(&self, context: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        TcpStream::poll_read(self, context, out)
    }

    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        TcpStream::poll_write(self, context, bytes)
    }
}

/// State that wakers and the thread share.
struct Ready {
    /// Numbers of connections; those of listeners are behind all.
    list: Mutex<Vec<usize>>,
    /// The thread sleeps, or is about to.
    sleeps: AtomicBool,
    event: OwnedFd,
}

impl Ready {
    fn push(&self, number: usize) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(number);
        drop(list);
        if self.sleeps.swap(false, SeqCst) {
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    fn take(&self, into: &mut Vec<usize>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *list, into);
    }
}

/// Of one connection.
struct Signal {
    number: usize,
    is_ready: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Signal {
    fn wake(self: Arc<Signal>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Signal>) {
        if !self.is_ready.swap(true, SeqCst) {
            self.ready.push(self.number);
        }
    }
}

struct ConnectionSlot {
    stream: TcpStream,
    peer: SocketAddr,
    connection: Connection,
    signal: Arc<Signal>,
    waker: Waker,
    /// All is written; the client has not acknowledged all of it.
    is_draining: bool,
    /// The request was refused, and the client may still be sending it: until the client ends, what
    /// arrives is read and forgotten (RFC 9112 §9.6). A close would reset the connection, and the
    /// client would not see the answer.
    lingers: bool,
    /// Bytes that the client had acknowledged at the end of the last window.
    acked: u64,
    /// The same when memory was short, and when that was.
    sample: Option<(Instant, u64)>,
    /// The same when it was last looked at, and when it was first seen to be so.
    progress: (u64, Instant),
}

impl ConnectionSlot {
    /// Whether the client is to take bytes.
    fn is_answering(&self) -> bool {
        !self.lingers && (self.is_draining || self.connection.is_answering())
    }

    /// Reads what arrives and forgets it; returns whether nothing more comes.
    fn discard(&mut self, block: &mut [u8]) -> bool {
        let mut context = Context::from_waker(&self.waker);
        for _ in 0..DISCARD_MAX {
            match self.stream.poll_read(&mut context, block) {
                Poll::Pending => return false,
                Poll::Ready(Ok(0) | Err(_)) => return true,
                Poll::Ready(Ok(_)) => {}
            }
        }
        self.waker.wake_by_ref();
        false
    }

    /// When the client last took bytes of an answer, as far as is seen: by what could be written, and
    /// by what the client has acknowledged since the last call.
    fn progressed_at(&mut self, now: Instant) -> Instant {
        if let Ok(info) = self.stream.info() {
            let acked = info.counts.bytes_acknowledged;
            if acked != self.progress.0 {
                self.progress = (acked, now);
            }
        }
        self.connection.progressed_at().max(self.progress.1)
    }

    /// Whether the client has taken enough since the last window ended, and has more to take.
    fn keeps_pace(&mut self, limits: &Limits) -> bool {
        if self.connection.is_in_head() {
            return false;
        }
        let Ok(info) = self.stream.info() else {
            return false;
        };
        let held = info.unsent + info.unacknowledged;
        let acked = info.counts.bytes_acknowledged;
        let taken = acked - std::mem::replace(&mut self.acked, acked);
        (self.is_answering() || held > 0) && taken >= limits.window_bytes_min
    }

    /// How many bytes the connection holds, if that is more than its client took since the last
    /// sample; `None` if no sample of the right age is there.
    fn excess(&mut self, now: Instant, stall: Duration) -> Option<usize> {
        let since = |(at, _): (Instant, u64)| now.saturating_duration_since(at);
        if self.sample.is_some_and(|sample| since(sample) < stall) {
            return None;
        }
        let info = self.stream.info().ok()?;
        let acked = info.counts.bytes_acknowledged;
        let before = self.sample.replace((now, acked))?;
        let held = info.unsent + info.unacknowledged;
        (since(before) <= 2 * stall && held as u64 > acked - before.1).then_some(held)
    }
}

struct Door {
    listener: TcpListener,
    signal: Arc<Signal>,
    waker: Waker,
}

/// The thread's connections, deadlines and limits.
pub(crate) struct Driver<'a> {
    folder: &'a Folder,
    limits: Limits,
    /// Bytes of the stack's buffers.
    memory: &'a dyn Fn() -> usize,
    log: &'a dyn Fn(SocketAddr, &Answered),
    logs: bool,
    doors: Vec<Door>,
    slots: Vec<Option<ConnectionSlot>>,
    free: Vec<usize>,
    ready: Arc<Ready>,
    block: Vec<u8>,
    /// Connections that are to be reset if they have not ended by then.
    ends_at: Option<Instant>,
    checked_at: Instant,
    /// When [`Driver::free_slot`] may look at all connections again.
    scans_at: Instant,
    #[cfg(test)]
    scans: usize,
}

impl<'a> Driver<'a> {
    /// Passes each answer to `log`, if wanted; `memory` returns how many bytes the stack's buffers
    /// have.
    ///
    /// # Errors
    /// If the system gives no descriptor.
    pub(crate) fn new(
        listeners: Vec<TcpListener>,
        folder: &'a Folder,
        limits: Limits,
        memory: &'a dyn Fn() -> usize,
        logs: bool,
        log: &'a dyn Fn(SocketAddr, &Answered),
    ) -> io::Result<Driver<'a>> {
        let ready = Arc::new(Ready {
            list: Mutex::default(),
            sleeps: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let doors = (CONNECTIONS_MAX..).zip(listeners);
        let doors = doors.map(|(number, listener)| {
            let signal = signal(number, &ready);
            ready.push(number);
            Door {
                listener,
                waker: Waker::from(Arc::clone(&signal)),
                signal,
            }
        });
        let doors = doors.collect();
        Ok(Driver {
            folder,
            limits,
            memory,
            log,
            logs,
            doors,
            slots: Vec::new(),
            free: Vec::new(),
            ready,
            block: vec![0; BLOCK_LEN],
            ends_at: None,
            checked_at: Instant::now(),
            scans_at: Instant::now(),
            #[cfg(test)]
            scans: 0,
        })
    }

    /// Accepts nothing more, and lets answers that are on their way end until
    /// then.
    pub(crate) fn end(&mut self, at: Instant) {
        self.doors.clear();
        self.ends_at = Some(at);
        for number in 0..self.slots.len() {
            let is_idle = |place: &ConnectionSlot| !place.is_answering();
            if self.slots[number].as_ref().is_some_and(is_idle) {
                self.close(number, false);
            }
        }
    }

    /// Resets what there is.
    pub(crate) fn reset(&mut self) {
        (0..self.slots.len()).for_each(|number| self.close(number, true));
    }

    /// Whether its end was requested and all connections have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.ends_at.is_some() && self.free.len() == self.slots.len()
    }

    /// Gives all that are ready their turn, or waits for one, or for `stop` to
    /// be readable, for `time` at most.
    ///
    /// # Errors
    /// If connections cannot be accepted any more.
    pub(crate) fn turn(&mut self, stop: Option<BorrowedFd<'_>>, time: Duration) -> io::Result<()> {
        let mut now_ready = Vec::new();
        self.ready.take(&mut now_ready);
        if now_ready.is_empty() {
            self.sleep(stop, time.min(DEADLINE_POLL_INTERVAL))?;
            self.ready.take(&mut now_ready);
        }
        let now = Instant::now();
        for number in now_ready {
            match number.checked_sub(CONNECTIONS_MAX) {
                Some(door) if door < self.doors.len() => self.accept(door, now)?,
                Some(_) => {}
                None => self.step(number, now),
            }
        }
        if now.saturating_duration_since(self.checked_at) >= DEADLINE_POLL_INTERVAL {
            self.checked_at = now;
            self.close_expired(now);
            if (self.memory)() > self.limits.memory {
                self.close_slow(now);
            }
        }
        Ok(())
    }

    fn sleep(&self, stop: Option<BorrowedFd<'_>>, time: Duration) -> io::Result<()> {
        self.ready.sleeps.store(true, SeqCst);
        let list = self.ready.list.lock();
        let is_empty = list.unwrap_or_else(PoisonError::into_inner).is_empty();
        if is_empty {
            let mut fds = vec![PollFd::new(&self.ready.event, PollFlags::IN)];
            fds.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
            match poll(&mut fds, time.try_into().ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !self.ready.sleeps.swap(false, SeqCst) {
            let _ = rustix::io::read(&self.ready.event, &mut [0; 8]);
        }
        Ok(())
    }

    fn accept(&mut self, door: usize, now: Instant) -> io::Result<()> {
        self.doors[door].signal.is_ready.store(false, SeqCst);
        for _ in 0..ACCEPT_MAX {
            let Door {
                listener, waker, ..
            } = &self.doors[door];
            let mut context = Context::from_waker(waker);
            let (stream, peer) = match listener.poll_accept(&mut context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(accepted)) => accepted,
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    continue;
                }
                Poll::Ready(Err(error)) => return Err(error),
            };
            let Some(number) = self.free_slot(now) else {
                // All are being answered.
                stream.reset();
                continue;
            };
            let _ = stream.set_nodelay(true);
            let signal = signal(number, &self.ready);
            self.slots[number] = Some(ConnectionSlot {
                stream,
                peer,
                connection: Connection::new(now),
                waker: Waker::from(Arc::clone(&signal)),
                signal,
                is_draining: false,
                lingers: false,
                acked: 0,
                sample: None,
                progress: (0, now),
            });
            self.step(number, now);
        }
        self.doors[door].waker.wake_by_ref();
        Ok(())
    }

    /// The number of a free slot; `None` if all connections are being answered.
    fn free_slot(&mut self, now: Instant) -> Option<usize> {
        if self.free.is_empty() && self.slots.len() < self.limits.connections {
            self.slots.push(None);
            return Some(self.slots.len() - 1);
        }
        if self.free.is_empty() && now >= self.scans_at {
            self.close_replaceable(now);
            if self.free.is_empty() {
                self.scans_at = now + SCAN_INTERVAL;
            }
        }
        self.free.pop()
    }

    /// Resets connections whose places new ones may have: several at once, since all are looked at.
    fn close_replaceable(&mut self, now: Instant) {
        #[cfg(test)]
        (self.scans += 1);
        let stall = self.limits.stall;
        let has_stalled = |at: Instant| now.saturating_duration_since(at) >= stall;
        let slots = self.slots.iter_mut().enumerate();
        let places = slots.filter_map(|(number, place)| {
            let place = place.as_mut()?;
            if !place.is_answering() {
                return Some((false, place.connection.deadline(), number));
            }
            if !has_stalled(place.connection.progressed_at().max(place.progress.1)) {
                return None;
            }
            let progressed_at = place.progressed_at(now);
            has_stalled(progressed_at).then_some((true, progressed_at, number))
        });
        let mut places: Vec<_> = places.collect();
        if places.len() > ACCEPT_MAX {
            places.select_nth_unstable(ACCEPT_MAX);
        }
        for (_, _, number) in places.into_iter().take(ACCEPT_MAX) {
            self.close(number, true);
        }
    }

    fn step(&mut self, number: usize, now: Instant) {
        let places = self.slots.len();
        let Some(Some(place)) = self.slots.get_mut(number) else {
            return;
        };
        place.signal.is_ready.store(false, SeqCst);
        if place.lingers {
            if place.discard(&mut self.block) {
                self.close(number, false);
            }
            return;
        }
        if place.is_draining {
            let mut context = Context::from_waker(&place.waker);
            if place.stream.poll_all_acked(&mut context).is_ready() {
                self.remove(number);
            }
            return;
        }
        let (log, peer) = (self.log, place.peer);
        let connections = places - self.free.len();
        let mut common = Common {
            folder: self.folder,
            block: std::mem::take(&mut self.block),
            block_len: (SEND_TOTAL / connections.max(1)).clamp(SEND_LEN_MIN, SEND_LEN_MAX),
            ends: self.ends_at.is_some(),
            log: &|answered| log(peer, answered),
            logs: self.logs,
        };
        let mut context = Context::from_waker(&place.waker);
        let turn = place
            .connection
            .step(&place.stream, &mut context, now, &mut common);
        self.block = common.block;
        match turn {
            Turn::Waits => {}
            Turn::GoesOn => place.waker.wake_by_ref(),
            Turn::Over => self.drain(number, now),
            Turn::Broken => self.close(number, true),
        }
    }

    /// Says that all was written, and removes the connection as soon as the client has acknowledged
    /// all: until then the limits of slow clients hold for it.
    fn drain(&mut self, number: usize, now: Instant) {
        let Some(Some(place)) = self.slots.get_mut(number) else {
            return;
        };
        if place.connection.is_refused() {
            let _ = place.stream.shutdown(std::net::Shutdown::Write);
            place.lingers = true;
            place.connection.extend(now, LINGER_TIME);
            return self.step(number, now);
        }
        let mut context = Context::from_waker(&place.waker);
        if place.stream.poll_all_acked(&mut context).is_ready() {
            return self.close(number, false);
        }
        let _ = place.stream.shutdown(std::net::Shutdown::Write);
        place.is_draining = true;
        place.connection.extend(now, IO_TIMEOUT);
    }

    /// Resets those that have waited too long, and frees the blocks of those whose clients take
    /// nothing.
    fn close_expired(&mut self, now: Instant) {
        let ends = self.ends_at.is_some_and(|at| at <= now);
        for number in 0..self.slots.len() {
            let Some(place) = &mut self.slots[number] else {
                continue;
            };
            if ends || place.connection.deadline() <= now {
                if !ends && !place.lingers && place.keeps_pace(&self.limits) {
                    place.connection.extend(now, IO_TIMEOUT);
                    continue;
                }
                // A client without a request has nothing to lose.
                self.close(number, true);
                continue;
            }
            let idle = now.saturating_duration_since(place.connection.progressed_at());
            if idle >= RELEASE_TIME {
                place.connection.stall();
                if place.is_answering() {
                    place.progressed_at(now);
                }
            }
        }
    }

    /// Resets the connections that hold most for clients that take little, until memory suffices.
    fn close_slow(&mut self, now: Instant) {
        let stall = self.limits.stall;
        let slow = self
            .slots
            .iter_mut()
            .enumerate()
            .filter_map(|(number, place)| {
                let held = place.as_mut()?.excess(now, stall)?;
                Some((std::cmp::Reverse(held), number))
            });
        let mut slow: Vec<_> = slow.collect();
        slow.sort_unstable();
        for (_, number) in slow {
            if (self.memory)() <= self.limits.memory {
                break;
            }
            self.close(number, true);
        }
    }

    fn close(&mut self, number: usize, is_reset: bool) {
        let Some(Some(place)) = self.slots.get(number) else {
            return;
        };
        if is_reset {
            place.stream.reset()
        } else {
            _ = place.stream.shutdown(std::net::Shutdown::Write)
        }
        self.remove(number);
    }

    fn remove(&mut self, number: usize) {
        if self.slots[number].take().is_some() {
            self.free.push(number);
        }
    }
}

fn signal(number: usize, ready: &Arc<Ready>) -> Arc<Signal> {
    Arc::new(Signal {
        number,
        is_ready: AtomicBool::new(number >= CONNECTIONS_MAX),
        ready: Arc::clone(ready),
    })
}

#[cfg(test)]
mod tests;
