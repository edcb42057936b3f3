//! What a copied frame costs, part by part: programs at tc that do more and more of what a
//! port's does, and programs for one filter alone, on the same frames of 60 bytes.
#![allow(unsafe_code)] // The promise that a bench opens one reader of a ring.

use super::bed::{Bed, binding, filter};
use super::live::{Arrival, Cost};
use super::receivers::{COPYING_TC, Make, Receiver, port, tpacket};
use super::table::{Table, ns};
use std::any::Any;
use std::error::Error;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_demux::Target;
use weir_demux::kernel::Hook as PlanHook;
use weir_demux::kernel::record::{SHORT_FRAME_MAX, SHORT_HEADER_BYTES};
use weir_filter::backend::ebpf::{Asm, Insn, Label, Limits, Reg, helper, op};
use weir_lab::net::Device;
use weir_link::bpf::{Attachment, Hook, Load, Map, MapMemory, MapSpec, Program, ProgramType};
use weir_ring::Reader;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const FRAME_BYTES: usize = 60;
const ROUNDS: usize = 7;

const TCX_NEXT: i32 = -1;

/// Bytes of a record: a short one of weir's.
const RECORD: i32 = SHORT_HEADER_BYTES as i32 + SHORT_FRAME_MAX as i32;

/// A program that reads and writes nothing.
fn entry(to: &Device, _: u32) -> Result<Receiver> {
    let mut asm = Asm::new();
    let end = asm.label();
    let attachment = attach(to, asm, end, &[])?;
    Ok(idle("a program that does nothing", attachment))
}

/// The plan without a ring: a binding for other frames, or a copy to nowhere.
fn plan(to: &Device, name: &'static str, text: &str) -> Result<Receiver> {
    let mut bed = Bed::new(PlanHook::TcIngress, 1, 1 << 20);
    let mut nowhere = binding(filter(text), true, 0, 1);
    nowhere.target = Target::Drop;
    bed.bind(nowhere);
    let program = bed.load(PlanHook::TcIngress);
    let index = to.index();
    let attach = || Attachment::new(&program, index, Hook::TcIngress);
    let attachment = to.host().run(attach)?;
    Ok(idle(name, Box::new((attachment, bed))))
}

/// A receiver of nothing.
fn idle(name: &'static str, keep: Box<dyn Any>) -> Receiver {
    Receiver::start(name, vec![keep], |stop, _| {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        0
    })
}

fn push(asm: &mut Asm, insns: &[Insn]) {
    insns.iter().for_each(|insn| asm.push(*insn));
}

/// One filter, as a person writes it (IPv4, UDP, the destination port): to `end` for other
/// frames. r6 = the context, r7 = 60 bytes of the frame.
fn one_filter(asm: &mut Asm, end: Label) {
    const DATA: i16 = 76;
    const DATA_END: i16 = 80;
    push(
        asm,
        &[
            Insn::mov64(Reg::R6, Reg::R1),
            Insn::load(op::W, Reg::R7, Reg::R6, DATA),
            Insn::load(op::W, Reg::R3, Reg::R6, DATA_END),
            Insn::mov64(Reg::R4, Reg::R7),
            Insn::alu64(op::ADD, Reg::R4, FRAME_BYTES as i32),
        ],
    );
    asm.jump(Insn::jump64(op::JGT, Reg::R4, Reg::R3), end);
    for (size, at, value) in [
        (op::H, 12, i32::from(0x0800_u16.to_be())),
        (op::B, 23, 17),
        (op::H, 36, i32::from(5000_u16.to_be())),
    ] {
        asm.push(Insn::load(size, Reg::R1, Reg::R7, at));
        asm.jump(Insn::jump64(op::JNE, Reg::R1, value), end);
    }
}

/// Length, interface and queue of the context at r6, and the 60 bytes at r7, to byte `at` of
/// `to`.
fn record(asm: &mut Asm, to: Reg, at: i16) {
    for (of, from) in [(0, 0), (4, 40), (12, 12)] {
        asm.push(Insn::load(op::W, Reg::R1, Reg::R6, from));
        asm.push(Insn::store(op::W, to, at + of, Reg::R1));
    }
    asm.push(Insn::store(op::W, to, at + 8, 1));
    let bytes = at + SHORT_HEADER_BYTES as i16;
    for word in 0..FRAME_BYTES as i16 / 8 {
        asm.push(Insn::load(op::DW, Reg::R1, Reg::R7, word * 8));
        asm.push(Insn::store(op::DW, to, bytes + word * 8, Reg::R1));
    }
    let last = FRAME_BYTES as i16 - 4;
    asm.push(Insn::load(op::W, Reg::R1, Reg::R7, last));
    asm.push(Insn::store(op::W, to, bytes + last, Reg::R1));
}

/// Ends the program at `end`, and attaches it.
fn attach(to: &Device, mut asm: Asm, end: Label, maps: &[&Map]) -> Result<Box<dyn Any>> {
    asm.bind(end);
    asm.push(Insn::mov32(Reg::R0, TCX_NEXT));
    asm.push(Insn::exit());
    let insns = asm.finish(&Limits::default())?;
    let maps: Vec<_> = maps.iter().map(|map| map.as_fd()).collect();
    let load = Load {
        name: "part",
        maps: &maps,
        ..Load::new(ProgramType::SchedCls)
    };
    let program = Program::load(&insns, &load)?;
    let index = to.index();
    let attach = || Attachment::new(&program, index, Hook::TcIngress);
    Ok(Box::new(to.host().run(attach)?))
}

/// One filter, and the kernel's ring.
fn kernel_ring(to: &Device, bytes: u32) -> Result<Receiver> {
    let ring = Map::create("ring", &MapSpec::ring_buf(bytes))?;
    let mut asm = Asm::new();
    let end = asm.label();
    one_filter(&mut asm, end);
    push(&mut asm, &Insn::load_map(Reg::R1, 0));
    push(
        &mut asm,
        &[
            Insn::mov64(Reg::R2, RECORD),
            Insn::mov64(Reg::R3, 0),
            Insn::call(helper::RINGBUF_RESERVE),
        ],
    );
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), end);
    record(&mut asm, Reg::R0, 0);
    push(
        &mut asm,
        &[
            Insn::mov64(Reg::R1, Reg::R0),
            Insn::mov64(Reg::R2, 0),
            Insn::call(helper::RINGBUF_SUBMIT),
        ],
    );
    let attachment = attach(to, asm, end, &[&ring])?;
    // SAFETY: it is the ring's only reader.
    let mut reader = unsafe { Reader::open(ring.try_clone()?.into()) }?;
    let keep = vec![attachment];
    let name = "one filter, the kernel's ring";
    Ok(Receiver::start(name, keep, move |stop, count| {
        let mut sum = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let _ = reader.wait(Some(Duration::from_millis(20)));
            let batch = reader.peek().expect("a sound ring");
            sum += batch
                .iter()
                .map(|record| u64::from(record[28]))
                .sum::<u64>();
            count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
        sum
    }))
}

/// A ring of one CPU in a mapped array: the program's position, its copy of the reader's, the
/// reader's, and behind them the records.
mod mapped {
    pub(super) const HEAD: i16 = 0;
    pub(super) const KNOWN_TAIL: i16 = 8;
    pub(super) const TAIL: i16 = 64;
    pub(super) const RECORDS: i16 = 128;
}

/// One filter, and the least that a ring can do: no lock, no wake-up, no count of losses, one
/// CPU. A lower bound for rings of weir's own.
fn least_ring(to: &Device, bytes: u32) -> Result<Receiver> {
    let size = mapped::RECORDS as u32 + bytes + RECORD as u32;
    let spec = MapSpec {
        mmapable: true,
        ..MapSpec::array(size, 1)
    };
    let ring = Map::create("ring", &spec)?;
    let mut asm = Asm::new();
    let end = asm.label();
    one_filter(&mut asm, end);
    reserve(&mut asm, bytes as i32, end);
    record(&mut asm, Reg::R4, mapped::RECORDS);
    asm.push(Insn::alu64(op::ADD, Reg::R8, RECORD));
    asm.push(Insn::store(op::DW, Reg::R5, mapped::HEAD, Reg::R8));
    let attachment = attach(to, asm, end, &[&ring])?;
    let memory = ring.map_memory(true)?;
    let name = "one filter, the least ring";
    Ok(Receiver::start(
        name,
        vec![attachment],
        move |stop, count| {
            let mut sum = 0;
            while !stop.load(Ordering::Relaxed) {
                let records = read(&memory, bytes as usize, &mut sum);
                count.fetch_add(records, Ordering::Relaxed);
                if records == 0 {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            sum
        },
    ))
}

/// r5 = the ring of map 0, r8 = its position, r4 = where the record is written, less
/// [`mapped::RECORDS`]; to `full` without room.
fn reserve(asm: &mut Asm, bytes: i32, full: Label) {
    let room = asm.label();
    let used = [
        Insn::mov64(Reg::R3, Reg::R8),
        Insn::alu64(op::SUB, Reg::R3, Reg::R2),
    ];
    push(asm, &Insn::load_map_value(Reg::R5, 0, 0));
    asm.push(Insn::load(op::DW, Reg::R8, Reg::R5, mapped::HEAD));
    asm.push(Insn::load(op::DW, Reg::R2, Reg::R5, mapped::KNOWN_TAIL));
    push(asm, &used);
    asm.jump(Insn::jump64(op::JLE, Reg::R3, bytes - RECORD), room);
    asm.push(Insn::load(op::DW, Reg::R2, Reg::R5, mapped::TAIL));
    asm.push(Insn::store(op::DW, Reg::R5, mapped::KNOWN_TAIL, Reg::R2));
    push(asm, &used);
    asm.jump(Insn::jump64(op::JGT, Reg::R3, bytes - RECORD), full);
    asm.bind(room);
    asm.push(Insn::mov64(Reg::R4, Reg::R8));
    asm.push(Insn::alu64(op::AND, Reg::R4, bytes - 1));
    asm.push(Insn::alu64(op::ADD, Reg::R4, Reg::R5));
}

/// Reads up to 256 records of the least ring, and gives how many.
fn read(memory: &MapMemory, bytes: usize, sum: &mut u64) -> u64 {
    let word = |at: usize| memory.u64(0, at).expect("it is in the ring");
    let tail = word(mapped::TAIL as usize);
    let mut at = tail.load(Ordering::Relaxed);
    let head = word(mapped::HEAD as usize).load(Ordering::Acquire);
    let records = ((head - at) / RECORD as u64).min(256);
    for _ in 0..records {
        let record = mapped::RECORDS as usize + (at as usize & (bytes - 1));
        *sum += word(record + 24).load(Ordering::Relaxed) & 0xff;
        at += RECORD as u64;
    }
    tail.store(at, Ordering::Release);
    records
}

const MAKES: [Make; 7] = [
    entry,
    |to, _| plan(to, "weir's plan, another port's frame", "udp port 6000"),
    |to, _| plan(to, "weir's plan, copied to nowhere", "udp port 5000"),
    |to, bytes| port(to, bytes, Hook::TcIngress, true, COPYING_TC),
    kernel_ring,
    least_ring,
    tpacket,
];

pub(crate) fn parts(way: Arrival) -> Result<()> {
    let (sending, alone, costs) = Cost::of(&MAKES, way, FRAME_BYTES, ROUNDS)?;
    let title = format!(
        "Part by part, {}: ns per frame of {FRAME_BYTES} bytes, least of {ROUNDS} rounds",
        way.text()
    );
    let columns = ["program", "kernel", "without the host's", "TPACKET_V3 : it"];
    let mut table = Table::new(&title, &columns);
    table.row(&["(none, up to the host)".into(), ns(alone - sending)]);
    let [.., peer] = costs;
    for cost in costs {
        table.row(&[
            cost.name.into(),
            ns(cost.kernel - sending),
            ns(cost.kernel - alone),
            format!("{:.2}", (peer.kernel - sending) / (cost.kernel - sending)),
        ]);
    }
    table.print();
    Ok(())
}
