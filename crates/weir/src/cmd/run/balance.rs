//! `weir balance`: short for `weir run` with one balancer.

use super::nat::quoted;
use super::{LiveArgs, Source, live, parse, print};
use crate::cmd::forwarder;
use crate::error::CliError;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

/// Probes in a row that decide on a server, as in the configuration.
const PROBES_DEFAULT: u32 = 3;

/// Share the connections to one address and port among several servers
///
/// Routes as `weir route` does, with the kernel's routes. Clients come by
/// OUTSIDE; servers are behind INSIDE, or on the same link, and answer by way of
/// weir, or with --direct-return by themselves. weir probes servers of TCP by a
/// connection, or by a request of HTTP; one that is down gets no connections.
/// Short for a configuration of `weir run`, which --print shows; there SIGHUP
/// changes the servers while it runs.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir balance eth0 --service 192.0.2.1:80/tcp --to 10.0.0.2,10.0.0.3
  weir balance eth0 eth1 --service 192.0.2.1:443 --to 10.0.0.2:8443,10.0.0.3:8443*2
  weir balance eth0 --service 192.0.2.1:80 --to 10.0.0.2,10.0.0.3 --http /health --fall 2
  weir balance eth0 --service 192.0.2.1:80 --to 192.0.2.2,192.0.2.3 --direct-return
  weir balance eth0 --service 192.0.2.1:80 --to 10.0.0.2 --print > box.toml

A server that dies is left out after FALL probes and one --probe-timeout: within 4 s by default.")]
pub(crate) struct Args {
    /// The link of the clients
    #[arg(value_name = "OUTSIDE")]
    outside: String,

    /// The link of the servers, by default that of the clients
    #[arg(value_name = "INSIDE")]
    inside: Option<String>,

    /// The address and port of the service, with /tcp or /udp; this host answers ARP
    /// for the address
    #[arg(long, value_name = "ADDR:PORT", value_parser = service,
          required_unless_present = "clean")]
    service: Option<Service>,

    /// The servers: address, port unless it is the service's, and *N for a
    /// weight other than 1
    #[arg(long, value_name = "ADDR[:PORT][*N]", value_delimiter = ',', value_parser = server,
          required_unless_present = "clean")]
    to: Vec<Server>,

    /// Servers answer clients themselves (direct server return): each has the service's address on
    /// an interface that does not answer ARP, is on a link of this host, and gets packets unchanged
    /// but for the MAC addresses and TTL
    #[arg(long)]
    direct_return: bool,

    /// Interval of probes of each server, as in 500ms; 0s for none. Servers of UDP are not
    /// probed
    #[arg(long, value_name = "TIME")]
    probe: Option<String>,

    /// Longest time of a probe, by default its interval
    #[arg(long, value_name = "TIME")]
    probe_timeout: Option<String>,

    /// Probes in a row without a good answer after which a server is down
    #[arg(long, value_name = "N", default_value_t = PROBES_DEFAULT,
          value_parser = clap::value_parser!(u32).range(1..=100),
          allow_negative_numbers = true)]
    fall: u32,

    /// Probes in a row with a good answer after which a server is up again
    #[arg(long, value_name = "N", default_value_t = PROBES_DEFAULT,
          value_parser = clap::value_parser!(u32).range(1..=100),
          allow_negative_numbers = true)]
    rise: u32,

    /// Probe by a request of HTTP for this path; by default a connection is
    /// enough
    #[arg(long, value_name = "PATH")]
    http: Option<String>,

    /// Name of the host in that request, by default the service's address and port
    #[arg(long, value_name = "HOST", requires = "http")]
    http_host: Option<String>,

    /// Statuses of a server that is up, as in 200,300-399
    #[arg(
        long,
        value_name = "LIST",
        requires = "http",
        default_value = "200-399"
    )]
    http_status: String,

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
    let source = Source {
        name: "the command line".into(),
        text: text(args),
    };
    if args.print {
        return print(&source);
    }
    if args.live.clean {
        let links = args.inside.iter().chain([&args.outside]);
        return forwarder::clean(&links.map(|name| &**name).collect::<Vec<_>>());
    }
    live(
        &source,
        parse(&source)?,
        &args.live,
        false,
        Path::new(""),
        None,
    )
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
    if let Some(service) = &args.service {
        stage(&mut text, service, args);
    }
    text
}

/// The balancer.
fn stage(text: &mut String, service: &Service, args: &Args) {
    let _ = writeln!(
        text,
        "\n[[stage]]\nkind = \"balance\"\nprotocol = {}\nservice = \"{}\"",
        quoted(&service.protocol),
        service.end
    );
    if args.direct_return {
        text.push_str("direct_return = true\n");
    }
    for (key, time) in [
        ("probe", &args.probe),
        ("probe_timeout", &args.probe_timeout),
    ] {
        if let Some(time) = time {
            let _ = writeln!(text, "{key} = {}", quoted(time));
        }
    }
    for (key, count) in [("fall", args.fall), ("rise", args.rise)] {
        if count != PROBES_DEFAULT {
            let _ = writeln!(text, "{key} = {count}");
        }
    }
    if let Some(path) = &args.http {
        let _ = writeln!(text, "[stage.http]\npath = {}", quoted(path));
        if let Some(host) = &args.http_host {
            let _ = writeln!(text, "host = {}", quoted(host));
        }
        let _ = writeln!(text, "status = {}", quoted(&args.http_status));
    }
    for server in &args.to {
        let port = server.port.unwrap_or(service.end.port());
        let _ = writeln!(text, "[[stage.server]]\nto = \"{}:{port}\"", server.address);
        if server.weight != 1 {
            let _ = writeln!(text, "weight = {}", server.weight);
        }
    }
}
