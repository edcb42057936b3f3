//! [`Mailbox`]: what the stacks of one host leave for each other. These are received frames
//! of another stack, frames to send by a link whose queue another stack has, and addresses.
//!
//! ```text
//!  others ──► batches (WAITING_MAX) ──► its thread
//!      └─ poke: wakes it if it rests
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_stack::AddressConfig;
use weir_stack::iface::{RxMeta, TxMeta};

/// Limit, in bytes, on the content of one mailbox; each frame counts [`FRAME_COST`] more. Each
/// sender may exceed it by one batch. Beyond the limit received frames are dropped, and
/// frames to be sent wait in their stack.
pub(in crate::net) const MAILBOX_BYTES_MAX: usize = 8 << 20;
/// What a frame counts in addition to its length, in bytes.
const FRAME_COST: usize = 64;

/// Frames for one stack, one after the other.
#[derive(Default)]
pub(in crate::net) struct FrameBatch {
    bytes: Vec<u8>,
    /// End of the frames that were added; a frame being written may follow.
    added: usize,
    frames: Vec<QueuedFrame>,
}

/// The extent and purpose of a frame in a batch.
struct QueuedFrame {
    len: usize,
    kind: MailKind,
}

/// The receiving stack's treatment of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) enum MailKind {
    /// Receives the frame.
    Received(RxMeta),
    /// Sends the frame by this link. If the link has to complete it: how, and the length of
    /// the headers before the payload.
    Sent {
        link: u8,
        partial: Option<(TxMeta, usize)>,
    },
}

impl FrameBatch {
    pub(in crate::net) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The batch's size as counted towards [`MAILBOX_BYTES_MAX`].
    pub(in crate::net) fn cost(&self) -> usize {
        self.added + self.frames.len() * FRAME_COST
    }

    pub(in crate::net) fn add(&mut self, frame: &[u8], what: MailKind) {
        self.reserve(frame.len()).copy_from_slice(frame);
        self.submit(what, [&[], &[]]);
    }

    /// A buffer behind the added frames, to write a frame in place.
    pub(in crate::net) fn reserve(&mut self, len: usize) -> &mut [u8] {
        self.bytes.truncate(self.added);
        self.bytes.resize(self.added + len, 0);
        &mut self.bytes[self.added..]
    }

    /// Length of the frame that is being written.
    pub(in crate::net) fn reserved(&self) -> usize {
        self.bytes.len() - self.added
    }

    /// Adds the frame that was written, followed by `payload`.
    pub(in crate::net) fn submit(&mut self, what: MailKind, payload: [&[u8]; 2]) {
        for part in payload {
            self.bytes.extend_from_slice(part);
        }
        let len = self.bytes.len() - self.added;
        self.added = self.bytes.len();
        self.frames.push(QueuedFrame { len, kind: what });
    }

    /// Passes each frame to `take`, in order.
    pub(in crate::net) fn each(&self, mut take: impl FnMut(&[u8], MailKind)) {
        let mut rest = &self.bytes[..];
        for frame in &self.frames {
            let (bytes, behind) = rest.split_at(frame.len);
            take(bytes, frame.kind);
            rest = behind;
        }
    }
}

/// The queue of batches that other stacks leave for one stack.
pub(in crate::net) struct Mailbox {
    queue: Sender<FrameBatch>,
    queued_bytes: AtomicUsize,
    /// A batch was left since the thread last checked.
    notified: AtomicBool,
    /// The thread sleeps and must be woken.
    idle: AtomicBool,
    wake: OwnedFd,
    addressing: Mutex<Option<Arc<AddressConfig>>>,
    /// The stacks that wait for room, one bit each.
    waiting_for_room: AtomicU64,
    /// The stack has no more work.
    over: AtomicBool,
    /// Frames that were left, and frames that were dropped for lack of room.
    forwarded: AtomicU64,
    lost: AtomicU64,
}

impl Mailbox {
    /// A mailbox whose thread this eventfd wakes, and the receiver of its batches.
    pub(in crate::net) fn new(wake: OwnedFd) -> (Mailbox, Receiver<FrameBatch>) {
        let (queue, taken) = channel();
        let post = Mailbox {
            queue,
            queued_bytes: AtomicUsize::new(0),
            notified: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            wake,
            addressing: Mutex::default(),
            waiting_for_room: AtomicU64::new(0),
            over: AtomicBool::new(false),
            forwarded: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        (post, taken)
    }

    /// The eventfd that wakes the thread.
    pub(in crate::net) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Whether the mailbox has room for `cost` more bytes.
    pub(in crate::net) fn has_room(&self, cost: usize) -> bool {
        self.queued_bytes.load(SeqCst) + cost <= MAILBOX_BYTES_MAX
    }

    /// Leaves a batch.
    pub(in crate::net) fn push(&self, batch: FrameBatch) {
        self.queued_bytes.fetch_add(batch.cost(), SeqCst);
        self.forwarded.fetch_add(batch.frames.len() as u64, Relaxed);
        // This fails if the thread has ended, which no longer needs the frames.
        let _ = self.queue.send(batch);
        self.notify();
    }

    /// Counts a frame that was dropped for lack of room.
    pub(in crate::net) fn lose(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    /// Notifies the thread of new mail.
    pub(in crate::net) fn notify(&self) {
        self.notified.store(true, SeqCst);
        if self.idle.swap(false, SeqCst) {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// The thread is awake and checks the mailbox now.
    pub(in crate::net) fn wake_up(&self) {
        self.idle.store(false, SeqCst);
        // The swap also reads, so that all batches left before the wake-up are seen.
        self.notified.swap(false, SeqCst);
    }

    /// Lets the thread sleep, unless there is something new since it checked; returns whether
    /// it may.
    pub(in crate::net) fn go_idle(&self) -> bool {
        self.idle.store(true, SeqCst);
        let may = !self.notified.load(SeqCst);
        if !may {
            self.idle.store(false, SeqCst);
        }
        may
    }

    /// Releases the room of a processed batch; returns the stacks that waited for room.
    pub(in crate::net) fn done(&self, batch: &FrameBatch) -> u64 {
        let left = self.queued_bytes.fetch_sub(batch.cost(), SeqCst) - batch.cost();
        if left <= MAILBOX_BYTES_MAX / 2 {
            self.waiting_for_room.swap(0, SeqCst)
        } else {
            0
        }
    }

    /// As [`Mailbox::has_room`]; if false, the stack with index `who` is notified when there is room.
    pub(in crate::net) fn has_room_for(&self, who: usize, cost: usize) -> bool {
        if self.has_room(cost) {
            return true;
        }
        self.waiting_for_room.fetch_or(1 << who, SeqCst);
        // Room that was released before the bit was set is seen here.
        self.has_room(cost)
    }

    pub(in crate::net) fn set_addressing(&self, addressing: &Arc<AddressConfig>) {
        *self.addressing() = Some(Arc::clone(addressing));
        self.notify();
    }

    pub(in crate::net) fn take_addressing(&self) -> Option<Arc<AddressConfig>> {
        self.addressing().take()
    }

    fn addressing(&self) -> MutexGuard<'_, Option<Arc<AddressConfig>>> {
        let addressing = self.addressing.lock();
        addressing.unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the stack as finished; returns whether it was not before.
    pub(in crate::net) fn end(&self) -> bool {
        !self.over.swap(true, SeqCst)
    }

    pub(in crate::net) fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    /// Number of frames left, and of frames dropped for lack of room.
    pub(in crate::net) fn counted(&self) -> (u64, u64) {
        (self.forwarded.load(Relaxed), self.lost.load(Relaxed))
    }
}
