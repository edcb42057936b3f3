//! What a program and the broker say to each other.
//!
//! A Unix socket of sequenced packets: the kernel keeps messages whole and
//! apart, so there are no half messages. Descriptors go from the broker to the
//! program, with the message that they belong to, and never the other way. A message is a header and JSON:
//!
//! ```text
//!  0      4         6        8
//! ┌──────┬─────────┬────────┬───────────────────────────┐
//! │ weir │ version │ 0      │ JSON, at most 64 KiB      │
//! └──────┴─────────┴────────┴───────────────────────────┘
//!          u16, least significant byte first
//! ```
//!
//! The program asks ([`Request`]); the broker answers each request in turn,
//! and in between says what happens to the program's ports ([`Event`]). A
//! port lasts as long as the connection it was opened on: when the program
//! ends, by whatever means, its ports go.

mod message;
mod peer;
mod socket;

pub use message::{
    Attach, ErrorKind, Event, InterfaceStatus, OpenPort, Opened, PortStatus, Refusal, Request,
    RequestKind, Response, ServerMessage, TxReady,
};
pub use peer::{CAPABILITIES, Peer};
pub use socket::{Channel, FDS_MAX, Listener, Received, Sent};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version spoken here. Another one is refused with a message that names
/// both.
///
/// It says as well what records in a port's ring look like: a program of
/// version 1 would take a short header for a long one. So its ports do not
/// outlive the broker that opened them if the next one speaks another.
pub const VERSION: u16 = 3;

/// Bytes of one message, header included.
pub const MESSAGE_LEN_MAX: usize = 64 << 10;

const MAGIC: [u8; 4] = *b"weir";
const HEADER_LEN: usize = 8;

/// Why bytes are no message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// It does not begin as a message does.
    #[error("{0} bytes that are no message of weir's broker protocol")]
    NotAMessage(usize),
    /// Another version's.
    #[error("a message of protocol version {found}; this end speaks version {VERSION}")]
    Version {
        /// The other end's version.
        found: u16,
    },
    /// What follows the header is not what it should be.
    #[error("a message that makes no sense: {0}")]
    Content(String),
}

/// A message too long to be sent: its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a message of {0} bytes; at most {MESSAGE_LEN_MAX} can be sent")]
pub struct TooLong(pub usize);

/// A message's bytes.
///
/// # Errors
/// If it is too long.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, TooLong> {
    let mut bytes = Vec::with_capacity(512);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([0; 2]);
    serde_json::to_writer(&mut bytes, message).expect("messages have text keys only");
    if bytes.len() > MESSAGE_LEN_MAX {
        return Err(TooLong(bytes.len()));
    }
    Ok(bytes)
}

/// Reads a message's bytes, from anybody.
///
/// # Errors
/// If they are no message of this version.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let Some((header, json)) = bytes.split_at_checked(HEADER_LEN) else {
        return Err(DecodeError::NotAMessage(bytes.len()));
    };
    if header[..4] != MAGIC {
        return Err(DecodeError::NotAMessage(bytes.len()));
    }
    let version = u16::from_le_bytes([header[4], header[5]]);
    if version != VERSION {
        return Err(DecodeError::Version { found: version });
    }
    serde_json::from_slice(json).map_err(|error| DecodeError::Content(error.to_string()))
}
