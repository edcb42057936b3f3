//! The stack language: the paper's figures, refused programs, differences between
//! dialects, and equal semantics after lowering.

use proptest::prelude::*;
use weir_filter::interp::Interp;
use weir_filter::ir::SNAPLEN_ALL;
use weir_filter::lang::cspf::{Dialect, Filter, assemble, disassemble, lower, run, verify};
use weir_lab::program::{Tape, frames};
use weir_wire::LinkType;

use Dialect::{Bsd, Dec, Mach, Paper, Sun, Weir};

/// Runs words directly and lowered, and asserts equal verdicts.
fn accepts_on(filter: &Filter, linktype: LinkType, bytes: &[u8], wire_len: u32) -> bool {
    let program = match lower(filter, linktype) {
        Ok(program) => program,
        Err(error) => panic!("{error} in\n{}", disassemble(filter)),
    };
    program.verify().unwrap();
    let verdict = Interp::new(&program).run(bytes, wire_len);
    assert!(verdict == 0 || verdict == SNAPLEN_ALL);
    let direct = run(filter, linktype, bytes, wire_len);
    assert_eq!(verdict != 0, direct, "{}{program}", disassemble(filter));
    direct
}

fn accepts(text: &str, dialect: Dialect, bytes: &[u8]) -> bool {
    let filter = assemble(text, dialect).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    accepts_on(&filter, LinkType::EN10MB, bytes, bytes.len() as u32)
}

/// Figure 3-8 of the paper; scanning had turned one digit of `PUSH00FF` into a letter.
const FIGURE_3_8: &str = "
struct enfilter f = {
    10, 12, /* priority and length */
    PUSHWORD+1, PUSHLIT | EQ, 2,
    /* packet type == PUP */
    PUSHWORD+3, PUSH0OFF | AND,
    /* mask low byte */
    PUSHZERO | GT,
    /* PupType > 0 */
    PUSHWORD+3, PUSH0OFF | AND,
    /* mask low byte */
    PUSHLIT | LE, 100,
    /* PupType <= 100 */
    AND, /* 0 < PupType <= 100 */
    AND /* && packet type == PUP */
};
";

/// Figure 3-9.
const FIGURE_3_9: &str = "
struct enfilter f = {
    10, 8, /* priority and length */
    PUSHWORD+8, PUSHLIT | CAND, 35,
    /* Low word of socket == 35 */
    PUSHWORD+7, PUSHZERO | CAND,
    /* High word of socket == 0 */
    PUSHWORD+1, PUSHLIT | EQ, 2
    /* packet type == Pup */
};
";

/// A Pup frame on the 3 Mb/s Ethernet: destination, source and type of the link, then a
/// Pup header (figure 3-7) without data, and its checksum.
fn pup(ethertype: u16, pup_type: u8, dst_socket: u32) -> Vec<u8> {
    let mut frame = vec![0x11, 0x22];
    frame.extend(ethertype.to_be_bytes());
    frame.extend(22_u16.to_be_bytes()); // length
    frame.extend([0x55, pup_type]); // hop count, type
    frame.extend([0xaa; 4]); // identifier
    frame.extend([1, 2]); // destination net, host
    frame.extend(dst_socket.to_be_bytes());
    frame.extend([3, 4]); // source net, host
    frame.extend([0, 0, 0, 99]); // source socket
    frame.extend([0xff, 0xff]); // no checksum
    frame
}

#[test]
fn figure_3_8_takes_pup_types_1_to_100() {
    let text = FIGURE_3_8.replace("PUSH0OFF", "PUSH00FF");
    // All dialects but two have the names, with different codes.
    for dialect in [Paper, Dec, Sun, Weir] {
        let filter = assemble(&text, dialect).unwrap();
        assert_eq!((filter.priority, filter.words.len()), (Some(10), 12));
        let accepts = |frame: &[u8]| accepts_on(&filter, LinkType::EN3MB, frame, 24);
        for (pup_type, expected) in [
            (0, false),
            (1, true),
            (50, true),
            (100, true),
            (101, false),
            (255, false),
        ] {
            let frame = pup(2, pup_type, 35);
            assert_eq!(accepts(&frame), expected, "{dialect}, type {pup_type}");
            assert!(!accepts(&pup(3, pup_type, 35)));
            assert!(!accepts(&pup(0x0200, pup_type, 35)));
            // The type is the low byte of word 3, which a shorter frame does not have.
            assert_eq!(accepts(&frame[..8]), expected);
            assert!(!accepts(&frame[..7]));
            assert!(!accepts(&[]));
        }
    }
    assert!(assemble(&text, Bsd).is_err());
    let error = assemble(FIGURE_3_8, Paper).unwrap_err().to_string();
    assert!(error.contains("line 6") && error.contains("did you mean `PUSH00FF`"));
}

#[test]
fn figure_3_9_takes_destination_socket_35() {
    for dialect in Dialect::ALL {
        let mut filter = assemble(FIGURE_3_9, dialect).unwrap();
        assert_eq!((filter.priority, filter.words.len()), (Some(10), 8));
        // Mach numbers words differently; a later test covers it.
        if dialect == Mach {
            filter.dialect = Bsd;
        }
        let accepts = |frame: &[u8]| accepts_on(&filter, LinkType::EN3MB, frame, 24);
        for (socket, expected) in [
            (35, true),
            (34, false),
            (0x0001_0023, false),
            (0x0023_0000, false),
            (0x2300_0000, false),
        ] {
            assert_eq!(accepts(&pup(2, 1, socket)), expected, "{dialect}");
            assert!(!accepts(&pup(8, 1, socket)));
        }
        // Word 8 has bytes 16 and 17.
        assert!(accepts(&pup(2, 1, 35)[..18]));
        assert!(!accepts(&pup(2, 1, 35)[..17]));
    }
}

#[test]
fn the_end_of_a_program_decides() {
    for dialect in Dialect::ALL {
        assert!(accepts("", dialect, &[]), "an empty program takes all");
        assert!(accepts("PUSHLIT, 7", dialect, &[]));
        assert!(!accepts("PUSHLIT, 7, PUSHZERO", dialect, &[]));
        assert!(accepts("PUSHLIT, 0x100", dialect, &[]));
        assert!(accepts("NOP", dialect, &[]), "an empty stack takes all");
    }
}

#[test]
fn the_result_is_t2_op_t1() {
    for dialect in Dialect::ALL {
        for (op, below, equal, above) in [
            ("EQ", false, true, false),
            ("NEQ", true, false, true),
            ("LT", true, false, false),
            ("LE", true, true, false),
            ("GT", false, false, true),
            ("GE", false, true, true),
        ] {
            for (t2, expected) in [(4, below), (5, equal), (6, above), (0x8005, above)] {
                let text = format!("PUSHLIT, {t2}, PUSHLIT | {op}, 5");
                assert_eq!(accepts(&text, dialect, &[]), expected, "{text}");
            }
        }
        for (op, result) in [("AND", 0x0c00), ("OR", 0x0fff), ("XOR", 0x03ff)] {
            let text = format!("PUSHLIT, 0x0cf0, PUSHLIT | {op}, 0x0f0f, PUSHLIT | EQ, {result}");
            assert!(accepts(&text, dialect, &[]), "{text}");
        }
    }
}

/// If a short-circuit operator does not end the program, the paper pushes the result of
/// the comparison. The manuals push nothing, so an older cell, or the empty stack,
/// decides.
#[test]
fn a_short_circuit_that_goes_on_shows_the_dialect() {
    // Operator, then the verdicts for (5, 5) and (5, 6) over a true cell, by the paper
    // and by the manuals.
    for (op, paper, manuals) in [
        ("COR", (true, false), (true, true)),
        ("CAND", (true, false), (true, false)),
        ("CNOR", (false, false), (false, true)),
        ("CNAND", (true, true), (true, true)),
    ] {
        for dialect in Dialect::ALL {
            let (equal, unequal) = match dialect {
                Paper | Weir => paper,
                _ => manuals,
            };
            for bottom in ["PUSHLIT, 9, ", ""] {
                let text = |b| format!("{bottom}PUSHLIT, 5, PUSHLIT | {op}, {b}");
                assert_eq!(accepts(&text(5), dialect, &[]), equal, "{dialect} {op}");
                assert_eq!(accepts(&text(6), dialect, &[]), unequal, "{dialect} {op}");
            }
        }
    }
    // Over an older zero, the manuals' dialects reject.
    for dialect in [Bsd, Dec, Sun, Mach] {
        assert!(!accepts(
            "PUSHZERO, PUSHLIT, 5, PUSHLIT | CAND, 5",
            dialect,
            &[]
        ));
        assert!(!accepts(
            "PUSHZERO, PUSHLIT, 5, PUSHLIT | CNAND, 5",
            dialect,
            &[]
        ));
    }
    for dialect in [Paper, Weir] {
        assert!(accepts(
            "PUSHZERO, PUSHLIT, 5, PUSHLIT | CNAND, 5",
            dialect,
            &[]
        ));
    }
    // The pushed result is an operand of later operators.
    let text = "PUSHLIT, 5, PUSHLIT | CAND, 5, PUSHONE | EQ";
    assert!(accepts(text, Paper, &[]));
    let error = verify(&assemble(text, Dec).unwrap()).unwrap_err();
    assert!(
        error.to_string().contains("word 4 (PUSHONE | EQ) needs 2"),
        "{error}"
    );
}

#[test]
fn the_swapped_constants() {
    // The same words: code 5 pushes the mask of the low byte in the paper and DEC, and
    // that of the high byte in Sun.
    let words = vec![16, 6 << 10 | 5, 1 << 10 | 1, 0x0012];
    let frame = [0x34, 0x12];
    for (dialect, expected) in [(Paper, true), (Dec, true), (Sun, false), (Weir, true)] {
        let filter = Filter::new(dialect, words.clone());
        let found = accepts_on(&filter, LinkType::EN10MB, &frame, 2);
        assert_eq!(found, expected, "{dialect}");
        assert!(accepts(
            "PUSHWORD+0, PUSH00FF | AND, PUSHLIT | EQ, 0x12",
            dialect,
            &frame
        ));
        assert!(accepts(
            "PUSHWORD+0, PUSHFF00 | AND, PUSHLIT | EQ, 0x3400",
            dialect,
            &frame
        ));
        assert!(accepts("PUSHFFFF, PUSHLIT | EQ, 0xffff", dialect, &[]));
        assert!(accepts("PUSHONE, PUSHLIT | EQ, 1", dialect, &[]));
    }
    for dialect in [Bsd, Mach] {
        let error = verify(&Filter::new(dialect, words.clone())).unwrap_err();
        assert!(error.to_string().contains("has the action 5"), "{error}");
    }
}

#[test]
fn words_outside_the_packet_reject() {
    for dialect in [Paper, Bsd, Dec, Sun, Weir] {
        for (text, len) in [("PUSHWORD+0", 2), ("PUSHWORD+3", 8), ("PUSHWORD+943", 1888)] {
            assert!(accepts(text, dialect, &vec![1; len]));
            assert!(!accepts(text, dialect, &vec![1; len - 1]));
        }
        // Also if the verdict no longer depends on the word.
        assert!(!accepts("PUSHWORD+3, PUSHLIT, 1", dialect, &[1; 7]));
        // But not after the end of the evaluation.
        assert!(accepts(
            "PUSHZERO, PUSHZERO | COR, PUSHWORD+3",
            dialect,
            &[]
        ));
    }
}

#[test]
fn suns_offset_register_and_branches() {
    // The type of an Ethernet frame, or the type after a VLAN tag.
    let text = "
        PUSHWORD+6, PUSHLIT | EQ, 0x8100,
        BRFL, 3,            # to POP
        LOAD_OFFSET, 2,
        POP,
        PUSHWORD+6, PUSHLIT | EQ, 0x0800";
    let mut plain = vec![0; 12];
    plain.extend([8, 0, 0x45, 0]);
    let mut tagged = vec![0; 12];
    tagged.extend([0x81, 0, 0, 5, 8, 0, 0x45, 0]);
    assert!(accepts(text, Sun, &plain));
    assert!(accepts(text, Sun, &tagged));
    assert!(!accepts(text, Sun, &tagged[..17]));
    tagged[16] = 0x86;
    assert!(!accepts(text, Sun, &tagged));
    // A branch keeps the top cell; an empty stack counts as a true cell.
    assert!(accepts(
        "PUSHONE, BRTR, 2, PUSHZERO, PUSHLIT | EQ, 1",
        Sun,
        &[]
    ));
    assert!(!accepts(
        "PUSHZERO, BRTR, 2, PUSHZERO, PUSHLIT | EQ, 1",
        Sun,
        &[]
    ));
    assert!(accepts("BRTR, 2, PUSHZERO, PUSHONE", Sun, &[]));
    // Distance 0 executes the literal, which does nothing.
    assert!(accepts("BRTR, 0, PUSHONE", Sun, &[]));
    // A branch into a literal: 2 is PUSHZERO.
    assert!(!accepts("BRTR, 2, PUSHLIT, 2, NOP", Sun, &[]));
    // The operator of a branch runs on both paths, after the test.
    let text = "PUSHZERO, PUSHLIT, 5, BRTR | GT, 2, POP, NOP";
    assert!(!accepts(text, Sun, &[]));
    // Paths that meet with different depths.
    let text = "PUSHWORD+0, BRTR, 2, PUSHZERO, NOP";
    assert!(accepts(text, Sun, &[0, 1]));
    assert!(!accepts(text, Sun, &[0, 0]));
    // The offset register beyond the packet.
    assert!(!accepts(
        "LOAD_OFFSET, 65535, PUSHWORD+1007",
        Sun,
        &[1; 2016]
    ));
}

#[test]
fn machs_header_is_apart() {
    let mut frame: Vec<u8> = (0x10..0x1c).collect();
    frame.extend([8, 6, 0x77, 0x88, 0x99]);
    let accepts = |text: &str, wire_len| {
        let filter = assemble(text, Mach).unwrap();
        accepts_on(&filter, LinkType::EN10MB, &frame, wire_len)
    };
    // Word 0: length of the packet with its 4-byte header; word 1: type.
    assert!(accepts("PUSHWORD+0, PUSHLIT | EQ, 7", 17));
    assert!(accepts("PUSHWORD+0, PUSHLIT | EQ, 90", 100));
    assert!(accepts("PUSHWORD+1, PUSHLIT | EQ, 0x0806", 17));
    assert!(accepts("PUSHWORD+2, PUSHLIT | EQ, 0x7788", 17));
    assert!(!accepts("PUSHWORD+3, PUSHLIT, 1", 17), "half a word");
    assert!(accepts("PUSHHDR+0, PUSHLIT | EQ, 0x1011", 17));
    assert!(accepts("PUSHHDR+6, PUSHLIT | EQ, 0x0806", 17));
    for (index, word) in [(0, 7), (1, 0x0806), (2, 0x7788)] {
        let text = format!("PUSHLIT, {index}, PUSHIND, PUSHLIT | EQ, {word}");
        assert!(accepts(&text, 17), "{text}");
        // The same with an index that is not constant.
        let text = format!(
            "PUSHHDR+0, PUSHLIT | SUB, {}, PUSHIND, PUSHLIT | EQ, {word}",
            0x1011 - index
        );
        assert!(accepts(&text, 17), "{text}");
    }
    assert!(accepts(
        "PUSHHDR+0, PUSHLIT | SUB, 0x1010, PUSHHDRIND, PUSHLIT | EQ, 0x1213",
        17
    ));
    assert!(!accepts(
        "PUSHHDR+0, PUSHLIT | SUB, 0x100a, PUSHHDRIND, PUSHLIT, 1",
        17
    ));
    assert!(!accepts(
        "PUSHZERO, PUSHLIT | SUB, 1, PUSHIND, PUSHLIT, 1",
        17
    ));
    // Copies of cells, numbered from the top; an empty stack counts as a true cell.
    assert!(accepts(
        "PUSHLIT, 5, PUSHLIT, 6, PUSHSTK+1, PUSHLIT | EQ, 5",
        17
    ));
    assert!(accepts("PUSHLIT, 5, PUSHSTK+1, PUSHLIT | EQ, 1", 17));
    // Cells of 32 bits, whose sign a right shift keeps.
    assert!(accepts(
        "PUSHLIT, 0x8000, PUSHLIT | LSH, 16, PUSHLIT | GT, 0xffff",
        17
    ));
    let shifts = "PUSHZERO, PUSHLIT | SUB, 16, PUSHLIT | RSH, 2, PUSHLIT | ADD, 5, PUSHLIT | EQ, 1";
    assert!(accepts(shifts, 17));
    // A link type without such a header, and an index beyond the header.
    let refused = |text, linktype| {
        let filter = assemble(text, Mach).unwrap();
        lower(&filter, linktype).unwrap_err().to_string()
    };
    assert!(refused("PUSHWORD+0", LinkType::RAW).contains("RAW"));
    let beyond = refused("PUSHZERO, PUSHHDR+2", LinkType::EN3MB);
    assert!(
        beyond.contains("word 1 reads word 2 of the link header"),
        "{beyond}"
    );
    let zero = assemble("PUSHZERO", Mach).unwrap();
    assert!(lower(&zero, LinkType::RAW).is_ok());
}

#[test]
fn the_wishes_of_section_7() {
    let accepts = |text: &str, frame: &[u8]| accepts(text, Weir, frame);
    let frame = [0x12, 0x34, 0x56, 0x78, 0x9a];
    assert!(accepts("PUSHBYTE, 1, PUSHLIT | EQ, 0x34", &frame));
    assert!(accepts("PUSHSHORT, 1, PUSHLIT | EQ, 0x3456", &frame));
    assert!(accepts(
        "PUSHLONG, 1, PUSHLIT32 | EQ, 0x3456, 0x789a",
        &frame
    ));
    assert!(!accepts("PUSHLONG, 2, PUSHONE", &frame));
    assert!(accepts("PUSHONE, PUSHBYTEIND, PUSHLIT | EQ, 0x34", &frame));
    assert!(accepts(
        "PUSHONE, PUSHSHORTIND, PUSHLIT | EQ, 0x3456",
        &frame
    ));
    assert!(accepts(
        "PUSHONE, PUSHLONGIND, PUSHLIT32 | EQ, 0x3456, 0x789a",
        &frame
    ));
    assert!(accepts("PUSHONE, PUSHIND, PUSHLIT | EQ, 0x5678", &frame));
    assert!(!accepts("PUSHLIT, 2, PUSHIND, PUSHONE", &frame));
    assert!(!accepts("PUSHLIT32, 0x8000, 0, PUSHIND, PUSHONE", &frame));
    assert!(accepts("PUSHLEN, PUSHLIT | EQ, 5", &frame));
    for (text, result) in [
        ("PUSHLIT, 7, PUSHLIT | ADD, 3", 10),
        ("PUSHLIT, 7, PUSHLIT | SUB, 3", 4),
        ("PUSHLIT, 7, PUSHLIT | MUL, 3", 21),
        ("PUSHLIT, 7, PUSHLIT | DIV, 3", 2),
        ("PUSHLIT, 7, PUSHLIT | MOD, 3", 1),
        ("PUSHLIT, 7, PUSHLIT | LSH, 3", 56),
        ("PUSHLIT, 7, PUSHLIT | RSH, 1", 3),
        ("PUSHLIT, 7, PUSHLIT | LSH, 32", 0),
        ("PUSHZERO, PUSHONE | SUB, PUSHLIT | RSH, 31", 1),
    ] {
        assert!(
            accepts(&format!("{text}, PUSHLIT | EQ, {result}"), &[]),
            "{text}"
        );
    }
    assert!(!accepts("PUSHONE, PUSHZERO | DIV, PUSHONE", &[]));
    assert!(!accepts("PUSHONE, PUSHZERO | MOD, PUSHONE", &[]));
    // TCP destination port 80 after an IPv4 header of any length.
    let text = "
        PUSHWORD+6, PUSHLIT | CAND, 0x0800,
        PUSHBYTE, 23, PUSHLIT | CAND, 6,
        PUSHBYTE, 14, PUSHLIT | AND, 0x0f, PUSHLIT | LSH, 2,
        PUSHLIT | ADD, 16, PUSHSHORTIND, PUSHLIT | EQ, 80";
    for header_words in [5_u8, 6, 15] {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x40 | header_words]);
        frame.resize(14 + usize::from(header_words) * 4, 0);
        frame[23] = 6;
        frame.extend([0x12, 0x34, 0, 80]);
        assert!(accepts(text, &frame));
        assert!(!accepts(text, &frame[..frame.len() - 1]));
        *frame.last_mut().unwrap() = 81;
        assert!(!accepts(text, &frame));
    }
}

#[test]
fn what_is_known_ahead_is_refused_ahead() {
    for (text, dialect, part) in [
        (
            "EQ",
            Paper,
            "word 0 (EQ) needs 2 on the stack, where there is 0",
        ),
        ("PUSHLIT | AND, 3", Bsd, "word 0 (PUSHLIT | AND, 3) needs 2"),
        (
            "PUSHZERO, PUSHZERO | EQ, AND",
            Paper,
            "word 2 (AND) needs 2 on the stack, where there is 1",
        ),
        (
            "PUSHZERO, PUSHZERO | CAND, PUSHZERO | EQ",
            Dec,
            "word 2 (PUSHZERO | EQ) needs 2",
        ),
        ("POP", Sun, "word 0 (POP) needs 1"),
        ("PUSHIND", Mach, "word 0 (PUSHIND) needs 1"),
        ("PUSHZERO, PUSHSTK+2", Mach, "word 1 (PUSHSTK+2) needs 2"),
        ("PUSHLONGIND", Weir, "needs 1"),
        (
            "PUSHZERO, PUSHLIT",
            Paper,
            "word 1 (PUSHLIT) takes a literal",
        ),
        (
            "PUSHLIT32, 1",
            Weir,
            "word 0 (PUSHLIT32, 1) takes a literal",
        ),
        (
            "BRTR, 2",
            Sun,
            "word 0 (BRTR, 2) leads to word 3, but the program has words 0 to 1",
        ),
        ("BRTR, 1", Sun, "leads to word 2"),
        (
            "3",
            Bsd,
            "word 0 (0x0003) has the action 3, which the dialect bsd",
        ),
        ("7", Paper, "has the action 7"),
        ("11", Sun, "has the action 11"),
        ("3", Mach, "has the action 3"),
        ("14336", Paper, "has the operator 14"),
        ("18432", Mach, "has the operator 18"),
        ("21504", Weir, "has the operator 21"),
    ] {
        let filter = assemble(text, dialect).unwrap();
        let message = verify(&filter).expect_err(text).to_string();
        assert!(message.contains(part), "{text}: {message:?} lacks {part:?}");
        assert!(lower(&filter, LinkType::EN10MB).is_err());
    }
}

#[test]
fn the_limits_of_each_dialect() {
    for (dialect, words_max, stack_max) in [
        (Paper, 255, 255),
        (Bsd, 40, 38),
        (Dec, 40, 38),
        (Sun, 2047, 253),
        (Mach, 128, 30),
        (Weir, 4096, 255),
    ] {
        assert_eq!(dialect.words_max(), words_max);
        let zeros = |count| Filter::new(dialect, vec![2; count]);
        assert_eq!(verify(&zeros(stack_max)), Ok(()));
        if stack_max < words_max {
            let error = verify(&zeros(stack_max + 1)).unwrap_err().to_string();
            assert!(
                error.contains(&format!("word {stack_max} (PUSHZERO) pushes")),
                "{error}"
            );
        }
        assert_eq!(verify(&Filter::new(dialect, vec![0; words_max])), Ok(()));
        let error = verify(&Filter::new(dialect, vec![0; words_max + 1]));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&format!("allows {words_max}")), "{error}");
        let text = "NOP\n".repeat(words_max + 1);
        let error = assemble(&text, dialect).unwrap_err();
        assert_eq!(error.line, words_max + 1);
    }
}

/// Sun's branches over pushes: every word is reached with ever more depths.
#[test]
fn branches_cannot_make_a_program_explode() {
    // BRTR over a push, repeated.
    let step = [8, 2, 2];
    let words: Vec<u16> = [16].into_iter().chain(step.repeat(200)).collect();
    let filter = Filter::new(Sun, [words.clone(), vec![0]].concat());
    let error = verify(&filter).unwrap_err().to_string();
    assert!(error.contains("different numbers of cells"), "{error}");
    // A small number is valid, and lowered correctly.
    let filter = Filter::new(Sun, [&words[..100], &[0]].concat());
    for frame in [[0, 0], [0, 1]] {
        accepts_on(&filter, LinkType::EN10MB, &frame, 2);
    }
    // Too many cells differ where two paths meet: one pushes 70 ones and skips the 70
    // zeros that the other pushes.
    let mut words = vec![16, 9, 73];
    words.extend([3; 70]);
    words.extend([8, 71]);
    words.extend([2; 70]);
    words.push(0);
    let filter = Filter::new(Sun, words);
    assert_eq!(verify(&filter), Ok(()));
    let error = lower(&filter, LinkType::EN10MB).unwrap_err().to_string();
    assert!(error.contains("70 cells that differ"), "{error}");
}

/// The actions of a dialect for random programs: code, literals, required cells, change
/// in cells. Written from the manual, independently of the code.
fn actions(dialect: Dialect) -> Vec<(u16, usize, usize, isize)> {
    let mut actions = vec![(0, 0, 0, 0), (1, 1, 0, 1), (2, 0, 0, 1)];
    let words = (16..26).map(|code| (code, 0, 0, 1));
    actions.extend(words);
    if matches!(dialect, Paper | Dec | Sun | Weir) {
        actions.extend((3..7).map(|code| (code, 0, 0, 1)));
    }
    match dialect {
        Sun => actions.extend([(7, 1, 0, 0), (8, 1, 0, 0), (9, 1, 0, 0), (10, 0, 1, -1)]),
        Mach => {
            actions.extend([(14, 0, 1, 0), (15, 0, 1, 0), (960, 0, 0, 1), (961, 0, 0, 1)]);
            actions.extend([(992, 0, 0, 1), (994, 0, 2, 1)]);
        }
        Weir => {
            actions.extend([(7, 2, 0, 1), (8, 1, 0, 1), (9, 1, 0, 1), (10, 1, 0, 1)]);
            actions.extend([(11, 0, 1, 0), (12, 0, 1, 0), (13, 0, 1, 0), (14, 0, 1, 0)]);
            actions.extend([(15, 0, 0, 1), (992, 0, 0, 1), (994, 0, 2, 1)]);
            actions.extend([(960, 1, 0, 0), (961, 1, 0, 0), (962, 0, 1, -1)]);
        }
        _ => {}
    }
    actions
}

/// A random program, valid except possibly for its branches.
fn program(tape: &mut Tape, dialect: Dialect) -> Filter {
    let actions = actions(dialect);
    let operators = match dialect {
        Mach => 18,
        Weir => 21,
        _ => 14,
    };
    let pushes = matches!(dialect, Paper | Weir);
    let mut words = Vec::new();
    let mut depth = 0_usize;
    for _ in 0..tape.below(14) {
        let (code, literals, needed, change) = tape.pick(&actions);
        let after = depth.saturating_add_signed(change);
        if depth < needed || after > dialect.stack_max() {
            continue;
        }
        depth = after;
        let mut operator = 0;
        if depth >= 2 && tape.chance(60) {
            operator = tape.below(operators) as u16;
            // Ends of the program must not become too frequent.
            if (9..13).contains(&operator) && tape.chance(50) {
                operator = 1;
            }
            depth -= match operator {
                0 => 0,
                9..13 if !pushes => 2,
                _ => 1,
            };
        }
        words.push(operator << 10 | code);
        for _ in 0..literals {
            let branch = match dialect {
                Sun => matches!(code, 8 | 9),
                Weir => matches!(code, 960 | 961),
                _ => false,
            };
            let small = tape.below(if branch { 9 } else { 24 }) as u16;
            let bits = (tape.word() >> 16) as u16;
            words.push(if branch {
                small
            } else {
                tape.pick(&[small, small, 0x0800, 1, bits])
            });
        }
    }
    Filter::new(dialect, words)
}

/// Checks a valid random program on random frames; returns the numbers of accepted and
/// rejected frames.
fn check(seed: u64, dialect: Dialect) -> (usize, usize) {
    let mut tape = Tape::seeded(seed, 4000);
    let filter = loop {
        let filter = program(&mut tape, dialect);
        match verify(&filter) {
            Ok(()) => break filter,
            Err(error) => assert!(
                matches!(dialect, Sun | Weir),
                "{error}\n{}",
                disassemble(&filter)
            ),
        }
    };
    let linktypes = [LinkType::EN10MB, LinkType::EN3MB, LinkType::LINUX_SLL];
    let mut counts = (0, 0);
    for frame in frames(seed, 8) {
        let linktype = tape.pick(&linktypes);
        if accepts_on(&filter, linktype, &frame.bytes, frame.wire_len) {
            counts.0 += 1;
        } else {
            counts.1 += 1;
        }
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn lowered_programs_mean_the_same(
        seed in any::<u64>(),
        dialect in prop::sample::select(Dialect::ALL.to_vec()),
    ) {
        check(seed, dialect);
    }

    #[test]
    fn no_words_panic(
        words in prop::collection::vec(any::<u16>(), 0..40),
        dialect in prop::sample::select(Dialect::ALL.to_vec()),
    ) {
        let filter = Filter::new(dialect, words);
        let frame = filter.to_bytes(weir_filter::lang::cspf::Order::Big);
        // An unverified program ends too.
        let direct = run(&filter, LinkType::EN10MB, &frame, 80);
        if let Ok(program) = lower(&filter, LinkType::EN10MB) {
            prop_assert_eq!(Interp::new(&program).run(&frame, 80) != 0, direct);
        }
    }
}

/// The random programs both accept and reject; otherwise they would test nothing.
#[test]
fn random_programs_give_both_verdicts() {
    for dialect in Dialect::ALL {
        let (mut accepted, mut rejected) = (0, 0);
        for seed in 0..200 {
            let (more_accepted, more_rejected) = check(seed, dialect);
            accepted += more_accepted;
            rejected += more_rejected;
        }
        println!("{dialect}: {accepted} accepted, {rejected} rejected");
        assert!(
            accepted > 300 && rejected > 300,
            "{dialect}: {accepted}, {rejected}"
        );
    }
}

/// The example of the manual: Sun's branches and Mach's copies with weir's codes, and
/// the paper's rule for short-circuit operators.
#[test]
fn weirs_branches_and_copies() {
    let text = "
        PUSHWORD+6, PUSHLIT | EQ, 0x0800
        BRTR, 10                            # to the last line
        PUSHWORD+6, PUSHLIT | CAND, 0x0806
        PUSHLONG, 28                        # the sender's address
        PUSHLIT32 | COR, 0x0a00, 1          # accepts, or goes on with 0
        PUSHONE | CAND                      # rejects
        PUSHLONG, 26, PUSHLIT32 | EQ, 0x0a00, 1";
    let filter = assemble(text, Weir).unwrap();
    assert_eq!(filter.words[3], 960);
    let frame = |ethertype: u16, at: usize| {
        let mut frame = vec![0; 40];
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame[at..at + 4].copy_from_slice(&[10, 0, 0, 1]);
        frame
    };
    for (ethertype, at, expected) in [
        (0x0800, 26, true),
        (0x0800, 28, false),
        (0x0806, 28, true),
        (0x0806, 26, false),
        (0x86dd, 26, false),
    ] {
        let frame = frame(ethertype, at);
        assert_eq!(accepts(text, Weir, &frame), expected, "{ethertype:#x} {at}");
        assert!(!accepts(text, Weir, &frame[..at + 3]));
    }
    assert!(accepts(
        "PUSHLIT, 7, PUSHZERO, PUSHSTK+1 | OR, PUSHLIT | EQ, 7",
        Weir,
        &[]
    ));
    assert!(
        accepts("PUSHSTK+0, PUSHONE | EQ", Weir, &[]),
        "below the stack: true"
    );
    let error = verify(&Filter::new(Weir, vec![963])).unwrap_err();
    assert!(error.to_string().contains("has the action 963"), "{error}");
}

/// Unreachable words are not lowered: after an end, and after a branch that is always
/// taken.
#[test]
fn what_follows_an_end_is_left_out() {
    for text in [
        "PUSHONE, PUSHONE | COR, PUSHWORD+9",
        "PUSHONE, BRTR, 2, PUSHWORD+9, PUSHONE",
        "PUSHZERO, BRFL, 2, PUSHWORD+9, PUSHLIT, 1",
    ] {
        let program = lower(&assemble(text, Weir).unwrap(), LinkType::EN10MB).unwrap();
        assert!(!program.to_string().contains("load"), "{text}\n{program}");
        assert!(accepts(text, Weir, &[]), "{text}");
    }
}
