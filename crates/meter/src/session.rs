//! Events that begin, change and end sessions, whatever they come from.

use crate::Key;
use serde::{Deserialize, Serialize};

/// Where a session event came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionSource {
    /// RADIUS accounting (RFC 2866).
    Radius,
    /// A list in a CSV file.
    List,
    /// The control socket.
    Control,
}

impl SessionSource {
    /// Where a session came from, as its identifier begins.
    pub fn of(id: &str) -> SessionSource {
        match id.split_once('/') {
            Some(("list", _)) => SessionSource::List,
            Some(("control", _)) => SessionSource::Control,
            _ => SessionSource::Radius,
        }
    }
}

/// The properties of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Identifier, unique for the counter. RADIUS repeats Acct-Session-Id after a reboot of the
    /// access server, so this one is made of the server, Acct-Session-Id, and the start.
    pub id: String,
    /// The subscriber's name.
    pub subscriber: String,
    /// The keys that the subscriber owns in this session.
    pub keys: Vec<Key>,
    /// Class attributes (RFC 2865 §5.25).
    #[serde(default)]
    pub class: Vec<Vec<u8>>,
    /// Chargeable-User-Identity (RFC 4372).
    #[serde(default)]
    pub chargeable_user: Option<Vec<u8>>,
    /// The name of its policy; `None` for the counter's default.
    #[serde(default)]
    pub policy: Option<String>,
    /// The policy that accounting named last: named again, it does not undo a later change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_accounted: Option<String>,
    /// The access server's own counts so far, for audit: octets and packets, up then down.
    #[serde(default)]
    pub reported: Option<[u64; 4]>,
}

/// The kind of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum SessionEventKind {
    /// The session begins, or what is known of it has changed (Interim-Update).
    Up(SessionInfo),
    /// The session ends.
    Down(SessionInfo),
    /// All sessions of an access server end (Accounting-On, Accounting-Off; RFC 2866 §5.1).
    AllDown {
        /// The access server, as session identifiers begin.
        server: String,
    },
}

/// An event of a session: durable before it is answered, applied in the order of `number`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEvent {
    /// Position in the log of the counter.
    pub number: u64,
    /// When it was received, nanoseconds of Unix time.
    pub received_unix_ns: i64,
    /// When it happened by the sender's word (Event-Timestamp, RFC 2869 §5.3), if it said so.
    pub happened_unix_ns: Option<i64>,
    /// Where it came from.
    pub source: SessionSource,
    /// In a log: the keys of a session that begins or changes which are not its own, since other
    /// sessions have gained them. `None` if that follows from the events before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Vec<Key>>,
    /// The kind.
    #[serde(flatten)]
    pub kind: SessionEventKind,
}
