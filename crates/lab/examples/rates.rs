//! The generator's maximum rate, and its precision at lower rates: `cargo run
//! --release -p weir-lab --example rates`, as root.

use std::time::{Duration, Instant};
use weir_lab::load::{Generator, Order, Rate, Search, Sink, Trial, Udp};
use weir_lab::net::{Device, Lab};
use weir_link::bpf::Hook;

/// Number of frames at the maximum rate.
const FRAMES: u64 = 3_000_000;

fn udp(from: &Device, to: &Device) -> Udp {
    let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    Udp::new(from.mac(), to.mac(), src, dst)
}

fn main() -> anyhow::Result<()> {
    let start = Instant::now();
    for _ in 0..20 {
        let lab = Lab::new();
        let (a, b) = (lab.host("a")?, lab.host("b")?);
        lab.link(&a, &b).connect()?;
    }
    println!("two hosts and a link: {:.1?}", start.elapsed() / 20);

    let lab = Lab::new();
    let (a, b) = (lab.host("a")?, lab.host("b")?);
    let (eth_a, eth_b) = lab.link(&a, &b).mtu(3400).connect()?;
    for hook in [Hook::XdpNative, Hook::XdpGeneric, Hook::TcIngress] {
        let sink = Sink::new(&eth_b, hook)?;
        println!("\ninto a sink at {hook}:");
        for (name, frame_bytes, flows) in [
            ("64 B, 1 flow", 60, 1),
            ("64 B, 1000 flows in turn", 60, 1000),
            ("64 B, 1000 x 1000 flows scattered", 60, 1_000_000),
            ("1500 B, 1 flow", 1514, 1),
        ] {
            let flows = Udp {
                frame_bytes,
                dst_ports: flows.min(1000),
                src_addresses: flows.div_ceil(1000),
                order: if flows > 1000 {
                    Order::Scattered
                } else {
                    Order::InTurn
                },
                ..udp(&eth_a, &eth_b)
            };
            let mut generator = Generator::new(&eth_a, &flows)?.realtime();
            let before = sink.counted()?.frames;
            let sent = generator.send(FRAMES, Rate::Flat)?;
            let counted = sink.counted()?.frames - before;
            assert_eq!(counted + sent.dropped, FRAMES);
            println!(
                "  {name}: {:.2} Mpps, {} lost",
                sent.rate() / 1e6,
                sent.dropped
            );
        }
    }

    let sink = Sink::new(&eth_b, Hook::XdpNative)?;
    let mut generator = Generator::new(&eth_a, &udp(&eth_a, &eth_b))?.realtime();
    println!("\nat a rate, for half a second:");
    for rate in [100.0, 10e3, 100e3, 1e6, 2e6, 3e6] {
        let sent = generator.send((rate / 2.0) as u64, Rate::PerSecond(rate))?;
        let (real, put_off) = (sent.rate(), sent.put_off);
        println!("  {rate} asked, {real:.0} sent, put off by {put_off:.1?}");
    }
    let start = Instant::now();
    let outcome = Search::QUICK.run(|rate, time| -> anyhow::Result<Trial> {
        let before = sink.counted()?.frames;
        let count = (rate * time.as_secs_f64()) as u64;
        let sent = generator.send(count.max(1), Rate::PerSecond(rate))?;
        Ok(Trial {
            sent: sent.frames,
            received: sink.counted()?.frames - before,
            elapsed: sent.elapsed.max(Duration::from_nanos(1)),
        })
    });
    // The error type is anyhow's, which does not implement `std::error::Error`.
    let outcome = outcome.map_err(|error| anyhow::anyhow!("{error}"))?;
    let (trials, took) = (outcome.trials.len(), start.elapsed());
    println!(
        "\nlossless into the XDP sink: {:.2} Mpps, limited by the sender: {}; {trials} trials in {took:.1?}",
        outcome.rate.unwrap_or_default() / 1e6,
        outcome.limited_by_sender,
    );
    Ok(())
}
