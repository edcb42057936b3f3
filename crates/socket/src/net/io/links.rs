//! The links of a net.

use super::direct_read::DirectRead;
use crate::link::{Link, RxSink};
use rustix::event::PollFlags;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use weir_stack::iface::RxMeta;
use weir_stack::{TxSink, TxSinks};

/// See the module.
pub(in crate::net) struct Links(Vec<LinkState>);

/// A link as it is given to a stack.
pub(in crate::net) struct LinkSlot {
    pub(in crate::net) link: Box<dyn Link>,
    /// Another stack of the host holds it.
    pub(in crate::net) remote: bool,
    /// What tells those of whom this stack holds it that it is gone.
    pub(in crate::net) gone_flag: Option<Arc<AtomicBool>>,
}

impl LinkSlot {
    /// A link of this stack's own.
    pub(in crate::net) fn own(link: Box<dyn Link>) -> LinkSlot {
        LinkSlot {
            link,
            remote: false,
            gone_flag: None,
        }
    }
}

struct LinkState {
    link: Box<dyn Link>,
    /// There may be more frames than were received.
    more: bool,
    /// It took no more frames when they were sent last.
    was_full: bool,
    /// The device is gone.
    gone: bool,
    /// Another stack of the host holds it: nothing is waited for.
    remote: bool,
    /// Tells others that it is gone.
    gone_flag: Option<Arc<AtomicBool>>,
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
        };
        Links(links.into_iter().map(one).collect())
    }

    fn there(&self) -> impl Iterator<Item = &LinkState> {
        self.0.iter().filter(|one| !one.gone)
    }

    /// Whether all of them are gone.
    pub(in crate::net) fn are_gone(&self) -> bool {
        self.there().next().is_none()
    }

    /// Whether this one is gone, or never was.
    pub(in crate::net) fn is_gone(&self, link: u8) -> bool {
        self.0.get(usize::from(link)).is_none_or(|one| one.gone)
    }

    /// Takes frames that have come, from each its share; whether one of them
    /// turned out to be gone.
    pub(in crate::net) fn receive(&mut self, take: &mut RxSink<'_>) -> bool {
        self.receive_from_each(|number, link| {
            link.receive(&mut |frame, received| {
                let link = number;
                take(frame, RxMeta { link, ..received });
            })
        })
    }

    /// As [`Links::receive`], for a read that waits.
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
            one.gone = received.is_err();
            lost |= one.gone;
            one.more = received.unwrap_or(false);
            if let Some(tells) = one.gone_flag.as_ref().filter(|_| one.gone) {
                tells.store(true, SeqCst);
            }
        }
        lost
    }

    /// All of them are, whatever the devices say.
    pub(in crate::net) fn lose_all(&mut self) {
        for one in &mut self.0 {
            one.gone = true;
            if let Some(tells) = &one.gone_flag {
                tells.store(true, SeqCst);
            }
        }
    }

    /// Those that are gone.
    pub(in crate::net) fn gone(&self) -> impl Iterator<Item = u8> {
        let numbered = (0..).zip(&self.0);
        numbered
            .filter(|(_, one)| one.gone)
            .map(|(number, _)| number)
    }

    /// What the links have gathered goes out; whether one that was full takes
    /// frames again, or is gone.
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

    /// Before they are waited for: false if there are frames already.
    pub(in crate::net) fn arm(&mut self) -> bool {
        let mut there = self.0.iter_mut().filter(|one| !one.gone);
        there.all(|one| !one.more && one.link.arm())
    }

    /// What each is waited for, by number; nothing if it is gone.
    pub(in crate::net) fn waits(&self) -> impl Iterator<Item = Option<PollFlags>> {
        self.0
            .iter()
            .map(|one| match (one.gone || one.remote, one.link.is_full()) {
                (true, _) => None,
                (false, true) => Some(PollFlags::IN | PollFlags::OUT),
                (false, false) => Some(PollFlags::IN),
            })
    }

    /// How long until a frame comes that no descriptor tells of.
    pub(in crate::net) fn next_arrival(&self) -> Option<Duration> {
        self.there().filter_map(|one| one.link.next_arrival()).min()
    }
}
