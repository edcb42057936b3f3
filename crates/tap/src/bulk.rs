//! Many frames that go out at once in copy mode, without a socket buffer for
//! each: see [`weir_link::xdp::Bulk`].

use crate::counts::Counts;
use crate::link::{Push, Queue, TapLink};
use weir_link::net::{Feature, driver};
use weir_link::xdp::{BULK_FRAMES_MAX, Bulk, CopyMode, DriverEvent, DriverWatch, takes_redirected};

/// From so many on it is quicker: a call takes 11 µs, and 0.2 to 0.4 µs a
/// frame, where a socket takes 0.9 µs and more.
const FRAMES_MIN: u32 = 32;

/// How often it is heard whether a driver still takes such frames.
const HEAR_NS: u64 = 10_000_000;
/// Changes that are heard of at once; the others after them.
const HEAR_MAX: usize = 64;

/// What sends so, for the links of a tap.
#[derive(Debug)]
pub(crate) struct BulkOut {
    bulk: Bulk,
    watch: DriverWatch,
    next_ns: u64,
}

impl BulkOut {
    /// `None` where the kernel or our privileges do not allow it.
    pub(crate) fn new() -> Option<BulkOut> {
        let watch = DriverWatch::open().ok()?;
        let bulk = Bulk::new().ok()?;
        Some(BulkOut {
            bulk,
            watch,
            next_ns: 0,
        })
    }

    /// Whether frames of a link may go out so, from now on.
    pub(crate) fn add(&self, link: &TapLink, number: usize) -> bool {
        may(link)
            && takes_redirected(link.interface.index).unwrap_or(false)
            && self.bulk.add(number as u32, link.interface.index).is_ok()
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
                    DriverEvent::Takes { takes: false, .. } => link.is_bulk = false,
                    _ => link.is_bulk = self.add(link, number),
                }
            }
        }
    }

    /// Sends what was put into a queue of such a link, where it is enough;
    /// what cannot go so stays, in order.
    pub(crate) fn push(
        &self,
        queue: &mut Queue,
        link: usize,
        counts: &mut Counts,
    ) -> Result<(), Push> {
        let kept = queue.ring.kept_back().map_err(Push::Ring)?;
        if kept < FRAMES_MIN {
            return Ok(());
        }
        let mut done = 0;
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
            let Ok(sent) = self.bulk.send(link as u32, put as usize) else {
                break;
            };
            done += sent as u32;
            counts.bulk_frames += sent as u64;
            if (sent as u32) < want {
                break;
            }
        }
        queue.ring.withdraw(done);
        Ok(())
    }
}

/// Where frames that are sent in either way stay in order: a veth of one queue,
/// whose other end queues socket buffers where it queues redirected frames,
/// which it does if none of them is to be cut up.
fn may(link: &TapLink) -> bool {
    let name = &link.interface.name;
    link.mode == CopyMode::Copy
        && link.queues.len() == 1
        && driver(name).is_ok_and(|driver| driver == "veth")
        && !Feature::TcpSegmentation.get(name).unwrap_or(true)
}
