//! Frames that are counted when their way is decided: by the process, and by a gate's program.

use super::live::{assert_counted, insert_half, udp};
use super::oracle::Oracle;
use super::{BATCH, assert_adds_up, counts, frames, permitted, services, spec};
use std::time::Instant;
use weir_lab::load::{Generator, Rate};
use weir_lab::net::{Linear, Offloads};
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_link::bpf::FRAME_BYTES_MIN;
use weir_link::net::Interface;
use weir_link::xdp::{
    Bypass, FlowKind, FlowMaps, Gate, HostFilter, Meter, MeterSpec, ProcessCounter,
};
use weir_meter::Direction;
use weir_meter::config::MeasureConfig;
use weir_meter::services::{Service, Services};

#[test]
fn the_process_counts_frames_as_the_oracle_does() {
    if !permitted() {
        return;
    }
    let services = services();
    let keys = frames::address_keys();
    for (counts_ip, seed) in [(false, 31), (true, 32)] {
        let mut meter = Meter::create(&spec(&services, counts_ip)).unwrap();
        for (key, row) in &keys {
            meter.insert(*key, *row).unwrap();
        }
        let oracle = Oracle::new(&services, &keys, counts_ip);
        let counter = ProcessCounter::new(&meter.translated_stage(Direction::Down)).unwrap();
        let mut rng = Rng::new(seed);
        for _ in 0..4 {
            let mut expected = super::oracle::Counts::new();
            for _ in 0..BATCH {
                let frame = frames::frame(&mut rng);
                if frame.len() >= FRAME_BYTES_MIN {
                    counter.count(&frame, frame.len()).unwrap();
                    oracle.count(&mut expected, &frame, Direction::Down);
                }
            }
            let cut = meter.cut().unwrap();
            assert_adds_up(&cut);
            assert_eq!(counts(&cut), expected, "seed {seed}");
            meter.settle();
        }
        // Nothing came by a program, so that nothing is missing.
        counter.settle(counter.handed()).unwrap();
        assert_eq!(meter.cut().unwrap().cells().count(), 0);
    }
}

/// The length on the wire is that of the frame as it came, whatever became of it.
#[test]
fn bytes_on_the_wire_are_those_that_came() {
    if !permitted() {
        return;
    }
    let services = services();
    let mut meter = Meter::create(&spec(&services, false)).unwrap();
    let counter = ProcessCounter::new(&meter.translated_stage(Direction::Down)).unwrap();
    for (bytes, came) in [(60, 64), (5, 6), (5000, 9000)] {
        counter.count(&vec![0; bytes], came).unwrap();
        let cut = meter.cut().unwrap();
        let totals = cut.totals();
        assert_eq!(totals.bytes, [0, came as u64]);
        assert_eq!(totals.packets, [0, 1]);
        meter.settle();
    }
}

/// The verifier takes the stage at each place where a way is decided, beside all else that a program
/// may have; and without a process each frame is counted as it came.
#[test]
fn a_gate_counts_what_it_does_not_give_to_the_process() {
    if !testenv::root() {
        return;
    }
    let line = Linear::new(Offloads::OFF).unwrap();
    let filters = (0..24).map(|number| Service {
        name: format!("net-{number}"),
        filter: Some(format!(
            "net 10.{number}.0.0/16 or ip6 net 2001:db8:{number}::/48"
        )),
        ..Service::default()
    });
    let services = Services::new(filters.collect());
    let measures = [
        MeasureConfig::Gaps,
        MeasureConfig::Flows {
            max: 1 << 12,
            idle_ns: 1_000_000_000,
        },
    ];
    let spec = MeterSpec {
        measures: &measures,
        adopts: true,
        ..spec(&services, true)
    };
    let mut meter = Meter::create(&spec).unwrap();
    insert_half(&mut meter);
    let stages = [Direction::Up, Direction::Down].map(|way| meter.translated_stage(way));
    let interfaces =
        || [&line.left, &line.right].map(|device| Interface::numbered(device.index()).unwrap());
    line.middle.run(|| {
        let kinds = [FlowKind::FiveTuple, FlowKind::IpPair, FlowKind::MacPair];
        let flow_maps = FlowMaps::new(&kinds, 256).unwrap();
        let [left, right] = interfaces();
        let both = [&left, &right];
        let gate = Gate::attach_metered(&both, Bypass::Drop, true, &stages).unwrap();
        for link in 0..2 {
            let began = Instant::now();
            gate.use_flow_cache(link, &flow_maps, true).unwrap();
            println!("the verifier took {:?}", began.elapsed());
            let updater = gate.host_filter_updater(link, Some((&flow_maps, true)));
            let filter = HostFilter::new(&[], "tcp port 22").unwrap();
            updater.unwrap().set_host_filter(&filter).unwrap();
        }
        drop(gate);
    });
    let mut generator = Generator::new(&line.eth_a, &udp(&line.eth_a, &line.eth_b)).unwrap();
    let sent = generator.send(20_000, Rate::PerSecond(50_000.0)).unwrap();
    assert_counted(&mut meter, [0; 2], sent);
    let counter = ProcessCounter::new(&stages[0]).unwrap();
    assert!(counter.handed().are_counted());
    line.middle.run(|| {
        let [left, right] = interfaces();
        assert!(Gate::clean_stale(&[&left, &right]).unwrap());
    });
}
