//! `weir host`: a host of weir's own beside the kernel's.

use crate::error::{CliError, say};
use crate::host::{self, Addresses, LinkRequirement};
use crate::report::metrics::{self, Metrics};
use crate::signals::ShutdownSignal;
use serde_json::json;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Be a host beside the kernel's: answer ARP, neighbour discovery and ping
///
/// The host has addresses of its own. It refuses connections and answers
/// datagrams with ICMP errors, like a host without applications. It prints
/// `ready` on standard error, and runs until SIGINT, SIGTERM or SIGHUP.
#[derive(clap::Args, Debug)]
#[command(after_help = format!("\
{}

Examples:
  weir host eth0 --addr 192.0.2.5/24
  weir host port:eth0 --addr 192.0.2.5/24 --addr 2001:db8::5/64 --gateway 192.0.2.1
  weir host tap0 --addr 192.0.2.5/24 --json
  weir host tap0 --addr dhcp --addr auto
  weir host tap0 tap1 --addr 192.0.2.5/24 --addr 198.51.100.5/24%tap1

At the end, with --json, one line: {{\"frames_in\":n,\"frames_out\":n}}.

Exit status: 0 after SIGINT, SIGTERM or SIGHUP; 1 if the link cannot be used or is gone; 2 if an
option or the policy refuses.", host::HELP))]
pub(crate) struct Args {
    /// A link of the host: see below
    #[arg(value_name = "LINK", required = true)]
    links: Vec<String>,

    #[command(flatten)]
    addresses: Addresses,

    /// Print the counters at the end, as JSON
    #[arg(long)]
    json: bool,

    /// Serve metrics for Prometheus at this address, at /metrics; port 0 chooses
    /// a free port, which is printed
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
}

/// How often the command checks that the link still exists.
const LINK_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let net = args
        .addresses
        .open(&args.links, LinkRequirement::Later, &stop)?;
    let metrics = args.metrics.map(Metrics::serve).transpose()?;
    say("ready");
    while !stop.is_requested() {
        args.addresses.check(&net, &args.links)?;
        if let Some(metrics) = &metrics {
            metrics.show(host::metrics(&net, "weir_host_"));
        }
        stop.wait(LINK_POLL_INTERVAL);
    }
    if args.json {
        let counted = net.counters();
        let report = json!({
            "frames_in": counted.frames_in,
            "frames_out": counted.frames_out,
        });
        writeln!(io::stdout(), "{report}").map_err(CliError::output)?;
    }
    Ok(())
}
