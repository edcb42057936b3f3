//! The maps of a meter: their sizes, how they are made, pinned and found again.

use super::error::MeterError;
use super::layout::{
    CARRY_PAGES_MAX, CARRY_SLOTS, CONTROL_BYTES, LEASE_BYTES, LEASE_CPUS, LINE_BYTES, PAGE_BYTES,
    POLICY_BYTES, PORT_PROTOCOLS, PROBES, SERVICES_BYTES, SLOT_BYTES, SLOTS, V4_SLOTS, VERSION,
    VERSION_MEASURES, at, count_words, place, total_bytes,
};
use super::measures::Shape;
use crate::bpf::{Map, MapSpec, PinFolder, possible_cpus};
use rustix::time::{ClockId, clock_gettime};
use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use weir_filter::ir::Program;
use weir_filter::lang::expr::Names;
use weir_meter::config::MeasureConfig;
use weir_meter::services::{self, Services};
use weir_wire::LinkType;

/// Subscribers of one meter, at most; also keys, and unknown keys.
pub const SUBSCRIBERS_MAX: u32 = 1 << 22;

/// The shape of a meter.
#[derive(Clone, Copy)]
pub struct MeterSpec<'a> {
    /// Rows of sessions.
    pub subscribers: u32,
    /// Keys of all sessions; the table has room for twice as many.
    pub keys: u32,
    /// Addresses without a session that are counted apart, at most; rounded up to a power of two, at
    /// least 128. With 0 all of them are one sum.
    pub unknown: u32,
    /// The services.
    pub services: &'a Services,
    /// Names in the filters of services.
    pub names: &'a dyn Names,
    /// Whether bytes are those of IP packets, not of frames.
    pub counts_ip: bool,
    /// Whether rows may have policies: 72 bytes a row more, 32 for each CPU up to eight, and 32 for
    /// each class of a row.
    pub polices: bool,
    /// Measures beside packets and bytes: for each class of a row, both directions and both banks,
    /// eight bytes for each of their columns and words of state; flows have a table beside.
    pub measures: &'a [MeasureConfig],
    /// Whether it is noted when an unknown key was entered.
    pub adopts: bool,
}

/// The filters of services, compiled.
pub(super) fn filters(spec: &MeterSpec<'_>) -> Result<Vec<(u16, Program)>, MeterError> {
    let mut filters = Vec::new();
    for (number, service) in spec.services.list().iter().enumerate() {
        if let Some(text) = &service.filter {
            let program = services::compile(text, LinkType::EN10MB, spec.names);
            let program = program.map_err(|source| MeterError::Filter {
                service: service.name.clone(),
                source,
            })?;
            filters.push((number as u16, program));
        }
    }
    Ok(filters)
}

/// A hash of what the services are, the same in each build: each number that is hashed is stated
/// here, and each list is preceded by its length.
fn meaning(services: &Services) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    let mut number = |value: usize| hasher.write(&(value as u64).to_le_bytes());
    let text = |number: &mut dyn FnMut(usize), text: &str| {
        number(text.len());
        text.bytes().for_each(|byte| number(byte.into()));
    };
    for service in services.list() {
        text(&mut number, &service.name);
        number(service.ports.len());
        for (protocol, ports) in &service.ports {
            number(protocol.0.into());
            number((*ports.start()).into());
            number((*ports.end()).into());
        }
        number(service.protocols.len());
        for protocol in &service.protocols {
            number(protocol.0.into());
        }
        number(service.filter.is_some().into());
        if let Some(filter) = &service.filter {
            text(&mut number, filter);
        }
    }
    hasher.finish()
}

/// Sizes of a meter, as its control page states them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    pub(super) subscribers: u32,
    pub(super) slot_pages: u32,
    pub(super) unknown_pages: u32,
    pub(super) classes: u32,
    /// A hash of the services and of the unit of bytes.
    pub(super) meaning: u64,
    pub(super) seed: u64,
    pub(super) counts_ip: bool,
    pub(super) polices: bool,
    /// CPUs that have leases.
    pub(super) lease_cpus: u32,
    /// The sizes for measures.
    pub(super) shape: Shape,
}

impl Geometry {
    pub(super) fn new(spec: &MeterSpec<'_>) -> Result<Geometry, MeterError> {
        for size in [spec.subscribers, spec.keys, spec.unknown.max(1)] {
            if !(1..=SUBSCRIBERS_MAX).contains(&size) {
                let found = size.into();
                return Err(MeterError::Size { found });
            }
        }
        let pages = |slots: u32| slots.next_power_of_two().max(SLOTS) / SLOTS;
        let unknown_pages = if spec.unknown == 0 {
            0
        } else {
            pages(spec.unknown)
        };
        let geometry = Geometry {
            subscribers: spec.subscribers,
            slot_pages: (2 * spec.keys).div_ceil(SLOTS),
            unknown_pages,
            classes: spec.services.len() as u32,
            // The lowest bit is the unit's, so that counts of an earlier meter say theirs.
            meaning: meaning(spec.services) & !1 | u64::from(spec.counts_ip),
            seed: RandomState::new().hash_one(0),
            counts_ip: spec.counts_ip,
            polices: spec.polices,
            lease_cpus: if spec.polices {
                (possible_cpus()? as u32).min(LEASE_CPUS)
            } else {
                0
            },
            shape: Shape::new(spec),
        };
        // The kernel numbers them by 32 bits.
        match geometry.cells() {
            found if found > u32::MAX.into() => Err(MeterError::Cells { found }),
            _ => Ok(geometry),
        }
    }

    /// Whether counters of these sizes and this meaning are the same counters.
    pub(super) fn is_like(&self, other: &Geometry) -> bool {
        Geometry {
            seed: other.seed,
            ..self.clone()
        } == *other
    }

    pub(super) fn unknown(&self) -> u32 {
        self.unknown_pages * SLOTS
    }

    pub(super) fn rows(&self) -> u32 {
        self.subscribers + self.unknown() + 1
    }

    /// Keys that the table was made for.
    pub(super) fn keys(&self) -> u32 {
        self.slot_pages * SLOTS / 2
    }

    /// Lines of `v4`.
    pub(super) fn v4_lines(&self) -> u32 {
        self.slot_pages * SLOTS / V4_SLOTS
    }

    /// Keys in the kernel's hash table: 8 times the share that finds no slot at half load.
    fn spill(&self) -> u32 {
        (self.keys() / 32).max(1024)
    }

    /// Bytes of a cell.
    pub(super) fn cell(&self) -> u32 {
        8 * (count_words(self.polices) + self.shape.words())
    }

    /// Cells of both banks.
    pub(super) fn cells(&self) -> u64 {
        4 * u64::from(self.classes) * u64::from(self.rows())
    }

    /// The number of a cell.
    pub(super) fn cell_at(&self, bank: u64, column: usize, row: u32) -> usize {
        let column = bank as usize * 2 * self.classes as usize + column;
        column * self.rows() as usize + row as usize
    }

    /// Pages of `carry`: those of the overflow row, and those that all cells share, a power of two.
    pub(super) fn carry_pages(&self) -> (u32, u32) {
        let own = (8 * self.classes).div_ceil(CARRY_SLOTS);
        let slots = self.cells().next_power_of_two() / u64::from(CARRY_SLOTS);
        (own, slots.clamp(1, CARRY_PAGES_MAX.into()) as u32)
    }

    /// Bytes of a total.
    pub(super) fn total(&self) -> u32 {
        total_bytes(self.polices)
    }

    /// Rows that may have a policy.
    fn policed_rows(&self) -> u32 {
        if self.polices { self.subscribers } else { 1 }
    }

    fn tag_bytes(&self) -> u32 {
        if self.polices { 16 } else { 8 }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let pages = |count: u32| u64::from(count) * u64::from(PAGE_BYTES);
        // Of an entry of a preallocated hash table: key, value, and the kernel's 48 bytes.
        let spill = u64::from(self.spill()) * 88;
        let cells = self.cells() * u64::from(self.cell());
        let (own, shared) = self.carry_pages();
        let per_row = POLICY_BYTES + LEASE_BYTES * 2 * self.lease_cpus;
        let policies = u64::from(per_row) * u64::from(self.policed_rows());
        let tags = u64::from(self.tag_bytes()) * u64::from(self.subscribers);
        policies
            + self.shape.flow_bytes()
            + pages(self.slot_pages)
            + pages(self.unknown_pages.max(1))
            + pages(own + shared)
            + u64::from(self.v4_lines()) * u64::from(LINE_BYTES)
            + spill
            + cells
            + tags
            + u64::from(SERVICES_BYTES)
    }
}

/// The maps.
#[derive(Debug)]
pub(super) struct Maps {
    pub(super) control: Map,
    pub(super) slots: Map,
    pub(super) spill: Map,
    pub(super) unknown: Map,
    pub(super) cells: Map,
    pub(super) totals: Map,
    pub(super) services: Map,
    pub(super) policies: Map,
    pub(super) leases: Map,
    pub(super) carry: Map,
    pub(super) v4: Map,
    pub(super) tags: Map,
    /// With that measure.
    pub(super) flows: Option<Map>,
}

/// The control map's name in the kernel.
pub(super) const CONTROL_NAME: &str = "weir_meter";

/// Names of pins, in the order of [`Maps::all`].
const PINS: [&str; 12] = [
    "meter-control",
    "meter-slots",
    "meter-spill",
    "meter-unknown",
    "meter-cells",
    "meter-totals",
    "meter-services",
    "meter-policies",
    "meter-leases",
    "meter-carry",
    "meter-v4",
    "meter-tags",
];

/// The name of the pin of flows.
const FLOWS_PIN: &str = "meter-flows";

impl Maps {
    pub(super) fn create(geometry: &Geometry, services: &Services) -> Result<Maps, MeterError> {
        let array = |name: &str, value_bytes: u32, entries: u32| {
            let spec = MapSpec {
                mmapable: true,
                ..MapSpec::array(value_bytes, entries)
            };
            Map::create(name, &spec)
        };
        let cpus = possible_cpus()? as u32;
        let (own, shared) = geometry.carry_pages();
        let maps = Maps {
            control: array(CONTROL_NAME, CONTROL_BYTES, 1)?,
            slots: array("weir_meter_keys", PAGE_BYTES, geometry.slot_pages)?,
            spill: Map::create("weir_meter_spil", &MapSpec::hash(24, 8, geometry.spill()))?,
            unknown: array("weir_meter_unkn", PAGE_BYTES, geometry.unknown_pages.max(1))?,
            cells: array("weir_meter_cell", geometry.cell(), geometry.cells() as u32)?,
            carry: array("weir_meter_carr", PAGE_BYTES, own + shared)?,
            v4: array("weir_meter_v4", LINE_BYTES, geometry.v4_lines())?,
            totals: array("weir_meter_tot", 4 * geometry.total(), cpus)?,
            services: array("weir_meter_serv", SERVICES_BYTES, 1)?,
            policies: array("weir_meter_pol", POLICY_BYTES, geometry.policed_rows())?,
            leases: array(
                "weir_meter_leas",
                LEASE_BYTES,
                geometry.policed_rows() * 2 * geometry.lease_cpus.max(1),
            )?,
            tags: array(
                "weir_meter_tags",
                geometry.tag_bytes(),
                geometry.subscribers,
            )?,
            flows: match geometry.shape.flow_pages {
                0 => None,
                pages => Some(array("weir_meter_flow", PAGE_BYTES, pages)?),
            },
        };
        maps.write_services(services)?;
        let control = maps.control.map_memory(true)?;
        let made = [ClockId::Monotonic, ClockId::Realtime].map(|clock| {
            let time = clock_gettime(clock);
            (time.tv_sec.saturating_mul(1_000_000_000) + time.tv_nsec).cast_unsigned()
        });
        for (at, value) in [
            (at::BOOT_EPOCH, RandomState::new().hash_one(1)),
            (at::PERIOD + 8, 1),
            (at::SUBSCRIBERS, geometry.subscribers.into()),
            (at::SLOT_PAGES, geometry.slot_pages.into()),
            (at::UNKNOWN_PAGES, geometry.unknown_pages.into()),
            (at::CLASSES, geometry.classes.into()),
            (at::MEANING, geometry.meaning),
            (at::SEED, geometry.seed),
            (at::ROWS_USED, 1),
            (at::MADE, made[0]),
            (at::MADE + 8, made[1]),
            (at::POLICES, geometry.polices.into()),
            (at::LEASE_CPUS, geometry.lease_cpus.into()),
            (at::MEASURES, geometry.shape.meaning),
            (at::COLUMNS, geometry.shape.columns.into()),
            (at::STATES, geometry.shape.states.into()),
            (at::FLOW_PAGES, geometry.shape.flow_pages.into()),
            (at::FLOW_IDLE, geometry.shape.flow_idle_ns),
            (at::AT_LEAST, geometry.shape.at_least.into()),
            // Last, since it says that the rest is there.
            (at::VERSION, version(&geometry.shape)),
        ] {
            let word = control.u64(0, at).expect("a word of the page");
            word.store(value, Ordering::Release);
        }
        Ok(maps)
    }

    fn write_services(&self, services: &Services) -> Result<(), MeterError> {
        let mut memory = self.services.map_memory(true)?;
        let none = [u8::MAX; 1 << 16];
        memory.write(0, 0, services.protocol_table());
        for (number, protocol) in PORT_PROTOCOLS.into_iter().enumerate() {
            let found = services.port_tables().find(|(of, _)| of.0 == protocol);
            let table = found.map_or(&none[..], |(_, table)| table);
            memory.write(0, 256 + (number << 16), table);
        }
        Ok(())
    }

    fn all(&self) -> [&Map; 12] {
        [
            &self.control,
            &self.slots,
            &self.spill,
            &self.unknown,
            &self.cells,
            &self.totals,
            &self.services,
            &self.policies,
            &self.leases,
            &self.carry,
            &self.v4,
            &self.tags,
        ]
    }

    /// Those that the stage names, in the order of its places.
    pub(super) fn of_stage(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let stage = self.all().into_iter().take(place::FLOWS.into());
        stage.chain(&self.flows).map(AsFd::as_fd)
    }

    pub(super) fn boot_epoch(&self) -> Result<u64, MeterError> {
        let control = self.control.map_memory(false)?;
        Ok(control.load_u64(0, at::BOOT_EPOCH).unwrap_or(0))
    }

    /// Pins all in place of what is there; the control page last, since it says that they are whole.
    pub(super) fn pin(&self, folder: &PinFolder) -> Result<(), MeterError> {
        folder.unpin(PINS[0])?;
        folder.unpin(FLOWS_PIN)?;
        if let Some(flows) = &self.flows {
            folder.pin(FLOWS_PIN, flows)?;
        }
        let pairs = PINS.into_iter().zip(self.all());
        for (name, map) in pairs.rev() {
            folder.unpin(name)?;
            folder.pin(name, map)?;
        }
        Ok(())
    }

    /// Opens the pinned maps, if they are complete.
    pub(super) fn open(folder: &PinFolder) -> Result<Option<(Maps, Geometry)>, MeterError> {
        // An earlier layout has fewer maps.
        if let Some(control) = folder.get(PINS[0])? {
            let memory = Map::from_fd(control)?.map_memory(false)?;
            let found = memory.load_u64(0, at::VERSION).unwrap_or(0);
            let known = [VERSION, VERSION_MEASURES];
            if !known.contains(&found) {
                return Err(MeterError::OtherVersion { found, known });
            }
        }
        let mut found = Vec::new();
        for name in PINS {
            match folder.get(name)? {
                Some(fd) => found.push(Map::from_fd(fd)?),
                None => return Ok(None),
            }
        }
        let Ok(
            [
                control,
                slots,
                spill,
                unknown,
                cells,
                totals,
                services,
                policies,
                leases,
                carry,
                v4,
                tags,
            ],
        ) = <[Map; 12]>::try_from(found)
        else {
            return Ok(None);
        };
        let memory = control.map_memory(false)?;
        let word = |at| memory.load_u64(0, at).unwrap_or(0);
        let geometry = Geometry {
            subscribers: word(at::SUBSCRIBERS) as u32,
            slot_pages: word(at::SLOT_PAGES) as u32,
            unknown_pages: word(at::UNKNOWN_PAGES) as u32,
            classes: word(at::CLASSES) as u32,
            meaning: word(at::MEANING),
            seed: word(at::SEED),
            counts_ip: word(at::MEANING) & 1 == 1,
            polices: word(at::POLICES) != 0,
            lease_cpus: word(at::LEASE_CPUS) as u32,
            shape: Shape {
                meaning: word(at::MEASURES),
                columns: word(at::COLUMNS) as u32,
                states: word(at::STATES) as u32,
                flow_pages: word(at::FLOW_PAGES) as u32,
                flow_idle_ns: word(at::FLOW_IDLE),
                at_least: word(at::AT_LEAST) as u32,
            },
        };
        let flows = match folder.get(FLOWS_PIN)? {
            Some(fd) => Some(Map::from_fd(fd)?),
            None if geometry.shape.flow_pages > 0 => return Ok(None),
            None => None,
        };
        let maps = Maps {
            control,
            slots,
            spill,
            unknown,
            cells,
            totals,
            services,
            policies,
            leases,
            carry,
            v4,
            tags,
            flows,
        };
        Ok(Some((maps, geometry)))
    }
}

/// The start of the names of folders with meters that were replaced.
pub(super) const REPLACED: &str = "previous-";

/// The meters that were replaced, and whose counts are not read yet, by the names of their folders:
/// the oldest first. Not that of `epoch`, which is in its own place as well, and not what a process
/// that died has left in part.
pub(super) fn replaced(
    folder: &PinFolder,
    epoch: Option<u64>,
) -> Result<Vec<(String, Maps, Geometry)>, MeterError> {
    let (_, names) = folder.list()?;
    let number = |name: &String| name.strip_prefix(REPLACED)?.parse::<u64>().ok();
    let mut names: Vec<(u64, String)> = names
        .into_iter()
        .filter_map(|name| Some((number(&name)?, name)))
        .collect();
    names.sort_unstable();
    let mut found = Vec::new();
    for (_, name) in names {
        let maps = match folder.existing(&name)? {
            Some(inner) => Maps::open(&inner)?,
            None => None,
        };
        match maps {
            Some((maps, geometry)) if Some(maps.boot_epoch()?) != epoch => {
                found.push((name, maps, geometry));
            }
            _ => forget(folder, &name)?,
        }
    }
    Ok(found)
}

/// Moves the pins of a meter into a folder of their own; gives its name.
pub(super) fn replace(folder: &PinFolder, maps: &Maps) -> Result<String, MeterError> {
    let (_, names) = folder.list()?;
    let numbers = names.iter().filter_map(|name| name.strip_prefix(REPLACED));
    let last = numbers
        .filter_map(|number| number.parse::<u64>().ok())
        .max();
    let name = format!("{REPLACED}{}", last.map_or(0, |last| last + 1));
    maps.pin(&folder.folder(&name)?)?;
    unpin(folder)?;
    Ok(name)
}

/// Removes the folder of a meter that was replaced.
pub(super) fn forget(folder: &PinFolder, name: &str) -> Result<(), MeterError> {
    if let Some(inner) = folder.existing(name)? {
        unpin(&inner)?;
        folder.remove_folder(name)?;
    }
    Ok(())
}

/// Removes all pins of a meter: its maps go when the last program that uses them has gone.
///
/// # Errors
/// When a pin cannot be removed.
pub(super) fn unpin(folder: &PinFolder) -> Result<(), MeterError> {
    for name in PINS.into_iter().chain([FLOWS_PIN]) {
        folder.unpin(name)?;
    }
    Ok(())
}

/// The version of the layout of counters with these measures.
fn version(shape: &Shape) -> u64 {
    if shape.meaning == 0 {
        VERSION
    } else {
        VERSION_MEASURES
    }
}

const _: () = assert!(PROBES <= SLOTS && SLOT_BYTES * SLOTS == PAGE_BYTES);
