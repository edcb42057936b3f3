//! The gate: the programs at a tap's links, and the page that they share with the process.

mod error;
mod fds;
pub(super) mod liveness;
mod moved;
mod persistence;
pub(super) mod pin_dir;
pub(super) mod program;
pub(super) mod shared_page;

pub use error::GateError;
pub use fds::{GateFds, LinkFds};

use super::flow_cache::FlowMaps;
use super::host_filter::HostFilter;
use super::meter::{MeterStage, is_metered};
use super::xsk::promiscuous;
use super::xsk::socket::Xsk;
use crate::bpf::{AttachError, Attachment, Hook, Map, MapSpec, is_missing};
use crate::net::Interface;
use persistence::{Cleaned, programs_at, tc_pin, unpin, xdp_pin};
use pin_dir::PinDir;
use shared_page::{Bypass, LINKS_MAX, QUEUES_MAX, SharedPage, at};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The programs at a tap's links.
#[derive(Debug)]
pub struct Gate {
    page: Rc<SharedPage>,
    page_map: Map,
    sockets: Map,
    peers: Map,
    links: Vec<Option<GateLink>>,
    pins: Option<PinDir>,
    adopted: bool,
    host: Option<HostFilter>,
    /// The meters of each link, by the link's number.
    meters: Vec<MeterStage>,
    /// The programs that were taken over counted in the same meter.
    was_metered: bool,
    /// The gate is another process's too, which may count frames.
    is_joined: bool,
    /// Why an interface of the earlier gate, now in another namespace, stays promiscuous.
    still_promiscuous: Option<GateError>,
}

#[derive(Debug)]
pub(super) struct GateLink {
    ifindex: u32,
    pub(super) xdp: Attachment,
    hook: Hook,
    tc: Option<Attachment>,
    /// The socket that keeps the interface promiscuous while open.
    promiscuous: Option<OwnedFd>,
}

impl Gate {
    /// Attaches to these interfaces, in the driver where possible. The gate is shut at first, so
    /// that frames take the bypass. With `outlive` the programs stay when the process ends, and the
    /// running programs of an earlier process are taken over; without, stale programs are removed
    /// first. A persistent gate has one owner: another for the same interfaces is refused while
    /// this value lives.
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
        // Take over the programs of an earlier process that had another bypass?
        if !outlive {
            match Gate::clean_owned_stale(interfaces) {
                Ok(Cleaned {
                    found: true,
                    still_promiscuous,
                }) => {
                    let again = Gate::attach_metered(interfaces, bypass, outlive, meters);
                    return again.map(|gate| gate.after(still_promiscuous));
                }
                Err(error @ GateError::InUse { .. }) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Err(GateError::taken(interfaces, interface, by))
    }

    /// Adds all of these links, or none.
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

    /// A gate without links, shut, which ends with this value.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn new(bypass: Bypass) -> Result<Gate, GateError> {
        let page_map = SharedPage::make()?;
        let page = Rc::new(SharedPage::of(&page_map)?);
        page.init_liveness_locks()
            .map_err(|source| GateError::System {
                what: "make locks that outlive their owner",
                source,
            })?;
        page.set_bypass(bypass);
        page.set_limit(None);
        page.atomic_u64(at::VERSION)
            .store(shared_page::VERSION, Ordering::Release);
        let sockets = MapSpec::xsk_map(LINKS_MAX * QUEUES_MAX);
        Ok(Gate {
            page,
            page_map,
            sockets: Map::create("weir_tap_socks", &sockets)?,
            peers: Map::create("weir_tap_peers", &MapSpec::dev_map(LINKS_MAX))?,
            links: Vec::new(),
            pins: None,
            adopted: false,
            host: None,
            meters: Vec::new(),
            was_metered: false,
            is_joined: false,
            still_promiscuous: None,
        })
    }

    /// Sets the frames that go to the host's own protocols while a process takes frames. Applies to
    /// links added later, and to existing ones after [`renew`](Self::renew).
    pub fn set_host_filter(&mut self, filter: HostFilter) {
        self.host = Some(filter);
    }

    /// Attaches to a further interface; returns the link's number.
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
            // Ends with the last descriptor, whichever process has it.
            None => Some(promiscuous::promiscuous_socket(ifindex).map_err(failed)?),
            // Stays as the pins do.
            Some(_) => {
                if promiscuous::set(&interface.name, true).map_err(failed)? {
                    let links = self.page.atomic_u32(at::PROMISCUOUS);
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

    /// The maps that the programs use.
    pub(super) fn maps(&self) -> [&Map; 3] {
        [&self.page_map, &self.sockets, &self.peers]
    }

    /// Enables the flow cache in a link's program. With `completes`, checksums may be partial, and
    /// such frames go to the application.
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
            self.meter_to_keep(link)?,
        )?;
        Ok(self.link(link).xdp.replace(&program)?)
    }

    /// Loads a new program for each link, without the cached verdicts of an earlier process and
    /// with the present [host filter](Self::set_host_filter).
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn renew(&self) -> Result<(), GateError> {
        for (number, link) in self.links.iter().enumerate() {
            if let Some(link) = link {
                let host = self.host.as_ref();
                let meter = self.meter_to_keep(number)?;
                let program = program::xdp(number as u32, self.maps(), None, host, meter)?;
                link.xdp.replace(&program)?;
            }
        }
        Ok(())
    }

    /// The meter of a link, for a new program there.
    ///
    /// # Errors
    /// If another process of the same tap counts them: a program of this one would not.
    pub(super) fn meter_to_keep(&self, link: usize) -> Result<Option<&MeterStage>, GateError> {
        let meter = self.meters.get(link);
        if meter.is_none() && self.is_joined && is_metered(&self.link(link).xdp)? {
            return Err(GateError::MeteredByAnother);
        }
        Ok(meter)
    }

    /// Whether the programs of an earlier process counted the frames of all links in the same
    /// meter, until those of this one took their places.
    pub fn was_metered(&self) -> bool {
        self.was_metered
    }

    /// Detaches the program of one link and restores the interface.
    ///
    /// # Errors
    /// See [`GateError`]; the link is removed all the same.
    pub fn remove(&mut self, link: usize) -> Result<(), GateError> {
        let Some(gone) = self.links.get_mut(link).and_then(Option::take) else {
            return Ok(());
        };
        let is_promiscuous = self.page.atomic_u32(at::PROMISCUOUS);
        // The attached program identifies the interface, in whatever namespace that is now.
        let mut first = match is_promiscuous.load(Ordering::Relaxed) & 1 << link {
            0 => Ok(()),
            _ => moved::clear_promiscuous(&gone.xdp),
        };
        first = first.and(gone.xdp.detach().map_err(GateError::from));
        if let Some(tc) = &gone.tc {
            first = first.and(tc.detach().map_err(GateError::from));
        }
        is_promiscuous.fetch_and(!(1 << link), Ordering::Relaxed);
        first
    }

    /// Whether the gate was taken over from an earlier process.
    pub fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// Why an interface of the earlier process, which was moved to another network namespace, stays promiscuous.
    pub fn still_promiscuous(&self) -> Option<&GateError> {
        self.still_promiscuous.as_ref()
    }

    fn after(self, still_promiscuous: Option<GateError>) -> Gate {
        Gate {
            still_promiscuous: still_promiscuous.or(self.still_promiscuous),
            ..self
        }
    }

    pub(super) fn link(&self, link: usize) -> &GateLink {
        let found = self.links.get(link).and_then(Option::as_ref);
        found.expect("links are named by the number that they were given")
    }

    /// Joins two links for the bypass by wire: frames received on either are sent on the other.
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
            let program = program::tc(peer, &self.page_map)?;
            match Attachment::new(&program, self.link(link).ifindex, Hook::TcIngress) {
                Ok(tc) => {
                    if let Some(pins) = &self.pins {
                        pins.folder.pin(&tc_pin(link), &tc)?;
                    }
                    if let Some(Some(link)) = self.links.get_mut(link) {
                        link.tc = Some(tc);
                    }
                }
                // Then the drivers must support redirection.
                Err(AttachError::OldKernel { .. }) => self.set_native_redirect(link, true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sets whether frames of a link may be redirected in the driver to the link that it is joined
    /// to; otherwise the tc program redirects them, which every device supports.
    pub fn set_native_redirect(&self, link: usize, is_native: bool) {
        let word = self.page.atomic_u32(at::FLOW_CACHE);
        if is_native {
            word.fetch_or(1 << link, Ordering::SeqCst)
        } else {
            word.fetch_and(!(1 << link), Ordering::SeqCst)
        };
    }

    /// Adds a socket for a queue to the XSKMAP: the queue's frames go to it.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn put_socket(&self, link: usize, queue: u32, socket: &Xsk) -> Result<(), GateError> {
        let key = program::socket_key(link as u32, queue).to_ne_bytes();
        Ok(self.sockets.put(&key, socket)?)
    }

    /// The page shared with the programs.
    pub fn page(&self) -> &Rc<SharedPage> {
        &self.page
    }

    /// The link's XDP hook.
    pub fn hook(&self, link: usize) -> Hook {
        self.link(link).hook
    }

    /// Whether the program is still attached to a link: `false` if the interface is gone or in
    /// another namespace, or if another process detached the program. Waits for RTNL, see
    /// [`attachment_check`](Self::attachment_check).
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn is_attached(&self, link: usize) -> Result<bool, GateError> {
        is_attached(&self.link(link).xdp)
    }

    /// A check of these links' attachments for use in any thread. Programs stay attached as long as
    /// the returned value lives, unless they are detached.
    ///
    /// # Errors
    /// If the process has no free file descriptors.
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

    /// Detaches everything and restores the links.
    ///
    /// # Errors
    /// The first error, see [`GateError`]; the rest is removed all the same.
    pub fn end(mut self) -> Result<(), GateError> {
        self.page.shut();
        let mut first = Ok(());
        for link in 0..self.links.len() {
            first = first.and(self.remove(link));
        }
        if let Some(pins) = &self.pins {
            first = first.and(unpin(&pins.folder));
            // Another process may be creating its gate in the folder.
            let _ = pins.parent.remove_folder(&pins.name);
        }
        first
    }
}

/// Attachments at links, to check whether they are still there.
#[derive(Debug)]
pub struct AttachmentCheck(Vec<Attachment>);

impl AttachmentCheck {
    /// Whether all of them are attached, as [`Gate::is_attached`] returns.
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
