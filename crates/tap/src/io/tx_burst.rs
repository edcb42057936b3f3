//! Bursts of frames sent in copy mode without a socket buffer for each: see
//! [`weir_link::xdp::TxBurst`].

use crate::clock;
use crate::io::queue::{Push, Queue, TapLink};
use crate::stats::Counts;
use std::fmt;
use weir_link::net::{Feature, driver};
use weir_link::xdp::voluntary_switches;
use weir_link::xdp::{
    BURST_FRAMES_MAX, CopyMode, PAGE_POOLS_MAX, TxBurst, XdpFeatureEvent, XdpFeatureMonitor,
    supports_ndo_xmit,
};

/// The reason why frames of a link are not sent in bursts.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoBurst {
    /// The [configuration](crate::Config::tx_burst) does not request it.
    #[error("it is not requested")]
    NotRequested,
    /// Several processes share the tap.
    #[error("the tap is shared by processes")]
    Shared,
    /// The kernel or the process's privileges do not allow it.
    #[error("the kernel does not permit it ({why}); it needs Linux 6.3 and CAP_SYS_ADMIN")]
    Kernel {
        /// The failure.
        why: String,
    },
    /// The link is in zero-copy mode, which has no socket buffers to save.
    #[error("it is in zero-copy mode, which does not need it")]
    ZeroCopy,
    /// Only for veths is it known that frames stay in order.
    #[error("its driver is `{driver}`; only `veth` is known to keep frames in order")]
    Driver {
        /// The driver's name; empty if unknown.
        driver: String,
    },
    /// Frames of one flow could take several queues.
    #[error("it has {queues} queues; `ethtool -L {interface} rx 1 tx 1` leaves one")]
    Queues {
        /// The interface's name.
        interface: String,
        /// Number of queues.
        queues: usize,
    },
    /// Frames that may be segmented take another path.
    #[error("it cuts segments up; `ethtool -K {interface} tso off` ends that")]
    Segments {
        /// The interface's name.
        interface: String,
    },
    /// The driver accepts no frames that an XDP program redirects.
    #[error(
        "it does not accept redirected frames; `ethtool -K PEER gro on` for its other end lets it, or a program at XDP there"
    )]
    PeerTakesNone,
}

/// Number of frames from which on a burst is faster: a call takes 11 µs, and
/// 0.2 to 0.4 µs per frame; a socket takes 0.9 µs or more per frame.
const FRAMES_MIN: u32 = 32;

/// Interval at which changes of driver features are read, in ns.
const FEATURE_POLL_NS: u64 = 10_000_000;
/// Largest number of changes read at once.
const FEATURE_EVENTS_MAX: usize = 64;

/// Duration in ns from which on a call that slept in the kernel counts as
/// stalled: by a process that changes XDP programs anywhere on the machine.
const STALL_NS: u64 = 1_000_000;
/// Time in ns for which sockets send after a stall. It doubles with each stall
/// within [`BACKOFF_RESET_NS`] of the last.
const BACKOFF_NS: u64 = 1_000_000_000;
const BACKOFF_MAX_NS: u64 = 64 * BACKOFF_NS;
const BACKOFF_RESET_NS: u64 = 60 * BACKOFF_NS;

/// The time until which sockets send, since a burst was delayed and the next
/// may be too.
#[derive(Clone, Copy, Default, Debug)]
struct Backoff {
    until: u64,
    long: u64,
}

impl Backoff {
    fn has_ended(self, now: u64) -> bool {
        now >= self.until
    }

    /// Records a stall.
    fn begin(&mut self, now: u64) {
        let is_calm = now.saturating_sub(self.until) >= BACKOFF_RESET_NS;
        self.long = match self.long {
            before if before > 0 && !is_calm => (2 * before).min(BACKOFF_MAX_NS),
            _ => BACKOFF_NS,
        };
        self.until = now + self.long;
    }
}

/// Sends bursts, for the links of a tap.
#[derive(Debug)]
pub(crate) struct BurstSender {
    burst: TxBurst,
    monitor: XdpFeatureMonitor,
    next_ns: u64,
    backoff: Backoff,
}

impl BurstSender {
    /// Sets up bursts; an error if the kernel or the process's privileges do
    /// not allow them.
    pub(crate) fn new() -> Result<BurstSender, NoBurst> {
        let refused = |why: &dyn fmt::Display| NoBurst::Kernel {
            why: why.to_string(),
        };
        Ok(BurstSender {
            monitor: XdpFeatureMonitor::open().map_err(|error| refused(&error))?,
            burst: TxBurst::new().map_err(|error| refused(&error))?,
            next_ns: 0,
            backoff: Backoff::default(),
        })
    }

    /// Enables bursts for a link; an error states why not.
    pub(crate) fn add(&self, link: &TapLink, number: usize) -> Result<(), NoBurst> {
        may(link)?;
        if !supports_ndo_xmit(link.interface.index).unwrap_or(false) {
            return Err(NoBurst::PeerTakesNone);
        }
        let added = self.burst.add(number as u32, link.interface.index);
        added.map_err(|error| NoBurst::Kernel {
            why: error.to_string(),
        })
    }

    /// Reads which links no longer accept redirected frames, or do again.
    pub(crate) fn poll_features(&mut self, links: &mut [Option<TapLink>], now: u64) {
        if now < self.next_ns {
            return;
        }
        self.next_ns = now + FEATURE_POLL_NS;
        for _ in 0..FEATURE_EVENTS_MAX {
            let Some(event) = self.monitor.next_event() else {
                return;
            };
            for (link, number) in links.iter_mut().zip(0..) {
                let Some(link) = link else { continue };
                match event {
                    XdpFeatureEvent::Changed { ifindex, .. } if ifindex != link.interface.index => {
                    }
                    // Other reasons against bursts remain.
                    XdpFeatureEvent::Changed {
                        supports_ndo_xmit: false,
                        ..
                    } if link.burst.is_ok() => {
                        link.burst = Err(NoBurst::PeerTakesNone);
                    }
                    _ => link.burst = self.add(link, number),
                }
            }
        }
    }

    /// Sends the frames put into a queue of such a link as a burst, if they are
    /// enough; other frames stay, in order.
    pub(crate) fn push(
        &mut self,
        queue: &mut Queue,
        link: usize,
        now: u64,
        counts: &mut Counts,
    ) -> Result<(), Push> {
        let kept = queue.ring.unsubmitted_len().map_err(Push::Ring)?;
        // Frames that a receiver never frees occupy kernel memory: their number
        // is limited.
        if kept < FRAMES_MIN || self.burst.pools() >= PAGE_POOLS_MAX || !self.backoff.has_ended(now)
        {
            return Ok(());
        }
        let (mut done, mut began) = (0, clock::now());
        while done < kept {
            let want = (kept - done).min(BURST_FRAMES_MAX as u32);
            let put = (0..want).find(|place| {
                let frame = queue.ring.unsubmitted_at(done + place);
                !frame.is_some_and(|frame| self.burst.put(*place as usize, frame))
            });
            let put = put.unwrap_or(want);
            if put == 0 {
                break;
            }
            counts.syscalls_tx += 1;
            let waited = voluntary_switches();
            let Ok(sent) = self.burst.send(link as u32, put as usize) else {
                break;
            };
            done += sent as u32;
            counts.burst_frames += sent as u64;
            let ended = clock::now();
            if ended - began >= STALL_NS && voluntary_switches() != waited {
                counts.burst_stalls += 1;
                self.backoff.begin(ended);
                break;
            }
            began = ended;
            if (sent as u32) < want {
                break;
            }
        }
        queue.ring.pop_unsubmitted(done);
        queue.dirty &= done < kept;
        Ok(())
    }
}

/// Checks that bursts and sockets keep frames in order: on a veth with one
/// queue, whose other end queues socket buffers where it queues redirected
/// frames, which it does if no frame is to be segmented.
fn may(link: &TapLink) -> Result<(), NoBurst> {
    let interface = link.interface.name.clone();
    if link.mode == CopyMode::ZeroCopy {
        return Err(NoBurst::ZeroCopy);
    }
    let driver = driver(&interface).unwrap_or_default();
    if driver != "veth" {
        return Err(NoBurst::Driver { driver });
    }
    if link.queues.len() != 1 {
        let queues = link.queues.len();
        return Err(NoBurst::Queues { interface, queues });
    }
    match Feature::TcpSegmentation.get(&interface) {
        Ok(false) => Ok(()),
        _ => Err(NoBurst::Segments { interface }),
    }
}

#[cfg(test)]
mod tests {
    use super::{BACKOFF_MAX_NS, BACKOFF_NS, BACKOFF_RESET_NS, Backoff};

    #[test]
    fn a_further_stall_lengthens_the_pause() {
        let mut pause = Backoff::default();
        assert!(pause.has_ended(0));
        let mut now = 5 * BACKOFF_NS;
        for long in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
            pause.begin(now);
            let until = now + long * BACKOFF_NS;
            assert!(!pause.has_ended(now) && !pause.has_ended(until - 1) && pause.has_ended(until));
            now = until + BACKOFF_RESET_NS - 1;
        }
        assert_eq!(pause.long, BACKOFF_MAX_NS);
    }

    #[test]
    fn after_a_calm_minute_it_is_as_the_first_time() {
        let mut pause = Backoff::default();
        pause.begin(7);
        pause.begin(BACKOFF_NS + 7);
        assert_eq!(pause.long, 2 * BACKOFF_NS);
        pause.begin(pause.until + BACKOFF_RESET_NS);
        assert_eq!(pause.long, BACKOFF_NS);
    }
}
