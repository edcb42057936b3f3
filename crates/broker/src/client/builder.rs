//! The builder of a port.

use super::PortError;
use super::connection::{Connection, unexpected_reply};
use super::local::Local;
use super::port::{Port, PortBackend};
use crate::Bytes;
use crate::compile::{Compiler, Source, with_hosts};
use crate::engine::kernel::namespace;
use crate::engine::limits;
use crate::protocol::{Attach, OpenPort, RequestKind, Response};
use rustix::process::geteuid;
use std::path::{Path, PathBuf};
use weir_demux::fanout::Fanout;
use weir_filter::lang::Language;
use weir_wire::LinkType;

/// The default path of the broker's socket.
pub const SOCKET_DEFAULT: &str = "/run/weir/broker/socket";

/// The default size of a queue, in bytes.
const QUEUE_DEFAULT: Bytes = Bytes(1 << 20);

/// The way to open the port.
#[derive(Clone, Debug)]
enum OpenVia {
    /// Through the broker at the default socket, if one listens; else in this
    /// process.
    Either,
    Broker(PathBuf),
    InProcess,
}

/// The settings of a port that is yet to be opened.
#[derive(Clone, Debug)]
pub struct Builder {
    asked: OpenPort,
    via: OpenVia,
}

impl Builder {
    pub(super) fn on(interface: &str) -> Builder {
        Builder {
            asked: OpenPort::copies(interface, Source::default(), QUEUE_DEFAULT),
            via: OpenVia::Either,
        }
        .queue_up_to(QUEUE_DEFAULT)
    }

    /// Sets the filter: a pcap-filter(7) expression. Resolves host names in it
    /// now, which may block. Without a filter, the port accepts all frames.
    ///
    /// # Errors
    /// If the expression is invalid.
    pub fn filter(self, text: &str) -> Result<Builder, PortError> {
        self.filter_in(Language::Expr, text)
    }

    /// Sets the filter, in any of the filter languages.
    ///
    /// # Errors
    /// If the text is invalid.
    pub fn filter_in(mut self, language: Language, text: &str) -> Result<Builder, PortError> {
        let compiler = Compiler::for_linktype(LinkType::EN10MB);
        let plain = Source {
            text: text.to_owned(),
            language,
            ..Source::default()
        };
        // Few filters contain host names: compile without look-ups first.
        self.asked.filter = match compiler.compile(&plain) {
            Ok(_) => plain,
            Err(_) => {
                let named = with_hosts(plain, LinkType::EN10MB);
                compiler.compile(&named)?;
                named
            }
        };
        Ok(self)
    }

    /// Sets the priority: ports of higher priority see a frame earlier. Default
    /// 0.
    #[must_use]
    pub fn priority(mut self, priority: u16) -> Builder {
        self.asked.priority = priority;
        self
    }

    /// Sets whether the port takes frames: then neither ports of lower priority
    /// nor the host get them. By default a port copies.
    #[must_use]
    pub fn take(mut self, take: bool) -> Builder {
        self.asked.take = take;
        self
    }

    /// Sets the queue's size in bytes; default 1 MiB, or less if the grant has no
    /// room for it. Rounded up to a power of two, at least 4 KiB; 0 is refused.
    #[must_use]
    pub fn queue(mut self, ring: Bytes) -> Builder {
        self.asked.ring = ring;
        self.asked.ring_min = None;
        self
    }

    /// Sets the queue's size in bytes as a wish: if the grant has no room for it, the
    /// queue is the largest for which there is room, 4 KiB or more. See
    /// [`Port::queue`].
    #[must_use]
    pub fn queue_up_to(mut self, ring: Bytes) -> Builder {
        self.asked.ring = ring;
        self.asked.ring_min = Some(limits::RING_MIN);
        self
    }

    /// Sets the largest number of bytes delivered of a frame; by default all.
    #[must_use]
    pub fn snap_len(mut self, snap_len: u32) -> Builder {
        self.asked.snap_len = Some(snap_len);
        self
    }

    /// Sets whether frames carry a receive timestamp, which costs some 20 ns
    /// each; by default they do not.
    #[must_use]
    pub fn timestamps(mut self, timestamps: bool) -> Builder {
        self.asked.timestamps = timestamps;
        self
    }

    /// Sets the value of [`Frame::tag`](super::Frame::tag); default 0.
    #[must_use]
    pub fn tag(mut self, tag: u32) -> Builder {
        self.asked.tag = tag;
        self
    }

    /// Sets whether the port also sends. Then [`open`](Self::open) fails if the
    /// policy does not grant sending, and the first
    /// [`send_batch`](super::Port::send_batch) is as fast as any other.
    #[must_use]
    pub fn send(mut self, send: bool) -> Builder {
        self.asked.send = send;
        self
    }

    /// Sets the kernel hook at which frames are demultiplexed.
    #[must_use]
    pub fn attach(mut self, attach: Attach) -> Builder {
        self.asked.attach = attach;
        self
    }

    /// Sets the share of the frames that the port gets, or the group whose members
    /// share them; by default the port gets all. Frames are shared out by flow: both
    /// directions of a connection go to one port. See [`weir_demux::fanout`].
    #[must_use]
    pub fn fanout(mut self, fanout: Fanout) -> Builder {
        self.asked.fanout = Some(fanout);
        self
    }

    /// Opens the port only through the broker at this socket. The interface is
    /// the one with that name in the broker's network namespace.
    #[must_use]
    pub fn broker(mut self, socket: &Path) -> Builder {
        self.via = OpenVia::Broker(socket.to_owned());
        self
    }

    /// Opens the port only in this process, which needs privilege.
    #[must_use]
    pub fn in_process(mut self) -> Builder {
        self.via = OpenVia::InProcess;
        self
    }

    /// Opens the port.
    ///
    /// # Errors
    /// If the port is refused, or neither a broker nor privilege is available.
    pub fn open(self) -> Result<Port, PortError> {
        let sends = self.asked.send;
        let mut port = self.open_to_receive()?;
        if sends {
            port.begin_to_send()?;
        }
        Ok(port)
    }

    fn open_to_receive(mut self) -> Result<Port, PortError> {
        match self.via {
            OpenVia::Broker(path) => by_broker(&path, self.asked),
            OpenVia::InProcess => by_itself(self.asked),
            // The interface of this process's namespace; a broker may serve
            // another one.
            OpenVia::Either => {
                self.asked.namespace = namespace().ok();
                match by_broker(Path::new(SOCKET_DEFAULT), self.asked.clone()) {
                    Err(error) if error.is_of_no_broker() && geteuid().is_root() => {
                        by_itself(self.asked)
                    }
                    other => other,
                }
            }
        }
    }
}

fn by_broker(path: &Path, asked: OpenPort) -> Result<Port, PortError> {
    let mut connection = Connection::to(path)?;
    let (answer, fds) = connection.request(RequestKind::Open(asked.clone()))?;
    let Response::Opened(opened) = answer else {
        return Err(unexpected_reply());
    };
    Port::new(PortBackend::Broker(connection), asked, opened, fds)
}

fn by_itself(asked: OpenPort) -> Result<Port, PortError> {
    let local = Local::new()?;
    let (opened, fds) = local.open(asked.clone())?;
    Port::new(PortBackend::Local(local), asked, opened, fds)
}
