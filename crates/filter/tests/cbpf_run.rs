//! Classic BPF: refused programs, and equal semantics after lifting.

use proptest::prelude::*;
use weir_filter::interp::Interp;
use weir_filter::ir::Op;
use weir_filter::lang::cbpf::code::*;
use weir_filter::lang::cbpf::{Insn, LiftError, VerifyError, lift, parse, run, verify};
use weir_lab::oracle::{Frame, Oracle};
use weir_lab::program::{Tape, frames};
use weir_lab::{captures, corpus};
use weir_wire::LinkType;

const ADD_K: u16 = ALU | ADD;
const RET_A: u16 = RET | A;

fn stmt(code: u16, k: u32) -> Insn {
    Insn::stmt(code, k)
}

#[test]
fn what_the_kernel_refuses_is_refused_by_number() {
    let ret = stmt(RET, 1);
    let jeq = |jt, jf| Insn::jump(JMP | JEQ, 0, jt, jf);
    let table: Vec<(Vec<Insn>, &str)> = vec![
        (vec![], "no instructions"),
        (vec![ret; 4097], "4097 instructions"),
        (
            vec![stmt(0xff, 0), ret],
            "instruction 0 has the code 0x00ff",
        ),
        (
            vec![ret, stmt(0x0106, 0), ret],
            "instruction 1 has the code 0x0106",
        ),
        (vec![stmt(LD | B | LEN, 0), ret], "0x0090"),
        (vec![stmt(LDX | W | ABS, 0), ret], "0x0021"),
        (vec![stmt(ALU | NEG | X, 0), ret], "0x008c"),
        (vec![stmt(RET | X, 0)], "0x000e"),
        (
            vec![stmt(JMP | JA, 1), ret],
            "instruction 0 jumps to 2, beyond the last instruction, 1",
        ),
        (vec![jeq(1, 0), ret], "instruction 0 jumps to 2"),
        (vec![jeq(0, 255), ret], "instruction 0 jumps to 256"),
        (
            vec![ret, stmt(JMP | JA, -2_i32 as u32), ret],
            "instruction 1 jumps back to 0: a loop",
        ),
        (
            vec![stmt(JMP | JA, -1_i32 as u32), ret],
            "instruction 0 jumps back to 0",
        ),
        (
            vec![stmt(JMP | JA, -9_i32 as u32), ret],
            "instruction 0 jumps to 4294967288",
        ),
        (vec![stmt(ST, 16), ret], "instruction 0 names M[16]"),
        (vec![stmt(STX, u32::MAX), ret], "names M[4294967295]"),
        (vec![stmt(LD | MEM, 16), ret], "names M[16]"),
        (
            vec![stmt(LDX | MEM, 3), ret],
            "instruction 0 reads M[3], which is not written",
        ),
        (
            vec![jeq(0, 1), stmt(ST, 2), stmt(LD | MEM, 2), ret],
            "instruction 2 reads M[2]",
        ),
        (vec![stmt(ALU | DIV, 0), ret], "instruction 0 divides"),
        (vec![stmt(ALU | MOD, 0), ret], "instruction 0 divides"),
        (vec![stmt(ALU | LSH, 32), ret], "instruction 0 shifts by 32"),
        (vec![stmt(ALU | RSH, 99), ret], "instruction 0 shifts by 99"),
        (
            vec![stmt(LD | B | ABS, 0xffff_f001), ret],
            "loads from 0xfffff001",
        ),
        (
            vec![ret, stmt(ADD_K, 1)],
            "instruction 1 is the last and does not return",
        ),
    ];
    for (insns, part) in table {
        let message = verify(&insns).unwrap_err().to_string();
        assert!(message.contains(part), "{message:?} lacks {part:?}");
        assert!(lift(&insns).is_err());
    }
    assert_eq!(verify(&vec![ret; 4096]), Ok(()));
}

#[test]
fn what_the_kernel_allows_is_allowed() {
    let ret = stmt(RET, 1);
    for insns in [
        vec![stmt(ALU | LSH, 31), ret],
        vec![stmt(ALU | LSH | X, 0), ret],
        vec![stmt(ALU | DIV | X, 0), ret],
        vec![stmt(LD | B | ABS, SKF_AD_ALU_XOR_X), ret],
        vec![stmt(LD | B | ABS, SKF_LL_OFF), ret],
        vec![
            Insn::jump(JMP | JEQ, 0, 0, 2),
            stmt(ST, 2),
            stmt(JMP | JA, 1),
            stmt(STX, 2),
            stmt(LD | MEM, 2),
            ret,
        ],
    ] {
        assert_eq!(verify(&insns), Ok(()));
    }
}

#[test]
fn fields_outside_the_frame_are_refused() {
    for (listing, part) in [
        (
            "(000) ldh [proto]\n(001) ret #1",
            "instruction 0 asks for `proto`",
        ),
        ("(000) ldb [vlanp]\n(001) ret #1", "`vlanp`"),
        ("(000) ldb [-1048568]\n(001) ret #1", "byte 8 of it"),
        ("(000) ldb [-2097152]\n(001) ret #1", "link-layer header"),
        (
            "(000) ldxb 4*([-1048576]&0xf)\n(001) ret #1",
            "network header",
        ),
    ] {
        let insns = parse(listing).unwrap();
        assert_eq!(verify(&insns), Ok(()));
        let message = lift(&insns).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

/// Runs a listing directly and lifted, and asserts equal verdicts.
fn verdict(listing: &str, bytes: &[u8]) -> u32 {
    let insns = parse(listing).unwrap();
    verify(&insns).unwrap();
    let lifted = lift(&insns).unwrap();
    lifted.verify().unwrap();
    let direct = run(&insns, bytes, 1000);
    assert_eq!(Interp::new(&lifted).run(bytes, 1000), direct, "{lifted}");
    direct
}

#[test]
fn corners_of_the_semantics() {
    let frame = [0x45, 0x12, 0x34, 0x56, 0x78];
    // Registers are zero at the start.
    assert_eq!(verdict("(000) ret", &frame), 0);
    assert_eq!(verdict("(000) txa\n(001) add #7\n(002) ret", &frame), 7);
    assert_eq!(
        verdict("(000) ldxb 4*([0]&0xf)\n(001) txa\n(002) ret", &frame),
        20
    );
    assert_eq!(
        verdict("(000) ldx #pktlen\n(001) txa\n(002) ret", &frame),
        1000
    );
    assert_eq!(verdict("(000) ld [1]\n(001) ret", &frame), 0x1234_5678);
    assert_eq!(verdict("(000) ld [2]\n(001) ret #1", &frame), 0);
    // X + k beyond 32 bits does not wrap to the start of the frame.
    let around = "(000) ldx #0xffffffff\n(001) ldb [x + 1]\n(002) ret #1";
    assert_eq!(verdict(around, &frame), 0);
    let around = "(000) ld #0xffffffff\n(001) tax\n(002) ldb [x + 2]\n(003) ret #1";
    assert_eq!(verdict(around, &frame), 0);
    for rejects in ["div", "mod"] {
        let listing = format!("(000) ld #5\n(001) {rejects} x\n(002) ret #1");
        assert_eq!(verdict(&listing, &frame), 0);
    }
    for shift in ["lsh", "rsh"] {
        let listing = format!("(000) ld #-1\n(001) ldx #0x20\n(002) {shift} x\n(003) ret");
        assert_eq!(verdict(&listing, &frame), 0);
    }
    let neg = "(000) ld #5\n(001) neg\n(002) ret";
    assert_eq!(verdict(neg, &frame), 5_u32.wrapping_neg());
    let xor = "(000) ld #6\n(001) ldx #0x3\n(002) ldb [xor_x]\n(003) ret";
    assert_eq!(verdict(xor, &frame), 5);
}

#[test]
fn parameters_appear_only_where_paths_bring_different_values_that_are_read() {
    let params = |listing: &str| {
        let program = lift(&parse(listing).unwrap()).unwrap();
        let is_param = |op: &&Op| **op == Op::Param;
        program.values.iter().filter(is_param).count()
    };
    // A differs and is read; X differs and is not read; M[0] is equal.
    let one = "\
(000) ld [0]
(001) st M[0]
(002) jeq #1 jt 3 jf 5
(003) ldx #0x1
(004) ldb [4]
(005) add #3
(006) st M[1]
(007) ld M[0]
(008) ld M[1]
(009) ret";
    assert_eq!(params(one), 1);
    let none = "\
(000) ldb [0]
(001) tax
(002) jeq #1 jt 3 jf 4
(003) txa
(004) ret";
    assert_eq!(params(none), 0);
}

/// A random program that passes [`verify`]. It reads only scratch words that its first
/// instructions write.
fn program(tape: &mut Tape) -> Vec<Insn> {
    let mut insns = Vec::new();
    let set = usize::from(tape.byte()) & 7;
    for k in 0..set {
        insns.push(stmt(LD | B | ABS, (k * 3) as u32));
        insns.push(stmt(if tape.chance(50) { ST } else { STX }, k as u32));
    }
    let count = insns.len() + tape.below(60) + 2;
    while insns.len() + 1 < count {
        let left = count - insns.len() - 2;
        insns.push(insn(tape, set as u32, left));
    }
    let by_a = tape.chance(70);
    insns.push(stmt(if by_a { RET_A } else { RET }, tape.word()));
    insns
}

/// A random instruction, which may skip up to `left` instructions.
fn insn(tape: &mut Tape, set: u32, left: usize) -> Insn {
    let small = u32::from(tape.byte() & 0x3f);
    let constants = [0, 1, 2, 4, 31, 0x45, 0x800, u32::MAX, small];
    let source = tape.pick(&[K, X]);
    match tape.below(16) {
        0 | 1 => stmt(LD | ABS | tape.pick(&[W, H, B]), small),
        2 => stmt(LD | IND | tape.pick(&[W, H, B]), small & 0xf),
        3 => stmt(LDX | B | MSH, small),
        4 => stmt(tape.pick(&[LD, LDX]) | IMM, tape.pick(&constants)),
        5 => stmt(tape.pick(&[LD, LDX]) | LEN, 0),
        6 if set > 0 => stmt(tape.pick(&[LD, LDX]) | MEM, small % set),
        6 | 7 => stmt(tape.pick(&[ST, STX]), small % 16),
        8 => stmt(MISC | tape.pick(&[TAX, TXA]), 0),
        9 => stmt(ALU | NEG, 0),
        10 => stmt(ALU | source | tape.pick(&[DIV, MOD]), 1 + small),
        11 => stmt(ALU | source | tape.pick(&[LSH, RSH]), small & 31),
        12 => {
            let op = tape.pick(&[ADD, SUB, MUL, AND, OR, XOR]);
            stmt(ALU | source | op, tape.pick(&constants))
        }
        13 => stmt(JMP | JA, tape.below(left.min(8) + 1) as u32),
        _ => {
            let op = tape.pick(&[JEQ, JGT, JGE, JSET]);
            let skip = |tape: &mut Tape| tape.below(left.min(12) + 1) as u8;
            let (jt, jf) = (skip(tape), skip(tape));
            Insn::jump(JMP | source | op, tape.pick(&constants), jt, jf)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn lifted_programs_mean_the_same(seed in any::<u64>()) {
        let insns = program(&mut Tape::seeded(seed, 1000));
        prop_assert_eq!(verify(&insns), Ok(()));
        let lifted = lift(&insns).unwrap();
        prop_assert_eq!(lifted.verify(), Ok(()));
        let mut interp = Interp::new(&lifted);
        for frame in frames(seed, 12) {
            let direct = run(&insns, &frame.bytes, frame.wire_len);
            prop_assert_eq!(interp.run(&frame.bytes, frame.wire_len), direct, "{}", lifted);
        }
    }
}

/// This crate's interpreter agrees with libpcap's.
#[test]
fn run_agrees_with_libpcap() {
    let Some(oracle) = Oracle::load() else {
        return;
    };
    let mut accepted = 0;
    for seed in 0..2000 {
        let insns = program(&mut Tape::seeded(seed, 1000));
        let filter = oracle.filter_of(&insns).expect("a valid program");
        for frame in frames(seed, 8) {
            let ours = run(&insns, &frame.bytes, frame.wire_len);
            let theirs = filter.run(&frame.bytes, frame.wire_len);
            assert_eq!(ours, theirs, "seed {seed}: {insns:?} on {frame:?}");
            accepted += usize::from(ours != 0);
        }
    }
    println!("{accepted} of 16000 accepted");
    assert!(accepted > 3000, "only {accepted} of 16000 verdicts accept");
}

/// The longest programs with jumps everywhere lift in bounded time and memory.
#[test]
fn the_worst_programs_lift() {
    let mut insns: Vec<Insn> = (0..4095_u32)
        .map(|at| match at % 4 {
            0 => Insn::jump(JMP | JEQ | X, 0, 0, 255.min(4094 - at) as u8),
            1 => stmt(LDX | B | MSH, at),
            2 => stmt(ST, at / 4 % 16),
            _ => stmt(LD | B | IND, at),
        })
        .collect();
    insns.push(stmt(RET_A, 0));
    let lifted = lift(&insns).unwrap();
    lifted.verify().unwrap();
    assert!(lifted.values.len() < 10 * insns.len());
    let jumps = vec![Insn::jump(JMP | JEQ, 1, 0, 0); 4095];
    let insns = [jumps, vec![stmt(RET_A, 0)]].concat();
    lift(&insns).unwrap().verify().unwrap();
}

/// libpcap's programs for the corpus have libpcap's verdicts after lifting.
#[test]
fn libpcaps_programs_lift_and_mean_the_same() {
    let Some(oracle) = Oracle::load() else {
        return;
    };
    let captured: Vec<Frame> = captures::captures(&oracle)
        .into_iter()
        .filter(|(_, capture)| capture.linktype == LinkType::EN10MB)
        .flat_map(|(_, capture)| capture.frames.into_iter().take(40))
        .collect();
    if captured.is_empty() {
        return;
    }
    let (mut programs, mut accepted) = (0, 0);
    let (mut loops, mut unset, mut unknown) = (0, 0, 0);
    for (index, entry) in corpus::entries().into_iter().enumerate() {
        // Unoptimised programs use more scratch memory.
        let Ok(filter) = oracle.compile(&entry.text, LinkType::EN10MB, index % 2 == 0) else {
            continue;
        };
        let lifted = match lift(filter.insns()) {
            Ok(lifted) => lifted,
            Err(LiftError::Verify(VerifyError::JumpBack { .. })) => {
                assert!(entry.text.contains("protochain"), "{}", entry.text);
                loops += 1;
                continue;
            }
            // `inbound` and similar expressions.
            Err(LiftError::Ancillary { .. }) => {
                unknown += 1;
                continue;
            }
            // libpcap's optimiser removes stores that the kernel requires.
            Err(LiftError::Verify(VerifyError::ScratchUnset { .. })) => {
                unset += 1;
                continue;
            }
            Err(error) => panic!("{}: {error}", entry.text),
        };
        assert_eq!(lifted.verify(), Ok(()));
        let mut interp = Interp::new(&lifted);
        let rotated = captured.iter().cycle().skip(index * 7).take(40);
        for frame in rotated {
            let theirs = filter.run(&frame.bytes, frame.wire_len);
            let ours = interp.run(&frame.bytes, frame.wire_len);
            assert_eq!(ours, theirs, "{}", entry.text);
            assert_eq!(run(filter.insns(), &frame.bytes, frame.wire_len), theirs);
            accepted += usize::from(theirs != 0);
        }
        programs += 1;
    }
    println!("{programs} lifted, {loops} loops, {unset} unset words, {unknown} ask the kernel");
    println!("{accepted} verdicts accept");
    assert!(programs > 1500 && accepted > 1000);
    assert!(loops + unset + unknown < programs / 20);
}
