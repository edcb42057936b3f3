//! One direction of an in-memory link.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use super::Received;
use super::rng::Rng;

/// The impairments of one direction. The default delivers every frame at once
/// and holds at most 65,536 frames and 64 MiB.
///
/// Probabilities are in parts per million.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Impairments {
    /// Probability that a frame is lost.
    pub loss_ppm: u32,
    /// Probability that a frame is delivered twice.
    pub duplicate_ppm: u32,
    /// Probability that one bit of a frame is flipped.
    pub corrupt_ppm: u32,
    /// Propagation delay of every frame, in nanoseconds.
    pub delay_ns: u64,
    /// Largest additional delay, in nanoseconds, distributed evenly from zero.
    pub jitter_ns: u64,
    /// Whether frames keep their order in spite of jitter.
    pub keep_order: bool,
    /// The line's rate in bits per second; `None` for infinite.
    pub rate_bits_per_s: Option<u64>,
    /// Largest number of frames queued for the line.
    pub queue_frames_max: usize,
    /// Length of the longest frame, in bytes.
    pub frame_len_max: usize,
    /// Largest number of frames between the ends: queued, in flight, or arrived
    /// and not yet received.
    pub held_frames_max: usize,
    /// Largest number of bytes between the ends.
    pub held_bytes_max: usize,
}

impl Default for Impairments {
    fn default() -> Impairments {
        Impairments {
            loss_ppm: 0,
            duplicate_ppm: 0,
            corrupt_ppm: 0,
            delay_ns: 0,
            jitter_ns: 0,
            keep_order: false,
            rate_bits_per_s: None,
            queue_frames_max: 1000,
            frame_len_max: 65_536,
            held_frames_max: 65_536,
            held_bytes_max: 64 << 20,
        }
    }
}

/// Invalid settings.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidImpairments {
    /// A probability above 1,000,000 parts per million.
    #[error("a probability of {0} parts per million; at most 1000000 is possible")]
    Chance(u32),
    /// A rate of zero.
    #[error("a rate of 0 bits a second; use a loss of 1000000 ppm for a dead line")]
    Rate,
}

/// Why a frame was dropped.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// The frame is longer than the link's maximum.
    #[error("longer than the link accepts")]
    TooLong,
    /// The line's queue is full.
    #[error("the queue for the line is full")]
    QueueFull,
    /// Too many frames or bytes are between the ends: the receiver is too slow.
    #[error("too many frames are between the ends")]
    HeldFull,
    /// The frame was lost on the line.
    #[error("lost on the line")]
    Lost,
}

/// Frame counts of one direction.
///
/// `sent` = `carried` + the four drop counts; `carried` + `duplicated` = frames
/// received or still to be received.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Frames handed over by the sender.
    pub sent: u64,
    /// Frames that arrive, duplicates excluded.
    pub carried: u64,
    /// Frames that arrive a second time.
    pub duplicated: u64,
    /// Frames that arrive with a bit flipped.
    pub corrupted: u64,
    /// Dropped: [`DropReason::TooLong`].
    pub too_long: u64,
    /// Dropped: [`DropReason::QueueFull`].
    pub queue_full: u64,
    /// Dropped: [`DropReason::HeldFull`].
    pub held_full: u64,
    /// Dropped: [`DropReason::Lost`].
    pub lost: u64,
    /// Frames that the receiver took.
    pub received: u64,
}

/// A frame in flight, ordered by arrival time, then by sending order; the
/// earliest is the greatest, for a max-heap.
#[derive(Debug)]
struct InFlight {
    number: u64,
    frame: Received,
}

impl InFlight {
    fn key(&self) -> (u64, u64) {
        (self.frame.arrived_ns, self.number)
    }
}

impl Ord for InFlight {
    fn cmp(&self, other: &InFlight) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &InFlight) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for InFlight {
    fn eq(&self, other: &InFlight) -> bool {
        self.key() == other.key()
    }
}

impl Eq for InFlight {}

/// The random numbers that decide the impairments of one frame; all of them are
/// always drawn.
struct ImpairmentDraw {
    lost: bool,
    duplicated: bool,
    corrupted: bool,
    bit: u64,
    jitter_ns: [u64; 2],
}

#[derive(Debug)]
pub(super) struct Direction {
    impairments: Impairments,
    rng: Rng,
    now_ns: u64,
    /// Time at which the line becomes free.
    line_free_ns: u64,
    /// Times at which the queued frames start on the line.
    line_queue: VecDeque<u64>,
    in_flight: BinaryHeap<InFlight>,
    held_bytes: usize,
    last_arrival_ns: u64,
    numbered: u64,
    counters: Counters,
}

impl Direction {
    pub(super) fn new(
        impairments: Impairments,
        seed: u64,
    ) -> Result<Direction, InvalidImpairments> {
        let Impairments {
            loss_ppm,
            duplicate_ppm,
            corrupt_ppm,
            ..
        } = impairments;
        for ppm in [loss_ppm, duplicate_ppm, corrupt_ppm] {
            if ppm > 1_000_000 {
                return Err(InvalidImpairments::Chance(ppm));
            }
        }
        if impairments.rate_bits_per_s == Some(0) {
            return Err(InvalidImpairments::Rate);
        }
        Ok(Direction {
            impairments,
            rng: Rng::new(seed),
            now_ns: 0,
            line_free_ns: 0,
            line_queue: VecDeque::new(),
            in_flight: BinaryHeap::new(),
            held_bytes: 0,
            last_arrival_ns: 0,
            numbered: 0,
            counters: Counters::default(),
        })
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn next_arrival_ns(&self) -> Option<u64> {
        self.in_flight.peek().map(|next| next.frame.arrived_ns)
    }

    pub(super) fn receive(&mut self, now_ns: u64) -> Option<Received> {
        if self.next_arrival_ns()? > now_ns {
            return None;
        }
        let frame = self.in_flight.pop()?.frame;
        self.held_bytes -= frame.bytes.len();
        self.counters.received += 1;
        Some(frame)
    }

    pub(super) fn send(&mut self, now_ns: u64, bytes: &[u8]) -> Result<(), DropReason> {
        self.now_ns = self.now_ns.max(now_ns);
        self.counters.sent += 1;
        let draw = self.draw();
        let carried = self.carry(bytes, &draw);
        let counter = match carried {
            Ok(()) => &mut self.counters.carried,
            Err(DropReason::TooLong) => &mut self.counters.too_long,
            Err(DropReason::QueueFull) => &mut self.counters.queue_full,
            Err(DropReason::HeldFull) => &mut self.counters.held_full,
            Err(DropReason::Lost) => &mut self.counters.lost,
        };
        *counter += 1;
        carried
    }

    fn draw(&mut self) -> ImpairmentDraw {
        let Impairments { jitter_ns, .. } = self.impairments;
        let rng = &mut self.rng;
        let mut jitter = || rng.below(jitter_ns.saturating_add(1));
        let jitter_ns = [jitter(), jitter()];
        ImpairmentDraw {
            jitter_ns,
            lost: rng.chance(self.impairments.loss_ppm),
            duplicated: rng.chance(self.impairments.duplicate_ppm),
            corrupted: rng.chance(self.impairments.corrupt_ppm),
            bit: rng.bits(),
        }
    }

    fn carry(&mut self, bytes: &[u8], draw: &ImpairmentDraw) -> Result<(), DropReason> {
        if bytes.len() > self.impairments.frame_len_max {
            return Err(DropReason::TooLong);
        }
        if !self.has_room(bytes.len()) {
            return Err(DropReason::HeldFull);
        }
        let departed_ns = self.serialize_on_line(bytes.len())?;
        if draw.lost {
            return Err(DropReason::Lost);
        }
        let mut bytes = bytes.to_vec();
        if draw.corrupted && !bytes.is_empty() {
            let bit = (draw.bit % (bytes.len() as u64 * 8)) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            self.counters.corrupted += 1;
        }
        let twin = draw.duplicated.then(|| bytes.clone());
        self.schedule_arrival(bytes, departed_ns, draw.jitter_ns[0]);
        if let Some(twin) = twin
            && self.has_room(twin.len())
        {
            self.schedule_arrival(twin, departed_ns, draw.jitter_ns[1]);
            self.counters.duplicated += 1;
        }
        Ok(())
    }

    fn has_room(&self, len: usize) -> bool {
        self.in_flight.len() < self.impairments.held_frames_max
            && self.held_bytes + len <= self.impairments.held_bytes_max
    }

    /// Queues a frame for the line; returns the time at which its last bit
    /// leaves.
    fn serialize_on_line(&mut self, len: usize) -> Result<u64, DropReason> {
        let Some(rate) = self.impairments.rate_bits_per_s else {
            return Ok(self.now_ns);
        };
        while self
            .line_queue
            .front()
            .is_some_and(|start| *start <= self.now_ns)
        {
            self.line_queue.pop_front();
        }
        let start_ns = self.line_free_ns.max(self.now_ns);
        if start_ns > self.now_ns {
            if self.line_queue.len() >= self.impairments.queue_frames_max {
                return Err(DropReason::QueueFull);
            }
            self.line_queue.push_back(start_ns);
        }
        let bits = len as u128 * 8;
        let takes_ns = (bits * 1_000_000_000).div_ceil(u128::from(rate));
        let takes_ns = u64::try_from(takes_ns).unwrap_or(u64::MAX);
        self.line_free_ns = start_ns.saturating_add(takes_ns);
        Ok(self.line_free_ns)
    }

    fn schedule_arrival(&mut self, bytes: Vec<u8>, departed_ns: u64, jitter_ns: u64) {
        let delay_ns = self.impairments.delay_ns.saturating_add(jitter_ns);
        let mut arrived_ns = departed_ns.saturating_add(delay_ns);
        if self.impairments.keep_order {
            arrived_ns = arrived_ns.max(self.last_arrival_ns);
            self.last_arrival_ns = arrived_ns;
        }
        self.held_bytes += bytes.len();
        self.numbered += 1;
        self.in_flight.push(InFlight {
            number: self.numbered,
            frame: Received {
                bytes,
                sent_ns: self.now_ns,
                arrived_ns,
            },
        });
    }
}
