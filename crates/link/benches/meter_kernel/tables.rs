//! The candidates for the table of subscribers, each with hashing and probing.

use std::os::fd::AsFd;
use std::time::Instant;
use weir_filter::backend::ebpf::{Asm, Insn, Label, Limits, Reg, helper, op};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_link::bpf::{Load, Map, MapSpec, Program, ProgramType, TestRun};

pub(crate) const SEED: u64 = 0x5eed_0123_4567_89ab;

/// First multiplier of the hash: 2^64 divided by the golden ratio.
const MUL_A: u64 = 0x9e37_79b9_7f4a_7c15;
/// Second multiplier of the hash, from MurmurHash3's finaliser.
const MUL_B: u64 = 0xff51_afd7_ed55_8ccd;

/// Numbers of keys, and subscribers.
const KEYS: [u32; 3] = [256, 1 << 16, 1_000_000];
/// Services, each with two directions.
const CLASSES: u32 = 8;
/// Bytes of a subscriber's cells in one bank.
const BLOCK: u32 = CLASSES * 2 * 16;
/// Bytes of one value of a flat table.
const PAGE: u32 = 4096;
/// Slots that a look-up reads at most.
const PROBES: u32 = 8;

/// Runs of a program a call, and calls of which the best counts.
const RUNS: u32 = 1_000_000;
const ROUNDS: usize = 7;

/// The key is in r6 when a candidate's code begins, and r7 is its kind.
const KEY: Reg = Reg::R6;
const KIND: Reg = Reg::R7;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Candidate {
    /// Nothing: what the others are net of.
    Base,
    /// Open addressing, slots of this many bytes, then a cell.
    Flat(u32),
    /// A kernel hash whose value is the index of a cell.
    HashIndex,
    /// Cells in the value of a kernel hash.
    HashValue,
    /// The flow counter: key with class and direction, counters in the value,
    /// a value for each CPU, plain additions.
    PerCpuHash,
}

const CANDIDATES: [(Candidate, &str); 6] = [
    (Candidate::Base, "base"),
    (Candidate::Flat(64), "flat table, 64-byte lines, and cells"),
    (Candidate::Flat(32), "flat table, 32-byte slots, and cells"),
    (Candidate::HashIndex, "kernel hash, index, and cells"),
    (Candidate::HashValue, "counters in a kernel hash"),
    (Candidate::PerCpuHash, "counters in a per-CPU kernel hash"),
];

/// What the driver and the flat table hash keys by.
fn hash(key: u64, kind: u64) -> u64 {
    let mut hash = (key ^ SEED).wrapping_mul(MUL_A);
    hash ^= hash >> 32;
    hash = (hash ^ kind).wrapping_mul(MUL_B);
    hash ^ hash >> 32
}

struct Built {
    name: &'static str,
    candidate: Candidate,
    program: Program,
    /// Descriptors of maps that the program alone holds otherwise, to count.
    cells: Map,
    table: Map,
    bytes: u64,
}

fn build(candidate: Candidate, name: &'static str, keys: u32) -> Built {
    let mmapable = |spec: MapSpec<'static>| MapSpec {
        mmapable: true,
        ..spec
    };
    let create = |spec: &MapSpec<'_>| Map::create("meter_bench", spec).expect("a map");
    let state = create(&mmapable(MapSpec::array(64, 1)));
    let cells = create(&mmapable(MapSpec::array(BLOCK, 2 * keys)));
    let before = kernel_bytes();
    let table = match candidate {
        Candidate::Base => create(&MapSpec::array(8, 1)),
        Candidate::Flat(slot) => {
            let slots = (2 * keys).next_power_of_two().max(PAGE / slot);
            create(&mmapable(MapSpec::array(PAGE, slots * slot / PAGE)))
        }
        Candidate::HashIndex => create(&MapSpec::hash(24, 8, keys)),
        Candidate::HashValue => create(&MapSpec::hash(24, 2 * BLOCK, keys)),
        Candidate::PerCpuHash => create(&MapSpec::per_cpu_hash(24, 16, keys)),
    };
    let bytes = kernel_bytes().saturating_sub(before);
    fill(candidate, &table, keys);
    let mut asm = Asm::new();
    let (find, end) = (asm.label(), asm.label());
    driver(&mut asm, keys);
    emit(&mut asm, candidate, keys, find, end);
    asm.bind(end);
    asm.extend([Insn::mov32(Reg::R0, 1), Insn::exit()]);
    if let Candidate::Flat(slot) = candidate {
        emit_find(&mut asm, find, slot, table.entries_max());
    } else {
        asm.bind(find);
    }
    let insns = asm.finish(&Limits::default()).expect("a short program");
    let load = Load {
        name: "meter_bench",
        maps: &[state.as_fd(), table.as_fd(), cells.as_fd()],
        ..Load::new(ProgramType::Xdp)
    };
    let program = Program::load(&insns, &load).unwrap_or_else(|error| panic!("{name}: {error}"));
    Built {
        name,
        candidate,
        program,
        cells,
        table,
        bytes,
    }
}

/// Memory that the kernel has in use and no process.
fn kernel_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let words = line.and_then(|line| line.split_whitespace().nth(1));
        words.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    field("MemTotal:") - field("MemFree:") - field("Cached:") - field("AnonPages:")
}

/// The key of number `number`: an address of 10.0.0.0/8, of kind 4.
fn key(number: u32) -> (u64, u64) {
    (u64::from(0x0a00_0000 + number), 4)
}

fn hash_key(number: u32) -> [u8; 24] {
    let mut bytes = [0; 24];
    let (key, kind) = key(number);
    bytes[..8].copy_from_slice(&key.to_ne_bytes());
    bytes[8..16].copy_from_slice(&kind.to_ne_bytes());
    bytes
}

fn fill(candidate: Candidate, table: &Map, keys: u32) {
    match candidate {
        Candidate::Base => {}
        Candidate::Flat(slot) => fill_flat(table, slot, keys),
        Candidate::HashIndex | Candidate::HashValue | Candidate::PerCpuHash => {
            let bytes = table.value_bytes();
            for first in (0..keys).step_by(1 << 14) {
                let numbers = first..keys.min(first + (1 << 14));
                let keys: Vec<u8> = numbers.clone().flat_map(hash_key).collect();
                let mut values = vec![0; numbers.len() * bytes];
                if candidate == Candidate::HashIndex {
                    for (value, number) in values.chunks_mut(bytes).zip(numbers) {
                        value.copy_from_slice(&u64::from(number).to_ne_bytes());
                    }
                }
                table.update_batch(&keys, &values).expect("room");
            }
        }
    }
}

fn fill_flat(table: &Map, slot: u32, keys: u32) {
    let mut memory = table.map_memory(true).expect("mapped");
    let pages = table.entries_max();
    let mut lost = 0;
    for number in 0..keys {
        let (key, kind) = key(number);
        let hash = hash(key, kind);
        let page = (hash >> 32) as u32 & (pages - 1);
        let home = (hash as u32) << 6 & (PAGE - 1);
        let place = (0..PROBES)
            .map(|probe| ((home + probe * slot) & (PAGE - 1)) as usize)
            .find(|at| memory.load_u64(page as usize, at + 16) == Some(0));
        match place {
            None => lost += 1,
            Some(at) => {
                let mut bytes = [0; 24];
                bytes[..16].copy_from_slice(&hash_key(number)[..16]);
                bytes[16..].copy_from_slice(&u64::from(number + 2).to_ne_bytes());
                assert!(memory.write(page as usize, at, &bytes));
            }
        }
    }
    let share = f64::from(lost) / f64::from(keys) * 100.0;
    println!("  slots of {slot} bytes: {lost} of {keys} keys do not fit ({share:.2} %)");
}

/// Picks a key: r6, and its kind in r7.
pub(crate) fn driver(asm: &mut Asm, keys: u32) {
    asm.extend(Insn::load_map_value(Reg::R2, 0, 0));
    asm.extend([
        Insn::load(op::DW, Reg::R6, Reg::R2, 0),
        Insn::mov64(Reg::R3, Reg::R6),
        Insn::alu64(op::ADD, Reg::R3, 1),
        Insn::store(op::DW, Reg::R2, 0, Reg::R3),
    ]);
    for constant in [MUL_A, MUL_B] {
        asm.extend(Insn::load64(Reg::R3, constant));
        asm.extend([
            Insn::alu64(op::MUL, Reg::R6, Reg::R3),
            Insn::mov64(Reg::R4, Reg::R6),
            Insn::alu64(op::RSH, Reg::R4, 32),
            Insn::alu64(op::XOR, Reg::R6, Reg::R4),
        ]);
    }
    asm.extend([
        Insn::mov32(Reg::R6, Reg::R6),
        Insn::alu64(op::MOD, Reg::R6, keys as i32),
        Insn::alu64(op::ADD, Reg::R6, 0x0a00_0000),
        Insn::mov64(Reg::R7, 4),
    ]);
}

fn atomic_add(base: Reg, at: i16, with: Reg) -> Insn {
    Insn {
        code: op::STX | 0xc0 | op::DW,
        imm: op::ADD.into(),
        ..Insn::store(op::DW, base, at, with)
    }
}

fn emit(asm: &mut Asm, candidate: Candidate, keys: u32, find: Label, end: Label) {
    match candidate {
        Candidate::Base => asm.push(Insn::mov64(Reg::R0, KEY)),
        Candidate::Flat(_) => {
            asm.extend([Insn::mov64(Reg::R1, KEY), Insn::mov64(Reg::R2, KIND)]);
            asm.call(find);
            asm.jump(Insn::jump64(op::JLT, Reg::R0, 2), end);
            asm.push(Insn::alu64(op::SUB, Reg::R0, 2));
            emit_cell(asm, keys, end);
        }
        Candidate::HashIndex | Candidate::HashValue | Candidate::PerCpuHash => {
            asm.extend([
                Insn::store(op::DW, Reg::FP, -24, KEY),
                Insn::store(op::DW, Reg::FP, -16, KIND),
                Insn::store(op::DW, Reg::FP, -8, 0),
                Insn::mov64(Reg::R2, Reg::FP),
                Insn::alu64(op::ADD, Reg::R2, -24),
            ]);
            asm.extend(Insn::load_map(Reg::R1, 1));
            asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
            asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), end);
            match candidate {
                Candidate::HashIndex => {
                    asm.push(Insn::load(op::DW, Reg::R0, Reg::R0, 0));
                    emit_cell(asm, keys, end);
                }
                Candidate::PerCpuHash => asm.extend([
                    Insn::load(op::DW, Reg::R1, Reg::R0, 0),
                    Insn::alu64(op::ADD, Reg::R1, 1),
                    Insn::store(op::DW, Reg::R0, 0, Reg::R1),
                    Insn::load(op::DW, Reg::R1, Reg::R0, 8),
                    Insn::alu64(op::ADD, Reg::R1, 64),
                    Insn::store(op::DW, Reg::R0, 8, Reg::R1),
                ]),
                _ => emit_add(asm),
            }
        }
    }
}

/// Adds to the cell of row r0.
fn emit_cell(asm: &mut Asm, _keys: u32, end: Label) {
    asm.extend([
        Insn::store(op::W, Reg::FP, -4, Reg::R0),
        Insn::mov64(Reg::R2, Reg::FP),
        Insn::alu64(op::ADD, Reg::R2, -4),
    ]);
    asm.extend(Insn::load_map(Reg::R1, 2));
    asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), end);
    emit_add(asm);
}

fn emit_add(asm: &mut Asm) {
    // One of the classes, by the key.
    asm.extend([
        Insn::mov64(Reg::R1, KEY),
        Insn::alu64(op::AND, Reg::R1, CLASSES as i32 - 1),
        Insn::alu64(op::LSH, Reg::R1, 5),
        Insn::alu64(op::ADD, Reg::R0, Reg::R1),
        Insn::mov64(Reg::R1, 1),
        atomic_add(Reg::R0, 0, Reg::R1),
        Insn::mov64(Reg::R1, 64),
        atomic_add(Reg::R0, 8, Reg::R1),
    ]);
}

/// The routine that finds key r1 of kind r2.
fn emit_find(asm: &mut Asm, find: Label, slot: u32, pages: u32) {
    let none = asm.label();
    asm.bind(find);
    asm.extend([
        Insn::mov64(KEY, Reg::R1),
        Insn::mov64(KIND, Reg::R2),
        Insn::mov64(Reg::R8, Reg::R1),
    ]);
    asm.extend(Insn::load64(Reg::R3, SEED));
    asm.push(Insn::alu64(op::XOR, Reg::R8, Reg::R3));
    for (number, constant) in [MUL_A, MUL_B].into_iter().enumerate() {
        if number == 1 {
            asm.push(Insn::alu64(op::XOR, Reg::R8, KIND));
        }
        asm.extend(Insn::load64(Reg::R3, constant));
        asm.extend([
            Insn::alu64(op::MUL, Reg::R8, Reg::R3),
            Insn::mov64(Reg::R4, Reg::R8),
            Insn::alu64(op::RSH, Reg::R4, 32),
            Insn::alu64(op::XOR, Reg::R8, Reg::R4),
        ]);
    }
    asm.extend([
        Insn::mov64(Reg::R4, Reg::R8),
        Insn::alu64(op::RSH, Reg::R4, 32),
        Insn::alu64(op::AND, Reg::R4, pages as i32 - 1),
        Insn::store(op::W, Reg::FP, -4, Reg::R4),
        Insn::mov64(Reg::R2, Reg::FP),
        Insn::alu64(op::ADD, Reg::R2, -4),
    ]);
    asm.extend(Insn::load_map(Reg::R1, 1));
    asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), none);
    asm.push(Insn::alu64(op::LSH, Reg::R8, 6));
    let mask = (PAGE - slot) as i32;
    for probe in 0..PROBES {
        let next = asm.label();
        asm.extend([
            Insn::mov64(Reg::R1, Reg::R8),
            Insn::alu64(op::ADD, Reg::R1, (probe * slot) as i32),
            Insn::alu64(op::AND, Reg::R1, mask),
            Insn::alu64(op::ADD, Reg::R1, Reg::R0),
            Insn::load(op::DW, Reg::R3, Reg::R1, 16),
        ]);
        asm.jump(Insn::jump64(op::JEQ, Reg::R3, 0), none);
        asm.push(Insn::load(op::DW, Reg::R2, Reg::R1, 0));
        asm.jump(Insn::jump64(op::JNE, Reg::R2, KEY), next);
        asm.push(Insn::load(op::DW, Reg::R2, Reg::R1, 8));
        asm.jump(Insn::jump64(op::JNE, Reg::R2, KIND), next);
        asm.extend([Insn::mov64(Reg::R0, Reg::R3), Insn::exit()]);
        asm.bind(next);
    }
    asm.bind(none);
    asm.extend([Insn::mov64(Reg::R0, 0), Insn::exit()]);
}

/// Nanoseconds of one run, of one call.
pub(crate) fn run(program: &Program, frame: &[u8]) -> f64 {
    let mut run = TestRun::new(frame);
    run.repeat = RUNS;
    let start = Instant::now();
    program.test_run(&run, &mut []).expect("a run");
    start.elapsed().as_secs_f64() * 1e9 / f64::from(RUNS)
}

pub(crate) fn tables(results: &Recorder) {
    let frame = [0; 64];
    for keys in KEYS {
        println!("{keys} keys at random");
        let built: Vec<Built> = CANDIDATES
            .into_iter()
            .map(|(candidate, name)| build(candidate, name, keys))
            .collect();
        let mut best = vec![f64::INFINITY; built.len()];
        for _ in 0..ROUNDS {
            for (best, built) in best.iter_mut().zip(&built) {
                *best = best.min(run(&built.program, &frame));
            }
        }
        let net: Vec<f64> = best.iter().map(|ns| ns - best[0]).collect();
        let flow_counter = net[CANDIDATES.len() - 1];
        for (built, net) in built.iter().zip(&net).skip(1) {
            let counted = counted(built, keys);
            println!(
                "  {:40} {net:6.1} ns  {:5.2} of the flow counter's speed  table {:4} MiB  counted {counted}",
                built.name,
                flow_counter / net,
                built.bytes >> 20,
            );
            let name = format!("meter tables: {}, {keys} keys", built.name);
            results.record(&name, *net, Unit::Nanoseconds, Bar::None);
        }
    }
}

fn counted(built: &Built, keys: u32) -> u64 {
    let sum = |bytes: &[u8]| -> u64 {
        let words = bytes.chunks_exact(16);
        words
            .map(|cell| u64::from_ne_bytes(cell[..8].try_into().expect("8 bytes")))
            .sum()
    };
    match built.candidate {
        Candidate::Base => 0,
        Candidate::Flat(_) | Candidate::HashIndex => {
            let memory = built.cells.map_memory(false).expect("mapped");
            let rows = 0..keys as usize;
            let cell = |row| (0..BLOCK as usize / 16).map(move |cell| (row, cell * 16));
            rows.flat_map(cell)
                .map(|(row, at)| memory.load_u64(row, at).expect("inside"))
                .sum()
        }
        Candidate::HashValue | Candidate::PerCpuHash if keys > 1 << 16 => {
            // Reading it whole needs as much memory again.
            0
        }
        Candidate::HashValue | Candidate::PerCpuHash => {
            let (_, values) = built.table.entries().expect("entries");
            sum(&values)
        }
    }
}
