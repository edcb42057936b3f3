//! The system's name databases, for filter expressions.
//!
//! | names of | are looked up in | if the file is missing |
//! |---|---|---|
//! | hosts | the system's resolver `getaddrinfo(3)`: `/etc/hosts`, DNS and other sources of nsswitch.conf(5) | – |
//! | services | `/etc/services` | 241 entries of the IANA registry, built in |
//! | protocols | `/etc/protocols` | the IANA protocol numbers, built in |
//! | networks | `/etc/networks` | `loopback` only |
//! | link-layer addresses | `/etc/ethers` | none |
//!
//! As in `getservbyname(3)` and similar functions, names are case-sensitive, aliases count, the
//! first matching line is used, and malformed lines are skipped. Each file is read once, at its
//! first use. Other sources that nsswitch.conf may list for them (NIS, LDAP) are not used.

mod parse;

use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use weir_filter::lang::expr::{NameKind, Names, Transport};

use parse::{Protocol, Service, Table};

/// Largest number of bytes read from a file; lines that end later are ignored.
pub const FILE_LEN_MAX: u64 = 4 << 20;

/// Largest length of a host name, in bytes: DNS's limit.
const HOST_LEN_MAX: usize = 255;

const BUILT_IN_SERVICES: &str = include_str!("services.txt");
const BUILT_IN_PROTOCOLS: &str = include_str!("protocols.txt");
const BUILT_IN_NETWORKS: &str = "loopback 127.0.0.0\n";

/// The names that this machine knows.
#[derive(Debug)]
pub struct SystemNames {
    folder: PathBuf,
    services: OnceLock<Table<Service>>,
    protocols: OnceLock<Table<Protocol>>,
    networks: OnceLock<Table<u32>>,
    ethers: OnceLock<Table<[u8; 6]>>,
}

impl Default for SystemNames {
    fn default() -> SystemNames {
        SystemNames::new()
    }
}

impl SystemNames {
    /// The names in `/etc`. No file is read yet.
    pub fn new() -> SystemNames {
        SystemNames::in_folder("/etc")
    }

    /// The names in the files of `folder`; hosts are still looked up by the system's resolver.
    pub fn in_folder(folder: impl AsRef<Path>) -> SystemNames {
        SystemNames {
            folder: folder.as_ref().to_owned(),
            services: OnceLock::new(),
            protocols: OnceLock::new(),
            networks: OnceLock::new(),
            ethers: OnceLock::new(),
        }
    }

    fn services(&self) -> &Table<Service> {
        self.services.get_or_init(|| {
            let text = self.text("services", BUILT_IN_SERVICES);
            Table::parse(&text, parse::service)
        })
    }

    fn protocols(&self) -> &Table<Protocol> {
        self.protocols.get_or_init(|| {
            let text = self.text("protocols", BUILT_IN_PROTOCOLS);
            Table::parse(&text, parse::protocol)
        })
    }

    fn networks(&self) -> &Table<u32> {
        self.networks.get_or_init(|| {
            let text = self.text("networks", BUILT_IN_NETWORKS);
            Table::parse(&text, parse::network)
        })
    }

    fn ethers(&self) -> &Table<[u8; 6]> {
        self.ethers
            .get_or_init(|| Table::parse(&self.text("ethers", ""), parse::ether))
    }

    /// A file's text, or the built-in text if the file cannot be read.
    fn text(&self, file: &str, built_in: &str) -> String {
        use std::io::Read;
        let mut bytes = Vec::new();
        let read = std::fs::File::open(self.folder.join(file))
            .and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes));
        if bytes.len() as u64 > FILE_LEN_MAX {
            // A line that is cut in the middle could have another number.
            bytes.truncate(FILE_LEN_MAX as usize);
            let newline = bytes.iter().rposition(|byte| *byte == b'\n');
            bytes.truncate(newline.map_or(0, |at| at + 1));
        }
        match read {
            Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => built_in.to_owned(),
        }
    }
}

impl Names for SystemNames {
    fn hosts(&self, name: &str) -> Vec<IpAddr> {
        if name.is_empty() || name.len() > HOST_LEN_MAX {
            return Vec::new();
        }
        let Ok(found) = (name, 0).to_socket_addrs() else {
            return Vec::new();
        };
        let mut hosts = Vec::new();
        for address in found {
            if !hosts.contains(&address.ip()) {
                hosts.push(address.ip());
            }
        }
        hosts
    }

    fn network(&self, name: &str) -> Option<u32> {
        self.networks().find(name, |_| true).copied()
    }

    fn service(&self, name: &str, transport: Transport) -> Option<u16> {
        let fits = |service: &Service| service.transport == transport;
        Some(self.services().find(name, fits)?.port)
    }

    fn protocol(&self, name: &str) -> Option<u8> {
        let found = self.protocols().find(name, |_| true)?;
        u8::try_from(found.number).ok()
    }

    fn ether_host(&self, name: &str) -> Option<[u8; 6]> {
        self.ethers().find(name, |_| true).copied()
    }

    fn candidates(&self, kind: NameKind) -> Vec<String> {
        match kind {
            NameKind::Host => Vec::new(),
            NameKind::Network => self.networks().names(),
            NameKind::Service => self.services().names(),
            // Excludes numbers that no packet can contain.
            NameKind::Protocol => {
                let mut names = self.protocols().names();
                names.retain(|name| self.protocol(name).is_some());
                names
            }
            NameKind::EtherHost => self.ethers().names(),
        }
    }
}
