//! Further calls of a tap: changes of its links, the flow cache, and the system
//! calls that only measurements make.

use crate::error::TapError;
use crate::flow_cache::FlowCache;
use crate::io::queue::TapLink;
use crate::news::LinkEvents;
use crate::tap::{LinkId, Tap};
use std::os::fd::{AsFd, OwnedFd};
use weir_link::net::Interface;

impl Tap {
    /// Ends a [`pull`](Self::pull) of a frame early while this descriptor is
    /// readable, see [`is_woken`](Self::is_woken).
    pub fn wake_on(&mut self, fd: OwnedFd) {
        self.wakes.add(fd);
    }

    /// Whether the last [`pull`](Self::pull) of a frame found a descriptor of
    /// [`wake_on`](Self::wake_on) readable, or a change of a link: at once
    /// while it slept, and within 1 ms while there were frames.
    #[inline]
    pub fn is_woken(&self) -> bool {
        self.wakes.is_woken
    }

    /// The time that the last [`pull`](Self::pull) or [`push`](Self::push) read
    /// (`CLOCK_MONOTONIC`, ns).
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now_ns
    }

    /// The interface of a link, if its MTU or running state has changed since
    /// the last call, else `None`.
    pub fn take_changed(&mut self, link: LinkId) -> Option<&Interface> {
        let link = self.links.get_mut(link.0)?.as_mut()?;
        let is_changed = std::mem::replace(&mut link.is_changed, false);
        is_changed.then_some(&link.interface)
    }

    /// The MTU of a link: bytes of the longest packet that it can send, without
    /// the link-layer header. That is its interface's MTU at the last pull, or
    /// less if the sockets cannot send as much. `None` if the link is not
    /// tapped.
    pub fn mtu(&self, link: LinkId) -> Option<usize> {
        let link = self.links.get(link.0)?.as_ref()?;
        Some(link.mtu())
    }

    /// Starts to follow events of the present links.
    pub(crate) fn listen(&mut self) -> Result<(), TapError> {
        // The former thread has ended then.
        self.link_events = None;
        let links = self.links.iter().enumerate();
        let links = links.filter_map(|(number, link)| Some((number, &link.as_ref()?.interface)));
        let news = LinkEvents::begin(links).map_err(unheard)?;
        self.link_events = Some(news);
        self.wakes.poll_soon();
        Ok(())
    }

    /// Checks for events other than frames.
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

    /// Publishes which frames have drained: those that were taken, once all
    /// frames have been sent.
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

    /// The flow cache; `None` unless
    /// [`Config::flow_cache`](crate::Config::flow_cache) is set.
    #[inline]
    pub fn flow_cache(&mut self) -> Option<&mut FlowCache> {
        self.flow_cache.as_mut()
    }

    /// The flow cache, for reading.
    pub fn flow_cache_stats(&self) -> Option<&FlowCache> {
        self.flow_cache.as_ref()
    }

    /// The setting
    /// [`Config::syscall_per_frame`](crate::Config::syscall_per_frame).
    pub(crate) fn syscall_per_frame(&self) -> bool {
        self.config.syscall_per_frame
    }

    /// Makes a receive system call on a queue, whether it is needed or not.
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
