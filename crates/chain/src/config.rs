//! `[[stage]]` of a configuration file.
//!
//! ```toml
//! [[stage]]
//! kind = "mark"
//! match = "udp dst port 5060"   # any stage may have a filter
//! dscp = "ef"                   # a name, or a number
//!
//! [[stage]]
//! kind = "police"
//! rate = "100M"                 # bits per second, in each direction
//! burst = "125k"                # bytes
//!
//! [[stage]]
//! kind = "nat"
//! pool = ["203.0.113.1"]        # default: the addresses of the outside
//!
//! [[stage]]
//! kind = "nat64"
//! pool = ["203.0.113.2"]
//! prefix = "64:ff9b::/96"
//! ```

mod nat;

use crate::balance::{Balance, BalanceConfig, BalanceError, HttpCheck, Server, WEIGHT_MAX};
use crate::ipsec::{self, Ipsec};
use crate::nat::nat64::{Nat64, Nat64Config, TranslationPrefix};
use crate::nat::{Nat, NatConfig, NatError, Prefix};
use crate::reload::Reload;
use crate::stages::{BURST_BYTES_MAX, Discard, Mark, Police, RATE_BITS_MAX};
use crate::{Stage, filter};
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::RangeInclusive;
use toml::Spanned;
use toml::de::{DeTable, Deserializer};
use weir_filter::ir::Program;
use weir_filter::lang::expr::Names;
use weir_wire::Protocol;

/// Names of code points (RFC 2474, 2597, 3246, 8622).
const CODE_POINTS: [(&str, u8); 22] = [
    ("cs0", 0),
    ("le", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// The kinds of stages, for messages.
const KINDS: &str = "\"mark\", \"drop\", \"police\", \"nat\", \"nat64\", \"balance\" or \"ipsec\"";

/// The reason why a stage is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    /// The byte offset in the text; `None` if unknown.
    pub at: Option<usize>,
    /// The fault and the remedy.
    pub message: String,
}

impl ConfigError {
    fn new(at: usize, message: impl Into<String>) -> ConfigError {
        ConfigError {
            at: Some(at),
            message: message.into(),
        }
    }
}

impl From<toml::de::Error> for ConfigError {
    fn from(error: toml::de::Error) -> ConfigError {
        ConfigError {
            at: error.span().map(|span| span.start),
            message: error.message().to_owned(),
        }
    }
}

/// A stage as configured.
#[derive(Clone, Debug)]
pub struct StageConfig {
    kind: Kind,
    program: Option<Program>,
    /// Where the table begins in the text.
    at: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Mark(Mark),
    Drop,
    Police(Police),
    Nat(Box<NatConfig>),
    Nat64(Box<Nat64Config>),
    Balance(Box<Balanced>),
    Ipsec(SaSource),
}

/// The source of a stage's tunnels, SAs and policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SaSource {
    /// The file `sa.toml` of this name.
    File(String),
    /// The kernel's databases (XFRM).
    Kernel,
    /// strongSwan on the same host.
    Strongswan {
        /// Its log, which has the keys.
        log: String,
        /// The socket of VICI, unless it is the usual one.
        vici: Option<String>,
    },
}

#[derive(Clone, Debug)]
struct Balanced {
    config: BalanceConfig,
    /// The address of the service.
    address: [Ipv4Addr; 1],
    /// Where the stage takes other servers from.
    reload: Reload<Vec<Server>>,
    /// Where `direct_return = true` is in the text.
    direct_at: Option<usize>,
    /// Where each server's `to` is in the text.
    server_at: Vec<usize>,
}

impl Balanced {
    fn read(table: &BalanceTable) -> Result<Balanced, ConfigError> {
        let config = balance(table)?;
        let direct = table.direct_return.as_ref().filter(|it| *it.get_ref());
        let servers = table.server.iter();
        Ok(Balanced {
            address: [config.service.0],
            config,
            reload: Reload::default(),
            direct_at: direct.map(|it| it.span().start),
            server_at: servers
                .map(|server| server.get_ref().to.span().start)
                .collect(),
        })
    }

    fn build(&self, at: usize, context: &Context<'_>) -> Result<Balance, ConfigError> {
        let networks = || context.networks.to_vec();
        let config = BalanceConfig {
            direct_return: self.direct_at.map(|_| networks()),
            ..self.config.clone()
        };
        let wrong = |error: BalanceError| {
            let place = match &error {
                BalanceError::Server { address, port, .. } => {
                    let mut servers = self.config.servers.iter();
                    servers.rposition(|server| server.end == (*address, *port))
                }
                _ => None,
            };
            let place = place.and_then(|place| self.server_at.get(place));
            ConfigError::new(place.copied().unwrap_or(at), error.to_string())
        };
        let balance = Balance::new(config, context.seed).map_err(wrong)?;
        Ok(balance.reloaded_by(self.reload.clone()))
    }
}

/// The surroundings of a stage, beside its configuration.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// A random number.
    pub seed: u64,
    /// Unix time at `now` 0, in ns.
    pub epoch: u64,
    /// The addresses of the outside link: the default pool.
    pub outside: &'a [Ipv4Addr],
    /// The box's own addresses on all links, each with its network. `0.0.0.0/0` stands for those of
    /// a link whose addresses are not known.
    pub networks: &'a [Prefix],
    /// What the source of a stage `ipsec` has, and the source of its changes.
    pub ipsec: Option<(&'a weir_esp::Config, ipsec::Reload)>,
    /// Whether one link is inside and outside.
    pub is_one_armed: bool,
}

impl Context<'_> {
    /// A translator's configuration with the surroundings.
    fn complete<A: Clone>(&self, config: &NatConfig<A>) -> NatConfig<A> {
        let mut config = NatConfig {
            epoch: self.epoch,
            ..config.clone()
        };
        if config.pool.is_empty() {
            config.pool = self.outside.to_vec();
        }
        config
    }
}

#[derive(Deserialize)]
struct Head {
    kind: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plain {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "match")]
    filter: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkTable {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "match")]
    filter: Option<Spanned<String>>,
    dscp: Spanned<NameOrNumber>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a name or a number")]
enum NameOrNumber {
    Number(u64),
    Name(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PoliceTable {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "match")]
    filter: Option<Spanned<String>>,
    rate: Spanned<NameOrNumber>,
    burst: Spanned<NameOrNumber>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BalanceTable {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "match")]
    filter: Option<Spanned<String>>,
    protocol: Option<Spanned<String>>,
    service: Spanned<String>,
    server: Vec<Spanned<ServerTable>>,
    sessions_max: Option<u32>,
    idle: Option<Spanned<String>>,
    closing: Option<Spanned<String>>,
    probe: Option<Spanned<String>>,
    probe_timeout: Option<Spanned<String>>,
    probes: Option<u32>,
    fall: Option<u32>,
    rise: Option<u32>,
    http: Option<Spanned<HttpTable>>,
    direct_return: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpTable {
    path: Option<String>,
    host: Option<String>,
    status: Option<Spanned<NameOrNumber>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IpsecTable {
    #[serde(rename = "kind")]
    _kind: String,
    sa: Option<String>,
    #[serde(default)]
    kernel_sas: bool,
    strongswan: Option<String>,
    vici: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerTable {
    to: Spanned<String>,
    weight: Option<Spanned<u32>>,
    #[serde(default)]
    draining: bool,
}

impl StageConfig {
    /// Reads a table `[[stage]]`.
    ///
    /// # Errors
    /// The fault and its position.
    pub fn read(
        table: Spanned<DeTable<'_>>,
        names: &dyn Names,
    ) -> Result<StageConfig, ConfigError> {
        let at = table.span().start;
        let head = Head::deserialize(Deserializer::from(table.clone()))?;
        let read = Deserializer::from(table);
        let (kind, text) = match head.kind.get_ref().as_str() {
            "mark" => {
                let table = MarkTable::deserialize(read)?;
                let dscp = code_point(&table.dscp)?;
                (Kind::Mark(Mark { dscp }), table.filter)
            }
            "drop" => (Kind::Drop, Plain::deserialize(read)?.filter),
            "police" => {
                let table = PoliceTable::deserialize(read)?;
                let rate = number(&table.rate, "rate", RATE_BITS_MAX)?;
                let burst = number(&table.burst, "burst", BURST_BYTES_MAX)?;
                (Kind::Police(Police::new(rate, burst)), table.filter)
            }
            "nat" => {
                let table = nat::NatTable::deserialize(read)?;
                let filter = table.filter.clone();
                (Kind::Nat(Box::new(nat::nat(&table)?)), filter)
            }
            "nat64" => {
                let table = nat::NatTable::deserialize(read)?;
                (Kind::Nat64(Box::new(nat::nat64(&table)?)), None)
            }
            "balance" => {
                let table = BalanceTable::deserialize(read)?;
                let filter = table.filter.clone();
                (Kind::Balance(Box::new(Balanced::read(&table)?)), filter)
            }
            // No filter: what it would not select would be unprotected.
            "ipsec" => (
                Kind::Ipsec(sa_source(IpsecTable::deserialize(read)?, at)?),
                None,
            ),
            other => {
                let message = format!("kind = \"{other}\": write {KINDS}");
                return Err(ConfigError::new(head.kind.span().start, message));
            }
        };
        let program =
            match text {
                None => None,
                Some(text) => Some(filter::program(text.get_ref(), names).map_err(|error| {
                    ConfigError::new(text.span().start, format!("match: {error}"))
                })?),
            };
        Ok(StageConfig { kind, program, at })
    }

    /// The public addresses that the stage translates to: those that the outside
    /// link has to have.
    pub fn pool(&self) -> &[Ipv4Addr] {
        match &self.kind {
            Kind::Nat(config) => &config.pool,
            Kind::Nat64(config) => &config.nat.pool,
            Kind::Balance(balanced) => &balanced.address,
            _ => &[],
        }
    }

    /// The addresses of static forwards, which are the outside link's or the pool's.
    pub fn forwarded(&self) -> impl Iterator<Item = Ipv4Addr> {
        let ends: Vec<Ipv4Addr> = match &self.kind {
            Kind::Nat(config) => config.forwards.iter().map(|it| it.outside.0).collect(),
            Kind::Nat64(config) => config.nat.forwards.iter().map(|it| it.outside.0).collect(),
            _ => Vec::new(),
        };
        ends.into_iter()
    }

    /// The IPv6 addresses that stand for those of the outside, of a stage `nat64`; `None` of others.
    pub fn prefix(&self) -> Option<&TranslationPrefix> {
        match &self.kind {
            Kind::Nat64(config) => Some(&config.prefix),
            _ => None,
        }
    }

    /// Whether the stage has ports of a pool of its own.
    pub fn has_pool(&self) -> bool {
        matches!(self.kind, Kind::Nat(_) | Kind::Nat64(_))
    }

    /// The source of tunnels, SAs and policies of a stage `ipsec`; `None` of others.
    pub fn sa_source(&self) -> Option<&SaSource> {
        match &self.kind {
            Kind::Ipsec(source) => Some(source),
            _ => None,
        }
    }

    /// The servers of a stage `balance`, and where a running one takes others from; `None` of
    /// other stages.
    pub fn servers(&self) -> Option<(&[Server], &Reload<Vec<Server>>)> {
        match &self.kind {
            Kind::Balance(balanced) => Some((&balanced.config.servers, &balanced.reload)),
            _ => None,
        }
    }

    /// Where the table begins in the text.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Whether the stage translates addresses.
    pub fn translates(&self) -> bool {
        let is_direct = self.direct_return().is_some();
        matches!(self.kind, Kind::Nat(_) | Kind::Nat64(_) | Kind::Balance(_)) && !is_direct
    }

    /// Where the text says that answers of the stage's servers do not come back through the chain;
    /// `None` if they do.
    pub fn direct_return(&self) -> Option<usize> {
        match &self.kind {
            Kind::Balance(balanced) => balanced.direct_at,
            _ => None,
        }
    }

    /// Whether the stage makes sense with one link, for inside and outside; `None` if it
    /// does where the others do.
    pub fn may_be_one_armed(&self) -> Option<bool> {
        match self.kind {
            Kind::Balance(..) | Kind::Ipsec(_) => Some(true),
            Kind::Nat(_) | Kind::Nat64(_) => Some(false),
            Kind::Mark(_) | Kind::Drop | Kind::Police(_) => None,
        }
    }

    /// The kind, as in the configuration.
    pub fn kind(&self) -> &'static str {
        match &self.kind {
            Kind::Mark(_) => "mark",
            Kind::Drop => "drop",
            Kind::Police(_) => "police",
            Kind::Nat(_) => "nat",
            Kind::Nat64(_) => "nat64",
            Kind::Balance(..) => "balance",
            Kind::Ipsec(_) => "ipsec",
        }
    }

    /// Makes the stage, and its filter.
    ///
    /// # Errors
    /// If the stage refuses its configuration.
    pub fn build(
        &self,
        context: &Context<'_>,
    ) -> Result<(Box<dyn Stage>, Option<Program>), ConfigError> {
        let refused = |error: NatError| ConfigError::new(self.at, error.to_string());
        let stage: Box<dyn Stage> = match &self.kind {
            Kind::Mark(mark) => Box::new(*mark),
            Kind::Drop => Box::new(Discard),
            Kind::Police(police) => Box::new(police.clone()),
            Kind::Nat(config) => {
                let config = context.complete(config);
                Box::new(Nat::new(config, context.seed).map_err(refused)?)
            }
            Kind::Nat64(config) => {
                let config = Nat64Config {
                    nat: context.complete(&config.nat),
                    own: context.outside.to_vec(),
                    ..Nat64Config::clone(config)
                };
                Box::new(Nat64::new(config, context.seed).map_err(refused)?)
            }
            Kind::Balance(balanced) => Box::new(balanced.build(self.at, context)?),
            Kind::Ipsec(_) => {
                let Some((config, reload)) = &context.ipsec else {
                    let message = "the SAs were not read";
                    return Err(ConfigError::new(self.at, message));
                };
                let made = Ipsec::new(config, reload.clone(), context.seed);
                let made = made.map_err(|error| ConfigError::new(self.at, error.to_string()))?;
                Box::new(if context.is_one_armed {
                    made.one_armed()
                } else {
                    made
                })
            }
        };
        Ok((stage, self.program.clone()))
    }
}

fn sa_source(table: IpsecTable, at: usize) -> Result<SaSource, ConfigError> {
    match (table.sa, table.kernel_sas, table.strongswan, table.vici) {
        (Some(file), false, None, None) => Ok(SaSource::File(file)),
        (None, true, None, None) => Ok(SaSource::Kernel),
        (None, false, Some(log), vici) => Ok(SaSource::Strongswan { log, vici }),
        _ => {
            let message = "kind = \"ipsec\": write one of `sa`, a file's name, `kernel_sas = true`, or \
                           `strongswan`, the name of its log, with `vici`";
            Err(ConfigError::new(at, message))
        }
    }
}

fn balance(table: &BalanceTable) -> Result<BalanceConfig, ConfigError> {
    let protocol = match &table.protocol {
        None => Protocol::TCP,
        Some(word) => match word.get_ref().as_str() {
            "tcp" => Protocol::TCP,
            "udp" => Protocol::UDP,
            other => {
                let message = format!("protocol = \"{other}\": write \"tcp\" or \"udp\"");
                return Err(ConfigError::new(word.span().start, message));
            }
        },
    };
    let servers = table.server.iter().map(|server| {
        let server = server.get_ref();
        let weight = server.weight.as_ref().map_or(1, |weight| *weight.get_ref());
        if let Some(place) = &server.weight
            && !(1..=WEIGHT_MAX).contains(&weight)
        {
            let message = format!("weight of {weight}: write 1 to {WEIGHT_MAX}");
            return Err(ConfigError::new(place.span().start, message));
        }
        Ok(Server {
            end: end(&server.to)?,
            weight,
            is_draining: server.draining,
        })
    });
    let servers = servers.collect::<Result<Vec<Server>, ConfigError>>()?;
    let usual = BalanceConfig::new(protocol, end(&table.service)?, servers);
    let probe = match protocol {
        Protocol::TCP => duration(&table.probe, 0, usual.probe)?,
        _ => 0,
    };
    let http = table.http.as_ref().map(|http| {
        if probe == 0 {
            let message =
                "http: checks are probes of TCP: give `probe` an interval, or leave it out";
            return Err(ConfigError::new(http.span().start, message));
        }
        self::http(http, usual.service)
    });
    let http = http.transpose()?;
    Ok(BalanceConfig {
        sessions_max: table.sessions_max.unwrap_or(usual.sessions_max),
        idle: duration(&table.idle, LIFE_MIN, usual.idle)?,
        closing: duration(&table.closing, LIFE_MIN, usual.closing)?,
        probe,
        probe_timeout: duration(&table.probe_timeout, 0, probe)?,
        fall: table.fall.or(table.probes).unwrap_or(usual.fall),
        rise: table.rise.or(table.probes).unwrap_or(usual.rise),
        http,
        ..usual
    })
}

/// A check by HTTP: of `/` at the service, and every status of success or redirection is good.
fn http(table: &Spanned<HttpTable>, service: (Ipv4Addr, u16)) -> Result<HttpCheck, ConfigError> {
    let http = table.get_ref();
    let statuses = match &http.status {
        None => vec![200..=399],
        Some(text) => statuses(text)?,
    };
    let host = || format!("{}:{}", service.0, service.1);
    Ok(HttpCheck {
        path: http.path.clone().unwrap_or_else(|| "/".into()),
        host: http.host.clone().unwrap_or_else(host),
        statuses,
    })
}

/// Statuses, as in `200`, `"200-399"` or `"200,204,300-399"`.
fn statuses(value: &Spanned<NameOrNumber>) -> Result<Vec<RangeInclusive<u16>>, ConfigError> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    let read: Option<Vec<_>> = match value.get_ref() {
        NameOrNumber::Number(number) => u16::try_from(*number).ok().map(|one| vec![one..=one]),
        NameOrNumber::Name(text) => text.split(',').map(range).collect(),
    };
    read.ok_or_else(|| {
        let message = "status: write statuses of 100 to 599, as in 200 or \"200,300-399\"";
        ConfigError::new(value.span().start, message)
    })
}

/// An address and a port.
fn end(text: &Spanned<String>) -> Result<(Ipv4Addr, u16), ConfigError> {
    let read: Result<SocketAddrV4, _> = text.get_ref().parse();
    let read = read.map_err(|_| {
        let message = format!(
            "`{}`: write an IPv4 address and a port, as in \"192.0.2.1:80\"",
            text.get_ref()
        );
        ConfigError::new(text.span().start, message)
    })?;
    Ok((*read.ip(), read.port()))
}

fn address(text: &Spanned<String>) -> Result<Ipv4Addr, ConfigError> {
    text.get_ref().parse().map_err(|_| {
        let message = format!("`{}`: write an IPv4 address", text.get_ref());
        ConfigError::new(text.span().start, message)
    })
}

fn code_point(value: &Spanned<NameOrNumber>) -> Result<u8, ConfigError> {
    let found = match value.get_ref() {
        NameOrNumber::Number(number) => u8::try_from(*number).ok().filter(|dscp| *dscp < 64),
        NameOrNumber::Name(name) => {
            let mut names = CODE_POINTS.iter();
            names
                .find(|(known, _)| known == name)
                .map(|(_, dscp)| *dscp)
        }
    };
    found.ok_or_else(|| {
        let message = "dscp: write 0 to 63, or a name, as in \"ef\", \"af41\", \"cs1\" or \"le\"";
        ConfigError::new(value.span().start, message)
    })
}

/// A number with a decimal unit: `"100M"`.
fn number(value: &Spanned<NameOrNumber>, key: &str, max: u64) -> Result<u64, ConfigError> {
    let found = match value.get_ref() {
        NameOrNumber::Number(number) => Some(*number),
        NameOrNumber::Name(text) => {
            let digits = text.bytes().take_while(u8::is_ascii_digit).count();
            let (number, unit) = text.split_at(digits);
            let unit = match unit {
                "" => Some(1),
                "k" => Some(1000),
                "M" => Some(1_000_000),
                "G" => Some(1_000_000_000),
                _ => None,
            };
            let number: Option<u64> = number.parse().ok();
            number
                .zip(unit)
                .and_then(|(number, unit)| number.checked_mul(unit))
        }
    };
    found
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| {
            let message = format!("{key}: write 1 to {max}, or with k, M or G, as in \"100M\"");
            ConfigError::new(value.span().start, message)
        })
}

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// Shortest life of a session, in ns: one without any would end with its first packet.
const LIFE_MIN: u64 = SECOND;

/// Longest time, in ns: a year.
const TIME_MAX: u64 = 365 * 86_400 * SECOND;

/// A time of at least `min` ns: `"300s"`.
fn duration(text: &Option<Spanned<String>>, min: u64, default: u64) -> Result<u64, ConfigError> {
    let Some(text) = text else {
        return Ok(default);
    };
    let digits = text
        .get_ref()
        .bytes()
        .take_while(u8::is_ascii_digit)
        .count();
    let (number, unit) = text.get_ref().split_at(digits);
    let unit = match unit {
        "ms" => Some(SECOND / 1000),
        "s" => Some(SECOND),
        "m" => Some(60 * SECOND),
        "h" => Some(3600 * SECOND),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let found = number
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit))
        .filter(|time| (min..=TIME_MAX).contains(time));
    found.ok_or_else(|| {
        let message = format!(
            "`{}`: write a number and ms, s, m or h, as in \"300s\"; {}s to 8760h",
            text.get_ref(),
            min / SECOND
        );
        ConfigError::new(text.span().start, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_filter::lang::expr::NoNames;

    fn read(text: &str) -> Result<StageConfig, ConfigError> {
        let table = DeTable::parse(text).unwrap();
        StageConfig::read(table, &NoNames)
    }

    #[test]
    fn times_that_no_session_can_live_for_are_refused() {
        for (key, time) in [
            ("udp", "0s"),
            ("tcp", "999ms"),
            ("icmp", "8761h"),
            ("tcp_transitory", "5000000h"),
        ] {
            let text = format!("kind = \"nat\"\ntimeouts.{key} = \"{time}\"");
            let error = read(&text).unwrap_err();
            assert!(error.message.contains("1s to 8760h"), "{text}: {error}");
        }
        let balance = "kind = \"balance\"\nservice = \"192.0.2.1:80\"\n\
                       server = [{ to = \"10.0.0.1:80\" }]\n";
        for (text, is_good) in [
            ("idle = \"0s\"", false),
            ("closing = \"1s\"", true),
            ("probe = \"0s\"", true),
            ("probe = \"5000000h\"", false),
        ] {
            let read = read(&format!("{balance}{text}"));
            assert_eq!(read.is_ok(), is_good, "{text}");
        }
    }
}
