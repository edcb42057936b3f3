//! Native code equals the interpreter, operation by operation and edge by edge. Frames
//! end directly before an inaccessible page.

use weir_filter::backend::Runner;
use weir_filter::backend::native::{Arch, Code, NativeError, SLOTS_MAX, assemble, listing};
use weir_filter::interp::Interp;
use weir_filter::ir::{BinOp, Builder, Cmp, Operand, Program, SNAPLEN_ALL, Term, Value, Width};
use weir_lab::guard_page::Guarded;

/// Edge-case operands.
const EDGES: [u32; 21] = [
    0,
    1,
    2,
    3,
    7,
    8,
    31,
    32,
    33,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x100,
    4_095,
    4_096,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    u32::MAX,
];

const BIN_OPS: [BinOp; 10] = [
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

const CMPS: [Cmp; 8] = [
    Cmp::Eq,
    Cmp::Ne,
    Cmp::Lt,
    Cmp::Le,
    Cmp::Gt,
    Cmp::Ge,
    Cmp::Set,
    Cmp::Clear,
];

const WIDTHS: [Width; 3] = [Width::B1, Width::B2, Width::B4];

/// Frames of two words with every pair of `EDGES`.
fn word_pairs() -> Vec<[u8; 8]> {
    let pair = |a: u32, b: u32| {
        let mut frame = [0; 8];
        frame[..4].copy_from_slice(&a.to_be_bytes());
        frame[4..].copy_from_slice(&b.to_be_bytes());
        frame
    };
    let pairs = EDGES.iter().flat_map(|&a| EDGES.map(|b| pair(a, b)));
    pairs.collect()
}

/// Runs `program` natively and in the interpreter on each frame; asserts equal verdicts.
fn agree<'f>(program: &Program, frames: impl IntoIterator<Item = &'f [u8]>) {
    if Arch::host().is_none() {
        return;
    }
    program.verify().unwrap();
    let code = Code::compile(program).unwrap();
    let mut oracle = Interp::new(program);
    let mut room = Guarded::new(1 << 16);
    for frame in frames {
        let wire_len = frame.len() as u32 + 1_000;
        let want = oracle.run(frame, wire_len);
        for start in [false, true] {
            let placed = if start {
                room.at_start(frame)
            } else {
                room.at_end(frame)
            };
            let found = code.run(placed, wire_len);
            let shown = &frame[..frame.len().min(64)];
            assert_eq!(found, want, "{} bytes {shown:?}\n{program}", frame.len());
        }
    }
}

/// A program of one block with the verdict that `body` returns.
fn straight(body: impl FnOnce(&mut Builder) -> Operand) -> Program {
    let mut builder = Builder::new();
    let verdict = body(&mut builder);
    builder.ret(verdict);
    builder.finish()
}

/// A program that returns 1 or 2 by `br cmp a, b`.
fn branching(cmp: Cmp, operands: impl FnOnce(&mut Builder) -> (Operand, Operand)) -> Program {
    let mut builder = Builder::new();
    let (a, b) = operands(&mut builder);
    let (then, otherwise) = (builder.block(), builder.block());
    builder.branch(cmp, a, b, then, otherwise);
    builder.switch_to(then);
    builder.ret(1);
    builder.switch_to(otherwise);
    builder.ret(2);
    builder.finish()
}

fn word(builder: &mut Builder, offset: u32) -> Operand {
    builder.load(Width::B4, None, offset).into()
}

#[test]
fn arithmetic_of_all_shapes_and_edges() {
    let frames = word_pairs();
    let frames = || frames.iter().map(|frame| &frame[..]);
    for op in BIN_OPS {
        agree(
            &straight(|b| {
                let (x, y) = (word(b, 0), word(b, 4));
                b.bin(op, x, y).into()
            }),
            frames(),
        );
        agree(
            &straight(|b| {
                let x = word(b, 0);
                b.bin(op, x, x).into()
            }),
            frames(),
        );
        for edge in EDGES {
            for left in [false, true] {
                agree(
                    &straight(|b| {
                        let x = word(b, 0);
                        let (x, y) = if left {
                            (edge.into(), x)
                        } else {
                            (x, edge.into())
                        };
                        b.bin(op, x, y).into()
                    }),
                    frames(),
                );
            }
        }
    }
}

#[test]
fn results_may_take_the_place_of_either_operand_or_of_none() {
    // Registers may be reused depending on which operands live on.
    let frames = word_pairs();
    for op in BIN_OPS {
        for keep in 0..4 {
            let program = straight(|b| {
                let (x, y) = (word(b, 0), word(b, 4));
                let mut sum: Operand = b.bin(op, x, y).into();
                for (bit, kept) in [(1, x), (2, y)] {
                    if keep & bit != 0 {
                        sum = b.bin(BinOp::Xor, sum, kept).into();
                    }
                }
                sum
            });
            agree(&program, frames.iter().map(|frame| &frame[..]));
        }
    }
}

#[test]
fn comparisons_of_all_shapes_and_edges_as_values_and_as_branches() {
    let frames = word_pairs();
    let frames = || frames.iter().map(|frame| &frame[..]);
    for cmp in CMPS {
        let both = |b: &mut Builder| (word(b, 0), word(b, 4));
        agree(&branching(cmp, both), frames());
        agree(
            &straight(|b| {
                let (x, y) = both(b);
                b.test(cmp, x, y).into()
            }),
            frames(),
        );
        for edge in EDGES {
            for left in [false, true] {
                let one = |b: &mut Builder| {
                    let x = word(b, 0);
                    if left {
                        (edge.into(), x)
                    } else {
                        (x, edge.into())
                    }
                };
                agree(&branching(cmp, one), frames());
                agree(
                    &straight(|b| {
                        let (x, y) = one(b);
                        b.test(cmp, x, y).into()
                    }),
                    frames(),
                );
            }
        }
    }
}

#[test]
fn values_stay_in_the_frames_byte_order_only_where_unobservable() {
    let frames = word_pairs();
    let constants = [
        0,
        1,
        0xff,
        0x100,
        0x1234,
        0xff00,
        0xffff,
        0x1_0000,
        0xffff_ffff,
    ];
    for width in WIDTHS {
        for cmp in [Cmp::Eq, Cmp::Ne, Cmp::Set, Cmp::Clear, Cmp::Gt] {
            for constant in constants {
                for mask in [None, Some(0xf0), Some(0x1fff), Some(0xffff_0ff0)] {
                    for also_ordered in [false, true] {
                        let mut builder = Builder::new();
                        let b = &mut builder;
                        let loaded = b.load(width, None, 2);
                        let tested = match mask {
                            Some(mask) => b.bin(BinOp::And, mask, loaded),
                            None => loaded,
                        };
                        let kept = if also_ordered {
                            b.bin(BinOp::Add, tested, 3)
                        } else {
                            b.wire_len()
                        };
                        let (then, otherwise) = (b.block(), b.block());
                        b.branch(cmp, tested, constant, then, otherwise);
                        b.switch_to(then);
                        b.ret(kept);
                        b.switch_to(otherwise);
                        b.ret(77);
                        let program = builder.finish();
                        agree(&program, frames.iter().map(|frame| &frame[..]));
                    }
                }
            }
        }
    }
}

#[test]
fn loads_at_every_offset_form_up_to_the_last_byte() {
    let bytes: Vec<u8> = (0..20_000_u32).map(|n| (n * 7 + n / 251) as u8).collect();
    let offsets = [
        0, 1, 2, 3, 126, 127, 128, 254, 255, 256, 257, 4_094, 4_095, 4_096, 4_097, 8_190, 8_191,
        8_192, 16_380, 16_381, 16_384, 19_000,
    ];
    for width in WIDTHS {
        for offset in offsets {
            let end = offset as usize + width.bytes() as usize;
            let lens = [0, end - 1, end, end + 1];
            agree(
                &straight(|b| b.load(width, None, offset).into()),
                lens.map(|len| &bytes[..len]),
            );
            // The base is the first byte of the frame.
            let base = usize::from(bytes[0]);
            let lens = [0, 1, base + end - 1, base + end, base + end + 1];
            agree(
                &straight(|b| {
                    let base = b.load(Width::B1, None, 0);
                    b.load(width, Some(base), offset).into()
                }),
                lens.map(|len| &bytes[..len]),
            );
        }
    }
}

#[test]
fn positions_far_outside_reject_and_never_wrap() {
    let offsets = [
        0,
        1,
        0x7fff_fffa,
        0x7fff_fffc,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX - 8,
        u32::MAX - 3,
        u32::MAX,
    ];
    let frames = word_pairs();
    for width in WIDTHS {
        for offset in offsets {
            let fixed = straight(|b| {
                b.load(width, None, offset);
                5.into()
            });
            agree(&fixed, frames.iter().map(|frame| &frame[..]));
            let based = straight(|b| {
                let base = b.load(Width::B4, None, 0);
                b.load(width, Some(base), offset).into()
            });
            agree(&based, frames.iter().map(|frame| &frame[..]));
            let by_len = straight(|b| {
                let base = b.wire_len();
                b.load(width, Some(base), offset).into()
            });
            agree(&by_len, frames.iter().map(|frame| &frame[..]));
        }
    }
}

#[test]
fn positions_beyond_32_bits_are_reached_in_frames_as_long() {
    let base = 0x9000_0000_u32;
    let position = |base: u32, offset: u32| base as usize + offset as usize;
    let cases = [(0, 0x8000_0001), (base, 0x7fff_fff0), (base, 0xffff_fff0)];
    let mut marks = vec![(0, 0x90)];
    for (n, (base, offset)) in cases.into_iter().enumerate() {
        marks.push((position(base, offset), 0x70 + n as u8));
    }
    let mut room = Guarded::new(position(base, u32::MAX));
    let frame = room.sparse(&marks);
    for (n, (base, offset)) in cases.into_iter().enumerate() {
        for width in WIDTHS {
            let program = straight(|b| {
                let base = (base > 0).then(|| b.load(Width::B4, None, 0));
                b.load(width, base, offset).into()
            });
            let want = (0x70 + n as u32) << (8 * (width.bytes() - 1));
            assert_eq!(Interp::new(&program).run(frame, 0), want);
            assert_eq!(Runner::new(program).run(frame, 0), want);
        }
    }
}

#[test]
fn checks_made_early_reject_no_frame_that_a_short_path_accepts() {
    let program: Program = "filter {
b0:
  v0 = load.1 [3]
  br eq v0, 1, b1, b2
b1:
  ret 1
b2:
  v1 = load.1 [40]
  v2 = load.2 [v0 + 10]
  br eq v2, 0, b3, b4
b3:
  ret 2
b4:
  v3 = load.2 [v0 + 30]
  br eq v3, 0, b6, b5
b5:
  v4 = load.4 [60]
  br gt v4, 9, b6, b7
b6:
  ret 3
b7:
  ret 0
}"
    .parse()
    .unwrap();
    let mut frames = Vec::new();
    for len in 0..70 {
        for selector in 0..40 {
            for fill in [0, 1] {
                let mut frame = vec![fill; len];
                if len > 3 {
                    frame[3] = selector;
                }
                frames.push(frame);
            }
        }
    }
    agree(&program, frames.iter().map(|frame| &frame[..]));
}

#[test]
fn checks_are_merged() {
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
  v5 = load.1 [v4 + 27]
  br set v5, 2, b3, b5
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
    for arch in [Arch::X64, Arch::A64] {
        let text = listing(&program, arch).unwrap();
        let checks: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("; bounds"))
            .collect();
        assert_eq!(checks.len(), 2, "{text}");
        assert!(checks[0].contains("24 bytes"), "{text}");
        assert!(checks[1].contains("v4 + 28 bytes"), "{text}");
    }
}

#[test]
fn a_failing_load_rejects_even_if_its_result_is_unused() {
    let frames = word_pairs();
    for op in BIN_OPS {
        let program = straight(|b| {
            let (x, y) = (word(b, 0), word(b, 4));
            b.bin(op, x, y);
            9.into()
        });
        agree(&program, frames.iter().map(|frame| &frame[..]));
        let by_zero = straight(|b| {
            let x = word(b, 0);
            b.bin(op, x, 0);
            9.into()
        });
        agree(&by_zero, frames.iter().map(|frame| &frame[..]));
    }
    let unread = straight(|b| {
        b.load(Width::B4, None, 5);
        9.into()
    });
    agree(&unread, frames.iter().map(|frame| &frame[..]));
}

#[test]
fn the_length_on_the_wire_is_read_beside_divisions_and_without() {
    for divide in [false, true] {
        let program = straight(|b| {
            let (x, y) = (word(b, 0), word(b, 4));
            let mut sum: Operand = b.bin(BinOp::Xor, x, y).into();
            if divide {
                let len = b.wire_len();
                sum = b.bin(BinOp::Mod, sum, len).into();
                sum = b.bin(BinOp::Div, sum, 3).into();
            }
            let len = b.wire_len();
            b.bin(BinOp::Add, sum, len).into()
        });
        agree(&program, word_pairs().iter().map(|frame| &frame[..]));
    }
}

/// A program that loads `count` words and then uses all of them.
fn pressure(count: usize) -> Program {
    straight(|b| {
        let values: Vec<Value> = (0..count)
            .map(|n| b.load(Width::B4, None, n as u32 % 50))
            .collect();
        let mut sum: Operand = 1.into();
        // The order is neither that of definition nor its reverse.
        for n in 0..count {
            let value = values[n * 7_919 % count];
            let op = BIN_OPS[n % BIN_OPS.len()];
            sum = match op {
                BinOp::Shl | BinOp::Shr => {
                    let few = b.bin(BinOp::And, value, 7);
                    let shifted = b.bin(op, sum, few);
                    b.bin(BinOp::Add, shifted, value).into()
                }
                BinOp::Div | BinOp::Mod => {
                    let divisor = b.bin(BinOp::Or, value, 1);
                    let rest = b.bin(op, sum, divisor);
                    b.bin(BinOp::Sub, value, rest).into()
                }
                _ => b.bin(op, sum, value).into(),
            };
        }
        sum
    })
}

#[test]
fn values_beyond_the_registers_go_to_the_stack() {
    let frame: Vec<u8> = (0..60_u8)
        .map(|n| n.wrapping_mul(97).wrapping_add(13))
        .collect();
    for count in (1..40).chain([100, 300, 900]) {
        agree(&pressure(count), [&frame[..], &frame[..52], &frame[..20]]);
    }
}

#[test]
fn values_beyond_the_stack_frame_are_refused_and_interpreted() {
    let program = pressure(SLOTS_MAX + 100);
    for arch in [Arch::X64, Arch::A64] {
        let error = assemble(&program, arch).unwrap_err();
        assert_eq!(error, NativeError::TooManyLive { max: SLOTS_MAX });
    }
    let frame = [0x5a; 60];
    let want = Interp::new(&program).run(&frame, 60);
    let runner = Runner::new(program);
    assert!(runner.why_interpreted().is_some());
    assert_eq!(runner.run(&frame, 60), want);
}

/// A program that passes `count` words through blocks that each permute them by `arg`.
fn permuting(count: usize, blocks: usize, arg: impl Fn(usize, usize) -> Operand) -> Program {
    let mut builder = Builder::new();
    let mut args: Vec<Operand> = (0..count)
        .map(|n| builder.load(Width::B4, None, n as u32).into())
        .collect();
    for round in 0..blocks {
        let block = builder.block();
        let params: Vec<Value> = (0..count).map(|_| builder.param(block)).collect();
        if round % 2 == 0 {
            builder.jump(block, args);
        } else {
            // Both edges of a branch carry moves.
            let other = args.iter().rev().copied().collect();
            let (then, otherwise) = (
                weir_filter::ir::Edge { block, args },
                weir_filter::ir::Edge { block, args: other },
            );
            let a = then.args[0];
            builder.terminate(Term::Branch {
                cmp: Cmp::Set,
                a,
                b: 4.into(),
                then,
                otherwise,
            });
        }
        builder.switch_to(block);
        args = (0..count)
            .map(|n| match arg(round, n) {
                Operand::Imm(constant) => Operand::Imm(constant),
                Operand::Val(index) => params[index.index()].into(),
            })
            .collect();
    }
    let mut sum: Operand = 0.into();
    for arg in args {
        let scaled = builder.bin(BinOp::Mul, sum, 31);
        sum = builder.bin(BinOp::Add, scaled, arg).into();
    }
    builder.ret(sum);
    builder.finish()
}

#[test]
fn arguments_become_parameters_all_at_once() {
    let frame: Vec<u8> = (0..80_u8).map(|n| n.wrapping_mul(151)).collect();
    let index = |n: usize| Operand::Val(Value(n as u32));
    for count in (1..20).chain([40, 64]) {
        let rotated = permuting(count, 6, |round, n| index((n + 1 + round) % count));
        agree(&rotated, [&frame[..]]);
        let swapped = permuting(count, 6, |_, n| {
            index(if n ^ 1 < count { n ^ 1 } else { n })
        });
        agree(&swapped, [&frame[..]]);
        let doubled = permuting(count, 6, |_, n| index(n / 2));
        agree(&doubled, [&frame[..]]);
        let mixed = permuting(count, 6, |round, n| match (n + round) % 3 {
            0 => Operand::Imm(n as u32),
            1 => index((n * 5 + 2) % count),
            _ => index(count - 1 - n),
        });
        agree(&mixed, [&frame[..]]);
    }
}

#[test]
fn constant_programs_and_constant_branches() {
    for verdict in EDGES {
        agree(&Program::constant(verdict), [&[][..], &[1, 2, 3]]);
    }
    for cmp in CMPS {
        for (a, b) in [(0, 0), (1, 2), (2, 1), (u32::MAX, 1)] {
            agree(&branching(cmp, |_| (a.into(), b.into())), [&[][..]]);
            agree(&straight(|x| x.test(cmp, a, b).into()), [&[][..]]);
        }
    }
    for op in BIN_OPS {
        for (a, b) in [(0, 0), (7, 2), (7, 0), (1, 40)] {
            agree(&straight(|x| x.bin(op, a, b).into()), [&[][..]]);
        }
    }
}

/// A chain of `blocks` tests that accepts if byte `n % 64` is not `n % 251`,
/// for all `n`.
fn chain(blocks: u32) -> Program {
    let mut builder = Builder::new();
    let reject = builder.block();
    for n in 0..blocks {
        let byte = builder.load(Width::B1, None, n % 64);
        let next = builder.block();
        builder.branch(Cmp::Eq, byte, n % 251, reject, next);
        builder.switch_to(next);
    }
    builder.ret(SNAPLEN_ALL);
    builder.switch_to(reject);
    builder.ret(0);
    builder.finish()
}

#[test]
fn long_programs_compile_and_their_far_jumps_reach() {
    let program = chain(100_000);
    let mut frames = [vec![255; 64], vec![255; 63], vec![255; 64]];
    // The last tests meet these values first: 99,999 % 64 = 31, and % 251 = 101.
    frames[2][31] = 101;
    agree(&program, frames.iter().map(|frame| &frame[..]));
}

#[test]
#[cfg_attr(
    not(target_arch = "x86_64"),
    ignore = "assembles for every processor anyway, and takes minutes emulated"
)]
fn code_beyond_the_limit_is_refused() {
    let program = straight(|b| {
        let mut sum = b.load(Width::B4, None, 0);
        let len = b.wire_len();
        for _ in 0..250_000 {
            let less = b.bin(BinOp::Shl, sum, len);
            let more = b.bin(BinOp::Shl, len, less);
            sum = b.bin(BinOp::Shr, more, less);
        }
        sum.into()
    });
    for arch in [Arch::X64, Arch::A64] {
        match assemble(&program, arch) {
            Err(NativeError::TooLong { .. }) => {}
            Err(other) => panic!("{other}"),
            Ok(bytes) => panic!("{} bytes for {}", bytes.len(), arch.name()),
        }
    }
}

#[test]
fn an_invalid_program_is_refused() {
    let mut program = Program::constant(1);
    program.blocks[0].term = Term::Return(Operand::Val(Value(7)));
    assert!(matches!(
        Code::compile(&program),
        Err(NativeError::Invalid(_) | NativeError::Unsupported)
    ));
}
