//! The system's names, for filter expressions.
//!
//! | names of | are looked up in | if there is no such file |
//! |---|---|---|
//! | hosts | the system's resolver: `getaddrinfo(3)`, so `/etc/hosts`, DNS and what else nsswitch.conf(5) says | – |
//! | services | `/etc/services` | 241 entries of the IANA registry, built in |
//! | protocols | `/etc/protocols` | the IANA protocol numbers, built in |
//! | networks | `/etc/networks` | `loopback` alone |
//! | link-layer addresses | `/etc/ethers` | none |
//!
//! As with `getservbyname(3)` and its kin: case counts, aliases count, the
//! first line that fits is taken, and lines that make no sense are skipped. The
//! files are read when first needed, once. Other sources that nsswitch.conf may
//! name for them (NIS, LDAP) are not asked.

mod parse;

use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use weir_filter::lang::expr::{NameKind, Names, Transport};

use parse::{Protocol, Service, Table};

/// The most of a file that is read, in bytes; lines that end behind are not
/// seen.
pub const FILE_LEN_MAX: u64 = 4 << 20;

/// The longest host name that is asked for: DNS's limit, in bytes.
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
    /// The names of the files in `/etc`. Nothing is read yet.
    pub fn new() -> SystemNames {
        SystemNames::in_folder("/etc")
    }

    /// The names of the files in `folder`; hosts are still the system's.
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

    /// A file's text, or the built-in one if it cannot be read.
    fn text(&self, file: &str, built_in: &str) -> String {
        use std::io::Read;
        let mut bytes = Vec::new();
        let read = std::fs::File::open(self.folder.join(file))
            .and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes));
        if bytes.len() as u64 > FILE_LEN_MAX {
            // A line cut in the middle could mean another number.
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
            // Not those of numbers that no packet can carry.
            NameKind::Protocol => {
                let mut names = self.protocols().names();
                names.retain(|name| self.protocol(name).is_some());
                names
            }
            NameKind::EtherHost => self.ethers().names(),
        }
    }
}
