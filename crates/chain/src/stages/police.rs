//! Polices a rate with a token bucket.

use crate::batch::{Batch, Output};
use crate::flow::Direction;
use crate::stage::Stage;

/// Highest rate, in bits per second.
pub const RATE_BITS_MAX: u64 = 1_000_000_000_000;

/// Largest burst, in bytes.
pub const BURST_BYTES_MAX: u64 = 1 << 32;

/// Nanoseconds in a second.
const SECOND_NS: u128 = 1_000_000_000;

/// Drops what exceeds a rate, in each direction by itself: a token bucket (RFC
/// 2698 with one rate). Bytes count from the Ethernet header on, without the
/// frame check sequence. Every frame comes to this stage: the kernel caches no
/// flow that it polices.
#[derive(Clone, Debug)]
pub struct Police {
    /// Bits per second.
    rate: u64,
    /// Bytes.
    burst: u64,
    buckets: [Bucket; 2],
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Tokens: bits, in units of 1 / 10^9.
    tokens: u128,
    filled_at: u64,
}

impl Police {
    /// A policer of `rate` bits per second, at most [`RATE_BITS_MAX`], with a
    /// burst of `burst` bytes, at most [`BURST_BYTES_MAX`].
    pub fn new(rate: u64, burst: u64) -> Police {
        let (rate, burst) = (rate.min(RATE_BITS_MAX), burst.min(BURST_BYTES_MAX));
        let full = Bucket {
            tokens: u128::from(burst) * 8 * SECOND_NS,
            filled_at: 0,
        };
        Police {
            rate,
            burst,
            buckets: [full; 2],
        }
    }

    fn police(&mut self, now: u64, direction: Direction, batch: &mut Batch<'_>) {
        let full = u128::from(self.burst) * 8 * SECOND_NS;
        let bucket = match direction {
            Direction::Outward => &mut self.buckets[0],
            Direction::Inward => &mut self.buckets[1],
        };
        let passed = now.saturating_sub(bucket.filled_at);
        bucket.tokens = (bucket.tokens + u128::from(self.rate) * u128::from(passed)).min(full);
        bucket.filled_at = bucket.filled_at.max(now);
        for packet in batch.packets() {
            let cost = packet.len() as u128 * 8 * SECOND_NS;
            match bucket.tokens.checked_sub(cost) {
                Some(left) => bucket.tokens = left,
                None => packet.drop("over-rate"),
            }
        }
    }
}

impl Stage for Police {
    fn kind(&self) -> &'static str {
        "police"
    }

    fn outward(&mut self, now: u64, batch: &mut Batch<'_>, _output: &mut Output) {
        self.police(now, Direction::Outward, batch);
    }

    fn inward(&mut self, now: u64, batch: &mut Batch<'_>, _output: &mut Output) {
        self.police(now, Direction::Inward, batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chain, Fate, Packet};

    #[test]
    fn the_rate_passes_and_no_more() {
        // 8 kb/s and 1,000 bytes: after the burst one frame of 100 bytes each 100 ms.
        let police: Box<dyn Stage> = Box::new(Police::new(8000, 1000));
        let mut chain = Chain::new(vec![(police, None)], 1).unwrap();
        let mut passed = 0;
        for tick in 0..1000_u64 {
            let mut frame = [0; 100];
            let mut batch = Batch::new(vec![Packet::new(&mut frame)]);
            chain.run(tick * 10_000_000, Direction::Outward, &mut batch);
            passed += usize::from(batch.all()[0].fate() == Fate::Pass);
        }
        assert_eq!(passed, 10 + 99);
        let (_, counts) = chain.stages().next().unwrap();
        assert_eq!(counts.packets, [1000, 0]);
        assert_eq!(counts.drops, [("over-rate", 1000 - 109)]);
    }
}
