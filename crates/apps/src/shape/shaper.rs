//! The queues of one output link.

use super::classify::Classifier;
use super::config::LinkConfig;
use weir_chain::Packet;
use weir_chain::config::ConfigError;
use weir_sched::{ClassCounts, Next, Scheduler};

/// A frame that a shaper can hold.
pub trait Shaped {
    /// The bytes, or the first ones of a long frame: at least its headers.
    fn bytes(&self) -> &[u8];
    /// The same, to be marked.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Bytes of the whole frame.
    fn frame_len(&self) -> usize;
    /// Pieces of memory that the frame occupies.
    fn chunks(&self) -> u32;
}

impl Shaped for weir_tap::Frame {
    fn bytes(&self) -> &[u8] {
        self.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }

    fn frame_len(&self) -> usize {
        self.len()
    }

    fn chunks(&self) -> u32 {
        self.frags() as u32
    }
}

impl Shaped for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn frame_len(&self) -> usize {
        self.len()
    }

    fn chunks(&self) -> u32 {
        1
    }
}

/// A frame in a queue, and what it takes on the link.
#[derive(Debug)]
struct Waiting<B> {
    frame: B,
    overhead: u32,
}

impl<B: Shaped> weir_sched::Frame for Waiting<B> {
    fn wire_len(&self) -> u32 {
        let len = u32::try_from(self.frame.frame_len()).unwrap_or(u32::MAX);
        len.saturating_add(self.overhead).max(1)
    }

    fn mark(&mut self) -> bool {
        Packet::new(self.frame.bytes_mut()).mark_ce()
    }
}

/// Classes, flows and queues of what leaves by a link, without I/O. Times are in ns
/// of a clock that does not go back.
pub struct Shaper<B> {
    classifier: Classifier,
    scheduler: Scheduler<Waiting<B>>,
    names: Vec<String>,
    overhead: u32,
    /// Chunks of the frames that wait, and how many there may be.
    chunks: u32,
    chunks_max: u32,
    dropped: Vec<Waiting<B>>,
    /// Frames that the end, or the bypass, has made useless.
    flushed: u64,
}

impl<B: Shaped> Shaper<B> {
    /// The queues of a link. The seed decides which flows share a queue: peers must
    /// not know it.
    ///
    /// # Errors
    /// If the filters do not fit into a plan, or the scheduler refuses a value.
    pub fn new(config: &LinkConfig, seed: u64) -> Result<Shaper<B>, ConfigError> {
        let scheduler = Scheduler::new(&config.scheduler, seed);
        let scheduler = scheduler.map_err(|error| ConfigError {
            at: Some(config.at),
            message: error.to_string(),
        })?;
        Ok(Shaper {
            classifier: Classifier::new(config, seed)?,
            scheduler,
            names: config
                .classes
                .iter()
                .map(|class| class.name.clone())
                .collect(),
            overhead: config.overhead,
            chunks: 0,
            chunks_max: config.chunks_max,
            dropped: Vec::new(),
            flushed: 0,
        })
    }

    /// The name of the class of a frame.
    pub fn class_of(&mut self, frame: &[u8]) -> &str {
        &self.names[self.classifier.class(frame, frame.len())]
    }

    /// Queues a frame that came at `now`, or drops it, or others for it.
    #[inline]
    pub fn enqueue(&mut self, now: u64, frame: B) {
        let class = self
            .classifier
            .class(Shaped::bytes(&frame), frame.frame_len());
        let flow = self.classifier.flow(class, Shaped::bytes(&frame));
        self.chunks += frame.chunks();
        let waiting = Waiting {
            frame,
            overhead: self.overhead,
        };
        self.scheduler
            .enqueue(now, class, flow, waiting, &mut self.dropped);
        self.free_dropped();
        while self.chunks > self.chunks_max && self.scheduler.drop_from_longest(&mut self.dropped) {
            self.free_dropped();
        }
    }

    /// Takes the frame that leaves at `now`.
    #[inline]
    pub fn dequeue(&mut self, now: u64) -> Next<B> {
        let next = self.scheduler.dequeue(now, &mut self.dropped);
        self.free_dropped();
        match next {
            Next::Frame(waiting) => {
                self.chunks -= waiting.frame.chunks();
                Next::Frame(waiting.frame)
            }
            Next::At(at) => Next::At(at),
            Next::Empty => Next::Empty,
        }
    }

    /// Drops all frames that wait, and counts them apart.
    pub fn flush(&mut self) {
        let mut frames = Vec::new();
        self.scheduler.drain(&mut frames);
        self.flushed += frames.len() as u64;
        self.chunks = 0;
    }

    fn free_dropped(&mut self) {
        for waiting in self.dropped.drain(..) {
            self.chunks -= waiting.frame.chunks();
        }
    }

    /// Frames that wait.
    pub fn waiting(&self) -> u64 {
        self.scheduler.waiting()
    }

    /// Chunks of the frames that wait.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Frames that [`flush`](Self::flush) has dropped.
    pub fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Each class, by its name, and what became of its frames.
    pub fn classes(&self) -> impl Iterator<Item = (&str, ClassCounts)> {
        let names = self.names.iter().enumerate();
        names.map(|(class, name)| (&**name, self.scheduler.counts(class)))
    }
}
