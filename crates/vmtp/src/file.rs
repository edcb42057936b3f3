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
/// Response code: the request is not of this service.
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

/// A server gave fewer bytes than it was asked for, before the end that it stated.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("only {have} of {wanted} bytes at {offset} came, of a file of {file_len} bytes")]
pub struct ShortPart {
    /// The first byte's offset.
    pub offset: u64,
    /// Number of bytes that were asked for and are within the file.
    pub wanted: u64,
    /// Number of bytes that the part has.
    pub have: u64,
    /// Length of the file, as the server says.
    pub file_len: u64,
}

/// A server's answer to a [`Read`].
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

    /// Where the next read begins after this one's part; `None` at the file's end.
    /// Each part that is not the last has bytes, so a reader ends.
    ///
    /// # Errors
    /// If the part is shorter than asked for, before the file's end.
    pub fn next_offset(&self, part: &Part) -> Result<Option<u64>, ShortPart> {
        let have = part.bytes.len() as u64;
        let left = part.file_len.saturating_sub(self.offset);
        let wanted = left.min(u64::from(self.len));
        if have < wanted {
            return Err(ShortPart {
                offset: self.offset,
                wanted,
                have,
                file_len: part.file_len,
            });
        }
        Ok((have < left && have > 0).then(|| self.offset + have))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn part(file_len: u64, len: usize) -> Part {
        Part {
            file_len,
            version: 1,
            bytes: vec![0; len],
        }
    }

    #[test]
    fn a_file_is_read_to_its_end_in_whole_parts() {
        let read = |offset| Read {
            name: "file".to_owned(),
            offset,
            len: 1000,
        };
        assert_eq!(read(0).next_offset(&part(2500, 1000)), Ok(Some(1000)));
        assert_eq!(read(2000).next_offset(&part(2500, 500)), Ok(None));
        assert_eq!(read(0).next_offset(&part(0, 0)), Ok(None));
        // The file has grown since its length was read.
        assert_eq!(read(2000).next_offset(&part(2500, 600)), Ok(None));
        let end = u64::MAX - 1000;
        assert_eq!(read(end).next_offset(&part(u64::MAX, 1000)), Ok(None));
    }

    #[test]
    fn a_part_that_is_short_before_the_end_is_an_error() {
        let read = Read {
            name: "endless".to_owned(),
            offset: 0,
            len: 16_384,
        };
        for len in [0, 1, 16_383] {
            let error = read.next_offset(&part(u64::MAX, len)).unwrap_err();
            assert_eq!((error.have, error.wanted), (len as u64, 16_384));
        }
        let error = read.next_offset(&part(600, 1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "only 1 of 600 bytes at 0 came, of a file of 600 bytes"
        );
    }
}
