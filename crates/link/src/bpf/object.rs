//! Objects in the kernel by number: to find what is there, also of others.

use super::attach::Attachment;
use super::map::{Map, MapError};
use super::program::Program;
use super::{is_not_permitted, sys};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// What kind of object.
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

/// Why an object was not found out about.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Privilege is missing.
    #[error("listing eBPF objects is not permitted: run as root, or with CAP_SYS_ADMIN")]
    NotPermitted,
    /// There is none of that number; it may have gone.
    #[error("there is no eBPF {kind:?} {id}")]
    Missing {
        /// The kind.
        kind: ObjectKind,
        /// The number.
        id: u32,
    },
    /// Anything else.
    #[error("the kernel did not say what there is of eBPF {kind:?} ({source})")]
    System {
        /// The kind.
        kind: ObjectKind,
        /// What the system said.
        source: io::Error,
    },
}

/// The numbers of all objects of a kind in the kernel, ascending.
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

/// A descriptor of the object of that number. For maps `read_only` gives one
/// that can change nothing; the others have no such.
///
/// # Errors
/// Without privilege, or when there is none.
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

/// What the kernel says of a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapInfo {
    /// The kernel's number for it.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// The kind, in `enum bpf_map_type`.
    pub map_type: u32,
    /// Entries, or bytes of a ring.
    pub entries_max: u32,
}

/// What the kernel says of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramInfo {
    /// The kernel's number for it.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// The type, in `enum bpf_prog_type`.
    pub program_type: u32,
    /// A hash of its instructions.
    pub tag: [u8; 8],
    /// Bytes of machine code; 0 where the kernel interprets.
    pub machine_bytes: u32,
    /// Bytes of instructions, as the verifier rewrote them.
    pub translated_bytes: u32,
    /// When it was loaded, since the start of the machine.
    pub loaded: Duration,
    /// Who loaded it.
    pub uid: u32,
    /// How many maps it uses.
    pub maps: u32,
}

impl Map {
    /// Asks the kernel.
    ///
    /// # Errors
    /// As the system says; needs no privilege.
    pub fn info(&self) -> Result<MapInfo, MapError> {
        let info = sys::map_info(self.as_fd()).map_err(|source| MapError::NotAMap { source })?;
        Ok(MapInfo {
            id: info.id,
            name: text(&info.name),
            map_type: info.map_type,
            entries_max: info.entries_max,
        })
    }

    /// Another descriptor of the same map with which nothing can be changed:
    /// to hand out counters. It is read by [`lookup`](Map::lookup); the
    /// kernel maps it into no memory.
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
    /// Asks the kernel.
    ///
    /// # Errors
    /// As the system says.
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

/// The facts of the program of that number.
///
/// # Errors
/// Without privilege, or when there is none.
pub fn program_info(id: u32) -> Result<ProgramInfo, ObjectError> {
    Program::from_fd(open(ObjectKind::Program, id, false)?).info()
}

/// The attachment of that number.
///
/// # Errors
/// Without privilege, or when there is none.
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
