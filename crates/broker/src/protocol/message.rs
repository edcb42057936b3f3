//! The messages.

use crate::Bytes;
use crate::compile::Source;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A program asks for something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Comes back with the answer.
    pub id: u32,
    /// What is asked for.
    #[serde(rename = "ask")]
    pub kind: RequestKind,
}

/// What can be asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RequestKind {
    /// Open a port.
    Open(OpenPort),
    /// Give a port of one's own another filter.
    SetFilter {
        /// The port, as [`Opened`] names it.
        port: u32,
        /// The new filter.
        filter: Source,
    },
    /// Close a port of one's own.
    Close {
        /// The port.
        port: u32,
    },
    /// Send from a port of one's own: [`Response::TxReady`] tells by what. Asked
    /// for again, what was given before sends no more.
    Send {
        /// The port.
        port: u32,
    },
    /// The facts of the interface of a port of one's own, whatever its name
    /// is now.
    PortInterface {
        /// The port.
        port: u32,
    },
    /// The facts of an interface on which one may open ports.
    Interface {
        /// Its name.
        name: String,
    },
    /// The ports that are open: one's own user's, or for the superuser all.
    Ports {
        /// Only those with greater numbers than this; for the next page.
        after: Option<u32>,
    },
    /// Take up a port again that an earlier broker has opened.
    Resume {
        /// The port.
        port: u32,
        /// [`Opened::secret`], which proves that the port is the asker's.
        secret: String,
    },
    /// End the broker, and close every port. The superuser only.
    Stop,
}

/// A port as it is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenPort {
    /// The interface's name.
    pub interface: String,
    /// Which frames.
    pub filter: Source,
    /// Ports of higher priority see a frame earlier.
    #[serde(default)]
    pub priority: u16,
    /// Whether frames are taken: no port of lower priority, nor the host,
    /// gets them.
    #[serde(default)]
    pub take: bool,
    /// Whether frames are to be sent too, which [`RequestKind::Send`] begins: refused
    /// at once where it is not granted.
    #[serde(default)]
    pub send: bool,
    /// The ring's size; rounded up to a power of two of pages.
    pub ring: Bytes,
    /// How many bytes of a frame are delivered at most; all if `None`.
    #[serde(default)]
    pub snap_len: Option<u32>,
    /// Whether frames carry the time they came.
    #[serde(default)]
    pub timestamps: bool,
    /// Comes with each frame.
    #[serde(default)]
    pub tag: u32,
    /// Where to attach, if there is a choice.
    #[serde(default)]
    pub attach: Attach,
    /// The network namespace in which the interface is meant, by its inode:
    /// a broker of another one refuses. `None`: the broker's.
    #[serde(default)]
    pub namespace: Option<u64>,
}

/// Where in the kernel frames are divided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attach {
    /// In the traffic-control hooks while there are only copies; in XDP once
    /// a port takes frames.
    #[default]
    Auto,
    /// In the traffic-control hooks.
    Tc,
    /// In XDP, generic: after the frame has become a socket buffer.
    XdpGeneric,
    /// In XDP in the driver.
    XdpNative,
}

impl Attach {
    /// Every way, in the order they are documented.
    pub const ALL: [Attach; 4] = [
        Attach::Auto,
        Attach::Tc,
        Attach::XdpGeneric,
        Attach::XdpNative,
    ];

    /// The name, as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            Attach::Auto => "auto",
            Attach::Tc => "tc",
            Attach::XdpGeneric => "xdp-generic",
            Attach::XdpNative => "xdp-native",
        }
    }
}

impl fmt::Display for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Attach {
    type Err = String;

    fn from_str(text: &str) -> Result<Attach, String> {
        let named = |attach: &Attach| attach.name() == text;
        let found = Attach::ALL.into_iter().find(named);
        found.ok_or_else(|| {
            format!(
                "`{text}` is no place to attach; there are auto, tc, xdp-generic and xdp-native"
            )
        })
    }
}

/// The broker says something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerMessage {
    /// The answer to a request.
    Answer {
        /// The request's `id`.
        to: u32,
        /// The answer.
        answer: Response,
    },
    /// Something happened to a port's interface.
    Event {
        /// The port.
        port: u32,
        /// What happened.
        event: Event,
    },
    /// The broker closes the connection, and the ports opened on it.
    #[serde(rename = "goodbye")]
    Shutdown {
        /// Why.
        reason: String,
        /// What kind of refusal it is, where the connection itself is refused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<ErrorKind>,
    },
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The port is open; its descriptors come with this message.
    Opened(Opened),
    /// One may send; what one sends by comes with this message.
    #[serde(rename = "sends")]
    TxReady(TxReady),
    /// It is done.
    Done,
    /// An interface's facts.
    Interface(InterfaceStatus),
    /// Open ports.
    Ports {
        /// Some of them, by their numbers.
        ports: Vec<PortStatus>,
        /// Whether there are more: ask again, after the last of these.
        more: bool,
    },
    /// It was not done.
    Refused(Refusal),
}

/// A port that was opened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// The port's number; no other open port has it.
    pub port: u32,
    /// The ring's size as it is.
    pub ring: Bytes,
    /// How the frames begin: a `LINKTYPE_` number.
    pub linktype: u32,
    /// What the descriptors are that come with this, in order: `ring`, and
    /// `held`, by which the port outlives the broker.
    pub fds: Vec<String>,
    /// By which the program takes the port up again with the next broker
    /// ([`RequestKind::Resume`]); `None` where ports end with the broker.
    #[serde(default)]
    pub secret: Option<String>,
    /// The port's place in the map of counters.
    pub slot: u32,
    /// Where the frames are divided.
    pub attach: String,
    /// Frames that the interface had dropped by then.
    #[serde(default)]
    pub dropped: u64,
    /// The grant's filter, which is ANDed to the port's; `None` if the grant has
    /// none, or the port is the superuser's.
    #[serde(default)]
    pub within: Option<String>,
    /// Both together accept no frame at all, as far as is known.
    #[serde(default)]
    pub accepts_nothing: bool,
}

/// What a port sends by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TxReady {
    /// What the descriptors are that come with this, in order. For the
    /// superuser `packet`, a packet socket; for others `xdp`, an `AF_XDP`
    /// socket behind which a program checks each frame, and `memory`, where
    /// frames are put.
    pub fds: Vec<String>,
    /// Bytes of the memory.
    pub memory: u64,
    /// Bytes of each piece of it, which takes a frame.
    pub chunk: u32,
}

/// An interface's facts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// Its number.
    pub ifindex: u32,
    /// How the frames begin: a `LINKTYPE_` number.
    pub linktype: u32,
    /// Bytes of the link-layer header.
    pub header_len: u32,
    /// Its link-layer address, in hexadecimal with colons; empty without one.
    pub address: String,
    /// The link-layer address of all stations; empty without one.
    pub broadcast: String,
    /// The largest packet, in bytes without the link-layer header.
    pub mtu: u32,
    /// Its addresses, each with the length of its prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether the link has a partner.
    pub running: bool,
    /// Frames that came and were dropped, since it exists: for want of room,
    /// or of protocols that the host does not know.
    #[serde(default)]
    pub dropped: u64,
    /// Where its frames are divided; `None` while it has no ports.
    pub attach: Option<String>,
    /// What that costs the host, in words: a line for each program there.
    pub cost: Option<String>,
}

/// An open port, for whoever may know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortStatus {
    /// Its number.
    pub port: u32,
    /// The interface's name.
    pub interface: String,
    /// The filter's text, as it was asked for.
    pub filter: String,
    /// Its priority.
    pub priority: u16,
    /// Whether it copies.
    pub copy: bool,
    /// The process that opened it.
    pub pid: u32,
    /// The user it is of.
    pub uid: u32,
    /// Frames put into its ring.
    pub delivered: u64,
    /// Frames that its ring had no room for.
    pub lost: u64,
    /// Frames it has sent by a path that checks.
    #[serde(default)]
    pub sent: u64,
    /// Frames that it was not allowed to send.
    #[serde(default)]
    pub refused: u64,
    /// The ring's size in bytes.
    pub queue: u64,
    /// Where the frames are divided.
    pub attach: String,
}

/// What happens to a port's interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It was switched on, or has a partner again.
    Up,
    /// It was switched off, or has no partner.
    Down,
    /// It has another name.
    Renamed {
        /// The new one.
        name: String,
    },
    /// It has another MTU.
    Mtu {
        /// The new one, in bytes.
        mtu: u32,
    },
    /// It is gone: the port gets nothing any more.
    Gone,
    /// The policy was changed and does not grant the port any more: it is
    /// closed, and gets nothing.
    Revoked {
        /// Why not.
        reason: String,
    },
}

impl Event {
    /// Whether the port has ended by it.
    pub fn is_end(&self) -> bool {
        matches!(self, Event::Gone | Event::Revoked { .. })
    }
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of reason.
    pub kind: ErrorKind,
    /// The reason, for a person.
    pub message: String,
    /// Start and end of what is wrong in the filter's text, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<(u32, u32)>,
    /// Whether the reason passes by itself within moments: the kernel has not
    /// freed yet what the asker has closed. Never sent.
    #[serde(skip)]
    pub passes: bool,
}

impl Refusal {
    /// A refusal without a place in a text.
    pub fn new(kind: ErrorKind, message: impl ToString) -> Refusal {
        Refusal {
            kind,
            message: message.to_string(),
            span: None,
            passes: false,
        }
    }
}

impl From<Refusal> for crate::compile::CompileError {
    fn from(refusal: Refusal) -> crate::compile::CompileError {
        let span = refusal.span;
        crate::compile::CompileError {
            message: refusal.message,
            span: span.map(|(start, end)| start as usize..end as usize),
        }
    }
}

impl From<crate::compile::CompileError> for Refusal {
    fn from(error: crate::compile::CompileError) -> Refusal {
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Refusal {
            kind: ErrorKind::Filter,
            span: error.span.map(|span| (place(span.start), place(span.end))),
            message: error.message,
            passes: false,
        }
    }
}

impl From<crate::policy::Denied> for Refusal {
    fn from(denied: crate::policy::Denied) -> Refusal {
        Refusal::new(ErrorKind::Denied, denied)
    }
}

/// Kinds of reasons.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The policy does not allow it.
    Denied,
    /// The filter is wrong.
    Filter,
    /// There is no such interface, or it cannot be used.
    Interface,
    /// The broker serves another network namespace.
    Namespace,
    /// There is no such port.
    Port,
    /// Something else in the request is wrong.
    Request,
    /// A limit is reached.
    Limit,
    /// The kernel refused.
    System,
}
