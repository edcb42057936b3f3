//! What a map is to be.

use super::map::Map;
use std::fmt;
use std::io;

/// What kind of map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapType {
    /// Any key, hashed.
    Hash,
    /// Keys are 32-bit numbers from 0; every entry exists, zero at first.
    Array,
    /// Programs to go on in, by number.
    ProgArray,
    /// As `Hash`, with a value for each CPU.
    PerCpuHash,
    /// As `Array`, with a value for each CPU.
    PerCpuArray,
    /// As `Hash`; when full, what was used least of late goes.
    LruHash,
    /// Keys are a length in bits (32 bits, host order) and bytes; the longest
    /// prefix is found.
    LpmTrie,
    /// Maps, by number.
    ArrayOfMaps,
    /// Interfaces to redirect to, by number.
    DevMap,
    /// Interfaces to redirect to, by any 32-bit number.
    DevMapHash,
    /// `AF_XDP` sockets to redirect to, by number.
    XskMap,
    /// A queue of records of any length to one reader outside.
    RingBuf,
}

/// Each kind with its number in `enum bpf_map_type`.
const NUMBERS: [(MapType, u32); 12] = [
    (MapType::Hash, 1),
    (MapType::Array, 2),
    (MapType::ProgArray, 3),
    (MapType::PerCpuHash, 5),
    (MapType::PerCpuArray, 6),
    (MapType::LruHash, 9),
    (MapType::LpmTrie, 11),
    (MapType::ArrayOfMaps, 12),
    (MapType::DevMap, 14),
    (MapType::XskMap, 17),
    (MapType::DevMapHash, 25),
    (MapType::RingBuf, 27),
];

impl MapType {
    /// The number in `enum bpf_map_type`.
    pub(super) fn number(self) -> u32 {
        let row = NUMBERS.iter().find(|(map_type, _)| *map_type == self);
        row.expect("every kind has a row").1
    }

    pub(super) fn from_number(number: u32) -> Option<MapType> {
        let row = NUMBERS.iter().find(|(_, known)| *known == number);
        row.map(|(map_type, _)| *map_type)
    }

    /// Whether each CPU has a value of its own.
    pub fn is_per_cpu(self) -> bool {
        matches!(self, MapType::PerCpuHash | MapType::PerCpuArray)
    }
}

/// What a map is to be: start from the function named after the kind.
///
/// ```
/// use weir_link::bpf::MapSpec;
///
/// let counters = MapSpec { mmapable: true, ..MapSpec::array(8, 1024) };
/// assert_eq!(counters.to_string(), "Array, keys of 4, values of 8 bytes, 1024 entries");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MapSpec<'a> {
    /// The kind.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Entries; a ring: its bytes.
    pub entries_max: u32,
    /// Hash tables: take memory as entries come, so that a large one is made
    /// at once (2^20 entries: 7.5 ms against 40).
    pub no_prealloc: bool,
    /// Arrays: may be mapped into memory, see [`Map::map_memory`].
    pub mmapable: bool,
    /// Programs may read it only; together with [`Map::freeze`] the verifier
    /// takes its values for constants.
    pub read_only_program: bool,
    /// Maps of maps: one like those that will go in (their number of entries
    /// may differ, but for arrays).
    pub inner: Option<&'a Map>,
}

impl<'a> MapSpec<'a> {
    const fn new(
        map_type: MapType,
        key_bytes: u32,
        value_bytes: u32,
        entries_max: u32,
    ) -> MapSpec<'static> {
        MapSpec {
            map_type,
            key_bytes,
            value_bytes,
            entries_max,
            no_prealloc: false,
            mmapable: false,
            read_only_program: false,
            inner: None,
        }
    }

    /// A hash table.
    pub const fn hash(key_bytes: u32, value_bytes: u32, entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::Hash, key_bytes, value_bytes, entries_max)
    }

    /// A hash table that forgets.
    pub const fn lru_hash(key_bytes: u32, value_bytes: u32, entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::LruHash, key_bytes, value_bytes, entries_max)
    }

    /// A hash table with a value for each CPU.
    pub const fn per_cpu_hash(
        key_bytes: u32,
        value_bytes: u32,
        entries_max: u32,
    ) -> MapSpec<'static> {
        MapSpec::new(MapType::PerCpuHash, key_bytes, value_bytes, entries_max)
    }

    /// A table of prefixes; `key_bytes` counts the 4 bytes of length.
    pub const fn lpm_trie(key_bytes: u32, value_bytes: u32, entries_max: u32) -> MapSpec<'static> {
        MapSpec {
            no_prealloc: true,
            ..MapSpec::new(MapType::LpmTrie, key_bytes, value_bytes, entries_max)
        }
    }

    /// An array.
    pub const fn array(value_bytes: u32, entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::Array, 4, value_bytes, entries_max)
    }

    /// An array with a value for each CPU.
    pub const fn per_cpu_array(value_bytes: u32, entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::PerCpuArray, 4, value_bytes, entries_max)
    }

    /// Slots for programs.
    pub const fn prog_array(slots: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::ProgArray, 4, 4, slots)
    }

    /// Maps by number, all like `inner`; rings may be of other sizes.
    pub const fn array_of_maps(entries_max: u32, inner: &'a Map) -> MapSpec<'a> {
        MapSpec {
            inner: Some(inner),
            ..MapSpec::new(MapType::ArrayOfMaps, 4, 4, entries_max)
        }
    }

    /// Interfaces by number.
    pub const fn dev_map(entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::DevMap, 4, 4, entries_max)
    }

    /// Interfaces by any 32-bit number.
    pub const fn dev_map_hash(entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::DevMapHash, 4, 4, entries_max)
    }

    /// `AF_XDP` sockets by number.
    pub const fn xsk_map(entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::XskMap, 4, 4, entries_max)
    }

    /// A ring of `bytes`: a power of two, at least a page.
    pub const fn ring_buf(bytes: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::RingBuf, 0, 0, bytes)
    }

    /// In `BPF_F_*`.
    pub(super) fn flags(&self) -> u32 {
        let flag = |set: bool, bit: u32| u32::from(set) << bit;
        flag(self.no_prealloc, 0) | flag(self.read_only_program, 7) | flag(self.mmapable, 10)
    }
}

impl fmt::Display for MapSpec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value, entries) = (self.key_bytes, self.value_bytes, self.entries_max);
        if self.map_type == MapType::RingBuf {
            return write!(f, "RingBuf, {entries} bytes");
        }
        write!(
            f,
            "{:?}, keys of {key}, values of {value} bytes, {entries} entries",
            self.map_type
        )
    }
}

/// How many CPUs the kernel has a place for: as many values has an entry of a
/// map with one for each CPU.
///
/// # Errors
/// Where the kernel does not say.
pub fn possible_cpus() -> io::Result<usize> {
    // Ranges such as `0-3` or `0,2-7`, in ascending order.
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().unwrap_or_default();
    match last.parse::<usize>() {
        Ok(number) => Ok(number + 1),
        Err(_) => Err(io::Error::other(format!("cannot read the CPUs `{text}`"))),
    }
}
