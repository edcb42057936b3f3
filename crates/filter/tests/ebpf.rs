//! Emitted eBPF, run by a virtual machine in user space, equals the interpreter. The
//! crate `link` tests it in the kernel.

use proptest::prelude::*;
use weir_filter::backend::ebpf::{
    EmitError, Insn, Limits, Listing, MEMORY_CONTEXT_BYTES, Options, Target, XdpLen, emit, op,
};
use weir_filter::interp::Interp;
use weir_filter::ir::{BinOp, Builder, Cmp, Operand, Program, Width};
use weir_lab::program::{Frame, Tape, frame, frames, program, seeded};

fn bytes_of(insns: &[Insn]) -> Vec<u8> {
    insns.iter().flat_map(|insn| insn.to_le_bytes()).collect()
}

/// Runs whole programs for `Target::Memory`.
struct Machine<'a>(rbpf::EbpfVmMbuff<'a>);

impl<'a> Machine<'a> {
    fn new(code: &'a [u8]) -> Machine<'a> {
        Machine(rbpf::EbpfVmMbuff::new(Some(code)).expect("the machine takes the program"))
    }

    fn run(&self, frame: &Frame) -> u32 {
        let start = frame.bytes.as_ptr() as u64;
        let mut context = [0_u8; MEMORY_CONTEXT_BYTES];
        context[..8].copy_from_slice(&start.to_ne_bytes());
        context[8..16].copy_from_slice(&(start + frame.bytes.len() as u64).to_ne_bytes());
        context[16..].copy_from_slice(&u64::from(frame.wire_len).to_ne_bytes());
        let result = self.0.execute_program(&frame.bytes, &context);
        result.expect("the program stays in bounds") as u32
    }
}

fn memory(program: &Program) -> Vec<Insn> {
    emit(program, &Options::new(Target::Memory)).expect("the program fits")
}

fn assert_equal(program: &Program, frames: &[Frame]) {
    let insns = memory(program);
    let code = bytes_of(&insns);
    let machine = Machine::new(&code);
    let mut oracle = Interp::new(program);
    for frame in frames {
        let expected = oracle.run(&frame.bytes, frame.wire_len);
        let found = machine.run(frame);
        assert_eq!(found, expected, "{program}\n{}\n{frame:?}", Listing(&insns));
    }
}

#[test]
fn random_programs_give_the_interpreters_verdicts() {
    for seed in 0..600 {
        assert_equal(&seeded(seed), &frames(seed, 40));
    }
}

proptest! {
    #[test]
    fn any_program_gives_the_interpreters_verdicts(
        bytes in proptest::collection::vec(any::<u8>(), 0..1500),
        frame_bytes in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut tape = Tape::new(frame_bytes);
        let frames: Vec<Frame> = (0..8).map(|_| frame(&mut tape)).collect();
        assert_equal(&program(&mut Tape::new(bytes)), &frames);
    }
}

/// Each operation on edge-case operands, with a constant on the left, on the right, and
/// without constants: every form of generated code.
#[test]
fn operations_agree_at_their_edges() {
    let words = [
        0_u32,
        1,
        2,
        14,
        31,
        32,
        33,
        63,
        64,
        65,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX,
    ];
    let ops = [
        BinOp::Add,
        BinOp::Sub,
        BinOp::Mul,
        BinOp::Div,
        BinOp::Mod,
        BinOp::And,
        BinOp::Or,
        BinOp::Xor,
        BinOp::Shl,
        BinOp::Shr,
    ];
    let cmps = [
        Cmp::Eq,
        Cmp::Ne,
        Cmp::Lt,
        Cmp::Le,
        Cmp::Gt,
        Cmp::Ge,
        Cmp::Set,
        Cmp::Clear,
    ];
    for a in words {
        for b in words {
            let frame = Frame {
                bytes: [a.to_be_bytes(), b.to_be_bytes()].concat(),
                wire_len: 8,
            };
            for form in 0..4 {
                let mut builder = Builder::new();
                let left = builder.load(Width::B4, None, 0);
                let right = builder.load(Width::B4, None, 4);
                let x: Operand = if form & 1 == 0 { left.into() } else { a.into() };
                let y: Operand = if form & 2 == 0 {
                    right.into()
                } else {
                    b.into()
                };
                let mut sum = builder.bin(BinOp::Or, 1 << 31, 0);
                for cmp in cmps {
                    let truth = builder.test(cmp, x, y);
                    sum = builder.bin(BinOp::Mul, sum, 3);
                    sum = builder.bin(BinOp::Add, sum, truth);
                }
                for op in ops {
                    // A zero divisor ends the program; another test covers that.
                    if b != 0 || !op.may_reject() {
                        let value = builder.bin(op, x, y);
                        sum = builder.bin(BinOp::Mul, sum, 31);
                        sum = builder.bin(BinOp::Xor, sum, value);
                    }
                }
                builder.ret(sum);
                assert_equal(&builder.finish(), std::slice::from_ref(&frame));
            }
        }
    }
}

#[test]
fn each_comparison_branches_right() {
    let cmps = [
        Cmp::Eq,
        Cmp::Ne,
        Cmp::Lt,
        Cmp::Le,
        Cmp::Gt,
        Cmp::Ge,
        Cmp::Set,
        Cmp::Clear,
    ];
    for (a, b) in [
        (1_u32, 2_u32),
        (2, 1),
        (3, 3),
        (0, 0),
        (u32::MAX, 1),
        (1, 1 << 31),
    ] {
        let frame = Frame {
            bytes: [a.to_be_bytes(), b.to_be_bytes()].concat(),
            wire_len: 8,
        };
        for cmp in cmps {
            for (x, y) in [
                ("v0", "v1"),
                ("v0", &*b.to_string()),
                (&*a.to_string(), "v1"),
            ] {
                for order in ["b1, b2", "b2, b1"] {
                    let (name, text) = (
                        cmp,
                        format!(
                            "filter {{\nb0:\nv0 = load.4 [0]\nv1 = load.4 [4]\nbr {cmp} {x}, {y}, {order}\nb1:\nret 1\nb2:\nret 2\n}}"
                        ),
                    );
                    let program: Program = text.parse().unwrap_or_else(|e| panic!("{name}: {e}"));
                    assert_equal(&program, std::slice::from_ref(&frame));
                }
            }
        }
    }
}

#[test]
fn division_by_zero_rejects() {
    for text in [
        "v0 = load.1 [0]\nv1 = div 7, v0\nret 5",
        "v0 = load.1 [0]\nv1 = mod 7, v0\nret 5",
        "v0 = load.1 [0]\nv1 = div v0, 0\nret 5",
    ] {
        let program: Program = format!("filter {{\nb0:\n{text}\n}}").parse().unwrap();
        let frames = [0, 1].map(|byte| Frame {
            bytes: vec![byte],
            wire_len: 1,
        });
        assert_equal(&program, &frames);
    }
}

/// A program with `count` values that live at one time and are all used at the end.
fn crowd(count: u32) -> Program {
    let mut builder = Builder::new();
    let values: Vec<_> = (0..count)
        .map(|index| {
            let byte = builder.load(Width::B1, None, index % 60);
            builder.bin(BinOp::Add, byte, index)
        })
        .collect();
    let mut sum = builder.wire_len();
    for value in values {
        sum = builder.bin(BinOp::Mul, sum, 7);
        sum = builder.bin(BinOp::Xor, sum, value);
    }
    builder.ret(sum);
    builder.finish()
}

#[test]
fn values_beyond_the_registers_go_to_the_stack() {
    for count in [1, 5, 6, 7, 8, 9, 20, 60] {
        assert_equal(&crowd(count), &frames(u64::from(count), 20));
    }
}

#[test]
fn values_beyond_the_stack_are_an_error() {
    let error = emit(&crowd(80), &Options::new(Target::Memory)).unwrap_err();
    assert!(matches!(error, EmitError::TooManyLive { .. }), "{error}");
}

/// Parameters rotate and are exchanged along an edge: the hard cases of a parallel
/// assignment, in registers and on the stack.
#[test]
fn parallel_assignments_do_not_overwrite_what_is_still_to_be_read() {
    for count in [2_usize, 3, 5, 9, 12, 30] {
        for shift in [1, 2, count - 1] {
            let mut builder = Builder::new();
            let (first, second) = (builder.block(), builder.block());
            let entry: Vec<_> = (0..count as u32)
                .map(|index| builder.load(Width::B1, None, index).into())
                .collect();
            let p: Vec<_> = (0..count).map(|_| builder.param(first)).collect();
            let q: Vec<_> = (0..count).map(|_| builder.param(second)).collect();
            builder.jump(first, entry);
            builder.switch_to(first);
            let mut turned: Vec<_> = p.iter().map(|&value| value.into()).collect();
            turned.rotate_left(shift);
            turned[0] = 5.into();
            // Live later too, so that p and q cannot share a register.
            builder.jump(second, turned);
            builder.switch_to(second);
            let mut sum = builder.bin(BinOp::Or, 1, 0);
            for value in q.into_iter().chain(p.into_iter().step_by(2)) {
                sum = builder.bin(BinOp::Mul, sum, 31);
                sum = builder.bin(BinOp::Add, sum, value);
            }
            builder.ret(sum);
            assert_equal(&builder.finish(), &frames(count as u64, 10));
        }
    }
}

/// Loads of the last byte that direct access reaches.
#[test]
fn loads_reach_to_the_last_byte_that_direct_access_has() {
    let text = |offset: u32, by_value: bool| {
        let load = if by_value {
            format!("v0 = load.4 [0]\nv1 = load.1 [v0 + {}]", offset % 7)
        } else {
            format!("v0 = len\nv1 = load.1 [{offset}]")
        };
        format!("filter {{\nb0:\n{load}\nv2 = or v1, 0x100\nret v2\n}}")
    };
    for offset in [32_760_u32, 32_767, 32_768, 40_000, 65_533, 65_534] {
        for by_value in [false, true] {
            for len in [offset, offset + 1] {
                let mut bytes = vec![0; len as usize];
                bytes[..4].copy_from_slice(&(offset - offset % 7).to_be_bytes());
                if let Some(byte) = bytes.get_mut(offset as usize) {
                    *byte = 0x42;
                }
                let frame = Frame {
                    bytes,
                    wire_len: len,
                };
                let program: Program = text(offset, by_value).parse().unwrap();
                assert_equal(&program, &[frame]);
            }
        }
    }
}

#[test]
fn one_check_serves_all_loads_that_every_accepting_path_makes() {
    let program: Program = "filter {
b0:
  v0 = load.2 [12]
  br eq v0, 0x800, b1, b5
b1:
  v1 = load.1 [23]
  br eq v1, 6, b2, b5
b2:
  v2 = load.1 [14]
  v3 = and v2, 0xf
  v4 = shl v3, 2
  v5 = load.2 [v4 + 14]
  br eq v5, 80, b4, b3
b3:
  v6 = load.2 [v4 + 16]
  br eq v6, 80, b4, b5
b4:
  ret 262144
b5:
  ret 0
}"
    .parse()
    .unwrap();
    let insns = emit(&program, &Options::new(Target::Xdp(XdpLen::Linear))).unwrap();
    let checks = insns
        .iter()
        .filter(|insn| insn.code == op::JMP | op::JGT | op::X);
    // One check for the fixed headers, and two after the variable header, whose second
    // port only some accepting paths read.
    assert_eq!(checks.count(), 3, "{}", Listing(&insns));
    assert_equal(&program, &frames(1, 50));
}

/// A chain of tests with jumps beyond 16 bits.
fn chain(tests: u32) -> Program {
    let mut builder = Builder::new();
    let accept = builder.block();
    let value = builder.load(Width::B4, None, 0);
    for constant in 0..tests {
        let next = builder.block();
        builder.branch(Cmp::Eq, value, constant * 3, accept, next);
        builder.switch_to(next);
    }
    builder.ret(0);
    builder.switch_to(accept);
    builder.ret(1);
    builder.finish()
}

#[test]
fn far_jumps_are_long_or_an_error() {
    let program = chain(40_000);
    let mut options = Options::new(Target::Memory);
    let insns = emit(&program, &options).unwrap();
    let long = op::JMP32 | op::JA;
    assert!(insns.iter().any(|insn| insn.code == long), "no gotol");
    for (at, insn) in insns.iter().enumerate() {
        let class = insn.code & 7;
        let jumps = class == op::JMP32 || class == op::JMP && insn.code & 0xf0 <= op::JNE;
        if jumps {
            let off = if insn.code == long {
                insn.imm
            } else {
                i32::from(insn.off)
            };
            let to = at as i64 + 1 + i64::from(off);
            assert!((0..insns.len() as i64).contains(&to), "{at} jumps to {to}");
        }
    }
    options.limits.long_jumps = false;
    let error = emit(&program, &options).unwrap_err();
    assert!(matches!(error, EmitError::JumpTooFar { .. }), "{error}");
    options.limits = Limits {
        insns_max: 4_096,
        ..Limits::default()
    };
    let error = emit(&program, &options).unwrap_err();
    assert!(
        matches!(error, EmitError::TooManyInsns { max: 4_096, .. }),
        "{error}"
    );
}

#[test]
fn instructions_survive_their_bytes() {
    for insn in memory(&seeded(7)) {
        assert_eq!(Insn::from_le_bytes(insn.to_le_bytes()), insn);
    }
}
