//! `[policy.NAME]` on a live bridge.

use super::*;
use crate::common::chunks::policed;

/// Bytes of the IP packet of a generator's frame, padding apart.
const PACKET: u64 = 46;
/// Bytes of each subscriber's quota, and how many packets that is: the one that uses it up passes.
const QUOTA: u64 = 1000;
const PACKETS: u64 = QUOTA.div_ceil(PACKET);

#[test]
fn a_quota_holds_through_kills_and_what_it_stops_is_counted() {
    let Some(net) = net() else { return };
    let more =
        format!("default_policy = \"small\"\n[policy.small]\nquota = \"{QUOTA}B\"\n{BRIDGE}");
    let files = Files::new("metering-quota", &more);
    let _cleaned = Cleaned(&net);
    let sink = Sink::new(&net.eth_b, Hook::TcIngress).unwrap();
    let (config, spool) = (files.config(), files.0.path("spool"));
    let start = || {
        let arguments = [
            "bridge",
            "left",
            "right",
            "--hang-ms",
            "10000",
            "--meter",
            &config,
            "--no-store",
            "--spool",
            &spool,
        ];
        Running::start(&net.middle, weir([]), &arguments).until("ready")
    };
    let mut generator = Generator::new(&net.eth_a, &udp(&net.eth_a, &net.eth_b)).unwrap();
    let mut sum = 0;
    for _ in 0..3 {
        let running = start();
        // Some packets of each: it is spent in the second round.
        for frames in [3000, 600] {
            let sent = generator.send(frames, Rate::PerSecond(20_000.0)).unwrap();
            assert_eq!(sent.dropped, 0, "{sent:?}");
            sum += sent.frames;
            std::thread::sleep(Duration::from_millis(100));
        }
        running.signal(Signal::KILL);
        running.end();
    }
    start().stop();
    let [packets, policed] = policed(&files.0);
    assert_eq!(packets, sum);
    let known = u64::from(SOURCES / 2);
    assert_eq!(policed, sum / 2 - known * PACKETS);
    // Those of no session pass; the kernels have frames of their own.
    let passed = sink.counted().unwrap().frames;
    let expected = sum / 2 + known * PACKETS;
    assert!(passed <= expected + 100, "{passed} of {expected}");
}

#[test]
fn a_policy_that_the_list_names_and_the_configuration_has_not_is_refused() {
    let Some(net) = net() else { return };
    let files = Files::new("metering-policy", BRIDGE);
    let list = "subscriber,key\nalice,10.7.0.1,policy:fast\n";
    fs::write(files.0.path("subscribers.csv"), list).unwrap();
    let config = files.config();
    let arguments = ["bridge", "left", "right", "--meter", &config, "--no-store"];
    let ended = Running::start(&net.middle, weir([]), &arguments).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let why = "subscribers.csv:2:16: there is no policy `fast`: add [policy.fast]";
    assert!(ended.stderr.contains(why), "{ended:?}");
}
