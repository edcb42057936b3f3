//! What counts in a meter's maps: a part of a gate's program, or a program of its own at tc.

use super::Meter;
use super::error::MeterError;
use super::maps::{Maps, REPLACED, forget, unpin};
use super::program::{self, At, Routines, Spec};
use crate::bpf::{Attachment, Hook, Load, PinFolder, Program, ProgramType};
use crate::net::Interface;
use crate::xdp::abi::XDP_PASS;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use weir_filter::backend::ebpf::{Asm, EmitError, Insn, Limits, Reg};
use weir_meter::Direction;

/// `TCX_NEXT`.
const TCX_NEXT: i32 = -1;

/// The program at tc, as the kernel calls it.
const PROGRAM_NAME: &str = "weir_meter";

/// What counts the frames of one direction in a meter.
#[derive(Clone, Debug)]
pub struct MeterStage {
    spec: Spec,
    maps: Arc<Maps>,
}

impl Meter {
    /// What counts frames of this direction: at a link of a gate, of the frames that come in there
    /// ([`Gate::attach_metered`](crate::xdp::Gate::attach_metered)). The subscribers' addresses are sources of
    /// frames that go [up](Direction::Up), destinations of those that go down.
    pub fn stage(&self, direction: Direction) -> MeterStage {
        let geometry = &self.geometry;
        MeterStage {
            spec: Spec {
                seed: geometry.seed,
                subscribers: geometry.subscribers,
                slot_pages: geometry.slot_pages,
                unknown_pages: geometry.unknown_pages,
                listed: geometry.classes as u16 - 4,
                filters: self.filters.clone(),
                counts_ip: geometry.counts_ip,
                direction,
            },
            maps: self.maps.clone(),
        }
    }

    /// Removes the pins of a meter that is no longer wanted, and of those that it replaced.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn unpin(folder: &PinFolder) -> Result<(), MeterError> {
        unpin(folder)?;
        let (_, names) = folder.list()?;
        let replaced = names.iter().filter(|name| name.starts_with(REPLACED));
        replaced.map(|name| forget(folder, name)).collect()
    }
}

impl MeterStage {
    /// Adds the stage: r1 is the context before, and r6 after it.
    pub(in crate::xdp) fn emit(
        &self,
        asm: &mut Asm,
        first_place: u16,
    ) -> Result<Routines, EmitError> {
        program::emit(asm, &self.spec, At::Xdp, first_place)
    }

    pub(in crate::xdp) fn emit_routines(&self, asm: &mut Asm, routines: Routines) {
        program::emit_routines(asm, &self.spec, routines);
    }

    /// The maps that the stage names.
    pub(in crate::xdp) fn maps(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.maps.of_stage()
    }

    /// A program for a hook that counts each frame and lets it go on.
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn program(&self, hook: Hook) -> Result<Program, MeterError> {
        let (at, program_type, verdict) = if hook.is_xdp() {
            (At::Xdp, ProgramType::Xdp, XDP_PASS)
        } else {
            (At::Tc, ProgramType::SchedCls, TCX_NEXT)
        };
        let mut asm = Asm::new();
        let routines = program::emit(&mut asm, &self.spec, at, 0)?;
        asm.extend([Insn::mov32(Reg::R0, verdict), Insn::exit()]);
        program::emit_routines(&mut asm, &self.spec, routines);
        let insns = asm.finish(&Limits::default())?;
        let maps: Vec<BorrowedFd<'_>> = self.maps().collect();
        let load = Load {
            name: PROGRAM_NAME,
            program_type,
            maps: &maps,
            ..Load::at(hook)
        };
        Ok(Program::load(&insns, &load)?)
    }
}

/// Counting beside the host's own stack, or at a mirror port: programs at tc ingress and egress of
/// an interface (Linux 6.6), which let each frame go on.
///
/// Frames are as the kernel has them there: a super-frame counts as the segments that it becomes on
/// the wire (`gso_segs`; headers of frames in a tunnel are not looked for), and a filter of a
/// service does not see a VLAN tag that the kernel has taken out of the frame.
#[derive(Debug)]
pub struct MeterTap {
    attachments: Vec<Attachment>,
    was_counting: bool,
}

impl MeterTap {
    /// Counts frames of an interface: those that come in have direction `ingress`, those that go
    /// out the other. With `folder` it stays when the process ends, and what an earlier process has
    /// left there goes on without a gap, with the programs of this one.
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn attach(
        meter: &Meter,
        interface: &Interface,
        ingress: Direction,
        folder: Option<&PinFolder>,
    ) -> Result<MeterTap, MeterError> {
        let egress = match ingress {
            Direction::Up => Direction::Down,
            Direction::Down => Direction::Up,
        };
        // Both are loaded before one counts, so that both directions begin together.
        let load = |hook, direction| meter.stage(direction).program(hook);
        let inward = load(Hook::TcIngress, ingress)?;
        let outward = load(Hook::TcEgress, egress)?;
        let mut attachments = Vec::new();
        let mut was_counting = true;
        for (hook, program, name) in [
            (Hook::TcIngress, inward, "in"),
            (Hook::TcEgress, outward, "out"),
        ] {
            let name = format!("meter-{name}-{}", interface.index);
            let left = match folder {
                Some(folder) => folder.get(&name)?.map(Attachment::from_fd),
                None => None,
            };
            if let Some(left) = left {
                // An interface that has gone takes its programs with it.
                if left.info()?.ifindex == Some(interface.index) {
                    left.replace(&program)?;
                    attachments.push(left);
                    continue;
                }
                if let Some(folder) = folder {
                    folder.unpin(&name)?;
                }
            }
            was_counting = false;
            let made = Attachment::new(&program, interface.index, hook)?;
            if let Some(folder) = folder {
                folder.pin(&name, &made)?;
            }
            attachments.push(made);
        }
        Ok(MeterTap {
            attachments,
            was_counting,
        })
    }

    /// Whether the programs of an earlier process were at the interface, in both directions, and
    /// counted until those of this one took their places.
    pub fn was_counting(&self) -> bool {
        self.was_counting
    }

    /// Whether a pin of this name is a program's at an interface.
    pub fn is_pin(name: &str) -> bool {
        name.starts_with("meter-in-") || name.starts_with("meter-out-")
    }

    /// Takes the programs off the interface; pins in `folder` are removed.
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn detach(self, folder: Option<&PinFolder>) -> Result<(), MeterError> {
        for attachment in &self.attachments {
            attachment.detach()?;
        }
        if let Some(folder) = folder {
            for name in folder.list()?.0 {
                if MeterTap::is_pin(&name) {
                    folder.unpin(&name)?;
                }
            }
        }
        Ok(())
    }
}
