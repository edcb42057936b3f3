//! Map types and the arguments of map creation.

use super::map::Map;
use std::fmt;
use std::io;

/// The type of a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapType {
    /// A hash table with any key.
    Hash,
    /// Keys are the numbers from 0; every entry exists and is 0 at first.
    Array,
    /// An array of programs, for tail calls.
    ProgArray,
    /// A hash table with a value for each CPU.
    PerCpuHash,
    /// An array with a value for each CPU.
    PerCpuArray,
    /// A hash table that evicts the least recently used entry when it is full.
    LruHash,
    /// Keys are a length in bits (32 bits, host order) and bytes; a look-up finds the longest
    /// prefix.
    LpmTrie,
    /// An array of maps.
    ArrayOfMaps,
    /// An array of interfaces to redirect frames to.
    DevMap,
    /// Interfaces to redirect frames to, with any 32-bit number as key.
    DevMapHash,
    /// An array of `AF_XDP` sockets to redirect frames to.
    XskMap,
    /// A queue of records of any length, with one reader in a process.
    RingBuf,
}

/// Each type with its number in `enum bpf_map_type`.
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

/// The arguments of [`Map::create`]; each map type has a constructor.
///
/// ```
/// use weir_link::bpf::MapSpec;
///
/// let counters = MapSpec { mmapable: true, ..MapSpec::array(8, 1024) };
/// assert_eq!(counters.to_string(), "Array, keys of 4, values of 8 bytes, 1024 entries");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MapSpec<'a> {
    /// The map's type.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Largest number of entries; for a ring, its size in bytes.
    pub entries_max: u32,
    /// Hash tables: allocate entries on insertion, so that creating a large table is fast (2^20
    /// entries: 7.5 ms instead of 40 ms).
    pub no_prealloc: bool,
    /// Arrays: can be mapped into a process, see [`Map::map_memory`].
    pub mmapable: bool,
    /// Programs may only read the map; with [`Map::freeze`] the verifier treats its values as
    /// constants.
    pub read_only_program: bool,
    /// Maps of maps: the template of the inner maps. Their numbers of entries may differ, except
    /// for arrays.
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

    /// A hash table that evicts the least recently used entry.
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

    /// A longest-prefix table; `key_bytes` includes the 4 bytes of length.
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

    /// An array of programs.
    pub const fn prog_array(slots: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::ProgArray, 4, 4, slots)
    }

    /// An array of maps like `inner`; rings may have other sizes.
    pub const fn array_of_maps(entries_max: u32, inner: &'a Map) -> MapSpec<'a> {
        MapSpec {
            inner: Some(inner),
            ..MapSpec::new(MapType::ArrayOfMaps, 4, 4, entries_max)
        }
    }

    /// Interfaces, with the numbers from 0 as keys.
    pub const fn dev_map(entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::DevMap, 4, 4, entries_max)
    }

    /// Interfaces, with any 32-bit number as key.
    pub const fn dev_map_hash(entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::DevMapHash, 4, 4, entries_max)
    }

    /// `AF_XDP` sockets, with the numbers from 0 as keys.
    pub const fn xsk_map(entries_max: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::XskMap, 4, 4, entries_max)
    }

    /// A ring of `bytes` bytes: a power of two, at least one page.
    pub const fn ring_buf(bytes: u32) -> MapSpec<'static> {
        MapSpec::new(MapType::RingBuf, 0, 0, bytes)
    }

    /// The flags `BPF_F_*`.
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

/// Number of possible CPUs: the number of values in an entry of a per-CPU map.
///
/// # Errors
/// If the kernel does not answer.
pub fn possible_cpus() -> io::Result<usize> {
    // Ranges such as `0-3` or `0,2-7`, in ascending order.
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().unwrap_or_default();
    match last.parse::<usize>() {
        Ok(number) => Ok(number + 1),
        Err(_) => Err(io::Error::other(format!("cannot read the CPUs `{text}`"))),
    }
}
