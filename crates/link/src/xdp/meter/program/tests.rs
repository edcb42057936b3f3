//! Which frames go the short way: programs whose general way is a marker, in the kernel.

use super::super::{Meter, MeterSpec, MeterStage, MirrorUp};
use super::{At, Emit, emit_routines, emit_with};
use crate::bpf::{Hook, Load, Program, ProgramType, TestRun};
use crate::xdp::abi::XDP_DROP;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use weir_filter::backend::ebpf::{Asm, Insn, Limits, Reg};
use weir_filter::lang::expr::NoNames;
use weir_lab::testenv;
use weir_meter::config::MeasureConfig;
use weir_meter::policy::{Policy, PolicyAction, RateLimit};
use weir_meter::services::{Service, Services};
use weir_meter::{Direction, Key};

/// What a program returns that has counted the frame the short way, and one that has come to the
/// general way, and has not counted it.
const SHORT: u32 = 100;
const GENERAL: u32 = 101;

const ALICE: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);
const BOB: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 8);
const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];
/// The hooks, and a routine of a program at XDP.
const PLACES: [At; 3] = [At::Xdp, At::Tc, At::Routine];
/// Bytes of a frame.
const LEN: usize = 60;

fn spec(services: &Services) -> MeterSpec<'_> {
    MeterSpec {
        subscribers: 8,
        keys: 16,
        unknown: 128,
        services,
        names: &NoNames,
        counts_ip: false,
        polices: true,
        measures: &[],
        adopts: false,
    }
}

/// A meter with these sessions, from row 0 on.
fn meter(spec: &MeterSpec<'_>, keys: &[Key]) -> Meter {
    let mut meter = Meter::create(spec).unwrap();
    for (key, row) in keys.iter().zip(0..) {
        meter.insert(*key, row).unwrap();
    }
    meter
}

/// The program of a stage, whose general way is a marker.
fn marked(stage: &MeterStage, at: At) -> Program {
    let mut asm = Asm::new();
    asm.push(Insn::mov64(Reg::R2, LEN as i32));
    let general = |emit: &mut Emit<'_>, _: &_| {
        emit.push(&[Insn::mov32(Reg::R0, GENERAL as i32), Insn::exit()]);
        Ok(())
    };
    let routines = emit_with(&mut asm, &stage.spec, (at, 0), general).unwrap();
    asm.extend([Insn::mov32(Reg::R0, SHORT as i32), Insn::exit()]);
    emit_routines(&mut asm, &stage.spec, routines);
    let insns = asm.finish(&Limits::default()).unwrap();
    let maps: Vec<BorrowedFd<'_>> = stage.maps().collect();
    let (hook, program_type) = match at {
        At::Tc => (Hook::TcIngress, ProgramType::SchedCls),
        _ => (Hook::XdpNative, ProgramType::Xdp),
    };
    let load = Load {
        program_type,
        maps: &maps,
        ..Load::at(hook)
    };
    Program::load(&insns, &load).unwrap()
}

fn run(program: &Program, frame: &[u8]) -> u32 {
    let ran = program.test_run(&TestRun::new(frame), &mut []);
    ran.unwrap_or_else(|error| panic!("{error}: {frame:02x?}"))
        .returned
}

/// A UDP packet of a session's address, and of one beyond.
fn plain(direction: Direction, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0; LEN];
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    let other = [192, 0, 2, 1];
    let [src, dst] = match direction {
        Direction::Up => [address.octets(), other],
        Direction::Down => [other, address.octets()],
    };
    frame[26..30].copy_from_slice(&src);
    frame[30..34].copy_from_slice(&dst);
    frame[34..38].copy_from_slice(&[4, 0, 0, 53]);
    frame
}

fn changed(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

#[test]
fn plain_frames_of_sessions_go_the_short_way_and_no_others() {
    if !testenv::root() {
        return;
    }
    let services = Services::new(vec![Service {
        name: "dns".into(),
        ports: vec![(weir_wire::Protocol::UDP, 53..=53)],
        ..Service::default()
    }]);
    for counts_ip in [false, true] {
        let spec = MeterSpec {
            counts_ip,
            ..spec(&services)
        };
        let network = Key::prefix(Ipv4Addr::new(10, 8, 0, 0).into(), 16).unwrap();
        let mut meter = meter(&spec, &[Key::Ipv4(ALICE), network]);
        let mut counted = [0; 2];
        for (direction, at) in DIRECTIONS
            .into_iter()
            .flat_map(|it| PLACES.map(|at| (it, at)))
        {
            let program = marked(&meter.stage(direction), at);
            let udp = plain(direction, ALICE);
            let short = [
                ("UDP", udp.clone()),
                ("TCP", changed(&udp, 23, &[6])),
                ("don't fragment", changed(&udp, 20, &[0x40])),
                ("a code point", changed(&udp, 15, &[46 << 2])),
                ("padding", changed(&udp, 16, &[0, 28])),
                ("a service by port", changed(&udp, 34, &[0, 53])),
            ];
            for (what, frame) in &short {
                assert_eq!(run(&program, frame), SHORT, "{what} {direction:?} {at:?}");
            }
            counted[direction as usize] += short.len() as u64;
            let tag = [&udp[..12], &[0x81, 0, 0, 7], &udp[12..56]].concat();
            let general = [
                ("of no session", plain(direction, BOB)),
                ("of a prefix", plain(direction, Ipv4Addr::new(10, 8, 0, 1))),
                ("a tag", tag),
                ("ARP", changed(&udp, 12, &[8, 6])),
                ("options", changed(&udp, 14, &[0x46])),
                ("first fragment", changed(&udp, 20, &[0x20])),
                ("later fragment", changed(&udp, 21, &[1])),
                ("ICMP", changed(&udp, 23, &[1])),
                ("longer than the frame", changed(&udp, 16, &[0, 47])),
                ("shorter than its headers", changed(&udp, 16, &[0, 23])),
            ];
            for (what, frame) in &general {
                assert_eq!(run(&program, frame), GENERAL, "{what} {direction:?} {at:?}");
            }
        }
        // The short way has counted, in cells and totals.
        let cut = meter.cut().unwrap();
        assert_eq!(cut.totals().packets, counted);
        let cells: u64 = cut.cells().map(|cell| cell.packets).sum();
        assert_eq!(cells, counted[0] + counted[1]);
    }
}

#[test]
fn policed_frames_go_the_short_way() {
    if !testenv::root() {
        return;
    }
    let services = Services::new(Vec::new());
    let mut meter = meter(&spec(&services), &[Key::Ipv4(ALICE)]);
    let rate = |burst_bytes| RateLimit {
        bits_per_second: 8_000,
        burst_bytes,
    };
    let policy = |burst_bytes, over| Policy {
        name: "test".to_owned(),
        rates: [Some(rate(burst_bytes)); 2],
        over,
        quota_bytes: None,
        spent: PolicyAction::Drop,
        spent_request: None,
    };
    let mut expected = [[0; 2]; 2];
    for (direction, at) in DIRECTIONS
        .into_iter()
        .flat_map(|it| PLACES.map(|at| (it, at)))
    {
        let program = marked(&meter.stage(direction), at);
        let frame = plain(direction, ALICE);
        let dropped = match at {
            At::Tc => 2,
            _ => XDP_DROP as u32,
        };
        // Within the rate; over it, whatever is done then.
        for (burst, over, outcome) in [
            (1 << 20, PolicyAction::Drop, SHORT),
            (1, PolicyAction::Drop, dropped),
            (1, PolicyAction::Mark(46), SHORT),
            (1, PolicyAction::Portal, dropped),
        ] {
            let policy = policy(burst, over);
            meter.set_policy(0, Some(&policy), true).unwrap();
            assert_eq!(
                run(&program, &frame),
                outcome,
                "{over:?} {direction:?} {at:?}"
            );
            let [packets, policed] = &mut expected[direction as usize];
            (*packets, *policed) = (*packets + 1, *policed + u64::from(burst == 1));
        }
    }
    let cut = meter.cut().unwrap();
    let [totals, policed] = [cut.totals().packets, cut.policed().packets];
    assert_eq!(
        DIRECTIONS.map(|it| [totals[it as usize], policed[it as usize]]),
        expected
    );
}

/// What the short way does not do: keys of the link, and no IPv4 address among the keys; filters and
/// measures; frames of both directions.
#[test]
fn meters_of_other_kinds_have_the_general_way_alone() {
    if !testenv::root() {
        return;
    }
    let frame = plain(Direction::Up, ALICE);
    let assert_general = |stage: &MeterStage, what: &str| {
        for at in [At::Xdp, At::Tc] {
            assert_eq!(run(&marked(stage, at), &frame), GENERAL, "{what} {at:?}");
        }
    };
    let (none, alice) = (Services::new(Vec::new()), Key::Ipv4(ALICE));
    for (keys, what) in [
        (vec![alice, Key::Mac([2; 6])], "a MAC address"),
        (vec![Key::Vlan(2, None)], "no IPv4 address"),
    ] {
        let meter = meter(&spec(&none), &keys);
        assert_general(&meter.stage(Direction::Up), what);
    }
    let plain_spec = MeterSpec {
        polices: false,
        ..spec(&none)
    };
    let filter = Service {
        name: "onnet".into(),
        filter: Some("net 10.2.0.0/16".into()),
        ..Service::default()
    };
    let services = Services::new(vec![filter]);
    let measures = [MeasureConfig::Gaps];
    for (spec, what) in [
        (
            MeterSpec {
                services: &services,
                ..plain_spec
            },
            "a filter",
        ),
        (
            MeterSpec {
                measures: &measures,
                ..plain_spec
            },
            "a measure",
        ),
    ] {
        let meter = meter(&spec, &[alice]);
        assert_general(&meter.stage(Direction::Up), what);
    }
    let meter = meter(&plain_spec, &[alice]);
    assert_eq!(
        run(&marked(&meter.stage(Direction::Up), At::Xdp), &frame),
        SHORT
    );
    let mirror = meter.mirror_stage(&MirrorUp::Sessions, &NoNames).unwrap();
    assert_general(&mirror, "both directions");
}
