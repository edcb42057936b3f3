//! What a frame costs in the program, by test runs.

use super::bed::{Bed, FRAMES_MAX, Flows, RING_BYTES, binding, connection, filter, flow};
use super::changes::own_us;
use super::table::{Table, ns};
use weir_demux::kernel::Hook;
use weir_filter::interp;
use weir_lab::rng::Rng;
use weir_lab::rules::{FiveTuple, shapes};
use weir_link::bpf::{Program, TestRun};
use weir_ring::Reader;

/// Rounds; the best one counts.
const ROUNDS: usize = 4;

/// Nanoseconds of a run: what more of them take than a few, since the call
/// itself takes some 200 µs.
pub(crate) fn cost(program: &Program, frame: &[u8], repeat: u32, readers: &mut [Reader]) -> f64 {
    const FEW: u32 = 2;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (repeat, best) in [FEW, repeat].into_iter().zip(&mut best) {
            let mut run = TestRun::new(frame);
            run.repeat = repeat;
            // The kernel says whole nanoseconds only.
            let start = own_us();
            program.test_run(&run, &mut []).expect("a run");
            *best = best.min((own_us() - start) * 1e3);
            readers.iter_mut().for_each(drain);
        }
    }
    (best[1] - best[0]) / f64::from(repeat - FEW)
}

/// Empties a ring.
pub(crate) fn drain(reader: &mut Reader) {
    while !reader.peek().expect("a sound ring").is_empty() {}
}

/// What the driver costs without any plan.
fn driver_alone(bed: &Bed, flows: &Flows) -> f64 {
    cost(&bed.driver(flows), &flow(0).frame(), 1_000_000, &mut [])
}

/// What the plan costs for such a frame of those flows, so many times: without
/// the driver's own time, which is the floor.
fn beyond(
    bed: &Bed,
    (flows, floor): (&Flows, f64),
    frame: &[u8],
    repeat: u32,
    readers: &mut [Reader],
) -> f64 {
    cost(&bed.driver(flows), frame, repeat, readers) - floor
}

/// A row's cells: each figure, and how many times the first row's it is.
fn beside<const N: usize>(figures: [f64; N], first: [f64; N]) -> impl Iterator<Item = String> {
    let both = figures.into_iter().zip(first);
    both.flat_map(|(figure, first)| [ns(figure), format!("{:.2}", figure / first)])
}

const HOT: Flows = Flows {
    count: 1,
    scattered: false,
};

/// A frame that is no connection's, for its protocol.
fn of_nobody(number: u32) -> Vec<u8> {
    let mut frame = flow(number).frame();
    frame[23] = 200;
    frame
}

/// `count` connections over `ports` ports.
fn connections(hook: Hook, count: u32, ports: u32, ring_bytes: u32) -> Bed {
    let mut bed = Bed::new(hook, ports, ring_bytes);
    for number in 0..count {
        let filter = filter(&connection(&flow(number)));
        bed.bind(binding(filter, false, number % ports, number));
    }
    bed
}

pub(crate) fn one_shape(most: u32) {
    let mut table = Table::new(
        "N connections, a port each (up to 1,000), ns per frame in the program (XDP, 60 bytes)",
        &[
            "bindings",
            "nobody's",
            "×",
            "hot",
            "×",
            "evenly over ports",
            "×",
            "scattered keys",
        ],
    );
    let mut first = None;
    let counts = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
    for count in counts.into_iter().filter(|count| *count <= most) {
        let ports = count.min(1_000);
        let ring = if ports > 100 { 1 << 16 } else { RING_BYTES };
        let mut bed = connections(Hook::Xdp, count, ports, ring);
        let spread = |scattered, count| Flows { count, scattered };
        let (evenly, scattered) = (spread(false, ports), spread(true, count));
        let [floor, floor_evenly, floor_scattered] =
            [&HOT, &evenly, &scattered].map(|flows| driver_alone(&bed, flows));
        bed.swap();
        let mut readers: Vec<Reader> = (0..ports as usize).map(|n| bed.reader(n)).collect();
        let fits = ring / 128;
        let bare = of_nobody(count + 5_000_000);
        let nobody = beyond(&bed, (&HOT, floor), &bare, 1_000_000, &mut []);
        let mut delivered =
            |flows, repeat| beyond(&bed, flows, &flow(0).frame(), repeat, &mut readers);
        let hot = delivered((&HOT, floor), FRAMES_MAX);
        let even = delivered((&evenly, floor_evenly), (fits * ports).min(200_000));
        let scatter = (fits * ports / 2).min(200_000);
        let scatter = delivered((&scattered, floor_scattered), scatter);
        let lost: u64 = (0..ports)
            .map(|slot| bed.maps.counters(slot).expect("counters").lost)
            .sum();
        let figures = [nobody, hot, even];
        let mut row = vec![count.to_string()];
        row.extend(beside(figures, *first.get_or_insert(figures)));
        row.push(format!("{} (lost {lost})", ns(scatter)));
        table.row(&row);
    }
    table.print();
}

/// Bindings to a million, on four ports.
pub(crate) fn few_ports() {
    let mut table = Table::new(
        "N connections on four ports, ns per frame in the program (XDP, 60 bytes)",
        &["bindings", "nobody's", "×", "hot", "×", "64 in turn", "×"],
    );
    let mut first = None;
    for count in [1, 1_000, 100_000, 1_000_000] {
        let ports = 4;
        let mut bed = connections(Hook::Xdp, count, ports, RING_BYTES);
        let turn = Flows {
            count: count.min(64),
            scattered: false,
        };
        let floors = [&HOT, &turn].map(|flows| driver_alone(&bed, flows));
        bed.swap();
        let mut readers: Vec<Reader> = (0..ports as usize).map(|n| bed.reader(n)).collect();
        let nobody = beyond(&bed, (&HOT, floors[0]), &of_nobody(0), 1_000_000, &mut []);
        let frame = flow(0).frame();
        let mut delivered =
            |flows, floor| beyond(&bed, (flows, floor), &frame, FRAMES_MAX, &mut readers);
        let (hot, turns) = (delivered(&HOT, floors[0]), delivered(&turn, floors[1]));
        let figures = [nobody, hot, turns];
        let mut row = vec![count.to_string()];
        row.extend(beside(figures, *first.get_or_insert(figures)));
        table.row(&row);
    }
    table.print();
}

/// Frames between the addresses that the expressions are about: of nobody,
/// and as they come.
fn strangers(texts: &[String]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let filters: Vec<_> = texts.iter().map(|text| filter(text)).collect();
    let is_nobodys = |frame: &Vec<u8>| {
        let len = frame.len() as u32;
        filters
            .iter()
            .all(|filter| interp::run(filter.program(), frame, len) == 0)
    };
    let mut rng = Rng::new(5);
    let mut draw = || FiveTuple::draw(&mut rng).frame();
    let some = (0..32).map(|_| draw()).collect();
    let nobodys = std::iter::repeat_with(draw).filter(is_nobodys);
    (nobodys.take(32).collect(), some)
}

pub(crate) fn mixed() {
    let mut table = Table::new(
        "Mixed bindings, ns per frame in the program (tc, 60 bytes)",
        &[
            "bindings",
            "shapes",
            "insns",
            "nobody's",
            "×",
            "one of all taken",
            "×",
            "drawn at random",
            "× one's",
            "taken of 32",
        ],
    );
    let mut first = None;
    let one = connection(&flow(0));
    let all: Vec<String> = shapes(3, 1_000).into_iter().chain([one.clone()]).collect();
    let (nobodys, some) = strangers(&all);
    for count in [0, 20, 40, 200, 1_000] {
        let mut bed = Bed::new(Hook::TcIngress, 16, RING_BYTES);
        let texts = all[..count].iter().chain([&one]);
        for (tag, text) in (0_u32..).zip(texts) {
            bed.bind(binding(filter(text), false, tag % 16, tag));
        }
        let insns = bed.swap();
        let mut readers: Vec<Reader> = (0..16).map(|n| bed.reader(n)).collect();
        let program = bed.load(Hook::TcIngress);
        let mut slots = |frames: &[Vec<u8>]| {
            let costs = frames
                .iter()
                .map(|frame| cost(&program, frame, FRAMES_MAX, &mut readers));
            costs.sum::<f64>() / frames.len() as f64
        };
        let (others, taken, any) = (slots(&nobodys), slots(&[flow(0).frame()]), slots(&some));
        let is_taken = |frame: &&Vec<u8>| {
            let ran = program.test_run(&TestRun::new(frame), &mut []);
            ran.expect("a run").returned == TC_DROP
        };
        let mut row = vec![
            (count + 1).to_string(),
            bed.plan.shapes().to_string(),
            insns.to_string(),
        ];
        let first = *first.get_or_insert([others, taken, taken]);
        row.extend(beside([others, taken, any], first));
        row.push(some.iter().filter(is_taken).count().to_string());
        table.row(&row);
    }
    table.print();
}

/// What a program at tc returns for a frame that it takes.
const TC_DROP: u32 = 2;
