//! What a tap has besides its six calls: news of its links, answers that the
//! kernel remembers, and calls that only measurements make.

use crate::error::TapError;
use crate::flow_cache::FlowCache;
use crate::io::queue::TapLink;
use crate::news::LinkEvents;
use crate::tap::{LinkId, Tap};
use std::os::fd::{AsFd, OwnedFd};
use weir_link::net::Interface;

impl Tap {
    /// Has a [`pull`](Self::pull) of a frame end early while this descriptor is
    /// readable, see [`is_woken`](Self::is_woken).
    pub fn wake_on(&mut self, fd: OwnedFd) {
        self.wakes.add(fd);
    }

    /// Whether the last [`pull`](Self::pull) of a frame found a descriptor of
    /// [`wake_on`](Self::wake_on) readable, or heard of a change of a link: at
    /// once while it slept, and within 1 ms while there were frames.
    #[inline]
    pub fn is_woken(&self) -> bool {
        self.wakes.is_woken
    }

    /// When the last [`pull`](Self::pull) or [`push`](Self::push) looked at the
    /// clock (`CLOCK_MONOTONIC`, ns).
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now_ns
    }

    /// The interface of a link, if its MTU has changed or whether it is running,
    /// since this was asked last.
    pub fn take_changed(&mut self, link: LinkId) -> Option<&Interface> {
        let link = self.links.get_mut(link.0)?.as_mut()?;
        let is_changed = std::mem::replace(&mut link.is_changed, false);
        is_changed.then_some(&link.interface)
    }

    /// Bytes of the longest packet that a link can send, without the link-layer
    /// header: its interface's MTU at the last pull, or less where the sockets
    /// cannot send as much. `None` for one that is not tapped.
    pub fn mtu(&self, link: LinkId) -> Option<usize> {
        let link = self.links.get(link.0)?.as_ref()?;
        Some(link.mtu())
    }

    /// Begins to hear what happens to the links of now.
    pub(crate) fn listen(&mut self) -> Result<(), TapError> {
        // The thread of before has ended then.
        self.link_events = None;
        let links = self.links.iter().enumerate();
        let links = links.filter_map(|(number, link)| Some((number, &link.as_ref()?.interface)));
        let news = LinkEvents::begin(links).map_err(unheard)?;
        self.link_events = Some(news);
        self.wakes.poll_soon();
        Ok(())
    }

    /// Looks what there is besides frames.
    #[cold]
    pub(crate) fn poll_control(&mut self, now: u64) -> Result<(), TapError> {
        let news = self.link_events.as_ref().map(AsFd::as_fd);
        if !self.wakes.poll(news, now) {
            return Ok(());
        }
        let (links, state) = (&mut self.links, &self.state);
        let taken = self.link_events.as_mut().map(|news| {
            news.take(|number, facts| {
                let Some(Some(link)) = links.get_mut(number) else {
                    return;
                };
                link.interface.mtu = facts.mtu;
                link.interface.running = facts.running;
                link.is_changed = true;
                link.measure();
                state.set_longest(number as u32, link.longest);
                self.wakes.is_woken = true;
            })
        });
        taken.unwrap_or(Ok(())).map_err(unheard)
    }

    /// Says which frames are settled: those that were taken, once all has
    /// been sent.
    #[inline]
    pub(crate) fn note_drained(&mut self, now: u64) {
        let Some(fast) = self.flow_cache.as_mut().filter(|fast| fast.has_entries()) else {
            return;
        };
        let is_sent = self.links.iter_mut().flatten().all(TapLink::is_sent);
        let mut is_pressed = !is_sent;
        for (link, number) in self.links.iter_mut().zip(0..).filter(|_| is_sent) {
            let queues = link.iter_mut().flat_map(|link| &mut link.queues);
            for (queue, at) in queues.zip(0..) {
                is_pressed |= queue.note_drained(&self.state, (number, at), now);
            }
        }
        fast.set_pressed(is_pressed);
    }

    /// Answers that the kernel remembers, if [`Config::fast`](crate::Config::fast) says so.
    #[inline]
    pub fn flow_cache(&mut self) -> Option<&mut FlowCache> {
        self.flow_cache.as_mut()
    }

    /// The same, to read.
    pub fn flow_cache_stats(&self) -> Option<&FlowCache> {
        self.flow_cache.as_ref()
    }

    /// See [`Config::calls_each`](crate::Config::calls_each).
    pub(crate) fn syscall_per_frame(&self) -> bool {
        self.config.syscall_per_frame
    }

    /// Has the kernel look for frames of a queue, whether that is of use or
    /// not.
    pub(crate) fn call_rx(&mut self, link: LinkId, queue: usize) -> Result<(), TapError> {
        let link = self.links.get(link.0).and_then(Option::as_ref);
        if let Some(queue) = link.and_then(|link| link.queues.get(queue)) {
            queue.kick_rx(&mut self.counts)?;
        }
        Ok(())
    }
}

fn unheard(source: std::io::Error) -> TapError {
    TapError::System {
        what: "hear what happens to links",
        source,
    }
}
