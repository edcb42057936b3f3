//! The messages of the protocol.

use crate::Bytes;
use crate::compile::Source;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use weir_demux::fanout::Fanout;

/// A request of an application.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The request's number, repeated in the answer.
    pub id: u32,
    /// The kind of the request.
    #[serde(rename = "ask")]
    pub kind: RequestKind,
}

/// The kinds of requests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RequestKind {
    /// Open a port.
    Open(OpenPort),
    /// Replace the filter of a port of the requester.
    SetFilter {
        /// The port, as [`Opened`] names it.
        port: u32,
        /// The new filter.
        filter: Source,
    },
    /// Close a port of the requester.
    Close {
        /// The port.
        port: u32,
    },
    /// Enable sending from a port of the requester: [`Response::TxReady`]
    /// returns the means. A repeated request invalidates the means returned
    /// before.
    Send {
        /// The port.
        port: u32,
    },
    /// The properties of the interface of a port of the requester, under its
    /// present name.
    PortInterface {
        /// The port.
        port: u32,
    },
    /// The properties of an interface on which the requester may open ports.
    Interface {
        /// The interface's name.
        name: String,
    },
    /// The open ports: those of the requester's user, or all for the superuser.
    Ports {
        /// Only ports with greater numbers than this; for the next page.
        after: Option<u32>,
    },
    /// Resume a port that a former broker opened.
    Resume {
        /// The port.
        port: u32,
        /// [`Opened::secret`], which proves that the port is the requester's.
        secret: String,
    },
    /// End the broker, and close every port. Only for the superuser.
    Stop,
}

/// The properties of a requested port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenPort {
    /// The interface's name.
    pub interface: String,
    /// The filter that selects the frames.
    pub filter: Source,
    /// Ports of higher priority see a frame earlier.
    #[serde(default)]
    pub priority: u16,
    /// Whether the port takes frames: then neither ports of lower priority nor
    /// the host get them.
    #[serde(default)]
    pub take: bool,
    /// Whether the port is to send, which [`RequestKind::Send`] starts; refused
    /// at once if it is not granted.
    #[serde(default)]
    pub send: bool,
    /// The ring's size; rounded up to a power of two of pages.
    pub ring: Bytes,
    /// The smallest ring that also serves, if the grant has no room for `ring`: the
    /// port gets the largest that fits, down to this size. `None` if `ring` is the
    /// only size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring_min: Option<Bytes>,
    /// Largest number of bytes delivered of a frame; all if `None`.
    #[serde(default)]
    pub snap_len: Option<u32>,
    /// Whether frames carry a receive timestamp.
    #[serde(default)]
    pub timestamps: bool,
    /// A number delivered with each frame.
    #[serde(default)]
    pub tag: u32,
    /// The attach point, if there is a choice.
    #[serde(default)]
    pub attach: Attach,
    /// The share of the frames that the port gets, or the group that shares them;
    /// `None` if the port gets all. Left out then, since brokers before this field
    /// refuse it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "fanout_text")]
    pub fanout: Option<Fanout>,
    /// The inode of the network namespace of the interface: a broker of another
    /// namespace refuses. `None` for the broker's.
    #[serde(default)]
    pub namespace: Option<u64>,
}

impl OpenPort {
    /// A port that gets copies of the frames of an interface which this filter accepts, in a ring of
    /// this size, without anything else.
    pub fn copies(interface: &str, filter: Source, ring: Bytes) -> OpenPort {
        OpenPort {
            interface: interface.to_owned(),
            filter,
            priority: 0,
            take: false,
            send: false,
            ring,
            ring_min: None,
            snap_len: None,
            timestamps: false,
            tag: 0,
            attach: Attach::Auto,
            fanout: None,
            namespace: None,
        }
    }
}

/// A fan-out as its text, such as `0/4`.
mod fanout_text {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use weir_demux::fanout::Fanout;

    pub(super) fn serialize<S: Serializer>(
        fanout: &Option<Fanout>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match fanout {
            Some(fanout) => to.collect_str(fanout),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Fanout>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        let parsed = text.map(|text| text.parse());
        parsed.transpose().map_err(de::Error::custom)
    }
}

/// The kernel hook at which frames are demultiplexed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attach {
    /// In the traffic control hooks while all ports copy; in XDP once a port
    /// takes frames.
    #[default]
    Auto,
    /// In the traffic control hooks.
    Tc,
    /// In generic XDP: after the frame has become a socket buffer.
    XdpGeneric,
    /// In native XDP, in the driver.
    XdpNative,
}

impl Attach {
    /// All attach points, in the order of the documentation.
    pub const ALL: [Attach; 4] = [
        Attach::Auto,
        Attach::Tc,
        Attach::XdpGeneric,
        Attach::XdpNative,
    ];

    /// The name on the command line.
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

/// A message of the broker.
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
    /// An event of a port's interface.
    Event {
        /// The port.
        port: u32,
        /// The event.
        event: Event,
    },
    /// The broker closes the connection, and the ports opened on it.
    #[serde(rename = "goodbye")]
    Shutdown {
        /// The reason.
        reason: String,
        /// The kind of refusal, if the connection itself is refused.
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
    /// Sending is enabled; the descriptors come with this message.
    #[serde(rename = "sends")]
    TxReady(TxReady),
    /// The request succeeded.
    Done,
    /// The properties of an interface.
    Interface(InterfaceStatus),
    /// Open ports.
    Ports {
        /// Some of the ports, sorted by number.
        ports: Vec<PortStatus>,
        /// Whether there are more: request the ports after the last of these.
        more: bool,
    },
    /// The request was refused.
    Refused(Refusal),
}

/// A port that was opened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// The port's number; no other open port has it.
    pub port: u32,
    /// The ring's size after rounding, in bytes.
    pub ring: Bytes,
    /// The link type of the frames: a `LINKTYPE_` number.
    pub linktype: u32,
    /// The names of the descriptors that come with this message, in order:
    /// `ring`, and `held`, which keeps the port alive without the broker.
    pub fds: Vec<String>,
    /// The secret by which the program resumes the port with the next broker
    /// ([`RequestKind::Resume`]); `None` if ports end with the broker.
    #[serde(default)]
    pub secret: Option<String>,
    /// The port's slot in the map of counters.
    pub slot: u32,
    /// The hook at which frames are demultiplexed.
    pub attach: String,
    /// Number of frames that the interface had dropped when the port was
    /// opened.
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

/// The means to send from a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TxReady {
    /// The names of the descriptors that come with this message, in order. For
    /// the superuser `packet`, a packet socket; for other users `xdp`, an
    /// `AF_XDP` socket behind which a program checks each frame, and `memory`,
    /// its UMEM.
    pub fds: Vec<String>,
    /// The size of the UMEM, in bytes.
    pub memory: u64,
    /// The size of each UMEM chunk, which holds a frame, in bytes.
    pub chunk: u32,
}

/// The properties of an interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// The interface's name.
    pub name: String,
    /// The interface's number (ifindex).
    pub ifindex: u32,
    /// The link type of the frames: a `LINKTYPE_` number.
    pub linktype: u32,
    /// Length of the link-layer header, in bytes.
    pub header_len: u32,
    /// The link-layer address, in hexadecimal with colons; empty if it has
    /// none.
    pub address: String,
    /// The link-layer broadcast address; empty if it has none.
    pub broadcast: String,
    /// The MTU: bytes of the largest packet without the link-layer header.
    pub mtu: u32,
    /// The IP addresses, each with its prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether the interface is administratively up.
    pub up: bool,
    /// Whether the link has carrier.
    pub running: bool,
    /// Number of received frames dropped since the interface exists: for lack
    /// of room, or of protocols unknown to the host.
    #[serde(default)]
    pub dropped: u64,
    /// The hook at which frames are demultiplexed; `None` while it has no
    /// ports.
    pub attach: Option<String>,
    /// The cost of the attached programs to the host, as text: one line for
    /// each.
    pub cost: Option<String>,
}

/// The status of an open port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortStatus {
    /// The port's number.
    pub port: u32,
    /// The interface's name.
    pub interface: String,
    /// The filter's text, as requested; the length of a classic BPF program.
    pub filter: String,
    /// The port's priority.
    pub priority: u16,
    /// Whether the port copies.
    pub copy: bool,
    /// The process that opened it.
    pub pid: u32,
    /// The port's user.
    pub uid: u32,
    /// Number of frames put into the ring.
    pub delivered: u64,
    /// Number of frames lost because the ring was full.
    pub lost: u64,
    /// Number of frames sent by an egress path that checks.
    #[serde(default)]
    pub sent: u64,
    /// Number of frames that the egress path dropped by the policy.
    #[serde(default)]
    pub refused: u64,
    /// The ring's size in bytes.
    pub queue: u64,
    /// The hook at which frames are demultiplexed.
    pub attach: String,
    /// The port's place in its fan-out; `None` if it is in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fanout: Option<FanoutStatus>,
}

/// The place of a port in its fan-out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FanoutStatus {
    /// The group's name; `None` for a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The number of the member, in the order of the ports' numbers, or of the
    /// share; from 0.
    pub member: u32,
    /// Number of members, or of shares.
    pub members: u32,
}

impl fmt::Display for FanoutStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.group {
            write!(f, "{group}:")?;
        }
        write!(f, "{}/{}", self.member, self.members)
    }
}

/// An event of a port's interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The interface went up, or has carrier again.
    Up,
    /// The interface went down, or lost carrier.
    Down,
    /// The interface was renamed.
    Renamed {
        /// The new name.
        name: String,
    },
    /// The interface's MTU changed.
    Mtu {
        /// The new MTU, in bytes.
        mtu: u32,
    },
    /// The interface is gone: the port receives nothing any more.
    Gone,
    /// The new policy does not grant the port: it is closed, and receives
    /// nothing.
    Revoked {
        /// The reason.
        reason: String,
    },
}

impl Event {
    /// Whether the event has ended the port.
    pub fn is_end(&self) -> bool {
        matches!(self, Event::Gone | Event::Revoked { .. })
    }
}

/// A refusal of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind of reason.
    pub kind: ErrorKind,
    /// The reason, as text.
    pub message: String,
    /// Start and end of the error in the filter's text, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<(u32, u32)>,
    /// Whether the reason is temporary: the kernel has not yet freed resources
    /// that the requester closed. Never sent.
    #[serde(skip)]
    pub passes: bool,
}

impl Refusal {
    /// A refusal without a position in a text.
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

/// The kinds of reasons.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The policy does not permit the request.
    Denied,
    /// The filter is invalid.
    Filter,
    /// The interface does not exist, or cannot be used.
    Interface,
    /// The broker serves another network namespace.
    Namespace,
    /// There is no such port.
    Port,
    /// Another part of the request is invalid.
    Request,
    /// A limit is reached.
    Limit,
    /// The kernel refused.
    System,
}
