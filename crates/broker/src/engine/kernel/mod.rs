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
use crate::interface::{Facts, Interfaces, Watch};
use crate::keep::Keep;
use crate::protocol::{ErrorKind, Refusal};
use pins::Pins;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use weir_link::bpf::{self, ObjectKind, PinFolder};

fn system(error: impl Display) -> Refusal {
    Refusal::new(ErrorKind::System, error)
}

/// The interfaces of a network namespace: the one of the thread that made
/// this, which is to use it too.
#[derive(Debug)]
pub struct KernelFabric {
    interfaces: Interfaces,
    watch: Watch,
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
            watch: Watch::open()?,
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
        self.interfaces.by_name(name).map_err(|error| {
            let message = match error.kind() {
                io::ErrorKind::NotFound => format!("there is no interface {name}; see `ip link`"),
                _ => format!("the kernel does not tell of interface {name}: {error}"),
            };
            Refusal::new(ErrorKind::Interface, message)
        })
    }

    fn by_index(&mut self, ifindex: u32) -> Option<Facts> {
        self.interfaces.by_index(ifindex).ok()
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
        Some(self.watch.as_fd())
    }

    fn saw_news(&mut self) {
        let _ = rustix::io::read(&self.news, &mut [0; 8]);
    }

    fn saw_changes(&mut self) {
        self.watch.drain();
    }

    fn namespace(&self) -> Option<u64> {
        Some(self.namespace)
    }
}
