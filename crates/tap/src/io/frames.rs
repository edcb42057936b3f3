//! Frames between the calls: taken from links, given to links, allocated.

use crate::error::TapError;
use crate::io::checksum::complete;
use crate::io::tx_burst::NoBurst;
use crate::stats::{Counts, LinkCounts};
use crate::tap::{LinkId, Tap, ring_error};
use weir_link::net::Interface;
use weir_link::xdp::{Bypass, BypassReason, CopyMode};
use weir_ring::Frame;
use weir_ring::umem::ChunkCounts;

impl Tap {
    /// An empty frame of one chunk; `None` if no chunk is free: then
    /// [`push`](Self::push), or [`pull`](Self::pull) some.
    pub fn alloc(&self) -> Option<Frame> {
        self.pool.alloc()
    }

    /// The next frame that came in at a link, on any of its queues.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn take(&mut self, link: LinkId) -> Result<Option<Frame>, TapError> {
        for queue in 0..self.queues(link) {
            if let Some(frame) = self.take_from(link, queue)? {
                self.release(link, queue);
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// As [`take`](Self::take), up to `idle_max` at once, which are put behind
    /// those in `frames`; tells how many.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn take_many(
        &mut self,
        link: LinkId,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<usize, TapError> {
        let before = frames.len();
        for queue in 0..self.queues(link) {
            while frames.len() - before < most
                && let Some(frame) = self.take_from(link, queue)?
            {
                frames.push(frame);
            }
            self.release(link, queue);
        }
        Ok(frames.len() - before)
    }

    /// The next frame of a queue; [`release`](Self::release) some time after.
    #[inline]
    pub(crate) fn take_from(
        &mut self,
        link: LinkId,
        queue: usize,
    ) -> Result<Option<Frame>, TapError> {
        let Some(link) = self.links.get_mut(link.0).and_then(Option::as_mut) else {
            return Err(TapError::NotTapped { link: link.0 });
        };
        let (at, count) = (queue, link.queues.len());
        let Some(queue) = link.queues.get_mut(queue) else {
            return Ok(None);
        };
        if let Some(members) = &mut self.members {
            let received = members.receive(queue, link.owners, at, count);
            received.map_err(|error| ring_error(&link.interface, error))?;
        }
        loop {
            let taken = match &self.members {
                None => queue.ring.take(),
                Some(_) => Ok(queue.inbox.pop_front()),
            };
            let taken = taken.map_err(|error| ring_error(&link.interface, error))?;
            let Some(mut frame) = taken else {
                return Ok(None);
            };
            if self.flow_cache.is_some() {
                queue.note(&frame, self.epoch);
            }
            // One that was let in before the gate shut is behind those that
            // took the bypass, where that leads to the other link.
            if self.busy_at < self.check_until
                && (self.config.bypass == Bypass::Wire || self.members.is_some())
                && frame.meta().is_some_and(|meta| meta as u32 != self.epoch)
                && self.state.bypass_counts().no_meta == 0
            {
                link.counts.stale += 1;
                continue;
            }
            if link.completes && complete(&mut frame) {
                link.counts.checksums_completed += 1;
            }
            link.counts.rx_frames += 1;
            link.counts.rx_bytes += frame.len() as u64;
            return Ok(Some(frame));
        }
    }

    /// Gives the places of what was taken from a queue back.
    #[inline]
    pub(crate) fn release(&mut self, link: LinkId, queue: usize) {
        if self.is_shared() {
            return;
        }
        let link = self.links.get_mut(link.0).and_then(Option::as_mut);
        if let Some(queue) = link.and_then(|link| link.queues.get_mut(queue)) {
            queue.ring.release();
        }
    }

    /// Sends a frame on a link, with the next [`push`](Self::push). Where the
    /// tx ring is full, it is pushed first; where that does not help, the
    /// frame is dropped and counted: `false`. So is one that is longer than the
    /// link's [MTU](Self::mtu) allows.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn give(&mut self, link: LinkId, frame: Frame) -> Result<bool, TapError> {
        self.give_to(link, 0, frame)
    }

    /// As [`give`](Self::give), on a queue (modulo how many there are).
    #[inline]
    pub(crate) fn give_to(
        &mut self,
        link: LinkId,
        queue: usize,
        frame: Frame,
    ) -> Result<bool, TapError> {
        let bytes = frame.len() as u64;
        if self.is_too_long(link, frame.len()) {
            self.count(link, |counts| counts.tx_too_long += 1);
            return Ok(false);
        }
        match self.put(link, queue, frame)? {
            None => {}
            Some(frame) => {
                self.push()?;
                if self.put(link, queue, frame)?.is_some() {
                    self.count(link, |counts| counts.tx_ring_full += 1);
                    return Ok(false);
                }
            }
        }
        self.count(link, |counts| {
            counts.tx_frames += 1;
            counts.tx_bytes += bytes;
        });
        Ok(true)
    }

    #[inline]
    fn put(&mut self, link: LinkId, queue: usize, frame: Frame) -> Result<Option<Frame>, TapError> {
        let Some(link) = self.links.get_mut(link.0).and_then(Option::as_mut) else {
            return Err(TapError::NotTapped { link: link.0 });
        };
        let count = link.queues.len();
        let queue = if queue < count { queue } else { queue % count };
        let queue = &mut link.queues[queue];
        let put = match self.members {
            None => queue.put(frame),
            Some(_) => Ok(queue.enqueue_shared(frame, self.config.ring)),
        };
        put.map_err(|error| ring_error(&link.interface, error))
    }

    /// Whether a frame of so many bytes is one that the link cannot send.
    #[inline]
    fn is_too_long(&self, link: LinkId, bytes: usize) -> bool {
        let link = self.links.get(link.0).and_then(Option::as_ref);
        link.is_some_and(|link| bytes > link.longest)
    }

    #[inline]
    fn count(&mut self, link: LinkId, add: impl FnOnce(&mut LinkCounts)) {
        if let Some(Some(link)) = self.links.get_mut(link.0) {
            add(&mut link.counts);
        }
    }

    /// How many queues a link has; 0 for one that is not tapped.
    pub fn queues(&self, link: LinkId) -> usize {
        let link = self.links.get(link.0).and_then(Option::as_ref);
        link.map_or(0, |link| link.queues.len())
    }

    /// The interface of a link: as it was when it was tapped, but for its MTU and
    /// whether it is running, which are as the last pull has heard.
    pub fn interface(&self, link: LinkId) -> Option<&Interface> {
        let link = self.links.get(link.0)?.as_ref()?;
        Some(&link.interface)
    }

    /// How a link's frames get to the memory, and where in the kernel they
    /// are taken.
    pub fn mode(&self, link: LinkId) -> Option<(CopyMode, weir_link::bpf::Hook)> {
        let mode = self.links.get(link.0)?.as_ref()?.mode;
        Some((mode, self.gate.hook(link.0)))
    }

    /// Whether many frames at once may go out without socket buffers, on links
    /// that take them so: as [`Config::burst`](crate::Config::burst) asks, and
    /// the kernel allows.
    #[inline]
    pub fn uses_tx_burst(&self) -> bool {
        self.burst.is_ok()
    }

    /// Whether those of this link do, at this moment; else why not.
    ///
    /// # Errors
    /// The reason.
    pub fn link_tx_burst(&self, link: LinkId) -> Result<(), NoBurst> {
        match (&self.burst, self.links.get(link.0)) {
            _ if !self.config.tx_burst => Err(NoBurst::NotAsked),
            _ if self.is_shared() => Err(NoBurst::Shared),
            (Err(why), _) => Err(why.clone()),
            (Ok(_), Some(Some(link))) => link.burst.clone(),
            (Ok(_), _) => Err(NoBurst::NotAsked),
        }
    }

    /// The tapped links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        let links = self.links.iter().zip(0..);
        links.filter_map(|(link, number)| link.as_ref().map(|_| LinkId(number)))
    }

    /// What a link has carried.
    pub fn link_counts(&self, link: LinkId) -> LinkCounts {
        let Some(Some(found)) = self.links.get(link.0) else {
            return LinkCounts::default();
        };
        LinkCounts {
            bypassed: self.state.bypassed(link.0 as u32),
            to_host: self.state.to_host(link.0 as u32),
            ..found.counted()
        }
    }

    /// What the tap has cost.
    pub fn counts(&self) -> Counts {
        let trips = self.state.bypass_counts();
        Counts {
            hung: trips.hung,
            died: trips.died,
            ..self.counts
        }
    }

    /// Who has the chunks.
    pub fn census(&self) -> ChunkCounts {
        self.pool.chunk_counts()
    }

    /// Whether frames come to this tap now; else why not.
    ///
    /// # Errors
    /// The reason.
    pub fn is_open(&self) -> Result<(), BypassReason> {
        if self.state.gate().0 {
            Ok(())
        } else {
            Err(self.state.shut_reason())
        }
    }
}
