//! Persistent gates: pins, take-over and removal.

use super::moved::interface_here;
use super::pin_dir::{self, PinDir, XDP_PIN};
use super::program::PROGRAM_NAME;
use super::shared_page::{Bypass, SharedPage};
use super::{Gate, GateError, GateLink};
use crate::bpf::{Attachment, Hook, Map, PinError, PinFolder, program_info};
use crate::net::{Interface, XdpMode};
use crate::xdp::meter::MeterStage;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

pub(super) const STATE: &str = "state";
pub(super) const SOCKETS: &str = "sockets";
pub(super) const PEERS: &str = "peers";

/// How often, and with which pauses, a folder is tried that another process has locked.
const LOCK_TRIES: usize = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

pub(super) fn xdp_pin(link: usize) -> String {
    format!("{XDP_PIN}{link}")
}

pub(super) fn tc_pin(link: usize) -> String {
    format!("tc-{link}")
}

impl Gate {
    /// Attaches to these interfaces persistently, or takes over the gate of an
    /// earlier process.
    pub(super) fn attach_pinned(
        interfaces: &[&Interface],
        bypass: Bypass,
        meters: &[MeterStage],
    ) -> Result<Gate, GateError> {
        let numbers = numbers(interfaces);
        let place = Gate::lock_pin_dir(interfaces)?;
        let mut cleaned = Gate::clean_others(&place, interfaces)?;
        if let Some(mut gate) = Gate::adopt(&place.folder, &numbers)? {
            gate.refuse_if_owned(interfaces)?;
            gate.page.set_bypass(bypass);
            gate.adopted = true;
            gate.meters = meters.to_vec();
            gate.was_metered = gate.counts_already();
            gate.pins = Some(place);
            gate.renew()?;
            return Ok(gate.after(cleaned.still_promiscuous));
        }
        cleaned.add(Gate::remove_pins(&place.folder, interfaces)?);
        let mut gate = Gate::new(bypass)?;
        place.folder.pin(STATE, &gate.page_map)?;
        place.folder.pin(SOCKETS, &gate.sockets)?;
        place.folder.pin(PEERS, &gate.peers)?;
        gate.pins = Some(place);
        gate.meters = meters.to_vec();
        let gate = gate.add_all(interfaces)?;
        Ok(gate.after(cleaned.still_promiscuous))
    }

    /// Whether the present programs count all links' frames as those of this process will.
    fn counts_already(&self) -> bool {
        let mut links = self.links.iter().zip(0..);
        !self.links.is_empty()
            && links.all(|(link, number)| match (link, self.meters.get(number)) {
                (Some(link), Some(meter)) => meter.is_in(&link.xdp).is_ok_and(|is_in| is_in),
                (None, _) | (_, None) => false,
            })
    }

    /// Takes the exclusive lock of these interfaces' pin directory.
    fn lock_pin_dir(interfaces: &[&Interface]) -> Result<PinDir, GateError> {
        let taken = PinDir::take(&numbers(interfaces));
        taken.map_err(|error| GateError::no_pin_dir(interfaces, error))
    }

    /// The process that had the pin directory may have ended while other
    /// processes share its tap.
    fn refuse_if_owned(&self, interfaces: &[&Interface]) -> Result<(), GateError> {
        if self.page.is_owned() {
            Err(GateError::in_use(interfaces, None))
        } else {
            Ok(())
        }
    }

    /// Takes over the gate of an earlier process, if it still works.
    fn adopt(folder: &PinFolder, numbers: &[u32]) -> Result<Option<Gate>, GateError> {
        let links = links_of(folder)?;
        let are = links.iter().map(|link| link.here);
        // The interfaces have other numbers or another order: create a new
        // gate.
        if are.eq(numbers.iter().copied().map(Some)) {
            Gate::stale(folder, links)
        } else {
            Ok(None)
        }
    }

    /// The remains of an earlier process's gate at these links.
    fn stale(folder: &PinFolder, links: Vec<PinnedLink>) -> Result<Option<Gate>, GateError> {
        let get = |name: &str| -> Result<Option<OwnedFd>, PinError> { folder.get(name) };
        let (Some(page), Some(sockets), Some(peers)) = (get(STATE)?, get(SOCKETS)?, get(PEERS)?)
        else {
            return Ok(None);
        };
        let page_map = Map::from_fd(page)?;
        let page = Rc::new(SharedPage::of(&page_map)?);
        if !page.is_current() {
            return Err(GateError::OtherVersion);
        }
        Ok(Some(Gate {
            page,
            page_map,
            sockets: Map::from_fd(sockets)?,
            peers: Map::from_fd(peers)?,
            links: links.into_iter().map(|link| Some(link.gate_link)).collect(),
            pins: None,
            adopted: false,
            host: None,
            meters: Vec::new(),
            was_metered: false,
            is_joined: false,
            still_promiscuous: None,
        }))
    }

    /// Removes the remains of an earlier process's gate from the links; `false`
    /// if there were none.
    ///
    /// # Errors
    /// See [`GateError`]; [`GateError::InUse`] also if nothing was stale and a
    /// running process has a non-persistent gate at one of the links;
    /// [`GateError::StillPromiscuous`] when all else is removed.
    pub fn clean_stale(interfaces: &[&Interface]) -> Result<bool, GateError> {
        let cleaned = Gate::clean_owned_stale(interfaces)?;
        if let Some(error) = cleaned.still_promiscuous {
            return Err(error);
        }
        let held: Vec<&Interface> = interfaces
            .iter()
            .filter(|one| has_gate(one))
            .copied()
            .collect();
        if !cleaned.found && !held.is_empty() {
            Err(GateError::in_use(&held, None))
        } else {
            Ok(cleaned.found)
        }
    }

    /// As [`Gate::clean_stale`], without a check for non-persistent gates.
    pub(super) fn clean_owned_stale(interfaces: &[&Interface]) -> Result<Cleaned, GateError> {
        let place = Gate::lock_pin_dir(interfaces)?;
        let mut cleaned = Cleaned::default();
        if !place.folder.list()?.0.is_empty() {
            cleaned = Gate::remove_pins(&place.folder, interfaces)?;
        }
        let _ = place.parent.remove_folder(&place.name);
        cleaned.add(Gate::clean_others(&place, interfaces)?);
        Ok(cleaned)
    }

    /// Removes stale gates that these interfaces share with one that is gone or
    /// in another namespace: no list of names refers to such a gate any more.
    fn clean_others(place: &PinDir, interfaces: &[&Interface]) -> Result<Cleaned, GateError> {
        let mut cleaned = Cleaned::default();
        for name in place.others()? {
            cleaned.add(Gate::clean_dir(&place.parent, &name, interfaces)?);
        }
        Ok(cleaned)
    }

    /// Removes the stale gate in the folder with that name, if it still exists.
    pub(super) fn clean_dir(
        parent: &PinFolder,
        name: &str,
        interfaces: &[&Interface],
    ) -> Result<Cleaned, GateError> {
        let is_ours = |folder: &PinFolder| pin_dir::has_any(folder, &programs_at(interfaces));
        let Some(folder) = parent.existing(name)?.filter(is_ours) else {
            return Ok(Cleaned::default());
        };
        // Only its owner may remove a gate in use.
        let Some(_lock) = lock_soon(&folder)? else {
            return Ok(Cleaned::default());
        };
        match links_of(&folder) {
            Ok(links) if !has_name(&links, name) => {}
            // An error in another folder does not concern this caller.
            Ok(_) | Err(_) => return Ok(Cleaned::default()),
        }
        let cleaned = Gate::remove_pins(&folder, interfaces)?;
        let _ = parent.remove_folder(name);
        Ok(cleaned)
    }

    /// Removes the objects behind these pins, for any order of the links,
    /// unless a program still has an owner. The caller has locked the folder.
    fn remove_pins(folder: &PinFolder, interfaces: &[&Interface]) -> Result<Cleaned, GateError> {
        let mut cleaned = Cleaned {
            found: true,
            still_promiscuous: None,
        };
        // Promiscuity is restored by the page, the rest by the pins.
        if let Ok(Some(gate)) = links_of(folder).and_then(|links| Gate::stale(folder, links)) {
            gate.refuse_if_owned(interfaces)?;
            match gate.end() {
                Err(error @ GateError::StillPromiscuous { .. }) => {
                    cleaned.still_promiscuous = Some(error);
                }
                ended => ended?,
            }
        }
        unpin(folder)?;
        Ok(cleaned)
    }
}

/// What was removed of stale gates.
#[derive(Debug, Default)]
pub(super) struct Cleaned {
    /// Whether there were any.
    pub(super) found: bool,
    /// [`GateError::StillPromiscuous`] of one of their interfaces.
    pub(super) still_promiscuous: Option<GateError>,
}

impl Cleaned {
    fn add(&mut self, more: Cleaned) {
        self.found |= more.found;
        if more.still_promiscuous.is_some() {
            self.still_promiscuous = more.still_promiscuous;
        }
    }
}

/// Locks a folder; `None` if a process has it. One that only looks for remains, as another start of weir does,
/// has it for a moment.
fn lock_soon(folder: &PinFolder) -> Result<Option<OwnedFd>, GateError> {
    for _ in 0..LOCK_TRIES {
        if let Some(lock) = pin_dir::lock(folder)? {
            return Ok(Some(lock));
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Ok(pin_dir::lock(folder)?)
}

fn numbers(interfaces: &[&Interface]) -> Vec<u32> {
    interfaces.iter().map(|one| one.index).collect()
}

/// The ids of the XDP programs that are now at these interfaces.
pub(super) fn programs_at(interfaces: &[&Interface]) -> Vec<u32> {
    let now = interfaces.iter().map(|one| Interface::numbered(one.index));
    now.filter_map(|now| now.ok()?.xdp?.program_id).collect()
}

/// Whether the interface has a gate's XDP program that ends with its process,
/// that is, one without a pin.
fn has_gate(interface: &Interface) -> bool {
    let mut programs = programs_at(&[interface]);
    programs.retain(|id| !pin_dir::is_pinned(*id));
    let facts = programs.iter().filter_map(|id| program_info(*id).ok());
    facts.into_iter().any(|facts| facts.name == PROGRAM_NAME)
}

/// Whether `name` is the folder's name for these links: all interfaces are in
/// the calling thread's namespace and have their old numbers.
fn has_name(links: &[PinnedLink], name: &str) -> bool {
    let numbers: Option<Vec<u32>> = links.iter().map(|link| link.here).collect();
    numbers.is_some_and(|numbers| pin_dir::name(&numbers).is_ok_and(|named| named == name))
}

/// A link of a folder's pins.
struct PinnedLink {
    /// The interface's number; `None` if the interface is gone, or not in the calling thread's namespace.
    here: Option<u32>,
    gate_link: GateLink,
}

/// The links of a folder's pins.
fn links_of(folder: &PinFolder) -> Result<Vec<PinnedLink>, GateError> {
    let mut links = Vec::new();
    while let Some(xdp) = folder.get(&xdp_pin(links.len()))?.map(Attachment::from_fd) {
        let interface = interface_here(&xdp)?;
        let tc = folder.get(&tc_pin(links.len()))?.map(Attachment::from_fd);
        let here = interface.as_ref().map(|interface| interface.index);
        let mode = interface.and_then(|interface| Some(interface.xdp?.mode));
        links.push(PinnedLink {
            here,
            gate_link: GateLink {
                ifindex: here.unwrap_or_default(),
                hook: match mode {
                    Some(XdpMode::Generic) => Hook::XdpGeneric,
                    _ => Hook::XdpNative,
                },
                tc,
                xdp,
                promiscuous: None,
            },
        });
    }
    Ok(links)
}

/// Detaches and unpins everything.
pub(super) fn unpin(folder: &PinFolder) -> Result<(), GateError> {
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
