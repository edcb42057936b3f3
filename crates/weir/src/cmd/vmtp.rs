//! `weir vmtp`: message transactions (RFC 1045) on a port.

mod ping;
mod read;
mod serve;

use crate::error::CliError;
use crate::input::live_port;
use crate::signals::ShutdownSignal;
use clap::Subcommand;
use std::path::{Path, PathBuf};
use weir_protocols::station::StationError;
use weir_protocols::vmtp::{CallError, Client};

/// Read files and measure round trips by message transactions (VMTP, RFC 1045)
///
/// VMTP directly on Ethernet (EtherType 0x805b), on a port: as root, or as any user with a grant
/// that has `send = { ethertypes = [0x805b] }` in the broker's policy. It is the protocol that
/// stands for the V kernel's IKP of the 1987 packet filter paper: see
/// docs/how-to/protocols-of-1987.md.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A server is written NUMBER@ADDRESS, with the IPv4 address of its interface: 1045@10.0.0.1.

Examples:
  weir vmtp serve /srv/files --link port:eth0
  weir vmtp read notes/today.txt --link port:eth0
  weir vmtp ping --link port:eth0
  weir vmtp ping 1045@10.0.0.1 --link port:eth0 --count 1000 --json

Exit status: 0, of a server after a signal too; 1 if the link cannot be used, no host answers, or a
file cannot be read; 2 if an option is wrong, or the policy refuses; a client's 129, 130 or 143
after SIGHUP, SIGINT or SIGTERM.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    Serve(serve::Args),
    Read(read::Args),
    Ping(ping::Args),
}

/// Options of the link.
#[derive(clap::Args, Debug)]
struct LinkArgs {
    /// The link: port:IF, or the interface's name
    #[arg(long, value_name = "LINK", value_parser = interface)]
    link: String,

    /// The broker's socket; then the port is opened through the broker only
    #[arg(long, value_name = "SOCKET")]
    broker: Option<PathBuf>,
}

impl LinkArgs {
    fn broker(&self) -> Option<&Path> {
        self.broker.as_deref()
    }

    fn client(&self) -> Result<Client, CliError> {
        Client::open(&self.link, self.broker()).map_err(failure)
    }
}

/// The interface of a link.
fn interface(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        None => Ok(text.to_owned()),
        Some(("port", interface)) if !interface.is_empty() => Ok(interface.to_owned()),
        _ => Err("this protocol runs on ports: write port:IF, such as port:eth0".to_owned()),
    }
}

/// The exit status for an error of a station.
fn failure(error: StationError) -> CliError {
    match error {
        StationError::Port(error) => live_port::failure(error),
        StationError::Refused { .. } => CliError::refused(error),
        other => CliError::run(other),
    }
}

/// The exit status for an error of a call.
fn call_failure(error: CallError, stop: &ShutdownSignal) -> CliError {
    match error {
        CallError::Station(error) => failure(error),
        CallError::Stopped => CliError::Stopped(stop.signal()),
        CallError::Failed(failure) => CliError::run(failure),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    match &args.action {
        Action::Serve(args) => serve::run(args, &stop),
        Action::Read(args) => read::run(args, &stop),
        Action::Ping(args) => ping::run(args, &stop),
    }
}

#[cfg(test)]
mod tests {
    use super::interface;

    #[test]
    fn a_link_is_a_port() {
        assert_eq!(interface("port:eth0").unwrap(), "eth0");
        assert_eq!(interface("eth0").unwrap(), "eth0");
        for wrong in ["tap:tap0", "port:", "x:y"] {
            assert!(
                interface(wrong).unwrap_err().contains("port:eth0"),
                "{wrong}"
            );
        }
    }
}
