//! Delivery rate estimation (draft-ietf-ccwg-bbr §4.1, which took over
//! draft-cheng-iccrg-delivery-rate-estimation): the rate at which the network delivered the bytes
//! in flight, by each acknowledgment.
//!
//! The draft stores with each segment the bytes delivered when the segment was sent. That number
//! changes by acknowledgments only, so that it is the same for all segments of one time: a
//! [`Snapshot`] is stored for each time at which a segment was sent, and a segment finds its own by
//! its `sent_ns`. Segments may therefore be split and retransmitted without further work.

use crate::tcp::recovery::scoreboard::{SEGMENTS_MAX, Sent};
use crate::tcp::seq::Seq;
use std::collections::VecDeque;

/// Snapshots after which the list is first searched for old ones.
const PRUNE_FIRST: usize = 128;

/// State of the connection when segments were sent (the draft's P).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Snapshot {
    sent_ns: u64,
    /// C.delivered, and when it changed last.
    delivered: u64,
    delivered_ns: u64,
    /// C.first_send_time.
    first_sent_ns: u64,
    /// C.lost.
    pub(super) lost: u64,
    /// C.inflight after the last of the segments.
    pub(super) tx_in_flight: u32,
    pub(super) is_app_limited: bool,
}

/// The delivery rate by one acknowledgment (the draft's RS).
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct RateSample {
    /// Whether a segment with a known snapshot was delivered.
    pub(super) has_data: bool,
    /// Bytes a second; zero if unknown.
    pub(super) delivery_rate: u64,
    /// Bytes delivered between the sending of the acknowledged segment and now.
    pub(super) delivered: u64,
    /// C.delivered at that sending.
    pub(super) prior_delivered: u64,
    pub(super) is_app_limited: bool,
    /// Bytes in flight at that sending, and lost since.
    pub(super) tx_in_flight: u64,
    pub(super) lost: u64,
    /// Bytes that this acknowledgment covers, cumulatively or selectively.
    pub(super) newly_acked: u64,
    pub(super) rtt_ns: Option<u64>,
}

/// The segment sent last among those that the present acknowledgment covers.
#[derive(Clone, Copy, Debug)]
struct Newest {
    snapshot: Snapshot,
    end: Seq,
}

/// State of one connection (the draft's C).
#[derive(Clone, Debug, Default)]
pub(super) struct Sampler {
    /// Bytes delivered, and considered lost, so far.
    pub(super) delivered: u64,
    pub(super) lost: u64,
    delivered_ns: u64,
    first_sent_ns: u64,
    /// C.delivered at which an application-limited phase ends; zero if there is none.
    app_limited: u64,
    /// In order of time.
    snapshots: VecDeque<Snapshot>,
    /// Number of snapshots at which the list is next searched for old ones.
    prune_at: u32,
    newest: Option<Newest>,
    newly_acked: u64,
    rtt_ns: Option<u64>,
}

impl Sampler {
    /// Processes sent bytes, with which `inflight` bytes are in the network; `oldest_ns` is the
    /// time of sending of the oldest segment in flight (OnPacketSent).
    pub(super) fn on_sent(
        &mut self,
        now_ns: u64,
        bytes: usize,
        inflight: usize,
        oldest_ns: impl FnOnce() -> u64,
    ) {
        if inflight <= bytes {
            (self.first_sent_ns, self.delivered_ns) = (now_ns, now_ns);
        }
        let tx_in_flight = u32::try_from(inflight).unwrap_or(u32::MAX);
        let is_app_limited = self.is_app_limited();
        if let Some(last) = self.snapshots.back_mut()
            && last.sent_ns >= now_ns
        {
            last.tx_in_flight = tx_in_flight;
            last.is_app_limited |= is_app_limited;
            return;
        }
        if self.snapshots.len() >= (self.prune_at as usize).max(PRUNE_FIRST) {
            self.prune(oldest_ns());
        }
        self.snapshots.push_back(Snapshot {
            sent_ns: now_ns,
            delivered: self.delivered,
            delivered_ns: self.delivered_ns,
            first_sent_ns: self.first_sent_ns,
            lost: self.lost,
            tx_in_flight,
            is_app_limited,
        });
    }

    /// Drops snapshots that no segment in flight refers to; at most [`SEGMENTS_MAX`] snapshots
    /// stay, the limit on segments in flight.
    fn prune(&mut self, oldest_ns: u64) {
        let old = self
            .snapshots
            .partition_point(|snapshot| snapshot.sent_ns < oldest_ns);
        self.snapshots.drain(..old);
        while self.snapshots.len() >= SEGMENTS_MAX {
            self.snapshots.pop_front();
        }
        self.prune_at = 2 * self.snapshots.len() as u32;
    }

    /// The snapshot of a segment.
    pub(super) fn snapshot(&self, sent: &Sent) -> Option<Snapshot> {
        let index = self
            .snapshots
            .binary_search_by_key(&sent.sent_ns, |snapshot| snapshot.sent_ns);
        Some(self.snapshots[index.ok()?])
    }

    /// Counts delivered bytes.
    pub(super) fn count_delivered(&mut self, bytes: usize, now_ns: u64) {
        if bytes > 0 {
            self.delivered += bytes as u64;
            self.newly_acked += bytes as u64;
            self.delivered_ns = now_ns;
        }
    }

    /// Processes the delivery of a segment or a part of it (UpdateRateSample).
    pub(super) fn on_delivered(&mut self, sent: &Sent) {
        let Some(snapshot) = self.snapshot(sent) else {
            return;
        };
        let is_newest = self.newest.is_none_or(|newest| {
            let (then_ns, end) = (newest.snapshot.sent_ns, newest.end);
            sent.is_after(then_ns, end)
        });
        if is_newest {
            let end = sent.end;
            self.newest = Some(Newest { snapshot, end });
            self.first_sent_ns = snapshot.sent_ns;
        }
    }

    /// Records a measured round-trip time.
    pub(super) fn on_rtt(&mut self, rtt_ns: u64) {
        self.rtt_ns = Some(rtt_ns);
    }

    /// The sample of an acknowledgment, all of whose segments were passed to
    /// [`Sampler::on_delivered`] (GenerateRateSample).
    pub(super) fn generate(&mut self, min_rtt_ns: u64) -> RateSample {
        if self.app_limited > 0 && self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let mut sample = RateSample {
            newly_acked: std::mem::take(&mut self.newly_acked),
            rtt_ns: self.rtt_ns.take(),
            ..RateSample::default()
        };
        let Some(Newest { snapshot, .. }) = self.newest.take() else {
            return sample;
        };
        sample.has_data = true;
        sample.is_app_limited = snapshot.is_app_limited;
        sample.prior_delivered = snapshot.delivered;
        sample.delivered = self.delivered - snapshot.delivered;
        sample.tx_in_flight = snapshot.tx_in_flight.into();
        sample.lost = self.lost - snapshot.lost;
        let send_ns = snapshot.sent_ns.saturating_sub(snapshot.first_sent_ns);
        let ack_ns = self.delivered_ns.saturating_sub(snapshot.delivered_ns);
        let interval_ns = send_ns.max(ack_ns);
        // An acknowledgment of the first transmission that is taken for one of a retransmission
        // makes the interval too short.
        if interval_ns >= min_rtt_ns.max(1) {
            sample.delivery_rate = rate(sample.delivered, interval_ns);
        }
        sample
    }

    /// Records that the application writes too little (MarkConnectionAppLimited).
    pub(super) fn mark_app_limited(&mut self, inflight: usize) {
        self.app_limited = (self.delivered + inflight as u64).max(1);
    }

    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited > 0
    }

    /// Resets the sampler: nothing is in flight.
    pub(super) fn clear(&mut self) {
        self.snapshots.clear();
    }

    /// Bytes of memory of the list.
    pub(super) fn memory(&self) -> usize {
        self.snapshots.capacity() * size_of::<Snapshot>()
    }

    /// Frees the list's unused memory.
    pub(super) fn release(&mut self) {
        self.snapshots = VecDeque::new();
        self.prune_at = 0;
    }
}

/// Bytes a second.
fn rate(bytes: u64, interval_ns: u64) -> u64 {
    (bytes as f64 * 1e9 / interval_ns as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sent(index: u32, sent_ns: u64) -> Sent {
        Sent {
            start: Seq(1000 * index),
            end: Seq(1000 * (index + 1)),
            sent_ns,
            retransmitted: false,
            sacked: false,
            lost: false,
        }
    }

    fn deliver(sampler: &mut Sampler, sent: &Sent, now_ns: u64) {
        sampler.on_delivered(sent);
        sampler.count_delivered(sent.end.since(sent.start), now_ns);
    }

    fn no_oldest() -> u64 {
        panic!("too few to prune")
    }

    /// Twenty segments a millisecond apart, and twenty more, each sent when one
    /// of the first is acknowledged.
    fn two_flights() -> Sampler {
        let mut sampler = Sampler::default();
        for index in 0..20_u32 {
            let now_ns = u64::from(index) * MS;
            sampler.on_sent(now_ns, 1000, 1000 * (index as usize + 1), no_oldest);
        }
        for index in 0..20_u32 {
            let sent_ns = u64::from(index) * MS;
            deliver(&mut sampler, &sent(index, sent_ns), 20 * MS + sent_ns);
            sampler.generate(0);
            sampler.on_sent(20 * MS + sent_ns, 1000, 20_000, no_oldest);
        }
        sampler
    }

    #[test]
    fn acknowledgments_at_the_rate_of_sending_tell_it() {
        let mut sampler = two_flights();
        let mut last = RateSample::default();
        for index in 20..40_u32 {
            let sent_ns = u64::from(index) * MS;
            deliver(&mut sampler, &sent(index, sent_ns), 20 * MS + sent_ns);
            last = sampler.generate(20 * MS);
        }
        assert_eq!((last.delivered, last.prior_delivered), (20_000, 20_000));
        assert_eq!(last.delivery_rate, 1_000_000);
    }

    /// A burst of acknowledgments does not make the path faster than sending.
    #[test]
    fn compressed_acknowledgments_tell_the_rate_of_sending() {
        let mut sampler = two_flights();
        for index in 20..40_u32 {
            deliver(&mut sampler, &sent(index, u64::from(index) * MS), 45 * MS);
        }
        let sample = sampler.generate(MS);
        assert_eq!((sample.newly_acked, sample.delivered), (20_000, 20_000));
        assert_eq!(sample.delivery_rate, 1_000_000);
    }

    /// Slow acknowledgments show the rate of delivery.
    #[test]
    fn late_acknowledgments_tell_the_rate_of_delivery() {
        let mut sampler = two_flights();
        for index in 20..40_u32 {
            deliver(&mut sampler, &sent(index, u64::from(index) * MS), 79 * MS);
        }
        assert_eq!(sampler.generate(MS).delivery_rate, 500_000);
    }

    #[test]
    fn app_limited_samples_end_with_the_bubble() {
        let mut sampler = Sampler::default();
        sampler.mark_app_limited(1000);
        sampler.on_sent(0, 1000, 1000, no_oldest);
        sampler.on_sent(MS, 1000, 2000, no_oldest);
        deliver(&mut sampler, &sent(0, 0), 10 * MS);
        assert!(sampler.generate(0).is_app_limited);
        assert!(sampler.is_app_limited(), "1000 are no more than 1000");
        deliver(&mut sampler, &sent(1, MS), 11 * MS);
        assert!(
            sampler.generate(0).is_app_limited,
            "it was sent in the bubble"
        );
        assert!(!sampler.is_app_limited());
    }

    #[test]
    fn too_short_an_interval_gives_no_rate() {
        let mut sampler = Sampler::default();
        sampler.on_sent(0, 1000, 1000, no_oldest);
        deliver(&mut sampler, &sent(0, 0), 5 * MS);
        let sample = sampler.generate(6 * MS);
        assert!(sample.has_data && sample.delivery_rate == 0);
        assert!(!sampler.generate(0).has_data, "nothing new came");
    }

    #[test]
    fn snapshots_are_bounded() {
        let mut sampler = Sampler::default();
        for now_ns in 0..100_000 {
            sampler.on_sent(now_ns, 1000, 50_000, || now_ns - 100);
            assert!(sampler.snapshots.len() <= 256);
        }
        for now_ns in 100_000..200_000 {
            sampler.on_sent(now_ns, 1000, 50_000, || 0);
            assert!(sampler.snapshots.len() <= 2 * SEGMENTS_MAX);
        }
        assert!(sampler.snapshot(&sent(0, 199_999)).is_some());
        assert!(sampler.snapshot(&sent(0, 0)).is_none());
    }
}
