//! Changes of tapped links: their MTU, and whether they carry frames.
//!
//! A thread of the tap follows them by rtnetlink. A resync after the kernel has
//! dropped notifications may take tenths of a second while interfaces are
//! created and removed, for which no frame should wait.

use crate::error::TapError;
use crate::tap::{LinkId, Tap};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use weir_link::net::{Event, Interface, InterfaceMonitor};

/// The state of a link in the kernel's last notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinkState {
    /// The MTU: bytes of the longest packet, without the link-layer header.
    pub(crate) mtu: u32,
    /// Administratively up, with carrier.
    pub(crate) running: bool,
    /// Number of changes of `running`, modulo 2^31: a link that was down for a
    /// moment has lost the kernel's routes.
    changes: u32,
}

impl LinkState {
    fn new(interface: &Interface) -> LinkState {
        LinkState {
            mtu: interface.mtu,
            running: interface.running,
            changes: 0,
        }
    }

    fn after_event(self, event: &Event) -> LinkState {
        let next = match event {
            Event::MtuChanged { to, .. } => LinkState { mtu: *to, ..self },
            Event::Running { .. } => LinkState {
                running: true,
                ..self
            },
            Event::NotRunning { .. } | Event::Down { .. } => LinkState {
                running: false,
                ..self
            },
            _ => return self,
        };
        LinkState {
            changes: self.changes.wrapping_add(1) & CHANGES,
            ..next
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.changes) << 33 | u64::from(self.running) << 32 | u64::from(self.mtu)
    }

    fn unpack(word: u64) -> LinkState {
        LinkState {
            mtu: word as u32,
            running: word >> 32 & 1 != 0,
            changes: (word >> 33) as u32,
        }
    }
}

/// Bits of [`LinkState::changes`].
const CHANGES: u32 = u32::MAX >> 1;

/// The error number reported for a failure without one.
const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// A link that the thread follows.
#[derive(Debug)]
struct MonitoredLink {
    ifindex: u32,
    /// The link's number in the tap.
    number: usize,
    /// The packed [`LinkState`].
    state: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    links: Vec<MonitoredLink>,
    /// An eventfd that is readable when a state has changed.
    woken: OwnedFd,
    /// The error number with which the thread has ended; 0 while it runs.
    failed: AtomicI32,
}

/// The events of some links; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct LinkEvents {
    shared: Arc<Shared>,
    /// The states taken last, for each link.
    last_seen: Vec<LinkState>,
    /// A byte written to this pipe ends the thread. Closing the pipe would not
    /// while a forked process has a copy.
    end: PipeWriter,
    thread: Option<JoinHandle<()>>,
}

impl LinkEvents {
    /// Starts to follow links of the calling thread's network namespace, given
    /// by their numbers and their interfaces as of tapping.
    pub(crate) fn begin<'a>(
        links: impl Iterator<Item = (usize, &'a Interface)>,
    ) -> io::Result<LinkEvents> {
        let monitor = InterfaceMonitor::open()?;
        let seen: Vec<(usize, u32, LinkState)> = links
            .map(|(number, interface)| (number, interface.index, LinkState::new(interface)))
            .collect();
        let states = seen.iter().map(|&(number, ifindex, before)| {
            let now = monitor.known().find(|one| one.index == ifindex);
            let facts = now.map_or(before, LinkState::new);
            MonitoredLink {
                ifindex,
                number,
                state: AtomicU64::new(facts.pack()),
            }
        });
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            links: states.collect(),
            // Initially readable: some links may have changed before.
            woken: eventfd(1, flags)?,
            failed: AtomicI32::new(0),
        });
        let (ended, end) = io::pipe()?;
        let thread = Thread {
            monitor,
            shared: Arc::clone(&shared),
        };
        let named = Builder::new().name("weir-news".to_owned());
        Ok(LinkEvents {
            shared,
            last_seen: seen.into_iter().map(|(.., facts)| facts).collect(),
            end,
            thread: Some(named.spawn(move || thread.run(&ended))?),
        })
    }

    /// Calls `change` with the number and state of each link that has changed
    /// since the last call.
    ///
    /// # Errors
    /// If the kernel no longer reports changes.
    pub(crate) fn take(&mut self, mut change: impl FnMut(usize, LinkState)) -> io::Result<()> {
        let mut count = [0; 8];
        // An empty counter is not an error.
        let _ = rustix::io::read(&self.shared.woken, &mut count);
        for (link, seen) in self.shared.links.iter().zip(&mut self.last_seen) {
            let facts = LinkState::unpack(link.state.load(Ordering::Acquire));
            if *seen != facts {
                *seen = facts;
                change(link.number, facts);
            }
        }
        match self.shared.failed.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl AsFd for LinkEvents {
    /// The descriptor that is readable when there are changes to
    /// [take](LinkEvents::take).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.woken.as_fd()
    }
}

impl Drop for LinkEvents {
    fn drop(&mut self) {
        // The pipe is empty, so the write does not block.
        let _ = self.end.write(&[0]);
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, there is nothing left to do.
            let _ = thread.join();
        }
    }
}

struct Thread {
    monitor: InterfaceMonitor,
    shared: Arc<Shared>,
}

impl Thread {
    fn run(mut self, ended: &PipeReader) {
        loop {
            match self.read_events() {
                Ok(false) => {}
                Ok(true) => self.wake(),
                Err(error) => {
                    let code = error.raw_os_error().unwrap_or(EIO);
                    self.shared.failed.store(code, Ordering::Release);
                    return self.wake();
                }
            }
            let mut fds = [
                PollFd::new(&self.monitor, PollFlags::IN),
                PollFd::new(ended, PollFlags::IN),
            ];
            let polled = poll(&mut fds, None);
            if polled.is_ok() && !fds[1].revents().is_empty() {
                return;
            }
        }
    }

    /// Records the kernel's notifications; returns whether any link has
    /// changed.
    fn read_events(&mut self) -> io::Result<bool> {
        let mut is_changed = false;
        while let Some(event) = self.monitor.next_event(Some(Duration::ZERO))? {
            let links = self.shared.links.iter();
            for link in links.filter(|link| link.ifindex == event.index()) {
                let before = link.state.load(Ordering::Relaxed);
                let now = LinkState::unpack(before).after_event(&event).pack();
                link.state.store(now, Ordering::Release);
                is_changed |= now != before;
            }
        }
        Ok(is_changed)
    }

    fn wake(&self) {
        // If the counter is full, the descriptor is readable anyway.
        let _ = rustix::io::write(&self.shared.woken, &1_u64.to_ne_bytes());
    }
}

impl Tap {
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
        let (links, page) = (&mut self.links, &self.page);
        let taken = self.link_events.as_mut().map(|news| {
            news.take(|number, facts| {
                let Some(Some(link)) = links.get_mut(number) else {
                    return;
                };
                link.interface.mtu = facts.mtu;
                link.interface.running = facts.running;
                link.is_changed = true;
                link.measure();
                page.set_longest(number as u32, link.longest);
                self.wakes.is_woken = true;
            })
        });
        taken.unwrap_or(Ok(())).map_err(unheard)
    }

    /// The interface of a link, if its MTU has changed or whether it is running,
    /// since this was asked last.
    pub fn take_changed(&mut self, link: LinkId) -> Option<&Interface> {
        let link = self.links.get_mut(link.0)?.as_mut()?;
        let is_changed = std::mem::replace(&mut link.is_changed, false);
        is_changed.then_some(&link.interface)
    }
}

fn unheard(source: std::io::Error) -> TapError {
    TapError::System {
        what: "hear what happens to links",
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(mtu: u32, running: bool) -> LinkState {
        LinkState {
            mtu,
            running,
            changes: 0,
        }
    }

    #[test]
    fn facts_fit_into_a_word() {
        for mtu in [68, 1500, 65_536, u32::MAX] {
            for running in [false, true] {
                for changes in [0, 1, CHANGES] {
                    let facts = LinkState {
                        changes,
                        ..facts(mtu, running)
                    };
                    assert_eq!(LinkState::unpack(facts.pack()), facts);
                }
            }
        }
    }

    #[test]
    fn a_link_that_was_down_for_a_moment_has_changed() {
        let before = facts(1500, true);
        let index = 3;
        let after = before
            .after_event(&Event::Down { index })
            .after_event(&Event::Running { index });
        assert!(after.running);
        assert_ne!(after, before);
        assert_eq!(before.after_event(&Event::Up { index }), before);
        let last = LinkState {
            changes: CHANGES,
            ..before
        };
        assert_eq!(last.after_event(&Event::Down { index }).changes, 0);
    }
}
