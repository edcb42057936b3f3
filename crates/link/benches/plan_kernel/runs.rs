//! What a frame costs in the program, by test runs.

use super::bed::{Bed, FRAMES_MAX, Flows, RING_BYTES, binding, connection, filter, flow};
use super::changes::own_us;
use super::table::{Table, ns};
use weir_demux::kernel::Hook;
use weir_filter::interp;
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::rng::Rng;
use weir_lab::rules::{FiveTuple, mixed_forms};
use weir_link::bpf::{Program, TestRun};
use weir_ring::Reader;

/// Rounds; the best one counts.
const ROUNDS: usize = 4;

/// Nanoseconds of a run, the best of some rounds.
pub(crate) fn cost(program: &Program, frame: &[u8], repeat: u32, readers: &mut [Reader]) -> f64 {
    let mut best = Best::default();
    for _ in 0..ROUNDS {
        best.round(program, frame, repeat, readers);
    }
    best.ns(repeat)
}

/// The least that a call took for some runs, and for a few: the call itself
/// takes some 200 µs.
#[derive(Clone, Copy)]
pub(crate) struct Best([f64; 2]);

impl Default for Best {
    fn default() -> Best {
        Best([f64::INFINITY; 2])
    }
}

impl Best {
    const FEW: u32 = 2;

    pub(crate) fn round(
        &mut self,
        program: &Program,
        frame: &[u8],
        repeat: u32,
        readers: &mut [Reader],
    ) {
        for (repeat, best) in [Best::FEW, repeat].into_iter().zip(&mut self.0) {
            let mut run = TestRun::new(frame);
            run.repeat = repeat;
            // The kernel says whole nanoseconds only.
            let start = own_us();
            program.test_run(&run, &mut []).expect("a run");
            *best = best.min((own_us() - start) * 1e3);
            readers.iter_mut().for_each(drain);
        }
    }

    /// Nanoseconds of one of `RUNS` runs.
    pub(crate) fn ns(self, repeat: u32) -> f64 {
        (self.0[1] - self.0[0]) / f64::from(repeat - Best::FEW)
    }
}

/// Empties a ring.
pub(crate) fn drain(reader: &mut Reader) {
    while !reader.peek().expect("a sound ring").is_empty() {}
}

/// A row's cells: each figure, and how many times the first row's it is.
pub(crate) fn beside<const N: usize>(
    figures: [f64; N],
    first: [f64; N],
) -> impl Iterator<Item = String> {
    let both = figures.into_iter().zip(first);
    both.flat_map(|(figure, first)| [ns(figure), format!("{:.2}", figure / first)])
}

pub(crate) const HOT: Flows = Flows {
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

/// One figure of a row: what the plan costs for a frame, without what the
/// program before it does, which writes the flow.
pub(crate) struct Cell {
    driver: Program,
    frame: Vec<u8>,
    repeat: u32,
    with: Best,
    /// Without any plan.
    floor: Best,
    /// What runs without it, if that is not the driver.
    floor_driver: Option<Program>,
}

impl Cell {
    /// For this many frames of those flows.
    pub(crate) fn new(bed: &Bed, flows: &Flows, frame: Vec<u8>, repeat: u32) -> Cell {
        Cell {
            driver: bed.driver(flows),
            frame,
            repeat,
            with: Best::default(),
            floor: Best::default(),
            floor_driver: None,
        }
    }

    /// For what the kernel alone does with this many records, one for each ring in
    /// turn.
    fn of_rings_alone(bed: &Bed, repeat: u32) -> Cell {
        Cell {
            driver: bed.rings_alone(false),
            frame: of_nobody(0),
            repeat,
            with: Best::default(),
            floor: Best::default(),
            floor_driver: Some(bed.rings_alone(true)),
        }
    }

    fn ns(&self) -> f64 {
        self.with.ns(self.repeat) - self.floor.ns(self.repeat)
    }
}

/// A plan, and what is measured of it.
pub(crate) struct Row<const N: usize> {
    bindings: u32,
    bed: Bed,
    readers: Vec<Reader>,
    cells: [Cell; N],
}

impl<const N: usize> Row<N> {
    pub(crate) fn new(bindings: u32, bed: Bed, cells: [Cell; N]) -> Row<N> {
        let readers = (0..bed.ports()).map(|n| bed.reader(n)).collect();
        Row {
            bindings,
            bed,
            readers,
            cells,
        }
    }

    pub(crate) fn figures(&self) -> [f64; N] {
        self.cells.each_ref().map(Cell::ns)
    }

    /// Frames that any port has lost.
    pub(crate) fn lost(&self) -> u64 {
        let lost = |slot| self.bed.maps.counters(slot).expect("counters").lost;
        (0..self.readers.len() as u32).map(lost).sum()
    }
}

/// Measures all rows in turn, in many rounds: what else the machine does falls
/// on all alike.
pub(crate) fn measure<const N: usize>(rows: &mut [Row<N>]) {
    const ROUNDS: usize = 12;
    for row in &mut *rows {
        for cell in &mut row.cells {
            for _ in 0..ROUNDS {
                let program = cell.floor_driver.as_ref().unwrap_or(&cell.driver);
                cell.floor.round(program, &cell.frame, cell.repeat, &mut []);
            }
        }
        row.bed.swap();
    }
    for _ in 0..ROUNDS {
        for row in &mut *rows {
            for cell in &mut row.cells {
                cell.with
                    .round(&cell.driver, &cell.frame, cell.repeat, &mut row.readers);
            }
        }
    }
}

/// What the first row of a table has, to which the others are compared.
const ONE: Unit<'static> = Unit::CostOf("1 connection");

pub(crate) fn one_shape(most: u32, results: &Recorder) {
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
            "its reserve and submit",
            "×",
            "scattered keys",
            "×",
            "lost",
        ],
    );
    let counts = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
    let counts = counts.into_iter().filter(|count| *count <= most);
    let row = |count: u32| {
        let ports = count.min(1_000);
        let ring = if ports > 100 { 1 << 16 } else { RING_BYTES };
        let bed = connections(Hook::Xdp, count, ports, ring);
        let spread = |scattered, count| Flows { count, scattered };
        let fits = (ring / 128 * ports).min(200_000);
        let nobodys = of_nobody(count + 5_000_000);
        let frame = || flow(0).frame();
        let cells = [
            Cell::new(&bed, &HOT, nobodys, 200_000),
            Cell::new(&bed, &HOT, frame(), FRAMES_MAX),
            Cell::new(&bed, &spread(false, ports), frame(), fits),
            Cell::of_rings_alone(&bed, fits),
            Cell::new(&bed, &spread(true, count), frame(), fits / 2),
        ];
        Row::new(count, bed, cells)
    };
    let mut rows: Vec<Row<5>> = counts.map(row).collect();
    measure(&mut rows);
    let first = rows[0].figures();
    for row in &rows {
        let [nobodys, hot, evenly, _, scattered] = row.figures();
        let mut cells = vec![row.bindings.to_string()];
        cells.extend(beside(row.figures(), first));
        cells.push(row.lost().to_string());
        table.row(&cells);
        if row.bindings > 1 {
            let name = |what: &str| format!("kernel plan: {} connections, {what}", row.bindings);
            let hot_bar = Bar::AtMost(1.3);
            results.record(&name("nobody's frame"), nobodys / first[0], ONE, hot_bar);
            results.record(&name("one hot"), hot / first[1], ONE, hot_bar);
            // From there on there are 1,000 rings.
            let bar = if row.bindings >= 1_000 {
                Bar::AtMost(3.0)
            } else {
                Bar::None
            };
            let ports = row.bindings.min(1_000);
            let spread = name(&format!("evenly over {ports} ports"));
            results.record(&spread, evenly / first[2], ONE, bar);
            // Keys and rings that are in no cache: the rings' part is the kernel's.
            let random = name(&format!("scattered over {ports} ports"));
            results.record(&random, scattered / first[4], ONE, Bar::None);
        }
    }
    table.print();
}

/// Bindings to a million, on few ports.
pub(crate) fn few_ports(ports: u32, results: &Recorder) {
    let on = if ports == 1 {
        "1 port".to_owned()
    } else {
        format!("{ports} ports")
    };
    let mut table = Table::new(
        &format!("N connections on {on}, ns per frame in the program (XDP, 60 bytes)"),
        &[
            "bindings",
            "nobody's",
            "×",
            "hot",
            "×",
            "64 in turn",
            "×",
            "scattered",
            "×",
        ],
    );
    let row = |count: u32| {
        let bed = connections(Hook::Xdp, count, ports, RING_BYTES);
        let turn = Flows {
            count: count.min(64),
            scattered: false,
        };
        let scattered = Flows {
            count,
            scattered: true,
        };
        let frame = || flow(0).frame();
        let cells = [
            Cell::new(&bed, &HOT, of_nobody(0), 200_000),
            Cell::new(&bed, &HOT, frame(), FRAMES_MAX),
            Cell::new(&bed, &turn, frame(), FRAMES_MAX),
            Cell::new(&bed, &scattered, frame(), FRAMES_MAX),
        ];
        Row::new(count, bed, cells)
    };
    let mut rows = [1, 1_000, 100_000, 1_000_000].map(row);
    measure(&mut rows);
    let first = rows[0].figures();
    for row in &rows {
        let mut cells = vec![row.bindings.to_string()];
        cells.extend(beside(row.figures(), first));
        table.row(&cells);
        if row.bindings > 1 {
            // The keys of the last column are in no cache.
            let scattered = if row.bindings == 1_000_000 {
                Bar::AtMost(4.0)
            } else {
                Bar::None
            };
            let hot = Bar::AtMost(1.3);
            let columns = [
                ("nobody's frame", hot),
                ("one hot", hot),
                ("64 in turn", hot),
                ("scattered", scattered),
            ];
            for (at, (what, bar)) in columns.into_iter().enumerate() {
                let name = format!("kernel plan: {} connections on {on}, {what}", row.bindings);
                results.record(&name, row.figures()[at] / first[at], ONE, bar);
            }
        }
    }
    table.print();
}

/// Frames between the addresses of the expressions: frames that match none, and frames as they
/// come.
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

pub(crate) fn mixed(results: &Recorder) {
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
    let all: Vec<String> = mixed_forms(3, 1_000)
        .into_iter()
        .chain([one.clone()])
        .collect();
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
            bed.plan.subtables().to_string(),
            insns.to_string(),
        ];
        let first = *first.get_or_insert([others, taken, taken]);
        row.extend(beside([others, taken, any], first));
        if count > 0 {
            let name = |what: &str| format!("kernel plan: {} mixed bindings, {what}", count + 1);
            let bar = if count == 1_000 {
                Bar::AtMost(3.0)
            } else {
                Bar::None
            };
            results.record(&name("nobody's frame"), others / first[0], ONE, bar);
            results.record(&name("one's frame"), taken / first[1], ONE, bar);
        }
        row.push(some.iter().filter(is_taken).count().to_string());
        table.row(&row);
    }
    table.print();
}

/// What a program at tc returns for a frame that it takes.
const TC_DROP: u32 = 2;
