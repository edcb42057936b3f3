//! The plan in the kernel: verdicts and what is delivered, by test runs,
//! against the plan in user space and against each filter by itself.
//!
//! More rounds than the default:
//! `WEIR_PLAN_ROUNDS=1000 cargo test -p weir-link --test plan_kernel random`

#[path = "../../../demux/tests/common/mod.rs"]
mod common;
mod rig;

use common::{frame, random_filter};
use rig::{Rig, fits, permitted};
use weir_demux::kernel::{Clock, Hook, Options, PortSettings};
use weir_demux::{Binding, Filter, Target};
use weir_filter::ir::Program;
use weir_filter::opt::optimise;
use weir_lab::program::Tape;

const HOOKS: [Hook; 3] = [Hook::Xdp, Hook::TcIngress, Hook::TcEgress];

/// Ports in use.
const PORTS: u32 = 4;

fn binding(filter: Filter, priority: u16, copy: bool, port: u32, tag: u32) -> Binding {
    Binding {
        filter,
        priority,
        copy,
        target: Target::Port(port),
        tag,
    }
}

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
        assert_eq!(rig.taken, rig.frames);
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
    let (mut frames, mut delivered, mut taken) = (0, 0, 0);
    for seed in 0..rounds(60) {
        println!("seed {seed}");
        let mut tape = Tape::seeded(seed, 60_000);
        let hook = HOOKS[seed as usize % HOOKS.len()];
        let options = Options {
            seed: u128::from(seed),
            keys_hint: 64,
            ..Options::default()
        };
        let mut rig = Rig::new(hook, options, PORTS);
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
                if fits(hook, &bytes) {
                    rig.check(&bytes);
                }
            }
        }
        frames += rig.frames;
        delivered += rig.delivered;
        taken += rig.taken;
    }
    println!("{frames} frames, {delivered} delivered, {taken} taken");
    assert!(delivered > frames / 4 && taken > frames / 20);
}
