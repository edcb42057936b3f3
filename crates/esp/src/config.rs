//! `sa.toml`: tunnels, their SAs, and policies.
//!
//! ```toml
//! [[tunnel]]
//! name = "office"
//! local = "192.0.2.1"
//! remote = "198.51.100.1"
//!
//! [[sa]]
//! tunnel = "office"
//! direction = "out"             # the last one of a tunnel is used
//! spi = 0x1001
//! algorithm = "aes256gcm"
//! key = "…"                     # key and salt, in hexadecimal digits
//!
//! [[policy]]                    # in order; the last one's default: discard
//! match = "src net 10.1.0.0/16 and dst net 10.2.0.0/16"
//! action = "protect"
//! tunnel = "office"
//! ```

use crate::algorithm::{Algorithm, Keymat};
use crate::policy::{self, Action, POLICIES_MAX, Policy};
use crate::replay::{WINDOW_DEFAULT, WINDOW_MAX};
use crate::sa::{Lifetime, SaConfig};
use crate::tunnel::{DontFragment, MTU_MIN, Mode, Tunnel, UDP_PORT, UdpPorts};
use serde::Deserialize;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use toml::Spanned;
use weir_filter::lang::expr::Names;

/// Number of tunnels, at most.
pub const TUNNELS_MAX: usize = 1024;

/// Number of SAs, at most.
pub const SAS_MAX: usize = 8192;

/// Length of the file, at most, in bytes.
pub const FILE_BYTES_MAX: u64 = 8 << 20;

/// The smallest SPI: the others are reserved (RFC 4303 §2.1).
const SPI_MIN: u32 = 256;

/// Interval of keepalives unless configured (RFC 3948 §4), in ns.
const KEEPALIVE: u64 = 20_000_000_000;

/// The reason why a configuration is refused.
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

    pub(crate) fn whole(message: impl Into<String>) -> ConfigError {
        ConfigError {
            at: None,
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

/// The direction of an SA, and of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Packets enter by it.
    In,
    /// Packets leave by it.
    Out,
}

/// An SA and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaEntry {
    /// The number of its tunnel.
    pub tunnel: usize,
    /// Its direction.
    pub direction: Direction,
    /// Its parameters.
    pub sa: SaConfig,
}

/// A gateway as configured.
#[derive(Clone, Default, Debug)]
pub struct Config {
    /// The tunnels.
    pub tunnels: Vec<Tunnel>,
    /// Their SAs. The last outbound one of a tunnel is used.
    pub sas: Vec<SaEntry>,
    /// The policies, in order.
    pub policies: Vec<Policy>,
    /// Whether keys are made by a key exchange, so that none comes again long after its SA went, and so that
    /// packets may come just before their SA is known.
    pub is_negotiated: bool,
    /// What of another program's SAs and policies is not used, with the reason.
    pub refused: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mtu: Option<Spanned<usize>>,
    #[serde(default)]
    tunnel: Vec<Spanned<TunnelTable>>,
    #[serde(default)]
    sa: Vec<Spanned<SaTable>>,
    #[serde(default)]
    policy: Vec<Spanned<PolicyTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TunnelTable {
    name: Spanned<String>,
    #[serde(default)]
    mode: ModeName,
    local: IpAddr,
    remote: Spanned<IpAddr>,
    #[serde(default)]
    udp: bool,
    local_port: Option<Spanned<u16>>,
    remote_port: Option<Spanned<u16>>,
    dscp: Option<Spanned<u8>>,
    #[serde(default)]
    dont_fragment: DontFragmentName,
    mtu: Option<Spanned<usize>>,
    keepalive: Option<Spanned<String>>,
}

#[derive(Clone, Copy, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum ModeName {
    #[default]
    Tunnel,
    Transport,
}

#[derive(Clone, Copy, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum DontFragmentName {
    #[default]
    Copy,
    Set,
    Clear,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SaTable {
    tunnel: Spanned<String>,
    direction: Direction,
    spi: Spanned<u32>,
    algorithm: Spanned<String>,
    key: Spanned<Key>,
    #[serde(default)]
    esn: bool,
    window: Option<Spanned<u32>>,
    packets_max: Option<u64>,
    bytes_max: Option<u64>,
    lifetime: Option<Spanned<String>>,
    sequence: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyTable {
    #[serde(rename = "match")]
    filter: Option<Spanned<String>>,
    action: Spanned<ActionName>,
    tunnel: Option<Spanned<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ActionName {
    Protect,
    Bypass,
    Discard,
}

/// Keying material, read without a copy that would not be erased; `None` if the
/// text is not hexadecimal.
struct Key(Option<Keymat>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: serde::Deserializer<'de>>(read: D) -> Result<Key, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text of hexadecimal digits")
            }
            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key(Keymat::of_hex(text)))
            }
            fn visit_string<E>(self, text: String) -> Result<Key, E> {
                Ok(Key(Keymat::of_hex(&zeroize::Zeroizing::new(text))))
            }
        }
        read.deserialize_str(Visitor)
    }
}

impl Config {
    /// Reads a configuration. `mtu` is the MTU of paths that have none of their
    /// own, in bytes.
    ///
    /// # Errors
    /// The fault and its position. No message shows a key.
    pub fn parse(text: &str, names: &dyn Names, mtu: usize) -> Result<Config, ConfigError> {
        let file: File = toml::from_str(text)?;
        let limits = [
            (file.tunnel.len(), TUNNELS_MAX, "tunnels"),
            (file.sa.len(), SAS_MAX, "SAs"),
            (file.policy.len(), POLICIES_MAX, "policies"),
        ];
        if let Some((found, max, what)) = limits.iter().find(|(found, max, _)| found > max) {
            return Err(ConfigError::whole(format!("{found} {what}: at most {max}")));
        }
        let mtu = match &file.mtu {
            Some(mtu) => checked_mtu(mtu)?,
            None => mtu,
        };
        let mut config = Config::default();
        for table in file.tunnel {
            let made = tunnel(table.get_ref(), mtu)?;
            if config.tunnels.iter().any(|other| other.name == made.name) {
                let message = format!("name = \"{}\": there is such a tunnel already", made.name);
                return Err(ConfigError::new(table.get_ref().name.span().start, message));
            }
            config.tunnels.push(made);
        }
        for table in file.sa {
            config.add_sa(table)?;
        }
        for table in file.policy {
            config.policies.push(config.policy(&table, names)?);
        }
        config.check()?;
        Ok(config)
    }

    fn number(&self, name: &Spanned<String>) -> Result<usize, ConfigError> {
        let wanted = name.get_ref();
        let found = self
            .tunnels
            .iter()
            .position(|tunnel| tunnel.name == *wanted);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.tunnels.iter().map(|tunnel| &*tunnel.name).collect();
            let known = if names.is_empty() {
                "write a [[tunnel]] first".to_owned()
            } else {
                format!("write one of {}", names.join(", "))
            };
            ConfigError::new(
                name.span().start,
                format!("tunnel = \"{wanted}\": there is none of this name: {known}"),
            )
        })
    }

    fn add_sa(&mut self, table: Spanned<SaTable>) -> Result<(), ConfigError> {
        let at = table.span().start;
        let table = table.into_inner();
        let number = self.number(&table.tunnel)?;
        let spi = *table.spi.get_ref();
        if spi < SPI_MIN {
            let message = format!("spi = {spi}: write a number from {SPI_MIN} on");
            return Err(ConfigError::new(table.spi.span().start, message));
        }
        let name = table.algorithm.get_ref();
        let algorithm = Algorithm::named(name).ok_or_else(|| {
            let message = format!(
                "algorithm = \"{name}\": write \"aes128gcm\", \"aes256gcm\" or \"chacha20poly1305\""
            );
            ConfigError::new(table.algorithm.span().start, message)
        })?;
        let sa = SaConfig {
            spi,
            algorithm,
            keymat: keymat(table.key, algorithm)?,
            is_extended: table.esn,
            window: window(table.window.as_ref())?,
            lifetime: Lifetime {
                packets_max: table.packets_max.unwrap_or(u64::MAX),
                bytes_max: table.bytes_max.unwrap_or(u64::MAX),
                age_max: match &table.lifetime {
                    Some(text) => time(text, "lifetime")?,
                    None => u64::MAX,
                },
            },
            sequence: table
                .sequence
                .as_ref()
                .map_or(0, |number| *number.get_ref()),
        };
        if !sa.is_extended && sa.sequence > u32::MAX.into() {
            let message = format!(
                "sequence = {}: without esn = true it has 32 bits, up to 4294967295",
                sa.sequence
            );
            let at = table.sequence.map_or(at, |number| number.span().start);
            return Err(ConfigError::new(at, message));
        }
        let entry = SaEntry {
            tunnel: number,
            direction: table.direction,
            sa,
        };
        self.check_sa(&entry)
            .map_err(|message| ConfigError::new(at, message))?;
        self.sas.push(entry);
        Ok(())
    }

    /// Whether an SA fits those before it.
    fn check_sa(&self, entry: &SaEntry) -> Result<(), String> {
        let is_same = |other: &&SaEntry| {
            other.sa.spi == entry.sa.spi
                && other.direction == entry.direction
                && (entry.direction == Direction::In || other.tunnel == entry.tunnel)
        };
        match self.sas.iter().find(is_same) {
            None => Ok(()),
            Some(_) => Err(format!(
                "spi = {:#x}: there is such an SA in this direction already: choose another number",
                entry.sa.spi
            )),
        }
    }

    fn policy(
        &self,
        table: &Spanned<PolicyTable>,
        names: &dyn Names,
    ) -> Result<Policy, ConfigError> {
        let table_at = table.span().start;
        let table = table.get_ref();
        let action = match (table.action.get_ref(), &table.tunnel) {
            (ActionName::Protect, Some(name)) => Action::Protect(self.number(name)?),
            (ActionName::Protect, None) => {
                let message = "action = \"protect\": say by which `tunnel`";
                return Err(ConfigError::new(table_at, message));
            }
            (_, Some(name)) => {
                let message = "tunnel: only action = \"protect\" has one";
                return Err(ConfigError::new(name.span().start, message));
            }
            (ActionName::Bypass, None) => Action::Bypass,
            (ActionName::Discard, None) => Action::Discard,
        };
        let (text, at) = match &table.filter {
            Some(text) => (text.get_ref().as_str(), text.span().start),
            None => ("", table_at),
        };
        let filter = policy::program(text, names)
            .map_err(|error| ConfigError::new(at, format!("match: {error}")))?;
        Ok(Policy {
            filter: Arc::new(filter),
            action,
        })
    }

    /// Whether no key occurs twice: with a counter as IV, two SAs with one key
    /// repeat nonces (RFC 4106 §2).
    ///
    /// # Errors
    /// If one does.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut keys = HashSet::new();
        for entry in &self.sas {
            if !keys.insert(entry.sa.keymat.fingerprint()) {
                return Err(ConfigError::whole(format!(
                    "spi = {:#x}: another SA has the same key, also if it is of the other \
                     direction: nonces would repeat, and all would be lost; write a new key",
                    entry.sa.spi
                )));
            }
        }
        Ok(())
    }
}

fn tunnel(table: &TunnelTable, mtu: usize) -> Result<Tunnel, ConfigError> {
    let remote = *table.remote.get_ref();
    let at = table.remote.span().start;
    if table.local.is_ipv6() != remote.is_ipv6() {
        let message = format!(
            "remote = \"{remote}\": local = \"{}\" is of another version of IP",
            table.local
        );
        return Err(ConfigError::new(at, message));
    }
    let mode = match table.mode {
        ModeName::Tunnel => Mode::Tunnel,
        ModeName::Transport => Mode::Transport,
    };
    if table.udp && mode == Mode::Transport {
        let message = "udp = true: only with mode = \"tunnel\": behind a translator the \
                       checksums of transport mode would be wrong";
        return Err(ConfigError::new(at, message));
    }
    let ports = [&table.local_port, &table.remote_port];
    if let (false, Some(port)) = (table.udp, ports.into_iter().flatten().next()) {
        let message = "local_port, remote_port: only with udp = true";
        return Err(ConfigError::new(port.span().start, message));
    }
    let port = |port: &Option<Spanned<u16>>| port.as_ref().map_or(UDP_PORT, |port| *port.get_ref());
    let dscp = match &table.dscp {
        Some(dscp) if *dscp.get_ref() > 63 => {
            let message = format!("dscp = {}: write 0 to 63", dscp.get_ref());
            return Err(ConfigError::new(dscp.span().start, message));
        }
        Some(dscp) => Some(*dscp.get_ref()),
        None => None,
    };
    Ok(Tunnel {
        name: table.name.get_ref().clone(),
        mode,
        local: table.local,
        remote,
        udp: table.udp.then(|| UdpPorts {
            local: port(&table.local_port),
            remote: port(&table.remote_port),
        }),
        dscp,
        dont_fragment: match table.dont_fragment {
            DontFragmentName::Copy => DontFragment::Copy,
            DontFragmentName::Set => DontFragment::Set,
            DontFragmentName::Clear => DontFragment::Clear,
        },
        mtu: match &table.mtu {
            Some(mtu) => checked_mtu(mtu)?,
            None => mtu,
        },
        keepalive: match &table.keepalive {
            Some(text) => time(text, "keepalive")?,
            None => KEEPALIVE,
        },
    })
}

fn checked_mtu(mtu: &Spanned<usize>) -> Result<usize, ConfigError> {
    let value = *mtu.get_ref();
    match value {
        MTU_MIN..=65_535 => Ok(value),
        _ => {
            let message = format!("mtu = {value}: write {MTU_MIN} to 65535");
            Err(ConfigError::new(mtu.span().start, message))
        }
    }
}

fn window(window: Option<&Spanned<u32>>) -> Result<u32, ConfigError> {
    match window {
        None => Ok(WINDOW_DEFAULT),
        Some(window) => match *window.get_ref() {
            value @ 1..=WINDOW_MAX => Ok(value),
            value => {
                let message = format!("window = {value}: write 1 to {WINDOW_MAX} packets");
                Err(ConfigError::new(window.span().start, message))
            }
        },
    }
}

fn keymat(key: Spanned<Key>, algorithm: Algorithm) -> Result<Keymat, ConfigError> {
    let at = key.span().start;
    let wanted = algorithm.keymat_len();
    match key.into_inner().0 {
        None => {
            let message = format!("key: write {} hexadecimal digits", wanted * 2);
            Err(ConfigError::new(at, message))
        }
        Some(keymat) if keymat.len() != wanted => {
            let message = format!(
                "key: {} bytes: {} needs {wanted}, key and salt of 4",
                keymat.len(),
                algorithm.name()
            );
            Err(ConfigError::new(at, message))
        }
        Some(keymat) => Ok(keymat),
    }
}

/// A time such as `"8h"`, in ns.
fn time(text: &Spanned<String>, key: &str) -> Result<u64, ConfigError> {
    const UNITS: [(&str, u64); 4] = [
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    let value = text.get_ref();
    let read = UNITS.iter().find_map(|(unit, ns)| {
        let number: u64 = value.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*ns)
    });
    read.ok_or_else(|| {
        let message = format!("{key} = \"{value}\": write a number with ms, s, m or h");
        ConfigError::new(text.span().start, message)
    })
}
