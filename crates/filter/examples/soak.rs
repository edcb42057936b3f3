//! Random programs for any duration: interpreter, optimiser, native code and classic
//! BPF have the same verdict on every frame.
//!
//! ```text
//! cargo run --release -p weir-filter --example soak -- [PROGRAMS [FIRST_SEED]]
//! ```
//!
//! The default is a million programs, a fifth of them with dense tests, on 24 frames
//! each. The example stops at the first difference and prints program, frame and seed;
//! `soak 1 SEED` repeats it. The normal tests do the same for some thousands of
//! programs.

use std::process::ExitCode;
use std::time::Instant;
use weir_filter::backend::cbpf::{EmitError, emit};
use weir_filter::backend::native::{Arch, Code, NativeError};
use weir_filter::interp::Interp;
use weir_filter::ir::Program;
use weir_filter::lang::cbpf;
use weir_filter::opt::optimise;
use weir_lab::program::{Frame, Tape, dense_frame, dense_program, frame, program};

const PROGRAMS: u64 = 1_000_000;
const FRAMES: usize = 24;

/// Counts of comparisons so far.
#[derive(Default)]
struct Count {
    programs: u64,
    verdicts: u64,
    accepted: u64,
    native: u64,
    classic: u64,
    /// Programs that need more scratch memory than classic BPF has.
    too_wide: u64,
}

/// The program and the frames of a seed.
fn drawn(seed: u64) -> (Program, Vec<Frame>) {
    let mut code = Tape::seeded(seed, 2_000);
    let mut bytes = Tape::seeded(!seed, 200 * FRAMES);
    let is_dense = seed.is_multiple_of(5);
    let program = if is_dense {
        dense_program(&mut code)
    } else {
        program(&mut code)
    };
    let draw = |_| {
        if is_dense {
            dense_frame(&mut bytes)
        } else {
            frame(&mut bytes)
        }
    };
    (program, (0..FRAMES).map(draw).collect())
}

/// Compares the verdicts of one back end with those of the interpreter.
fn compare(
    frames: &[Frame],
    expected: &[u32],
    what: &str,
    mut run: impl FnMut(&Frame) -> u32,
) -> Result<(), String> {
    for (frame, &expected) in frames.iter().zip(expected) {
        let found = run(frame);
        if found != expected {
            return Err(format!("{what} gives {found}, not {expected}: {frame:?}"));
        }
    }
    Ok(())
}

/// Runs a program by all back ends; `what` describes the program.
fn ways(
    program: &Program,
    frames: &[Frame],
    expected: &[u32],
    what: &str,
    count: &mut Count,
) -> Result<(), String> {
    match Code::compile(program) {
        Ok(code) => {
            count.native += 1;
            let what = format!("native code, {what}");
            compare(frames, expected, &what, |frame| {
                code.run(&frame.bytes, frame.wire_len)
            })?;
        }
        Err(NativeError::Unsupported) if Arch::host().is_none() => {}
        Err(error) => return Err(format!("native code, {what}: {error}")),
    }
    match emit(program) {
        Ok(insns) => {
            count.classic += 1;
            cbpf::verify(&insns).map_err(|error| format!("classic BPF, {what}: {error}"))?;
            let what = format!("classic BPF, {what}");
            compare(frames, expected, &what, |frame| {
                cbpf::run(&insns, &frame.bytes, frame.wire_len)
            })
        }
        Err(EmitError::Scratch { .. }) => {
            count.too_wide += 1;
            Ok(())
        }
        Err(error) => Err(format!("classic BPF, {what}: {error}")),
    }
}

fn check(plain: &Program, frames: &[Frame], count: &mut Count) -> Result<(), String> {
    let mut oracle = Interp::new(plain);
    let run = |frame: &Frame| oracle.run(&frame.bytes, frame.wire_len);
    let expected: Vec<u32> = frames.iter().map(run).collect();
    count.programs += 1;
    count.verdicts += expected.len() as u64;
    count.accepted += expected.iter().filter(|&&verdict| verdict != 0).count() as u64;
    ways(plain, frames, &expected, "as it is", count)?;
    let mut optimised = plain.clone();
    optimise(&mut optimised);
    let error = |error| format!("optimised: {error}\n{optimised}");
    optimised.verify().map_err(error)?;
    let mut interp = Interp::new(&optimised);
    compare(frames, &expected, "the optimised program", |frame| {
        interp.run(&frame.bytes, frame.wire_len)
    })
    .and_then(|()| ways(&optimised, frames, &expected, "optimised", count))
    .map_err(|error| format!("{error}\noptimised {optimised}"))
}

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (programs, first) = match (numbers.next(), numbers.next(), numbers.next()) {
        (None, ..) => (PROGRAMS, 0),
        (Some(Ok(programs)), None, _) => (programs, 0),
        (Some(Ok(programs)), Some(Ok(first)), None) => (programs, first),
        _ => {
            eprintln!("usage: soak [PROGRAMS [FIRST_SEED]]");
            return ExitCode::from(2);
        }
    };
    let (start, mut count) = (Instant::now(), Count::default());
    for number in 0..programs {
        let seed = first.wrapping_add(number);
        let (plain, frames) = drawn(seed);
        if let Err(error) = check(&plain, &frames, &mut count) {
            eprintln!("seed {seed}: {error}\nof {plain}");
            return ExitCode::FAILURE;
        }
        if (number + 1) % programs.div_ceil(10) == 0 {
            eprintln!(
                "{} of {programs} programs, {:.0?}",
                number + 1,
                start.elapsed()
            );
        }
    }
    println!(
        "{} programs from seed {first}, {} verdicts ({} accept): all ways agree. Programs as \
         native code {}, as classic BPF {} ({} need more scratch memory than it has). {:.0?}",
        count.programs,
        count.verdicts,
        count.accepted,
        count.native,
        count.classic,
        count.too_wide,
        start.elapsed()
    );
    ExitCode::SUCCESS
}
