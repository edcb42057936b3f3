//! Native code in many threads at once, and reuse of its memory.
//!
//! There is only one test in this file, since the counts are those of the process.

use std::sync::Barrier;
use std::thread;
use weir_filter::backend::native::{Arch, Code, bytes_used};
use weir_filter::interp::Interp;
use weir_filter::ir::Program;
use weir_lab::program::{Frame, frames, seeded};

const THREADS: u64 = 4;
const ROUNDS: u64 = 200;

fn verdicts(code: &Code, frames: &[Frame]) -> Vec<u32> {
    let verdict = |frame: &Frame| code.run(&frame.bytes, frame.wire_len);
    frames.iter().map(verdict).collect()
}

fn expected(program: &Program, frames: &[Frame]) -> Vec<u32> {
    let mut oracle = Interp::new(program);
    let verdict = |frame: &Frame| oracle.run(&frame.bytes, frame.wire_len);
    frames.iter().map(verdict).collect()
}

/// Compiles, runs and drops programs, of which a few live at one time.
fn churn(seed: u64) {
    let frames = frames(seed, 8);
    let mut alive: Vec<(Program, Code)> = Vec::new();
    for round in 0..ROUNDS {
        let program = seeded(seed * 10_000 + round);
        let code = Code::compile(&program).unwrap();
        alive.push((program, code));
        if alive.len() > 8 {
            alive.swap_remove(round as usize * 5 % 8);
        }
        for (program, code) in &alive {
            assert_eq!(verdicts(code, &frames), expected(program, &frames));
        }
    }
}

#[test]
fn threads_compile_run_and_drop_at_once_and_all_memory_comes_back() {
    if Arch::host().is_none() {
        return;
    }
    assert_eq!(bytes_used(), 0);
    let shared_program = seeded(1);
    let shared_frames = frames(1, 50);
    let want = expected(&shared_program, &shared_frames);
    let shared = Code::compile(&shared_program).unwrap();
    let shared_bytes = bytes_used();
    assert!(shared_bytes >= shared.size_bytes());
    let start = Barrier::new(THREADS as usize + 1);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            scope.spawn({
                let start = &start;
                move || {
                    start.wait();
                    churn(seed);
                }
            });
        }
        scope.spawn(|| {
            start.wait();
            for _ in 0..ROUNDS * 10 {
                assert_eq!(verdicts(&shared, &shared_frames), want);
            }
        });
    });
    assert_eq!(bytes_used(), shared_bytes);
    // Another thread may run and drop the code.
    let moved = thread::spawn(move || {
        assert_eq!(verdicts(&shared, &shared_frames), want);
        drop(shared);
    });
    moved.join().unwrap();
    assert_eq!(bytes_used(), 0);
}
