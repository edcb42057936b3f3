//! The dispatcher: a program that stays at a hook and tail-calls a replaceable
//! program.

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

/// `TCX_NEXT`: continue with the other programs at the hook, then with the
/// kernel's stack.
const TCX_NEXT: i32 = -1;

/// Why the dispatcher is not at a hook.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// Another XDP program is attached, and XDP accepts one program.
    #[error(
        "{hook} on `{interface}` is taken: another XDP program is attached, {program}; \
         detach it (`ip link set dev {interface} xdp off`, or end its owner), or use tc"
    )]
    Taken {
        /// The hook that was requested.
        hook: Hook,
        /// The interface's name.
        interface: String,
        /// The other program, and where it is attached.
        program: String,
    },
    /// The program could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The dispatcher could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The slot (a program array) could not be created or written.
    #[error(transparent)]
    Slot(#[from] MapError),
    /// Pins could not be created or found.
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// weir's program at one hook of one interface.
///
/// With pins, the dispatcher and its slot stay when the process ends, and the
/// next process takes them over by [`adopt`](Self::adopt). Without pins they
/// end with this value.
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
    /// `pins` is a folder for this interface alone. Stale pins of this hook are
    /// removed from it first.
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
    /// frame on: attaching may take tens of milliseconds, during which frames
    /// already arrive.
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
            // The slot is pinned first: an attachment without its slot is
            // useless.
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

    /// Takes over the running dispatcher that an earlier process left at the
    /// hook. Returns `None` if there is none, or none that works: if its
    /// interface is gone or it was detached, the stale pins are removed.
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

    /// Replaces the program in the slot. Later frames run the new program;
    /// frames being processed finish in the old one.
    ///
    /// The slot keeps the program loaded. The program must have the hook's
    /// type, for XDP with multi-buffer frames.
    ///
    /// # Errors
    /// See [`LiveError`]: the kernel refuses a program of another type.
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

    /// The id of the program in the slot; `None` if it is empty.
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

    /// Whether the dispatcher is still attached: `false` if the interface is
    /// gone or another process detached the dispatcher.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn is_attached(&self) -> Result<bool, LiveError> {
        Ok(self.attachment.info()?.ifindex.is_some())
    }

    /// Detaches the dispatcher, and removes its pins from `pins`.
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

/// Upper bound of a frame's time between XDP and tc, which includes a CPU's
/// backlog queue and GRO.
pub const IN_FLIGHT_MAX: Duration = Duration::from_millis(100);

/// The only index of the slot's program array.
const SLOT: u32 = 0;

const ATTACHMENT: &str = "attachment";
const SLOTS: &str = "slots";

/// The name of a pin. Both XDP hooks share a name, since only one of them can
/// be in use.
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
/// The first error, see [`LiveError`]; the rest is removed all the same.
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

/// Generates the dispatcher: it tail-calls the slot's program and returns if
/// the slot is empty.
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

/// Adds the other program's name to the error.
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
