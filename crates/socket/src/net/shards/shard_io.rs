//! One stack's part in a host of several: what comes is dealt out, and what
//! others leave is taken.

use super::mailbox::{Batch, Post, What};
use crate::net::io::links::Links;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use weir_stack::iface::RxMeta;
use weir_stack::{AddressConfig, Shards, Stack, Steering, TxSinks};

/// Batches that are taken at most before the stack sends what it has to.
const BATCHES: usize = 16;

/// See the module.
pub(crate) struct Part {
    number: usize,
    shards: Shards,
    posts: Arc<[Post]>,
    queue: Receiver<Batch>,
    /// What is to be left for each of the others.
    out: Vec<Batch>,
    /// The addresses that the others were told of, and the stack's number for
    /// them; of the first, which looks after them.
    told: Option<(u64, Arc<AddressConfig>)>,
}

impl Part {
    pub(in crate::net) fn new(
        number: usize,
        shards: Shards,
        posts: Arc<[Post]>,
        queue: Receiver<Batch>,
    ) -> Part {
        let out = (0..posts.len()).map(|_| Batch::default()).collect();
        Part {
            number,
            shards,
            posts,
            queue,
            out,
            told: None,
        }
    }

    fn post(&self) -> &Post {
        &self.posts[self.number]
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
        self.post().looks();
        self.catch_up(stack);
        self.take(now_ns, stack, links);
        let (number, shards) = (self.number, &self.shards);
        let (posts, out) = (&self.posts, &mut self.out);
        let lost = links.receive(&mut |frame, received| {
            *count += 1;
            match shards.steer(frame) {
                Steering::One(owner) if owner == number => {
                    stack.receive_with(now_ns, frame, received);
                }
                Steering::One(owner) => leave(&posts[owner], &mut out[owner], frame, received),
                Steering::All => {
                    stack.receive_with(now_ns, frame, received);
                    for (post, batch) in others(posts, out, number) {
                        leave(post, batch, frame, received);
                    }
                }
            }
        });
        while let Some((owner, link, frame)) = stack.next_misdirected() {
            let received = RxMeta {
                link,
                ..RxMeta::default()
            };
            leave(&self.posts[owner], &mut self.out[owner], &frame, received);
        }
        for (post, batch) in self.posts.iter().zip(&mut self.out) {
            if !batch.is_empty() {
                post.push(std::mem::take(batch));
            }
        }
        // Who has no queue of a link that is gone learns it.
        if lost {
            self.posts.iter().for_each(Post::poke);
        }
        lost
    }

    /// What others have left is nobody's any more: the links are gone.
    pub(in crate::net) fn discard(&mut self) {
        self.post().looks();
        while let Ok(batch) = self.queue.try_recv() {
            self.post().done(&batch);
        }
    }

    /// Takes what others have left.
    fn take(&mut self, now_ns: u64, stack: &mut Stack, links: &mut Links) {
        for _ in 0..BATCHES {
            let Ok(batch) = self.queue.try_recv() else {
                return;
            };
            batch.each(|frame, what| match what {
                What::Received(received) => stack.receive_with(now_ns, frame, received),
                What::Sent { link, partial } => {
                    let head = partial.map_or(frame.len(), |(_, head)| head);
                    let (head, payload) = frame.split_at(head);
                    let outlet = links.sink(link);
                    // A link that is full loses it, as a wire does.
                    let Some(room) = outlet.reserve(head.len()) else {
                        return self.post().lose();
                    };
                    room.copy_from_slice(head);
                    match partial {
                        Some((partial, _)) => outlet.submit_partial(partial, [payload, &[]]),
                        None => outlet.submit(),
                    }
                }
            });
            let mut starved = self.post().done(&batch);
            while starved != 0 {
                self.posts[starved.trailing_zeros() as usize].poke();
                starved &= starved - 1;
            }
        }
        // There may be more.
        self.post().poke();
    }

    /// Takes up the addresses that the first stack has told of.
    pub(in crate::net) fn catch_up(&mut self, stack: &mut Stack) {
        if self.number > 0
            && let Some(addressing) = self.post().take_addressing()
        {
            stack.apply_addressing(&addressing);
        }
    }

    /// The first stack tells the others of its addresses, if they have changed.
    pub(in crate::net) fn tell(&mut self, stack: &Stack) {
        let epoch = stack.addressing_epoch();
        let known = self.told.as_ref();
        if self.number > 0 || known.is_some_and(|(told, _)| *told == epoch) {
            return;
        }
        let addressing = stack.addressing();
        if let Some((told, known)) = &mut self.told
            && **known == addressing
        {
            *told = epoch;
            return;
        }
        let addressing = Arc::new(addressing);
        for post in &self.posts[1..] {
            post.tell(&addressing);
        }
        self.told = Some((epoch, addressing));
    }

    /// Whether the thread may rest, which it does then.
    pub(in crate::net) fn rest(&self) -> bool {
        self.post().rest()
    }

    /// Whether all stacks are over, this one included if `own` is: each deals
    /// and sends for others as long as one is not.
    pub(in crate::net) fn is_over(&self, own: bool) -> bool {
        if own && self.post().end() {
            self.posts.iter().for_each(Post::poke);
        }
        self.posts.iter().all(Post::is_over)
    }
}

fn leave(post: &Post, batch: &mut Batch, frame: &[u8], received: RxMeta) {
    match post.has_room(batch.cost() + frame.len()) {
        true => batch.add(frame, What::Received(received)),
        false => post.lose(),
    }
}

fn others<'a>(
    posts: &'a [Post],
    out: &'a mut [Batch],
    number: usize,
) -> impl Iterator<Item = (&'a Post, &'a mut Batch)> {
    let all = posts.iter().zip(out).enumerate();
    all.filter_map(move |(other, found)| (other != number).then_some(found))
}
