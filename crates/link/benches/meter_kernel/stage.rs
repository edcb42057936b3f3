//! The whole stage: fields of the frame, key, class, cell and totals.

use super::flow_counter::{self, Driver, PORT};
use super::tables::{SEED, run};
use std::net::Ipv4Addr;
use std::time::Instant;
use weir_filter::lang::expr::NoNames;
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::rng::Rng;
use weir_link::bpf::Hook;
use weir_link::xdp::{CutOwner, Meter, MeterSpec};
use weir_meter::services::{Service, Services};
use weir_meter::{Direction, Key};
use weir_wire::Protocol;

/// Counters in use, and how many bits of their number choose the service: 0 for one service of each
/// subscriber, 3 for all eight.
const CASES: [(u32, u32); 4] = [(256, 0), (1 << 16, 0), (1_000_000, 0), (1_000_000, 3)];

/// Most that the maps of 1,000,000 subscribers with 8 services may take.
const MEMORY_MIB_MAX: f64 = 700.0;

const ROUNDS: usize = 7;

/// Services by port. With the classes that always exist there are eight, or twelve.
pub(crate) fn services(listed: u16) -> Services {
    let service = |port: u16| Service {
        name: format!("port {port}"),
        ports: vec![(Protocol::UDP, port..=port), (Protocol::TCP, port..=port)],
        ..Service::default()
    };
    Services::new((PORT..PORT + listed).map(service).collect())
}

pub(crate) fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + number)
}

pub(crate) fn stage(results: &Recorder) {
    for (counters, port_bits) in CASES {
        let subscribers = counters >> port_bits;
        let services = services(if port_bits == 0 { 4 } else { 8 });
        let spec = MeterSpec {
            subscribers,
            keys: subscribers,
            unknown: 4096,
            services: &services,
            names: &NoNames,
            counts_ip: false,
            polices: false,
            measures: &[],
            adopts: false,
        };
        let made = Instant::now();
        let mut meter = Meter::create(&spec).expect("a meter");
        let made = made.elapsed();
        let inserted = Instant::now();
        let mut order: Vec<u32> = (0..subscribers).collect();
        let mut rng = Rng::new(SEED);
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at + 1));
        }
        for number in order {
            meter
                .insert(Key::Ipv4(address(number)), number)
                .expect("room");
        }
        let insert_ns = inserted.elapsed().as_secs_f64() * 1e9 / f64::from(subscribers);
        let stage = meter.stage(Direction::Up);
        let flow = flow_counter::FlowCounter::new(counters, port_bits);
        let programs = [
            flow_counter::nothing(),
            stage.program(Hook::XdpNative).expect("a program"),
            flow.program,
        ];
        let drivers = programs.map(|program| Driver::new(counters, port_bits, program));
        measure(results, &mut meter, [counters, subscribers], &drivers);
        let (flows, counted) = flow_counter::counted(&flow.flows);
        println!("  the flow counter counted {counted} packets in {flows} flows");
        let mib = meter.memory_bytes() as f64 / f64::from(1 << 20);
        println!("  made in {made:.0?}, a key inserted in {insert_ns:.0} ns, {mib:.0} MiB");
        if subscribers == 1_000_000 {
            let name = "meter stage: memory of 1,000,000 subscribers, 8 services";
            let unit = Unit::Megabytes;
            // In MB of 10^6 bytes.
            let scale = f64::from(1 << 20) / 1e6;
            results.record(name, mib * scale, unit, Bar::AtMost(MEMORY_MIB_MAX * scale));
        }
    }
}

fn measure(
    results: &Recorder,
    meter: &mut Meter,
    [counters, subscribers]: [u32; 2],
    drivers: &[Driver; 3],
) {
    let frame = frame();
    let mut best = [f64::INFINITY; 3];
    for _ in 0..ROUNDS {
        for (best, driver) in best.iter_mut().zip(drivers) {
            *best = best.min(run(&driver.program, &frame));
        }
    }
    let [stage, counter] = [best[1] - best[0], best[2] - best[0]];
    let began = Instant::now();
    let cut = meter.cut().expect("a cut");
    let flipped = began.elapsed();
    let rows = cut
        .cells()
        .filter(|cell| matches!(cell.owner, CutOwner::Row(_)));
    let (rows, packets) = rows.fold((0, 0), |(rows, sum), cell| (rows + 1, sum + cell.packets));
    let read = began.elapsed() - flipped;
    let began = Instant::now();
    meter.settle();
    let settled = began.elapsed();
    println!(
        "{counters} counters of {subscribers} subscribers: stage {stage:.1} ns, flow counter {counter:.1} ns: {:.2}; \
         {packets} packets in {rows} rows; cut {flipped:.0?}, read {read:.0?}, settled {settled:.0?}",
        counter / stage
    );
    let name = format!("meter stage: {counters} counters of {subscribers} subscribers");
    results.record(&name, stage, Unit::Nanoseconds, Bar::None);
    let name =
        format!("meter stage: {counters} counters of {subscribers} subscribers, to a flow counter");
    let bar = if counters == 1_000_000 {
        Bar::AtLeast(2.0)
    } else {
        Bar::None
    };
    results.record(
        &name,
        counter / stage,
        Unit::RateOf("per-CPU-hash flow counter"),
        bar,
    );
}

/// A UDP packet of 60 bytes; the program writes its source address.
pub(crate) fn frame() -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[30..34].copy_from_slice(&[192, 0, 2, 1]);
    frame[34..38].copy_from_slice(&[4, 0, 1, 187]);
    frame
}
