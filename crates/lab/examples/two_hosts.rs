//! Creates two hosts and a link, uses and removes them: `cargo run -p weir-lab
//! --example two_hosts`, as root.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use weir_lab::net::Lab;
use weir_lab::net::traffic::{bulk, ping};

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn main() -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let lab = Lab::new();
    let (a, b) = (lab.host("a")?, lab.host("b")?);
    let (eth_a, eth_b) = lab.link(&a, &b).addresses(A, B, 24).connect()?;
    println!("two hosts and a link in {:.1?}", start.elapsed());

    let pings = ping(&a, IpAddr::V4(B), 5, Duration::from_secs(1))?;
    let answered = pings.round_trips.len();
    let quickest = pings.round_trips.iter().min();
    println!(
        "{} pings from a to b, {answered} answered, the quickest in {quickest:.1?}",
        pings.sent
    );
    let carried = bulk(&a, &b, (B, 5201), Duration::from_millis(500))?;
    let rate = carried.bits_per_second() / 1e9;
    println!("TCP without offloads: {rate:.1} Gb/s");
    for device in [&eth_a, &eth_b] {
        let (host, counters) = (device.host().name(), device.counters()?);
        let (sent, received) = (counters.tx_frames, counters.rx_frames);
        println!(
            "{host}: {} sent {sent} frames, received {received}",
            device.name()
        );
    }
    Ok(())
}
