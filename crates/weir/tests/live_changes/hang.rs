//! Frames that waited during a hang are delivered if no later frame has passed
//! them.

use super::HEARS;
use crate::common::weir;
use crate::live::Running;
use std::net::UdpSocket;
use std::time::Duration;
use weir_lab::net::{Linear, Offloads, Signal};

/// Number of frames that wait while the process is stopped.
const WAITING: u8 = 20;

fn what_comes_after_a_hang(bypass: &str) -> Option<Vec<u8>> {
    if !weir_lab::testenv::root() {
        return None;
    }
    let line = Linear::new(Offloads::OFF)
        .unwrap()
        .with_addresses()
        .unwrap();
    let arguments = [
        "bridge",
        "left",
        "right",
        "--bypass",
        bypass,
        "--hang-ms",
        "300",
        "--restore",
    ];
    let bridge = Running::start(&line.middle, weir([]), &arguments).until("ready");
    let hears = line.b.run(|| UdpSocket::bind("10.9.0.2:7")).unwrap();
    hears.set_read_timeout(Some(HEARS)).unwrap();
    let probe = line.a.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("10.9.0.2:7").map(|()| socket)
    });
    let probe = probe.unwrap();
    let reached = (0..100).any(|_| {
        probe.send(&[0]).unwrap();
        super::comes(&hears, &[0])
    });
    assert!(reached, "nothing comes");
    bridge.signal(Signal::STOP);
    for number in 1..=WAITING {
        probe.send(&[number]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(400));
    // After the limit: this frame shuts the gate, and takes the bypass.
    probe.send(&[100]).unwrap();
    bridge.signal(Signal::CONT);
    let mut came = Vec::new();
    let mut buffer = [0; 8];
    while let Ok(len) = hears.recv(&mut buffer) {
        assert_eq!(len, 1);
        came.push(buffer[0]);
    }
    came.retain(|number| *number != 0);
    assert!(
        super::comes(&hears, &[0]) || {
            probe.send(&[0]).unwrap();
            super::comes(&hears, &[0])
        }
    );
    bridge.stop();
    Some(came)
}

#[test]
fn they_come_in_order_where_none_goes_round() {
    for bypass in ["drop", "kernel"] {
        let Some(came) = what_comes_after_a_hang(bypass) else {
            return;
        };
        assert!(came.iter().copied().eq(1..=WAITING), "{bypass}: {came:?}");
    }
}

#[test]
fn they_are_dropped_where_others_are_past_them() {
    let Some(came) = what_comes_after_a_hang("wire") else {
        return;
    };
    assert_eq!(came, [100]);
}
