//! The stage that counts in the kernel: against a plain program for every frame, and live.

mod frames;
mod live;
mod measures;
mod oracle;
mod policing;
mod table;
mod translated;

use oracle::{Counts, Oracle};
use std::collections::BTreeMap;
use weir_filter::backend::ebpf::{Insn, Reg};
use weir_filter::lang::expr::NoNames;
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_link::bpf::{FRAME_BYTES_MIN, Hook, Load, Program, ProgramType, TestRun};
use weir_link::xdp::{Cut, CutOwner, Meter, MeterSpec, MirrorUp};
use weir_meter::services::{Service, Services};
use weir_meter::{Direction, Key};
use weir_wire::Protocol;

/// Whether programs may be loaded here; skips the test if not.
fn permitted() -> bool {
    let nothing = [Insn::mov32(Reg::R0, 0), Insn::exit()];
    let loaded = Program::load(&nothing, &Load::new(ProgramType::Xdp));
    if let Err(error) = &loaded {
        testenv::skip(&error.to_string());
    }
    loaded.is_ok()
}

fn services() -> Services {
    let ports = |protocol, first, last| (protocol, first..=last);
    Services::new(vec![
        Service {
            name: "dns".into(),
            ports: vec![ports(Protocol::TCP, 53, 53), ports(Protocol::UDP, 53, 53)],
            ..Service::default()
        },
        Service {
            name: "onnet".into(),
            filter: Some("net 10.2.0.0/16 or ip6 net 2001:db8:2::/48".into()),
            ..Service::default()
        },
        Service {
            name: "web".into(),
            ports: vec![ports(Protocol::TCP, 80, 443), ports(Protocol(132), 0, 9)],
            protocols: vec![Protocol::ICMPV4],
            ..Service::default()
        },
        Service {
            name: "long".into(),
            filter: Some("greater 200 or arp".into()),
            protocols: vec![Protocol(47)],
            ..Service::default()
        },
    ])
}

fn policed<'a>(services: &'a Services, counts_ip: bool) -> MeterSpec<'a> {
    MeterSpec {
        polices: true,
        ..spec(services, counts_ip)
    }
}

fn spec<'a>(services: &'a Services, counts_ip: bool) -> MeterSpec<'a> {
    MeterSpec {
        subscribers: 100,
        keys: 200,
        unknown: 4096,
        services,
        names: &NoNames,
        counts_ip,
        polices: false,
        measures: &[],
        adopts: false,
    }
}

/// What a period has, by owner, class and direction.
fn counts(cut: &Cut<'_>) -> Counts {
    let mut counts = BTreeMap::new();
    for cell in cut.cells() {
        let owner = match cell.owner {
            CutOwner::Row(row) => oracle::Owner::Row(row),
            CutOwner::Unknown(key) => oracle::Owner::Unknown(key),
            CutOwner::Overflow => oracle::Owner::Overflow,
        };
        let (packets, bytes) = counts
            .entry((owner, cell.class, cell.direction as u8))
            .or_insert((0, 0));
        *packets += cell.packets;
        *bytes += cell.bytes;
    }
    counts
}

/// The sum of the cells is the totals of the bank.
fn assert_adds_up(cut: &Cut<'_>) {
    let (totals, mut sums) = (cut.totals(), weir_meter::Totals::default());
    for cell in cut.cells() {
        sums.packets[cell.direction as usize] += cell.packets;
        sums.bytes[cell.direction as usize] += cell.bytes;
    }
    assert_eq!(sums, totals);
}

fn run(program: &Program, frame: &[u8]) -> u32 {
    program
        .test_run(&TestRun::new(frame), &mut [])
        .unwrap()
        .returned
}

const HOOKS: [Hook; 2] = [Hook::XdpNative, Hook::TcIngress];

/// Frames of which one cut is taken.
const BATCH: usize = 500;

/// Which way a frame goes.
type DirectionOf<'a> = Box<dyn Fn(&[u8]) -> Direction + 'a>;

/// A program that counts, and which way the frames go that it counts.
struct Counting<'a> {
    what: String,
    program: Program,
    direction: DirectionOf<'a>,
}

fn equals_the_oracle(counts_ip: bool, keys: &[(Key, u32)], seed: u64) {
    equals_the_oracle_of(&services(), counts_ip, keys, seed);
}

fn equals_the_oracle_of(services: &Services, counts_ip: bool, keys: &[(Key, u32)], seed: u64) {
    if !permitted() {
        return;
    }
    let mut meter = Meter::create(&spec(services, counts_ip)).unwrap();
    let oracle = Oracle::new(services, keys, counts_ip);
    let directions = [Direction::Up, Direction::Down];
    let programs: Vec<Counting<'_>> = directions
        .into_iter()
        .flat_map(|direction| HOOKS.map(|hook| (direction, hook)))
        .map(|(direction, hook)| Counting {
            what: format!("{direction:?} {hook:?}"),
            program: meter.stage(direction).program(hook).unwrap(),
            direction: Box::new(move |_| direction),
        })
        .collect();
    compare(&mut meter, &oracle, keys, &programs, seed);
}

/// A mirror port, where each frame says by itself which way it goes.
fn mirror_equals_the_oracle(up: &MirrorUp, keys: &[(Key, u32)], services: &Services, seed: u64) {
    if !permitted() {
        return;
    }
    let mut meter = Meter::create(&spec(services, false)).unwrap();
    let oracle = Oracle::new(services, keys, false);
    let stage = meter.mirror_stage(up, &NoNames).unwrap();
    let programs = HOOKS.map(|hook| Counting {
        what: format!("{up:?} {hook:?}"),
        program: stage.program(hook).unwrap(),
        direction: Box::new(|frame| oracle.direction(up, frame)),
    });
    compare(&mut meter, &oracle, keys, &programs, seed);
}

/// Random frames; programs in pairs, of XDP and tc.
fn compare(
    meter: &mut Meter,
    oracle: &Oracle<'_>,
    keys: &[(Key, u32)],
    programs: &[Counting<'_>],
    seed: u64,
) {
    for (key, row) in keys {
        meter.insert(*key, *row).unwrap();
    }
    let mut rng = Rng::new(seed);
    for batch in 0..8 {
        let frames: Vec<Vec<u8>> = (0..BATCH).map(|_| frames::frame(&mut rng)).collect();
        let mut expected = Counts::new();
        let mut runs = Vec::new();
        for frame in frames.iter().filter(|frame| frame.len() >= FRAME_BYTES_MIN) {
            let number = rng.below(programs.len());
            let mut chosen = &programs[number];
            let tried = chosen.program.test_run(&TestRun::new(frame), &mut []);
            // The kernel refuses to make an skb of some cut packets: XDP then, which is before it
            // in the list.
            if tried.is_err() {
                chosen = &programs[number - 1];
                run(&chosen.program, frame);
            }
            oracle.count(&mut expected, frame, (chosen.direction)(frame));
            runs.push((chosen, frame));
        }
        let cut = meter.cut().unwrap();
        let found = counts(&cut);
        assert_adds_up(&cut);
        meter.settle();
        if found == expected {
            continue;
        }
        for (chosen, frame) in runs {
            let mut expected = Counts::new();
            oracle.count(&mut expected, frame, (chosen.direction)(frame));
            run(&chosen.program, frame);
            let found = counts(&meter.cut().unwrap());
            meter.settle();
            assert_eq!(found, expected, "{} {frame:02x?}", chosen.what);
        }
        panic!("batch {batch} differs as a whole: {found:?} {expected:?}");
    }
}

#[test]
fn sessions_tell_the_direction_at_a_mirror_port() {
    let mut keys = frames::address_keys();
    keys.extend(frames::link_keys());
    mirror_equals_the_oracle(&MirrorUp::Sessions, &keys, &services(), 11);
}

/// The verifier follows the look-ups of both sides once, not for each filter.
#[test]
fn sessions_tell_the_direction_beside_many_filters() {
    if !permitted() {
        return;
    }
    let filters = (0..24).map(|number| Service {
        name: format!("net-{number}"),
        filter: Some(format!(
            "net 10.{number}.0.0/16 or ip6 net 2001:db8:{number}::/48"
        )),
        ..Service::default()
    });
    let services = Services::new(filters.collect());
    let meter = Meter::create(&spec(&services, false)).unwrap();
    let stage = meter.mirror_stage(&MirrorUp::Sessions, &NoNames).unwrap();
    for hook in HOOKS {
        stage.program(hook).unwrap();
    }
}

#[test]
fn prefixes_tell_the_direction_at_a_mirror_port() {
    let prefixes = ["10.0.0.0/14", "2001:db8::/47", "10.3.0.7", "2001:db8:2::3"];
    let prefixes = prefixes.map(|text| text.parse().unwrap()).to_vec();
    let (up, keys) = (MirrorUp::Prefixes(prefixes), frames::address_keys());
    mirror_equals_the_oracle(&up, &keys, &services(), 12);
}

#[test]
fn a_filter_tells_the_direction_at_a_mirror_port() {
    let text = "src net 10.1.0.0/16 or udp or vlan 2";
    let (up, keys) = (MirrorUp::Filter(text.into()), frames::address_keys());
    mirror_equals_the_oracle(&up, &keys, &services(), 13);
}

#[test]
fn every_frame_is_counted_as_the_oracle_counts_it() {
    equals_the_oracle(false, &frames::address_keys(), 1);
}

#[test]
fn bytes_of_ip_packets_are_those_of_the_oracle() {
    equals_the_oracle(true, &frames::address_keys(), 2);
}

/// Services without filters, of which most frames are counted without passing by the stack.
fn by_ports_alone() -> Services {
    let services = services().list().to_vec();
    Services::new(
        services
            .into_iter()
            .filter(|it| it.filter.is_none())
            .collect(),
    )
}

#[test]
fn the_short_way_counts_as_the_oracle_does() {
    let mut keys = frames::all_v4_keys();
    equals_the_oracle_of(&by_ports_alone(), false, &keys, 5);
    equals_the_oracle_of(&by_ports_alone(), true, &keys, 6);
    keys.extend(frames::link_keys());
    equals_the_oracle_of(&by_ports_alone(), false, &keys, 7);
}

#[test]
fn keys_of_the_link_come_before_addresses() {
    let mut keys = frames::address_keys();
    keys.extend(frames::link_keys());
    equals_the_oracle(false, &keys, 3);
}

#[test]
fn without_any_key_all_is_unknown() {
    equals_the_oracle(false, &[], 4);
}
