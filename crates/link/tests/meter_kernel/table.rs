//! The table of keys, periods, and what stays when the process ends.

use super::policing::policy;
use super::{assert_adds_up, counts, permitted, run, services, spec};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use weir_link::bpf::{Hook, Map, PinFolder, Program, TestRun};
use weir_link::xdp::{Cut, CutOwner, Meter, MeterError, MeterSpec, ProcessCounter};
use weir_meter::services::{Service, Services};
use weir_meter::{Direction, Key};
use weir_wire::Protocol;

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + number)
}

/// A UDP packet of 60 bytes from an address.
fn from(src: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..30].copy_from_slice(&src.octets());
    frame
}

fn up(meter: &Meter) -> Program {
    meter.stage(Direction::Up).program(Hook::XdpNative).unwrap()
}

/// Packets by owner in the period that ends now.
fn packets(meter: &mut Meter) -> Vec<(CutOwner, u64)> {
    let cut = meter.cut().unwrap();
    assert_adds_up(&cut);
    let found = cut.cells().map(|cell| (cell.owner, cell.packets)).collect();
    meter.settle();
    found
}

#[test]
fn a_key_passes_to_another_row_and_ends() {
    if !permitted() {
        return;
    }
    let services = services();
    let mut meter = Meter::create(&spec(&services, false)).unwrap();
    let program = up(&meter);
    let (key, frame) = (Key::Ipv4(address(7)), from(address(7)));
    let unknown = CutOwner::Unknown(key);
    run(&program, &frame);
    assert_eq!(meter.insert(key, 3).unwrap(), None);
    run(&program, &frame);
    assert_eq!(meter.insert(key, 4).unwrap(), Some(3));
    run(&program, &frame);
    run(&program, &frame);
    assert_eq!(meter.row_of(key).unwrap(), Some(4));
    assert_eq!(meter.keys().unwrap(), [(key, 4)]);
    assert_eq!(meter.remove(key).unwrap(), Some(4));
    assert_eq!(meter.remove(key).unwrap(), None);
    run(&program, &frame);
    let found = packets(&mut meter);
    let expected = [(CutOwner::Row(3), 1), (CutOwner::Row(4), 2), (unknown, 2)];
    assert_eq!(found, expected);
    meter.insert(key, 99).unwrap();
    run(&program, &frame);
    assert_eq!(packets(&mut meter), [(CutOwner::Row(99), 1)]);
    let error = meter.insert(key, 100).unwrap_err();
    assert!(matches!(error, MeterError::NoSuchRow { row: 100, .. }));
}

#[test]
fn a_slot_is_used_again_after_the_next_cut() {
    if !permitted() {
        return;
    }
    let services = services();
    let mut meter = Meter::create(&spec(&services, false)).unwrap();
    let program = up(&meter);
    // Four times as many keys as the table has slots, one after another.
    for round in 0..16 {
        let keys: Vec<u32> = (0..128).map(|number| round * 128 + number).collect();
        for number in &keys {
            meter.insert(Key::Ipv4(address(*number)), 1).unwrap();
        }
        keys.iter()
            .for_each(|number| _ = run(&program, &from(address(*number))));
        assert_eq!(packets(&mut meter), [(CutOwner::Row(1), 128)]);
        for number in &keys {
            assert_eq!(meter.remove(Key::Ipv4(address(*number))).unwrap(), Some(1));
        }
    }
    assert_eq!(meter.keys().unwrap(), []);
}

#[test]
fn keys_without_a_slot_are_found_too() {
    if !permitted() {
        return;
    }
    let services = services();
    let small = MeterSpec {
        subscribers: 300,
        keys: 64,
        ..spec(&services, false)
    };
    let mut meter = Meter::create(&small).unwrap();
    let program = up(&meter);
    // More than twice what the table was made for, so that most of it is full.
    for number in 0..300 {
        meter.insert(Key::Ipv4(address(number)), number).unwrap();
    }
    (0..300).for_each(|number| _ = run(&program, &from(address(number))));
    let expected: Vec<_> = (0..300).map(|number| (CutOwner::Row(number), 1)).collect();
    assert_eq!(packets(&mut meter), expected);
    assert_eq!(meter.keys().unwrap().len(), 300);
    for number in 0..300 {
        let key = Key::Ipv4(address(number));
        assert_eq!(meter.insert(key, 0).unwrap(), Some(number));
        assert_eq!(meter.row_of(key).unwrap(), Some(0));
    }
    (0..300).for_each(|number| _ = run(&program, &from(address(number))));
    assert_eq!(packets(&mut meter), [(CutOwner::Row(0), 300)]);
    for number in 0..300 {
        assert_eq!(meter.remove(Key::Ipv4(address(number))).unwrap(), Some(0));
    }
    run(&program, &from(address(5)));
    let unknown = CutOwner::Unknown(Key::Ipv4(address(5)));
    assert_eq!(packets(&mut meter), [(unknown, 1)]);
}

#[test]
fn the_address_of_zeros_is_a_key() {
    if !permitted() {
        return;
    }
    let services = services();
    let mut meter = Meter::create(&spec(&services, false)).unwrap();
    let program = up(&meter);
    let (zeros, frame) = (Ipv4Addr::UNSPECIFIED, from(Ipv4Addr::UNSPECIFIED));
    run(&program, &frame);
    let unknown = CutOwner::Unknown(Key::Ipv4(zeros));
    assert_eq!(packets(&mut meter), [(unknown, 1)]);
    meter.insert(Key::Ipv4(address(1)), 2).unwrap();
    meter.insert(Key::Ipv4(zeros), 3).unwrap();
    run(&program, &frame);
    assert_eq!(packets(&mut meter), [(CutOwner::Row(3), 1)]);
    assert_eq!(meter.remove(Key::Ipv4(zeros)).unwrap(), Some(3));
    assert_eq!(meter.keys().unwrap(), [(Key::Ipv4(address(1)), 2)]);
}

/// More packets than half of what a cell has room for, twice; and policed ones.
#[test]
fn a_cell_that_is_half_full_loses_nothing() {
    if !permitted() {
        return;
    }
    const FRAMES: u32 = (1 << 25) + 1000;
    let services = services();
    for polices in [false, true] {
        let spec = MeterSpec {
            polices,
            ..spec(&services, false)
        };
        let mut meter = Meter::create(&spec).unwrap();
        meter.insert(Key::Ipv4(address(1)), 5).unwrap();
        if polices {
            let policy = policy([None; 2], Some(60));
            meter.set_policy(5, Some(&policy), true).unwrap();
        }
        let program = up(&meter);
        let frame = from(address(1));
        let mut many = TestRun::new(&frame);
        many.repeat = FRAMES;
        program.test_run(&many, &mut []).unwrap();
        run(&program, &from(address(2)));
        let cut = meter.cut().unwrap();
        assert_adds_up(&cut);
        let cells: Vec<_> = cut.cells().collect();
        assert_eq!(cells[0].owner, CutOwner::Row(5));
        assert_eq!(cells[0].packets, u64::from(FRAMES));
        assert_eq!(cells[0].bytes, 60 * u64::from(FRAMES));
        if polices {
            assert_eq!(cells[0].policed[0], u64::from(FRAMES) - 1);
            assert_eq!(cut.policed().packets[0], u64::from(FRAMES) - 1);
        }
        // In the next period as well, while the places of this one are in use.
        run(&program, &frame);
        meter.settle();
        program.test_run(&many, &mut []).unwrap();
        let found = packets(&mut meter);
        assert_eq!(found, [(CutOwner::Row(5), u64::from(FRAMES) + 1)]);
        for _ in 0..2 {
            assert_eq!(packets(&mut meter), []);
        }
    }
}

/// As many bytes as make a cell half full, 2^37, in each cell that there is, and in the other bank before
/// the first one is settled: some cells find no place for what is taken out of them.
#[test]
fn bytes_of_cells_without_a_place_are_overflow() {
    if !permitted() {
        return;
    }
    const CAME: u64 = u32::MAX as u64;
    const FRAMES: u64 = (1 << 37) / CAME + 1;
    const PORTS: [u16; 4] = [1, 2, 3, 4];
    let services = PORTS.map(|port| Service {
        name: format!("port-{port}"),
        ports: vec![(Protocol::UDP, port..=port)],
        ..Service::default()
    });
    let services = Services::new(services.to_vec());
    // 128 cells, and as many places in one page.
    let small = MeterSpec {
        subscribers: 3,
        unknown: 0,
        ..spec(&services, false)
    };
    let mut meter = Meter::create(&small).unwrap();
    for row in 0..3 {
        meter.insert(Key::Ipv4(address(row)), row).unwrap();
    }
    let mut frames = Vec::new();
    for owner in 0..4 {
        let mut frame = from(address(owner));
        frame.copy_within(26..30, 30);
        for port in PORTS.into_iter().chain([9]) {
            frame[36..38].copy_from_slice(&port.to_be_bytes());
            frames.push(frame.clone());
        }
        // A fragment, and a packet without ports.
        for (at, byte) in [(21, 1), (23, 47)] {
            let mut other = frame.clone();
            other[at] = byte;
            frames.push(other);
        }
    }
    let directions = [Direction::Up, Direction::Down];
    let counters = directions.map(|it| ProcessCounter::new(&meter.translated_stage(it)).unwrap());
    let count_all = || {
        for counter in &counters {
            for frame in &frames {
                (0..FRAMES).for_each(|_| counter.count(frame, CAME as usize).unwrap());
            }
        }
    };
    let overflow = |cut: &Cut<'_>| {
        assert_adds_up(cut);
        let each = FRAMES * frames.len() as u64;
        assert_eq!(cut.totals().packets, [each; 2]);
        assert_eq!(cut.totals().bytes, [each * CAME; 2]);
        let cells = cut.cells();
        let overflow = cells.filter(|cell| cell.owner == CutOwner::Overflow);
        overflow.map(|cell| cell.packets).sum::<u64>()
    };
    let own = 2 * FRAMES * frames.len() as u64 / 4;
    count_all();
    let cut = meter.cut().unwrap();
    assert_eq!(overflow(&cut), own);
    count_all();
    meter.settle();
    assert!(overflow(&meter.cut().unwrap()) > own);
    meter.settle();
    assert_eq!(packets(&mut meter), []);
}

#[test]
fn prefix_lengths_come_and_go_up_to_a_limit() {
    if !permitted() {
        return;
    }
    let services = services();
    let mut meter = Meter::create(&spec(&services, false)).unwrap();
    let program = up(&meter);
    let frame = from(Ipv4Addr::new(10, 0, 0, 0));
    let key = |len| Key::Prefix(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), len);
    for len in 8..16 {
        meter.insert(key(len), len.into()).unwrap();
    }
    assert!(matches!(
        meter.insert(key(20), 1),
        Err(MeterError::Lengths { .. })
    ));
    for len in (8..16).rev() {
        run(&program, &frame);
        assert_eq!(packets(&mut meter), [(CutOwner::Row(len.into()), 1)]);
        meter.remove(key(len)).unwrap();
    }
    meter
        .insert(Key::Prefix(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), 20)
        .unwrap();
    meter.insert(key(20), 21).unwrap();
    run(&program, &frame);
    run(&program, &from(Ipv4Addr::new(192, 0, 2, 1)));
    let expected = [(CutOwner::Row(20), 1), (CutOwner::Row(21), 1)];
    assert_eq!(packets(&mut meter), expected);
}

#[test]
fn unknown_addresses_are_bounded_and_make_room_again() {
    if !permitted() {
        return;
    }
    let services = services();
    let small = MeterSpec {
        unknown: 128,
        ..spec(&services, false)
    };
    let mut meter = Meter::create(&small).unwrap();
    let program = up(&meter);
    let flood = |meter: &mut Meter, first: u32| {
        (first..first + 1000).for_each(|number| _ = run(&program, &from(address(number))));
        let found = packets(meter);
        let overflow = found
            .iter()
            .filter(|(owner, _)| *owner == CutOwner::Overflow);
        let overflow: u64 = overflow.map(|(_, packets)| packets).sum();
        let apart = found.len() as u64 - 1;
        assert_eq!(overflow + apart, 1000);
        apart
    };
    let first = flood(&mut meter, 0);
    assert!((100..=128).contains(&first), "{first}");
    assert_eq!(flood(&mut meter, 5000), 0, "all slots are taken");
    for _ in 0..4 {
        assert_eq!(packets(&mut meter), []);
    }
    let again = flood(&mut meter, 9000);
    assert!((100..=128).contains(&again), "{again}");
    let none = MeterSpec {
        unknown: 0,
        ..spec(&services, false)
    };
    let mut meter = Meter::create(&none).unwrap();
    run(&up(&meter), &from(address(1)));
    assert_eq!(packets(&mut meter), [(CutOwner::Overflow, 1)]);
}

#[test]
fn a_period_is_settled_before_the_next_ends() {
    if !permitted() {
        return;
    }
    let services = services();
    let mut meter = Meter::create(&spec(&services, false)).unwrap();
    let program = up(&meter);
    let frame = from(address(1));
    assert!(meter.pending().is_none());
    run(&program, &frame);
    for period in 0..5 {
        assert_eq!(meter.period(), period);
        let cut = meter.cut().unwrap();
        assert_eq!(cut.period(), period);
        let before = counts(&cut);
        let sum: u64 = before.values().map(|(packets, _)| packets).sum();
        assert_eq!(sum, period + 1);
        // The next period's are not of this one.
        (0..period + 2).for_each(|_| _ = run(&program, &frame));
        let pending = meter.pending().unwrap();
        assert_eq!((pending.period(), counts(&pending)), (period, before));
        let error = meter.cut().unwrap_err();
        assert!(matches!(error, MeterError::Unsettled { period: p } if p == period));
        meter.settle();
        assert!(meter.pending().is_none());
    }
}

/// A folder for pins that goes with the test.
pub(crate) struct Pins(pub(crate) PathBuf);

impl Pins {
    pub(crate) fn new(name: &str) -> (Pins, PinFolder) {
        let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        let folder = PinFolder::mount(&path).unwrap();
        (Pins(path), folder)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = PinFolder::unmount(&self.0);
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn counters_and_keys_outlive_the_process() {
    if !weir_lab::testenv::root() || !permitted() {
        return;
    }
    let services = services();
    let (_pins, folder) = Pins::new("meter-pins");
    let opened = Meter::open(&folder, &spec(&services, false)).unwrap();
    assert!(!opened.is_adopted && opened.previous.is_empty());
    let mut meter = opened.meter;
    let epoch = meter.boot_epoch();
    let program = up(&meter);
    let key = Key::Ipv4(address(1));
    meter.insert(key, 5).unwrap();
    meter
        .insert(Key::Prefix(Ipv4Addr::new(10, 9, 0, 0).into(), 16), 6)
        .unwrap();
    meter.set_tag(5, 12345);
    run(&program, &from(address(1)));
    let before = counts(&meter.cut().unwrap());
    run(&program, &from(address(1)));
    drop(meter);

    // As after a kill between a cut and its records.
    let opened = Meter::open(&folder, &spec(&services, false)).unwrap();
    assert!(opened.is_adopted);
    let mut meter = opened.meter;
    assert_eq!((meter.boot_epoch(), meter.tag(5)), (epoch, 12345));
    assert_eq!(meter.row_of(key).unwrap(), Some(5));
    let pending = meter.pending().unwrap();
    assert_eq!((pending.period(), counts(&pending)), (0, before));
    meter.settle();
    run(&program, &from(Ipv4Addr::new(10, 9, 1, 1)));
    let expected = [(CutOwner::Row(5), 1), (CutOwner::Row(6), 1)];
    assert_eq!(packets(&mut meter), expected);
    assert_eq!(meter.remove(key).unwrap(), Some(5));
    run(&program, &from(address(1)));
    drop(meter);

    // Other services: what was counted is read, and counting begins anew.
    let others = Services::new(Vec::new());
    let opened = Meter::open(&folder, &spec(&others, false)).unwrap();
    assert!(!opened.is_adopted);
    assert_eq!(opened.previous.len(), 1);
    let later = opened.meter.boot_epoch();
    assert_ne!(later, epoch);
    drop(opened);

    // The process died before it had read them, and the next one has the first services again.
    let opened = Meter::open(&folder, &spec(&services, false)).unwrap();
    assert!(!opened.is_adopted);
    let mut previous = opened.previous;
    let epochs: Vec<u64> = previous.iter().map(|it| it.meter.boot_epoch()).collect();
    assert_eq!(epochs, [epoch, later]);
    let expected = [(CutOwner::Unknown(key), 1)];
    assert_eq!(packets(&mut previous[0].meter), expected);
    assert_eq!(packets(&mut previous[1].meter), []);
    for previous in previous {
        Meter::forget(&folder, previous).unwrap();
    }
    let opened = Meter::open(&folder, &spec(&services, false)).unwrap();
    assert!(opened.is_adopted && opened.previous.is_empty());
    drop(opened);
    Meter::unpin(&folder).unwrap();
    assert!(
        !Meter::open(&folder, &spec(&others, false))
            .unwrap()
            .is_adopted
    );
}

/// Writes another version of the layout into the counters of a folder; returns the former one.
fn set_version(folder: &PinFolder, version: u64) -> u64 {
    let control = folder.get("meter-control").unwrap().unwrap();
    let memory = Map::from_fd(control).unwrap().map_memory(true).unwrap();
    memory.u64(0, 0).unwrap().swap(version, Ordering::SeqCst)
}

/// Nothing is changed: neither the counters of the other version, nor those beside.
#[test]
fn counters_of_another_layout_stay_as_they_are() {
    if !weir_lab::testenv::root() || !permitted() {
        return;
    }
    let (services, others) = (services(), Services::new(Vec::new()));
    let (_pins, folder) = Pins::new("meter-layouts");
    let meter = Meter::open(&folder, &spec(&services, false)).unwrap().meter;
    let (epoch, program) = (meter.boot_epoch(), up(&meter));
    run(&program, &from(address(1)));
    drop(meter);
    let assert_refused = |version| {
        let pins = folder.list().unwrap();
        for services in [&services, &others] {
            let error = Meter::open(&folder, &spec(services, false)).unwrap_err();
            let MeterError::OtherVersion { found, known } = error else {
                panic!("{error}");
            };
            assert_eq!(found, version);
            assert!(!known.contains(&found));
        }
        assert_eq!(folder.list().unwrap(), pins);
    };
    // A later layout; an earlier one, which has fewer maps; one of a version that said none.
    let version = set_version(&folder, 99);
    assert_refused(99);
    set_version(&folder, version - 1);
    let v4 = Map::from_fd(folder.get("meter-v4").unwrap().unwrap()).unwrap();
    folder.unpin("meter-v4").unwrap();
    assert_refused(version - 1);
    set_version(&folder, 0);
    assert_refused(0);
    folder.pin("meter-v4", &v4).unwrap();
    set_version(&folder, version);
    // Its program has counted all the while.
    run(&program, &from(address(1)));
    let opened = Meter::open(&folder, &spec(&services, false)).unwrap();
    assert!(opened.is_adopted);
    let mut meter = opened.meter;
    assert_eq!(meter.boot_epoch(), epoch);
    let unknown = CutOwner::Unknown(Key::Ipv4(address(1)));
    assert_eq!(packets(&mut meter), [(unknown, 2)]);
    run(&program, &from(address(1)));
    drop(meter);

    // The same of counters that were replaced, and not read yet.
    drop(Meter::open(&folder, &spec(&others, false)).unwrap());
    let earlier = folder.existing("previous-0").unwrap().unwrap();
    set_version(&earlier, 99);
    assert_refused(99);
    set_version(&earlier, version);
    let opened = Meter::open(&folder, &spec(&others, false)).unwrap();
    assert!(opened.is_adopted);
    let [mut previous] = <[_; 1]>::try_from(opened.previous).unwrap();
    assert_eq!(packets(&mut previous.meter), [(unknown, 1)]);
    Meter::forget(&folder, previous).unwrap();
    Meter::unpin(&folder).unwrap();
}
