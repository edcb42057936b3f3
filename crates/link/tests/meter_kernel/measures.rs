//! Measures: the kernel counts what the engine counts of captures.

use super::{BATCH, HOOKS, assert_adds_up, frames, permitted, run, services, spec};
use std::collections::BTreeMap;
use std::time::Instant;
use weir_filter::lang::expr::NoNames;
use weir_lab::rng::Rng;
use weir_link::bpf::{FRAME_BYTES_MIN, Hook, Program, TestRun};
use weir_link::xdp::{Cut, CutOwner, Meter, MeterSpec, MirrorUp};
use weir_meter::config::MeasureConfig;
use weir_meter::engine::{Engine, Frame, Settings, Unit};
use weir_meter::measure::Gaps;
use weir_meter::period::Moment;
use weir_meter::services::{Service, Services};
use weir_meter::{Direction, Flags, Key, OwnerKind, SessionInfo};
use weir_wire::LinkType;

/// Longer than any test.
const IDLE_NS: u64 = 3_600_000_000_000;

fn accepted(name: &str, filter: &str) -> MeasureConfig {
    MeasureConfig::Accepted {
        name: name.into(),
        filter: filter.into(),
    }
}

fn measures() -> Vec<MeasureConfig> {
    vec![
        accepted("long", "greater 100"),
        MeasureConfig::Flows {
            max: 1 << 16,
            idle_ns: IDLE_NS,
        },
        accepted("dns", "udp port 53"),
        accepted("six", "ip6 or vlan 7"),
    ]
}

fn with<'a>(services: &'a Services, measures: &'a [MeasureConfig]) -> MeterSpec<'a> {
    MeterSpec {
        measures,
        ..spec(services, false)
    }
}

/// Columns of measures by session (`None`: unattributed), class and direction.
type Sums = BTreeMap<(Option<u32>, u16, u8), Vec<u64>>;

fn add(sums: &mut Sums, key: (Option<u32>, u16, u8), more: &[u64]) {
    let sum = sums.entry(key).or_insert_with(|| vec![0; more.len()]);
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

fn of_kernel(cut: &Cut<'_>) -> Sums {
    let mut sums = Sums::new();
    for cell in cut.cells() {
        assert!(!cell.at_least);
        let row = match cell.owner {
            CutOwner::Row(row) => Some(row),
            _ => None,
        };
        let counts = [&[cell.packets, cell.bytes], &cell.more[..]].concat();
        add(&mut sums, (row, cell.class, cell.direction as u8), &counts);
    }
    sums
}

fn engine(services: &Services, measures: &[MeasureConfig], keys: &[(Key, u32)]) -> Engine {
    let settings = Settings {
        unit: Unit::Wire,
        services: services.clone(),
        measures: measures.iter().map(|it| it.measurement(7)).collect(),
        keys: weir_meter::KeyKind::ALL.to_vec(),
        ..Settings::default()
    };
    let mut engine = Engine::new(settings, Moment::default());
    let mut rows: BTreeMap<u32, Vec<Key>> = BTreeMap::new();
    for (key, row) in keys {
        rows.entry(*row).or_default().push(*key);
    }
    for (row, keys) in rows {
        let info = SessionInfo {
            id: row.to_string(),
            subscriber: row.to_string(),
            keys,
            ..SessionInfo::default()
        };
        engine.up(&info, 0, 0).unwrap();
    }
    engine
}

fn of_engine(engine: &mut Engine) -> Sums {
    let mut sums = Sums::new();
    engine.cut(Moment::default(), 0, None, &mut |chunk| {
        for record in &chunk.records {
            let owner = &chunk.owners[record.owner as usize];
            assert_eq!(record.flags, Flags::default());
            let row = (owner.kind == OwnerKind::Session).then(|| owner.session.parse().unwrap());
            add(
                &mut sums,
                (row, record.service, record.direction as u8),
                &record.counts,
            );
        }
    });
    sums
}

/// A program that counts, and which way a frame goes.
type Counting = (Program, Box<dyn Fn(&[u8]) -> Direction>);

fn equal_the_engine(programs: impl Fn(&Meter) -> Vec<Counting>, seed: u64) {
    if !permitted() {
        return;
    }
    let (services, measures) = (services(), measures());
    let mut meter = Meter::create(&with(&services, &measures)).unwrap();
    let mut keys = frames::address_keys();
    keys.extend(frames::link_keys());
    let programs = programs(&meter);
    for (key, row) in &keys {
        meter.insert(*key, *row).unwrap();
    }
    let mut engine = engine(&services, &measures, &keys);
    let (link, refused) = engine.prepare(LinkType::EN10MB, &NoNames);
    assert!(refused.is_empty());
    let mut rng = Rng::new(seed);
    for batch in 0..4 {
        for _ in 0..BATCH {
            let frame = frames::frame(&mut rng);
            if frame.len() < FRAME_BYTES_MIN {
                continue;
            }
            let number = rng.below(programs.len());
            let mut chosen = &programs[number];
            // The kernel refuses to make an skb of some cut packets: XDP then.
            if chosen.0.test_run(&TestRun::new(&frame), &mut []).is_err() {
                chosen = &programs[number - 1];
                run(&chosen.0, &frame);
            }
            engine.count(&Frame {
                bytes: &frame,
                wire_len: frame.len() as u32,
                link,
                direction: Some(chosen.1(&frame)),
                now_ns: 0,
            });
        }
        let cut = meter.cut().unwrap();
        assert_adds_up(&cut);
        let found = of_kernel(&cut);
        meter.settle();
        let expected = of_engine(&mut engine);
        let flows: u64 = expected.values().map(|counts| counts[3]).sum();
        assert!(flows > 0, "batch {batch} has flows");
        assert_eq!(found, expected, "batch {batch}");
    }
}

#[test]
fn columns_equal_those_of_the_engine() {
    equal_the_engine(
        |meter| {
            let directions = [Direction::Up, Direction::Down].into_iter();
            let both = directions.flat_map(|direction| HOOKS.map(|hook| (direction, hook)));
            both.map(|(direction, hook)| -> Counting {
                let program = meter.stage(direction).program(hook).unwrap();
                (program, Box::new(move |_| direction))
            })
            .collect()
        },
        21,
    );
}

#[test]
fn at_a_mirror_port_too() {
    let up = MirrorUp::Filter("udp or vlan 2".into());
    equal_the_engine(
        |meter| {
            let stage = meter.mirror_stage(&up, &NoNames).unwrap();
            let program =
                weir_meter::services::compile("udp or vlan 2", LinkType::EN10MB, &NoNames);
            let program = program.unwrap();
            HOOKS
                .map(|hook| -> Counting {
                    let filter = program.clone();
                    let way = move |frame: &[u8]| {
                        let len = frame.len() as u32;
                        match weir_filter::backend::interp::run(&filter, frame, len) {
                            0 => Direction::Down,
                            _ => Direction::Up,
                        }
                    };
                    (stage.program(hook).unwrap(), Box::new(way))
                })
                .into()
        },
        22,
    );
}

/// A frame of UDP from 10.1.0.1, of this source port.
fn udp(src_port: u16) -> Vec<u8> {
    let mut frame = vec![0; 64];
    (frame[12], frame[14], frame[22], frame[23]) = (8, 0x45, 64, 17);
    frame[16..18].copy_from_slice(&50_u16.to_be_bytes());
    frame[26..34].copy_from_slice(&[10, 1, 0, 1, 10, 8, 0, 1]);
    frame[34..36].copy_from_slice(&src_port.to_be_bytes());
    frame
}

/// The sums of the measures' columns, and whether a flow found no room.
fn sums(meter: &mut Meter) -> (Vec<u64>, bool) {
    let cut = meter.cut().unwrap();
    let mut all = vec![0; 64];
    let mut at_least = false;
    for cell in cut.cells() {
        all.iter_mut()
            .zip(&cell.more)
            .for_each(|(sum, more)| *sum += more);
        at_least |= cell.at_least;
    }
    meter.settle();
    (all, at_least)
}

#[test]
fn flows_beyond_the_table_are_a_lower_bound_until_others_have_ended() {
    if !permitted() {
        return;
    }
    let services = services();
    let measures = [MeasureConfig::Flows {
        max: 64,
        idle_ns: IDLE_NS,
    }];
    let mut meter = Meter::create(&with(&services, &measures)).unwrap();
    let program = meter.stage(Direction::Up).program(Hook::XdpNative).unwrap();
    let send = |ports: std::ops::Range<u16>| {
        for port in ports {
            run(&program, &udp(port));
        }
    };
    send(0..32);
    send(0..32);
    assert_eq!((sums(&mut meter).0[0], meter.period()), (32, 1));
    // Flows go on from one period to the next, and are counted where they began.
    send(0..32);
    assert_eq!(sums(&mut meter).0[0], 0);
    send(0..1000);
    let (counts, at_least) = sums(&mut meter);
    assert!(at_least && (32..=96).contains(&counts[0]), "{counts:?}");
    // The mark is of its period alone.
    send(0..4);
    assert!(!sums(&mut meter).1);
    let banks = meter.banks();
    banks.end_idle_flows(IDLE_NS).unwrap();
    send(0..16);
    assert_eq!(sums(&mut meter).0[0], 0, "none is idle yet");
    banks.end_idle_flows(u64::MAX).unwrap();
    send(2000..2032);
    assert_eq!(sums(&mut meter), (sums_of(32), false));
}

fn sums_of(first: u64) -> Vec<u64> {
    let mut sums = vec![0; 64];
    sums[0] = first;
    sums
}

#[test]
fn times_add_up() {
    if !permitted() {
        return;
    }
    let services = services();
    let measures = [
        MeasureConfig::Active { slot_ms: 5 },
        MeasureConfig::Gaps,
        accepted("all", "greater 0"),
    ];
    let mut meter = Meter::create(&with(&services, &measures)).unwrap();
    let program = meter.stage(Direction::Up).program(Hook::XdpNative).unwrap();
    for packets in [1, 40] {
        let began = Instant::now();
        for number in 0..packets {
            run(&program, &udp(7));
            if number % 8 == 7 {
                std::thread::sleep(std::time::Duration::from_millis(12));
            }
        }
        let took = began.elapsed().as_millis() as u64;
        let (counts, _) = sums(&mut meter);
        let active = counts[0];
        assert!(active.is_multiple_of(5) && active >= 5, "{active}");
        assert!(active <= took + 10, "{active} in {took} ms");
        let gaps = &counts[1..=Gaps::BUCKETS];
        assert_eq!(gaps.iter().sum::<u64>(), packets - 1, "{gaps:?}");
        assert_eq!(counts[1 + Gaps::BUCKETS], packets);
        // A pause of 12 ms is at least in the bucket from 8,192 µs on.
        let long: u64 = gaps.iter().skip(Gaps::bucket(12_000_000)).sum();
        assert!(long >= (packets - 1) / 8, "{gaps:?}");
    }
}

#[test]
fn without_measures_nothing_more_is_allocated() {
    let (services, measures) = (services(), measures());
    let none = Meter::memory_bytes_of(&spec(&services, false)).unwrap();
    let some = Meter::memory_bytes_of(&with(&services, &measures)).unwrap();
    // 100 sessions, 4,096 unknown keys and the rest; 8 classes, 2 directions, 2 banks, 5 words.
    let cells = (100 + 4096 + 1) * 8 * 2 * 2 * 5 * 8;
    assert_eq!(some - none, cells + (2 << 16) * 64);
}

/// The verifier follows each filter once, whatever came before it.
#[test]
fn all_measures_fit_beside_policies_and_many_filters() {
    if !permitted() {
        return;
    }
    let net = |number: usize| format!("net 10.{number}.0.0/16 or ip6 net 2001:db8:{number}::/48");
    let services = (0..16).map(|number| Service {
        name: format!("net-{number}"),
        filter: Some(net(number)),
        ..Service::default()
    });
    let services = Services::new(services.collect());
    let mut measures = vec![
        MeasureConfig::Flows {
            max: 1 << 10,
            idle_ns: IDLE_NS,
        },
        MeasureConfig::Active { slot_ms: 1000 },
        MeasureConfig::Gaps,
    ];
    measures.extend((0..16).map(|number| accepted(&format!("also-{number}"), &net(number))));
    let policed = MeterSpec {
        polices: true,
        adopts: true,
        ..with(&services, &measures)
    };
    let meter = Meter::create(&policed).unwrap();
    for hook in HOOKS {
        for direction in [Direction::Up, Direction::Down] {
            meter.stage(direction).program(hook).unwrap();
        }
        let stage = meter.mirror_stage(&MirrorUp::Sessions, &NoNames).unwrap();
        stage.program(hook).unwrap();
    }
}

#[test]
fn an_unknown_key_says_since_when() {
    if !permitted() {
        return;
    }
    let services = services();
    let spec = MeterSpec {
        adopts: true,
        ..spec(&services, false)
    };
    let mut meter = Meter::create(&spec).unwrap();
    let program = meter.stage(Direction::Up).program(Hook::TcIngress).unwrap();
    let key: Key = "10.1.0.1".parse().unwrap();
    let prefix: Key = "10.1.0.0/24".parse().unwrap();
    assert!(meter.unknown_since(key).is_empty());
    run(&program, &udp(1));
    let found = meter.unknown_since(key);
    run(&program, &udp(2));
    assert_eq!(found.len(), 1);
    assert!(found[0].0 == key && found[0].1 > 0);
    assert_eq!(meter.unknown_since(key), found);
    assert_eq!(meter.unknown_since(prefix), found);
    let others = ["10.1.0.2", "10.2.0.0/16", "vlan:1"];
    assert!(
        others
            .iter()
            .all(|it| meter.unknown_since(it.parse().unwrap()).is_empty())
    );
    // With a session it is not unattributed.
    meter.insert(key, 3).unwrap();
    run(&program, &udp(3));
    let rows: Vec<CutOwner> = meter.cut().unwrap().cells().map(|it| it.owner).collect();
    assert_eq!(rows, [CutOwner::Row(3), CutOwner::Unknown(key)]);
}
