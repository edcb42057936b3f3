//! What the fuzz targets share: inputs taken apart, and every engine run side
//! by side.

use weir_filter::backend::cbpf;
use weir_filter::backend::ebpf::{self, EmitError, MEMORY_CONTEXT_BYTES, Options, Target};
use weir_filter::backend::native::Code;
use weir_filter::interp;
use weir_filter::ir::Program;
use weir_filter::lang::cbpf::{self as lang, Insn, VerifyError};
use weir_filter::opt;

pub mod input;

/// Programs beyond this many values are only verified and optimised: running
/// them in five engines would make an input slow and teach nothing.
const RUN_VALUES_MAX: usize = 20_000;

/// Holds every engine to the interpreter's verdict on one frame, before and
/// after optimising.
///
/// # Panics
/// Where any differs, or a verified program does not stay verified.
pub fn engines_agree(program: &Program, bytes: &[u8], wire_len: u32) {
    program.verify().expect("front ends give verified programs");
    let mut optimised = program.clone();
    opt::optimise(&mut optimised);
    if let Err(error) = optimised.verify() {
        panic!("the optimiser breaks a program: {error}\n{program}\n{optimised}");
    }
    if program.values.len() > RUN_VALUES_MAX {
        return;
    }
    let verdict = interp::run(program, bytes, wire_len);
    for (form, program) in [("as given", program), ("optimised", &optimised)] {
        let check = |engine: &str, found: u32| {
            let frame = (bytes, wire_len);
            assert_eq!(found, verdict, "{engine} {form} on {frame:02x?}\n{program}");
        };
        check("interpreter", interp::run(program, bytes, wire_len));
        if let Ok(code) = Code::compile(program) {
            check("native", code.run(bytes, wire_len));
        }
        if let Ok(insns) = cbpf::emit(program) {
            check("classic BPF", run_cbpf(&insns, bytes, wire_len));
        }
        match ebpf::emit(program, &Options::new(Target::Memory)) {
            Ok(insns) => check("eBPF", run_ebpf(&insns, bytes, wire_len)),
            Err(error) => refused_by_ebpf(&error),
        }
    }
}

/// Emitting may refuse what does not fit, and nothing else.
fn refused_by_ebpf(error: &EmitError) {
    assert!(!error.to_string().is_empty());
}

/// Runs classic BPF that was emitted, which verifies unless it is too long.
fn run_cbpf(insns: &[Insn], bytes: &[u8], wire_len: u32) -> u32 {
    match lang::verify(insns) {
        Ok(()) | Err(VerifyError::TooLong(_)) => lang::run(insns, bytes, wire_len),
        Err(error) => panic!("{error}\n{}", lang::text(insns, lang::Form::Listing)),
    }
}

/// Runs a program of `Target::Memory` in a virtual machine that checks every
/// access.
fn run_ebpf(insns: &[ebpf::Insn], bytes: &[u8], wire_len: u32) -> u32 {
    let code: Vec<u8> = insns.iter().flat_map(|insn| insn.to_le_bytes()).collect();
    let machine = rbpf::EbpfVmMbuff::new(Some(&code)).expect("the machine takes the program");
    let start = bytes.as_ptr() as u64;
    let mut context = [0_u8; MEMORY_CONTEXT_BYTES];
    context[..8].copy_from_slice(&start.to_ne_bytes());
    context[8..16].copy_from_slice(&(start + bytes.len() as u64).to_ne_bytes());
    context[16..].copy_from_slice(&u64::from(wire_len).to_ne_bytes());
    let result = machine.execute_program(bytes, &context);
    result.expect("the program stays in bounds") as u32
}
