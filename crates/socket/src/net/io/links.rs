//! [`Links`]: the links of one stack.

use super::direct_read::DirectRead;
use crate::link::{Link, RxSink};
use rustix::event::PollFlags;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use weir_stack::iface::RxMeta;
use weir_stack::{TxSink, TxSinks};

/// All links of one stack, by number.
pub(in crate::net) struct Links(Vec<LinkState>);

/// A link to be given to a stack.
pub(in crate::net) struct LinkSlot {
    pub(in crate::net) link: Box<dyn Link>,
    /// Whether another stack of the host has the link's queue.
    pub(in crate::net) remote: bool,
    /// The flag that shows other stacks, which use this queue, that the link is gone.
    pub(in crate::net) gone_flag: Option<Arc<AtomicBool>>,
    /// Called once, when the link turns out to be gone.
    pub(in crate::net) on_gone: Option<Arc<OnGone>>,
}

/// A callback with the number of a link that is gone, and the reason.
pub(in crate::net) type OnGone = dyn Fn(u8, &io::Error) + Send + Sync;

impl LinkSlot {
    /// A link whose queue belongs to this stack.
    pub(in crate::net) fn own(link: Box<dyn Link>) -> LinkSlot {
        LinkSlot {
            link,
            remote: false,
            gone_flag: None,
            on_gone: None,
        }
    }
}

struct LinkState {
    link: Box<dyn Link>,
    /// The last receive left frames.
    more: bool,
    /// The link was full at the last send.
    was_full: bool,
    /// The device is gone.
    gone: bool,
    /// Another stack of the host has the queue, so this stack waits for nothing.
    remote: bool,
    /// The flag that shows other stacks that the link is gone.
    gone_flag: Option<Arc<AtomicBool>>,
    on_gone: Option<Arc<OnGone>>,
}

impl TxSinks for Links {
    fn sink(&mut self, link: u8) -> &mut dyn TxSink {
        &mut *self.0[usize::from(link)].link
    }
}

impl Links {
    pub(in crate::net) fn new(links: Vec<LinkSlot>) -> Links {
        let one = |held: LinkSlot| LinkState {
            link: held.link,
            more: true,
            was_full: false,
            gone: false,
            remote: held.remote,
            gone_flag: held.gone_flag,
            on_gone: held.on_gone,
        };
        Links(links.into_iter().map(one).collect())
    }

    fn there(&self) -> impl Iterator<Item = &LinkState> {
        self.0.iter().filter(|one| !one.gone)
    }

    /// Whether all links are gone.
    pub(in crate::net) fn are_gone(&self) -> bool {
        self.there().next().is_none()
    }

    /// Whether this link is gone, or never existed.
    pub(in crate::net) fn is_gone(&self, link: u8) -> bool {
        self.0.get(usize::from(link)).is_none_or(|one| one.gone)
    }

    /// Receives a share of frames from each link; returns whether a link turned out to be
    /// gone.
    pub(in crate::net) fn receive(&mut self, take: &mut RxSink<'_>) -> bool {
        self.receive_from_each(|number, link| {
            link.receive(&mut |frame, received| {
                let link = number;
                take(frame, RxMeta { link, ..received });
            })
        })
    }

    /// Receives the frames that the host has sent to itself; returns whether there were any.
    pub(in crate::net) fn receive_looped(&mut self, take: &mut RxSink<'_>) -> bool {
        let mut any = false;
        for (number, one) in (0..).zip(&mut self.0).filter(|(_, one)| !one.gone) {
            any |= one.link.receive_looped(&mut |frame, received| {
                let link = number;
                take(frame, RxMeta { link, ..received });
            });
        }
        any
    }

    /// As [`Links::receive`], for a blocking read.
    pub(in crate::net) fn receive_to(&mut self, reader: &mut DirectRead<'_>) -> bool {
        self.receive_from_each(|number, link| {
            reader.link = number;
            link.receive_to(reader)
        })
    }

    fn receive_from_each(
        &mut self,
        mut receive: impl FnMut(u8, &mut dyn Link) -> io::Result<bool>,
    ) -> bool {
        let mut lost = false;
        for (number, one) in (0..).zip(&mut self.0).filter(|(_, one)| !one.gone) {
            let received = receive(number, &mut *one.link);
            if let (Err(error), Some(on_gone)) = (&received, &one.on_gone) {
                on_gone(number, error);
            }
            one.gone = received.is_err();
            lost |= one.gone;
            one.more = received.unwrap_or(false);
            if let Some(tells) = one.gone_flag.as_ref().filter(|_| one.gone) {
                tells.store(true, SeqCst);
            }
        }
        lost
    }

    /// Marks all links as gone, whatever their devices report.
    pub(in crate::net) fn lose_all(&mut self) {
        for one in &mut self.0 {
            one.gone = true;
            if let Some(tells) = &one.gone_flag {
                tells.store(true, SeqCst);
            }
        }
    }

    /// Leaves the links: see [`Link::leave`].
    pub(in crate::net) fn leave(&mut self) {
        self.lose_all();
        for one in &mut self.0 {
            one.link.leave();
        }
    }

    /// The numbers of the links that are gone.
    pub(in crate::net) fn gone(&self) -> impl Iterator<Item = u8> {
        let numbered = (0..).zip(&self.0);
        numbered
            .filter(|(_, one)| one.gone)
            .map(|(number, _)| number)
    }

    /// Sends the frames that the links have gathered; returns whether a full link takes frames
    /// again or is gone.
    pub(in crate::net) fn flush(&mut self) -> bool {
        let mut freed = false;
        for one in &mut self.0 {
            one.link.flush();
            let is_full = !one.gone && one.link.is_full();
            freed |= one.was_full && !is_full;
            one.was_full = is_full;
        }
        freed
    }

    pub(in crate::net) fn is_any_full(&self) -> bool {
        self.there().any(|one| one.link.is_full())
    }

    /// Prepares waiting for the links; false if frames are already there.
    pub(in crate::net) fn arm(&mut self) -> bool {
        let mut there = self.0.iter_mut().filter(|one| !one.gone);
        there.all(|one| !one.more && one.link.arm())
    }

    /// The events to poll each link for, by number; `None` for a link that is gone.
    pub(in crate::net) fn waits(&self) -> impl Iterator<Item = Option<PollFlags>> {
        self.0
            .iter()
            .map(|one| match (one.gone || one.remote, one.link.is_full()) {
                (true, _) => None,
                (false, true) => Some(PollFlags::IN | PollFlags::OUT),
                (false, false) => Some(PollFlags::IN),
            })
    }

    /// Time until a frame arrives that no descriptor signals.
    pub(in crate::net) fn next_arrival(&self) -> Option<Duration> {
        self.there().filter_map(|one| one.link.next_arrival()).min()
    }
}
