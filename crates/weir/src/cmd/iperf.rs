//! `weir iperf`: throughput of weir's own TCP and UDP, measured as by iperf3.

use crate::error::{CliError, limited, say};
use crate::host::{self, HostArgs, LinkRequirement, any_of};
use crate::iperf::{BLOCK_LEN, Measured, PORT, Parameters, client, server};
use crate::report::stdout;
use crate::signals::ShutdownSignal;
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::time::Duration;
use weir_socket::{Net, TcpListener, UdpSocket};
use weir_stack::tcp::{Algorithm, TcpConfig};

/// Measure throughput over TCP or UDP, with iperf3's protocol
///
/// Without HOST a server, which prints `ready` on standard error and serves one test after the
/// other until SIGINT, SIGTERM or SIGHUP. The other side may be weir or iperf3 (3.x).
#[derive(clap::Args, Debug)]
#[command(after_help = format!("\
{}

Examples:
  weir iperf --link tap0 --addr 192.0.2.5/24                # then: iperf3 -c 192.0.2.5
  weir iperf 192.0.2.1 --link tap0 --addr 192.0.2.5/24      # before: iperf3 -s
  weir iperf 192.0.2.1 -R --time 3 --json --link tap0 --addr 192.0.2.5/24
  weir iperf 192.0.2.1 --congestion bbr --link tap0 --addr 192.0.2.5/24
  weir iperf 192.0.2.1 --udp --rate 100M --link tap0 --addr 192.0.2.5/24

--json, a line for each test: {{\"protocol\":p,\"sent\":s,\"streams\":n,\"seconds\":s,\"sent_bytes\":b,\
\"received_bytes\":b,\"bits_per_second\":r}}, over UDP with \
\"datagrams\":{{\"sent\":n,\"lost\":n,\"jitter_ms\":j}}.

Exit status: 0; 1 if the link cannot be used or the test fails; 2 if an option is wrong; a client's
129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.", host::HELP))]
pub(crate) struct Args {
    /// The server: a name or an address
    #[arg(value_name = "HOST")]
    server: Option<String>,

    #[command(flatten)]
    host: HostArgs,

    /// The server's transport port
    #[arg(short, long, value_name = "N", default_value_t = PORT,
          value_parser = clap::value_parser!(u16).range(1..), allow_negative_numbers = true)]
    port: u16,

    /// Use UDP
    #[arg(short, long, requires = "server")]
    udp: bool,

    /// The server sends
    #[arg(short = 'R', long, requires = "server")]
    reverse: bool,

    /// Duration of the test, in seconds
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        default_value_t = 10.0,
        requires = "server"
    )]
    time: f64,

    /// Bytes to send, in place of a duration; 10M are 10 times 1,048,576
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value = "0",
        requires = "server",
        value_parser = |text: &str| number(text, 1024.0)
    )]
    bytes: u64,

    /// Number of parallel streams
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, requires = "server",
          value_parser = clap::value_parser!(u8).range(1..=128), allow_negative_numbers = true)]
    parallel: u8,

    /// Bytes of a write, or of a datagram; by default 131072, or 1448 over UDP
    #[arg(short, long, value_name = "BYTES", requires = "server",
          value_parser = clap::value_parser!(u32).range(16..=1_048_576),
          allow_negative_numbers = true)]
    length: Option<u32>,

    /// Bits per second of each stream, such as 100M for 100,000,000, 0 for no limit; by default no
    /// limit, or 1M over UDP
    #[arg(short = 'b', long, value_name = "BITS", requires = "server",
          value_parser = |text: &str| number(text, 1000.0))]
    rate: Option<u64>,

    /// Congestion control of weir's sender: cubic, reno or bbr
    #[arg(short = 'C', long, value_name = "NAME", default_value_t)]
    congestion: Algorithm,

    /// Exit after one test (server)
    #[arg(short = '1', long, conflicts_with = "server")]
    one_off: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Payload of a datagram that fits into one Ethernet frame with its headers.
const DATAGRAM_LEN: usize = 1448;
/// The longest datagram payload over either version of IP.
const DATAGRAM_LEN_MAX: u32 = 65_507;
/// Default rate over UDP in bits per second, as in iperf3.
const UDP_RATE: u64 = 1_000_000;

/// Parses a number with an optional unit letter, as iperf3 does; each unit is `kilo` times the
/// previous one.
fn number(text: &str, kilo: f64) -> Result<u64, String> {
    let end = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let power = match &text[end.len()..] {
        "" => 0,
        "k" | "K" => 1,
        "m" | "M" => 2,
        "g" | "G" => 3,
        "t" | "T" => 4,
        unit => {
            return Err(format!(
                "`{unit}` is not a unit: give K, M, G or T, or none"
            ));
        }
    };
    let number: f64 = end.parse().map_err(|_| "give a number, such as 100M")?;
    let number = number * kilo.powi(power);
    if (0.0..=1e18).contains(&number) {
        Ok(number as u64)
    } else {
        Err("give a number from 0 to 10 to the power of 18".to_owned())
    }
}

/// How often the command checks that the host still has its links and addresses.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    match &args.server {
        None => serve(args, &stop),
        Some(server) => run_client(args, server, &stop),
    }
}

fn run_client(args: &Args, server: &str, stop: &ShutdownSignal) -> Result<(), CliError> {
    if !args.time.is_finite() || args.time <= 0.0 {
        return Err(CliError::refused(format!(
            "{} seconds are not a duration: give more than 0",
            args.time
        )));
    }
    if let Some(length) = args
        .length
        .filter(|len| args.udp && *len > DATAGRAM_LEN_MAX)
    {
        return Err(CliError::refused(format!(
            "a datagram cannot have {length} bytes: give --length at most {DATAGRAM_LEN_MAX}"
        )));
    }
    let (net, to) = args.host.open_towards(server, args.port, stop)?;
    configure(&net, args.congestion);
    let (len, rate) = if args.udp {
        (DATAGRAM_LEN, UDP_RATE)
    } else {
        (BLOCK_LEN, 0)
    };
    let parameters = Parameters {
        tcp: !args.udp,
        udp: args.udp,
        // iperf3 reads whole seconds, and leaves the end to the client.
        time: args.time,
        num: args.bytes,
        parallel: args.parallel.into(),
        reverse: args.reverse,
        len: args.length.map_or(len, |len| len as usize),
        bandwidth: args.rate.unwrap_or(rate),
        client_version: concat!("weir ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Parameters::default()
    };
    match client::run(&net, to, &parameters, stop) {
        Ok(measured) => tell(args, &measured),
        Err(_) if stop.is_requested() => Err(CliError::Stopped(stop.signal())),
        Err(error) => Err(host::unreached(&net, to, &error)),
    }
}

/// Sets the congestion control of new connections.
fn configure(net: &Net, congestion: Algorithm) {
    net.tcp_configure(TcpConfig {
        congestion,
        ..TcpConfig::default()
    });
}

fn serve(args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
    let net = args.host.open(LinkRequirement::Later, stop)?;
    configure(&net, args.congestion);
    let served = listen(&net, args.port).map_err(|error| {
        CliError::run(format!(
            "cannot listen at port {}: {}",
            args.port,
            limited(&error)
        ))
    })?;
    say("ready");
    while !stop.is_requested() {
        let Some((listener, socket)) = wait(&served, stop)? else {
            args.host.check(&net)?;
            continue;
        };
        let Ok((control, peer)) = listener.accept() else {
            args.host.check(&net)?;
            continue;
        };
        match server::serve(&control, listener, socket, stop) {
            Ok(measured) => tell(args, &measured)?,
            Err(_) if stop.is_requested() => {}
            Err(error) => say(&format!("weir: {peer}: {error}")),
        }
        if args.one_off {
            break;
        }
    }
    Ok(())
}

type Served = (TcpListener, UdpSocket);

fn listen(net: &Net, port: u16) -> io::Result<Vec<Served>> {
    let both = |any| {
        let listener = TcpListener::bind(net, any)?;
        // Waiting needs this descriptor: failure is reported before `ready`.
        listener.ready_fd()?;
        Ok((listener, UdpSocket::bind(net, any)?))
    };
    any_of(net, port).into_iter().map(both).collect()
}

/// Waits a limited time for a client, of either version of IP, or a signal.
fn wait<'a>(served: &'a [Served], stop: &ShutdownSignal) -> Result<Option<&'a Served>, CliError> {
    let mut fds = vec![PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN)];
    for (listener, _) in served {
        let fd = listener.ready_fd().map_err(CliError::run)?;
        fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    }
    let time = POLL_INTERVAL.try_into().ok();
    match poll(&mut fds, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(CliError::run(format!("cannot wait: {error}"))),
    }
    let ready = fds[1..].iter().position(|fd| !fd.revents().is_empty());
    Ok(ready.map(|at| &served[at]))
}

fn tell(args: &Args, measured: &Measured) -> Result<(), CliError> {
    stdout::report(args.json, measured, || measured.line())
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_read_as_iperf3_reads_them() {
        for (text, kilo, expected) in [
            ("0", 1000.0, 0),
            ("100M", 1000.0, 100_000_000),
            ("1.5g", 1000.0, 1_500_000_000),
            ("10K", 1024.0, 10_240),
            ("1000000", 1024.0, 1_000_000),
        ] {
            assert_eq!(number(text, kilo), Ok(expected), "{text}");
        }
        for text in ["", "M", "1x", "-1", "1e30", "nan", "1MM", "inf", "10 M"] {
            assert!(number(text, 1000.0).is_err(), "{text}");
        }
    }
}
