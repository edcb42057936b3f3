//! A line that holds each frame for some time, between two descriptors of
//! which each read and each write is a frame: TAP interfaces, sequenced-packet
//! sockets.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest frame, in bytes.
const FRAME_LEN_MAX: usize = 2048;
/// Frames that one direction holds at most; more are dropped.
const QUEUE_MAX: usize = 100_000;
/// Frames that are read in one go before those that are due are written.
const BATCH: usize = 32;
/// How often a line that carries nothing looks whether it is to end.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The line. It ends when this is dropped.
#[derive(Debug)]
pub struct DelayLine {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// One direction.
struct Direction {
    from: usize,
    queue: VecDeque<(Instant, Vec<u8>)>,
    /// Storage of frames that have gone.
    spare: Vec<Vec<u8>>,
}

impl DelayLine {
    /// Starts a thread that carries frames between two non-blocking
    /// descriptors, each frame `delay` after it came. What the other end has no
    /// room for is dropped.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(ends: [OwnedFd; 2], delay: Duration) -> io::Result<DelayLine> {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let thread = thread::Builder::new()
            .name("delay line".to_owned())
            .spawn(move || {
                // Without it the kernel rounds each wait up by 50 µs.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                carry(&ends, delay, &told);
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

fn carry(ends: &[OwnedFd; 2], delay: Duration, is_over: &AtomicBool) {
    let mut ways = [0, 1].map(|from| Direction {
        from,
        queue: VecDeque::new(),
        spare: Vec::new(),
    });
    let mut frame = vec![0; FRAME_LEN_MAX];
    while !is_over.load(Ordering::Relaxed) {
        let mut is_idle = true;
        for way in &mut ways {
            is_idle &= !way.turn(ends, delay, &mut frame);
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
            let mut fds = [0, 1].map(|end| PollFd::new(&ends[end], PollFlags::IN));
            let timeout = Timespec::try_from(left).expect("it is short");
            let _ = poll(&mut fds, Some(&timeout));
        }
    }
}

impl Direction {
    /// Reads what has come, and writes what is due; whether it did anything.
    fn turn(&mut self, ends: &[OwnedFd; 2], delay: Duration, frame: &mut [u8]) -> bool {
        let to = &ends[1 - self.from];
        let mut did = false;
        for _ in 0..BATCH {
            let count = match rustix::io::read(&ends[self.from], &mut *frame) {
                Ok(count) if count > 0 => count,
                _ => break,
            };
            did = true;
            if delay.is_zero() {
                write(to, &frame[..count]);
            } else if self.queue.len() < QUEUE_MAX {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(&frame[..count]);
                self.queue.push_back((Instant::now() + delay, bytes));
            }
        }
        if self.queue.is_empty() {
            return did;
        }
        let now = Instant::now();
        while let Some((_, bytes)) = self.queue.pop_front_if(|(due, _)| *due <= now) {
            write(to, &bytes);
            self.spare.push(bytes);
            did = true;
        }
        did
    }
}

/// Writes a frame, or drops it if there is no room.
fn write(to: &OwnedFd, frame: &[u8]) {
    while rustix::io::write(to, frame) == Err(Errno::INTR) {}
}
