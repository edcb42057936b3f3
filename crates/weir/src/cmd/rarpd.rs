//! `weir rarpd`: tells stations their addresses.

use crate::failure::Failure;
use crate::limited;
use crate::rarp;
use crate::stop::Stop;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use toml::Spanned;
use weir_wire::ethernet::Address;

/// Tell stations their IPv4 addresses (RARP, RFC 903), or ask for one's own
///
/// Says `ready` on standard error and serves until SIGINT, SIGTERM or SIGHUP: as root,
/// or as any user with a grant that has `send = { ethertypes = [0x8035] }` in
/// the broker's policy. A protocol in user space, on a port: see
/// docs/tutorial-protocol.md.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir rarpd eth0 --table hosts.toml
  weir rarpd eth0 --ask

Exit status: 0, of a server after a signal too; 1 if the interface or the table cannot be
used, or nobody answers; 2 if the table is wrong; a client's 129, 130 or 143 after SIGHUP, SIGINT or
SIGTERM.")]
pub(crate) struct Args {
    /// The interface
    #[arg(value_name = "IF")]
    interface: String,

    /// TOML file of stations, each a line: "02:00:00:00:00:01" = "10.0.0.1"
    #[arg(short, long, value_name = "FILE", required_unless_present = "ask")]
    table: Option<PathBuf>,

    /// Be the client: ask which address this station has, and print it
    #[arg(long, conflicts_with = "table")]
    ask: bool,

    /// The broker's socket; then there is no other way
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Do not print what was answered
    #[arg(short, long)]
    quiet: bool,
}

/// The largest table, in bytes.
const TABLE_LEN_MAX: u64 = 16 << 20;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let stop =
        Stop::watch_hangup_too().map_err(|error| Failure::run(format!("signals: {error}")))?;
    let mut out = std::io::stdout();
    let socket = args.socket.as_deref();
    let Some(path) = &args.table else {
        let ip = rarp::ask(&args.interface, socket, &stop)?;
        return writeln!(out, "{ip}").map_err(Failure::output);
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
            writeln!(out, "{station} is {ip}").map_err(Failure::output)
        },
    )
}

fn table(path: &Path) -> Result<BTreeMap<Address, Ipv4Addr>, Failure> {
    let text = limited::text(path, TABLE_LEN_MAX)?;
    let table = stations(&text);
    table.map_err(|why| Failure::refused(format!("{}: {why}", path.display())))
}

/// The stations of a table, or what is wrong with it and where.
fn stations(text: &str) -> Result<BTreeMap<Address, Ipv4Addr>, String> {
    let rows: BTreeMap<Spanned<String>, Spanned<Ipv4Addr>> =
        toml::from_str(text).map_err(|error| error.to_string())?;
    if rows.is_empty() {
        return Err("no station is in it".to_owned());
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_unstable_by_key(|(station, _)| station.span().start);
    let mut table: BTreeMap<Address, (usize, Ipv4Addr)> = BTreeMap::new();
    for (station, ip) in rows {
        let before = &text.as_bytes()[..station.span().start];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let wrong = |why: String| format!("line {line}: {why}");
        let (name, ip) = (station.into_inner(), ip.into_inner());
        let address: Address = name.parse().map_err(|error| wrong(format!("{error}")))?;
        if address.is_multicast() || address == Address([0; 6]) {
            return Err(wrong(format!("{name} is the address of no one station")));
        }
        if ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() {
            return Err(wrong(format!("{ip} is the address of no one host")));
        }
        if let Some((first, _)) = table.insert(address, (line, ip)) {
            return Err(wrong(format!("{address} is in line {first} already")));
        }
    }
    let rows = table.into_iter().map(|(station, (_, ip))| (station, ip));
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_names_each_station_once() {
        let text =
            "# ours\n\"02:00:00:00:00:0A\" = \"10.0.0.1\"\n\"02:00:00:00:00:0b\" = \"10.0.0.2\"\n";
        let table = stations(text).unwrap();
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
                "line 2: 01:00:5e:00:00:01 is",
            ),
            ("\"ff:ff:ff:ff:ff:ff\" = \"10.0.0.2\"", "line 2: ff:ff"),
            ("\"00:00:00:00:00:00\" = \"10.0.0.2\"", "line 2: 00:00"),
            (
                "\n\"02:00:00:00:00:01\" = \"0.0.0.0\"",
                "line 3: 0.0.0.0 is",
            ),
            ("\"02:00:00:00:00:01\" = \"224.0.0.1\"", "line 2: 224.0.0.1"),
            ("\"02:00:00:00:00:01\" = \"255.255.255.255\"", "line 2: 255"),
            (
                "\"02:00:00:00:00:0A\" = \"10.0.0.2\"",
                "line 2: 02:00:00:00:00:0a is in line 1",
            ),
            ("\"02:00:00:00:00:0x\" = \"10.0.0.2\"", "line 2:"),
        ] {
            let text = match why {
                "no station" => text.to_owned(),
                _ => format!("{ok}{text}"),
            };
            let error = stations(&text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
