//! Where the lines go that stages log: a file, syslog, and a collector of IPFIX.

mod ipfix;

use crate::error::{CliError, say};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use weir_apps::chain::BoxConfig;
use weir_apps::router::LogSink;

/// Facility `local0`, severity `informational` (RFC 5424 §6.2.1).
const PRIORITY: u8 = 16 * 8 + 6;

/// The stages' log; without a place, none. The file's path is relative to `directory`.
pub(super) fn sink(config: &BoxConfig, directory: &Path) -> Result<LogSink, CliError> {
    let mut places: Vec<Place> = Vec::new();
    if let Some(path) = &config.log {
        places.push(Place::file(&directory.join(path))?);
    }
    if let Some(to) = &config.syslog {
        places.push(Place::syslog(to)?);
    }
    if let Some(to) = config.ipfix {
        places.push(Place::ipfix(to)?);
    }
    Ok(Box::new(move |_, line| {
        for place in &mut places {
            place.write(line);
        }
    }))
}

/// One of them.
struct Place {
    to: To,
    name: String,
    is_failing: bool,
}

enum To {
    /// A line is handed to the kernel at once: a process that dies loses none.
    File(File),
    Udp(UdpSocket, Header),
    Unix(UnixDatagram, Header),
    Ipfix(UdpSocket, ipfix::Encoder),
}

impl Place {
    fn new(to: To, name: String) -> Place {
        Place {
            to,
            name,
            is_failing: false,
        }
    }

    fn file(path: &Path) -> Result<Place, CliError> {
        let name = path.display().to_string();
        let opened = OpenOptions::new().append(true).create(true).open(path);
        let cannot = |error| CliError::run(format!("cannot open the log {name}: {error}"));
        Ok(Place::new(To::File(opened.map_err(cannot)?), name.clone()))
    }

    fn syslog(to: &str) -> Result<Place, CliError> {
        let name = format!("syslog at {to}");
        let cannot = |error| CliError::run(format!("{name}: {error}"));
        let socket = Place::socket(to).map_err(cannot)?;
        Ok(Place::new(socket, name.clone()))
    }

    fn ipfix(to: SocketAddr) -> Result<Place, CliError> {
        let name = format!("IPFIX collector at {to}");
        let cannot = |error| CliError::run(format!("{name}: {error}"));
        let socket = udp(to).map_err(cannot)?;
        let to = To::Ipfix(socket, ipfix::Encoder::default());
        Ok(Place::new(to, name.clone()))
    }

    /// A socket that is never waited for: packets would wait, too.
    fn socket(to: &str) -> io::Result<To> {
        let header = Header::of_this_process();
        if let Ok(address) = to.parse::<SocketAddr>() {
            return Ok(To::Udp(udp(address)?, header));
        }
        let socket = UnixDatagram::unbound()?;
        socket.connect(to)?;
        socket.set_nonblocking(true)?;
        Ok(To::Unix(socket, header))
    }

    fn write(&mut self, line: &str) {
        let written = match &mut self.to {
            To::File(file) => file.write_all(format!("{line}\n").as_bytes()),
            To::Udp(socket, header) => socket.send(header.message(line).as_bytes()).map(drop),
            To::Unix(socket, header) => socket.send(header.message(line).as_bytes()).map(drop),
            To::Ipfix(socket, encoder) => {
                let now = jiff::Timestamp::now().as_second();
                let message = encoder.message(line, u32::try_from(now).unwrap_or(u32::MAX));
                message.map_or(Ok(()), |message| socket.send(&message).map(drop))
            }
        };
        if let Err(error) = &written
            && !self.is_failing
        {
            say(&format!("weir: cannot write to {}: {error}", self.name));
        }
        self.is_failing = written.is_err();
    }
}

/// A socket that is never waited for.
fn udp(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The origin in each message (RFC 5424 §6.2).
struct Header {
    host: String,
    process: u32,
}

impl Header {
    fn of_this_process() -> Header {
        let name = rustix::system::uname();
        let name = name.nodename().to_string_lossy();
        let is_graphic = |byte: u8| byte.is_ascii_graphic();
        let host = if name.bytes().all(is_graphic) && (1..=255).contains(&name.len()) {
            name.into_owned()
        } else {
            "-".to_owned()
        };
        Header {
            host,
            process: std::process::id(),
        }
    }

    fn message(&self, line: &str) -> String {
        format!("{self}{line}")
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = jiff::Timestamp::now();
        let (host, process) = (&self.host, self.process);
        write!(f, "<{PRIORITY}>1 {time:.6} {host} weir {process} nat - ")
    }
}
