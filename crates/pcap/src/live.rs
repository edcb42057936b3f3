//! An active capture: a port, and what the application waits for.

use crate::batch::{Batch, FRAMES_MAX};
use crate::device::is_interface;
use crate::error::Failure;
use crate::pace::Pace;
use crate::real::Dead;
use crate::types::{ERROR, ERROR_BREAK, Stat, TSTAMP_PRECISION_NANO};
use libc::c_int;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use rustix::time::{timerfd_create, timerfd_settime};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use weir_broker::protocol::Event;
use weir_broker::{Frame, Port, PortError, Timeout};
use weir_filter::lang::Language;
use weir_filter::lang::cbpf::{self, Form, Insn};

/// How often a waiting capture looks whether its interface and its right still exist.
const CHECK: Duration = Duration::from_millis(500);
/// How long frames of the filter before may come: the kernel drops it within moments.
const RECHECK: Duration = Duration::from_secs(5);
/// Bytes of a frame's record in the queue besides the frame's own, at most.
const RECORD_BYTES: u64 = 64;
/// How long to wait for room for a frame to be sent.
const SEND_MAX: Duration = Duration::from_secs(1);
/// How often, and with which pauses, to try for a lock that a signal handler may have interrupted.
const LOCK_TRIES: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// The settings that a capture was activated with.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) interface: String,
    pub(crate) linktype: c_int,
    pub(crate) snaplen: c_int,
    pub(crate) queue: c_int,
    /// The filter of the grant, which hides all other frames.
    pub(crate) within: Option<String>,
    pub(crate) precision: c_int,
    pub(crate) timeout: Option<Duration>,
    pub(crate) immediate: bool,
}

#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) active: Active,
    /// For what depends on link type and snap length alone.
    pub(crate) dead: Dead,
    port: Mutex<Port>,
    /// A copy of the port's descriptor, to wait for without its lock.
    ring: OwnedFd,
    /// Readable once `pcap_breakloop` was called.
    wake: OwnedFd,
    breaks: AtomicBool,
    selectable: Selectable,
    /// The batch, unless a call has it.
    batch: Mutex<Option<Batch>>,
    pace: Mutex<Pace>,
    pub(crate) nonblock: AtomicBool,
    pub(crate) direction: AtomicU32,
    filter: Mutex<Option<Recheck>>,
    /// Why nothing more is received.
    ended: Mutex<Option<Failure>>,
    checked: Mutex<Instant>,
    counts: Counts,
}

/// The descriptor for event loops: readable if frames are in the ring or in the batch, and now and
/// then for the capture to look at its interface.
#[derive(Debug)]
struct Selectable {
    epoll: OwnedFd,
    pending: OwnedFd,
    is_pending: AtomicBool,
    timer: OwnedFd,
    /// Whether the application has it.
    watched: AtomicBool,
}

/// The present filter, for frames that an earlier one let through.
#[derive(Debug)]
struct Recheck {
    insns: Vec<Insn>,
    until: Instant,
}

#[derive(Debug, Default)]
struct Counts {
    read: AtomicU64,
    lost: AtomicU64,
    /// Frames that the filter before let through.
    unwanted: AtomicU64,
}

enum Woke {
    Ready,
    /// By a signal, or by `pcap_breakloop`.
    Interrupted,
    TimedOut,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Failure {
    move |error| Failure::new(format!("cannot {what}: {}", std::io::Error::from(error)))
}

impl Selectable {
    fn new(ring: &OwnedFd) -> rustix::io::Result<Selectable> {
        let set = Selectable {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            pending: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_pending: AtomicBool::new(false),
            timer: timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?,
            watched: AtomicBool::new(false),
        };
        for source in [ring, &set.pending, &set.timer] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&set.epoll, source, data, epoll::EventFlags::IN)?;
        }
        Ok(set)
    }

    /// Begins to keep the descriptor's readiness.
    fn watch(&self, has_frames: bool) -> rustix::io::Result<()> {
        if !self.watched.swap(true, Relaxed) {
            let every = rustix::time::Timespec::try_from(CHECK).expect("it is short");
            let period = Itimerspec {
                it_interval: every,
                it_value: every,
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &period)?;
            self.set_pending(has_frames);
        }
        Ok(())
    }

    fn set_pending(&self, pending: bool) {
        if self.watched.load(Relaxed) && self.is_pending.swap(pending, Relaxed) != pending {
            let _ = if pending {
                rustix::io::write(&self.pending, &1u64.to_ne_bytes())
            } else {
                rustix::io::read(&self.pending, &mut [0; 8])
            };
        }
    }
}

impl Live {
    pub(crate) fn new(port: Port, active: Active, nonblock: bool) -> Result<Live, Failure> {
        let ring = rustix::io::fcntl_dupfd_cloexec(port.as_fd(), 3);
        let ring = ring.map_err(system("copy the port's descriptor"))?;
        let pace = Pace::new(u64::try_from(active.queue).unwrap_or(0), active.timeout);
        let dead = Dead::open(active.linktype, active.snaplen, active.precision);
        Ok(Live {
            dead: dead.ok_or_else(|| Failure::new("the system's libpcap cannot be used"))?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(system("make an eventfd"))?,
            selectable: Selectable::new(&ring).map_err(system("make a descriptor to wait for"))?,
            ring,
            active,
            port: Mutex::new(port),
            breaks: AtomicBool::new(false),
            batch: Mutex::new(Some(Batch::default())),
            pace: Mutex::new(pace),
            nonblock: AtomicBool::new(nonblock),
            direction: AtomicU32::new(0),
            filter: Mutex::new(None),
            ended: Mutex::new(None),
            checked: Mutex::new(Instant::now()),
            counts: Counts::default(),
        })
    }

    /// Ends the loop that runs, or the next; a signal handler may call it.
    pub(crate) fn break_loop(&self) {
        self.breaks.store(true, Relaxed);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn has_broken(&self) -> bool {
        let breaks = self.breaks.load(Relaxed) && self.breaks.swap(false, Relaxed);
        if breaks {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        breaks
    }

    /// The descriptor for event loops.
    pub(crate) fn selectable(&self) -> Result<&OwnedFd, Failure> {
        let batch = lock(&self.batch);
        let has_frames = batch.as_ref().is_some_and(|batch| !batch.is_empty());
        let watched = self.selectable.watch(has_frames);
        watched.map_err(system("start a timer"))?;
        drop(batch);
        lock(&self.port).arm();
        Ok(&self.selectable.epoll)
    }

    /// Gives frames to `deliver`: until `count`; without it, all that there are, and waits for
    /// more if `forever`. Returns their number, or a status.
    pub(crate) fn read(
        &self,
        count: Option<usize>,
        forever: bool,
        mut deliver: impl FnMut(&crate::types::PktHdr, &[u8]),
    ) -> Result<usize, Failure> {
        let mut batch = lock(&self.batch).take().unwrap_or_default();
        let result = self.read_by(&mut batch, count, forever, &mut deliver);
        self.selectable
            .set_pending(!batch.is_empty() || lock(&self.ended).is_some());
        *lock(&self.batch) = Some(batch);
        result
    }

    fn read_by(
        &self,
        batch: &mut Batch,
        count: Option<usize>,
        forever: bool,
        deliver: &mut dyn FnMut(&crate::types::PktHdr, &[u8]),
    ) -> Result<usize, Failure> {
        let mut done = 0;
        loop {
            if self.has_broken() {
                return Err(Failure {
                    status: ERROR_BREAK,
                    text: "the loop was broken".to_owned(),
                });
            }
            if batch.is_empty() {
                let waits = forever || done == 0 && !self.nonblock.load(Relaxed);
                if !self.refill(batch, waits, forever)? && !forever {
                    return Ok(done);
                }
                continue;
            }
            if let Some((header, bytes)) = batch.take() {
                deliver(header, bytes);
                done += 1;
            }
            if count == Some(done) {
                return Ok(done);
            }
        }
    }

    /// Reads frames into an empty batch; false if there are none in time. True without frames if
    /// the loop is to be broken.
    fn refill(&self, batch: &mut Batch, waits: bool, forever: bool) -> Result<bool, Failure> {
        let timeout = self.active.timeout.filter(|_| !forever);
        let deadline = timeout.map(|time| Instant::now() + time);
        loop {
            if self.fill(batch)? {
                return Ok(true);
            }
            self.check_if_due()?;
            if !waits {
                return Ok(false);
            }
            match self
                .gather(deadline)?
                .map_or_else(|| self.wait(deadline), Ok)?
            {
                Woke::Interrupted if self.breaks.load(Relaxed) => return Ok(true),
                Woke::Ready | Woke::Interrupted => {}
                Woke::TimedOut => return Ok(false),
            }
        }
    }

    fn fill(&self, batch: &mut Batch) -> Result<bool, Failure> {
        batch.clear();
        let nano = self.active.precision == TSTAMP_PRECISION_NANO;
        let mut filter = lock(&self.filter);
        filter.take_if(|recheck| Instant::now() > recheck.until);
        let mut port = lock(&self.port);
        let (mut read, mut lost, mut bytes) = (0, 0, 0);
        let frames = port.recv_at_most(FRAMES_MAX, Timeout::NOW);
        for frame in frames.map_err(|error| of_read(&error))? {
            read += 1;
            lost += u64::from(frame.lost_before());
            bytes += frame.bytes().len() as u64 + RECORD_BYTES;
            if self.is_wanted(filter.as_ref(), &frame) {
                batch.push(&frame, nano);
            }
        }
        self.counts.read.fetch_add(read, Relaxed);
        self.counts.lost.fetch_add(lost, Relaxed);
        if self.selectable.watched.load(Relaxed) {
            port.arm();
        }
        drop(port);
        lock(&self.pace).add(bytes);
        Ok(!batch.is_empty())
    }

    /// Lets frames gather, if some were read a moment ago; `None` if it is to wait for one.
    fn gather(&self, deadline: Option<Instant>) -> Result<Option<Woke>, Failure> {
        let Some(pause) = lock(&self.pace).pause().filter(|_| !self.active.immediate) else {
            return Ok(None);
        };
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let pause = left.map_or(pause, |left| left.min(pause));
        let pause = Timespec::try_from(pause).ok();
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
        match poll(&mut fds, pause.as_ref()) {
            Ok(0) => Ok(Some(Woke::Ready)),
            Ok(_) => {
                // Also a word of a break that was noticed before it came.
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                Ok(Some(Woke::Interrupted))
            }
            Err(rustix::io::Errno::INTR) => Ok(Some(Woke::Interrupted)),
            Err(error) => Err(system("pause between frames")(error)),
        }
    }

    fn is_wanted(&self, filter: Option<&Recheck>, frame: &Frame<'_>) -> bool {
        let outgoing = frame.is_outgoing();
        let direction = self.direction.load(Relaxed);
        if let Some(recheck) = filter
            && cbpf::run(&recheck.insns, frame.bytes(), frame.original_len()) == 0
        {
            self.counts.unwanted.fetch_add(1, Relaxed);
            return false;
        }
        match direction {
            IN => !outgoing,
            OUT => outgoing,
            // The loopback interface has each frame twice: as it goes, and as it comes.
            _ => !(outgoing && self.active.interface == LOOPBACK),
        }
    }

    /// Waits for a frame without any lock.
    fn wait(&self, deadline: Option<Instant>) -> Result<Woke, Failure> {
        loop {
            if !lock(&self.port).arm() {
                return Ok(Woke::Ready);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let slice = left.map_or(CHECK, |left| left.min(CHECK));
            let slice = Timespec::try_from(slice).ok();
            let mut fds = [&self.ring, &self.wake].map(|fd| PollFd::new(fd, PollFlags::IN));
            match poll(&mut fds, slice.as_ref()) {
                Err(rustix::io::Errno::INTR) => return Ok(Woke::Interrupted),
                Err(error) => return Err(system("wait for frames")(error)),
                Ok(_) => {}
            }
            let [ring, wake] = fds.map(|fd| !fd.revents().is_empty());
            if wake {
                // Also a word of a break that was noticed before it came.
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                return Ok(Woke::Interrupted);
            }
            if ring {
                return Ok(Woke::Ready);
            }
            self.check_if_due()?;
            if deadline.is_some_and(|at| Instant::now() >= at) {
                return Ok(Woke::TimedOut);
            }
        }
    }

    /// Looks now and then whether the capture goes on.
    fn check_if_due(&self) -> Result<(), Failure> {
        if let Some(ended) = &*lock(&self.ended) {
            return Err(ended.clone());
        }
        let mut checked = lock(&self.checked);
        if checked.elapsed() < CHECK {
            return Ok(());
        }
        *checked = Instant::now();
        drop(checked);
        let _ = rustix::io::read(&self.selectable.timer, &mut [0; 8]);
        let ended = match lock(&self.port).events() {
            Ok(events) => events.into_iter().find_map(end),
            // The port outlives this broker; another may take it over.
            Err(PortError::NoBroker { .. }) => None,
            // The broker that was started since does not have the port.
            Err(_) if !is_interface(&self.active.interface) => end(Event::Gone),
            Err(error) => Some(of_read(&error)),
        };
        match ended {
            None => Ok(()),
            Some(ended) => {
                *lock(&self.ended) = Some(ended.clone());
                Err(ended)
            }
        }
    }

    /// Replaces the filter.
    pub(crate) fn set_filter(&self, insns: &[Insn]) -> Result<(), Failure> {
        cbpf::verify(insns).map_err(|error| {
            Failure::new(format!(
                "weir cannot run this filter in the kernel: {error}"
            ))
        })?;
        let text = cbpf::text(insns, Form::Decimal);
        let mut filter = lock(&self.filter);
        lock(&self.port).set_filter_in(Language::Cbpf, &text)?;
        *filter = Some(Recheck {
            insns: insns.to_vec(),
            until: Instant::now() + RECHECK,
        });
        Ok(())
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &[u8]) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            if lock(&self.port).send_batch(&[frame])? == 1 {
                return Ok(());
            }
            if self.nonblock.load(Relaxed) || began.elapsed() > SEND_MAX {
                return Err(Failure::new("send: the queue of frames to be sent is full"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Counts since the capture was activated. Where the broker is not there, or a signal handler
    /// asks while the port is in use: what was read so far.
    pub(crate) fn stats(&self) -> Stat {
        let read = self.counts.read.load(Relaxed);
        let lost = self.counts.lost.load(Relaxed);
        let (delivered, lost, ifdrop) = match self.try_port().map(|mut port| port.counters()) {
            Some(Ok(counters)) => (counters.delivered, counters.lost, counters.interface_lost),
            _ => (read, lost, 0),
        };
        let unwanted = self.counts.unwanted.load(Relaxed);
        // The counts are of 32 bits, and wrap as libpcap's.
        Stat {
            recv: (delivered + lost).saturating_sub(unwanted) as u32,
            drop: lost as u32,
            ifdrop: ifdrop as u32,
        }
    }

    fn try_port(&self) -> Option<MutexGuard<'_, Port>> {
        for _ in 0..LOCK_TRIES {
            match self.port.try_lock() {
                Ok(port) => return Some(port),
                Err(TryLockError::Poisoned(port)) => return Some(port.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            }
        }
        None
    }
}

/// Linux' loopback interface.
const LOOPBACK: &str = "lo";
/// `PCAP_D_IN` and `PCAP_D_OUT`.
pub(crate) const IN: u32 = 1;
pub(crate) const OUT: u32 = 2;

/// A read's failure: of its statuses, programs print the text of `PCAP_ERROR` alone.
fn of_read(error: &PortError) -> Failure {
    Failure::new(error.to_string())
}

/// The failure of a capture by an event that ends it.
fn end(event: Event) -> Option<Failure> {
    match event {
        // libpcap's words.
        Event::Gone => Some(Failure::new("The interface disappeared")),
        Event::Revoked { reason } => Some(Failure {
            status: ERROR,
            text: reason,
        }),
        _ => None,
    }
}
