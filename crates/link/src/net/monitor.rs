//! Monitors of interfaces and addresses.

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

/// The error by which the kernel reports that it dropped notifications.
const OVERRUN: i32 = libc::ENOBUFS;

/// A change of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A new interface.
    Added {
        /// Its number.
        index: u32,
        /// Its name.
        name: String,
    },
    /// The interface is gone, with all attachments.
    Removed {
        /// Its number.
        index: u32,
        /// Its last name.
        name: String,
    },
    /// The interface was renamed.
    Renamed {
        /// Its number.
        index: u32,
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// Administratively up.
    Up {
        /// Its number.
        index: u32,
    },
    /// Administratively down: no frame is sent or received.
    Down {
        /// Its number.
        index: u32,
    },
    /// The interface has a carrier.
    Running {
        /// Its number.
        index: u32,
    },
    /// The interface is up but has no carrier.
    NotRunning {
        /// Its number.
        index: u32,
    },
    /// The MTU changed.
    MtuChanged {
        /// Its number.
        index: u32,
        /// The old MTU, in bytes.
        from: u32,
        /// The new MTU, in bytes.
        to: u32,
    },
    /// The link-layer address changed.
    AddressChanged {
        /// Its number.
        index: u32,
        /// The new address.
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

/// Reports changes of the interfaces of a network namespace, in order.
///
/// An event describes the difference to the previously reported state, so two
/// changes in quick succession may be reported as one. If the kernel dropped
/// notifications, the monitor queries all interfaces and reports the
/// differences.
#[derive(Debug)]
pub struct InterfaceMonitor {
    notifications: Netlink,
    interfaces: Interfaces,
    known: BTreeMap<u32, Interface>,
    events: VecDeque<Event>,
}

impl InterfaceMonitor {
    /// Opens a monitor of the calling thread's namespace.
    ///
    /// # Errors
    /// If the kernel's answer cannot be read.
    pub fn open() -> io::Result<InterfaceMonitor> {
        // Subscribe before the query, so that no change is missed.
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

    /// The interfaces as of the events reported so far, without network
    /// addresses and offloads.
    pub fn known(&self) -> impl Iterator<Item = &Interface> {
        self.known.values()
    }

    /// The next event; waits at most `time_max`, or without a limit. `None`
    /// after that time or after a signal.
    ///
    /// # Errors
    /// If the kernel's answer cannot be read.
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

    /// Reads the pending notifications without waiting.
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
                    // Notifications still in the queue are older than the
                    // dropped ones, and than the following query.
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
            // A port that leaves its bridge is reported by the same message
            // with another family; the interface still exists.
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
        // Some notifications lack most attributes.
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
    /// Readable when there may be events; call [`next_event`](Self::next_event)
    /// with a time of zero until it returns `None`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}

/// Reports that network addresses of a network namespace changed; query
/// [`Interfaces`] for the addresses.
#[derive(Debug)]
pub struct AddressMonitor(Netlink);

impl AddressMonitor {
    /// Opens a monitor of the calling thread's namespace.
    ///
    /// # Errors
    /// If the process has no free file descriptors.
    pub fn open() -> io::Result<AddressMonitor> {
        Netlink::listening(ADDRESSES).map(AddressMonitor)
    }

    /// Whether an address may have changed since the last call, or since the
    /// monitor was opened.
    ///
    /// # Errors
    /// If the kernel's answer cannot be read.
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
