//! The kernel's side of a tap: programs at its links, and what they share
//! with the process.

mod error;
mod fds;
pub(super) mod liveness;
mod persistence;
pub(super) mod pin_dir;
pub(super) mod program;
pub(super) mod shared_page;

pub use error::GateError;
pub use fds::{GateFds, LinkFds};

use super::flow_cache::FlowMaps;
use super::host_filter::HostFilter;
use super::meter::MeterStage;
use super::xsk::promiscuous;
use super::xsk::socket::Xsk;
use crate::bpf::{AttachError, Attachment, Hook, Map, MapSpec, is_missing};
use crate::net::Interface;
use persistence::{interface_of, programs_at, tc_pin, unpin, xdp_pin};
use pin_dir::PinDir;
use shared_page::{Bypass, LINKS_MAX, QUEUES_MAX, SharedPage, at};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Programs at links.
#[derive(Debug)]
pub struct Gate {
    state: Rc<SharedPage>,
    state_map: Map,
    sockets: Map,
    peers: Map,
    links: Vec<Option<GateLink>>,
    pins: Option<PinDir>,
    adopted: bool,
    host: Option<HostFilter>,
    /// What counts the frames of each link, by the link's number.
    meters: Vec<MeterStage>,
}

#[derive(Debug)]
pub(super) struct GateLink {
    ifindex: u32,
    pub(super) xdp: Attachment,
    hook: Hook,
    tc: Option<Attachment>,
    /// Frames to any station are received as long as somebody has it.
    promiscuous: Option<OwnedFd>,
}

impl Gate {
    /// Attaches to these interfaces, in the driver where it can; shut, so
    /// that frames take the bypass. With `outlive` all of it stays when the
    /// process ends, and what an earlier one has left is taken over, as it
    /// runs; without, that is taken off first. One that stays is this value's
    /// alone: another for the same interfaces is refused as long as it lives.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn attach(
        interfaces: &[&Interface],
        bypass: Bypass,
        outlive: bool,
    ) -> Result<Gate, GateError> {
        Gate::attach_metered(interfaces, bypass, outlive, &[])
    }

    /// As [`attach`](Self::attach); the frames of each interface are counted by the stage in the
    /// same place of `meters`, from the first one on, whatever the gate does with them. What an
    /// earlier process has left counts until it is taken over, and from then on these do.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn attach_metered(
        interfaces: &[&Interface],
        bypass: Bypass,
        outlive: bool,
        meters: &[MeterStage],
    ) -> Result<Gate, GateError> {
        let numbers: Vec<u32> = interfaces.iter().map(|i| i.index).collect();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != numbers.len() || !(1..=LINKS_MAX as usize).contains(&numbers.len()) {
            let names: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
            let what = names.join(", ");
            return Err(GateError::Links { what });
        }
        let made = if outlive {
            Gate::attach_pinned(interfaces, bypass, meters)
        } else {
            let mut gate = Gate::new(bypass)?;
            gate.meters = meters.to_vec();
            gate.add_all(interfaces)
        };
        let Err(GateError::Taken { interface, by }) = made else {
            return made;
        };
        // By what an earlier one with another bypass has left?
        if !outlive {
            match Gate::clean_owned_stale(interfaces) {
                Ok(true) => return Gate::attach_metered(interfaces, bypass, outlive, meters),
                Err(error @ GateError::InUse { .. }) => return Err(error),
                Ok(false) | Err(_) => {}
            }
        }
        Err(GateError::taken(interfaces, interface, by))
    }

    /// With all of these links, or nothing of it stays.
    fn add_all(mut self, interfaces: &[&Interface]) -> Result<Gate, GateError> {
        let mut each = interfaces.iter();
        match each.try_for_each(|interface| self.add(interface).map(drop)) {
            Ok(()) => Ok(self),
            Err(error) => {
                let _ = self.end();
                Err(error)
            }
        }
    }

    /// A gate without links, shut, which goes with this value.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn new(bypass: Bypass) -> Result<Gate, GateError> {
        let state_map = SharedPage::make()?;
        let state = Rc::new(SharedPage::of(&state_map)?);
        state
            .init_liveness_locks()
            .map_err(|source| GateError::System {
                what: "make locks that outlive their owner",
                source,
            })?;
        state.set_bypass(bypass);
        state.set_limit(None);
        state
            .atomic_u64(at::VERSION)
            .store(shared_page::VERSION, Ordering::Release);
        let sockets = MapSpec::xsk_map(LINKS_MAX * QUEUES_MAX);
        Ok(Gate {
            state,
            state_map,
            sockets: Map::create("weir_tap_socks", &sockets)?,
            peers: Map::create("weir_tap_peers", &MapSpec::dev_map(LINKS_MAX))?,
            links: Vec::new(),
            pins: None,
            adopted: false,
            host: None,
            meters: Vec::new(),
        })
    }

    /// Leaves to the host's own protocols what this filter accepts, as long as
    /// a process takes frames: of links that are added later, and with
    /// [`renew`](Self::renew) of those that are there.
    pub fn set_host_filter(&mut self, filter: HostFilter) {
        self.host = Some(filter);
    }

    /// Attaches to one more interface; gives the link's number.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn add(&mut self, interface: &Interface) -> Result<usize, GateError> {
        let vacant = self.links.iter().position(Option::is_none);
        let link = vacant.unwrap_or(self.links.len());
        if link >= LINKS_MAX as usize {
            let what = format!("{} more", interface.name);
            return Err(GateError::Links { what });
        }
        let program = program::xdp(
            link as u32,
            self.maps(),
            None,
            self.host.as_ref(),
            self.meters.get(link),
        )?;
        let ifindex = interface.index;
        let attach = |hook| Attachment::new(&program, ifindex, hook).map(|made| (made, hook));
        let attached = match attach(Hook::XdpNative) {
            Err(AttachError::NotByDriver { .. }) => attach(Hook::XdpGeneric),
            other => other,
        };
        let (xdp, hook) = attached.map_err(|error| match error {
            AttachError::Busy { .. } => GateError::Taken {
                interface: interface.name.clone(),
                by: pin_dir::owner_of(&programs_at(&[interface])),
            },
            error => error.into(),
        })?;
        if let Some(pins) = &self.pins {
            pins.folder.pin(&xdp_pin(link), &xdp)?;
        }
        let failed = |source| GateError::System {
            what: "receive frames to any station",
            source,
        };
        let promiscuous = match &self.pins {
            // It ends with whoever holds it last.
            None => Some(promiscuous::promiscuous_socket(ifindex).map_err(failed)?),
            // It stays as what is pinned does.
            Some(_) => {
                if promiscuous::set(&interface.name, true).map_err(failed)? {
                    let links = self.state.atomic_u32(at::PROMISCUOUS);
                    links.fetch_or(1 << link, Ordering::Relaxed);
                }
                None
            }
        };
        self.store_link(
            link,
            GateLink {
                ifindex,
                xdp,
                hook,
                tc: None,
                promiscuous,
            },
        );
        Ok(link)
    }

    fn store_link(&mut self, link: usize, made: GateLink) {
        while self.links.len() <= link {
            self.links.push(None);
        }
        self.links[link] = Some(made);
    }

    /// What programs work on.
    pub(super) fn maps(&self) -> [&Map; 3] {
        [&self.state_map, &self.sockets, &self.peers]
    }

    /// Has a link's program ask these cached verdicts before it hands a frame
    /// over; where checksums may be left to the device, `completes`, such
    /// frames are handed over all the same.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn use_flow_cache(
        &self,
        link: usize,
        flow_maps: &FlowMaps,
        completes: bool,
    ) -> Result<(), GateError> {
        flow_maps.set_egress(link as u32, self.link(link).ifindex)?;
        let (maps, host) = (self.maps(), self.host.as_ref());
        let program = program::xdp(
            link as u32,
            maps,
            Some((flow_maps, completes)),
            host,
            self.meter(link),
        )?;
        Ok(self.link(link).xdp.replace(&program)?)
    }

    /// Gives each link a program of ours: without what an earlier process has
    /// cached, and with what is [left](Self::set_host_filter) to the host now.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn renew(&self) -> Result<(), GateError> {
        for (number, link) in self.links.iter().enumerate() {
            if let Some(link) = link {
                let host = self.host.as_ref();
                let program =
                    program::xdp(number as u32, self.maps(), None, host, self.meter(number))?;
                link.xdp.replace(&program)?;
            }
        }
        Ok(())
    }

    /// What counts the frames of a link.
    pub(super) fn meter(&self, link: usize) -> Option<&MeterStage> {
        self.meters.get(link)
    }

    /// Takes the program off one link, and leaves the interface as it was.
    ///
    /// # Errors
    /// See [`GateError`]; nothing of it is left all the same.
    pub fn remove(&mut self, link: usize) -> Result<(), GateError> {
        let Some(gone) = self.links.get_mut(link).and_then(Option::take) else {
            return Ok(());
        };
        let interface = interface_of(&gone.xdp);
        let mut first = gone.xdp.detach();
        if let Some(tc) = &gone.tc {
            first = first.and(tc.detach());
        }
        let was_set = self.state.atomic_u32(at::PROMISCUOUS);
        let was_set = was_set.fetch_and(!(1 << link), Ordering::Relaxed);
        let mut first = first.map_err(GateError::from);
        if was_set & 1 << link != 0
            && let Ok(Some(interface)) = interface
        {
            let set = promiscuous::set(&interface.name, false);
            first = first.and(set.map(|_| ()).map_err(|source| GateError::System {
                what: "receive only frames to the interface again",
                source,
            }));
        }
        first
    }

    /// Whether an earlier process has left it.
    pub fn is_adopted(&self) -> bool {
        self.adopted
    }

    pub(super) fn link(&self, link: usize) -> &GateLink {
        let found = self.links.get(link).and_then(Option::as_ref);
        found.expect("links are named by the number that they were given")
    }

    /// Joins two links for the bypass by wire: what comes in at either goes
    /// out at the other.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn join(&mut self, a: usize, b: usize) -> Result<(), GateError> {
        for (link, peer) in [(a, b), (b, a)] {
            let peer = self.link(peer).ifindex;
            let key = (link as u32).to_ne_bytes();
            self.peers.update(&key, &peer.to_ne_bytes())?;
            if self.link(link).tc.is_some() {
                continue;
            }
            let program = program::tc(peer, &self.state_map)?;
            match Attachment::new(&program, self.link(link).ifindex, Hook::TcIngress) {
                Ok(tc) => {
                    if let Some(pins) = &self.pins {
                        pins.folder.pin(&tc_pin(link), &tc)?;
                    }
                    if let Some(Some(link)) = self.links.get_mut(link) {
                        link.tc = Some(tc);
                    }
                }
                // Then the drivers must do it.
                Err(AttachError::OldKernel { .. }) => self.set_native_redirect(link, true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Says whether frames of a link may be redirected in the driver to the
    /// one it is joined to; otherwise tc does it, which every device can.
    pub fn set_native_redirect(&self, link: usize, is_native: bool) {
        let word = self.state.atomic_u32(at::FLOW_CACHE);
        if is_native {
            word.fetch_or(1 << link, Ordering::SeqCst)
        } else {
            word.fetch_and(!(1 << link), Ordering::SeqCst)
        };
    }

    /// Lets frames of a queue come to a socket.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn put_socket(&self, link: usize, queue: u32, socket: &Xsk) -> Result<(), GateError> {
        let key = program::socket_key(link as u32, queue).to_ne_bytes();
        Ok(self.sockets.put(&key, socket)?)
    }

    /// What is shared with the programs.
    pub fn state(&self) -> &Rc<SharedPage> {
        &self.state
    }

    /// Where on the link frames are taken.
    pub fn hook(&self, link: usize) -> Hook {
        self.link(link).hook
    }

    /// Whether the program is still attached to a link: not when the interface is gone,
    /// also into another namespace, or someone detached it. Waits for the kernel's lock
    /// of all interfaces, see [`attachment_check`](Self::attachment_check).
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn is_attached(&self, link: usize) -> Result<bool, GateError> {
        is_attached(&self.link(link).xdp)
    }

    /// What asks the same of these links, from any thread. Programs stay attached as long
    /// as this is there, unless they are taken off.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn attachment_check(
        &self,
        links: impl IntoIterator<Item = usize>,
    ) -> io::Result<AttachmentCheck> {
        let copies = links.into_iter().map(|link| {
            let copy = self.link(link).xdp.as_fd().try_clone_to_owned();
            Ok(Attachment::from_fd(copy?))
        });
        Ok(AttachmentCheck(copies.collect::<io::Result<_>>()?))
    }

    /// Takes everything off the links, and leaves them as they were.
    ///
    /// # Errors
    /// See [`GateError`]; goes on to the end all the same, and gives the first.
    pub fn end(mut self) -> Result<(), GateError> {
        self.state.shut();
        let mut first = Ok(());
        for link in 0..self.links.len() {
            first = first.and(self.remove(link));
        }
        if let Some(pins) = &self.pins {
            first = first.and(unpin(&pins.folder));
            // Another process may be making its own in it.
            let _ = pins.parent.remove_folder(&pins.name);
        }
        first
    }
}

/// Programs at links, to ask whether they are still there.
#[derive(Debug)]
pub struct AttachmentCheck(Vec<Attachment>);

impl AttachmentCheck {
    /// Whether all of them are, as [`Gate::is_attached`] has it.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn are_attached(&self) -> Result<bool, GateError> {
        for program in &self.0 {
            if !is_attached(program)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is_attached(program: &Attachment) -> Result<bool, GateError> {
    Ok(!program.info()?.ifindex.is_none_or(is_missing))
}

#[cfg(test)]
mod tests;
