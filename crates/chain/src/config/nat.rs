//! `kind = "nat"`: the table as a translator's configuration.

use super::{ConfigError, LIFE_MIN, address, duration, end};
use crate::nat::{Filtering, Forward, NatConfig, Prefix, Timeouts, Transport};
use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NatTable {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "match")]
    pub(super) filter: Option<Spanned<String>>,
    #[serde(default)]
    pool: Vec<Spanned<String>>,
    inside: Option<Vec<Spanned<String>>>,
    filtering: Option<Spanned<String>>,
    block: Option<u32>,
    blocks_max: Option<u32>,
    block_rest: Option<Spanned<String>>,
    sessions_max: Option<u32>,
    subscriber_sessions_max: Option<u32>,
    #[serde(default)]
    forward: Vec<Spanned<ForwardTable>>,
    #[serde(default)]
    ftp: bool,
    #[serde(default)]
    timeouts: TimeoutsTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForwardTable {
    protocol: Spanned<String>,
    from: Spanned<String>,
    to: Spanned<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct TimeoutsTable {
    udp: Option<Spanned<String>>,
    tcp: Option<Spanned<String>>,
    tcp_transitory: Option<Spanned<String>>,
    icmp: Option<Spanned<String>>,
}

pub(super) fn nat(table: NatTable) -> Result<NatConfig, ConfigError> {
    let defaults = NatConfig::default();
    let pool = table.pool.iter().map(address).collect::<Result<_, _>>()?;
    let inside = match &table.inside {
        None => defaults.inside,
        Some(prefixes) => prefixes.iter().map(prefix).collect::<Result<_, _>>()?,
    };
    let filtering = match &table.filtering {
        None => defaults.filtering,
        Some(word) => match word.get_ref().as_str() {
            "endpoint-independent" => Filtering::EndpointIndependent,
            "address" => Filtering::AddressDependent,
            "address-and-port" => Filtering::AddressAndPortDependent,
            other => {
                return Err(ConfigError::new(
                    word.span().start,
                    format!(
                        "filtering = \"{other}\": write \"endpoint-independent\", \"address\" or \
                         \"address-and-port\""
                    ),
                ));
            }
        },
    };
    let block = table.block.unwrap_or(defaults.block);
    let forwards = table
        .forward
        .iter()
        .map(forward)
        .collect::<Result<_, _>>()?;
    let usual = defaults.timeouts;
    let timeouts = &table.timeouts;
    Ok(NatConfig {
        pool,
        inside,
        block,
        blocks_max: table
            .blocks_max
            .unwrap_or_else(|| (crate::nat::PORTS / block.max(1)).max(1)),
        block_rest: duration(&table.block_rest, 0, defaults.block_rest)?,
        sessions_max: table.sessions_max.unwrap_or(defaults.sessions_max),
        subscriber_sessions_max: table
            .subscriber_sessions_max
            .unwrap_or(defaults.subscriber_sessions_max),
        filtering,
        forwards,
        ftp: table.ftp,
        timeouts: Timeouts {
            udp: duration(&timeouts.udp, LIFE_MIN, usual.udp)?,
            tcp: duration(&timeouts.tcp, LIFE_MIN, usual.tcp)?,
            tcp_transitory: duration(&timeouts.tcp_transitory, LIFE_MIN, usual.tcp_transitory)?,
            icmp: duration(&timeouts.icmp, LIFE_MIN, usual.icmp)?,
        },
        epoch: 0,
    })
}

fn forward(table: &Spanned<ForwardTable>) -> Result<Forward, ConfigError> {
    let table = table.get_ref();
    let transport = match table.protocol.get_ref().as_str() {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        other => {
            let message = format!("protocol = \"{other}\": write \"tcp\" or \"udp\"");
            return Err(ConfigError::new(table.protocol.span().start, message));
        }
    };
    Ok(Forward {
        transport,
        outside: end(&table.from)?,
        inside: end(&table.to)?,
    })
}

fn prefix(text: &Spanned<String>) -> Result<Prefix, ConfigError> {
    let read = || {
        let (address, len) = match text.get_ref().split_once('/') {
            Some((address, len)) => (address, len.parse().ok()?),
            None => (text.get_ref().as_str(), 32),
        };
        let address = address.parse().ok()?;
        (len <= 32).then_some(Prefix { address, len })
    };
    read().ok_or_else(|| {
        let message = format!("`{}`: write a prefix, as in \"10.0.0.0/8\"", text.get_ref());
        ConfigError::new(text.span().start, message)
    })
}
