//! The host's addresses, as they change while a router runs.
//!
//! A thread of its own follows them: to give a link another program takes the
//! kernel milliseconds, for which no frame is to wait.

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

/// What the thread tells.
#[derive(Debug)]
pub(crate) enum AddressUpdate {
    /// The router's addresses, for each link.
    Addresses(Vec<Vec<Prefix>>),
    /// The host is left what is for its addresses now; or why only what was
    /// for those before.
    Host(Option<String>),
    /// The kernel tells no more.
    Failed(io::Error),
}

/// Follows addresses until it is dropped.
#[derive(Debug)]
pub(crate) struct Addresses {
    updates: Receiver<AddressUpdate>,
    /// Readable when there are news.
    woken: Arc<OwnedFd>,
    /// Closed, it ends the thread.
    open: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Addresses {
    /// Follows them from what they were: `interfaces` those of the links, in
    /// order, and `host` all of the host's. The monitor was opened before
    /// they were read.
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

    /// What has changed since the last call, without waiting.
    pub(crate) fn all(&self) -> impl Iterator<Item = AddressUpdate> {
        // News that come behind this make it readable again.
        let _ = rustix::io::read(&self.woken, &mut [0; 8]);
        self.updates.try_iter()
    }

    /// What is readable when there are news.
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
    /// The interfaces of the links, by number.
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
        // A count that is full is readable as it is.
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

    /// Takes in what has changed.
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
                // The router will hear that it has gone.
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

/// Has the programs of all links leave the host what is for these addresses.
fn leave(links: &[HostFilterUpdater], host: &[Address], text: &str) -> Result<(), String> {
    let filter = HostFilter::new(host, text).map_err(|error| error.to_string())?;
    links
        .iter()
        .try_for_each(|link| link.set_host_filter(&filter))
        .map_err(|error| error.to_string())
}
