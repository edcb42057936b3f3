//! A delay line: forwards frames between descriptors (TAP interfaces or
//! sequenced-packet sockets, with one frame for each read or write) after a
//! delay. The line may have a bottleneck, which several stations at its near
//! end share.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Length of the longest frame, in bytes.
const FRAME_LEN_MAX: usize = 2048;
/// Largest number of frames in one direction; more are dropped.
const QUEUE_MAX: usize = 100_000;
/// Largest number of frames read before due frames are written.
const BATCH: usize = 32;
/// How often an idle line checks whether it should stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A rate limit for each direction, with a drop-tail queue.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// The rate, in bits per second.
    pub bits_per_s: u64,
    /// The queue's size, in bytes.
    pub queue_bytes: usize,
}

/// A delay line; dropping it stops it.
#[derive(Debug)]
pub struct DelayLine {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// One direction of the line.
struct Direction {
    from: Range<usize>,
    to: Range<usize>,
    delay: Duration,
    bottleneck: Option<Bottleneck>,
    /// Time at which the bottleneck has sent all queued frames.
    busy_until: Instant,
    /// Frames with their due times.
    queue: VecDeque<(Instant, Vec<u8>)>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
}

impl DelayLine {
    /// Starts a thread that forwards frames between two non-blocking
    /// descriptors with a delay. Frames for which the other end has no room are
    /// dropped.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(ends: [OwnedFd; 2], delay: Duration) -> io::Result<DelayLine> {
        let [near, far] = ends;
        DelayLine::shared(vec![near], far, delay, None)
    }

    /// As [`DelayLine::start`], with a bottleneck that several near ends share.
    /// Frames from the far end go to all near ends, each of which filters by
    /// its MAC address.
    ///
    /// # Errors
    /// As for [`DelayLine::start`].
    pub fn shared(
        near: Vec<OwnedFd>,
        far: OwnedFd,
        delay: Duration,
        bottleneck: Option<Bottleneck>,
    ) -> io::Result<DelayLine> {
        let (count, mut ends) = (near.len(), near);
        ends.push(far);
        let way = |from, to| Direction {
            from,
            to,
            delay,
            bottleneck,
            busy_until: Instant::now(),
            queue: VecDeque::new(),
            spare: Vec::new(),
        };
        let ways = [
            way(0..count, count..count + 1),
            way(count..count + 1, 0..count),
        ];
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::Builder::new()
            .name("delay line".to_owned())
            .spawn(move || {
                // Otherwise the kernel's timer slack delays each wake-up by 50
                // µs.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                carry(&ends, ways, &over);
            })?;
        Ok(DelayLine {
            ends: is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn carry(ends: &[OwnedFd], mut ways: [Direction; 2], is_over: &AtomicBool) {
    let mut frame = vec![0; FRAME_LEN_MAX];
    while !is_over.load(Ordering::Relaxed) {
        let mut is_idle = true;
        for way in &mut ways {
            is_idle &= !way.turn(ends, &mut frame);
        }
        if is_idle {
            let due = ways
                .iter()
                .filter_map(|way| way.queue.front())
                .map(|held| held.0);
            let left = due.min().map_or(STOP_POLL_INTERVAL, |due| {
                due.saturating_duration_since(Instant::now())
                    .min(STOP_POLL_INTERVAL)
            });
            let fds = ends.iter().map(|end| PollFd::new(end, PollFlags::IN));
            let mut fds: Vec<_> = fds.collect();
            let timeout = Timespec::try_from(left).expect("it is short");
            let _ = poll(&mut fds, Some(&timeout));
        }
    }
}

impl Direction {
    /// Reads available frames and writes due ones; returns whether there were
    /// any.
    fn turn(&mut self, ends: &[OwnedFd], frame: &mut [u8]) -> bool {
        let mut did = false;
        for from in self.from.clone() {
            for _ in 0..BATCH {
                let count = match rustix::io::read(&ends[from], &mut *frame) {
                    Ok(count) if count > 0 => count,
                    _ => break,
                };
                did = true;
                self.take(ends, &frame[..count]);
            }
        }
        if self.queue.is_empty() {
            return did;
        }
        let now = Instant::now();
        while let Some((_, bytes)) = self.queue.pop_front_if(|(due, _)| *due <= now) {
            for to in &ends[self.to.clone()] {
                write(to, &bytes);
            }
            self.spare.push(bytes);
            did = true;
        }
        did
    }

    /// Queues a frame, or drops it.
    fn take(&mut self, ends: &[OwnedFd], frame: &[u8]) {
        if self.delay.is_zero() && self.bottleneck.is_none() {
            for to in &ends[self.to.clone()] {
                write(to, frame);
            }
            return;
        }
        let mut leaves = Instant::now();
        if let Some(bottleneck) = self.bottleneck {
            let takes = |len: usize| {
                Duration::from_secs_f64(len as f64 * 8.0 / bottleneck.bits_per_s as f64)
            };
            let waits = self.busy_until.saturating_duration_since(leaves);
            if waits > takes(bottleneck.queue_bytes) {
                return;
            }
            self.busy_until = leaves + waits + takes(frame.len());
            leaves = self.busy_until;
        }
        if self.queue.len() < QUEUE_MAX {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(frame);
            self.queue.push_back((leaves + self.delay, bytes));
        }
    }
}

/// Writes a frame, or drops it if there is no room.
fn write(to: &OwnedFd, frame: &[u8]) {
    while rustix::io::write(to, frame) == Err(Errno::INTR) {}
}
