//! Bindings made, changed and removed as a tape says: after each step the plan
//! gives the verdicts of its definition, each filter in turn by the
//! interpreter. The definition is the one that the plan's own tests use.
#![no_main]

#[path = "../../crates/demux/tests/common/mod.rs"]
mod common;

use common::{Reference, check, frame, random_binding, step, wire_len};
use libfuzzer_sys::fuzz_target;
use weir_demux::{Binding, Filter, Plan, Verdict};
use weir_filter::lang::expr::{Context, compile};
use weir_lab::program::Tape;
use weir_wire::LinkType;

/// Steps of one input, at most.
const STEPS_MAX: usize = 12;

/// Bindings of one filter that one step adds, at most: a few such steps fill
/// lists and groups, and move a plan that runs directly into tables.
const AGAIN_MAX: usize = 40;

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape::new(data);
    let seed = u128::from(tape.word());
    // Few bindings run directly by default.
    let mut plan = match tape.below(4) {
        0 => Plan::new(seed),
        _ => Plan::indexed_only(seed),
    };
    let mut reference = Reference(Vec::new());
    let mut verdict = Verdict::new();
    for _ in 0..1 + tape.below(STEPS_MAX) {
        step(&mut plan, &mut reference, &mut tape, AGAIN_MAX, binding);
        let bytes = frame(&mut tape);
        let wire_len = wire_len(&mut tape, bytes.len());
        check(&plan, &reference, &mut verdict, &bytes, wire_len);
        let cut = tape.below(bytes.len().clamp(1, 256));
        check(&plan, &reference, &mut verdict, &bytes[..cut], wire_len);
    }
});

/// A binding of a random predicate, a random program or an expression.
fn binding(tape: &mut Tape) -> Binding {
    let mut binding = random_binding(tape);
    match tape.below(4) {
        0 => binding.filter = Filter::new(weir_lab::program::program(tape)),
        1 => {
            // Two of each shape, so that tables get several entries.
            let seed = u64::from(tape.byte() & 1);
            let forms = weir_lab::rules::mixed_forms(seed, weir_lab::rules::FORMS);
            let text = &forms[tape.below(forms.len())];
            let program = compile(text, &Context::new(LinkType::EN10MB));
            binding.filter = Filter::new(program.expect("every shape compiles"));
        }
        _ => {}
    }
    binding
}
