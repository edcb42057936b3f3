//! Live frames: each is counted once, at XDP with a gate and at tc, whatever happens to the process.

use super::table::Pins;
use super::{assert_adds_up, services, spec};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::load::{Generator, Rate, Sent, Udp};
use weir_lab::net::{Device, Lab, Linear, Offloads};
use weir_lab::testenv;
use weir_link::bpf::PinFolder;
use weir_link::net::Interface;
use weir_link::xdp::{
    Bypass, CutOwner, FlowKind, FlowMaps, Gate, GateError, GateFds, HostFilter, LinkFds, Meter,
    MeterTap, Row,
};
use weir_meter::{Direction, Key};

/// Frames a second, which a veth takes without loss.
const RATE: Rate = Rate::PerSecond(50_000.0);

/// The first of the addresses that send, and how many there are.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 0);
const SOURCES: u32 = 200;

/// Time limit of a wait for an event that is due.
const SOON: Duration = Duration::from_secs(20);

fn source(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST.to_bits() + number)
}

/// The first 100 sources have a row each.
pub(super) fn insert_half(meter: &mut Meter) {
    for number in 0..SOURCES / 2 {
        meter.insert(Key::Ipv4(source(number)), number).unwrap();
    }
}

/// Sends frames of all sources in turn.
pub(super) fn udp(from: &Device, to: &Device) -> Udp {
    Udp {
        src_addresses: SOURCES,
        ..Udp::new(from.mac(), to.mac(), FIRST, Ipv4Addr::new(10, 8, 0, 1))
    }
}

/// Packets up in the period that ends now: of the sources, rows then unknown.
fn packets(meter: &mut Meter) -> [u64; 2] {
    let cut = meter.cut().unwrap();
    assert_adds_up(&cut);
    let mut sums = [0; 2];
    let mut cells: Vec<_> = cut.cells().collect();
    cells.retain(|cell| cell.direction == Direction::Up);
    for cell in cells {
        match cell.owner {
            CutOwner::Row(_) => sums[0] += cell.packets,
            CutOwner::Unknown(Key::Ipv4(address)) if address >= FIRST => sums[1] += cell.packets,
            // What the kernels themselves send.
            CutOwner::Unknown(_) => {}
            CutOwner::Overflow => panic!("nothing overflows here"),
        }
    }
    meter.settle();
    sums
}

/// Waits until all that was sent is counted, and asserts that no more is.
pub(super) fn assert_counted(meter: &mut Meter, mut sums: [u64; 2], sent: Sent) {
    let expected = sent.frames - sent.dropped;
    let began = Instant::now();
    while sums[0] + sums[1] < expected && began.elapsed() < SOON {
        let more = packets(meter);
        sums = [sums[0] + more[0], sums[1] + more[1]];
    }
    let more = packets(meter);
    assert_eq!(
        [sums[0] + more[0] + sums[1] + more[1]],
        [expected],
        "{sent:?}"
    );
    // Sources come in turn.
    assert!(sums[0].abs_diff(sums[1]) <= u64::from(SOURCES) + sent.dropped);
}

#[test]
fn a_gate_counts_each_frame_while_its_owner_changes() {
    if !testenv::root() {
        return;
    }
    let line = Linear::new(Offloads::OFF).unwrap();
    let services = services();
    let mut meter = Meter::create(&spec(&services, false)).unwrap();
    insert_half(&mut meter);
    let interfaces =
        || [&line.left, &line.right].map(|device| Interface::numbered(device.index()).unwrap());
    let stages = [meter.stage(Direction::Up), meter.stage(Direction::Down)];
    let attach = || {
        line.middle.run(|| {
            let [left, right] = interfaces();
            let both = [&left, &right];
            let mut gate = Gate::attach_metered(&both, Bypass::Wire, true, &stages).unwrap();
            gate.join(0, 1).unwrap();
            drop(gate);
        });
    };
    attach();
    let mut generator = Generator::new(&line.eth_a, &udp(&line.eth_a, &line.eth_b)).unwrap();
    let sending = generator.start(100_000, RATE).unwrap();
    let mut sums = [0; 2];
    while !sending.is_done() {
        let more = packets(&mut meter);
        sums = [sums[0] + more[0], sums[1] + more[1]];
        // As a process that takes over what a killed one has left.
        attach();
    }
    let sent = sending.wait().unwrap();
    assert_counted(&mut meter, sums, sent);
    line.middle.run(|| {
        let [left, right] = interfaces();
        assert!(Gate::clean_stale(&[&left, &right]).unwrap());
    });
}

#[test]
fn a_gate_with_cached_verdicts_and_a_host_filter_counts_too() {
    if !testenv::root() {
        return;
    }
    let line = Linear::new(Offloads::OFF).unwrap();
    let services = services();
    let mut meter = Meter::create(&spec(&services, false)).unwrap();
    insert_half(&mut meter);
    let stages = [meter.stage(Direction::Up), meter.stage(Direction::Down)];
    let interfaces =
        || [&line.left, &line.right].map(|device| Interface::numbered(device.index()).unwrap());
    line.middle.run(|| {
        let kinds = [FlowKind::FiveTuple, FlowKind::IpPair, FlowKind::MacPair];
        let flow_maps = FlowMaps::new(&kinds, 256).unwrap();
        let [left, right] = interfaces();
        let both = [&left, &right];
        let mut gate = Gate::attach_metered(&both, Bypass::Wire, true, &stages).unwrap();
        gate.join(0, 1).unwrap();
        for link in 0..2 {
            gate.use_flow_cache(link, &flow_maps, false).unwrap();
            let updater = gate.host_filter_updater(link, Some((&flow_maps, false)));
            let filter = HostFilter::new(&[], "tcp port 22").unwrap();
            updater.unwrap().set_host_filter(&filter).unwrap();
        }
    });
    let mut generator = Generator::new(&line.eth_a, &udp(&line.eth_a, &line.eth_b)).unwrap();
    let sent = generator.send(20_000, RATE).unwrap();
    assert_counted(&mut meter, [0; 2], sent);
    line.middle.run(|| {
        let [left, right] = interfaces();
        assert!(Gate::clean_stale(&[&left, &right]).unwrap());
    });
}

#[test]
fn a_member_of_the_tap_cannot_end_the_counting() {
    if !testenv::root() {
        return;
    }
    let line = Linear::new(Offloads::OFF).unwrap();
    let services = services();
    let mut meter = Meter::create(&spec(&services, false)).unwrap();
    insert_half(&mut meter);
    let stages = [meter.stage(Direction::Up), meter.stage(Direction::Down)];
    line.middle.run(|| {
        let [left, right] =
            [&line.left, &line.right].map(|device| Interface::numbered(device.index()).unwrap());
        let gate = Gate::attach_metered(&[&left, &right], Bypass::Kernel, false, &stages).unwrap();
        let owned = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
        let fds = gate.fds();
        let mut member = Gate::from_fds(GateFds {
            page: owned(fds.page),
            sockets: owned(fds.sockets),
            peers: owned(fds.peers),
        })
        .unwrap();
        for link in 0..2 {
            let fds = gate.link_fds(link).unwrap();
            let link_fds = LinkFds {
                ifindex: fds.ifindex,
                hook: fds.hook,
                xdp: owned(fds.xdp),
                tc: fds.tc.map(owned),
                promiscuous: fds.promiscuous.map(owned),
            };
            member.add_fds(link, link_fds).unwrap();
        }
        assert!(matches!(member.renew(), Err(GateError::MeteredByAnother)));
        let updater = member.host_filter_updater(0, None);
        assert!(matches!(updater, Err(GateError::MeteredByAnother)));
        let mut generator = Generator::new(&line.eth_a, &udp(&line.eth_a, &line.eth_b)).unwrap();
        let sent = generator.send(2_000, RATE).unwrap();
        assert_counted(&mut meter, [0; 2], sent);
        gate.renew().unwrap();
        gate.end().unwrap();
    });
}

/// In the environment of the process that is killed.
const PINS: &str = "WEIR_TEST_METER_PINS";
const INTERFACE: &str = "WEIR_TEST_METER_INTERFACE";

/// Not a test: what the next one starts and kills.
#[test]
#[ignore = "started by another test"]
fn counts_until_it_is_killed() {
    let (Ok(pins), Ok(interface)) = (std::env::var(PINS), std::env::var(INTERFACE)) else {
        return;
    };
    let folder = PinFolder::open(&PathBuf::from(pins)).unwrap();
    let _lock = folder.lock_alone().unwrap().expect("nobody else has it");
    let services = services();
    let mut meter = Meter::open(&folder, &spec(&services, false)).unwrap().meter;
    insert_half(&mut meter);
    let interface = Interface::numbered(interface.parse().unwrap()).unwrap();
    let _tap = MeterTap::attach(&meter, &interface, Direction::Up, Some(&folder)).unwrap();
    meter.set_tag(0, 1);
    std::thread::sleep(SOON);
}

#[test]
fn frames_at_tc_are_counted_through_a_kill() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (eth_a, eth_b) = lab.link(&a, &b).connect().unwrap();
    // So that the veth takes the generator's frames.
    let polling = Offloads {
        generic_receive: true,
        ..Offloads::OFF
    };
    eth_b.set_offloads(polling).unwrap();
    let (pins, folder) = Pins::new("meter-kill");
    let mut child = Command::itself();
    child
        .args(["--exact", "live::counts_until_it_is_killed", "--ignored"])
        .env(PINS, &pins.0)
        .env(INTERFACE, eth_b.index().to_string());
    let mut child = b.spawn(child).unwrap();
    let began = Instant::now();
    let services = services();
    // Its tag says that it is ready.
    while !folder
        .list()
        .unwrap()
        .0
        .iter()
        .any(|name| name.starts_with("meter-out-"))
        || Meter::open(&folder, &spec(&services, false))
            .unwrap()
            .meter
            .tag(0)
            != 1
    {
        assert!(began.elapsed() < SOON, "the process is not ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut generator = Generator::new(&eth_a, &udp(&eth_a, &eth_b)).unwrap();
    let sending = generator.start(100_000, RATE).unwrap();
    while sending.sent() < 20_000 {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.child_mut().kill().unwrap();
    child.wait(SOON).unwrap();
    while sending.sent() < 40_000 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let opened = Meter::open(&folder, &spec(&services, false)).unwrap();
    assert!(opened.is_adopted);
    let mut meter = opened.meter;
    assert_eq!(meter.row_of(Key::Ipv4(source(7))).unwrap(), Some(7 as Row));
    let tap = b.run(|| {
        let interface = Interface::numbered(eth_b.index()).unwrap();
        MeterTap::attach(&meter, &interface, Direction::Up, Some(&folder)).unwrap()
    });
    let sent = sending.wait().unwrap();
    assert_counted(&mut meter, [0; 2], sent);
    tap.detach(Some(&folder)).unwrap();
    Meter::unpin(&folder).unwrap();
    assert_eq!(folder.list().unwrap().0, Vec::<String>::new());
}

/// Packets and bytes of row 0, going up.
fn of_row_0(meter: &mut Meter) -> [u64; 2] {
    let cut = meter.cut().unwrap();
    assert_adds_up(&cut);
    let of_row = cut.cells().filter(|cell| cell.owner == CutOwner::Row(0));
    let sums = of_row.fold([0; 2], |[packets, bytes], cell| {
        [packets + cell.packets, bytes + cell.bytes]
    });
    meter.settle();
    sums
}

#[test]
fn super_frames_count_as_the_segments_that_they_become() {
    if !testenv::root() {
        return;
    }
    const BYTES: usize = 3_000_000;
    for counts_ip in [false, true] {
        let line = Linear::new(Offloads::OFF)
            .unwrap()
            .with_addresses()
            .unwrap();
        for device in [&line.eth_a, &line.left] {
            device.set_offloads(Offloads::VETH).unwrap();
        }
        // The kernel segments what goes out here.
        let bridge = line.middle.bridge("br0").unwrap();
        line.left.attach_to(&bridge).unwrap();
        line.right.attach_to(&bridge).unwrap();
        let services = services();
        let mut meters = [(); 2].map(|()| {
            let mut meter = Meter::create(&spec(&services, counts_ip)).unwrap();
            meter
                .insert(Key::Ipv4(Ipv4Addr::new(10, 9, 0, 1)), 0)
                .unwrap();
            meter
        });
        let places = [(&line.middle, &line.left), (&line.b, &line.eth_b)];
        let _taps: Vec<MeterTap> = (0..2)
            .map(|number| {
                let ((host, device), meter) = (places[number], &meters[number]);
                host.run(|| {
                    let interface = Interface::numbered(device.index()).unwrap();
                    MeterTap::attach(meter, &interface, Direction::Up, None).unwrap()
                })
            })
            .collect();
        let before = line.left.counters().unwrap().rx_frames;
        let listener = line.b.run(|| TcpListener::bind("10.9.0.2:80").unwrap());
        let receiver = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received.len()
        });
        line.a.run(|| {
            let mut stream = TcpStream::connect("10.9.0.2:80").unwrap();
            stream.write_all(&vec![1; BYTES]).unwrap();
        });
        assert_eq!(receiver.join().unwrap(), BYTES);
        std::thread::sleep(Duration::from_millis(200));
        let frames = line.left.counters().unwrap().rx_frames - before;
        let [supers, segments] = meters.each_mut().map(of_row_0);
        assert_eq!(supers, segments, "IP: {counts_ip}");
        assert!(
            segments[0] > 2 * frames,
            "{frames} super-frames, {segments:?}"
        );
        assert!(segments[1] > BYTES as u64);
    }
}
