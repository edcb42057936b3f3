//! What the stacks of one host leave for each other: frames that are another's,
//! or that go out by a link which another holds, and what addresses there are.
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

/// Bytes that wait for one stack at most, and a batch more of each that leaves
/// some at that moment; frames counted with [`FRAME_COST`] each: beyond them what came is lost, and what is to be sent waits.
pub(in crate::net) const MAILBOX_BYTES_MAX: usize = 8 << 20;
/// What a frame counts besides its own bytes.
const FRAME_COST: usize = 64;

/// Frames for one stack, one behind the other.
#[derive(Default)]
pub(in crate::net) struct FrameBatch {
    bytes: Vec<u8>,
    /// Bytes of the frames that were added; then comes one being written.
    added: usize,
    frames: Vec<QueuedFrame>,
}

/// One of them.
struct QueuedFrame {
    len: usize,
    kind: MailKind,
}

/// What is to be done with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) enum MailKind {
    /// It came.
    Received(RxMeta),
    /// It goes out by this link; if the link has something to complete, what,
    /// and how many bytes there are before the payload.
    Sent {
        link: u8,
        partial: Option<(TxMeta, usize)>,
    },
}

impl FrameBatch {
    pub(in crate::net) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// What it counts.
    pub(in crate::net) fn cost(&self) -> usize {
        self.added + self.frames.len() * FRAME_COST
    }

    pub(in crate::net) fn add(&mut self, frame: &[u8], what: MailKind) {
        self.reserve(frame.len()).copy_from_slice(frame);
        self.submit(what, [&[], &[]]);
    }

    /// Room for a frame to be written in place, behind those that were added.
    pub(in crate::net) fn reserve(&mut self, len: usize) -> &mut [u8] {
        self.bytes.truncate(self.added);
        self.bytes.resize(self.added + len, 0);
        &mut self.bytes[self.added..]
    }

    /// Bytes of the frame that is being written.
    pub(in crate::net) fn reserved(&self) -> usize {
        self.bytes.len() - self.added
    }

    /// Adds what was written there, with `payload` behind it.
    pub(in crate::net) fn submit(&mut self, what: MailKind, payload: [&[u8]; 2]) {
        for part in payload {
            self.bytes.extend_from_slice(part);
        }
        let len = self.bytes.len() - self.added;
        self.added = self.bytes.len();
        self.frames.push(QueuedFrame { len, kind: what });
    }

    /// Gives each frame in turn.
    pub(in crate::net) fn each(&self, mut take: impl FnMut(&[u8], MailKind)) {
        let mut rest = &self.bytes[..];
        for frame in &self.frames {
            let (bytes, behind) = rest.split_at(frame.len);
            take(bytes, frame.kind);
            rest = behind;
        }
    }
}

/// Where others leave what is for one stack.
pub(in crate::net) struct Mailbox {
    queue: Sender<FrameBatch>,
    queued_bytes: AtomicUsize,
    /// There is something new since the thread has looked last.
    notified: AtomicBool,
    /// The thread rests: it must be woken.
    idle: AtomicBool,
    wake: OwnedFd,
    addressing: Mutex<Option<Arc<AddressConfig>>>,
    /// Who waits for room, a bit a stack.
    waiting_for_room: AtomicU64,
    /// The stack has nothing left to do.
    over: AtomicBool,
    /// Frames that were left, and those there was no room for.
    forwarded: AtomicU64,
    lost: AtomicU64,
}

impl Mailbox {
    /// One whose thread is woken by this eventfd, and where it takes from.
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

    /// What the thread waits for.
    pub(in crate::net) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Whether so many bytes more may wait.
    pub(in crate::net) fn has_room(&self, cost: usize) -> bool {
        self.queued_bytes.load(SeqCst) + cost <= MAILBOX_BYTES_MAX
    }

    /// Leaves frames.
    pub(in crate::net) fn push(&self, batch: FrameBatch) {
        self.queued_bytes.fetch_add(batch.cost(), SeqCst);
        self.forwarded.fetch_add(batch.frames.len() as u64, Relaxed);
        // It fails if the thread has ended, and nobody needs them.
        let _ = self.queue.send(batch);
        self.notify();
    }

    /// A frame found no room.
    pub(in crate::net) fn lose(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    /// Lets the thread look.
    pub(in crate::net) fn notify(&self) {
        self.notified.store(true, SeqCst);
        if self.idle.swap(false, SeqCst) {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// The thread is up, and looks now.
    pub(in crate::net) fn wake_up(&self) {
        self.idle.store(false, SeqCst);
        // Read, too: so what was left before it was poked is seen.
        self.notified.swap(false, SeqCst);
    }

    /// Whether the thread may rest, which it does then: nobody has poked it
    /// since it looked.
    pub(in crate::net) fn go_idle(&self) -> bool {
        self.idle.store(true, SeqCst);
        let may = !self.notified.load(SeqCst);
        if !may {
            self.idle.store(false, SeqCst);
        }
        may
    }

    /// A batch was dealt with; who waits for room now that there is some.
    pub(in crate::net) fn done(&self, batch: &FrameBatch) -> u64 {
        let left = self.queued_bytes.fetch_sub(batch.cost(), SeqCst) - batch.cost();
        if left <= MAILBOX_BYTES_MAX / 2 {
            self.waiting_for_room.swap(0, SeqCst)
        } else {
            0
        }
    }

    /// As [`Mailbox::has_room`]; else `who` is to be poked when there is.
    pub(in crate::net) fn has_room_for(&self, who: usize, cost: usize) -> bool {
        if self.has_room(cost) {
            return true;
        }
        self.waiting_for_room.fetch_or(1 << who, SeqCst);
        // What was freed before that was seen.
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
        let told = self.addressing.lock();
        told.unwrap_or_else(PoisonError::into_inner)
    }

    /// The stack has nothing left to do; whether that is new.
    pub(in crate::net) fn end(&self) -> bool {
        !self.over.swap(true, SeqCst)
    }

    pub(in crate::net) fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    /// Frames that were left, and those there was no room for.
    pub(in crate::net) fn counted(&self) -> (u64, u64) {
        (self.forwarded.load(Relaxed), self.lost.load(Relaxed))
    }
}
