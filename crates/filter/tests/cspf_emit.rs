//! The stack language as a back end: emitted words have the verdicts of their program,
//! in every dialect that can express it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_filter::backend::cspf::{EmitError, emit};
use weir_filter::interp::Interp;
use weir_filter::ir::{BinOp, Op, Program, Width};
use weir_filter::lang::cspf::{Dialect, Filter, assemble, disassemble, lower, run};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::oracle::Oracle;
use weir_lab::program::{Frame, Tape, frame, frames, program, seeded};
use weir_lab::rules::{FiveTuple, TCP, UDP};
use weir_lab::seeds::seeds;
use weir_lab::{captures, corpus, testenv};
use weir_wire::LinkType;

/// Asserts equal verdicts of the words, run directly and lowered again, and that their
/// text assembles to the same words.
fn assert_same(program: &Program, filter: &Filter, linktype: LinkType, frames: &[Frame]) {
    let again = lower(filter, linktype).unwrap_or_else(|error| {
        panic!("{error}\n{}", disassemble(filter));
    });
    let (mut expected, mut lowered) = (Interp::new(program), Interp::new(&again));
    for frame in frames {
        let (bytes, wire_len) = (&frame.bytes[..], frame.wire_len);
        let verdict = expected.run(bytes, wire_len) != 0;
        let told = || {
            let dialect = filter.dialect;
            format!("{dialect}: {frame:?}\n{program}\n{}", disassemble(filter))
        };
        assert_eq!(
            run(filter, linktype, bytes, wire_len),
            verdict,
            "{}",
            told()
        );
        assert_eq!(lowered.run(bytes, wire_len) != 0, verdict, "{}", told());
    }
    let text = disassemble(filter);
    let words = assemble(&text, filter.dialect).unwrap().words;
    assert_eq!(words, filter.words, "{text}");
}

/// Emits in every dialect and compares; returns the number of words of each.
fn check_all(program: &Program, frames: &[Frame]) -> BTreeMap<&'static str, usize> {
    let mut words = BTreeMap::new();
    for dialect in Dialect::ALL {
        match emit(program, dialect, LinkType::EN10MB) {
            Ok(filter) => {
                assert_same(program, &filter, LinkType::EN10MB, frames);
                words.insert(dialect.name(), filter.words.len());
            }
            Err(error) => {
                let is_long = matches!(
                    error,
                    EmitError::TooManyWords { .. } | EmitError::FarTooManyWords { .. }
                );
                assert!(dialect != Dialect::Weir || is_long, "{error}\n{program}");
                assert!(error.to_string().contains("weir"), "{error}");
            }
        }
    }
    words
}

/// Replaces operations that no old dialect has by operations of some old dialects.
fn narrowed(mut program: Program) -> Program {
    for op in &mut program.values {
        *op = match *op {
            Op::Load { width, offset, .. } => Op::Load {
                width,
                base: None,
                offset: match width {
                    Width::B1 => offset & 0x3f,
                    _ => offset & 0x3e,
                },
            },
            Op::Len => Op::Load {
                width: Width::B2,
                base: None,
                offset: 2,
            },
            Op::Bin { op, a, b } => Op::Bin {
                op: match op {
                    BinOp::Add | BinOp::Mul => BinOp::Or,
                    BinOp::Sub | BinOp::Div | BinOp::Mod => BinOp::Xor,
                    BinOp::Shl | BinOp::Shr if b.value().is_some() => BinOp::And,
                    op => op,
                },
                a,
                b,
            },
            op => op,
        };
    }
    program
}

fn frames_of_all_lengths(seed: u64) -> Vec<Frame> {
    let mut all = frames(seed, 24);
    // Frames cut at the ends of loads, one byte before and one byte after.
    for (index, frame) in frames(seed ^ 1, 70).into_iter().enumerate() {
        let mut bytes = frame.bytes;
        bytes.resize(index, 0);
        all.push(Frame { bytes, ..frame });
    }
    all
}

#[test]
fn random_programs_keep_their_verdicts() {
    let mut most = 0;
    for seed in seeds(300) {
        let mut program = seeded(seed);
        let frames = frames(seed, 40);
        for optimised in [false, true] {
            if optimised {
                optimise(&mut program);
            }
            println!("seed {seed}");
            let words = check_all(&program, &frames);
            most = most.max(words.get("weir").copied().unwrap_or(0));
        }
    }
    println!("{most} words at most");
}

#[test]
fn programs_of_words_keep_their_verdicts_in_old_dialects() {
    let mut expressed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut programs = 0;
    for seed in seeds(300) {
        programs += 1;
        let mut program = narrowed(seeded(seed));
        let frames = frames_of_all_lengths(seed);
        for optimised in [false, true] {
            if optimised {
                optimise(&mut program);
            }
            println!("seed {seed}");
            for dialect in check_all(&program, &frames).keys() {
                *expressed.entry(dialect).or_default() += usize::from(program.len() > 3);
            }
        }
    }
    println!("{expressed:?}");
    for dialect in Dialect::ALL {
        let found = expressed.get(dialect.name()).copied().unwrap_or(0);
        assert!(found > programs / 20, "{dialect}: {found}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_program_keeps_its_verdicts(
        code in prop::collection::vec(any::<u8>(), 0..600),
        data in prop::collection::vec(any::<u8>(), 0..900),
        narrow in any::<bool>(),
    ) {
        let mut data = Tape::new(data);
        let frames: Vec<Frame> = (0..8).map(|_| frame(&mut data)).collect();
        let mut program = program(&mut Tape::new(code));
        if narrow {
            program = narrowed(program);
        }
        check_all(&program, &frames);
        optimise(&mut program);
        check_all(&program, &frames);
    }
}

fn optimised(text: &str, linktype: LinkType) -> Option<Program> {
    let context = Context::new(linktype);
    let mut program = compile(text, &context).ok()?;
    optimise(&mut program);
    Some(program)
}

/// Frames that expressions of the corpus accept and reject, complete and cut.
fn corpus_frames() -> Vec<Frame> {
    let mut frames = Vec::new();
    for (protocol, port) in [(TCP, 80), (UDP, 53), (1, 0), (TCP, 22)] {
        let tuple = FiveTuple {
            src: 0x0a00_0001,
            dst: 0xc0a8_0102,
            protocol,
            src_port: 40_000,
            dst_port: port,
        };
        let bytes = tuple.frame();
        let wire_len = bytes.len() as u32;
        frames.push(Frame { bytes, wire_len });
    }
    match Oracle::load() {
        None => testenv::skip("no libpcap to read captures with"),
        Some(oracle) => {
            for (_, capture) in captures::captures(&oracle) {
                if capture.linktype == LinkType::EN10MB {
                    let few = capture.frames.into_iter().step_by(37).take(3);
                    frames.extend(few.map(|frame| Frame {
                        bytes: frame.bytes,
                        wire_len: frame.wire_len,
                    }));
                }
            }
        }
    }
    let cut = frames
        .clone()
        .into_iter()
        .enumerate()
        .map(|(index, mut frame)| {
            frame.bytes.truncate(10 + index * 7 % 60);
            frame
        });
    frames.extend(cut.collect::<Vec<_>>());
    frames
}

#[test]
fn expressions_keep_their_verdicts() {
    let frames = corpus_frames();
    let mut expressed: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut count, mut total, mut most) = (0, 0, (0, String::new()));
    let every = std::env::var("WEIR_CORPUS_ALL").map_or(7, |_| 1);
    for (index, entry) in corpus::entries().into_iter().enumerate().step_by(every) {
        let Some(program) = optimised(&entry.text, LinkType::EN10MB) else {
            continue;
        };
        count += 1;
        let frames: Vec<Frame> = frames.iter().skip(index % 4).step_by(4).cloned().collect();
        let words = check_all(&program, &frames);
        match words.get("weir") {
            Some(words) => {
                total += words;
                most = most.max((*words, entry.text));
            }
            None => println!("too long in {} instructions: {}", program.len(), entry.text),
        }
        for dialect in words.keys() {
            *expressed.entry(dialect).or_default() += 1;
        }
    }
    println!("{count} expressions: {expressed:?}; {total} words in weir, {most:?} most");
    assert_eq!(expressed["weir"], count);
    for old in ["paper", "bsd", "dec", "mach", "sun"] {
        assert!(expressed[old] * 5 > count, "{old}: {expressed:?}");
    }
}

/// The words of an expression in a dialect, as text without newlines.
fn words_of(text: &str, dialect: Dialect) -> Result<String, EmitError> {
    let program = optimised(text, LinkType::EN10MB).expect("an expression");
    let filter = emit(&program, dialect, LinkType::EN10MB)?;
    Ok(disassemble(&filter)
        .replace('\n', " ")
        .trim_end()
        .to_owned())
}

#[test]
fn tests_in_a_row_read_as_a_person_writes_them() {
    for (text, dialect, expected) in [
        (
            "ether[12:2] = 0x806",
            Dialect::Bsd,
            "PUSHWORD+6, PUSHLIT | EQ, 0x0806,",
        ),
        (
            "ip and udp",
            Dialect::Paper,
            "PUSHWORD+6, PUSHLIT | CAND, 0x0800, PUSHWORD+11, PUSH00FF | AND, PUSHLIT | EQ, 17,",
        ),
        (
            "ip src 10.0.0.1",
            Dialect::Dec,
            "PUSHWORD+6, PUSHLIT | CAND, 0x0800, PUSHWORD+13, PUSHLIT | CAND, 0x0a00, \
             PUSHWORD+14, PUSHONE | EQ,",
        ),
        (
            "ip src net 10.0.0.0/15",
            Dialect::Weir,
            "PUSHWORD+6, PUSHLIT | CAND, 0x0800, PUSHLONG, 26, PUSHLIT32 | AND, 0xfffe, 0, \
             PUSHLIT32 | EQ, 0x0a00, 0,",
        ),
        ("", Dialect::Paper, "PUSHONE,"),
        ("", Dialect::Mach, "PUSHLIT, 1,"),
    ] {
        assert_eq!(words_of(text, dialect).unwrap(), expected, "{text}");
    }
}

#[test]
fn what_a_dialect_lacks_is_said() {
    for (text, dialect, needles) in [
        (
            "tcp port 80",
            Dialect::Paper,
            &["dialect paper", "a field at a computed offset"][..],
        ),
        (
            "tcp port 80",
            Dialect::Sun,
            &["dialect sun cannot", "the dialect weir can"],
        ),
        ("len > 60", Dialect::Dec, &["the frame's length"]),
        (
            "ether[0] = 1",
            Dialect::Bsd,
            &["the 1 byte at byte 0 without reading others"],
        ),
        ("ether[3:2] = 1", Dialect::Mach, &["the 2 bytes at byte 3"]),
        (
            "ether[5000:2] = 1",
            Dialect::Paper,
            &["the word at byte 5000, beyond its reach"],
        ),
        (
            "host 10.0.0.1",
            Dialect::Paper,
            &["a choice of tests", "byte 41"],
        ),
    ] {
        let error = words_of(text, dialect).expect_err(text).to_string();
        for needle in needles {
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
    let hosts: Vec<_> = (0..40)
        .map(|n| format!("not ether[{}:2] = {n}", 2 * n))
        .collect();
    let error = words_of(&hosts.join(" and "), Dialect::Bsd).unwrap_err();
    assert!(
        matches!(error, EmitError::TooManyWords { words: 119.., .. }),
        "{error}"
    );
    let hosts: Vec<_> = (0..2000)
        .map(|n| format!("ether[{}:2] = {n}", 2 * n))
        .collect();
    let error = words_of(&hosts.join(" or "), Dialect::Weir).unwrap_err();
    assert!(error.to_string().contains("which allows 4096"), "{error}");
    // Mach requires a known end of the link header.
    let program = optimised("ether[2:2] = 0x45", LinkType::EN10MB).unwrap();
    let error = emit(&program, Dialect::Mach, LinkType::RAW).unwrap_err();
    assert!(error.to_string().contains("EN10MB"), "{error}");
}

/// A byte at an even offset is read as a word only if every frame without the next byte
/// is rejected anyway.
#[test]
fn a_wider_read_changes_no_verdict() {
    let program = optimised("ether[0] = 1 and ether[4] = 2", LinkType::EN10MB).unwrap();
    assert!(emit(&program, Dialect::Paper, LinkType::EN10MB).is_err());
    let program = optimised("ether[0] = 1 and ether[5] = 2", LinkType::EN10MB).unwrap();
    let filter = emit(&program, Dialect::Paper, LinkType::EN10MB).unwrap();
    let frames: Vec<Frame> = (0..=8)
        .map(|len| Frame {
            bytes: [1, 9, 9, 9, 9, 2, 9, 9][..len].to_vec(),
            wire_len: 60,
        })
        .collect();
    assert_same(&program, &filter, LinkType::EN10MB, &frames);
}

/// An unused load must still be executed.
#[test]
fn a_load_that_nothing_uses_still_rejects() {
    let text = "filter {
b0:
  v0 = load.4 [20]
  v1 = load.2 [0]
  v2 = and v0, 0xffff0000
  br eq v2, 0x10000, b1, b2
b1:
  ret 1
b2:
  ret 7
}";
    let program: Program = text.parse().unwrap();
    let frames = frames_of_all_lengths(7);
    assert_eq!(check_all(&program, &frames).len(), Dialect::ALL.len());
}

#[test]
fn the_figures_come_back() {
    const FIGURE_3_8: &str = "PUSHWORD+1, PUSHLIT | EQ, 2, PUSHWORD+3, PUSH00FF | AND,
        PUSHZERO | GT, PUSHWORD+3, PUSH00FF | AND, PUSHLIT | LE, 100, AND, AND";
    const FIGURE_3_9: &str = "PUSHWORD+8, PUSHLIT | CAND, 35, PUSHWORD+7, PUSHZERO | CAND,
        PUSHWORD+1, PUSHLIT | EQ, 2";
    for (text, len) in [(FIGURE_3_8, 12), (FIGURE_3_9, 8)] {
        let filter = assemble(text, Dialect::Paper).unwrap();
        assert_eq!(filter.words.len(), len);
        let mut program = lower(&filter, LinkType::EN3MB).unwrap();
        optimise(&mut program);
        let mut frames = frames_of_all_lengths(3);
        for pup_type in [0, 1, 35, 100, 101, 255] {
            for (word, value) in [(1, 2_u16), (1, 3), (7, 1), (8, 35), (8, 34)] {
                let mut bytes = vec![0; 26];
                bytes[3] = 2;
                bytes[7] = pup_type;
                bytes[17] = 35;
                bytes[2 * word..2 * word + 2].copy_from_slice(&value.to_be_bytes());
                let wire_len = 26;
                frames.push(Frame { bytes, wire_len });
            }
        }
        for dialect in Dialect::ALL {
            let emitted = emit(&program, dialect, LinkType::EN3MB).unwrap();
            assert_same(&program, &emitted, LinkType::EN3MB, &frames);
            println!("{dialect}: {len} words, then {}", emitted.words.len());
            let frames = frames.iter().map(|frame| {
                let (bytes, wire_len) = (&frame.bytes[..], frame.wire_len);
                let first = run(&filter, LinkType::EN3MB, bytes, wire_len);
                let second = run(&emitted, LinkType::EN3MB, bytes, wire_len);
                assert_eq!(first, second, "{frame:?}\n{}", disassemble(&emitted));
                first
            });
            assert!(frames.filter(|accepted| *accepted).count() > 2);
        }
    }
}
