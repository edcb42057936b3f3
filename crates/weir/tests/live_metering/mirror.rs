//! `weir meter` at a mirror port.

use super::*;
use std::io::ErrorKind;
use std::net::UdpSocket;

/// Frames of both directions come in at the port, for stations elsewhere. Some of the processes that
/// follow each other take them, the others let them go on.
fn at_a_mirror_port(name: &str, capture: &str, expected: impl Fn([u64; 2]) -> [[u64; 2]; 2]) {
    for takes in [[false; 4], [true; 4], [false, true, false, true]] {
        at_a_port_that(takes, name, capture, &expected);
    }
}

fn at_a_port_that(
    takes: [bool; 4],
    name: &str,
    capture: &str,
    expected: impl Fn([u64; 2]) -> [[u64; 2]; 2],
) {
    let Some(net) = net() else { return };
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
        // By XDP, which a veth has.
        assert_eq!(net.attached(), [*takes, false]);
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

/// Its driver has no XDP.
#[test]
fn frames_of_a_loopback_are_taken_at_tc() {
    const FRAMES: u64 = 50;
    let Some(net) = net() else { return };
    let files = Files::new(
        "metering-mirror-lo",
        "[[link]]\nmirror = \"lo\"\ntake = true\n",
    );
    let (config, store) = (files.config(), files.store());
    let meter = || {
        let arguments = ["meter", "--config", &config, "--store", &store];
        Running::start(&net.middle, weir([]), &arguments).until("ready")
    };
    let [to, from] = net.middle.run(|| {
        let to = UdpSocket::bind(("127.0.0.1", PORT)).unwrap();
        [to, UdpSocket::bind("127.0.0.1:0").unwrap()]
    });
    for _ in 0..2 {
        let running = meter();
        for _ in 0..FRAMES {
            from.send_to(b"a", ("127.0.0.1", PORT)).unwrap();
        }
        running.signal(Signal::KILL);
        running.end();
    }
    meter().stop();
    assert_eq!(files.packets(), [[0, 0], [0, 2 * FRAMES]]);
    to.set_nonblocking(true).unwrap();
    assert_eq!(
        to.recv(&mut [0; 9]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    // Each process went on where the one before was killed.
    let ledger = Ledger::open(store.as_ref()).unwrap();
    let periods = ledger.prove(None, None).unwrap().periods;
    assert!(
        periods.iter().all(|it| it.gap_unix_ns.is_none()),
        "{periods:?}"
    );
}

#[test]
fn a_port_whose_xdp_another_program_has_is_not_taken() {
    let Some(net) = net() else { return };
    let _other = Sink::new(&net.left, Hook::XdpNative).unwrap();
    let files = Files::new(
        "metering-mirror-busy",
        "[[link]]\nmirror = \"left\"\ntake = true\n",
    );
    let (config, store) = (files.config(), files.store());
    let arguments = ["meter", "--config", &config, "--store", &store];
    let ended = Running::start(&net.middle, weir([]), &arguments).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("or use tc: leave `take` out"),
        "{ended:?}"
    );
    assert!(!net.left.is_promiscuous().unwrap());
}
