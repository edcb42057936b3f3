//! `weir balance`: short for `weir run` with one balancer.

use super::nat::quoted;
use super::{LiveArgs, Source, live, parse};
use crate::error::CliError;
use crate::report::stdout;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

/// Share the connections to one address and port among several servers
///
/// Routes as `weir route` does, with the kernel's routes. Clients come by
/// OUTSIDE; servers are behind INSIDE, or on the same link, and answer by way of
/// weir. Short for a configuration of `weir run`, which --print shows.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir balance eth0 --service 192.0.2.1:80/tcp --to 10.0.0.2,10.0.0.3
  weir balance eth0 eth1 --service 192.0.2.1:443 --to 10.0.0.2:8443,10.0.0.3:8443*2
  weir balance eth0 --service 192.0.2.1:80 --to 10.0.0.2 --print > box.toml")]
pub(crate) struct Args {
    /// The link of the clients
    #[arg(value_name = "OUTSIDE")]
    outside: String,

    /// The link of the servers, by default that of the clients
    #[arg(value_name = "INSIDE")]
    inside: Option<String>,

    /// The address and port of the service, with /tcp or /udp; this host answers ARP
    /// for the address
    #[arg(long, value_name = "ADDR:PORT", value_parser = service)]
    service: Service,

    /// The servers: address, port unless it is the service's, and *N for a
    /// weight other than 1
    #[arg(long, value_name = "ADDR[:PORT][*N]", value_delimiter = ',', required = true, value_parser = server)]
    to: Vec<Server>,

    /// Only print the configuration for `weir run`
    #[arg(long)]
    print: bool,

    #[command(flatten)]
    live: LiveArgs,
}

/// A service on the command line.
#[derive(Clone, Debug)]
struct Service {
    end: SocketAddrV4,
    protocol: String,
}

/// A server on the command line.
#[derive(Clone, Debug)]
struct Server {
    address: Ipv4Addr,
    port: Option<u16>,
    weight: u32,
}

fn service(text: &str) -> Result<Service, String> {
    let (end, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    match end.parse() {
        Ok(end) if matches!(protocol, "tcp" | "udp") => Ok(Service {
            end,
            protocol: protocol.into(),
        }),
        _ => Err("write it as in 192.0.2.1:80/tcp".into()),
    }
}

fn server(text: &str) -> Result<Server, String> {
    let parts = || {
        let (end, weight) = match text.split_once('*') {
            Some((end, weight)) => (end, weight.parse().ok()?),
            None => (text, 1),
        };
        let (address, port) = match end.split_once(':') {
            Some((address, port)) => (address, Some(port.parse().ok()?)),
            None => (end, None),
        };
        Some(Server {
            address: address.parse().ok()?,
            port,
            weight,
        })
    };
    parts().ok_or_else(|| "write it as in 10.0.0.2, 10.0.0.2:8080 or 10.0.0.2*3".into())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let text = text(args);
    if args.print {
        return stdout::text(&text);
    }
    let source = Source {
        name: "the command line".into(),
        text,
    };
    live(&source, parse(&source)?, &args.live, false, Path::new(""))
}

/// The configuration that the options stand for.
fn text(args: &Args) -> String {
    let mut text = String::new();
    let outside = quoted(&args.outside);
    let _ = writeln!(text, "outside = {outside}\n\n[kernel]\nroutes = true");
    let links = args.inside.iter().map(|name| quoted(name));
    for name in links.chain([outside]) {
        let _ = writeln!(text, "\n[[link]]\nname = {name}");
    }
    let _ = writeln!(
        text,
        "\n[[stage]]\nkind = \"balance\"\nprotocol = {}\nservice = \"{}\"",
        quoted(&args.service.protocol),
        args.service.end
    );
    for server in &args.to {
        let port = server.port.unwrap_or(args.service.end.port());
        let _ = writeln!(text, "[[stage.server]]\nto = \"{}:{port}\"", server.address);
        if server.weight != 1 {
            let _ = writeln!(text, "weight = {}", server.weight);
        }
    }
    text
}
