//! The kernel's side of a tap: programs at its links, and what they share
//! with the process.

use super::fast::Fast;
use super::host::HostFilter;
use super::place::{Place, XDP_PIN};
use super::promiscuous;
use super::socket::Xsk;
use super::state::{Bypass, LINKS_MAX, QUEUES_MAX, State, at};
use super::{place, program};
use crate::bpf::{
    AttachError, Attachment, Hook, LoadError, Map, MapError, MapSpec, PinError, PinFolder,
};
use crate::net::{Interface, InterfaceError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Why there is no gate.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// Too many links, or twice the same.
    #[error("a tap has 1 to {LINKS_MAX} different links, not {what}")]
    Links {
        /// What was asked for.
        what: String,
    },
    /// Someone else's program is there.
    #[error(
        "another XDP program is attached to `{interface}`: end its owner, or `ip link set dev {interface} xdp off`; \
         if a bridge or a router of weir's has left it, `weir bridge … --clean` or `weir route … --clean` \
         with the interfaces that it had"
    )]
    Taken {
        /// The interface's name.
        interface: String,
    },
    /// What was left is of another version.
    #[error(
        "another version of weir has left programs at these links: `weir bridge … --clean` or \
         `weir route … --clean` first"
    )]
    OtherVersion,
    /// Another process has the tap.
    #[error("another process taps these links: end it first")]
    InUse,
    /// The interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Its programs were not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The filter of the host's frames does not fit into them.
    #[error("what the host is left of its frames is too much for a filter: {0}")]
    Host(#[from] weir_filter::backend::ebpf::EmitError),
    /// What is shared was not made.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Its programs were not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// It was not pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Anything else.
    #[error("cannot {what} ({source})")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Programs at links.
#[derive(Debug)]
pub struct Gate {
    state: Rc<State>,
    state_map: Map,
    sockets: Map,
    peers: Map,
    links: Vec<Option<GateLink>>,
    pins: Option<Place>,
    adopted: bool,
    host: Option<HostFilter>,
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

/// A gate's descriptors, for another process to have the same gate.
#[derive(Debug)]
pub struct GateParts<F> {
    /// The page that is shared with the programs.
    pub state: F,
    /// The sockets that frames go to.
    pub sockets: F,
    /// Which link is joined to which.
    pub peers: F,
}

/// The same of one link.
#[derive(Debug)]
pub struct LinkParts<F> {
    /// The interface's number.
    pub ifindex: u32,
    /// Where frames are taken.
    pub hook: Hook,
    /// The program that takes them.
    pub xdp: F,
    /// The program that joins links for the bypass.
    pub tc: Option<F>,
    /// What has frames to any station received.
    pub promiscuous: Option<F>,
}

const STATE: &str = "state";
const SOCKETS: &str = "sockets";
const PEERS: &str = "peers";

fn xdp_pin(link: usize) -> String {
    format!("{XDP_PIN}{link}")
}

fn tc_pin(link: usize) -> String {
    format!("tc-{link}")
}

impl Gate {
    /// Attaches to these interfaces, in the driver where it can; shut, so
    /// that frames take the bypass. With `outlive` all of it stays when the
    /// process ends, and what an earlier one has left is taken over, as it
    /// runs; without, that is taken off first.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn attach(
        interfaces: &[&Interface],
        bypass: Bypass,
        outlive: bool,
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
        let mut the_pins = match outlive {
            true => Some(place::folder(&numbers)?),
            false => None,
        };
        let held = the_pins.as_mut().and_then(|pins| pins.held.take());
        if let Some(pins) = &the_pins {
            Gate::free(pins, &numbers)?;
        }
        if let Some(pins) = &the_pins
            && let Some(mut gate) = Gate::adopt(&pins.folder, &numbers)?
        {
            if gate.state.gate().0 && gate.state.is_held() {
                return Err(GateError::InUse);
            }
            gate.state.set_bypass(bypass);
            gate.adopted = true;
            gate.pins = the_pins;
            gate.renew()?;
            return Ok(gate);
        }
        let mut gate = Gate::new(bypass)?;
        if let Some(pins) = &the_pins {
            Gate::dismantle(&pins.folder)?;
            pins.folder.pin(STATE, &gate.state_map)?;
            pins.folder.pin(SOCKETS, &gate.sockets)?;
            pins.folder.pin(PEERS, &gate.peers)?;
        }
        gate.pins = the_pins;
        let mut each = interfaces.iter();
        let Err(error) = each.try_for_each(|interface| gate.add(interface).map(drop)) else {
            return Ok(gate);
        };
        let _ = gate.end();
        drop(held);
        match error {
            // By what an earlier one with another bypass has left?
            GateError::Taken { .. } if !outlive => match Gate::clean(interfaces) {
                Ok(true) => Gate::attach(interfaces, bypass, outlive),
                Err(GateError::InUse) => Err(GateError::InUse),
                Ok(false) | Err(_) => Err(error),
            },
            error => Err(error),
        }
    }

    /// A gate without links, shut, which goes with this value.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn new(bypass: Bypass) -> Result<Gate, GateError> {
        let state_map = State::make()?;
        let state = Rc::new(State::of(&state_map)?);
        state
            .make_death_words()
            .map_err(|source| GateError::System {
                what: "make locks that outlive their owner",
                source,
            })?;
        state.set_bypass(bypass);
        state.set_limit(None);
        state
            .wide(at::VERSION)
            .store(super::state::VERSION, Ordering::Release);
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
        })
    }

    /// Leaves to the host's own protocols what this filter accepts, as long as
    /// a process takes frames: of links that are added later, and with
    /// [`renew`](Self::renew) of those that are there.
    pub fn leave_to_host(&mut self, filter: HostFilter) {
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
        let program = program::xdp(link as u32, self.maps(), None, self.host.as_ref())?;
        let ifindex = interface.index;
        let attach = |hook| Attachment::new(&program, ifindex, hook).map(|made| (made, hook));
        let attached = match attach(Hook::XdpNative) {
            Err(AttachError::NotByDriver { .. }) => attach(Hook::XdpGeneric),
            other => other,
        };
        let (xdp, hook) = attached.map_err(|error| match error {
            AttachError::Busy { .. } => GateError::Taken {
                interface: interface.name.clone(),
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
            None => Some(promiscuous::hold(ifindex).map_err(failed)?),
            // It stays as what is pinned does.
            Some(_) => {
                if promiscuous::set(&interface.name, true).map_err(failed)? {
                    let links = self.state.word(at::PROMISCUOUS);
                    links.fetch_or(1 << link, Ordering::Relaxed);
                }
                None
            }
        };
        self.place(
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

    fn place(&mut self, link: usize, made: GateLink) {
        while self.links.len() <= link {
            self.links.push(None);
        }
        self.links[link] = Some(made);
    }

    /// The descriptors of the gate, to be passed on; those of its links are
    /// [theirs](Self::link_parts).
    pub fn parts(&self) -> GateParts<BorrowedFd<'_>> {
        GateParts {
            state: self.state_map.as_fd(),
            sockets: self.sockets.as_fd(),
            peers: self.peers.as_fd(),
        }
    }

    /// The descriptors of a link.
    pub fn link_parts(&self, link: usize) -> Option<LinkParts<BorrowedFd<'_>>> {
        let found = self.links.get(link)?.as_ref()?;
        Some(LinkParts {
            ifindex: found.ifindex,
            hook: found.hook,
            xdp: found.xdp.as_fd(),
            tc: found.tc.as_ref().map(AsFd::as_fd),
            promiscuous: found.promiscuous.as_ref().map(AsFd::as_fd),
        })
    }

    /// The gate of another process, without its links.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn of_parts(parts: GateParts<OwnedFd>) -> Result<Gate, GateError> {
        let state_map = Map::from_fd(parts.state)?;
        let state = Rc::new(State::of(&state_map)?);
        if !state.is_current() {
            return Err(GateError::OtherVersion);
        }
        Ok(Gate {
            state,
            state_map,
            sockets: Map::from_fd(parts.sockets)?,
            peers: Map::from_fd(parts.peers)?,
            links: Vec::new(),
            pins: None,
            adopted: false,
            host: None,
        })
    }

    /// Has a link of the other process, under its number.
    ///
    /// # Errors
    /// For a number that is too great.
    pub fn add_parts(&mut self, link: usize, parts: LinkParts<OwnedFd>) -> Result<(), GateError> {
        if link >= LINKS_MAX as usize {
            let what = format!("link {link}");
            return Err(GateError::Links { what });
        }
        self.place(
            link,
            GateLink {
                ifindex: parts.ifindex,
                xdp: Attachment::from_fd(parts.xdp),
                hook: parts.hook,
                tc: parts.tc.map(Attachment::from_fd),
                promiscuous: parts.promiscuous,
            },
        );
        Ok(())
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
    pub fn use_fast(&self, link: usize, fast: &Fast, completes: bool) -> Result<(), GateError> {
        fast.set_out(link as u32, self.link(link).ifindex)?;
        let (maps, host) = (self.maps(), self.host.as_ref());
        let program = program::xdp(link as u32, maps, Some((fast, completes)), host)?;
        Ok(self.link(link).xdp.replace(&program)?)
    }

    /// Gives each link a program of ours: without what an earlier process has
    /// cached, and with what is [left](Self::leave_to_host) to the host now.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn renew(&self) -> Result<(), GateError> {
        for (number, link) in self.links.iter().enumerate() {
            if let Some(link) = link {
                let host = self.host.as_ref();
                let program = program::xdp(number as u32, self.maps(), None, host)?;
                link.xdp.replace(&program)?;
            }
        }
        Ok(())
    }

    /// Takes the program off one link, and leaves the interface as it was.
    ///
    /// # Errors
    /// See [`GateError`]; nothing of it is left all the same.
    pub fn remove(&mut self, link: usize) -> Result<(), GateError> {
        let Some(gone) = self.links.get_mut(link).and_then(Option::take) else {
            return Ok(());
        };
        let mut first = gone.xdp.detach();
        if let Some(tc) = &gone.tc {
            first = first.and(tc.detach());
        }
        let was_set = self.state.word(at::PROMISCUOUS);
        let was_set = was_set.fetch_and(!(1 << link), Ordering::Relaxed);
        let mut first = first.map_err(GateError::from);
        if was_set & 1 << link != 0
            && let Ok(interface) = Interface::numbered(gone.ifindex)
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

    /// What an earlier process has left, if it works still.
    fn adopt(folder: &PinFolder, numbers: &[u32]) -> Result<Option<Gate>, GateError> {
        let links = links_of(folder)?;
        let are = links.iter().map(|link| Some(link.as_ref()?.ifindex));
        // Renumbered, gone or in another order: start anew.
        match are.eq(numbers.iter().copied().map(Some)) {
            true => Gate::left(folder, links),
            false => Ok(None),
        }
    }

    /// What an earlier process has left of these links.
    fn left(folder: &PinFolder, links: Vec<Option<GateLink>>) -> Result<Option<Gate>, GateError> {
        let get = |name: &str| -> Result<Option<OwnedFd>, PinError> { folder.get(name) };
        let (Some(state), Some(sockets), Some(peers)) = (get(STATE)?, get(SOCKETS)?, get(PEERS)?)
        else {
            return Ok(None);
        };
        let state_map = Map::from_fd(state)?;
        let state = Rc::new(State::of(&state_map)?);
        if !state.is_current() {
            return Err(GateError::OtherVersion);
        }
        Ok(Some(Gate {
            state,
            state_map,
            sockets: Map::from_fd(sockets)?,
            peers: Map::from_fd(peers)?,
            links,
            pins: None,
            adopted: false,
            host: None,
        }))
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
                Err(AttachError::OldKernel { .. }) => self.set_fast(link, true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Says whether frames of a link may be redirected in the driver to the
    /// one it is joined to; otherwise tc does it, which every device can.
    pub fn set_fast(&self, link: usize, fast: bool) {
        let word = self.state.word(at::FAST);
        match fast {
            true => word.fetch_or(1 << link, Ordering::SeqCst),
            false => word.fetch_and(!(1 << link), Ordering::SeqCst),
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
    pub fn state(&self) -> &Rc<State> {
        &self.state
    }

    /// Where on the link frames are taken.
    pub fn hook(&self, link: usize) -> Hook {
        self.link(link).hook
    }

    /// Whether the programs are still attached to all links: not when an
    /// interface is gone, or someone detached them.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn is_attached(&self) -> Result<bool, GateError> {
        for link in self.links.iter().flatten() {
            if link.xdp.info()?.ifindex.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
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

    /// Takes off the links what an earlier process has left there; `false` if
    /// there is nothing.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn clean(interfaces: &[&Interface]) -> Result<bool, GateError> {
        let numbers: Vec<u32> = interfaces.iter().map(|i| i.index).collect();
        let pins = place::folder(&numbers)?;
        let mut found = !pins.folder.list()?.0.is_empty();
        if found {
            Gate::dismantle(&pins.folder)?;
        }
        let _ = pins.parent.remove_folder(&pins.name);
        found |= Gate::free(&pins, &numbers)?;
        Ok(found)
    }

    /// Takes off these interfaces what was left there and at another that is gone:
    /// nobody can ever name the two together again. Tells whether there was any.
    fn free(pins: &Place, numbers: &[u32]) -> Result<bool, GateError> {
        let mut found = false;
        for name in pins.others()? {
            let Ok(folder) = pins.parent.folder(&name) else {
                continue;
            };
            // What changes meanwhile is somebody else's to end.
            let Ok(links) = links_of(&folder) else {
                continue;
            };
            let is_ours = |link: &Option<GateLink>| {
                let ifindex = link.as_ref().map(|link| link.ifindex);
                ifindex.is_some_and(|ifindex| numbers.contains(&ifindex))
            };
            if links.iter().any(Option::is_none) && links.iter().any(is_ours) {
                Gate::dismantle(&folder)?;
                let _ = pins.parent.remove_folder(&name);
                found = true;
            }
        }
        Ok(found)
    }

    /// Takes down what these pins keep, in whatever order an earlier process
    /// named the links, but for one that still runs.
    fn dismantle(folder: &PinFolder) -> Result<(), GateError> {
        // Promiscuity by the page, the rest by the pins alone.
        if let Ok(Some(gate)) = links_of(folder).and_then(|links| Gate::left(folder, links)) {
            if gate.state.gate().0 && gate.state.is_held() {
                return Err(GateError::InUse);
            }
            gate.end()?;
        }
        unpin(folder)
    }
}

/// The links of a folder's pins; none in the place of one that is gone.
fn links_of(folder: &PinFolder) -> Result<Vec<Option<GateLink>>, GateError> {
    let mut links = Vec::new();
    while let Some(xdp) = folder.get(&xdp_pin(links.len()))?.map(Attachment::from_fd) {
        let link = match xdp.info()?.ifindex {
            Some(ifindex) => Some(GateLink {
                ifindex,
                hook: match Interface::numbered(ifindex)?.xdp.map(|xdp| xdp.mode) {
                    Some(crate::net::XdpMode::Generic) => Hook::XdpGeneric,
                    _ => Hook::XdpNative,
                },
                tc: folder.get(&tc_pin(links.len()))?.map(Attachment::from_fd),
                xdp,
                promiscuous: None,
            }),
            None => None,
        };
        links.push(link);
    }
    Ok(links)
}

/// Detaches and removes all that is pinned.
fn unpin(folder: &PinFolder) -> Result<(), GateError> {
    for name in folder.list()?.0 {
        if (name.starts_with(XDP_PIN) || name.starts_with("tc-"))
            && let Some(fd) = folder.get(&name)?
        {
            Attachment::from_fd(fd).detach()?;
        }
        folder.unpin(&name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::need;
    use weir_lab::net::Lab;

    #[test]
    fn what_stayed_is_taken_off_for_one_that_does_not_stay() {
        if !need::root() {
            return;
        }
        let lab = Lab::new();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (device, _) = lab.link(&a, &b).connect().unwrap();
        a.run(|| {
            let interface = Interface::numbered(device.index()).unwrap();
            drop(Gate::attach(&[&interface], Bypass::Wire, true).unwrap());
            let gate = Gate::attach(&[&interface], Bypass::Kernel, false).unwrap();
            assert!(!gate.is_adopted());
            // Its own, which nobody has left.
            let second = Gate::attach(&[&interface], Bypass::Kernel, false);
            assert!(matches!(second, Err(GateError::Taken { .. })), "{second:?}");
            drop(gate);
            assert!(!Gate::clean(&[&interface]).unwrap(), "nothing stays");
            let gate = Gate::attach(&[&interface], Bypass::Wire, true).unwrap();
            assert!(!gate.is_adopted());
            gate.end().unwrap();
        });
    }

    #[test]
    fn what_stayed_goes_when_its_interfaces_are_gone() {
        if !need::root() {
            return;
        }
        let net = || {
            let lab = Lab::new();
            let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
            let (device, _) = lab.link(&a, &b).connect().unwrap();
            (lab, a, b, device)
        };
        let leave = |host: &weir_lab::net::Host, index: u32| {
            host.run(|| {
                let interface = Interface::numbered(index).unwrap();
                drop(Gate::attach(&[&interface], Bypass::Wire, true).unwrap());
                place::name(&[index]).unwrap()
            })
        };
        let (stays, goes, last) = (net(), net(), net());
        let stayed = leave(&stays.1, stays.3.index());
        let gone = leave(&goes.1, goes.3.index());
        drop(goes);
        let began = std::time::Instant::now();
        loop {
            // Whoever comes sweeps; the kernel takes its time with the namespace.
            let mine = leave(&last.1, last.3.index());
            let taps = place::folder(&[0]).unwrap();
            taps.parent.remove_folder(&taps.name).unwrap();
            let (_, folders) = taps.parent.list().unwrap();
            assert!(folders.contains(&stayed) && folders.contains(&mine));
            if !folders.contains(&gone) {
                break;
            }
            assert!(began.elapsed().as_secs() < 60, "{gone} stays");
            drop(taps);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        for net in [&stays, &last] {
            net.1.run(|| {
                let interface = Interface::numbered(net.3.index()).unwrap();
                assert!(Gate::clean(&[&interface]).unwrap());
            });
        }
    }

    #[test]
    fn what_stayed_goes_when_one_of_two_interfaces_is_gone() {
        if !need::root() {
            return;
        }
        let lab = Lab::new();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let link = || lab.link(&a, &b).connect().unwrap().0;
        let (stays, goes, other) = (link(), link(), link());
        a.run(|| {
            let of = |index| Interface::numbered(index).unwrap();
            let left = Gate::attach(&[&of(stays.index()), &of(goes.index())], Bypass::Drop, true);
            drop(left.unwrap());
            let (stays, other) = (of(stays.index()), of(other.index()));
            // Both are there: it is left alone by those who want another.
            assert!(!Gate::clean(&[&stays, &other]).unwrap());
            assert!(of(stays.index).xdp.is_some());
            goes.delete().unwrap();
            assert!(!Gate::clean(&[&other]).unwrap(), "of another interface");
            assert!(Gate::clean(&[&stays, &other]).unwrap());
            let now = of(stays.index);
            assert!(now.xdp.is_none(), "{now:?}");
            let gate = Gate::attach(&[&other, &stays], Bypass::Wire, true).unwrap();
            gate.end().unwrap();
        });
    }

    /// Numbers of network namespaces and of interfaces are given again.
    #[test]
    fn what_another_version_left_at_interfaces_that_are_gone_is_nothing() {
        if !need::root() {
            return;
        }
        let lab = Lab::new();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (device, _) = lab.link(&a, &b).connect().unwrap();
        let (name, index) = (device.name(), device.index());
        let ip = |words: String| {
            let mut ip = std::process::Command::new("ip");
            let done = ip.args(words.split_whitespace()).status().unwrap();
            assert!(done.success(), "{words}");
        };
        let attach = || {
            let interface = Interface::numbered(index).unwrap();
            Gate::attach(&[&interface], Bypass::Wire, true)
        };
        a.run(|| {
            let left = attach().unwrap();
            let version = left.state.wide(at::VERSION);
            version.store(1, Ordering::Release);
            drop(left);
            let refused = attach();
            assert!(
                matches!(refused, Err(GateError::OtherVersion)),
                "{refused:?}"
            );
            ip(format!("link del {name}"));
            ip(format!(
                "link add {name} index {index} type veth peer name other index 9999"
            ));
            let gate = attach().unwrap();
            assert!(!gate.is_adopted());
            gate.end().unwrap();
        });
    }
}
