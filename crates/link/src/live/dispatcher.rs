//! The program that stays, and the slot with the one that changes.

use crate::bpf::{
    self, AttachError, Attachment, Hook, Load, LoadError, Map, MapError, MapSpec, PinError,
    PinFolder, Program,
};
use crate::net::{Interface, XdpMode};
use std::os::fd::AsFd;
use std::time::Duration;
use weir_filter::backend::ebpf::{Insn, Reg, helper};

/// `XDP_PASS`.
const XDP_PASS: i32 = 2;

/// `TCX_NEXT`: the other programs at the hook, then the stack.
const TCX_NEXT: i32 = -1;

/// Why a hook is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// XDP has room for one program, and someone else's is there.
    #[error(
        "{hook} on `{interface}` is taken: another XDP program is attached, {program}; \
         detach it (`ip link set dev {interface} xdp off`, or end its owner), or use tc"
    )]
    Taken {
        /// The hook that was asked for.
        hook: Hook,
        /// The interface's name.
        interface: String,
        /// Which program, and where it is attached.
        program: String,
    },
    /// The program could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The dispatcher could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The slot could not be made or written.
    #[error(transparent)]
    Slot(#[from] MapError),
    /// Pins could not be made or found.
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// Our program at one hook of one interface.
///
/// With pins it stays when the process ends, and frames go on as they did;
/// the next process [`adopt`](Self::adopt)s it. Without, it goes with this
/// value.
#[derive(Debug)]
pub struct Dispatcher {
    hook: Hook,
    ifindex: u32,
    attachment: Attachment,
    slots: Map,
}

impl Dispatcher {
    /// Attaches to a hook, with an empty slot: frames pass.
    ///
    /// `pins` is a folder for this interface alone. Our own leftovers at this
    /// hook are swept from it first.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn attach(
        ifindex: u32,
        hook: Hook,
        pins: Option<&PinFolder>,
    ) -> Result<Dispatcher, LiveError> {
        Dispatcher::attach_with(ifindex, hook, pins, None)
    }

    /// As [`attach`](Self::attach), with a program in the slot from the first
    /// frame on: attaching itself may take tens of milliseconds in which
    /// frames come already.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn attach_with(
        ifindex: u32,
        hook: Hook,
        pins: Option<&PinFolder>,
        plan: Option<&Program>,
    ) -> Result<Dispatcher, LiveError> {
        if let Some(pins) = pins {
            sweep_hook(pins, hook)?;
        }
        let slots = Map::create("weir_slots", &MapSpec::prog_array(1))?;
        if let Some(plan) = plan {
            slots.put(&SLOT.to_ne_bytes(), plan)?;
        }
        let program = load(hook, &slots)?;
        let attachment = Attachment::new(&program, ifindex, hook);
        let attachment = attachment.map_err(|error| explain(error, ifindex, hook))?;
        if let Some(pins) = pins {
            // The slot first: an attachment without one is of no use.
            pins.pin(&pin_name(hook, SLOTS), &slots)?;
            pins.pin(&pin_name(hook, ATTACHMENT), &attachment)?;
        }
        Ok(Dispatcher {
            hook,
            ifindex,
            attachment,
            slots,
        })
    }

    /// Takes over what a process before this one left at the hook, as it
    /// runs; `None` if there is nothing, or nothing that works any more (its
    /// interface is gone, or it was detached): then the pins are swept.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn adopt(pins: &PinFolder, hook: Hook) -> Result<Option<Dispatcher>, LiveError> {
        let slots = pins.get(&pin_name(hook, SLOTS))?;
        let attachment = pins.get(&pin_name(hook, ATTACHMENT))?;
        if let (Some(slots), Some(attachment)) = (slots, attachment) {
            let attachment = Attachment::from_fd(attachment);
            if let Some(ifindex) = attachment.info()?.ifindex {
                return Ok(Some(Dispatcher {
                    hook,
                    ifindex,
                    attachment,
                    slots: Map::from_fd(slots)?,
                }));
            }
        }
        sweep_hook(pins, hook)?;
        Ok(None)
    }

    /// Puts a plan's program into the slot, in place of what is there. Every
    /// frame from now on is its; those that are under way end with the other.
    ///
    /// The program stays as long as it is in the slot. It must be of the
    /// hook's type, for XDP with fragments.
    ///
    /// # Errors
    /// See [`LiveError`]: the kernel takes no program of another type.
    pub fn set(&self, program: &Program) -> Result<(), LiveError> {
        Ok(self.slots.put(&SLOT.to_ne_bytes(), program)?)
    }

    /// Empties the slot: frames pass.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn clear(&self) -> Result<(), LiveError> {
        self.slots.delete(&SLOT.to_ne_bytes())?;
        Ok(())
    }

    /// The number of the program in the slot, if there is one.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn program_id(&self) -> Result<Option<u32>, LiveError> {
        let value = self.slots.lookup(&SLOT.to_ne_bytes())?;
        let id = value.and_then(|value| value.try_into().ok());
        Ok(id.map(u32::from_ne_bytes))
    }

    /// The hook.
    pub fn hook(&self) -> Hook {
        self.hook
    }

    /// The interface's number.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Whether the program is still attached: not when the interface is gone,
    /// or someone else detached it.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn is_attached(&self) -> Result<bool, LiveError> {
        Ok(self.attachment.info()?.ifindex.is_some())
    }

    /// Takes the program off its hook, and removes the pins if there are any.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn detach(self, pins: Option<&PinFolder>) -> Result<(), LiveError> {
        self.attachment.detach()?;
        if let Some(pins) = pins {
            sweep_hook(pins, self.hook)?;
        }
        Ok(())
    }
}

/// How long a frame is on its way from XDP to tc, at most: a queue of the CPU
/// that takes it, or of GRO, in between.
pub const IN_FLIGHT_MAX: Duration = Duration::from_millis(100);

/// The only slot.
const SLOT: u32 = 0;

const ATTACHMENT: &str = "attachment";
const SLOTS: &str = "slots";

/// The name of a pin. Both kinds of XDP share theirs: only one can be there.
fn pin_name(hook: Hook, what: &str) -> String {
    let place = match hook {
        Hook::XdpNative | Hook::XdpGeneric => "xdp",
        Hook::TcIngress => "ingress",
        Hook::TcEgress => "egress",
    };
    format!("{place}-{what}")
}

/// Detaches all dispatchers that are pinned in an interface's folder, and
/// removes their pins.
///
/// # Errors
/// See [`LiveError`]; goes on to the end all the same, and gives the first.
pub fn sweep(pins: &PinFolder) -> Result<(), LiveError> {
    [Hook::XdpNative, Hook::TcIngress, Hook::TcEgress]
        .map(|hook| sweep_hook(pins, hook))
        .into_iter()
        .collect()
}

fn sweep_hook(pins: &PinFolder, hook: Hook) -> Result<(), LiveError> {
    let name = pin_name(hook, ATTACHMENT);
    if let Some(fd) = pins.get(&name)? {
        Attachment::from_fd(fd).detach()?;
    }
    unpin_hook(pins, hook)
}

fn unpin_hook(pins: &PinFolder, hook: Hook) -> Result<(), LiveError> {
    pins.unpin(&pin_name(hook, ATTACHMENT))?;
    pins.unpin(&pin_name(hook, SLOTS))?;
    Ok(())
}

/// Goes on in the slot's program; returns only if there is none.
fn load(hook: Hook, slots: &Map) -> Result<Program, LoadError> {
    let pass = if hook.is_xdp() { XDP_PASS } else { TCX_NEXT };
    let [slots_place, slots_upper] = Insn::load_map(Reg::R2, 0);
    let insns = [
        slots_place,
        slots_upper,
        Insn::mov32(Reg::R3, SLOT as i32),
        Insn::call(helper::TAIL_CALL),
        Insn::mov32(Reg::R0, pass),
        Insn::exit(),
    ];
    let load = Load {
        name: "weir_dispatch",
        maps: &[slots.as_fd()],
        ..Load::at(hook)
    };
    Program::load(&insns, &load)
}

/// Says whose program is in the way.
fn explain(error: AttachError, ifindex: u32, hook: Hook) -> LiveError {
    let AttachError::Busy { .. } = error else {
        return error.into();
    };
    let Ok(interface) = Interface::numbered(ifindex) else {
        return error.into();
    };
    let Some(xdp) = interface.xdp else {
        return error.into();
    };
    let mode = match xdp.mode {
        XdpMode::Native => "native",
        XdpMode::Generic => "generic",
        XdpMode::Other => "in hardware or several places",
    };
    let facts = xdp.program_id.and_then(|id| bpf::program_info(id).ok());
    let program = match (facts, xdp.program_id) {
        (Some(facts), _) if facts.name.is_empty() => format!("number {} ({mode})", facts.id),
        (Some(facts), _) => format!("`{}`, number {} ({mode})", facts.name, facts.id),
        (None, Some(id)) => format!("number {id} ({mode})"),
        (None, None) => format!("unnamed ({mode})"),
    };
    LiveError::Taken {
        hook,
        interface: interface.name,
        program,
    }
}
