//! `weir rarpd`: tells stations their addresses.

use crate::failure::Failure;
use crate::limited;
use crate::rarp;
use crate::stop::Stop;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use weir_wire::ethernet::Address;

/// Tell stations their IPv4 addresses (RARP, RFC 903), or ask for one's own
///
/// Says `ready` on standard error and serves until SIGINT or SIGTERM: as root,
/// or as any user with a grant that has `send = { ethertypes = [0x8035] }` in
/// the broker's policy. A protocol in user space, on a port: see
/// docs/tutorial-protocol.md.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir rarpd eth0 --table hosts.toml
  weir rarpd eth0 --ask

Exit status: 0, of a server after SIGINT or SIGTERM too; 1 if the interface or the table cannot be
used, or nobody answers; 2 if the table is wrong; a client's 130 or 143 after SIGINT or SIGTERM.")]
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
    let stop = Stop::watch().map_err(|error| Failure::run(format!("signals: {error}")))?;
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
    let wrong = |why: String| Failure::refused(format!("{}: {why}", path.display()));
    let text = limited::text(path, TABLE_LEN_MAX)?;
    let rows: BTreeMap<String, Ipv4Addr> =
        toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let row = |(station, ip): (String, Ipv4Addr)| {
        let station = station.parse();
        Ok((station.map_err(|error| wrong(format!("{error}")))?, ip))
    };
    rows.into_iter().map(row).collect()
}
