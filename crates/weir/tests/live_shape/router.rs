//! `[[scheduler]]` of `weir run`: a router whose outside link has a rate and classes.

use super::{EARLY, FRAME, Folder, RATE, Source, full, receive, report, send, weir};
use crate::live::{Running, ip};
use std::net::UdpSocket;
use std::time::Duration;
use weir_lab::net::{Linear, Offloads, traffic};
use weir_lab::testenv;

const BOX: &[u8] = b"outside = \"right\"\n\
    [kernel]\nroutes = true\n\
    [[link]]\nname = \"left\"\n[[link]]\nname = \"right\"\n\
    [[scheduler]]\nlink = \"right\"\nrate = \"20M\"\n\
    [[scheduler.class]]\nname = \"little\"\nmatch = \"udp src port 6000\"\nrate = \"4M\"\n\
    [[scheduler.class]]\nname = \"rest\"\n";

#[test]
fn a_router_shapes_its_outside_link() {
    if !testenv::root() || !testenv::programs(&["ip"]) {
        return;
    }
    let net = Linear::new(Offloads::OFF).unwrap();
    for (device, address) in [
        (&net.eth_a, [10, 9, 0, 1]),
        (&net.left, [10, 9, 0, 254]),
        (&net.right, [10, 9, 1, 254]),
        (&net.eth_b, [10, 9, 1, 2]),
    ] {
        device.add_address(address, 24).unwrap();
    }
    ip(&net.a, &["route", "add", "default", "via", "10.9.0.254"]);
    ip(&net.b, &["route", "add", "default", "via", "10.9.1.254"]);
    let folder = Folder::new("shape-router");
    let (file, json) = (folder.write("box.toml", BOX), folder.path("stats.json"));
    let arguments = ["run", &file, "--hang-ms", "10000", "--stats-json", &json];
    let running = Running::start(&net.middle, weir([]), &arguments).until("ready");
    let to = [10, 9, 1, 2].into();
    let pings = traffic::ping(&net.a, to, 3, Duration::from_secs(2)).unwrap();
    assert!(!pings.round_trips.is_empty());
    let socket = net.b.run(|| UdpSocket::bind("10.9.1.2:5001").unwrap());
    super::prepare(&socket);
    let receiving = std::thread::spawn(move || receive(&socket));
    let sources: Vec<Source> = (0..3)
        .map(|flow| Source {
            from: "10.9.0.1",
            to: "10.9.1.2",
            port: 6_000 + flow,
            rate: full(),
        })
        .collect();
    send(&net.a, &sources, Duration::from_secs(3));
    let (got, time) = receiving.join().unwrap();
    let frames: u64 = got.values().map(|it| it.frames).sum();
    let rate = (frames * FRAME as u64 * 8) as f64 / time.as_secs_f64();
    assert!(rate < 1.1 * RATE, "{got:?} in {time:?}");
    // While all send, the class has its 4 of 20 Mb/s.
    let little = got.iter().find(|(from, _)| from.port() == 6_000);
    let share = little.unwrap().1.early as f64 / EARLY as f64;
    assert!((0.15..0.25).contains(&share), "{got:?}");
    assert!(got.values().all(|it| it.reordered == 0), "{got:?}");
    running.stop();
    let report = report(&json);
    assert_eq!(report["links"][0]["queues"], serde_json::Value::Null);
    let queues = &report["links"][1]["queues"];
    let [little, rest] = [0, 1].map(|class| queues["classes"][class].clone());
    assert_eq!(
        (&little["name"], &rest["name"]),
        (&"little".into(), &"rest".into())
    );
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    assert!(
        number(&little["dropped"]) + number(&queues["flushed"]) > 0,
        "{report}"
    );
    // What left the classes left the link, but for the router's ARP, which has a class, too.
    let left = number(&little["frames"]) + number(&rest["frames"]);
    assert_eq!(number(&report["links"][1]["tx_frames"]), left, "{report}");
}
