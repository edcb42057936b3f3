//! The calls on frames: take, give and allocate; and queries on links.

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
    /// An empty frame of one chunk; `None` if no chunk is free: then call
    /// [`push`](Self::push), or [`pull`](Self::pull) chunks.
    pub fn alloc(&self) -> Option<Frame> {
        self.pool.alloc()
    }

    /// The next received frame of a link, from any of its queues; `None` if
    /// there is none.
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

    /// As [`take`](Self::take), up to `idle_max` frames at once, which are
    /// appended to `frames`; returns their number.
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

    /// The next frame of a queue; the caller calls [`release`](Self::release)
    /// later.
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
            // A frame admitted before the gate shut is behind frames that took
            // the bypass, if that leads to the other link.
            if self.busy_at < self.check_until
                && (self.config.bypass == Bypass::Wire || self.members.is_some())
                && frame.meta().is_some_and(|meta| meta as u32 != self.epoch)
                && self.page.bypass_counts().no_meta == 0
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

    /// Frees the ring slots of frames taken from a queue.
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

    /// Sends a frame on a link with the next [`push`](Self::push). If the tx ring is full, pushes
    /// first. If there is still no room, or the frame exceeds the link's [MTU](Self::mtu), drops
    /// and counts the frame and returns `false`.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn give(&mut self, link: LinkId, frame: Frame) -> Result<bool, TapError> {
        self.give_to(link, 0, frame)
    }

    /// As [`give`](Self::give), on a queue (modulo the number of queues).
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

    /// Whether a frame of `bytes` bytes exceeds the limit of the link.
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

    /// Number of frames (of a long frame, of its pieces) given to a link that its device has
    /// not taken; 0 if the link is not tapped.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn unsent(&mut self, link: LinkId) -> Result<u32, TapError> {
        let Some(Some(link)) = self.links.get_mut(link.0) else {
            return Ok(0);
        };
        let mut unsent = 0;
        for queue in &mut link.queues {
            let of_queue = queue.ring.unsent();
            unsent += of_queue.map_err(|error| ring_error(&link.interface, error))?;
        }
        Ok(unsent)
    }

    /// Number of queues of a link; 0 if it is not tapped.
    pub fn queues(&self, link: LinkId) -> usize {
        let link = self.links.get(link.0).and_then(Option::as_ref);
        link.map_or(0, |link| link.queues.len())
    }

    /// The interface of a link, as of tapping, except for its MTU and running
    /// state, which are as of the last pull. `None` if it is not tapped.
    pub fn interface(&self, link: LinkId) -> Option<&Interface> {
        let link = self.links.get(link.0)?.as_ref()?;
        Some(&link.interface)
    }

    /// The copy mode of a link, and the kernel hook at which its frames are
    /// taken.
    pub fn mode(&self, link: LinkId) -> Option<(CopyMode, weir_link::bpf::Hook)> {
        let mode = self.links.get(link.0)?.as_ref()?.mode;
        Some((mode, self.gate.hook(link.0)))
    }

    /// Whether bursts without socket buffers may be sent: if
    /// [`Config::tx_burst`](crate::Config::tx_burst) requests them and the kernel supports them.
    #[inline]
    pub fn uses_tx_burst(&self) -> bool {
        self.burst.is_ok()
    }

    /// Whether frames of this link are sent in bursts at present.
    ///
    /// # Errors
    /// The reason why they are not.
    pub fn link_tx_burst(&self, link: LinkId) -> Result<(), NoBurst> {
        match (&self.burst, self.links.get(link.0)) {
            _ if !self.config.tx_burst => Err(NoBurst::NotRequested),
            _ if self.is_shared() => Err(NoBurst::Shared),
            (Err(why), _) => Err(why.clone()),
            (Ok(_), Some(Some(link))) => link.burst.clone(),
            (Ok(_), _) => Err(NoBurst::NotRequested),
        }
    }

    /// The tapped links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        let links = self.links.iter().zip(0..);
        links.filter_map(|(link, number)| link.as_ref().map(|_| LinkId(number)))
    }

    /// The counters of a link.
    pub fn link_counts(&self, link: LinkId) -> LinkCounts {
        let Some(Some(found)) = self.links.get(link.0) else {
            return LinkCounts::default();
        };
        LinkCounts {
            bypassed: self.page.bypassed(link.0 as u32),
            to_host: self.page.to_host(link.0 as u32),
            ..found.counted()
        }
    }

    /// The counters of the tap.
    pub fn counts(&self) -> Counts {
        let trips = self.page.bypass_counts();
        Counts {
            hung: trips.hung,
            died: trips.died,
            ..self.counts
        }
    }

    /// Number of frames that came in and were lost here, by no verdict: for
    /// lack of room, for their length, or because they were stale. Frames that
    /// a killed process had taken are not among them.
    pub fn lost_inside(&self) -> u64 {
        let links = self.links().map(|link| self.link_counts(link));
        let lost = links.map(|counts| {
            counts.rx_full
                + counts.rx_dropped
                + counts.tx_ring_full
                + counts.tx_too_long
                + counts.stale
        });
        // Of the page, which earlier processes counted in, too.
        let held_back = self.page.held_back() - self.held_back_before;
        lost.sum::<u64>() + self.counts.untapped + held_back
    }

    /// How often the gate has shut, as of the last [`pull`](Self::pull) or
    /// [`push`](Self::push): when it changes, frames have taken the bypass.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The numbers of chunks by owner.
    pub fn census(&self) -> ChunkCounts {
        self.pool.chunk_counts()
    }

    /// Whether the gate admits frames to this tap at present.
    ///
    /// # Errors
    /// The reason.
    pub fn is_open(&self) -> Result<(), BypassReason> {
        if self.page.gate().0 {
            Ok(())
        } else {
            Err(self.page.shut_reason())
        }
    }
}
