//! One stack's part in a host of several: what comes is dealt out, and what
//! others leave is taken.

use super::mailbox::{FrameBatch, MailKind, Mailbox};
use crate::net::io::links::Links;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use weir_stack::iface::RxMeta;
use weir_stack::{AddressConfig, Shards, Stack, Steering, TxSinks};

/// Batches that are taken at most before the stack sends what it has to.
const BATCHES: usize = 16;

/// See the module.
pub(crate) struct ShardIo {
    number: usize,
    shards: Shards,
    mailboxes: Arc<[Mailbox]>,
    queue: Receiver<FrameBatch>,
    /// What is to be left for each of the others.
    out: Vec<FrameBatch>,
    /// The addresses that the others were told of, and the stack's number for
    /// them; of the first, which looks after them.
    published: Option<(u64, Arc<AddressConfig>)>,
}

impl ShardIo {
    pub(in crate::net) fn new(
        number: usize,
        shards: Shards,
        posts: Arc<[Mailbox]>,
        queue: Receiver<FrameBatch>,
    ) -> ShardIo {
        let out = (0..posts.len()).map(|_| FrameBatch::default()).collect();
        ShardIo {
            number,
            shards,
            mailboxes: posts,
            queue,
            out,
            published: None,
        }
    }

    fn mailbox(&self) -> &Mailbox {
        &self.mailboxes[self.number]
    }

    /// Takes what others have left, then what has come by this stack's own
    /// links, `count` of the latter; whether one of those turned out to be gone.
    pub(in crate::net) fn receive(
        &mut self,
        now_ns: u64,
        stack: &mut Stack,
        links: &mut Links,
        count: &mut u64,
    ) -> bool {
        self.mailbox().wake_up();
        self.apply_addressing(stack);
        self.drain_mailbox(now_ns, stack, links);
        let (number, shards) = (self.number, &self.shards);
        let (posts, out) = (&self.mailboxes, &mut self.out);
        let lost = links.receive(&mut |frame, received| {
            *count += 1;
            match shards.steer(frame) {
                Steering::One(owner) if owner == number => {
                    stack.receive_with(now_ns, frame, received);
                }
                Steering::One(owner) => enqueue(&posts[owner], &mut out[owner], frame, received),
                Steering::All => {
                    stack.receive_with(now_ns, frame, received);
                    for (post, batch) in others(posts, out, number) {
                        enqueue(post, batch, frame, received);
                    }
                }
            }
        });
        while let Some((owner, link, frame)) = stack.next_misdirected() {
            let received = RxMeta {
                link,
                ..RxMeta::default()
            };
            enqueue(
                &self.mailboxes[owner],
                &mut self.out[owner],
                &frame,
                received,
            );
        }
        for (post, batch) in self.mailboxes.iter().zip(&mut self.out) {
            if !batch.is_empty() {
                post.push(std::mem::take(batch));
            }
        }
        // Who has no queue of a link that is gone learns it.
        if lost {
            self.mailboxes.iter().for_each(Mailbox::notify);
        }
        lost
    }

    /// What others have left is nobody's any more: the links are gone.
    pub(in crate::net) fn discard(&mut self) {
        self.mailbox().wake_up();
        while let Ok(batch) = self.queue.try_recv() {
            self.mailbox().done(&batch);
        }
    }

    /// Takes what others have left.
    fn drain_mailbox(&mut self, now_ns: u64, stack: &mut Stack, links: &mut Links) {
        for _ in 0..BATCHES {
            let Ok(batch) = self.queue.try_recv() else {
                return;
            };
            batch.each(|frame, what| match what {
                MailKind::Received(received) => stack.receive_with(now_ns, frame, received),
                MailKind::Sent { link, partial } => {
                    let head = partial.map_or(frame.len(), |(_, head)| head);
                    let (head, payload) = frame.split_at(head);
                    let outlet = links.sink(link);
                    // A link that is full loses it, as a wire does.
                    let Some(room) = outlet.reserve(head.len()) else {
                        return self.mailbox().lose();
                    };
                    room.copy_from_slice(head);
                    match partial {
                        Some((partial, _)) => outlet.submit_partial(partial, [payload, &[]]),
                        None => outlet.submit(),
                    }
                }
            });
            let mut starved = self.mailbox().done(&batch);
            while starved != 0 {
                self.mailboxes[starved.trailing_zeros() as usize].notify();
                starved &= starved - 1;
            }
        }
        // There may be more.
        self.mailbox().notify();
    }

    /// Takes up the addresses that the first stack has told of.
    pub(in crate::net) fn apply_addressing(&mut self, stack: &mut Stack) {
        if self.number > 0
            && let Some(addressing) = self.mailbox().take_addressing()
        {
            stack.apply_addressing(&addressing);
        }
    }

    /// The first stack tells the others of its addresses, if they have changed.
    pub(in crate::net) fn publish_addressing(&mut self, stack: &Stack) {
        let epoch = stack.addressing_epoch();
        let known = self.published.as_ref();
        if self.number > 0 || known.is_some_and(|(told, _)| *told == epoch) {
            return;
        }
        let addressing = stack.addressing();
        if let Some((told, known)) = &mut self.published
            && **known == addressing
        {
            *told = epoch;
            return;
        }
        let addressing = Arc::new(addressing);
        for post in &self.mailboxes[1..] {
            post.set_addressing(&addressing);
        }
        self.published = Some((epoch, addressing));
    }

    /// Whether the thread may rest, which it does then.
    pub(in crate::net) fn go_idle(&self) -> bool {
        self.mailbox().go_idle()
    }

    /// Whether all stacks are over, this one included if `own` is: each deals
    /// and sends for others as long as one is not.
    pub(in crate::net) fn is_over(&self, own: bool) -> bool {
        if own && self.mailbox().end() {
            self.mailboxes.iter().for_each(Mailbox::notify);
        }
        self.mailboxes.iter().all(Mailbox::is_over)
    }
}

fn enqueue(post: &Mailbox, batch: &mut FrameBatch, frame: &[u8], received: RxMeta) {
    if post.has_room(batch.cost() + frame.len()) {
        batch.add(frame, MailKind::Received(received))
    } else {
        post.lose()
    }
}

fn others<'a>(
    posts: &'a [Mailbox],
    out: &'a mut [FrameBatch],
    number: usize,
) -> impl Iterator<Item = (&'a Mailbox, &'a mut FrameBatch)> {
    let all = posts.iter().zip(out).enumerate();
    all.filter_map(move |(other, found)| (other != number).then_some(found))
}
