//! The engine's kernel backend: a plan for each interface, run by a program
//! behind a dispatcher.
//!
//! ```text
//!  Engine ─► KernelDivider ── plan ─► writes into maps, programs into slots
//!                 │  ▲
//!                 ▼  │ events (an eventfd)
//!              worker: rings in and out of the map of rings,
//!                      which waits for the kernel
//! ```
//!
//! Operations that wait for the kernel's grace period run on a separate thread;
//! spare rings of the sizes in use are made in advance.

mod attaching;
mod demux;
mod egress_pool;
mod pins;
mod worker;

pub use demux::KernelDemux;
pub use pins::SweepError;
pub(crate) use pins::{pinned_interfaces, sweep};

use super::{Backend, MadePath};
use crate::interface::InterfaceInfo;
use crate::protocol::{Attach, ErrorKind, Refusal};
use crate::runtime_dir::RuntimeDir;
use egress_pool::EgressPool;
use pins::Pins;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;
use weir_link::bpf::PinFolder;
use weir_link::live::Privileged;
use weir_link::live::{EgressCounts, EgressRules, Sender};
use weir_link::net::{Event, InterfaceError, InterfaceMonitor, Interfaces};

fn system(error: impl Display) -> Refusal {
    Refusal::new(ErrorKind::System, error)
}

/// The interfaces of the network namespace of the thread that made this
/// backend. Only that thread may use it.
#[derive(Debug)]
pub struct KernelBackend {
    interfaces: Interfaces,
    monitor: InterfaceMonitor,
    wake_fd: Arc<OwnedFd>,
    namespace: u64,
    pins: Option<Arc<PinFolder>>,
    privileged: Arc<Privileged>,
    paths: Option<EgressPool>,
    refused_paths: Vec<(u32, Refusal)>,
}

impl KernelBackend {
    /// Opens the interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn open() -> io::Result<KernelBackend> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(KernelBackend {
            interfaces: Interfaces::open()?,
            monitor: InterfaceMonitor::open()?,
            wake_fd: Arc::new(eventfd(0, flags)?),
            namespace: namespace()?,
            pins: None,
            privileged: Arc::default(),
            paths: None,
            refused_paths: Vec::new(),
        })
    }

    /// Pins the programs and maps, so that they outlive this process.
    #[must_use]
    pub fn pinned(self, keep: &RuntimeDir) -> KernelBackend {
        let pins = Some(Arc::clone(keep.pins()));
        KernelBackend { pins, ..self }
    }

    /// Has this done what needs `CAP_SYS_ADMIN`, instead of the process itself.
    #[must_use]
    pub fn with_privileged(self, privileged: Privileged) -> KernelBackend {
        let privileged = Arc::new(privileged);
        KernelBackend { privileged, ..self }
    }

    /// The egress paths of this namespace. They are pinned, so that no frames
    /// bypass the check when this process ends.
    fn paths(&mut self) -> Result<&mut EgressPool, Refusal> {
        let Some(root) = &self.pins else {
            let message = "this broker keeps nothing, and so nobody but the superuser can send: start it with --keep";
            return Err(Refusal::new(ErrorKind::System, message));
        };
        if self.paths.is_none() {
            let (wake, privileged) = (&self.wake_fd, &self.privileged);
            self.paths = Some(EgressPool::of(root, self.namespace, wake, privileged)?);
        }
        self.paths.as_mut().ok_or_else(|| system("no paths"))
    }

    fn check_namespace(&self) -> Result<(), Refusal> {
        if namespace().map_err(system)? == self.namespace {
            return Ok(());
        }
        Err(system(
            "the thread has left the interface's network namespace",
        ))
    }

    fn pins(&self, facts: &InterfaceInfo) -> Result<Option<Pins>, Refusal> {
        let pins = self.pins.as_ref();
        let pins = pins.map(|root| Pins::of(root, self.namespace, facts.ifindex));
        pins.transpose().map_err(system)
    }
}

/// A random number from the kernel, which no user can predict.
fn random() -> u128 {
    let mut bytes = [0; 16];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u128::from_ne_bytes(bytes)
}

/// The calling thread's network namespace, by its inode.
///
/// # Errors
/// Where `/proc` is not mounted.
pub fn namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.ino())
}

impl Backend for KernelBackend {
    type Demux = KernelDemux;

    fn by_name(&mut self, name: &str) -> Result<InterfaceInfo, Refusal> {
        let refuse = |message: String| Refusal::new(ErrorKind::Interface, message);
        let found = self.interfaces.named(name).map_err(|error| match error {
            // The list of interfaces is not for every user.
            InterfaceError::Missing { .. } => {
                refuse(format!("there is no interface `{name}`; see `ip link`"))
            }
            error => refuse(error.to_string()),
        });
        InterfaceInfo::try_from(found?).map_err(|error| refuse(error.to_string()))
    }

    fn by_index(&mut self, ifindex: u32) -> Option<InterfaceInfo> {
        InterfaceInfo::try_from(self.interfaces.numbered(ifindex).ok()?).ok()
    }

    fn demux(
        &mut self,
        facts: &InterfaceInfo,
        attach: Option<Attach>,
    ) -> Result<KernelDemux, Refusal> {
        self.check_namespace()?;
        let pins = self.pins(facts)?;
        let events = Arc::clone(&self.wake_fd);
        KernelDemux::new(facts, attach, self.namespace, events, pins)
    }

    fn adopt(&mut self, facts: &InterfaceInfo) -> Result<Option<KernelDemux>, Refusal> {
        match self.pins(facts)? {
            Some(pins) => {
                KernelDemux::adopt(facts, self.namespace, Arc::clone(&self.wake_fd), pins)
            }
            None => Ok(None),
        }
    }

    fn sweep(&mut self, kept: &[u32]) -> Result<(), Refusal> {
        let Some(pins) = &self.pins else {
            return Ok(());
        };
        let kept = kept.iter().map(|ifindex| (self.namespace, *ifindex));
        let kept: Vec<_> = kept.collect();
        let paths = self.paths.as_ref();
        let own = paths.map(|paths| paths.folder_name.as_str());
        let own: Vec<&str> = own.into_iter().collect();
        let swept = pins::sweep(pins, &kept, &own).map_err(system);
        swept.and(paths.map_or(Ok(()), |paths| paths.sweep().map_err(system)))
    }

    fn prepare_path(&mut self, facts: &InterfaceInfo, rules: EgressRules) {
        // An error is reported when the user sends.
        if let Ok(paths) = self.paths() {
            let _ = paths.prepare(facts, rules);
        }
    }

    fn end_spare_paths(&mut self, ifindex: u32) {
        if let Some(paths) = &mut self.paths {
            paths.end_spares(ifindex);
        }
    }

    fn make_path(&mut self, token: u32, facts: &InterfaceInfo, rules: EgressRules) {
        let made = match self.paths() {
            Ok(paths) => paths.make(token, facts, rules),
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = made {
            self.refused_paths.push((token, refusal));
        }
    }

    fn cancel_path(&mut self, token: u32) {
        if let Some(paths) = &mut self.paths {
            paths.cancel(token);
        }
    }

    fn made_paths(&mut self) -> Vec<(u32, Result<MadePath, Refusal>)> {
        let refused = self.refused_paths.drain(..);
        let mut all: Vec<_> = refused.map(|(token, why)| (token, Err(why))).collect();
        all.extend(self.paths.iter_mut().flat_map(EgressPool::made));
        all
    }

    fn adopt_path(&mut self, name: &str) -> bool {
        self.paths().is_ok_and(|paths| paths.adopt(name))
    }

    fn retire_path(&mut self, name: &str) {
        if let Some(paths) = &mut self.paths {
            paths.retire(name);
        }
    }

    fn has_path(&self, name: &str) -> bool {
        self.paths.as_ref().is_some_and(|paths| paths.has(name))
    }

    fn egress_counts(&self, name: &str) -> EgressCounts {
        let paths = self.paths.as_ref();
        paths.map_or_else(EgressCounts::default, |paths| paths.counts(name))
    }

    fn sender(&mut self, facts: &InterfaceInfo) -> Result<OwnedFd, Refusal> {
        self.check_namespace()?;
        Ok(Sender::open(facts.ifindex).map_err(system)?.into())
    }

    fn hand_over(&mut self) {
        if let Some(paths) = &mut self.paths {
            paths.is_kept = true;
        }
    }

    fn gone_rings(&self, rings: &[u32]) -> Vec<u32> {
        self.privileged.gone_maps(rings)
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake_fd.as_fd())
    }

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.monitor.as_fd())
    }

    fn clear_wake(&mut self) {
        let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
    }

    fn saw_changes(&mut self) {
        // All interfaces in use are checked again after any event.
        while let Ok(Some(event)) = self.monitor.next_event(Some(Duration::ZERO)) {
            if let (Event::Removed { name, .. }, Some(paths)) = (event, &mut self.paths) {
                paths.device_gone(&name);
            }
        }
    }

    fn namespace(&self) -> Option<u64> {
        Some(self.namespace)
    }
}
