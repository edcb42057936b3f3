//! A port as it is stated, piece by piece.

use super::PortError;
use super::connection::{Connection, unexpected_reply};
use super::local::Local;
use super::port::{Port, PortBackend};
use crate::Bytes;
use crate::compile::{Compiler, Source, with_hosts};
use crate::engine::kernel::namespace;
use crate::protocol::{Attach, OpenPort, RequestKind, Response};
use rustix::process::geteuid;
use std::path::{Path, PathBuf};
use weir_filter::lang::Language;
use weir_wire::LinkType;

/// Where a broker listens, unless told otherwise.
pub const SOCKET_DEFAULT: &str = "/run/weir/broker.sock";

/// Where to open the port.
#[derive(Clone, Debug)]
enum OpenVia {
    /// By the broker at the usual socket, if one listens; else in this
    /// process.
    Either,
    Broker(PathBuf),
    InProcess,
}

/// A port that is yet to be opened.
#[derive(Clone, Debug)]
pub struct Builder {
    asked: OpenPort,
    via: OpenVia,
}

impl Builder {
    pub(super) fn on(interface: &str) -> Builder {
        Builder {
            asked: OpenPort {
                interface: interface.to_owned(),
                filter: Source::default(),
                priority: 0,
                take: false,
                send: false,
                ring: Bytes(1 << 20),
                snap_len: None,
                timestamps: false,
                tag: 0,
                attach: Attach::Auto,
                namespace: None,
            },
            via: OpenVia::Either,
        }
    }

    /// Which frames: a pcap-filter(7) expression. Host names in it are looked
    /// up now, which may take its time. Without a filter, all.
    ///
    /// # Errors
    /// If it is wrong.
    pub fn filter(self, text: &str) -> Result<Builder, PortError> {
        self.filter_in(Language::Expr, text)
    }

    /// Which frames, in any of the languages.
    ///
    /// # Errors
    /// If it is wrong.
    pub fn filter_in(mut self, language: Language, text: &str) -> Result<Builder, PortError> {
        let compiler = Compiler::for_linktype(LinkType::EN10MB);
        let plain = Source {
            text: text.to_owned(),
            language,
            ..Source::default()
        };
        // Few filters name hosts.
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

    /// Ports of higher priority see a frame earlier; 0 at first.
    #[must_use]
    pub fn priority(mut self, priority: u16) -> Builder {
        self.asked.priority = priority;
        self
    }

    /// Takes frames: no port of lower priority, nor the host, gets them. At
    /// first a port copies.
    #[must_use]
    pub fn take(mut self, take: bool) -> Builder {
        self.asked.take = take;
        self
    }

    /// How many bytes of frames may wait to be read; 1 MiB at first. Rounded
    /// up to a power of two, 4 KiB at least; 0 is refused.
    #[must_use]
    pub fn queue(mut self, ring: Bytes) -> Builder {
        self.asked.ring = ring;
        self
    }

    /// How many bytes of a frame are wanted at most; at first all.
    #[must_use]
    pub fn snap_len(mut self, snap_len: u32) -> Builder {
        self.asked.snap_len = Some(snap_len);
        self
    }

    /// Whether frames carry the time they came, which costs some 20 ns each;
    /// at first they do not.
    #[must_use]
    pub fn timestamps(mut self, timestamps: bool) -> Builder {
        self.asked.timestamps = timestamps;
        self
    }

    /// What [`Frame::tag`](super::Frame::tag) is to say; 0 at first.
    #[must_use]
    pub fn tag(mut self, tag: u32) -> Builder {
        self.asked.tag = tag;
        self
    }

    /// Whether frames are to be sent, too: then it is refused here where the
    /// policy does not grant it, and the first
    /// [`send_batch`](super::Port::send_batch) is as quick as any other.
    #[must_use]
    pub fn send(mut self, send: bool) -> Builder {
        self.asked.send = send;
        self
    }

    /// Where in the kernel frames are divided.
    #[must_use]
    pub fn attach(mut self, attach: Attach) -> Builder {
        self.asked.attach = attach;
        self
    }

    /// By the broker that listens at this socket, and no other way: the
    /// interface is the one of that name in the broker's network namespace.
    #[must_use]
    pub fn broker(mut self, socket: &Path) -> Builder {
        self.via = OpenVia::Broker(socket.to_owned());
        self
    }

    /// By this process itself, which needs privilege, and no other way.
    #[must_use]
    pub fn in_process(mut self) -> Builder {
        self.via = OpenVia::InProcess;
        self
    }

    /// Opens it.
    ///
    /// # Errors
    /// If it is refused, or there is no way to open it.
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
            // The interface of that name here, not where a broker may be.
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
