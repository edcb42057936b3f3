//! The page that a tap's process and its programs in the kernel share.
//!
//! ```text
//!  offset
//!  0     u64  gate: low half 1 open, 0 shut; high half the epoch
//!  8     u64  heartbeat: CLOCK_MONOTONIC in ns; 0 asleep, until a frame comes
//!  16    u64  limit: ns that the heartbeat may be behind
//!  24    u32  bypass: the way of frames while the gate is shut
//!  28    u32  why it is shut
//!  32    u64  shut because the process died, times
//!  40    u64  shut because it hung, times
//!  48    u64  when it was shut last
//!  56    u64  frames that could not carry the epoch
//!  64    u64  version of this layout
//!  72    u32  links: which (by bit) may be redirected to in the driver
//!  76    u32  links: which (by bit) we have set promiscuous
//!  80    u64  lease: while the process sleeps, cached verdicts hold until then
//!  96    u64  limit by the coarse clock: less by a tick, signed
//!  104   u64  frames held back, and lost, while their like took to cached verdicts
//!  112   u64  cached verdicts whose frames were held back
//!  128   for each link: u32 bytes of the longest frame that it can send
//!  256   for each link: u64 frames bypassed, u64 left to the host
//!  2048  for each process: its liveness lock, a robust lock in 64 bytes (liveness.rs)
//!  4096  for each queue, where there are cached verdicts: u64 frames handed to
//!        the process, u64 how many of those are settled: sent on, or gone
//! ```

use crate::bpf::{Map, MapError, MapMemory, MapSpec};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Largest number of links of one tap.
pub const LINKS_MAX: u32 = 8;

/// Largest number of queues of one link.
pub const QUEUES_MAX: u32 = 64;

/// Largest number of processes that share a tap.
pub const MEMBERS_MAX: u16 = 16;

/// Version of this layout and of the programs that use it; includes the C library's lock layout.
pub(in crate::xdp) const VERSION: u64 = 6 | (super::liveness::LOCK_WORD as u64) << 32;

pub(in crate::xdp) const BYTES: u32 =
    (at::QUEUES + at::QUEUE_BYTES * (LINKS_MAX * QUEUES_MAX) as usize) as u32;

pub(in crate::xdp) mod at {
    pub(crate) const GATE: usize = 0;
    pub(crate) const HEARTBEAT: usize = 8;
    pub(crate) const LIMIT: usize = 16;
    pub(crate) const BYPASS: usize = 24;
    pub(crate) const SHUT_REASON: usize = 28;
    pub(crate) const DIED: usize = 32;
    pub(crate) const HUNG: usize = 40;
    pub(crate) const SHUT_AT: usize = 48;
    pub(crate) const NO_META: usize = 56;
    pub(crate) const VERSION: usize = 64;
    pub(crate) const FLOW_CACHE: usize = 72;
    pub(crate) const PROMISCUOUS: usize = 76;
    pub(crate) const LEASE: usize = 80;
    pub(crate) const CONFIRMED_LIMIT: usize = 96;
    pub(crate) const HELD_BACK: usize = 104;
    pub(crate) const HELD_BACK_ENTRIES: usize = 112;
    pub(crate) const LONGEST: usize = 128;
    pub(crate) const LINKS: usize = 256;
    pub(crate) const LINK_BYTES: usize = 16;
    pub(crate) const LIVENESS_LOCKS: usize = 2048;
    pub(crate) const LIVENESS_LOCK_BYTES: usize = 64;

    /// Offset of a process's liveness lock.
    pub(crate) const fn liveness(slot: u16) -> usize {
        LIVENESS_LOCKS + slot as usize * LIVENESS_LOCK_BYTES
    }

    pub(crate) const QUEUES: usize = 4096;
    pub(crate) const QUEUE_BYTES: usize = 16;
    /// Offsets within a queue's words.
    pub(crate) const DELIVERED: usize = 0;
    pub(crate) const DRAINED: usize = 8;

    /// Offset of a queue's words.
    pub(crate) const fn queue(link: u32, queue: u32) -> usize {
        let number = link * super::QUEUES_MAX + queue;
        QUEUES + number as usize * QUEUE_BYTES
    }

    /// Offset of a link's count of frames passed to the host.
    pub(crate) const fn to_host(link: u32) -> usize {
        LINKS + link as usize * LINK_BYTES + 8
    }
}

/// The path of frames while no process takes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Bypass {
    /// To the host's own protocols, as without a tap.
    #[default]
    Kernel,
    /// To the link that the ingress link is joined to.
    Wire,
    /// Frames are dropped.
    Drop,
}

impl Bypass {
    pub(in crate::xdp) fn number(self) -> u32 {
        match self {
            Bypass::Kernel => 0,
            Bypass::Wire => 1,
            Bypass::Drop => 2,
        }
    }
}

impl std::fmt::Display for Bypass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Bypass::Kernel => "kernel",
            Bypass::Wire => "wire",
            Bypass::Drop => "drop",
        })
    }
}

impl std::str::FromStr for Bypass {
    type Err = String;

    fn from_str(text: &str) -> Result<Bypass, String> {
        match text {
            "kernel" => Ok(Bypass::Kernel),
            "wire" => Ok(Bypass::Wire),
            "drop" => Ok(Bypass::Drop),
            _ => Err(format!(
                "`{text}` is not a bypass: give wire, kernel or drop"
            )),
        }
    }
}

/// Why the gate is shut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BypassReason {
    /// No process has declared itself ready, or the process has shut the gate.
    NotReady,
    /// The process died.
    Died,
    /// The heartbeat was older than the limit when a frame arrived.
    Hung,
}

impl BypassReason {
    pub(in crate::xdp) fn number(self) -> u32 {
        match self {
            BypassReason::NotReady => 0,
            BypassReason::Died => 1,
            BypassReason::Hung => 2,
        }
    }
}

/// The shared page.
#[derive(Debug)]
pub struct SharedPage {
    memory: MapMemory,
}

/// How often the gate was shut, by reason, and frames that could not be admitted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BypassCounts {
    /// Number of times that the process was found dead.
    pub died: u64,
    /// Number of times that the process was found hung.
    pub hung: u64,
    /// Frames without room for the epoch before them.
    pub no_meta: u64,
}

impl SharedPage {
    pub(in crate::xdp) fn make() -> Result<Map, MapError> {
        let spec = MapSpec {
            mmapable: true,
            ..MapSpec::array(BYTES, 1)
        };
        Map::create("weir_tap_state", &spec)
    }

    /// Maps the page.
    ///
    /// # Errors
    /// If the map is not a shared page.
    pub fn of(map: &Map) -> Result<SharedPage, MapError> {
        if (map.value_bytes(), map.entries_max()) != (BYTES as usize, 1) {
            return Err(MapError::System {
                what: "map the page of a tap (the map is of another size)",
                source: std::io::ErrorKind::InvalidInput.into(),
            });
        }
        let memory = map.map_memory(true)?;
        Ok(SharedPage { memory })
    }

    pub(in crate::xdp) fn memory(&self) -> &MapMemory {
        &self.memory
    }

    #[inline]
    pub(in crate::xdp) fn atomic_u64(&self, at: usize) -> &AtomicU64 {
        self.memory.u64(0, at).expect("the page has these places")
    }

    #[inline]
    pub(in crate::xdp) fn atomic_u32(&self, at: usize) -> &AtomicU32 {
        self.memory.u32(0, at).expect("the page has these places")
    }

    /// Writes the heartbeat, at `now` (`CLOCK_MONOTONIC`, ns).
    #[inline]
    pub fn beat(&self, now: u64) {
        self.atomic_u64(at::HEARTBEAT)
            .store(now.max(1), Ordering::Release);
    }

    /// Declares that the process sleeps until the next frame: the hang limit counts from that
    /// frame. Check for frames once more afterwards.
    pub fn sleep(&self) {
        self.atomic_u64(at::HEARTBEAT).store(0, Ordering::SeqCst);
    }

    /// The last heartbeat; for a sleeping process, the time of the first frame since, if any.
    pub fn heartbeat(&self) -> u64 {
        self.atomic_u64(at::HEARTBEAT).load(Ordering::Acquire)
    }

    /// Whether the gate is open, and the epoch.
    #[inline]
    pub fn gate(&self) -> (bool, u32) {
        let word = self.atomic_u64(at::GATE).load(Ordering::Acquire);
        (word & 1 != 0, (word >> 32) as u32)
    }

    /// Opens the gate: from now on frames go to the process, with the returned epoch.
    pub fn open(&self, now: u64) -> u32 {
        let (_, epoch) = self.gate();
        self.beat(now);
        self.atomic_u32(at::SHUT_REASON)
            .store(BypassReason::NotReady.number(), Ordering::Relaxed);
        let word = u64::from(epoch) << 32 | 1;
        self.atomic_u64(at::GATE).store(word, Ordering::SeqCst);
        epoch
    }

    /// Shuts the gate: frames take the bypass, and frames that arrive late carry the wrong epoch.
    pub fn shut(&self) {
        let (is_open, epoch) = self.gate();
        if is_open {
            let word = u64::from(epoch.wrapping_add(1)) << 32;
            self.atomic_u64(at::GATE).store(word, Ordering::SeqCst);
        }
    }

    /// Why the gate is shut.
    pub fn shut_reason(&self) -> BypassReason {
        match self.atomic_u32(at::SHUT_REASON).load(Ordering::Relaxed) {
            1 => BypassReason::Died,
            2 => BypassReason::Hung,
            _ => BypassReason::NotReady,
        }
    }

    /// Sets the path of frames while the gate is shut.
    pub fn set_bypass(&self, bypass: Bypass) {
        self.atomic_u32(at::BYPASS)
            .store(bypass.number(), Ordering::SeqCst);
    }

    /// Sets the largest age of the heartbeat; `None` for no limit.
    pub fn set_limit(&self, limit: Option<Duration>) {
        let nanos = limit.map(|limit| limit.as_nanos());
        let nanos = nanos.and_then(|nanos| i64::try_from(nanos).ok());
        let nanos = nanos.unwrap_or(i64::MAX);
        self.atomic_u64(at::LIMIT)
            .store(nanos as u64, Ordering::SeqCst);
        let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
        let sure = nanos - tick.tv_nsec;
        self.atomic_u64(at::CONFIRMED_LIMIT)
            .store(sure as u64, Ordering::SeqCst);
    }

    /// The largest age of the heartbeat; `None` for no limit.
    pub fn limit(&self) -> Option<Duration> {
        let nanos = self.atomic_u64(at::LIMIT).load(Ordering::Relaxed);
        (nanos < i64::MAX as u64).then(|| Duration::from_nanos(nanos))
    }

    /// The path of frames while the gate is shut.
    pub fn bypass(&self) -> Bypass {
        match self.atomic_u32(at::BYPASS).load(Ordering::Relaxed) {
            1 => Bypass::Wire,
            2 => Bypass::Drop,
            _ => Bypass::Kernel,
        }
    }

    /// The counts since the page was created.
    pub fn bypass_counts(&self) -> BypassCounts {
        BypassCounts {
            died: self.atomic_u64(at::DIED).load(Ordering::Relaxed),
            hung: self.atomic_u64(at::HUNG).load(Ordering::Relaxed),
            no_meta: self.atomic_u64(at::NO_META).load(Ordering::Relaxed),
        }
    }

    /// Sets the lease: until `until` (`CLOCK_MONOTONIC`, ns) the flow cache stays valid while the
    /// process sleeps.
    #[inline]
    pub fn set_lease(&self, until: u64) {
        self.atomic_u64(at::LEASE).store(until, Ordering::Release);
    }

    fn queue(&self, link: u32, queue: u32, at: usize) -> &AtomicU64 {
        let (link, queue) = (link.min(LINKS_MAX - 1), queue.min(QUEUES_MAX - 1));
        self.atomic_u64(at::queue(link, queue) + at)
    }

    /// Number of frames of a queue passed to the process, if the program has a flow cache; the
    /// number of the last frame.
    #[inline]
    pub fn delivered(&self, link: u32, queue: u32) -> u64 {
        self.queue(link, queue, at::DELIVERED)
            .load(Ordering::SeqCst)
    }

    /// Sets the longest frame that the flow cache may send on a link, in bytes.
    pub fn set_longest(&self, link: u32, bytes: usize) {
        let at = at::LONGEST + link.min(LINKS_MAX - 1) as usize * size_of::<u32>();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.atomic_u32(at).store(bytes, Ordering::SeqCst);
    }

    /// Reports that the frames of a queue up to `number` have drained: sent or dropped. Later
    /// frames cannot overtake them.
    #[inline]
    pub fn set_drained(&self, link: u32, queue: u32, number: u64) {
        let settled = self.queue(link, queue, at::DRAINED);
        settled.store(number, Ordering::SeqCst);
    }

    /// Frames dropped while a flow-cache entry waited for earlier frames.
    pub fn held_back(&self) -> u64 {
        self.atomic_u64(at::HELD_BACK).load(Ordering::Relaxed)
    }

    /// Flow-cache entries whose frames were dropped before they took effect.
    pub fn held_back_entries(&self) -> u64 {
        self.atomic_u64(at::HELD_BACK_ENTRIES)
            .load(Ordering::Relaxed)
    }

    /// Frames of a link passed to the host's own protocols by a
    /// [`HostFilter`](crate::xdp::HostFilter).
    pub fn to_host(&self, link: u32) -> u64 {
        self.atomic_u64(at::to_host(link.min(LINKS_MAX - 1)))
            .load(Ordering::Relaxed)
    }

    /// Frames of a link that took the bypass.
    pub fn bypassed(&self, link: u32) -> u64 {
        let at = at::LINKS + link.min(LINKS_MAX - 1) as usize * at::LINK_BYTES;
        self.atomic_u64(at).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::testenv;

    #[test]
    fn a_map_of_another_size_is_no_page() {
        if !testenv::root() {
            return;
        }
        for (bytes, entries) in [(64, 1), (BYTES / 2, 1), (BYTES, 2)] {
            let spec = MapSpec {
                mmapable: true,
                ..MapSpec::array(bytes, entries)
            };
            let map = Map::create("weir_test_page", &spec).unwrap();
            assert!(
                SharedPage::of(&map).is_err(),
                "{bytes} bytes, {entries} times"
            );
        }
        assert!(SharedPage::of(&SharedPage::make().unwrap()).is_ok());
    }
}
