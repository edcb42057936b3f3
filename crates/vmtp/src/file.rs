//! A service that reads files: weir's own, in place of V's file access, which
//! the 1987 paper measured ("reading zero bytes from a file", §6.3).
//!
//! ```text
//!  request 1 (read)   user data: offset 8 bytes │ length 4       segment: name, UTF-8
//!  response 0 (OK)    user data: file's length 8 │ version 4     segment: the bytes
//! ```
//!
//! The version changes with the file's time of modification: a client that
//! reads a file in several transactions sees that the file has changed
//! meanwhile. A read has no effect, so a response of one packet is marked
//! idempotent.

use crate::segment::SEGMENT_LEN_MAX;
use crate::{Entity, Incoming, Reply, Request, Response};
use std::net::Ipv4Addr;

/// The request code of a read.
pub const READ: u32 = 1;
/// Response code: there is no such file, or it is not served.
pub const NOT_FOUND: u32 = 0x100;
/// Response code: the file cannot be read.
pub const UNREADABLE: u32 = 0x101;
/// Response code: the request is none of this service.
pub const NOT_UNDERSTOOD: u32 = 0x102;
/// Length of the longest name, in bytes.
pub const NAME_LEN_MAX: usize = 1024;
/// The discriminator of the service on its host.
pub const SERVICE: u32 = 1045;
/// The group of all file servers; its address is of those that VMTP's groups had
/// (RFC 1112's time: 232.0.0.0/8).
pub const GROUP: Entity = Entity::group(SERVICE, Ipv4Addr::new(232, 0, 4, 21));
/// Responses up to this length are idempotent.
const IDEMPOTENT_LEN_MAX: usize = 1024;

/// A part of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Read {
    /// The file's path below the served folder, with slashes.
    pub name: String,
    /// The first byte's offset.
    pub offset: u64,
    /// Number of bytes, at most [`SEGMENT_LEN_MAX`].
    pub len: u32,
}

/// What a server answers to a [`Read`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Length of the whole file, in bytes.
    pub file_len: u64,
    /// A number that changes with the file.
    pub version: u32,
    /// The bytes that are there, from the offset on.
    pub bytes: Vec<u8>,
}

impl Read {
    /// The request.
    pub fn request(&self, server: Entity) -> Request {
        Request {
            user_data: [(self.offset >> 32) as u32, self.offset as u32, self.len],
            segment: self.name.clone().into_bytes(),
            ..Request::new(server, READ)
        }
    }

    /// Reads a request; `None` if it is another.
    pub fn parse(request: &Incoming) -> Option<Read> {
        let [high, low, len] = request.user_data;
        let known = request.code == READ && request.segment.len() <= NAME_LEN_MAX;
        if !known || len as usize > SEGMENT_LEN_MAX {
            return None;
        }
        Some(Read {
            name: String::from_utf8(request.segment.clone()).ok()?,
            offset: u64::from(high) << 32 | u64::from(low),
            len,
        })
    }
}

impl Part {
    /// The reply.
    ///
    /// # Panics
    /// If there are more than [`SEGMENT_LEN_MAX`] bytes.
    pub fn reply(self) -> Reply {
        Reply {
            code: 0,
            user_data: [
                (self.file_len >> 32) as u32,
                self.file_len as u32,
                self.version,
            ],
            idempotent: self.bytes.len() <= IDEMPOTENT_LEN_MAX,
            segment: self.bytes,
        }
    }

    /// Reads a response.
    ///
    /// # Errors
    /// The response code, if it is not OK.
    pub fn parse(response: Response) -> Result<Part, u32> {
        if response.code != 0 {
            return Err(response.code);
        }
        let [high, low, version] = response.user_data;
        Ok(Part {
            file_len: u64::from(high) << 32 | u64::from(low),
            version,
            bytes: response.segment,
        })
    }
}

/// A reply that says why nothing is read.
pub fn refusal(code: u32) -> Reply {
    Reply {
        code,
        idempotent: true,
        ..Reply::default()
    }
}
