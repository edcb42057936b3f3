//! `weir lab demo`: two hosts and a link, traffic, and live ports on it.

mod readers;
mod report;

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use readers::Readers;
use report::{DemoReport, DeviceReport, SocketReport};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};
use weir_lab::net::traffic::{UdpFlows, bulk, ping, spread};
use weir_lab::net::{Device, Host, Lab};

/// Create two hosts and a link, and divide their traffic among live ports
///
/// Needs root. The hosts are network namespaces that only this process holds:
/// no interface of this machine is touched, and the kernel removes them when
/// the process ends in any way. On host b some ports copy frames and one takes
/// them; the hosts' own protocols continue.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit status: 0; 1 if a host, a link or a port cannot be made, as without root, or something else
failed; 2 if an option is wrong; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.")]
pub(crate) struct Args {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

const PINGS: u32 = 10;
/// Number of datagrams to each transport port; a socket's buffer holds as many.
const DATAGRAMS: u64 = 100;
/// The destination ports of the datagrams: one copied, one taken, one without a
/// packet-filter port.
const DST_PORTS: [u16; 3] = [5000, 5001, 5002];
const TCP_TIME: Duration = Duration::from_millis(500);

/// The ports on b: filter, and whether the port takes frames.
const PORTS: [(&str, bool); 4] = [
    ("", false),
    ("icmp", false),
    ("udp dst port 5000", false),
    ("udp dst port 5001", true),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let start = Instant::now();
    let lab = Lab::new();
    let host = |name| lab.host(name).map_err(CliError::run);
    let (a, b) = (host("a")?, host("b")?);
    let link = lab.link(&a, &b).addresses(A, B, 24).connect();
    let (eth_a, eth_b) = link.map_err(CliError::run)?;
    let made = start.elapsed();
    let readers = Readers::start(&b, eth_b.name(), &PORTS)?;
    let mut story = talk(&a, &b, &stop)?;
    story.made_us = made.as_micros() as u64;
    story.ports = readers.end()?;
    for (device, address) in [(&eth_a, A), (&eth_b, B)] {
        story.devices.push(seen(device, address)?);
    }
    let report = if args.json {
        serde_json::to_string(&story).map_err(CliError::run)?
    } else {
        story.text()
    };
    writeln!(std::io::stdout(), "{report}").map_err(CliError::output)
}

/// The hosts' traffic, sent by their kernels' own protocols.
fn talk(a: &Host, b: &Host, stop: &ShutdownSignal) -> Result<DemoReport, CliError> {
    let go_on = || {
        if stop.is_requested() {
            Err(CliError::Stopped(stop.signal()))
        } else {
            Ok(())
        }
    };
    let failed = |what: &str, error| CliError::run(format!("{what} from a to b: {error}"));
    let pings = ping(a, IpAddr::V4(B), PINGS, Duration::from_secs(1));
    let pings = pings.map_err(|error| failed("echo requests", error))?;
    go_on()?;
    let sockets = datagrams(a, b).map_err(|error| failed("datagrams", error))?;
    go_on()?;
    let carried = bulk(a, b, (B, 5201), TCP_TIME).map_err(|error| failed("TCP", error))?;
    go_on()?;
    let micros = |time: &Duration| time.as_nanos() as f64 / 1e3;
    Ok(DemoReport {
        made_us: 0,
        pings: pings.sent,
        answered: pings.round_trips.len() as u32,
        round_trip_us_min: pings.round_trips.iter().min().map(micros),
        sockets,
        tcp_bits_per_second: carried.bits_per_second(),
        ports: Vec::new(),
        devices: Vec::new(),
    })
}

/// Sends datagrams, and counts those that arrive at sockets of b's kernel.
fn datagrams(a: &Host, b: &Host) -> std::io::Result<Vec<SocketReport>> {
    let socket = |port| b.run(move || UdpSocket::bind((B, port)));
    let sockets = DST_PORTS.map(|port| (port, socket(port)));
    let datagrams = UdpFlows {
        to: B,
        dst_ports: DST_PORTS[0]..DST_PORTS[2] + 1,
        count: DATAGRAMS * DST_PORTS.len() as u64,
        rate: None,
        payload_len: 64,
    };
    spread(a, &datagrams)?;
    let mut stories = Vec::new();
    for (port, socket) in sockets {
        let socket = socket?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let mut received = 0;
        while socket.recv(&mut [0; 64]).is_ok() {
            received += 1;
        }
        stories.push(SocketReport {
            port,
            sent: DATAGRAMS,
            received,
        });
    }
    Ok(stories)
}

fn seen(device: &Device, address: Ipv4Addr) -> Result<DeviceReport, CliError> {
    let counters = device.counters().map_err(CliError::run)?;
    Ok(DeviceReport {
        host: device.host().name().to_owned(),
        device: device.name().to_owned(),
        address,
        sent: counters.tx_frames,
        received: counters.rx_frames,
        dropped: counters.rx_dropped + counters.tx_dropped,
    })
}
