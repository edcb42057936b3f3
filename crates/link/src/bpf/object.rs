//! Information about BPF objects of the whole machine, by id.

use super::attach::Attachment;
use super::map::{Map, MapError};
use super::program::Program;
use super::{is_not_permitted, sys};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The kind of a BPF object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ObjectKind {
    /// A [`Program`].
    Program,
    /// A [`Map`].
    Map,
    /// An [`Attachment`].
    Attachment,
}

impl ObjectKind {
    fn index(self) -> usize {
        match self {
            ObjectKind::Program => 0,
            ObjectKind::Map => 1,
            ObjectKind::Attachment => 2,
        }
    }
}

/// Why the information about an object is not available.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The caller lacks privilege.
    #[error("listing eBPF objects is not permitted: run as root, or with CAP_SYS_ADMIN")]
    NotPermitted,
    /// No object has that id; it may have been removed.
    #[error("there is no eBPF {kind:?} {id}")]
    Missing {
        /// The kind.
        kind: ObjectKind,
        /// The object's id.
        id: u32,
    },
    /// Any other error.
    #[error("the kernel did not report eBPF {kind:?} ({source})")]
    System {
        /// The kind.
        kind: ObjectKind,
        /// The system's error.
        source: io::Error,
    },
}

/// The ids of all objects of a kind, ascending.
///
/// # Errors
/// Without privilege.
pub fn ids(kind: ObjectKind) -> Result<Vec<u32>, ObjectError> {
    let mut found = Vec::new();
    let mut last = 0;
    loop {
        match sys::next_id(sys::GET_NEXT_ID[kind.index()], last) {
            Ok(id) => found.push(id),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            Err(source) => return Err(explain(source, kind, last)),
        }
        last = found[found.len() - 1];
    }
}

/// A descriptor of the object with that id. `read_only` applies to maps only.
///
/// # Errors
/// Without privilege, or if there is no such object.
pub fn open(kind: ObjectKind, id: u32, read_only: bool) -> Result<OwnedFd, ObjectError> {
    /// `BPF_F_RDONLY`.
    const READ_ONLY: u32 = 1 << 3;
    let flags = if read_only && kind == ObjectKind::Map {
        READ_ONLY
    } else {
        0
    };
    let fd = sys::fd_by_id(sys::GET_FD[kind.index()], id, flags);
    fd.map_err(|source| explain(source, kind, id))
}

fn explain(source: io::Error, kind: ObjectKind, id: u32) -> ObjectError {
    if is_not_permitted(&source) {
        ObjectError::NotPermitted
    } else if source.kind() == io::ErrorKind::NotFound {
        ObjectError::Missing { kind, id }
    } else {
        ObjectError::System { kind, source }
    }
}

/// The kernel's information about a map (`struct bpf_map_info`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapInfo {
    /// The map's id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// The type, in `enum bpf_map_type`.
    pub map_type: u32,
    /// Largest number of entries; for a ring, its size in bytes.
    pub entries_max: u32,
}

/// The kernel's information about a program (`struct bpf_prog_info`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramInfo {
    /// The program's id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// The type, in `enum bpf_prog_type`.
    pub program_type: u32,
    /// A hash of its instructions.
    pub tag: [u8; 8],
    /// Bytes of machine code; 0 if the kernel interprets the program.
    pub machine_bytes: u32,
    /// Bytes of instructions, as rewritten by the verifier.
    pub translated_bytes: u32,
    /// Load time, since boot.
    pub loaded: Duration,
    /// The user who loaded it.
    pub uid: u32,
    /// Number of maps that it uses.
    pub maps: u32,
}

impl Map {
    /// Queries the kernel.
    ///
    /// # Errors
    /// The system's error. Needs no privilege.
    pub fn info(&self) -> Result<MapInfo, MapError> {
        let info = sys::map_info(self.as_fd()).map_err(|source| MapError::NotAMap { source })?;
        Ok(MapInfo {
            id: info.id,
            name: text(&info.name),
            map_type: info.map_type,
            entries_max: info.entries_max,
        })
    }

    /// A read-only descriptor of the map, to pass counters to another process.
    /// The map can then be read by [`lookup`](Map::lookup) but not mapped.
    ///
    /// # Errors
    /// Without privilege.
    pub fn read_only(&self) -> Result<Map, MapError> {
        let id = self.info()?.id;
        let fd = open(ObjectKind::Map, id, true).map_err(|error| match error {
            ObjectError::System { source, .. } => MapError::System {
                what: "open a map to read",
                source,
            },
            ObjectError::NotPermitted | ObjectError::Missing { .. } => MapError::NotPermitted,
        })?;
        Map::from_fd(fd)
    }
}

impl Program {
    /// The ids of the maps that the program uses.
    ///
    /// # Errors
    /// The system's error.
    pub fn map_ids(&self) -> Result<Vec<u32>, ObjectError> {
        let ids = sys::prog_map_ids(self.as_fd());
        ids.map_err(|source| explain(source, ObjectKind::Program, 0))
    }

    /// Queries the kernel.
    ///
    /// # Errors
    /// The system's error.
    pub fn info(&self) -> Result<ProgramInfo, ObjectError> {
        let kind = ObjectKind::Program;
        let info = sys::prog_info(self.as_fd()).map_err(|source| explain(source, kind, 0))?;
        Ok(ProgramInfo {
            id: info.id,
            name: text(&info.name),
            program_type: info.program_type,
            tag: info.tag,
            machine_bytes: info.machine_bytes,
            translated_bytes: info.translated_bytes,
            loaded: Duration::from_nanos(info.loaded_ns),
            uid: info.uid,
            maps: info.maps,
        })
    }
}

/// The kernel's information about the program with that id.
///
/// # Errors
/// Without privilege, or if there is no such program.
pub fn program_info(id: u32) -> Result<ProgramInfo, ObjectError> {
    Program::from_fd(open(ObjectKind::Program, id, false)?).info()
}

/// The attachment with that id.
///
/// # Errors
/// Without privilege, or if there is no such attachment.
pub fn attachment(id: u32) -> Result<Attachment, ObjectError> {
    Ok(Attachment::from_fd(open(
        ObjectKind::Attachment,
        id,
        false,
    )?))
}

fn text(name: &[u8]) -> String {
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
