//! [`ShardIo`]: the exchange of one stack with the host's other stacks. Distributes received
//! frames, and takes the frames that other stacks have left.

use super::mailbox::{FrameBatch, MailKind, Mailbox};
use crate::net::io::links::Links;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use weir_stack::iface::RxMeta;
use weir_stack::{AddressConfig, Shards, Stack, Steering, TxSinks};

/// Limit on batches taken from the mailbox before the stack sends.
const BATCHES: usize = 16;

/// One stack's exchange with the other stacks.
pub(crate) struct ShardIo {
    number: usize,
    shards: Shards,
    mailboxes: Arc<[Mailbox]>,
    queue: Receiver<FrameBatch>,
    /// Batches to be left for the other stacks.
    out: Vec<FrameBatch>,
    /// The addresses last published, and the stack's version number of them; used by the
    /// first stack, which manages addresses.
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

    /// Takes the frames that other stacks have left, then receives from this stack's own
    /// links, which `count` counts. Returns whether a link turned out to be gone.
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
        // A stack without a queue of the link learns here that the link is gone.
        if lost {
            self.mailboxes.iter().for_each(Mailbox::notify);
        }
        lost
    }

    /// Discards the frames that other stacks have left, since all links are gone.
    pub(in crate::net) fn discard(&mut self) {
        self.mailbox().wake_up();
        while let Ok(batch) = self.queue.try_recv() {
            self.mailbox().done(&batch);
        }
    }

    /// Takes the frames that other stacks have left.
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
                    // A full link drops the frame, as a wire does.
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
        // The mailbox may have more batches.
        self.mailbox().notify();
    }

    /// Applies the addresses that the first stack has published.
    pub(in crate::net) fn apply_addressing(&mut self, stack: &mut Stack) {
        if self.number > 0
            && let Some(addressing) = self.mailbox().take_addressing()
        {
            stack.apply_addressing(&addressing);
        }
    }

    /// Publishes the first stack's addresses if they have changed.
    pub(in crate::net) fn publish_addressing(&mut self, stack: &Stack) {
        let epoch = stack.addressing_epoch();
        let known = self.published.as_ref();
        if self.number > 0 || known.is_some_and(|(published, _)| *published == epoch) {
            return;
        }
        let addressing = stack.addressing();
        if let Some((published, known)) = &mut self.published
            && **known == addressing
        {
            *published = epoch;
            return;
        }
        let addressing = Arc::new(addressing);
        for post in &self.mailboxes[1..] {
            post.set_addressing(&addressing);
        }
        self.published = Some((epoch, addressing));
    }

    /// Lets the thread sleep if there is nothing new; returns whether it may.
    pub(in crate::net) fn go_idle(&self) -> bool {
        self.mailbox().go_idle()
    }

    /// Whether all stacks are finished, this one if `own` is true. Each stack distributes and
    /// sends frames of the others until all are.
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
