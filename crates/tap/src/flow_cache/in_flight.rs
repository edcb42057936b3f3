//! Frames in flight: those that the kernel has handed to a queue, and that the
//! application has not sent or dropped yet.

use crate::io::queue::{Queue, TapLink};
use crate::tap::Tap;
use weir_link::xdp::SharedPage;
use weir_ring::Frame;

/// Tracks the frames of a queue that are in flight to the application.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InFlight {
    /// Low half of the number of the last frame taken.
    last: Option<u32>,
    /// Number of frames delivered as of the last check, and the time of that
    /// check.
    delivered: u64,
    since: u64,
    drained: u64,
}

impl InFlight {
    /// Records the number of a frame, from the metadata before its bytes. If
    /// the low half is not the epoch, the driver had no room for metadata, and
    /// the value is arbitrary.
    #[inline]
    fn note(&mut self, meta: Option<u64>, epoch: u32) {
        if let Some(meta) = meta
            && meta as u32 == epoch
        {
            self.last = Some((meta >> 32) as u32);
        }
    }

    /// The number up to which frames were taken. A number that has not been
    /// assigned yet is ignored.
    fn taken(&self, handed: u64) -> u64 {
        let behind = self.last.map(|last| (handed as u32).wrapping_sub(last));
        let taken = behind.and_then(|behind| handed.checked_sub(behind.into()));
        taken.unwrap_or(self.drained)
    }
}

/// Time after which a delivered frame that is in no ring will not arrive any
/// more, in ns.
const ARRIVAL_MAX_NS: u64 = 2_000_000;

impl Queue {
    /// Frames delivered to an earlier process are not in flight to this one.
    pub(crate) fn note_all_drained(&mut self, page: &SharedPage, link: u32, number: u32) {
        let handed = page.delivered(link, number);
        self.in_flight.drained = handed;
        page.set_drained(link, number, handed);
    }

    /// Records the number of a frame taken, which was admitted in this epoch.
    #[inline]
    pub(crate) fn note(&mut self, frame: &Frame, epoch: u32) {
        self.in_flight.note(frame.meta(), epoch);
    }

    /// Publishes, after everything was sent, which frames have drained; returns
    /// whether some have not.
    pub(crate) fn note_drained(
        &mut self,
        page: &SharedPage,
        (link, number): (u32, u32),
        now: u64,
    ) -> bool {
        let handed = page.delivered(link, number);
        let in_flight = &mut self.in_flight;
        let mut settled = in_flight.taken(handed);
        if in_flight.delivered != handed {
            (in_flight.delivered, in_flight.since) = (handed, now);
        } else if settled != handed
            && now.saturating_sub(in_flight.since) >= ARRIVAL_MAX_NS
            && self.ring.ready(1) == Ok(0)
        {
            // Dropped in flight, or without a number.
            settled = handed;
            self.in_flight.last = Some(handed as u32);
        }
        if settled > self.in_flight.drained {
            self.in_flight.drained = settled;
            page.set_drained(link, number, settled);
        }
        settled != handed
    }
}

impl Tap {
    /// Publishes which frames have drained: those that were taken, once
    /// everything has been sent.
    #[inline]
    pub(crate) fn note_drained(&mut self, now: u64) {
        let Some(cache) = self.flow_cache.as_mut().filter(|cache| cache.has_entries()) else {
            return;
        };
        let is_sent = self.links.iter_mut().flatten().all(TapLink::is_sent);
        let mut is_pressed = !is_sent;
        for (link, number) in self.links.iter_mut().zip(0..).filter(|_| is_sent) {
            let queues = link.iter_mut().flat_map(|link| &mut link.queues);
            for (queue, at) in queues.zip(0..) {
                is_pressed |= queue.note_drained(&self.page, (number, at), now);
            }
        }
        cache.set_pressed(is_pressed);
    }
}

#[cfg(test)]
mod tests {
    use super::InFlight;

    fn meta(number: u32, epoch: u32) -> Option<u64> {
        Some(u64::from(number) << 32 | u64::from(epoch))
    }

    #[test]
    fn frames_up_to_the_last_that_was_taken_are_settled() {
        let mut in_flight = InFlight::default();
        assert_eq!(in_flight.taken(9), 0, "none was taken");
        in_flight.note(meta(7, 3), 3);
        assert_eq!(in_flight.taken(9), 7);
        // Above 32 bits.
        in_flight.note(meta(u32::MAX, 3), 3);
        assert_eq!(in_flight.taken((1 << 32) + 4), (1 << 32) - 1);
    }

    /// If a driver has no headroom before a frame, the bytes there are
    /// arbitrary.
    #[test]
    fn what_is_no_number_settles_nothing() {
        let mut in_flight = InFlight::default();
        in_flight.note(meta(2, 3), 3);
        in_flight.note(None, 3);
        in_flight.note(meta(4, 0x0800), 3);
        assert_eq!(in_flight.taken(5), 2);
        in_flight.drained = 2;
        in_flight.note(meta(6, 3), 3);
        assert_eq!(in_flight.taken(5), 2, "not given yet");
    }
}
