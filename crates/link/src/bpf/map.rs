//! eBPF maps, shared by kernel programs and processes.
#![allow(unsafe_code)] // Keys and values go to the kernel without their length.

use super::map_spec::{MapSpec, MapType, possible_cpus};
use super::{is_not_permitted, kernel_name, sys};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use weir_ring::Reader;

/// Why an operation on a map failed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The caller lacks privilege.
    #[error("eBPF maps are not permitted: run as root, or with CAP_BPF")]
    NotPermitted,
    /// The key or value has the wrong size.
    #[error("the map's {what} has {expected} bytes, not {found}")]
    WrongSize {
        /// "key" or "value".
        what: &'static str,
        /// The map's size, in bytes.
        expected: usize,
        /// The size that the caller passed, in bytes.
        found: usize,
    },
    /// The map is full.
    #[error("the map is full: it has room for {entries_max} entries")]
    Full {
        /// The map's largest number of entries.
        entries_max: u32,
    },
    /// The descriptor is not a map.
    #[error("the descriptor is not that of a map ({source})")]
    NotAMap {
        /// The system's error.
        source: io::Error,
    },
    /// The kernel refused to create the map.
    #[error("the kernel refused a map of {spec} ({source}); {remedy}")]
    Refused {
        /// A description of the map.
        spec: String,
        /// A suggestion for the user.
        remedy: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Any other error.
    #[error("the kernel refused to {what} ({source})")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A batch that stopped before its end.
#[derive(Debug, thiserror::Error)]
#[error("{source}, after {done} entries of the batch")]
pub struct BatchError {
    /// How many entries, from the first, were processed.
    pub done: usize,
    /// The error that stopped the batch.
    #[source]
    pub source: MapError,
}

/// An eBPF map. The kernel frees it when the last descriptor, pin and program
/// that refer to it are gone.
///
/// In a map with a value for each CPU ([`MapType::is_per_cpu`]), a value is the
/// concatenation of all CPUs' values, each padded to 8 bytes
/// ([`Map::value_bytes`] is the total).
///
/// Values of maps of maps and of program arrays are written as descriptors and
/// read as object ids; [`put`](Self::put) writes them.
///
/// Updates and deletions in maps of maps wait for an RCU grace period
/// (milliseconds, up to 215 ms under load; a batch waits once). Do not call
/// them while a client waits for a reply.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    map_type: u32,
    key_bytes: usize,
    value_bytes: usize,
    entries_max: u32,
}

/// Creates a BPF ring buffer and its only reader.
///
/// # Errors
/// As for [`Map::create`], and if the ring cannot be mapped.
pub fn ring(bytes: u32) -> io::Result<(Map, Reader)> {
    let map = Map::create("weir_ring", &MapSpec::ring_buf(bytes)).map_err(io::Error::other)?;
    let fd = map.try_clone()?.into();
    // SAFETY: the ring is new; a caller that opens another reader promises that
    // no other exists.
    let reader = unsafe { Reader::open(fd) }.map_err(io::Error::other)?;
    Ok((map, reader))
}

impl Map {
    /// Creates a map.
    ///
    /// # Errors
    /// Without privilege, and for sizes that the kernel refuses: keys have 1 to
    /// 512 bytes (arrays: 4), values at least 1; a ring's size is a power of
    /// two of at least one page.
    pub fn create(name: &str, spec: &MapSpec<'_>) -> Result<Map, MapError> {
        let made = sys::map_create(sys::MapCreate {
            map_type: spec.map_type.number(),
            key_bytes: spec.key_bytes,
            value_bytes: spec.value_bytes,
            entries_max: spec.entries_max,
            flags: spec.flags(),
            inner: spec.inner.map(AsFd::as_fd),
            name: kernel_name(name),
        });
        let fd = made.map_err(|source| refused(source, spec))?;
        let map_type = spec.map_type.number();
        Ok(Map {
            fd,
            map_type,
            key_bytes: spec.key_bytes as usize,
            value_bytes: value_room(map_type, spec.value_bytes)?,
            entries_max: spec.entries_max,
        })
    }

    /// Wraps the descriptor of an existing map and queries its properties.
    ///
    /// # Errors
    /// If the descriptor is not a map.
    pub fn from_fd(fd: OwnedFd) -> Result<Map, MapError> {
        let info = sys::map_info(fd.as_fd()).map_err(|source| MapError::NotAMap { source })?;
        // Information about other objects has other layouts; the object's type
        // shows only in the descriptor's name.
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        if let Ok(target) = &link
            && !target.to_string_lossy().ends_with("bpf-map")
        {
            let source = io::Error::other(format!("it is {}", target.display()));
            return Err(MapError::NotAMap { source });
        }
        Ok(Map {
            fd,
            map_type: info.map_type,
            key_bytes: info.key_bytes as usize,
            value_bytes: value_room(info.map_type, info.value_bytes)?,
            entries_max: info.entries_max,
        })
    }

    /// The map's type; `None` if it is not one of [`MapType`].
    pub fn map_type(&self) -> Option<MapType> {
        MapType::from_number(self.map_type)
    }

    /// Bytes of a key.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Bytes of a value; with a value for each CPU, of all CPUs' values
    /// together.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Largest number of entries; for a ring, its size in bytes.
    pub fn entries_max(&self) -> u32 {
        self.entries_max
    }

    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// If the process has no free file descriptors.
    pub fn try_clone(&self) -> io::Result<Map> {
        Ok(Map {
            fd: self.fd.try_clone()?,
            ..*self
        })
    }

    /// Writes `value` at `key`, replacing an existing value.
    ///
    /// # Errors
    /// For wrong sizes, if the map is full, or if the system refuses.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), MapError> {
        self.check_key(key)?;
        self.check("value", value, self.value_bytes)?;
        // SAFETY: the sizes were checked.
        let result = unsafe { sys::map_update(self.fd.as_fd(), key, value, 0) };
        result.map_err(|source| self.failed("update a map", source))
    }

    /// Writes an object (a map, program or socket) at `key`, in a map of such
    /// objects.
    ///
    /// # Errors
    /// As for [`update`](Self::update); also if an inner map differs from the
    /// map's template.
    pub fn put(&self, key: &[u8], object: impl AsFd) -> Result<(), MapError> {
        self.update(key, &object.as_fd().as_raw_fd().to_ne_bytes())
    }

    /// The value at `key`; `None` if the map has no such key.
    ///
    /// # Errors
    /// For a wrong size, or if the system refuses.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
        self.check_key(key)?;
        let mut value = vec![0; self.value_bytes];
        // SAFETY: the sizes were checked.
        let result = unsafe { sys::map_lookup(self.fd.as_fd(), key, &mut value) };
        match result {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.failed("look up in a map", source)),
        }
    }

    /// Removes the entry at `key`; `false` if the map had no such key.
    ///
    /// # Errors
    /// For a wrong size, or if the system refuses (array entries cannot be
    /// removed).
    pub fn delete(&self, key: &[u8]) -> Result<bool, MapError> {
        self.check_key(key)?;
        // SAFETY: the size was checked.
        let result = unsafe { sys::map_delete(self.fd.as_fd(), key) };
        match result {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(self.failed("delete from a map", source)),
        }
    }

    /// The key that follows `key`, or the first key for `None`; returns `None`
    /// at the end. A key that has been removed is followed by the first key.
    ///
    /// # Errors
    /// For a wrong size, or if the system refuses.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>, MapError> {
        if let Some(key) = key {
            self.check_key(key)?;
        }
        let mut next = vec![0; self.key_bytes];
        // SAFETY: the size was checked.
        let result =
            unsafe { sys::map_next_key(self.fd.as_fd(), key.unwrap_or_default(), &mut next) };
        match result {
            Ok(()) => Ok(Some(next)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.failed("list a map", source)),
        }
    }

    /// Writes many values; `keys` and `values` are concatenated. A map of maps
    /// waits for one RCU grace period for the whole batch.
    ///
    /// # Errors
    /// At the first entry that fails; the entries before it were written.
    pub fn update_batch(&self, keys: &[u8], values: &[u8]) -> Result<(), BatchError> {
        let count = self.batch_len(keys)?;
        let expected = count as usize * self.value_bytes;
        let sized = self.check("batch of values", values, expected);
        sized.map_err(|source| BatchError { done: 0, source })?;
        // SAFETY: the sizes were checked.
        let batch = unsafe { sys::map_update_batch(self.fd.as_fd(), count, keys, values) };
        self.batch_end("update a map with a batch", batch)
    }

    /// [`put`](Self::put) for many entries.
    ///
    /// # Errors
    /// As for [`update_batch`](Self::update_batch).
    pub fn put_batch(&self, keys: &[u8], objects: &[BorrowedFd<'_>]) -> Result<(), BatchError> {
        let fds = objects.iter().flat_map(|fd| fd.as_raw_fd().to_ne_bytes());
        self.update_batch(keys, &fds.collect::<Vec<u8>>())
    }

    /// Removes many keys, which are concatenated.
    ///
    /// # Errors
    /// At the first key that is missing, or as for [`delete`](Self::delete);
    /// the keys before it were removed.
    pub fn delete_batch(&self, keys: &[u8]) -> Result<(), BatchError> {
        let count = self.batch_len(keys)?;
        // SAFETY: the size was checked.
        let batch = unsafe { sys::map_delete_batch(self.fd.as_fd(), count, keys) };
        self.batch_end("delete a batch from a map", batch)
    }

    /// Reads all entries, at most `entries_max`: keys and values, each
    /// concatenated in the same order.
    ///
    /// # Errors
    /// If the kernel cannot read this map type in batches.
    pub fn entries(&self) -> Result<(Vec<u8>, Vec<u8>), MapError> {
        let count = self.entries_max;
        let mut keys = vec![0; count as usize * self.key_bytes];
        let mut values = vec![0; count as usize * self.value_bytes];
        let mut next = vec![0; self.key_bytes.max(4)];
        let fd = self.fd.as_fd();
        // SAFETY: there is room for the map's largest number of entries, and
        // for the cursor, which is a key or a bucket's number.
        let batch =
            unsafe { sys::map_lookup_batch(fd, count, &[], &mut next, &mut keys, &mut values) };
        match batch.result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(self.failed("read a map whole", error));
            }
            _ => {}
        }
        keys.truncate(batch.done * self.key_bytes);
        values.truncate(batch.done * self.value_bytes);
        Ok((keys, values))
    }

    /// Freezes the map: processes can no longer change it.
    ///
    /// # Errors
    /// If it is mapped for writing, or already frozen.
    pub fn freeze(&self) -> Result<(), MapError> {
        let result = sys::map_freeze(self.fd.as_fd());
        result.map_err(|source| self.failed("freeze a map", source))
    }

    fn batch_len(&self, keys: &[u8]) -> Result<u32, BatchError> {
        let count = keys.len() / self.key_bytes.max(1);
        let sized = self.check("batch of keys", keys, count * self.key_bytes);
        sized.map_err(|source| BatchError { done: 0, source })?;
        u32::try_from(count).map_err(|_| BatchError {
            done: 0,
            source: MapError::Full {
                entries_max: self.entries_max,
            },
        })
    }

    fn batch_end(&self, what: &'static str, batch: sys::Batch) -> Result<(), BatchError> {
        batch.result.map_err(|source| BatchError {
            done: batch.done,
            source: self.failed(what, source),
        })
    }

    fn check_key(&self, key: &[u8]) -> Result<(), MapError> {
        self.check("key", key, self.key_bytes)
    }

    fn check(&self, what: &'static str, bytes: &[u8], expected: usize) -> Result<(), MapError> {
        let found = bytes.len();
        if found == expected {
            Ok(())
        } else {
            Err(MapError::WrongSize {
                what,
                expected,
                found,
            })
        }
    }

    fn failed(&self, what: &'static str, source: io::Error) -> MapError {
        match source.raw_os_error() {
            Some(libc::E2BIG) => MapError::Full {
                entries_max: self.entries_max,
            },
            _ if is_not_permitted(&source) => MapError::NotPermitted,
            _ => MapError::System { what, source },
        }
    }
}

/// Bytes that the kernel reads and writes for one value.
fn value_room(map_type: u32, value_bytes: u32) -> Result<usize, MapError> {
    let bytes = value_bytes as usize;
    // The largest map type is 21; unknown ones may also have a value for each
    // CPU.
    let per_cpu = map_type == 21 || MapType::from_number(map_type).is_some_and(MapType::is_per_cpu);
    if !per_cpu {
        return Ok(bytes);
    }
    let cpus = possible_cpus().map_err(|source| MapError::System {
        what: "say how many CPUs there may be (is /sys mounted?)",
        source,
    })?;
    Ok(bytes.next_multiple_of(8) * cpus)
}

fn refused(source: io::Error, spec: &MapSpec<'_>) -> MapError {
    let remedy = match source.raw_os_error() {
        _ if is_not_permitted(&source) => return MapError::NotPermitted,
        Some(libc::ENOMEM) => "memory for it is missing, or the limit of locked memory is reached",
        Some(libc::E2BIG) => "it is larger than the kernel allows",
        _ => "check its sizes, and that the kernel knows the kind (Linux 6.1 knows all of ours)",
    };
    MapError::Refused {
        spec: spec.to_string(),
        remedy,
        source,
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Map> for OwnedFd {
    fn from(map: Map) -> OwnedFd {
        map.fd
    }
}
