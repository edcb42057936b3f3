//! A bump in the wire: each frame passes through the application's callback,
//! and goes out on the other link.

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
use weir_link::xdp::{BURST_FRAMES_MAX, Bypass, FlowAction, FlowKey, FlowKind, MeterStage};
use weir_ring::Frame;
use weir_ring::umem::ChunkCounts;

/// Number of frames taken from one queue before they are sent.
const BATCH: usize = 64;

/// Longest interval between calls of the application's `lookup`.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// `STOP_POLL_INTERVAL` in nanoseconds.
const STOP_POLL_INTERVAL_NS: u64 = STOP_POLL_INTERVAL.as_nanos() as u64;

/// The decision on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The frame goes out on the other link.
    Forward,
    /// The frame goes back out on the link on which it arrived.
    Return,
    /// The frame is dropped.
    Drop,
    /// As [`Forward`](Verdict::Forward), and the kernel forwards similar frames
    /// itself while they keep coming, see [`Bridge::cache_verdicts`]. Without a
    /// flow cache, or without room in it, the verdict equals `Forward`.
    ForwardAndCache(BridgeFlowKind),
    /// The frame is dropped, and the kernel drops similar frames.
    DropAndCache(BridgeFlowKind),
}

/// The frames that share a cached verdict; all of them arrived on the same
/// link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BridgeFlowKind {
    /// Frames between the same stations in the same VLAN.
    MacPair,
    /// Frames of the same TCP or UDP flow. A frame of another protocol shares
    /// its verdict with no other.
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

/// Asks a running bridge to end; usable from any thread and signal handler.
#[derive(Clone, Debug)]
pub struct StopToken(Arc<StopFlag>);

#[derive(Debug)]
struct StopFlag {
    is_requested: AtomicBool,
    /// An eventfd that is readable once the end is requested. `None` without
    /// free descriptors; the bridge then ends at its next
    /// [`STOP_POLL_INTERVAL`].
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
    /// Requests the end.
    pub fn stop(&self) {
        self.0.is_requested.store(true, Ordering::Relaxed);
        if let Some(wake) = &self.0.wake {
            // If the counter is full, the descriptor is readable anyway.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    /// Whether the end was requested.
    pub fn is_requested(&self) -> bool {
        self.0.is_requested.load(Ordering::Relaxed)
    }

    /// The descriptor that is readable once the end is requested.
    fn fd(&self) -> Option<OwnedFd> {
        self.0.wake.as_ref()?.try_clone().ok()
    }
}

/// Two links, and the settings of the bridge between them.
#[derive(Debug)]
pub struct Bridge {
    links: [String; 2],
    config: Config,
    stop: StopToken,
    wakes: Vec<OwnedFd>,
    restore: bool,
    ageing: Duration,
    meters: Vec<MeterStage>,
}

/// The context of a frame: its origin, and operations besides the verdict.
#[derive(Debug)]
pub struct Context<'a> {
    tap: &'a mut Tap,
    from: usize,
    queue: usize,
}

impl Context<'_> {
    /// The link on which the frame arrived: 0 for the first, 1 for the second.
    #[inline]
    pub fn from(&self) -> usize {
        self.from
    }

    /// A new frame with these bytes; `None` if no chunk is free.
    pub fn frame(&self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.tap.alloc()?;
        frame.set(bytes).then_some(frame)
    }

    /// Sends a frame of the application on a link (0 or 1), before the frame
    /// that the verdict is for. Returns `false` if it was dropped for lack of
    /// room.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn send(&mut self, link: usize, frame: Frame) -> Result<bool, TapError> {
        self.tap.give_to(LinkId(link), self.queue, frame)
    }

    /// The underlying tap, for its counters.
    pub fn tap(&self) -> &Tap {
        self.tap
    }

    /// The flow cache; `None` without [`Bridge::cache_verdicts`].
    #[inline]
    pub fn flow_cache(&mut self) -> Option<&mut FlowCache> {
        self.tap.flow_cache()
    }
}

impl Bridge {
    /// A bridge between two interfaces of the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// If they do not exist, carry no Ethernet frames or are the same.
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
            meters: Vec::new(),
        })
    }

    /// Sets the bypass, which applies while the application does not run, for
    /// any reason, until the next one is ready or `weir bridge … --clean` runs.
    /// By default the links return to the host.
    pub fn bypass(mut self, bypass: Bypass) -> Bridge {
        self.config.bypass = bypass;
        self
    }

    /// Sets how long a frame may wait for an idle application before that
    /// counts as hung; by default 10 ms.
    pub fn hang_max(mut self, limit: Duration) -> Bridge {
        self.config.hang_max = Some(limit);
        self
    }

    /// Enables cached verdicts of these kinds: up to `entries_max` entries,
    /// each until no frame used it for `ageing`. Each kind costs every frame a
    /// look-up in the kernel; of both kinds, flows are looked up first.
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

    /// Changes sizes and modes.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Bridge {
        change(&mut self.config);
        self
    }

    /// Ends [`run`](Self::run) when this token is triggered.
    pub fn until(mut self, stop: &StopToken) -> Bridge {
        self.stop = stop.clone();
        self
    }

    /// Calls `lookup` of [`run_with`](Self::run_with) also while this
    /// descriptor is readable: at once without traffic, and within 1 ms with
    /// traffic.
    pub fn wake_on(mut self, fd: OwnedFd) -> Bridge {
        self.wakes.push(fd);
        self
    }

    /// Counts the frames that come in at either link, the first one's by the
    /// first stage, before all else: see [`Tap::between_metered`].
    pub fn meter(mut self, stages: [MeterStage; 2]) -> Bridge {
        self.meters = stages.into();
        self
    }

    /// Restores the links when the bridge is [asked to end](Self::until),
    /// instead of leaving the bypass.
    pub fn restore(mut self) -> Bridge {
        self.restore = true;
        self
    }

    /// Taps both links and runs `each` on every frame, until a stop is
    /// requested or a link is gone. Returns the final state of the chunks: all
    /// are free, unless `each` has kept frames.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn run(
        self,
        each: impl FnMut(&mut Frame, &mut Context<'_>) -> Verdict,
    ) -> Result<ChunkCounts, TapError> {
        self.run_with(each, |_| {})
    }

    /// As [`run`](Self::run); also calls `lookup` with the tap when frames
    /// flow, then about every 50 ms, when a link's MTU or running state
    /// changes, for [`wake_on`](Self::wake_on), and at the end.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn run_with(
        self,
        mut each: impl FnMut(&mut Frame, &mut Context<'_>) -> Verdict,
        mut look: impl FnMut(&mut Tap),
    ) -> Result<ChunkCounts, TapError> {
        let [a, b] = &self.links;
        let mut tap = Tap::between_metered(self.config, a, b, &self.meters)?;
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

/// Processes one batch of one queue; each frame moves from ring to ring.
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

/// Caches the verdict for similar frames; counts a failure.
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
