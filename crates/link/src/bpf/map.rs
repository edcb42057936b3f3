//! Maps: what a program in the kernel and one outside share.
#![allow(unsafe_code)] // Keys and values go to the kernel without their length.

use super::{is_not_permitted, kernel_name, sys};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What kind of map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapType {
    /// Any key, hashed.
    Hash,
    /// Keys are 32-bit numbers from 0; every entry exists, zero at first.
    Array,
}

impl MapType {
    /// The number in `enum bpf_map_type`.
    fn number(self) -> u32 {
        match self {
            MapType::Hash => 1,
            MapType::Array => 2,
        }
    }
}

/// Why an operation on a map failed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Privilege is missing.
    #[error("eBPF maps are not permitted: run as root, or with CAP_BPF")]
    NotPermitted,
    /// A key or a value of the wrong size.
    #[error("the map's {what} has {expected} bytes, not {found}")]
    WrongSize {
        /// Key or value.
        what: &'static str,
        /// How many bytes it was made with.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// There is no more room.
    #[error("the map is full: it was made for {entries_max} entries")]
    Full {
        /// How many it was made for.
        entries_max: u32,
    },
    /// Anything else.
    #[error("the kernel refused to {what} ({source})")]
    System {
        /// What was asked.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A map in the kernel. It goes when the last descriptor and the last program
/// that uses it are gone.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
    entries_max: u32,
}

impl Map {
    /// Makes a map for `entries_max` entries.
    ///
    /// # Errors
    /// Without privilege, and for sizes that the kernel does not take: keys
    /// of 1 to 512 bytes (arrays: 4), values of at least 1.
    pub fn create(
        name: &str,
        map_type: MapType,
        key_bytes: u32,
        value_bytes: u32,
        entries_max: u32,
    ) -> Result<Map, MapError> {
        let name = kernel_name(name);
        let made = sys::map_create(map_type.number(), key_bytes, value_bytes, entries_max, name);
        match made {
            Ok(fd) => Ok(Map {
                fd,
                key_bytes: key_bytes as usize,
                value_bytes: value_bytes as usize,
                entries_max,
            }),
            Err(error) if is_not_permitted(&error) => Err(MapError::NotPermitted),
            Err(source) => Err(MapError::System {
                what: "make a map",
                source,
            }),
        }
    }

    /// Puts `value` at `key`, in place of what is there.
    ///
    /// # Errors
    /// Wrong sizes, no room, or a refusal of the system.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), MapError> {
        self.check_key(key)?;
        self.check("value", value, self.value_bytes)?;
        // SAFETY: the sizes were checked; no type we make has values by CPU.
        let result = unsafe { sys::map_update(self.fd.as_fd(), key, value, 0) };
        result.map_err(|source| match source.raw_os_error() {
            Some(libc::E2BIG) => MapError::Full {
                entries_max: self.entries_max,
            },
            _ => self.failed("update a map", source),
        })
    }

    /// The value at `key`, if there is one.
    ///
    /// # Errors
    /// Wrong size, or a refusal of the system.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
        self.check_key(key)?;
        let mut value = vec![0; self.value_bytes];
        // SAFETY: the sizes were checked; no type we make has values by CPU.
        let result = unsafe { sys::map_lookup(self.fd.as_fd(), key, &mut value) };
        match result {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.failed("look up in a map", source)),
        }
    }

    /// Removes what is at `key`; tells whether there was anything.
    ///
    /// # Errors
    /// Wrong size, or a refusal of the system (an array's entries stay).
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
        if is_not_permitted(&source) {
            MapError::NotPermitted
        } else {
            MapError::System { what, source }
        }
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
