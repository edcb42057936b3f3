//! The protocol between an application and the broker.
//!
//! The transport is a Unix socket of type `SOCK_SEQPACKET`: the kernel
//! preserves message boundaries. Descriptors go only from the broker to the
//! application, with the message to which they belong. A message is a header
//! and JSON:
//!
//! ```text
//!  0      4         6        8
//! ┌──────┬─────────┬────────┬───────────────────────────┐
//! │ weir │ version │ 0      │ JSON, at most 64 KiB      │
//! └──────┴─────────┴────────┴───────────────────────────┘
//!          u16, least significant byte first
//! ```
//!
//! The application sends a [`Request`]; the broker answers the requests in
//! order, and sends the [`Event`]s of the application's ports in between. A
//! port lasts as long as the connection on which it was opened: when the
//! application ends, in any way, its ports end.

mod message;
mod peer;
mod socket;

pub use message::{
    Attach, ErrorKind, Event, FanoutStatus, InterfaceStatus, OpenPort, Opened, PortStatus, Refusal,
    Request, RequestKind, Response, ServerMessage, TxReady,
};
pub use peer::{CAPABILITIES, Peer, sees_capabilities};
pub use socket::{Channel, FDS_MAX, Listener, Received, Sent};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The protocol version. A message of another version is refused with an error
/// that names both.
///
/// The version also covers the format of the records in a port's ring: a
/// program of version 1 would take a short header for a long one. So ports do
/// not outlive their broker if the next broker has another version.
pub const VERSION: u16 = 3;

/// Largest length of a message in bytes, header included.
pub const MESSAGE_LEN_MAX: usize = 64 << 10;

const MAGIC: [u8; 4] = *b"weir";
const HEADER_LEN: usize = 8;

/// The reason why bytes are not a valid message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes do not start with a message header.
    #[error("{0} bytes that are no message of weir's broker protocol")]
    NotAMessage(usize),
    /// The message has another version.
    #[error("a message of protocol version {found}; this end speaks version {VERSION}")]
    Version {
        /// The peer's version.
        found: u16,
    },
    /// The content after the header is invalid.
    #[error("a message that makes no sense: {0}")]
    Content(String),
}

/// The error for a message that is too long to send: its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a message of {0} bytes; at most {MESSAGE_LEN_MAX} can be sent")]
pub struct TooLong(pub usize);

/// Encodes a message.
///
/// # Errors
/// If the message is too long.
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

/// Decodes a message from an untrusted peer.
///
/// # Errors
/// If the bytes are not a message of this version.
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
