//! The host's addresses, followed while a router runs.
//!
//! A separate thread follows them: replacing a link's program takes the kernel
//! milliseconds, for which no frame should wait.

use crate::router::engine::config::Config;
use crate::router::live::{prefixes, to_host};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use weir_link::net::{Address, AddressMonitor, Interface, Interfaces};
use weir_stack::Prefix;
use weir_tap::{HostFilter, HostFilterUpdater};

/// A message of the thread.
#[derive(Debug)]
pub(crate) enum AddressUpdate {
    /// The router's addresses on each link.
    Addresses(Vec<Vec<Prefix>>),
    /// The host filters now cover its present addresses; or the reason why they
    /// still cover the former ones.
    Host(Option<String>),
    /// The kernel reports no more changes.
    Failed(io::Error),
}

/// The thread that follows addresses; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Addresses {
    updates: Receiver<AddressUpdate>,
    /// An eventfd that is readable when there are messages.
    woken: Arc<OwnedFd>,
    /// The pipe whose closing ends the thread.
    open: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Addresses {
    /// Starts following addresses from the given state: `interfaces` are those
    /// of the links, in order, and `host` all addresses of the host. The caller
    /// opened the watcher before it read them.
    pub(crate) fn follow(
        monitor: AddressMonitor,
        config: &Config,
        interfaces: &[Interface],
        host: Vec<Address>,
        links: Vec<HostFilterUpdater>,
    ) -> io::Result<Addresses> {
        let (tell, news) = channel();
        let (ended, open) = io::pipe()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let woken = Arc::new(eventfd(0, flags)?);
        let thread = Thread {
            woken: Arc::clone(&woken),
            monitor,
            interfaces: Interfaces::open()?,
            indices: interfaces.iter().map(|one| one.index).collect(),
            addresses: own(config, interfaces),
            config: config.clone(),
            host,
            links,
            updates: tell,
        };
        let named = Builder::new().name("weir-addresses".to_owned());
        Ok(Addresses {
            updates: news,
            woken,
            open: Some(open),
            thread: Some(named.spawn(move || thread.run(&ended))?),
        })
    }

    /// The messages since the last call; does not wait.
    pub(crate) fn all(&self) -> impl Iterator<Item = AddressUpdate> {
        // A message sent after this read makes the descriptor readable again.
        let _ = rustix::io::read(&self.woken, &mut [0; 8]);
        self.updates.try_iter()
    }

    /// The descriptor that is readable when there are messages.
    pub(crate) fn fd(&self) -> io::Result<OwnedFd> {
        self.woken.try_clone()
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        self.open = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The router's addresses on each of its links.
fn own(config: &Config, interfaces: &[Interface]) -> Vec<Vec<Prefix>> {
    let links = interfaces.iter().enumerate();
    links
        .map(|(number, interface)| config.addresses(number, &prefixes(interface)))
        .collect()
}

struct Thread {
    monitor: AddressMonitor,
    interfaces: Interfaces,
    config: Config,
    /// The ifindex of each link's interface.
    indices: Vec<u32>,
    addresses: Vec<Vec<Prefix>>,
    host: Vec<Address>,
    links: Vec<HostFilterUpdater>,
    updates: Sender<AddressUpdate>,
    woken: Arc<OwnedFd>,
}

impl Thread {
    fn send_update(&self, news: AddressUpdate) {
        let _ = self.updates.send(news);
        // If the counter is full, the descriptor is readable anyway.
        let _ = rustix::io::write(&self.woken, &1_u64.to_ne_bytes());
    }

    fn run(mut self, ended: &PipeReader) {
        loop {
            if let Err(error) = self.poll() {
                self.send_update(AddressUpdate::Failed(error));
                return;
            }
            let mut fds = [
                PollFd::new(&self.monitor, PollFlags::IN),
                PollFd::new(ended, PollFlags::empty()),
            ];
            let polled = poll(&mut fds, None);
            if polled.is_ok() && !fds[1].revents().is_empty() {
                return;
            }
        }
    }

    /// Reads changes and sends messages for them.
    fn poll(&mut self) -> io::Result<()> {
        if !self.monitor.is_changed()? {
            return Ok(());
        }
        let all = self.interfaces.all()?;
        let host = to_host(&all);
        if let Some(text) = self.config.kernel.host.filter()
            && host != self.host
        {
            let left = leave(&self.links, &host, &text);
            self.send_update(AddressUpdate::Host(left.err()));
            self.host = host;
        }
        let now = self.indices.iter().zip(&self.addresses).enumerate();
        let now = now.map(|(number, (index, before))| {
            let interface = all.iter().find(|one| one.index == *index);
            match interface {
                Some(interface) => self.config.addresses(number, &prefixes(interface)),
                // The tap reports the removal of the interface to the router.
                None => before.clone(),
            }
        });
        let now: Vec<Vec<Prefix>> = now.collect();
        if now != self.addresses {
            self.addresses.clone_from(&now);
            self.send_update(AddressUpdate::Addresses(now));
        }
        Ok(())
    }
}

/// Replaces the host filters of all links by filters for these addresses.
fn leave(links: &[HostFilterUpdater], host: &[Address], text: &str) -> Result<(), String> {
    let filter = HostFilter::new(host, text).map_err(|error| error.to_string())?;
    links
        .iter()
        .try_for_each(|link| link.set_host_filter(&filter))
        .map_err(|error| error.to_string())
}
