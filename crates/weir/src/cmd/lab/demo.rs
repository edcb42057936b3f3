//! `weir lab demo`: two hosts and a link, and traffic between them.

use crate::failure::Failure;
use crate::stop::Stop;
use crate::text::{
    self,
    Column::{Left, Right},
};
use serde::Serialize;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use weir_lab::net::talk::{Spread, bulk, ping, spread};
use weir_lab::net::{Device, Host, Lab};

/// Make two hosts and a link, and have them talk
///
/// As root. The hosts are network namespaces that only this process holds:
/// no interface of this machine is touched, and whatever becomes of the
/// process, the kernel removes them.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

const PINGS: u32 = 10;
const DATAGRAMS: u64 = 9_000;
/// The transport ports that datagrams go to.
const DST_PORTS: std::ops::Range<u16> = 5000..5003;
const TCP_TIME: Duration = Duration::from_millis(500);

/// What was seen.
#[derive(Serialize)]
struct Story {
    /// Microseconds that the network took to make.
    made_us: u64,
    pings: u32,
    answered: u32,
    /// The quickest answer.
    round_trip_us_min: Option<f64>,
    datagrams: u64,
    tcp_bits_per_second: f64,
    devices: Vec<DeviceStory>,
}

#[derive(Serialize)]
struct DeviceStory {
    host: String,
    device: String,
    address: Ipv4Addr,
    sent: u64,
    received: u64,
    dropped: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let stop = Stop::watch().map_err(|error| Failure::run(format!("signals: {error}")))?;
    let start = Instant::now();
    let lab = Lab::new();
    let host = |name| lab.host(name).map_err(Failure::run);
    let (a, b) = (host("a")?, host("b")?);
    let link = lab.link(&a, &b).addresses(A, B, 24).connect();
    let (eth_a, eth_b) = link.map_err(Failure::run)?;
    let made = start.elapsed();
    let mut story = talk(&a, &b, &stop)?;
    story.made_us = made.as_micros() as u64;
    for (device, address) in [(&eth_a, A), (&eth_b, B)] {
        story.devices.push(seen(device, address)?);
    }
    let report = match args.json {
        true => serde_json::to_string(&story).map_err(Failure::run)?,
        false => story.text(),
    };
    writeln!(std::io::stdout(), "{report}").map_err(Failure::output)
}

/// What the hosts say to each other, by their kernels' own protocols.
fn talk(a: &Host, b: &Host, stop: &Stop) -> Result<Story, Failure> {
    let go_on = || match stop.asked() {
        true => Err(Failure::Stopped(stop.signal())),
        false => Ok(()),
    };
    let failed = |what: &str, error| Failure::run(format!("{what} from a to b: {error}"));
    let pings = ping(a, IpAddr::V4(B), PINGS, Duration::from_secs(1));
    let pings = pings.map_err(|error| failed("echo requests", error))?;
    go_on()?;
    let datagrams = Spread {
        to: B,
        dst_ports: DST_PORTS,
        count: DATAGRAMS,
        rate: None,
        payload_len: 64,
    };
    spread(a, &datagrams).map_err(|error| failed("datagrams", error))?;
    go_on()?;
    let carried = bulk(a, b, (B, 5201), TCP_TIME).map_err(|error| failed("TCP", error))?;
    go_on()?;
    let micros = |time: &Duration| time.as_nanos() as f64 / 1e3;
    Ok(Story {
        made_us: 0,
        pings: pings.sent,
        answered: pings.round_trips.len() as u32,
        round_trip_us_min: pings.round_trips.iter().min().map(micros),
        datagrams: DATAGRAMS,
        tcp_bits_per_second: carried.bits_per_second(),
        devices: Vec::new(),
    })
}

fn seen(device: &Device, address: Ipv4Addr) -> Result<DeviceStory, Failure> {
    let counters = device.counters().map_err(Failure::run)?;
    Ok(DeviceStory {
        host: device.host().name().to_owned(),
        device: device.name().to_owned(),
        address,
        sent: counters.tx_frames,
        received: counters.rx_frames,
        dropped: counters.rx_dropped + counters.tx_dropped,
    })
}

impl Story {
    fn text(&self) -> String {
        let columns = [
            Left("host"),
            Left("device"),
            Left("address"),
            Right("sent"),
            Right("received"),
            Right("dropped"),
        ];
        let rows = self.devices.iter().map(|one| {
            vec![
                one.host.clone(),
                one.device.clone(),
                one.address.to_string(),
                text::grouped(one.sent),
                text::grouped(one.received),
                text::grouped(one.dropped),
            ]
        });
        let quickest = self
            .round_trip_us_min
            .map_or(String::new(), |us| format!(", the quickest in {us:.0} µs"));
        format!(
            "Two hosts and a link, made in {:.1} ms; they go when this ends.\n\n\
             echo   {} of {} requests answered{quickest}\n\
             UDP    {} datagrams to ports {} to {} of b\n\
             TCP    {:.1} Gb/s from a to b, without offloads\n\n{}",
            self.made_us as f64 / 1e3,
            self.answered,
            self.pings,
            text::grouped(self.datagrams),
            DST_PORTS.start,
            DST_PORTS.end - 1,
            self.tcp_bits_per_second / 1e9,
            text::table(&columns, rows),
        )
    }
}
