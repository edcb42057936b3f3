//! What happens to interfaces.

use super::interface::{Interface, Interfaces};
use super::netlink::Netlink;
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;
use rustix::time::Timespec;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// `RTMGRP_LINK`.
const LINKS: u32 = 1;

/// `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR`.
const ADDRESSES: u32 = 0x10 | 0x100;

/// What says that the kernel had to drop news.
const OVERRUN: i32 = libc::ENOBUFS;

/// Something that happened to an interface, by its number.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// There is a new one.
    Added {
        /// Its number.
        index: u32,
        /// Its name.
        name: String,
    },
    /// It is gone, and all that was attached to it.
    Removed {
        /// Its number.
        index: u32,
        /// The name it had.
        name: String,
    },
    /// It has another name.
    Renamed {
        /// Its number.
        index: u32,
        /// The name it had.
        from: String,
        /// The name it has.
        to: String,
    },
    /// Its owner set it up.
    Up {
        /// Its number.
        index: u32,
    },
    /// Its owner set it down: no frame comes or goes.
    Down {
        /// Its number.
        index: u32,
    },
    /// Frames pass now.
    Running {
        /// Its number.
        index: u32,
    },
    /// It is up, but nothing is at the other end.
    NotRunning {
        /// Its number.
        index: u32,
    },
    /// Packets may be of another length.
    MtuChanged {
        /// Its number.
        index: u32,
        /// The length they could have, in bytes.
        from: u32,
        /// The length they can have.
        to: u32,
    },
    /// It has another link-layer address.
    AddressChanged {
        /// Its number.
        index: u32,
        /// The address it has.
        to: Vec<u8>,
    },
}

impl Event {
    /// The interface's number.
    pub fn index(&self) -> u32 {
        match self {
            Event::Added { index, .. }
            | Event::Removed { index, .. }
            | Event::Renamed { index, .. }
            | Event::Up { index }
            | Event::Down { index }
            | Event::Running { index }
            | Event::NotRunning { index }
            | Event::MtuChanged { index, .. }
            | Event::AddressChanged { index, .. } => *index,
        }
    }
}

/// Tells what happens to the interfaces of a network namespace, in order.
///
/// Events are what has changed since the last one: of two changes in quick
/// succession it may tell the sum only. When the kernel had to drop news, the
/// monitor asks for everything again and tells the difference.
#[derive(Debug)]
pub struct InterfaceMonitor {
    notifications: Netlink,
    interfaces: Interfaces,
    known: BTreeMap<u32, Interface>,
    events: VecDeque<Event>,
}

impl InterfaceMonitor {
    /// Watches the namespace that the calling thread is in, from now on.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn open() -> io::Result<InterfaceMonitor> {
        // Listen first, then look: nothing falls between.
        let mut monitor = InterfaceMonitor {
            notifications: Netlink::listening(LINKS)?,
            interfaces: Interfaces::open()?,
            known: BTreeMap::new(),
            events: VecDeque::new(),
        };
        monitor.resync()?;
        monitor.events.clear();
        Ok(monitor)
    }

    /// The interfaces as of the events told so far, without network addresses
    /// and features.
    pub fn known(&self) -> impl Iterator<Item = &Interface> {
        self.known.values()
    }

    /// The next event; waits for it for `time_max` at most, or for good.
    /// `None` when the time is over or a signal came.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn next_event(&mut self, time_max: Option<Duration>) -> io::Result<Option<Event>> {
        let deadline = time_max.and_then(|time| std::time::Instant::now().checked_add(time));
        loop {
            self.read_events()?;
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let left = deadline.map(|at| at.saturating_duration_since(std::time::Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.notifications, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads what the kernel has told, without waiting.
    fn read_events(&mut self) -> io::Result<()> {
        loop {
            match self.notifications.receive(RecvFlags::DONTWAIT) {
                Ok(messages) => {
                    for message in messages {
                        if let NetlinkPayload::InnerMessage(news) = message.payload {
                            self.handle_message(news);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.raw_os_error() == Some(OVERRUN) => {
                    // What was not dropped is older than what was, and than
                    // what we see when we look.
                    while self.notifications.receive(RecvFlags::DONTWAIT).is_ok() {}
                    self.resync()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn handle_message(&mut self, message: RouteNetlinkMessage) {
        match message {
            RouteNetlinkMessage::NewLink(message) => self.learn(Interface::read(&message)),
            // A port that leaves its bridge is told in the same words, by
            // another family; it has not gone.
            RouteNetlinkMessage::DelLink(message)
                if u8::from(message.header.interface_family) == 0 =>
            {
                self.forget(message.header.index);
            }
            _ => {}
        }
    }

    fn resync(&mut self) -> io::Result<()> {
        let there = self.interfaces.links()?;
        let gone = self
            .known
            .keys()
            .filter(|index| !there.iter().any(|i| i.index == **index));
        for index in gone.copied().collect::<Vec<u32>>() {
            self.forget(index);
        }
        there
            .into_iter()
            .for_each(|interface| self.learn(interface));
        Ok(())
    }

    fn forget(&mut self, index: u32) {
        if let Some(interface) = self.known.remove(&index) {
            let name = interface.name;
            self.events.push_back(Event::Removed { index, name });
        }
    }

    fn learn(&mut self, new: Interface) {
        let index = new.index;
        // Some news leave most of it out.
        if new.name.is_empty() {
            return;
        }
        let events = &mut self.events;
        match self.known.get(&index) {
            None => events.push_back(Event::Added {
                index,
                name: new.name.clone(),
            }),
            Some(old) => events.extend(differences(old, &new)),
        }
        self.known.insert(index, new);
    }
}

fn differences(old: &Interface, new: &Interface) -> Vec<Event> {
    let index = new.index;
    let mut events = Vec::new();
    if old.name != new.name {
        events.push(Event::Renamed {
            index,
            from: old.name.clone(),
            to: new.name.clone(),
        });
    }
    if old.mtu != new.mtu {
        events.push(Event::MtuChanged {
            index,
            from: old.mtu,
            to: new.mtu,
        });
    }
    if old.address != new.address {
        let to = new.address.clone();
        events.push(Event::AddressChanged { index, to });
    }
    match (old.up, new.up) {
        (false, true) => events.push(Event::Up { index }),
        (true, false) => events.push(Event::Down { index }),
        _ => {}
    }
    match (old.running, new.running) {
        (false, true) => events.push(Event::Running { index }),
        (true, false) if new.up => events.push(Event::NotRunning { index }),
        _ => {}
    }
    events
}

impl AsFd for InterfaceMonitor {
    /// Readable when there may be something to tell; call
    /// [`next_event`](Self::next_event) with no time until it says `None`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}

/// Tells that network addresses of a network namespace have changed; which
/// there are, [`Interfaces`] says.
#[derive(Debug)]
pub struct AddressMonitor(Netlink);

impl AddressMonitor {
    /// Watches the namespace that the calling thread is in, from now on.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn open() -> io::Result<AddressMonitor> {
        Netlink::listening(ADDRESSES).map(AddressMonitor)
    }

    /// Whether one may have changed since this was asked last, at first since
    /// it was opened.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn is_changed(&mut self) -> io::Result<bool> {
        let mut is_changed = false;
        loop {
            match self.0.receive(RecvFlags::DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(is_changed),
                Err(error) if error.raw_os_error() != Some(OVERRUN) => return Err(error),
                Ok(_) | Err(_) => is_changed = true,
            }
        }
    }
}

impl AsFd for AddressMonitor {
    /// Readable when an address has changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
