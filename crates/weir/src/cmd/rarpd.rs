//! `weir rarpd`: a RARP server, which assigns IPv4 addresses to stations.

use crate::config::{self, TextPosition, Wrong};
use crate::error::{CliError, say};
use crate::input::read_limited;
use crate::rarp;
use crate::signals::ShutdownSignal;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use toml::Spanned;
use weir_wire::ethernet::Address;

/// Assign IPv4 addresses to stations (RARP, RFC 903), or request one's own
///
/// Prints `ready` on standard error and serves until SIGINT, SIGTERM or SIGHUP: as root, or as any
/// user with a grant that has `send = { ethertypes = [0x8035] }` in the broker's policy. An example
/// of a protocol in user space, on a port: see docs/tutorials/protocol.md.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir rarpd eth0 --table hosts.toml
  weir rarpd eth0 --ask

Exit status: 0, of a server after a signal too; 1 if the interface or the table cannot be
used, or no host answers; 2 if the table is wrong, or the policy refuses; a client's 129, 130 or 143
after SIGHUP, SIGINT or SIGTERM.")]
pub(crate) struct Args {
    /// The interface
    #[arg(value_name = "IF")]
    interface: String,

    /// TOML file of stations, one a line: "02:00:00:00:00:01" = "10.0.0.1"
    #[arg(short, long, value_name = "FILE", required_unless_present = "ask")]
    table: Option<PathBuf>,

    /// Act as a client: request this station's address, and print it
    #[arg(long, conflicts_with = "table")]
    ask: bool,

    /// The broker's socket; then the port is opened through the broker only
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Do not print answers
    #[arg(short, long)]
    quiet: bool,
}

/// The largest table, in bytes.
const TABLE_LEN_MAX: u64 = 16 << 20;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()
        .map_err(|error| CliError::run(format!("signals: {error}")))?;
    let mut out = std::io::stdout();
    let socket = args.socket.as_deref();
    let Some(path) = &args.table else {
        let ip = rarp::request_address(&args.interface, socket, &stop)?;
        return writeln!(out, "{ip}").map_err(CliError::output);
    };
    rarp::serve(
        &args.interface,
        socket,
        &table(path)?,
        &stop,
        |station, ip| {
            if args.quiet {
                return Ok(());
            }
            writeln!(out, "{station} is {ip}").map_err(CliError::output)
        },
    )
}

fn table(path: &Path) -> Result<BTreeMap<Address, Ipv4Addr>, CliError> {
    let text = read_limited::text(path, TABLE_LEN_MAX)?;
    let (table, warnings) = stations(&text).map_err(|wrong| wrong.refused(path))?;
    for warning in warnings {
        say(&format!("weir: {}", warning.of(config::name(path))));
    }
    Ok(table)
}

/// The stations of a table, with warnings; or the first error.
fn stations(text: &str) -> Result<(BTreeMap<Address, Ipv4Addr>, Vec<Wrong>), Wrong> {
    let rows: BTreeMap<Spanned<String>, Spanned<String>> = config::parse(text)?;
    if rows.is_empty() {
        return Err(Wrong::in_all(
            "no station is in it: give each a line such as \"02:00:00:00:00:01\" = \"10.0.0.1\"",
        ));
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_unstable_by_key(|(station, _)| station.span().start);
    let mut table: BTreeMap<Address, Ipv4Addr> = BTreeMap::new();
    let mut lines: BTreeMap<Address, usize> = BTreeMap::new();
    let mut holders: BTreeMap<Ipv4Addr, Address> = BTreeMap::new();
    let mut warnings = Vec::new();
    for (station, ip) in rows {
        let (at, ip_at) = (station.span().start, ip.span().start);
        let (name, ip) = (station.into_inner(), ip.into_inner());
        let address: Address = name.parse().map_err(|error| Wrong::at(text, at, error))?;
        if address.is_multicast() || address == Address([0; 6]) {
            let why = format!("{name} is not the address of a single station");
            return Err(Wrong::at(text, at, why));
        }
        let ip: Ipv4Addr = ip.parse().map_err(|_| {
            let why = format!("`{ip}` is not an IPv4 address: write one such as 10.0.0.1");
            Wrong::at(text, ip_at, why)
        })?;
        if ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() {
            let why = format!("{ip} is not the address of a single host");
            return Err(Wrong::at(text, ip_at, why));
        }
        if let Some(first) = lines.insert(address, TextPosition::of(text, at).line) {
            let why = format!("{address} is in line {first} already");
            return Err(Wrong::at(text, at, why));
        }
        if let Some(other) = holders.insert(ip, address) {
            let why =
                format!("warning: {ip} is that of {other} too: two stations with one address");
            warnings.push(Wrong::at(text, ip_at, why));
        }
        table.insert(address, ip);
    }
    Ok((table, warnings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_names_each_station_once() {
        let text =
            "# ours\n\"02:00:00:00:00:0A\" = \"10.0.0.1\"\n\"02:00:00:00:00:0b\" = \"10.0.0.2\"\n";
        let (table, warnings) = stations(text).unwrap();
        assert!(warnings.is_empty());
        let found: Vec<_> = table.values().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_line() {
        let ok = "\"02:00:00:00:00:0a\" = \"10.0.0.1\"\n";
        for (text, why) in [
            ("", "no station"),
            ("# nothing\n", "no station"),
            (
                "\"01:00:5e:00:00:01\" = \"10.0.0.2\"",
                ":2:1: 01:00:5e:00:00:01 is",
            ),
            ("\"ff:ff:ff:ff:ff:ff\" = \"10.0.0.2\"", ":2:1: ff:ff"),
            ("\"00:00:00:00:00:00\" = \"10.0.0.2\"", ":2:1: 00:00"),
            ("\n\"02:00:00:00:00:01\" = \"0.0.0.0\"", ":3:23: 0.0.0.0 is"),
            ("\"02:00:00:00:00:01\" = \"224.0.0.1\"", ":2:23: 224.0.0.1"),
            ("\"02:00:00:00:00:01\" = \"255.255.255.255\"", ":2:23: 255"),
            (
                "\"02:00:00:00:00:0A\" = \"10.0.0.2\"",
                ":2:1: 02:00:00:00:00:0a is in line 1",
            ),
            ("\"02:00:00:00:00:0x\" = \"10.0.0.2\"", ":2:1: `02:"),
            (
                "\"02:00:00:00:00:01\" = \"10.0.0.1/24\"",
                ":2:23: `10.0.0.1/24` is not an IPv4 address",
            ),
            ("\"02:00:00:00:00:01\" = 5", ":2:23: invalid type"),
        ] {
            let text = match why {
                "no station" => text.to_owned(),
                _ => format!("{ok}{text}"),
            };
            let error = stations(&text).unwrap_err().of("hosts.toml");
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_address_of_two_stations_is_warned_of() {
        let text = "\"02:00:00:00:00:0a\" = \"10.0.0.1\"\n\"02:00:00:00:00:0b\" = \"10.0.0.1\"\n";
        let (table, warnings) = stations(text).unwrap();
        assert_eq!((table.len(), warnings.len()), (2, 1));
        let said = warnings[0].of("hosts.toml");
        assert!(
            said.starts_with("hosts.toml:2:23: warning: 10.0.0.1 is that of"),
            "{said}"
        );
    }
}
