//! A bump in the wire: each frame goes through the program's code, and then
//! out at the other link.

pub mod fdb;
pub mod switch;

use crate::config::Config;
use crate::error::TapError;
use crate::flow_cache::{FlowCache, FlowCacheConfig};
use crate::tap::{LinkId, Pull, Tap};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_link::xdp::{BURST_FRAMES_MAX, Bypass, FlowAction, FlowKey, FlowKind};
use weir_ring::Frame;
use weir_ring::umem::ChunkCounts;

/// Frames that are taken from one queue before they are sent.
const BATCH: usize = 64;

/// How often the program's `lookup` is called where nothing else calls it.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The same in nanoseconds.
const STOP_POLL_INTERVAL_NS: u64 = STOP_POLL_INTERVAL.as_nanos() as u64;

/// What becomes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// It goes out at the other link.
    Forward,
    /// It goes back out where it came in.
    Return,
    /// It does not go on.
    Drop,
    /// It goes out at the other link as it came, and the kernel sends its like
    /// there without asking, as long as they come, see
    /// [`Bridge::remember`]. Without that, and where there is no room, as
    /// [`Forward`](Verdict::Forward).
    ForwardAndCache(BridgeFlowKind),
    /// It does not go on, nor does its like.
    DropAndCache(BridgeFlowKind),
}

/// Which frames are alike: those that came in at the same link, and …
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BridgeFlowKind {
    /// … are between the same stations in the same VLAN.
    MacPair,
    /// … are of the same flow of TCP or UDP. One that is of none is like no
    /// other.
    FiveTuple,
}

impl BridgeFlowKind {
    fn kind(self) -> FlowKind {
        match self {
            BridgeFlowKind::MacPair => FlowKind::MacPair,
            BridgeFlowKind::FiveTuple => FlowKind::FiveTuple,
        }
    }
}

/// Asks a running bridge to end; any thread and any signal handler may.
#[derive(Clone, Debug)]
pub struct StopToken(Arc<StopFlag>);

#[derive(Debug)]
struct StopFlag {
    is_requested: AtomicBool,
    /// Readable once it is asked. Without descriptors left there is none, and
    /// the bridge ends at its next [`STOP_POLL_INTERVAL`].
    wake: Option<OwnedFd>,
}

impl Default for StopToken {
    fn default() -> StopToken {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        StopToken(Arc::new(StopFlag {
            is_requested: AtomicBool::new(false),
            wake: eventfd(0, flags).ok(),
        }))
    }
}

impl StopToken {
    /// Asks.
    pub fn stop(&self) {
        self.0.is_requested.store(true, Ordering::Relaxed);
        if let Some(wake) = &self.0.wake {
            // A count that is full is readable as it is.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    /// Whether it was asked.
    pub fn is_requested(&self) -> bool {
        self.0.is_requested.load(Ordering::Relaxed)
    }

    /// What becomes readable once it is asked.
    fn fd(&self) -> Option<OwnedFd> {
        self.0.wake.as_ref()?.try_clone().ok()
    }
}

/// Two links, and what a program does between them.
#[derive(Debug)]
pub struct Bridge {
    links: [String; 2],
    config: Config,
    stop: StopToken,
    wakes: Vec<OwnedFd>,
    restore: bool,
    ageing: Duration,
}

/// Where a frame came from, and what else can be done than to give a verdict.
#[derive(Debug)]
pub struct Context<'a> {
    tap: &'a mut Tap,
    from: usize,
    queue: usize,
}

impl Context<'_> {
    /// Which link the frame came in at: 0 for the first, 1 for the second.
    #[inline]
    pub fn from(&self) -> usize {
        self.from
    }

    /// A new frame with these bytes; `None` if no chunk is free.
    pub fn frame(&self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.tap.alloc()?;
        frame.set(bytes).then_some(frame)
    }

    /// Sends a frame of one's own at a link (0 or 1), before the one that the
    /// verdict is for; `false` if it was dropped for want of room.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn send(&mut self, link: usize, frame: Frame) -> Result<bool, TapError> {
        self.tap.give_to(LinkId(link), self.queue, frame)
    }

    /// The tap below, to count.
    pub fn tap(&self) -> &Tap {
        self.tap
    }

    /// What the kernel remembers, if [`Bridge::remember`] lets it.
    #[inline]
    pub fn flow_cache(&mut self) -> Option<&mut FlowCache> {
        self.tap.flow_cache()
    }
}

impl Bridge {
    /// Between two interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// If they are not there, carry no Ethernet frames or are the same.
    pub fn between(a: &str, b: &str) -> Result<Bridge, TapError> {
        let index = |name| Ok::<u32, TapError>(weir_link::net::Interface::named(name)?.index);
        if index(a)? == index(b)? {
            let interface = a.to_owned();
            return Err(TapError::Same { interface });
        }
        Ok(Bridge {
            links: [a.to_owned(), b.to_owned()],
            config: Config::default(),
            stop: StopToken::default(),
            wakes: Vec::new(),
            restore: false,
            ageing: Duration::ZERO,
        })
    }

    /// What holds while the program does not run, for whatever reason, until
    /// the next one is ready or `weir bridge … --clean`; by default the links
    /// are the host's, as they were before.
    pub fn bypass(mut self, bypass: Bypass) -> Bridge {
        self.config.bypass = bypass;
        self
    }

    /// How long a frame may wait for a program that does nothing, before it
    /// counts as hung; by default 10 ms.
    pub fn hang_max(mut self, limit: Duration) -> Bridge {
        self.config.hang_max = Some(limit);
        self
    }

    /// Lets the kernel remember verdicts on frames that are alike in this: up
    /// to so many, each until none of its frames came for `ageing`. Each kind
    /// costs every frame a look-up in the kernel; of both, flows come first.
    pub fn cache_verdicts(
        mut self,
        alike: &[BridgeFlowKind],
        entries_max: u32,
        ageing: Duration,
    ) -> Bridge {
        let kinds: &[FlowKind] = match [BridgeFlowKind::FiveTuple, BridgeFlowKind::MacPair]
            .map(|a| alike.contains(&a))
        {
            [true, true] => &[FlowKind::FiveTuple, FlowKind::MacPair],
            [true, false] => &[FlowKind::FiveTuple],
            _ => &[FlowKind::MacPair],
        };
        self.config.flow_cache = Some(FlowCacheConfig { kinds, entries_max });
        self.ageing = ageing;
        self
    }

    /// Sizes and modes.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Bridge {
        change(&mut self.config);
        self
    }

    /// Ends [`run`](Self::run) when asked by this.
    pub fn until(mut self, stop: &StopToken) -> Bridge {
        self.stop = stop.clone();
        self
    }

    /// Calls `lookup` of [`run_with`](Self::run_with) also while this descriptor is
    /// readable: at once while no frame comes, and within 1 ms while some do.
    pub fn wake_on(mut self, fd: OwnedFd) -> Bridge {
        self.wakes.push(fd);
        self
    }

    /// Leaves the links as they were when it is [asked to end](Self::until),
    /// and nothing joined.
    pub fn restore(mut self) -> Bridge {
        self.restore = true;
        self
    }

    /// Taps both links and runs `each` on every frame, until it is asked to
    /// end or a link is gone. Gives who has the chunks then: all are free,
    /// unless `each` has kept some.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn run(
        self,
        each: impl FnMut(&mut Frame, &mut Context<'_>) -> Verdict,
    ) -> Result<ChunkCounts, TapError> {
        self.run_with(each, |_| {})
    }

    /// As [`run`](Self::run); `lookup` sees the tap when frames flow, then
    /// every 50 ms or so, when the MTU of a link changes or whether it is running,
    /// for [`wake_on`](Self::wake_on), and at the end.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn run_with(
        self,
        mut each: impl FnMut(&mut Frame, &mut Context<'_>) -> Verdict,
        mut look: impl FnMut(&mut Tap),
    ) -> Result<ChunkCounts, TapError> {
        let [a, b] = &self.links;
        let mut tap = Tap::between(self.config, a, b)?;
        let wakes = self.wakes.into_iter().chain(self.stop.fd());
        wakes.for_each(|fd| tap.wake_on(fd));
        let ran = run(&mut tap, &self.stop, &mut each, &mut look, self.ageing);
        if self.restore && ran.is_ok() {
            tap.restore();
        }
        if let Some(cache) = tap.flow_cache() {
            cache.tally();
        }
        look(&mut tap);
        let unmapped = tap.unmap();
        ran?;
        unmapped
    }
}

fn run(
    tap: &mut Tap,
    stop: &StopToken,
    each: &mut impl FnMut(&mut Frame, &mut Context<'_>) -> Verdict,
    look: &mut impl FnMut(&mut Tap),
    ageing: Duration,
) -> Result<(), TapError> {
    tap.ready()?;
    look(tap);
    let mut look_at = tap.now().saturating_add(STOP_POLL_INTERVAL_NS);
    while !stop.is_requested() {
        tap.pull(Pull::Frame(STOP_POLL_INTERVAL))?;
        for from in 0..2 {
            for queue in 0..tap.queues(LinkId(from)) {
                batch(tap, from, queue, each, ageing)?;
            }
        }
        tap.push()?;
        if tap.is_woken() || tap.now() >= look_at {
            look_at = tap.now().saturating_add(STOP_POLL_INTERVAL_NS);
            tap.watch_links()?;
            look(tap);
        }
    }
    Ok(())
}

/// One batch of one queue: each frame goes from ring to ring.
#[inline]
fn batch(
    tap: &mut Tap,
    from: usize,
    queue: usize,
    each: &mut impl FnMut(&mut Frame, &mut Context<'_>) -> Verdict,
    ageing: Duration,
) -> Result<(), TapError> {
    let calls_each = tap.syscall_per_frame();
    let most = if tap.uses_tx_burst() {
        BURST_FRAMES_MAX
    } else {
        BATCH
    };
    for _ in 0..most {
        if calls_each {
            tap.call_rx(LinkId(from), queue)?;
        }
        let Some(mut frame) = tap.take_from(LinkId(from), queue)? else {
            break;
        };
        let verdict = each(&mut frame, &mut Context { tap, from, queue });
        match verdict {
            Verdict::Forward => {
                tap.give_to(LinkId(1 - from), queue, frame)?;
            }
            Verdict::Return => {
                tap.give_to(LinkId(from), queue, frame)?;
            }
            Verdict::Drop => {}
            Verdict::ForwardAndCache(alike) => {
                let link = (1 - from) as u32;
                insert_cached(
                    tap,
                    from,
                    &frame,
                    alike,
                    FlowAction::Forward { link },
                    ageing,
                );
                tap.give_to(LinkId(1 - from), queue, frame)?;
            }
            Verdict::DropAndCache(alike) => {
                insert_cached(tap, from, &frame, alike, FlowAction::Drop, ageing);
            }
        }
        if calls_each {
            tap.push()?;
        }
    }
    tap.release(LinkId(from), queue);
    Ok(())
}

/// Has the kernel remember what becomes of a frame's like; counted if it
/// cannot.
fn insert_cached(
    tap: &mut Tap,
    from: usize,
    frame: &Frame,
    alike: BridgeFlowKind,
    action: FlowAction,
    ageing: Duration,
) {
    if let Some(cache) = tap.flow_cache()
        && let Some(key) = FlowKey::of(alike.kind(), from as u32, frame.bytes())
    {
        cache.insert(key, action, ageing);
    }
}
