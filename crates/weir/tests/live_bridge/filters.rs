//! The frames that `weir bridge` passes according to its options: VLANs, and
//! frames to reserved bridge addresses.

use crate::common::{Folder, weir};
use crate::live::{Running, WAIT_MAX};
use crate::{Net, net};
use rustix::net::{RecvFlags, recv};
use serde_json::Value;
use std::time::{Duration, Instant};
use weir_lab::net::Device;
use weir_link::live::Sender;

/// A local experimental EtherType, which identifies the test's frames.
const KIND: [u8; 6] = [0x88, 0xb5, b'w', b'e', b'i', b'r'];
const ALL: [u8; 6] = [0xff; 6];

/// Last bytes of reserved bridge addresses: spanning tree, pause, LLDP.
const STP: u8 = 0;
const PAUSE: u8 = 1;
const LLDP: u8 = 14;

/// Name of the last frame.
const LAST: u8 = 0xff;

/// A frame with that name, tagged unless its VLAN is 0.
fn frame(dst: [u8; 6], vlan: u8, name: u8) -> Vec<u8> {
    let tag = [0x81, 0, 0, vlan];
    let tag = if vlan == 0 { &[][..] } else { &tag };
    let mut frame = [&dst[..], &[2, 0, 0, 0, 7, 1], tag, &KIND, &[name]].concat();
    frame.resize(64, 0);
    frame
}

/// The names of the frames that arrive at the other side, up to the last one. A
/// kernel may have removed the tag.
fn reached(from: &Device, to: &Device, frames: &[Vec<u8>]) -> Vec<u8> {
    let socket = to.host().capture().unwrap();
    let sender = from.host().run(|| Sender::open(from.index())).unwrap();
    frames.iter().for_each(|frame| sender.send(frame).unwrap());
    let (mut came, mut bytes) = (Vec::new(), [0; 2048]);
    let began = Instant::now();
    while came.last() != Some(&LAST) {
        assert!(began.elapsed() < WAIT_MAX, "the last never came: {came:?}");
        match recv(&socket, &mut bytes, RecvFlags::empty()) {
            Ok((len, _)) if len >= 60 => {
                let at = [12, 16].into_iter().find(|at| bytes[*at..][..6] == KIND);
                came.extend(at.map(|at| bytes[at + 6]));
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    came.pop();
    came
}

/// The counters of each side of a bridge with these options.
fn stats_of(net: &Net, folder: &Folder, options: &[&str], act: impl FnOnce()) -> Value {
    let json = folder.path("stats.json");
    let more = ["--hang-ms", "10000", "--stats-json", &json];
    let bridge = net.bridge(&[options, &more].concat()).until("ready");
    act();
    bridge.stop();
    serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap()
}

#[test]
fn reserved_addresses_pass_as_chosen() {
    let Some(net) = net() else { return };
    let folder = Folder::new("bridge-reserved");
    let group = |last: u8| frame([0x01, 0x80, 0xc2, 0, 0, last], 0, last);
    let frames = [group(STP), group(PAUSE), group(LLDP), frame(ALL, 0, LAST)];
    for (options, passes) in [
        (&["--stp", "pass"][..], &[STP, LLDP][..]),
        (&["--stp", "block"], &[LLDP]),
        (&["--reserved", "block"], &[STP]),
        (&["--stp", "block", "--reserved", "block"], &[]),
    ] {
        let stats = stats_of(&net, &folder, options, || {
            for (from, to) in [(&net.eth_a, &net.eth_b), (&net.eth_b, &net.eth_a)] {
                assert_eq!(reached(from, to, &frames), passes, "{options:?}");
            }
        });
        for link in 0..2 {
            let dropped = &stats["links"][link]["dropped_reserved"];
            assert_eq!(*dropped, 3 - passes.len(), "{options:?}: {stats}");
        }
    }
}

#[test]
fn vlans_pass_where_they_may() {
    let Some(net) = net() else { return };
    let folder = Folder::new("bridge-vlans");
    // Untagged frames have no VLAN, here 0. Frames that pass neither side are
    // counted at their ingress.
    for (options, passes, refused) in [
        (&[][..], &[0, 10, 20, 30][..], [0, 0]),
        (&["--vlan-a", "10-20", "--vlan-b", "20-30"], &[20], [2, 2]),
        (&["--vlan-b", "10,untagged"], &[0, 10], [0, 2]),
    ] {
        let vlans = [0, 10, 20, 30].map(|vlan| frame(ALL, vlan, vlan));
        let frames = [&vlans[..], &[frame(ALL, passes[0], LAST)]].concat();
        let stats = stats_of(&net, &folder, options, || {
            for (from, to) in [(&net.eth_a, &net.eth_b), (&net.eth_b, &net.eth_a)] {
                assert_eq!(reached(from, to, &frames), passes, "{options:?}");
            }
        });
        for (link, refused) in refused.into_iter().enumerate() {
            let dropped = stats["links"][link]["dropped_vlan"].as_u64().unwrap();
            // The hosts also send frames of their own.
            let is_exact = dropped == refused || (refused > 0 && dropped > refused);
            assert!(is_exact, "{options:?}: {stats}");
        }
    }
}

/// Each call polls the device, and is counted.
#[test]
fn busy_polling_frames_come_by_calls() {
    let Some(net) = net() else { return };
    let folder = Folder::new("bridge-busy");
    let json = folder.path("stats.json");
    let options = [
        "--hang-ms",
        "10000",
        "--busy-poll-us",
        "50",
        "--stats-json",
        &json,
    ];
    let bridge = net.bridge(&options).until("ready");
    assert!(net.pings());
    bridge.stop();
    let stats: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(stats["calls_rx"].as_u64() > Some(0), "{stats}");
    assert!(
        stats["links"][0]["tx_frames"].as_u64() >= Some(3),
        "{stats}"
    );
    assert_eq!(stats["chunks_free"], stats["chunks"], "{stats}");
    // An invalid time is refused.
    let arguments = ["bridge", "left", "right", "--busy-poll-us", "long"];
    let ended = Running::start(&net.middle, weir([]), &arguments).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
}
