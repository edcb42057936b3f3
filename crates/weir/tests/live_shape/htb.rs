//! The rate beside that of the kernel's HTB.

use super::{FRAME, Net, carry, net, sources};
use crate::live::run;
use std::time::Duration;
use weir_lab::testenv;

/// Pairs of measurements, at most: a busy machine stops a process longer than a burst.
const ROUNDS: usize = 5;

/// Bits per second that come through while twice as many are sent.
fn rate(net: &Net) -> f64 {
    let (got, time) = carry(net, &sources(2), Duration::from_secs(3));
    let frames: u64 = got.values().map(|of_it| of_it.frames).sum();
    // The time is that between the first and the last.
    ((frames - 1) * FRAME as u64 * 8) as f64 / time.as_secs_f64()
}

fn of_weir() -> Option<f64> {
    let net = net()?;
    let running = net.shape(&["--rate", "20M", "--restore"]).until("ready");
    assert!(net.pings().unwrap());
    let rate = rate(&net);
    running.stop();
    Some(rate)
}

/// The middle as the kernel's bridge, whose output has a class of HTB; `None` without HTB.
fn of_htb() -> Option<f64> {
    let net = net()?;
    let bridge = net.middle.bridge("br0").unwrap();
    for port in [&net.left, &net.right] {
        port.attach_to(&bridge).unwrap();
    }
    for words in [
        "qdisc add dev right root handle 1: htb default 10",
        "class add dev right parent 1: classid 1:10 htb rate 20mbit quantum 1514",
        "qdisc add dev right parent 1:10 pfifo limit 1000",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        run(&net.middle, "tc", &words)?;
    }
    let classes = run(&net.middle, "tc", &["class", "show", "dev", "right"])?;
    if !classes.contains("class htb 1:10") {
        testenv::skip("the kernel has no HTB");
        return None;
    }
    assert!(net.pings().unwrap());
    Some(rate(&net))
}

#[test]
fn the_rate_is_that_of_htb() {
    if !testenv::programs(&["tc"]) {
        return;
    }
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let Some(htb) = of_htb() else { return };
        let Some(weir) = of_weir() else { return };
        let ratio = weir / htb;
        ratios.push(ratio);
        if (ratio - 1.0).abs() <= 0.01 {
            println!("weir : HTB: {ratios:.4?}");
            return;
        }
    }
    panic!("weir : HTB: {ratios:.4?}");
}
