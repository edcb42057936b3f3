//! The counting part of a meter: a part of a gate's program, or a program of its own at tc or XDP.

use super::Meter;
use super::error::MeterError;
use super::keys::masked;
use super::maps::{CONTROL_NAME, Maps, REPLACED, forget, unpin};
use super::program::{self, At, DirectionOf, Routines, Spec, Up};
use crate::bpf::{
    self, AttachError, Attachment, Hook, Load, Map, ObjectError, ObjectKind, PinFolder, Program,
    ProgramType,
};
use crate::net::Interface;
use crate::xdp::abi::{XDP_DROP, XDP_PASS};
use crate::xdp::xsk::promiscuous;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use weir_filter::backend::ebpf::{Asm, EmitError, Insn, Label, Limits, Reg};
use weir_filter::lang::expr::Names;
use weir_meter::{Direction, Key, services};
use weir_wire::LinkType;

/// `TCX_NEXT` and `TCX_DROP`.
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;

/// The program at tc or XDP, as the kernel calls it.
const PROGRAM_NAME: &str = "weir_meter";

/// Prefixes by which frames of a mirror port go up, at most: each is a comparison a packet.
pub const MIRROR_PREFIXES_MAX: usize = 64;

/// Which frames of a link that has both directions go up; the others go down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MirrorUp {
    /// Those whose source is a session's.
    Sessions,
    /// Those whose source address is in one of these prefixes, or is one of these addresses.
    Prefixes(Vec<Key>),
    /// Those that a filter in pcap-filter(7)'s language accepts.
    Filter(String),
}

/// The counting of one direction of a meter, or of both.
#[derive(Clone, Debug)]
pub struct MeterStage {
    pub(super) spec: Spec,
    pub(super) maps: Arc<Maps>,
    pub(super) when: When,
}

/// When a gate's program counts a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    /// Before all else.
    Arrived,
    /// When its way is decided, here or by the process.
    Decided,
}

impl Meter {
    /// What counts frames of this direction: at a link of a gate, of the frames that come in there
    /// ([`Gate::attach_metered`](crate::xdp::Gate::attach_metered)). The subscribers' addresses are sources of
    /// frames that go [up](Direction::Up), destinations of those that go down.
    pub fn stage(&self, direction: Direction) -> MeterStage {
        self.stage_of(DirectionOf::One(direction))
    }

    /// A meter of frames of both directions that are received at one interface, such as a mirror port. `up`
    /// says which go up.
    ///
    /// # Errors
    /// For a filter that does not compile, and for too many prefixes.
    pub fn mirror_stage(&self, up: &MirrorUp, names: &dyn Names) -> Result<MeterStage, MeterError> {
        let up = match up {
            MirrorUp::Sessions => Up::Sessions,
            MirrorUp::Prefixes(prefixes) => {
                let found = prefixes.len();
                if found > MIRROR_PREFIXES_MAX {
                    return Err(MeterError::Prefixes { found });
                }
                Up::Prefixes(prefixes.iter().filter_map(|key| masked(*key)).collect())
            }
            MirrorUp::Filter(text) => {
                let program = services::compile(text, LinkType::EN10MB, names);
                Up::Filter(program.map_err(MeterError::FromInside)?)
            }
        };
        Ok(self.stage_of(DirectionOf::Each(up)))
    }

    fn stage_of(&self, direction_of: DirectionOf) -> MeterStage {
        let geometry = &self.geometry;
        MeterStage {
            spec: Spec {
                seed: geometry.seed,
                subscribers: geometry.subscribers,
                slot_pages: geometry.slot_pages,
                v4_lines: geometry.v4_lines(),
                unknown_pages: geometry.unknown_pages,
                listed: geometry.classes as u16 - 4,
                filters: self.filters.clone(),
                counts_ip: geometry.counts_ip,
                // Frames at a mirror port are copies.
                polices: geometry.polices && matches!(direction_of, DirectionOf::One(_)),
                total: geometry.total(),
                carry_pages: geometry.carry_pages(),
                lease_cpus: geometry.lease_cpus,
                measures: self.measures.clone(),
                flow_pages: geometry.shape.flow_pages,
                flow_idle_ns: geometry.shape.flow_idle_ns,
                adopts: self.adopts,
                direction_of,
            },
            maps: self.maps.clone(),
            when: When::Arrived,
        }
    }

    /// Removes the pins of a meter that is no longer wanted, and of those that it replaced.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn unpin(folder: &PinFolder) -> Result<(), MeterError> {
        unpin(folder)?;
        let (pins, names) = folder.list()?;
        // Maps of other layouts.
        for name in pins {
            if name.starts_with(MAP_PIN) && !is_pin(&name) {
                folder.unpin(&name)?;
            }
        }
        let mut replaced = names.iter().filter(|name| name.starts_with(REPLACED));
        replaced.try_for_each(|name| forget(folder, name))
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

    /// Whether a frame is counted when its way is decided, not before all else.
    pub(in crate::xdp) fn counts_decided(&self) -> bool {
        self.when == When::Decided
    }

    /// Adds the stage as a routine: r1 is the context, r2 the bytes of the frame as it came.
    pub(in crate::xdp) fn emit_routine(
        &self,
        asm: &mut Asm,
        routine: Label,
        first_place: u16,
    ) -> Result<(), EmitError> {
        program::emit_routine(asm, &self.spec, At::Routine, (routine, first_place))
    }

    pub(in crate::xdp) fn emit_routines(&self, asm: &mut Asm, routines: Routines) {
        program::emit_routines(asm, &self.spec, routines);
    }

    /// The maps that the stage names.
    pub(in crate::xdp) fn maps(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.maps.of_stage()
    }

    /// Whether the program that is attached counts in the same maps.
    pub(in crate::xdp) fn is_in(&self, attachment: &Attachment) -> Result<bool, MeterError> {
        let control = self.maps.control.info()?.id;
        Ok(map_ids(attachment)?.contains(&control))
    }

    /// A program for a hook that counts each frame and lets it go on.
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn program(&self, hook: Hook) -> Result<Program, MeterError> {
        self.program_that(false, hook)
    }

    /// A program for a hook that counts each frame and drops it.
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn taking_program(&self, hook: Hook) -> Result<Program, MeterError> {
        self.program_that(true, hook)
    }

    /// A program for a hook that counts each frame, and then drops it or lets it go on.
    fn program_that(&self, drops: bool, hook: Hook) -> Result<Program, MeterError> {
        let (at, program_type, [go_on, drop]) = if hook.is_xdp() {
            (At::Xdp, ProgramType::Xdp, [XDP_PASS, XDP_DROP])
        } else {
            (At::Tc, ProgramType::SchedCls, [TCX_NEXT, TCX_DROP])
        };
        let verdict = if drops { drop } else { go_on };
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

/// Whether the program that is attached counts in a meter's maps, whichever.
pub(in crate::xdp) fn is_metered(attachment: &Attachment) -> Result<bool, MeterError> {
    for id in map_ids(attachment)? {
        let map = match bpf::open(ObjectKind::Map, id, true) {
            Err(ObjectError::Missing { .. }) => continue,
            map => Map::from_fd(map?)?,
        };
        if map.info()?.name == CONTROL_NAME {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The ids of the maps of the program that is attached.
fn map_ids(attachment: &Attachment) -> Result<Vec<u32>, MeterError> {
    let program = attachment.info()?.program_id;
    let program = Program::from_fd(bpf::open(ObjectKind::Program, program, false)?);
    Ok(program.map_ids()?)
}

/// Counting beside the host's own stack, or at a mirror port: programs at tc ingress and egress of
/// an interface (Linux 6.6), which let each frame go on, or drop those of a mirror port, then by XDP if
/// the driver has it.
///
/// At tc frames are as the kernel has them there: a super-frame counts as the segments that it becomes on
/// the wire (`gso_segs`; headers of frames in a tunnel are not looked for), and a filter of a
/// service does not see a VLAN tag that the kernel has taken out of the frame.
#[derive(Debug)]
pub struct MeterTap {
    attachments: Vec<Attachment>,
    was_counting: bool,
    /// The interface that is promiscuous as long as this counts.
    promiscuous: Option<String>,
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
        let mut tap = MeterTap::new(None);
        let any = meter.stage(ingress);
        for (hook, program, name) in [
            (Hook::TcIngress, inward, "in"),
            (Hook::TcEgress, outward, "out"),
        ] {
            let name = format!("meter-{name}-{}", interface.index);
            tap.put(&any, interface, (hook, &program), &name, folder)?;
        }
        Ok(tap)
    }

    /// Counts the frames that come in at a mirror port, which are of both directions; `stage` is a
    /// [mirror stage](Meter::mirror_stage). If it `takes` them they go no further: they are counted and
    /// dropped by XDP in the driver, or at tc where the driver has no XDP. The interface becomes
    /// promiscuous, until [`detach`](Self::detach) or [`clean`](Self::clean). Otherwise as
    /// [`attach`](Self::attach).
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn mirror(
        stage: &MeterStage,
        interface: &Interface,
        takes: bool,
        folder: Option<&PinFolder>,
    ) -> Result<MeterTap, MeterError> {
        let index = interface.index;
        let is_pinned = |name: &str| match folder {
            Some(folder) => folder.get(name).map(|left| left.is_some()),
            None => Ok(false),
        };
        // The name says whether the interface was promiscuous before, and the hook.
        let names = |start: &str| [XDP_PIN, ""].map(|hook| format!("{start}{hook}{index}"));
        let (was, was_not) = (names(SEEN_PIN), names(MIRROR_PIN));
        let is_changed = promiscuous::set(&interface.name, true)?;
        let was_pinned = is_pinned(&was[0])? || is_pinned(&was[1])?;
        let was_not_pinned = is_pinned(&was_not[0])? || is_pinned(&was_not[1])?;
        let is_ours = is_changed && !was_pinned || was_not_pinned;
        let [xdp, tc] = if is_ours { was_not } else { was };
        let mut tap = MeterTap::new(is_ours.then(|| interface.name.clone()));
        let mut put = |hook, name: &str| {
            let program = stage.program_that(takes, hook)?;
            tap.put(stage, interface, (hook, &program), name, folder)
        };
        let by_driver = takes.then(|| put(Hook::XdpNative, &xdp));
        let (done, other) = match by_driver {
            None | Some(Err(MeterError::Attach(AttachError::NotByDriver { .. }))) => {
                (put(Hook::TcIngress, &tc), xdp)
            }
            Some(done) => (done, tc),
        };
        if done.is_err() && is_changed {
            let _ = promiscuous::set(&interface.name, false);
        }
        done?;
        // What an earlier process left at the other hook: at tc it has no frames any more, and by XDP it
        // took them until now.
        if let Some(folder) = folder
            && let Some(left) = folder.get(&other)?.map(Attachment::from_fd)
        {
            tap.was_counting |= left.info()?.ifindex == Some(index) && stage.is_in(&left)?;
            left.detach()?;
            folder.unpin(&other)?;
        }
        Ok(tap)
    }

    fn new(promiscuous: Option<String>) -> MeterTap {
        MeterTap {
            attachments: Vec::new(),
            was_counting: true,
            promiscuous,
        }
    }

    /// Takes over what is pinned under the name, or attaches the program and pins that.
    fn put(
        &mut self,
        stage: &MeterStage,
        interface: &Interface,
        (hook, program): (Hook, &Program),
        name: &str,
        folder: Option<&PinFolder>,
    ) -> Result<(), MeterError> {
        let left = match folder {
            Some(folder) => folder.get(name)?.map(Attachment::from_fd),
            None => None,
        };
        if let Some(left) = left {
            // An interface that has gone takes its programs with it.
            if left.info()?.ifindex == Some(interface.index) {
                self.was_counting &= stage.is_in(&left)?;
                left.replace(program)?;
                self.attachments.push(left);
                return Ok(());
            }
            if let Some(folder) = folder {
                folder.unpin(name)?;
            }
        }
        let made = Attachment::new(program, interface.index, hook)?;
        self.was_counting = false;
        if let Some(folder) = folder {
            folder.pin(name, &made)?;
        }
        self.attachments.push(made);
        Ok(())
    }

    /// Whether the programs of an earlier process were at the interface, in both directions, and
    /// counted in the same counters until those of this one took their places.
    pub fn was_counting(&self) -> bool {
        self.was_counting
    }

    /// Takes the programs off the interface; pins in `folder` are removed.
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn detach(self, folder: Option<&PinFolder>) -> Result<(), MeterError> {
        for attachment in &self.attachments {
            attachment.detach()?;
        }
        if let Some(name) = &self.promiscuous {
            // An interface that has gone needs nothing.
            let _ = promiscuous::set(name, false);
        }
        if let Some(folder) = folder {
            for name in folder.list()?.0 {
                if is_pin(&name) {
                    folder.unpin(&name)?;
                }
            }
        }
        Ok(())
    }

    /// Takes off what an earlier process has left pinned in `folder`.
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn clean(folder: &PinFolder) -> Result<(), MeterError> {
        for name in folder.list()?.0.iter().filter(|name| is_pin(name)) {
            if let Some(left) = folder.get(name)?.map(Attachment::from_fd) {
                let index = left.info()?.ifindex;
                left.detach()?;
                if name.starts_with(MIRROR_PIN)
                    && let Some(interface) = index.and_then(|it| Interface::numbered(it).ok())
                {
                    promiscuous::set(&interface.name, false)?;
                }
            }
            folder.unpin(name)?;
        }
        Ok(())
    }
}

/// The start of the names of all pins of a meter.
const MAP_PIN: &str = "meter-";

/// The start of the pin's name at a mirror port that was not promiscuous, and at one that was.
const MIRROR_PIN: &str = "meter-mirror-";
const SEEN_PIN: &str = "meter-seen-";

/// What follows in the name if frames are taken by XDP.
const XDP_PIN: &str = "xdp-";

/// Whether a pin of this name is a program's at an interface.
fn is_pin(name: &str) -> bool {
    let starts = ["meter-in-", "meter-out-", SEEN_PIN, MIRROR_PIN];
    starts.iter().any(|start| name.starts_with(start))
}
