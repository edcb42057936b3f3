//! Interfaces in the kernel: a plan for each, run by a program behind a
//! dispatcher.
//!
//! ```text
//!  Engine ─► KernelDivider ── plan ─► writes into maps, programs into slots
//!                 │  ▲
//!                 ▼  │ news (an eventfd)
//!              worker: rings in and out of the map of rings,
//!                      which waits for the kernel
//! ```
//!
//! What waits for the kernel's grace period is done on a thread of its own;
//! rings of the sizes in use are set aside ahead of need.

mod divider;
mod pins;
mod worker;

pub use divider::KernelDivider;
pub(crate) use pins::sweep;

use super::Fabric;
use crate::interface::Facts;
use crate::keep::Keep;
use crate::protocol::{ErrorKind, Refusal};
use pins::Pins;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;
use weir_link::bpf::{self, ObjectKind, PinFolder};
use weir_link::net::{InterfaceError, Interfaces, Watcher};

fn system(error: impl Display) -> Refusal {
    Refusal::new(ErrorKind::System, error)
}

/// The interfaces of a network namespace: the one of the thread that made
/// this, which is to use it too.
#[derive(Debug)]
pub struct KernelFabric {
    interfaces: Interfaces,
    watcher: Watcher,
    news: Arc<OwnedFd>,
    namespace: u64,
    pins: Option<Arc<PinFolder>>,
}

impl KernelFabric {
    /// Those of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn open() -> io::Result<KernelFabric> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(KernelFabric {
            interfaces: Interfaces::open()?,
            watcher: Watcher::open()?,
            news: Arc::new(eventfd(0, flags)?),
            namespace: namespace()?,
            pins: None,
        })
    }

    /// Pins what divides, so that it outlives this process.
    #[must_use]
    pub fn pinned(self, keep: &Keep) -> KernelFabric {
        let pins = Some(Arc::clone(keep.pins()));
        KernelFabric { pins, ..self }
    }

    fn pins(&self, facts: &Facts) -> Result<Option<Pins>, Refusal> {
        let pins = self.pins.as_ref();
        let pins = pins.map(|root| Pins::of(root, self.namespace, facts.ifindex));
        pins.transpose().map_err(system)
    }
}

/// The calling thread's network namespace, by its inode.
///
/// # Errors
/// Where `/proc` is not mounted.
pub fn namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.ino())
}

impl Fabric for KernelFabric {
    type Divider = KernelDivider;

    fn by_name(&mut self, name: &str) -> Result<Facts, Refusal> {
        let refuse = |message: String| Refusal::new(ErrorKind::Interface, message);
        let found = self.interfaces.named(name).map_err(|error| match error {
            // Which others there are is not everybody's to know.
            InterfaceError::Missing { .. } => {
                refuse(format!("there is no interface {name}; see `ip link`"))
            }
            error => refuse(error.to_string()),
        });
        Facts::try_from(found?).map_err(|error| refuse(error.to_string()))
    }

    fn by_index(&mut self, ifindex: u32) -> Option<Facts> {
        Facts::try_from(self.interfaces.numbered(ifindex).ok()?).ok()
    }

    fn divide(&mut self, facts: &Facts) -> Result<KernelDivider, Refusal> {
        let pins = self.pins(facts)?;
        KernelDivider::new(facts, self.namespace, Arc::clone(&self.news), pins)
    }

    fn adopt(&mut self, facts: &Facts) -> Result<Option<KernelDivider>, Refusal> {
        match self.pins(facts)? {
            Some(pins) => KernelDivider::adopt(facts, self.namespace, Arc::clone(&self.news), pins),
            None => Ok(None),
        }
    }

    fn sweep(&mut self, kept: &[u32]) -> Result<(), Refusal> {
        let Some(pins) = &self.pins else {
            return Ok(());
        };
        let kept = kept.iter().map(|ifindex| (self.namespace, *ifindex));
        pins::sweep(pins, &kept.collect::<Vec<_>>()).map_err(system)
    }

    fn has_ring(&self, ring: u32) -> bool {
        bpf::open(ObjectKind::Map, ring, true).is_ok()
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        Some(self.news.as_fd())
    }

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watcher.as_fd())
    }

    fn saw_news(&mut self) {
        let _ = rustix::io::read(&self.news, &mut [0; 8]);
    }

    fn saw_changes(&mut self) {
        // The interfaces in use are looked at again, whatever it was.
        while let Ok(Some(_)) = self.watcher.next_event(Some(Duration::ZERO)) {}
    }

    fn namespace(&self) -> Option<u64> {
        Some(self.namespace)
    }
}
