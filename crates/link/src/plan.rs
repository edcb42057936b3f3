//! A plan in the kernel: creates and updates the maps and programs that
//! `weir_demux::kernel` describes.

use crate::bpf::{
    self, Load, LoadError, Map, MapError, MapMemory, PinError, PinFolder, Program, ProgramType,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_demux::kernel::{
    Change, Counters, Half, Hook, KernelPlan, LowerError, MapRole, MapSpec, PortSettings, Write,
};

/// Why a plan was not installed in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A map could not be created or changed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A program could not be generated.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A program could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel is too old for the plan's programs.
    #[error(
        "the plan's program needs Linux 6.9 (loops by `may_goto`), and this is {release}: {source}"
    )]
    OldKernel {
        /// The running kernel's release.
        release: String,
        /// The kernel's error.
        source: LoadError,
    },
    /// A pin could not be created or found.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The number of possible CPUs is unknown.
    #[error("the number of CPUs is unknown ({0})")]
    Cpus(#[from] io::Error),
    /// The slot is not one of the plan's.
    #[error("slot {slot} is not one of the plan's {ports_max}")]
    Slot {
        /// The slot.
        slot: u32,
        /// The plan's number of slots.
        ports_max: u32,
    },
}

/// One map of a plan.
#[derive(Debug)]
struct PlanMap {
    spec: MapSpec,
    map: Map,
    memory: Option<MapMemory>,
}

/// The maps of the ports, which every plan of the link uses: rings, settings
/// and counters. Pinned, they outlive the process together with its plan's
/// programs; the next process [creates](PlanMaps::create) its plan with them.
#[derive(Debug)]
pub struct PortMaps {
    made: [(MapRole, Map); 3],
}

const PORT_ROLES: [(MapRole, &str); 3] = [
    (MapRole::Rings, "rings"),
    (MapRole::Ports, "ports"),
    (MapRole::Counters, "counters"),
];

impl PortMaps {
    /// The pinned maps of a folder; `None` unless all are there.
    ///
    /// # Errors
    /// The system's error.
    pub fn pinned(pins: &PinFolder) -> Result<Option<PortMaps>, PlanError> {
        let mut made = Vec::new();
        for (part, name) in PORT_ROLES {
            let Some(fd) = pins.get(name)? else {
                return Ok(None);
            };
            made.push((part, Map::from_fd(fd)?));
        }
        let made = made.try_into();
        Ok(made.ok().map(|made| PortMaps { made }))
    }

    /// Removes their pins, and the pins of all second halves.
    ///
    /// # Errors
    /// The system's error.
    pub fn unpin(pins: &PinFolder) -> Result<(), PlanError> {
        for (_, name) in PORT_ROLES {
            pins.unpin(name)?;
        }
        unpin_halves(pins, &[])
    }

    /// The number of ports that the maps have room for; the plan's options must
    /// have the same.
    pub fn ports_max(&self) -> u32 {
        self.made[0].1.entries_max()
    }
}

/// The maps of a plan, by role.
///
/// After a change of the plan: call [`apply`](Self::apply). If it asks for
/// programs, [`load`](Self::load) one for each hook and put it into the hook's
/// slot.
///
/// A plan's program tail-calls a second half that these maps hold. When this
/// value is dropped, or the process ends without [pins](Self::pin), programs
/// that stay attached pass every frame.
#[derive(Debug)]
pub struct PlanMaps {
    made: Vec<PlanMap>,
    /// For each hook, the edition that the installed second half belongs to, and
    /// whether it has fan-outs; 0 if none is installed.
    halves: [AtomicU64; 3],
    /// For each hook and half, whether the last loaded program
    /// [needs](Program::needs_perfmon) `CAP_PERFMON`.
    perfmon: [[AtomicBool; 2]; 3],
}

impl PlanMaps {
    /// Creates the maps of a plan and fills them. Rings of any size can be put
    /// into [`MapRole::Rings`] later.
    ///
    /// # Errors
    /// Without privilege, and if the kernel refuses a map.
    pub fn new(plan: &KernelPlan) -> Result<PlanMaps, PlanError> {
        let made = plan.maps().into_iter().map(|spec| make(plan, spec));
        Ok(PlanMaps {
            made: made.collect::<Result<_, _>>()?,
            halves: Default::default(),
            perfmon: Default::default(),
        })
    }

    /// Creates the maps of a plan, except those of the ports. A running program
    /// of an earlier plan is not disturbed.
    ///
    /// # Errors
    /// As for [`new`](Self::new); also if the plan cannot use `ports`.
    pub fn create(plan: &KernelPlan, ports: PortMaps) -> Result<PlanMaps, PlanError> {
        let mut ports = ports.made.into_iter().collect::<Vec<_>>();
        let mut made = Vec::new();
        for spec in plan.maps() {
            let known = ports.iter().position(|(part, _)| *part == spec.role);
            let Some(known) = known else {
                made.push(make(plan, spec)?);
                continue;
            };
            let (_, map) = ports.swap_remove(known);
            let found = map.entries_max();
            if found != spec.entries_max {
                return Err(PlanError::Slot {
                    slot: found,
                    ports_max: spec.entries_max,
                });
            }
            let memory = (spec.role == MapRole::Ports).then(|| map.map_memory(true));
            let memory = memory.transpose()?;
            made.push(PlanMap { spec, map, memory });
        }
        Ok(PlanMaps {
            made,
            halves: Default::default(),
            perfmon: Default::default(),
        })
    }

    /// Pins the ports' maps, unless they are pinned, and the arrays of the
    /// second halves. The arrays of another process's plan, which may still
    /// run, stay until [`pin_only`](Self::pin_only).
    ///
    /// # Errors
    /// The system's error.
    pub fn pin(&self, pins: &PinFolder) -> Result<(), PlanError> {
        for (part, name) in PORT_ROLES {
            if pins.get(name)?.is_none() {
                pins.pin(name, self.map(part))?;
            }
        }
        for (name, map) in self.half_pins()? {
            pins.pin(&name, map)?;
        }
        Ok(())
    }

    /// Removes the pins of other plans' second halves: call this when these
    /// maps' programs are in all slots.
    ///
    /// # Errors
    /// The system's error.
    pub fn pin_only(&self, pins: &PinFolder) -> Result<(), PlanError> {
        let own = self.half_pins()?;
        let own: Vec<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
        unpin_halves(pins, &own)
    }

    /// The names contain the map's id, so that two plans can be pinned
    /// together.
    fn half_pins(&self) -> Result<Vec<(String, &Map)>, PlanError> {
        let arrays = [MapRole::XdpDelivery, MapRole::TcDelivery].map(|part| self.map(part));
        let named = arrays.map(|map| Ok((format!("{HALF_PIN}{}", map.info()?.id), map)));
        named.into_iter().collect()
    }

    /// Updates the maps after a change of the plan. Changes must be applied in
    /// the order in which they were made.
    ///
    /// # Errors
    /// If maps of a new edition cannot be created; the old ones are kept.
    pub fn apply(&mut self, plan: &KernelPlan, change: &Change) -> Result<(), PlanError> {
        if change.renewed || self.is_behind(plan) {
            let mut renewed = Vec::new();
            for (place, spec) in plan.maps().into_iter().enumerate() {
                if self.made.get(place).is_none_or(|made| made.spec != spec) {
                    renewed.push((place, make(plan, spec)?));
                }
            }
            for (place, made) in renewed {
                self.made[place] = made;
            }
        }
        self.write(&change.writes);
        Ok(())
    }

    /// Makes the plan's pending writes that no change contains yet: new
    /// programs rely on them.
    pub fn flush(&self, plan: &KernelPlan) {
        if !self.is_behind(plan) {
            self.write(plan.pending());
        }
    }

    /// Whether maps of a new edition could not be created.
    fn is_behind(&self, plan: &KernelPlan) -> bool {
        let made = self.made.iter().map(|made| made.spec);
        !made.eq(plan.maps())
    }

    fn write(&self, writes: &[Write]) {
        for write in writes {
            let memory = self.made.iter().find_map(|made| {
                let is_it = made.spec.memory() == Some(write.memory);
                made.memory.as_ref().filter(|_| is_it)
            });
            let cell = memory.and_then(|memory| memory.u64(0, write.word as usize * 8));
            let cell = cell.expect("the plan writes within the maps that it describes");
            cell.store(write.value, Ordering::Release);
        }
    }

    /// Loads the first half of the plan's program for a hook. If it goes on to a
    /// second half, and the installed one belongs to another edition of index and
    /// store, or the plan has its first fan-out, the second half is loaded and
    /// installed first; running programs then tail-call it.
    ///
    /// # Errors
    /// If the program cannot be generated, or the kernel refuses it.
    pub fn load(&self, plan: &KernelPlan, hook: Hook) -> Result<Program, PlanError> {
        self.flush(plan);
        let loaded = &self.halves[hook as usize];
        let edition = self
            .made
            .iter()
            .find(|made| made.spec.role == MapRole::Index);
        let edition = edition.map_or(0, |made| u64::from(made.spec.edition)) + 1;
        let edition = edition << 1 | u64::from(plan.fans_out());
        if plan.has_second_half(hook) && loaded.load(Ordering::Relaxed) != edition {
            let second = self.load_half(plan, hook, Half::Delivery)?;
            let place = hook.place().to_ne_bytes();
            self.map(hook.delivery_role()).put(&place, &second)?;
            loaded.store(edition, Ordering::Relaxed);
        }
        self.load_half(plan, hook, Half::Subtables)
    }

    fn load_half(&self, plan: &KernelPlan, hook: Hook, half: Half) -> Result<Program, PlanError> {
        let lowered = plan.program(hook, half)?;
        let maps: Vec<BorrowedFd<'_>> = self.made.iter().map(|made| made.map.as_fd()).collect();
        let (program_type, name) = match (hook, half) {
            (Hook::Xdp, Half::Subtables) => (ProgramType::Xdp, "weir_xdp"),
            (Hook::Xdp, Half::Delivery) => (ProgramType::Xdp, "weir_xdp_put"),
            (Hook::TcIngress, Half::Subtables) => (ProgramType::SchedCls, "weir_in"),
            (Hook::TcIngress, Half::Delivery) => (ProgramType::SchedCls, "weir_in_put"),
            (Hook::TcEgress, Half::Subtables) => (ProgramType::SchedCls, "weir_out"),
            (Hook::TcEgress, Half::Delivery) => (ProgramType::SchedCls, "weir_out_put"),
        };
        let load = Load {
            name,
            frags: hook == Hook::Xdp,
            is_users: true,
            maps: &maps,
            ..Load::new(program_type)
        };
        let program = Program::load(&lowered.insns, &load).map_err(explain)?;
        let needs = &self.perfmon[hook as usize][half as usize];
        needs.store(program.needs_perfmon(), Ordering::Relaxed);
        Ok(program)
    }

    /// Whether a hook's program was loaded without the verifier's barriers
    /// against speculative execution, because the verifier accepts it only so.
    pub fn needs_perfmon(&self, hook: Hook) -> bool {
        let needs = &self.perfmon[hook as usize];
        needs.iter().any(|half| half.load(Ordering::Relaxed))
    }

    /// The map with that role.
    pub fn map(&self, part: MapRole) -> &Map {
        let found = self.made.iter().find(|made| made.spec.role == part);
        &found.expect("every part has a map").map
    }

    /// Writes a port's settings. `fresh`: the port has no losses yet.
    ///
    /// # Errors
    /// If the plan does not have that slot.
    pub fn set_port(
        &self,
        slot: u32,
        settings: PortSettings,
        fresh: bool,
    ) -> Result<(), PlanError> {
        let made = self
            .made
            .iter()
            .find(|made| made.spec.role == MapRole::Ports);
        let memory = made.and_then(|made| made.memory.as_ref());
        let word = |word: usize| memory.and_then(|memory| memory.u64(slot as usize, word * 8));
        let (Some(lost), Some(cell)) = (word(0), word(PortSettings::WORD)) else {
            let ports_max = self.map(MapRole::Ports).entries_max();
            return Err(PlanError::Slot { slot, ports_max });
        };
        if fresh {
            lost.store(0, Ordering::Release);
        }
        cell.store(settings.to_word(), Ordering::Release);
        Ok(())
    }

    /// A port's counters, summed over all CPUs, since the maps were created or
    /// the counters cleared.
    ///
    /// # Errors
    /// The system's error.
    pub fn counters(&self, slot: u32) -> Result<Counters, PlanError> {
        let map = self.map(MapRole::Counters);
        let mut counters = Counters::default();
        let values = map.lookup(&slot.to_ne_bytes())?.unwrap_or_default();
        for value in values.chunks_exact(Counters::BYTES) {
            counters.add(value);
        }
        Ok(counters)
    }

    /// Clears a port's counters, for its next owner.
    ///
    /// # Errors
    /// The system's error.
    pub fn clear_counters(&self, slot: u32) -> Result<(), PlanError> {
        let zero = vec![0; Counters::BYTES * bpf::possible_cpus()?];
        Ok(self
            .map(MapRole::Counters)
            .update(&slot.to_ne_bytes(), &zero)?)
    }
}

/// Recognises the error of a kernel that is too old.
fn explain(error: LoadError) -> PlanError {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    let release = release.unwrap_or_default().trim().to_owned();
    match error {
        source @ (LoadError::Refused { .. } | LoadError::System { .. }) if is_old(&release) => {
            PlanError::OldKernel { release, source }
        }
        error => error.into(),
    }
}

/// Whether a kernel release is before 6.9; `false` if it cannot be parsed.
fn is_old(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    match (number(), number()) {
        (Some(major), Some(minor)) => (major, minor) < (6, 9),
        _ => false,
    }
}

/// Prefix of the names of second halves' pins.
const HALF_PIN: &str = "put-";

fn unpin_halves(pins: &PinFolder, but: &[&str]) -> Result<(), PlanError> {
    let (names, _) = pins.list()?;
    let gone = names.iter().filter(|name| name.starts_with(HALF_PIN));
    for name in gone.filter(|name| !but.contains(&name.as_str())) {
        pins.unpin(name)?;
    }
    Ok(())
}

fn make(plan: &KernelPlan, spec: MapSpec) -> Result<PlanMap, PlanError> {
    let (bytes, entries) = (spec.value_bytes, spec.entries_max);
    let mapped = bpf::MapSpec {
        mmapable: true,
        ..bpf::MapSpec::array(bytes, entries)
    };
    let map = match spec.role {
        MapRole::Scratch => {
            Map::create("weir_scratch", &bpf::MapSpec::per_cpu_array(bytes, entries))?
        }
        MapRole::Index => Map::create("weir_index", &mapped)?,
        MapRole::Store => Map::create("weir_store", &mapped)?,
        MapRole::Rings => {
            let like = Map::create("weir_ring", &bpf::MapSpec::ring_buf(RING_BYTES_MIN))?;
            Map::create("weir_rings", &bpf::MapSpec::array_of_maps(entries, &like))?
        }
        MapRole::Ports => Map::create("weir_ports", &mapped)?,
        MapRole::Counters => Map::create(
            "weir_counters",
            &bpf::MapSpec::per_cpu_array(bytes, entries),
        )?,
        MapRole::XdpDelivery => Map::create("weir_xdp_put", &bpf::MapSpec::prog_array(entries))?,
        MapRole::TcDelivery => Map::create("weir_tc_put", &bpf::MapSpec::prog_array(entries))?,
    };
    let is_mapped = matches!(spec.role, MapRole::Index | MapRole::Store | MapRole::Ports);
    let memory = is_mapped.then(|| map.map_memory(true)).transpose()?;
    if let (Some(which), Some(memory)) = (spec.memory(), &memory) {
        for (index, word) in plan.contents(which).iter().enumerate() {
            if let Some(cell) = memory.u64(0, index * 8).filter(|_| *word != 0) {
                cell.store(*word, Ordering::Relaxed);
            }
        }
    }
    Ok(PlanMap { spec, map, memory })
}

/// A ring's minimum size: at least one page, whatever the page size.
const RING_BYTES_MIN: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::is_old;

    #[test]
    fn releases_are_told_apart() {
        for old in ["5.15.0-91-generic", "6.1", "6.8.12+"] {
            assert!(is_old(old), "{old}");
        }
        for new in ["6.9", "6.18.44-x", "7.0.1", "odd"] {
            assert!(!is_old(new), "{new}");
        }
    }
}
