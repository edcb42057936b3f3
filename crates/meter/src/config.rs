//! `counter.toml`, the configuration of a counter. `docs/reference/counter.md` describes the keys,
//! and `examples/counter.toml` has all of them.

mod read;

pub use read::inside_prefix;

use crate::engine::{Inside, Settings, Unit};
use crate::measure::{Accepted, ActiveTime, Flows, Gaps, Measurement};
use crate::period::CHUNK_RECORDS;
use crate::policy::Policy;
use crate::services::{Service, Services};
use crate::{Key, KeyKind};
use std::net::{IpAddr, SocketAddr};
use weir_filter::lang::expr::Names;
use weir_wire::Protocol;

/// Largest size of a configuration file, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Largest value of `capacity`: sessions.
pub const CAPACITY_MAX: usize = 1 << 24;
/// Sessions at most in a capture, unless the file says so: nothing is allocated ahead.
pub const CAPACITY: usize = 1 << 20;
/// Sessions of a live link at least, unless the file says so: their counters are allocated at start.
pub const CAPACITY_LIVE: usize = 1 << 16;
/// Largest value of `unattributed_max`: keys.
pub const UNATTRIBUTED_MAX: usize = 1 << 22;
/// Measures beside packets and bytes, at most.
pub const MEASURES_MAX: usize = 32;
/// Prefixes of `inside`, at most: each frame of a capture is compared with all of them.
pub const INSIDE_MAX: usize = 1024;
/// Links, at most.
pub const LINKS_MAX: usize = 8;
/// Shortest and longest period, nanoseconds: 1 s and 1 day.
pub const PERIOD_NS: [u64; 2] = [NS_PER_S, 86_400 * NS_PER_S];
/// Policies, at most.
pub const POLICIES_MAX: usize = 1024;
/// Largest `max` of the measure `flows`.
pub const FLOWS_MAX: usize = 1 << 26;

pub(crate) const NS_PER_S: u64 = 1_000_000_000;

/// Why a configuration is rejected.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{message}")]
pub struct ConfigError {
    /// The byte offset in the text; `None` if it is of no place.
    pub at: Option<usize>,
    /// The value that is wrong, and what would be right.
    pub message: String,
}

/// A link that is metered live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The interface on the subscribers' side.
    pub inside: Option<String>,
    /// The interface on the other side.
    pub outside: Option<String>,
    /// The interface to which a switch copies frames of both directions.
    pub mirror: Option<String>,
    /// Whether frames at the mirror port go no further once they are counted.
    pub takes: bool,
}

/// A server of RADIUS accounting, from which sessions come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RadiusConfig {
    /// Where it listens; `None` if it only listens to others.
    pub listen: Option<SocketAddr>,
    /// Where it listens for Disconnect-Requests and CoA-Requests (RFC 5176).
    pub dynamic: Option<SocketAddr>,
    /// The interface on which the exchange of others passes.
    pub sniff: Option<String>,
    /// Time without an event, in nanoseconds, after which a session ends.
    pub silence_ns: Option<u64>,
    /// The access servers and proxies that may send requests.
    pub clients: Vec<RadiusClient>,
}

/// A RADIUS client: an address, or all of a network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RadiusClient {
    /// The address, or the network's.
    pub address: IpAddr,
    /// Bits of the network.
    pub prefix_len: u8,
    /// The file of the shared secret: its path as written, and where that stands in the text.
    pub secret_file: (String, usize),
    /// Whether its input octets are those to the subscriber.
    pub swapped: bool,
    /// Where it takes Disconnect-Requests and CoA-Requests (RFC 5176), if it does.
    pub dynamic: Option<SocketAddr>,
    /// The file of the secret of these, as `secret_file`; `None` if it is the same.
    pub dynamic_secret_file: Option<(String, usize)>,
}

/// A measure beside packets and bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MeasureConfig {
    /// [`Flows`].
    Flows {
        /// Flows in the table, at most.
        max: usize,
        /// When a flow without packets ends, nanoseconds.
        idle_ns: u64,
    },
    /// [`ActiveTime`].
    Active {
        /// Length of a slot, milliseconds.
        slot_ms: u64,
    },
    /// [`Gaps`].
    Gaps,
    /// [`Accepted`].
    Accepted {
        /// The column's name.
        name: String,
        /// The expression.
        filter: String,
    },
}

impl MeasureConfig {
    /// The measure; `seed` is a random number, against keys that are chosen to collide.
    pub fn measurement(&self, seed: u64) -> Box<dyn Measurement> {
        match self {
            MeasureConfig::Flows { max, idle_ns } => Box::new(Flows::new(*max, *idle_ns, seed)),
            MeasureConfig::Active { slot_ms } => Box::new(ActiveTime::new(*slot_ms)),
            MeasureConfig::Gaps => Box::new(Gaps),
            MeasureConfig::Accepted { name, filter } => Box::new(Accepted::new(name, filter)),
        }
    }
}

/// A configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The counter's name, which records bear.
    pub counter: String,
    /// The unit of bytes.
    pub unit: Unit,
    /// Length of a period, nanoseconds.
    pub period_ns: u64,
    /// Kinds of keys that are looked up.
    pub keys: Vec<KeyKind>,
    /// The list of subscribers: its path as written, and where that stands in the text.
    pub subscribers: Option<(String, usize)>,
    /// Whether each address of the inside is a subscriber.
    pub each_address: bool,
    /// Sessions at most, if the file says so.
    pub capacity: Option<usize>,
    /// Keys of unattributed traffic in a period, at most.
    pub unattributed_max: usize,
    /// How old unattributed traffic may be that a session adopts, nanoseconds; 0 for none.
    pub adoption_ns: u64,
    /// Records of a chunk at most.
    pub chunk_records: usize,
    /// The links.
    pub links: Vec<Link>,
    /// RADIUS accounting, if sessions come from there.
    pub radius: Option<RadiusConfig>,
    /// How the direction of a captured frame is found.
    pub inside: Inside,
    /// The services, in order.
    pub services: Vec<Service>,
    /// The measures, in order.
    pub measures: Vec<MeasureConfig>,
    /// The policies, in order.
    pub policies: Vec<Policy>,
    /// The name of the policy of sessions that name none.
    pub default_policy: Option<String>,
    /// The interface to which frames for the portal go.
    pub portal: Option<String>,
}

impl Default for Config {
    /// Each address of private networks is a subscriber; common services.
    fn default() -> Config {
        Config {
            each_address: true,
            services: common_services(),
            inside: Inside::Prefixes(private_prefixes()),
            ..Config::empty()
        }
    }
}

impl Config {
    /// The configuration of a file without keys.
    fn empty() -> Config {
        Config {
            counter: "counter".into(),
            unit: Unit::Ip,
            period_ns: 300 * NS_PER_S,
            keys: vec![KeyKind::Ipv4, KeyKind::Ipv6, KeyKind::Prefix],
            subscribers: None,
            each_address: false,
            capacity: None,
            unattributed_max: 1 << 16,
            adoption_ns: 0,
            chunk_records: CHUNK_RECORDS,
            links: Vec::new(),
            radius: None,
            inside: Inside::Sessions,
            services: Vec::new(),
            measures: Vec::new(),
            policies: Vec::new(),
            default_policy: None,
            portal: None,
        }
    }

    /// Reads a configuration; `names` resolves names in expressions, which are tried on Ethernet.
    ///
    /// # Errors
    /// For text that is not TOML, unknown keys, and invalid values.
    pub fn parse(text: &str, names: &dyn Names) -> Result<Config, ConfigError> {
        read::read(text, names)
    }

    /// Limit on sessions of a live link, for the number of subscribers in the list: an eighth more, rounded
    /// up to a multiple of [`CAPACITY_LIVE`], unless the file says otherwise.
    pub fn capacity_live(&self, listed: usize) -> usize {
        let enough = (listed + listed / 8).next_multiple_of(CAPACITY_LIVE);
        self.capacity.unwrap_or(enough.max(CAPACITY_LIVE))
    }

    /// The settings of an engine of this configuration. `boot_epoch` is what records bear, and
    /// `seed` a random number, against keys that are chosen to collide.
    pub fn settings(&self, boot_epoch: u64, seed: u64) -> Settings {
        let measures = self.measures.iter();
        Settings {
            counter: self.counter.clone(),
            boot_epoch,
            unit: self.unit,
            inside: self.inside.clone(),
            keys: self.keys.clone(),
            services: Services::new(self.services.clone()),
            measures: measures.map(|measure| measure.measurement(seed)).collect(),
            capacity: self.capacity.unwrap_or(CAPACITY),
            unattributed_max: self.unattributed_max,
            adoption_ns: self.adoption_ns,
            each_address: self.each_address,
            chunk_records: self.chunk_records,
            seed,
        }
    }
}

/// Networks of private addresses: RFC 1918 §3, RFC 4193 §3.1.
pub fn private_prefixes() -> Vec<Key> {
    let prefix = |address: IpAddr, len| Key::prefix(address, len).expect("a valid length");
    vec![
        prefix([10, 0, 0, 0].into(), 8),
        prefix([172, 16, 0, 0].into(), 12),
        prefix([192, 168, 0, 0].into(), 16),
        prefix([0xfc00, 0, 0, 0, 0, 0, 0, 0].into(), 7),
    ]
}

/// The services of a counter without a configuration.
fn common_services() -> Vec<Service> {
    let service = |name: &str, tcp: &[u16], udp: &[u16], protocols: &[Protocol]| {
        let of = |protocol, ports: &[u16]| -> Vec<_> {
            ports.iter().map(|port| (protocol, *port..=*port)).collect()
        };
        Service {
            name: name.into(),
            ports: [of(Protocol::TCP, tcp), of(Protocol::UDP, udp)].concat(),
            protocols: protocols.to_vec(),
            filter: None,
        }
    };
    vec![
        service("dns", &[53, 853], &[53, 853], &[]),
        service("web", &[80, 443, 8080, 8443], &[80, 443], &[]),
        service("mail", &[25, 110, 143, 465, 587, 993, 995], &[], &[]),
        service("ssh", &[22], &[], &[]),
        service("icmp", &[], &[], &[Protocol::ICMPV4, Protocol::ICMPV6]),
    ]
}

/// Reads a length of time such as `5m`: a number and `ms`, `s`, `m`, `h` or `d`; in nanoseconds.
///
/// # Errors
/// The correct form.
pub fn duration_ns(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_ns = match unit {
        "ms" => NS_PER_S / 1000,
        "s" => NS_PER_S,
        "m" => 60 * NS_PER_S,
        "h" => 3600 * NS_PER_S,
        "d" => 86_400 * NS_PER_S,
        _ => 0,
    };
    let number: Option<u64> = number.parse().ok();
    let ns = number.and_then(|number| number.checked_mul(unit_ns));
    ns.filter(|_| unit_ns > 0)
        .ok_or_else(|| "write a number and ms, s, m, h or d, as in \"5m\"".into())
}

#[cfg(test)]
mod tests;
