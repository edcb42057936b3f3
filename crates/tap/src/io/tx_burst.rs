//! Many frames that go out at once in copy mode, without a socket buffer for
//! each: see [`weir_link::xdp::Bulk`].

use crate::clock;
use crate::io::queue::{Push, Queue, TapLink};
use crate::stats::Counts;
use std::fmt;
use weir_link::net::{Feature, driver};
use weir_link::xdp::waits;
use weir_link::xdp::{
    BULK_FRAMES_MAX, Bulk, CopyMode, DriverEvent, DriverWatch, POOLS_MAX, takes_redirected,
};

/// Why the frames of a link do not go out many at once.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoBulk {
    /// The [configuration](crate::Config::bulk) does not ask for it.
    #[error("it is not asked for")]
    NotAsked,
    /// Several processes have the tap.
    #[error("the tap is shared by processes")]
    Shared,
    /// The kernel or our privileges do not allow it.
    #[error("the kernel does not let us ({why}); it takes Linux 6.3 and CAP_SYS_ADMIN")]
    Kernel {
        /// What failed.
        why: String,
    },
    /// There is nothing to be gained.
    #[error("it is in zero-copy mode, and needs it not")]
    ZeroCopy,
    /// Only of veths it is known that frames stay in order.
    #[error("its driver is `{driver}`; only `veth` is known to keep frames in order")]
    Driver {
        /// Its driver; nothing where it does not tell.
        driver: String,
    },
    /// Frames of one flow could take several queues.
    #[error("it has {queues} queues; `ethtool -L {interface} rx 1 tx 1` leaves one")]
    Queues {
        /// Its name.
        interface: String,
        /// How many.
        queues: usize,
    },
    /// Frames that may be cut up take another way.
    #[error("it cuts segments up; `ethtool -K {interface} tso off` ends that")]
    Segments {
        /// Its name.
        interface: String,
    },
    /// Its driver takes no frames that a program redirects.
    #[error(
        "it takes no redirected frames; `ethtool -K PEER gro on` for its other end lets it, or a program at XDP there"
    )]
    PeerTakesNone,
}

/// From so many on it is quicker: a call takes 11 µs, and 0.2 to 0.4 µs a
/// frame, where a socket takes 0.9 µs and more.
const FRAMES_MIN: u32 = 32;

/// How often it is heard whether a driver still takes such frames.
const HEAR_NS: u64 = 10_000_000;
/// Changes that are heard of at once; the others after them.
const HEAR_MAX: usize = 64;

/// A call that waits in the kernel, and so long, has been held up: by somebody
/// who changes XDP programs, wherever on the machine.
const HELD_UP_NS: u64 = 1_000_000;
/// How long sockets send after that. Each time again within [`CALM_NS`] it is
/// twice as long as before.
const PAUSE_NS: u64 = 1_000_000_000;
const PAUSE_MAX_NS: u64 = 64 * PAUSE_NS;
const CALM_NS: u64 = 60 * PAUSE_NS;

/// Until when sockets send, since a call was held up: then the next may be.
#[derive(Clone, Copy, Default, Debug)]
struct Pause {
    until: u64,
    long: u64,
}

impl Pause {
    fn is_over(self, now: u64) -> bool {
        now >= self.until
    }

    /// A call has been held up.
    fn begin(&mut self, now: u64) {
        let is_calm = now.saturating_sub(self.until) >= CALM_NS;
        self.long = match self.long {
            before if before > 0 && !is_calm => (2 * before).min(PAUSE_MAX_NS),
            _ => PAUSE_NS,
        };
        self.until = now + self.long;
    }
}

/// What sends so, for the links of a tap.
#[derive(Debug)]
pub(crate) struct BulkOut {
    bulk: Bulk,
    watch: DriverWatch,
    next_ns: u64,
    pause: Pause,
}

impl BulkOut {
    /// What the kernel and our privileges allow.
    pub(crate) fn new() -> Result<BulkOut, NoBulk> {
        let refused = |why: &dyn fmt::Display| NoBulk::Kernel {
            why: why.to_string(),
        };
        Ok(BulkOut {
            watch: DriverWatch::open().map_err(|error| refused(&error))?,
            bulk: Bulk::new().map_err(|error| refused(&error))?,
            next_ns: 0,
            pause: Pause::default(),
        })
    }

    /// Whether frames of a link may go out so, from now on.
    pub(crate) fn add(&self, link: &TapLink, number: usize) -> Result<(), NoBulk> {
        may(link)?;
        if !takes_redirected(link.interface.index).unwrap_or(false) {
            return Err(NoBulk::PeerTakesNone);
        }
        let added = self.bulk.add(number as u32, link.interface.index);
        added.map_err(|error| NoBulk::Kernel {
            why: error.to_string(),
        })
    }

    /// Hears which links take such frames no longer, or again.
    pub(crate) fn hear(&mut self, links: &mut [Option<TapLink>], now: u64) {
        if now < self.next_ns {
            return;
        }
        self.next_ns = now + HEAR_NS;
        for _ in 0..HEAR_MAX {
            let Some(event) = self.watch.next_event() else {
                return;
            };
            for (link, number) in links.iter_mut().zip(0..) {
                let Some(link) = link else { continue };
                match event {
                    DriverEvent::Takes { ifindex, .. } if ifindex != link.interface.index => {}
                    // Whatever else there is against it stays.
                    DriverEvent::Takes { takes: false, .. } if link.bulk.is_ok() => {
                        link.bulk = Err(NoBulk::PeerTakesNone);
                    }
                    _ => link.bulk = self.add(link, number),
                }
            }
        }
    }

    /// Sends what was put into a queue of such a link, where it is enough;
    /// what cannot go so stays, in order.
    pub(crate) fn push(
        &mut self,
        queue: &mut Queue,
        link: usize,
        now: u64,
        counts: &mut Counts,
    ) -> Result<(), Push> {
        let kept = queue.ring.kept_back().map_err(Push::Ring)?;
        // Frames that nobody frees keep memory of the kernel's: few of them.
        if kept < FRAMES_MIN || self.bulk.pools() >= POOLS_MAX || !self.pause.is_over(now) {
            return Ok(());
        }
        let (mut done, mut began) = (0, clock::now());
        while done < kept {
            let want = (kept - done).min(BULK_FRAMES_MAX as u32);
            let put = (0..want).find(|place| {
                let frame = queue.ring.kept(done + place);
                !frame.is_some_and(|frame| self.bulk.put(*place as usize, frame))
            });
            let put = put.unwrap_or(want);
            if put == 0 {
                break;
            }
            counts.calls_tx += 1;
            let waited = waits();
            let Ok(sent) = self.bulk.send(link as u32, put as usize) else {
                break;
            };
            done += sent as u32;
            counts.bulk_frames += sent as u64;
            let ended = clock::now();
            if ended - began >= HELD_UP_NS && waits() != waited {
                counts.bulk_held_up += 1;
                self.pause.begin(ended);
                break;
            }
            began = ended;
            if (sent as u32) < want {
                break;
            }
        }
        queue.ring.withdraw(done);
        queue.dirty &= done < kept;
        Ok(())
    }
}

/// Where frames that are sent in either way stay in order: a veth of one queue,
/// whose other end queues socket buffers where it queues redirected frames,
/// which it does if none of them is to be cut up.
fn may(link: &TapLink) -> Result<(), NoBulk> {
    let interface = link.interface.name.clone();
    if link.mode == CopyMode::ZeroCopy {
        return Err(NoBulk::ZeroCopy);
    }
    let driver = driver(&interface).unwrap_or_default();
    if driver != "veth" {
        return Err(NoBulk::Driver { driver });
    }
    if link.queues.len() != 1 {
        let queues = link.queues.len();
        return Err(NoBulk::Queues { interface, queues });
    }
    match Feature::TcpSegmentation.get(&interface) {
        Ok(false) => Ok(()),
        _ => Err(NoBulk::Segments { interface }),
    }
}

#[cfg(test)]
mod tests {
    use super::{CALM_NS, PAUSE_MAX_NS, PAUSE_NS, Pause};

    #[test]
    fn who_is_held_up_again_pauses_for_longer() {
        let mut pause = Pause::default();
        assert!(pause.is_over(0));
        let mut now = 5 * PAUSE_NS;
        for long in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
            pause.begin(now);
            let until = now + long * PAUSE_NS;
            assert!(!pause.is_over(now) && !pause.is_over(until - 1) && pause.is_over(until));
            now = until + CALM_NS - 1;
        }
        assert_eq!(pause.long, PAUSE_MAX_NS);
    }

    #[test]
    fn after_a_calm_minute_it_is_as_the_first_time() {
        let mut pause = Pause::default();
        pause.begin(7);
        pause.begin(PAUSE_NS + 7);
        assert_eq!(pause.long, 2 * PAUSE_NS);
        pause.begin(pause.until + CALM_NS);
        assert_eq!(pause.long, PAUSE_NS);
    }
}
