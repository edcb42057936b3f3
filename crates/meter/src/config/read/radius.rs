//! `[radius]` of `counter.toml`.

use super::super::{Config, ConfigError, NS_PER_S, RadiusClient, RadiusConfig};
use super::policy::PolicyTable;
use super::{Ordered, duration, error, inside_prefix, wrong};
use crate::Key;
use serde::Deserialize;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use toml::Spanned;

/// The transport port of RADIUS accounting (RFC 2866 §3).
const ACCOUNTING_PORT: u16 = 1813;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RadiusTable {
    listen: Option<Spanned<String>>,
    dynamic: Option<Spanned<String>>,
    sniff: Option<Spanned<String>>,
    silence: Option<Spanned<String>>,
    #[serde(default)]
    client: Vec<Spanned<RadiusClientTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RadiusClientTable {
    address: Spanned<String>,
    secret_file: Spanned<String>,
    #[serde(default)]
    swapped: bool,
    dynamic: Option<Spanned<String>>,
    dynamic_secret_file: Option<Spanned<String>>,
}

fn address(key: &str, text: &Spanned<String>) -> Result<SocketAddr, ConfigError> {
    text.get_ref().parse::<SocketAddr>().map_err(|_| {
        let remedy = "write an address and a port, as in \"[::]:1813\"";
        wrong(key, text, text.get_ref(), remedy)
    })
}

pub(super) fn radius(table: &Spanned<RadiusTable>) -> Result<RadiusConfig, ConfigError> {
    let (at, table) = (table.span().start, table.get_ref());
    let listen = match &table.listen {
        None if table.sniff.is_some() => None,
        None => Some((Ipv6Addr::UNSPECIFIED, ACCOUNTING_PORT).into()),
        Some(text) => Some(address("listen", text)?),
    };
    let dynamic = table.dynamic.as_ref();
    let dynamic = dynamic.map(|text| address("dynamic", text)).transpose()?;
    if let (Some(text), None) = (&table.dynamic, listen) {
        let remedy = "it ends sessions of `listen`, and there is `sniff` alone: add `listen`";
        return Err(wrong("dynamic", text, text.get_ref(), remedy));
    }
    let sniff = match &table.sniff {
        Some(name) if name.get_ref().is_empty() => {
            return Err(wrong("sniff", name, "``", "give the name of an interface"));
        }
        other => other.as_ref().map(|name| name.get_ref().clone()),
    };
    let silence_ns = match &table.silence {
        None => None,
        Some(text) => Some(duration(
            "silence",
            text,
            [NS_PER_S, 30 * 86_400 * NS_PER_S],
        )?),
    };
    if table.client.is_empty() {
        let message =
            "[radius]: there is no client: add [[radius.client]] with address and secret_file";
        return Err(error(at, message));
    }
    let clients = table
        .client
        .iter()
        .map(|client| self::client(client.get_ref()));
    Ok(RadiusConfig {
        listen,
        dynamic,
        sniff,
        silence_ns,
        clients: clients.collect::<Result<_, _>>()?,
    })
}

fn client(table: &RadiusClientTable) -> Result<RadiusClient, ConfigError> {
    let text = table.address.get_ref();
    let network = match text.parse::<IpAddr>() {
        Ok(host) => Some((host, if host.is_ipv4() { 32 } else { 128 })),
        Err(_) => match inside_prefix(text) {
            Ok(Key::Prefix(network, prefix_len)) => Some((network, prefix_len)),
            Ok(Key::Ipv4(host)) => Some((host.into(), 32)),
            Ok(Key::Ipv6(host)) => Some((host.into(), 128)),
            Ok(_) | Err(_) => None,
        },
    };
    let Some((network, prefix_len)) = network else {
        let remedy = "write an address or a network, as in \"192.0.2.1\" or \"192.0.2.0/24\"";
        return Err(wrong("address", &table.address, text, remedy));
    };
    let dynamic = match &table.dynamic {
        None => None,
        Some(text) => {
            let found = address("dynamic", text)?;
            if found.port() == 0 || found.ip().is_unspecified() {
                let remedy = "write where the access server listens, as in \"192.0.2.1:3799\"";
                return Err(wrong("dynamic", text, text.get_ref(), remedy));
            }
            Some(found)
        }
    };
    if let (Some(file), None) = (&table.dynamic_secret_file, dynamic) {
        let remedy = "it is the secret of `dynamic`, which is not there: add it, or leave this out";
        let key = "dynamic_secret_file";
        return Err(wrong(key, file, format!("`{}`", file.get_ref()), remedy));
    }
    let path = |file: &Spanned<String>| (file.get_ref().clone(), file.span().start);
    Ok(RadiusClient {
        address: network,
        prefix_len,
        secret_file: path(&table.secret_file),
        swapped: table.swapped,
        dynamic,
        dynamic_secret_file: table.dynamic_secret_file.as_ref().map(path),
    })
}

/// A policy that has access servers asked needs one that can be.
pub(super) fn check_requests(
    config: &Config,
    table: &Ordered<PolicyTable>,
) -> Result<(), ConfigError> {
    let clients = config.radius.iter().flat_map(|radius| &radius.clients);
    if clients.into_iter().any(|client| client.dynamic.is_some()) {
        return Ok(());
    }
    let mut policies = config.policies.iter().zip(&table.0);
    match policies.find(|(policy, _)| policy.spent_request.is_some()) {
        None => Ok(()),
        Some((policy, (_, value))) => Err(error(
            value.span().start,
            format!(
                "[policy.{}]: spent_request: no access server can be asked: add dynamic = \
                 \"ADDRESS:3799\" to a [[radius.client]]",
                policy.name
            ),
        )),
    }
}
