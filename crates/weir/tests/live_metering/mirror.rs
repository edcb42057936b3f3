//! `weir meter` at a mirror port.

use super::*;

/// Frames of both directions come in at the port, for stations elsewhere. Some of the processes that
/// follow each other take them, the others let them go on.
fn at_a_mirror_port(name: &str, capture: &str, expected: impl Fn([u64; 2]) -> [[u64; 2]; 2]) {
    let mixed = [false, true, false, true];
    for (takes, has_xdp) in [
        ([false; 4], true),
        ([true; 4], true),
        (mixed, true),
        ([true; 4], false),
    ] {
        at_a_port_that(takes, has_xdp, name, (capture, &expected));
    }
}

fn at_a_port_that(
    takes: [bool; 4],
    has_xdp: bool,
    name: &str,
    (capture, expected): (&str, &impl Fn([u64; 2]) -> [[u64; 2]; 2]),
) {
    let Some(net) = net() else { return };
    if !has_xdp {
        // A veth whose peer sends frames longer than a page has no XDP.
        net.eth_a.set_mtu(9000).unwrap();
    }
    let config_of = |takes| format!("[[link]]\nmirror = \"left\"\ntake = {takes}\n{capture}");
    let files = Files::new(name, &config_of(false));
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
    for (round, takes) in takes[..3].iter().enumerate() {
        files.configure(&config_of(*takes));
        let running = meter(&[]).until("ready");
        assert_eq!(net.attached(), [*takes && has_xdp, false]);
        // It runs after the meter.
        let sink = Sink::new(&net.left, Hook::TcIngress).unwrap();
        assert!(net.left.is_promiscuous().unwrap());
        for (sum, udp) in sums.iter_mut().zip([&up, &down]) {
            let mut generator = Generator::new(&net.eth_a, udp).unwrap();
            let sent = generator.send(2000, rate).unwrap();
            assert_eq!(sent.dropped, 0, "{sent:?}");
            *sum += sent.frames;
        }
        std::thread::sleep(Duration::from_millis(200));
        let passed = sink.counted().unwrap().frames;
        assert_eq!(passed == 0, *takes, "{passed} frames went on");
        if round == 1 {
            running.stop();
            assert!(!net.left.is_promiscuous().unwrap());
        } else {
            running.signal(Signal::KILL);
            running.end();
            assert!(net.left.is_promiscuous().unwrap());
        }
    }
    files.configure(&config_of(takes[3]));
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

#[test]
fn the_port_itself_counts_frames_that_are_taken() {
    let Some(net) = net() else { return };
    let files = Files::new(
        "metering-mirror-own",
        "[[link]]\nmirror = \"left\"\ntake = true\n",
    );
    let (config, store) = (files.config(), files.store());
    let arguments = ["meter", "--config", &config, "--store", &store];
    let running = Running::start(&net.middle, weir([]), &arguments).until("ready");
    let udp = udp(&net.eth_a, &net.eth_b);
    let mut generator = Generator::new(&net.eth_a, &udp).unwrap();
    let sent = generator.send(2000, Rate::PerSecond(20_000.0)).unwrap();
    assert_eq!(sent.dropped, 0, "{sent:?}");
    running.stop();
    files.assert_interfaces_have(sent.frames);
}
