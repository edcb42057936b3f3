//! The plan in the kernel: verdicts and deliveries of test runs, compared with
//! the plan in user space and with each filter alone.
//!
//! More rounds than by default: `WEIR_PLAN_ROUNDS=1000 cargo test -p weir-link
//! --test plan_kernel random`

#[path = "../bound/mod.rs"]
mod bound;
mod churn;
#[path = "../../../demux/tests/common/mod.rs"]
mod common;
mod fanout;
mod many;
mod rig;
mod verifier;

use bound::binding;
use common::{Pred, five_tuple, frame, ip_frame, program, random_filter};
use rig::{RING_BYTES, Rig, fits, permitted};
use weir_demux::kernel::{Clock, Hook, MapRole, Options, PortSettings, Recompile, limits};
use weir_demux::{Binding, Filter, Target};
use weir_filter::ir::Program;
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::program::Tape;
use weir_lab::{corpus, testenv};
use weir_link::pcap::Reader;
use weir_wire::LinkType;

const HOOKS: [Hook; 3] = [Hook::Xdp, Hook::TcIngress, Hook::TcEgress];

/// Number of ports in use.
const PORTS: u32 = 4;

#[test]
fn one_that_takes_everything() {
    if !permitted() {
        return;
    }
    for hook in HOOKS {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        rig.bind(binding(Filter::new(Program::constant(96)), 10, false, 1, 7));
        for len in [14, 15, 16, 17, 59, 60, 61, 63, 64, 65, 95, 96, 97, 1514] {
            rig.check(&vec![0x55; len]);
        }
        let kept = if hook == Hook::TcEgress {
            0
        } else {
            rig.frames
        };
        assert_eq!(rig.taken, kept, "what leaves goes on whoever takes it");
    }
}

/// Each size class, and chunks.
#[test]
fn frames_of_every_length_arrive_whole() {
    if !permitted() {
        return;
    }
    for hook in HOOKS {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        rig.bind(binding(
            Filter::new(Program::constant(1 << 18)),
            10,
            true,
            0,
            1,
        ));
        let lens = (60..3_400).step_by(37).chain([128, 129, 2047, 2048, 2049]);
        for len in lens {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
            rig.check(&bytes);
        }
    }
}

fn random_binding(tape: &mut Tape) -> Binding {
    let mut program = random_filter(tape);
    if tape.chance(70) {
        optimise(&mut program);
    }
    Binding {
        filter: Filter::new(program),
        priority: tape.pick(&[0, 5, 5, 5, 9, u16::MAX]),
        copy: tape.chance(50),
        target: tape.pick(&[
            Target::Port(0),
            Target::Port(1),
            Target::Port(2),
            Target::Port(3),
            Target::Kernel,
            Target::Drop,
        ]),
        tag: tape.word(),
    }
}

/// A frame with an 802.1Q tag.
fn tagged(bytes: &[u8], tag: u16) -> Vec<u8> {
    let (addresses, rest) = bytes.split_at(12);
    [addresses, &[0x81, 0], &tag.to_be_bytes(), rest].concat()
}

fn rounds(default: u64) -> u64 {
    std::env::var("WEIR_PLAN_ROUNDS").map_or(default, |text| {
        text.parse().expect("WEIR_PLAN_ROUNDS is a number")
    })
}

#[test]
fn random_bindings_and_changes_give_the_plans_verdicts() {
    if !permitted() {
        return;
    }
    let (mut frames, mut delivered, mut taken, mut whole) = (0, 0, 0, 0);
    for seed in 0..rounds(24) {
        println!("seed {seed}");
        let mut tape = Tape::seeded(seed, 60_000);
        let hook = HOOKS[seed as usize % HOOKS.len()];
        let options = Options {
            seed: u128::from(seed),
            keys_hint: 64,
            ..Options::default()
        };
        let mut rig = Rig::new(hook, options, PORTS);
        rig.vlan = (hook != Hook::Xdp && tape.chance(40)).then(|| tape.word() as u16 & 0xefff);
        for slot in 0..PORTS {
            rig.set_port(
                slot,
                PortSettings {
                    snap_len: tape.pick(&[0, 0, 60, 1]),
                    clock: tape.pick(&[Clock::None, Clock::Monotonic, Clock::Boot, Clock::Tai]),
                    ..PortSettings::default()
                },
            );
        }
        for _ in 0..6 {
            for _ in 0..tape.below(8) {
                rig.bind(random_binding(&mut tape));
            }
            if !rig.bound.is_empty() && tape.chance(60) {
                rig.unbind(tape.below(rig.bound.len()));
            }
            if !rig.bound.is_empty() && tape.chance(60) {
                let index = tape.below(rig.bound.len());
                rig.change_filter(index, Filter::new(random_filter(&mut tape)));
            }
            for _ in 0..25 {
                let bytes = frame(&mut tape);
                if !fits(hook, &bytes) {
                    continue;
                }
                match rig.vlan {
                    None => rig.check(&bytes),
                    Some(tag) => rig.check(&tagged(&bytes, tag)),
                }
            }
        }
        whole += rig.whole;
        frames += rig.frames;
        delivered += rig.delivered;
        taken += rig.taken;
    }
    println!("{frames} frames, {delivered} delivered, {taken} taken, {whole} times whole");
    assert!(delivered > frames / 4 && taken > frames / 20 && whole > 0);
}

/// One connection of many.
fn connection(number: u32) -> (Pred, Vec<u8>) {
    let (src, port) = (0x0a00_0000 + number % 1_000, (number / 1_000) as u16);
    let frame = ip_frame(17, src, 0xc0a8_0001, (4_000 + port, 53), 5);
    (five_tuple(17, src, 0xc0a8_0001, 4_000 + port, 53), frame)
}

#[test]
fn tables_grow_and_shrink_with_thousands_of_keys() {
    if !permitted() {
        return;
    }
    let options = Options {
        keys_hint: 64,
        ..Options::default()
    };
    let mut rig = Rig::new(Hook::Xdp, options, PORTS);
    let (mut renewals, mut programs) = (0, 0);
    for number in 0..5_000 {
        let filter = Filter::new(program(&connection(number).0));
        let (need, renewed) = rig.bind(binding(filter, 5, false, number % PORTS, number));
        renewals += usize::from(renewed);
        programs += usize::from(need == Recompile::Required);
    }
    assert_eq!(renewals, 7, "64, 128, 256 … 8192 keys");
    assert_eq!(programs, renewals + 1, "one shape");
    for number in (0..5_100).step_by(97) {
        rig.check(&connection(number).1);
    }
    assert_eq!(rig.taken, rig.frames - 1, "one is nobody's");
    for index in (0..rig.bound.len()).rev().step_by(2) {
        rig.unbind(index);
    }
    rig.settle();
    for number in (0..5_000).step_by(97) {
        rig.check(&connection(number).1);
    }
    // Freed memory is reused: as many further bindings do not make the tables
    // grow.
    for number in 5_000..7_500 {
        let filter = Filter::new(program(&connection(number).0));
        let change = rig.bind(binding(filter, 5, false, 0, number));
        assert_eq!(change, (Recompile::No, false));
    }
    rig.check(&connection(7_499).1);
}

#[test]
fn bindings_under_one_key_have_a_limit_and_copies_too() {
    if !permitted() {
        return;
    }
    let mut rig = Rig::new(Hook::Xdp, Options::default(), 1);
    rig.lossy = true;
    let everything = Filter::new(Program::constant(40));
    for tag in 0..limits::KEY_BINDINGS_MAX as u32 {
        rig.bind(binding(everything.clone(), 5, true, 0, tag));
    }
    let error = rig.kernel.bind(binding(everything.clone(), 5, true, 0, 0));
    let text = error.err().map(|error| error.to_string()).unwrap();
    assert!(
        text.contains("1025 bindings under one key, and 1024"),
        "{text}"
    );

    // A taker after all copies gets the frame; targets beyond the limit are
    // counted.
    let (taker, frame) = connection(1);
    rig.bind(binding(Filter::new(program(&taker)), 1, false, 0, 7_777));
    let (passed, got) = rig.run(&frame);
    let copies = limits::DELIVERIES_MAX as usize;
    assert!(!passed);
    assert_eq!(got[0].len(), copies + 1);
    assert_eq!(got[0][copies].0, 7_777);
    assert!(
        got[0][..copies]
            .iter()
            .map(|got| got.0)
            .eq(0..copies as u32)
    );
    let counters = rig.maps.counters(0).unwrap();
    let lost = (limits::KEY_BINDINGS_MAX - copies) as u64;
    assert_eq!(
        (counters.delivered, counters.lost),
        (copies as u64 + 1, lost)
    );
}

/// Frames that a port loses are counted for its owner and in the next record,
/// which then has the long header.
#[test]
fn losses_are_recorded_with_the_next_frame() {
    if !permitted() {
        return;
    }
    for hook in HOOKS {
        losses_are_recorded(hook, 1_000, 8 + 40 + 1_024);
        losses_are_recorded(hook, 60, 8 + 16 + 64);
    }
}

fn losses_are_recorded(hook: Hook, frame_bytes: usize, record_bytes: usize) {
    let mut rig = Rig::new(hook, Options::default(), 2);
    let everything = Filter::new(Program::constant(1 << 18));
    rig.bind(binding(everything.clone(), 5, false, 1, 3));
    let key = 1_u32.to_ne_bytes();
    assert!(rig.maps.map(MapRole::Rings).delete(&key).unwrap());
    let frame = vec![0x55; frame_bytes];
    for _ in 0..5 {
        assert_eq!(
            rig.run(&frame),
            (hook == Hook::TcEgress, vec![vec![], vec![]])
        );
    }
    rig.put_ring(1);
    assert_eq!(rig.lost_with(&frame), [5]);
    assert_eq!(rig.lost_with(&frame), [0]);
    // Full: the ring has no room for another record.
    let fit = RING_BYTES / record_bytes;
    for _ in 0..fit + 100 {
        rig.run_only(&frame);
    }
    let told = rig.lost_with(&frame);
    assert_eq!(told.len(), fit, "the last one found no room");
    assert_eq!(rig.lost_with(&frame), [101]);
    let counters = rig.maps.counters(1).unwrap();
    assert_eq!(
        counters.delivered + counters.lost,
        (5 + 2 + fit + 101 + 1) as u64
    );
    assert_eq!(counters.bytes, counters.delivered * frame_bytes as u64);
}

/// Expression filters on frames of real captures.
#[test]
fn expressions_on_real_captures() {
    if !permitted() {
        return;
    }
    let frames = captured(30);
    if frames.is_empty() {
        return;
    }
    let mut tape = Tape::seeded(7, 100_000);
    let compiled: Vec<Program> = corpus::entries()
        .iter()
        .filter_map(|entry| compile(&entry.text, &Context::new(LinkType::EN10MB)).ok())
        .collect();
    let (mut runs, mut delivered) = (0, 0);
    for (index, hook) in HOOKS.into_iter().cycle().take(9).enumerate() {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        for tag in 0..40 {
            let mut program = compiled[tape.below(compiled.len())].clone();
            optimise(&mut program);
            let filter = Filter::new(program);
            let (priority, copy) = (tape.pick(&[1, 5, 9]), tape.chance(70));
            rig.bind(binding(filter, priority, copy, tag % PORTS, tag));
        }
        for bytes in frames.iter().skip(index).step_by(4) {
            if fits(hook, bytes) {
                rig.check(bytes);
            }
        }
        runs += rig.frames;
        delivered += rig.delivered;
    }
    println!("{runs} frames, {delivered} delivered");
    assert!(delivered > runs && runs > 500, "{delivered} of {runs}");
}

/// Frames of all captures, some from each file.
fn captured(per_file: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for path in testenv::capture_files() {
        let mut reader = Reader::open(&path).expect("a capture opens");
        let mut of_file = Vec::new();
        // A damaged file yields the frames before the damage.
        while let Ok(Some(frame)) = reader.next_frame() {
            let len = frame.bytes.len();
            if frame.linktype() == LinkType::EN10MB && (14..=3_400).contains(&len) {
                of_file.push(frame.bytes.to_vec());
            }
        }
        let step = of_file.len().div_ceil(per_file).max(1);
        frames.extend(of_file.into_iter().step_by(step));
    }
    frames
}
