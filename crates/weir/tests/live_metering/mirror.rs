//! `weir meter` at a mirror port.

use super::*;

/// Frames of both directions come in at the port, for stations elsewhere.
fn at_a_mirror_port(name: &str, capture: &str, expected: impl Fn([u64; 2]) -> [[u64; 2]; 2]) {
    let Some(net) = net() else { return };
    let files = Files::new(name, &format!("[[link]]\nmirror = \"left\"\n{capture}"));
    // A veth takes the generator's frames if it has an XDP program, or polls.
    let polling = Offloads {
        generic_receive: true,
        ..Offloads::OFF
    };
    net.left.set_offloads(polling).unwrap();
    let (config, store) = (files.config(), files.store());
    let meter = |more: &[&str]| {
        let arguments = [&["meter", "--config", &config, "--store", &store], more].concat();
        Running::start(&net.middle, weir([]), &arguments)
    };
    let up = udp(&net.eth_a, &net.eth_b);
    let down = Udp {
        src: TO,
        dst: FIRST,
        src_addresses: 1,
        dst_addresses: SOURCES,
        ..up
    };
    let rate = Rate::PerSecond(20_000.0);
    let mut sums = [0; 2];
    for round in 0..3 {
        let running = meter(&[]).until("ready");
        assert!(net.left.is_promiscuous().unwrap());
        for (sum, udp) in sums.iter_mut().zip([&up, &down]) {
            let mut generator = Generator::new(&net.eth_a, udp).unwrap();
            let sent = generator.send(2000, rate).unwrap();
            assert_eq!(sent.dropped, 0, "{sent:?}");
            *sum += sent.frames;
        }
        std::thread::sleep(Duration::from_millis(200));
        if round == 1 {
            running.stop();
            assert!(!net.left.is_promiscuous().unwrap());
        } else {
            running.signal(Signal::KILL);
            running.end();
            assert!(net.left.is_promiscuous().unwrap());
        }
    }
    meter(&[]).until("ready").stop();
    assert_eq!(files.packets(), expected(sums));
    assert_eq!(meter(&["--clean"]).end().code, Some(0));
    assert!(!net.left.is_promiscuous().unwrap());
}

#[test]
fn the_source_in_a_prefix_tells_the_direction() {
    let capture = "[capture]\ninside = [\"10.7.0.0/16\", \"2001:db8::/32\"]\n";
    at_a_mirror_port("metering-mirror-prefix", capture, |[up, down]| {
        [[up / 2, down / 2], [up / 2, down / 2]]
    });
}

#[test]
fn a_filter_tells_the_direction() {
    let capture = "[capture]\nfrom_inside = \"src net 10.7.0.0/16\"\n";
    at_a_mirror_port("metering-mirror-filter", capture, |[up, down]| {
        [[up / 2, down / 2], [up / 2, down / 2]]
    });
}

#[test]
fn the_source_of_a_session_tells_the_direction() {
    // What neither side has a session of goes down.
    at_a_mirror_port("metering-mirror-sessions", "", |[up, down]| {
        [[up / 2, down / 2], [0, up / 2 + down / 2]]
    });
}
