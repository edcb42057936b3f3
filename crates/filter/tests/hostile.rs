//! Hostile filters: near every limit of their language, in shapes for which an optimiser
//! or a back end might take quadratic time or worse. Each yields a program or an error
//! within bounded time and memory.
//!
//! `WEIR_HOSTILE=all` runs the longest filter of each shape, which takes a minute in a
//! debug build, and prints the time of each:
//!
//! ```text
//! WEIR_HOSTILE=all cargo test --release -p weir-filter --test hostile -- --nocapture --test-threads=1
//! ```

use std::fmt::Write as _;
use std::time::{Duration, Instant};
use weir_filter::backend::native::{self, Arch, Code};
use weir_filter::backend::{cbpf as to_cbpf, cspf as to_cspf, ebpf as to_ebpf};
use weir_filter::interp::Interp;
use weir_filter::ir::Program;
use weir_filter::lang::cbpf::{self, Insn};
use weir_filter::lang::cspf::{self, Dialect};
use weir_filter::lang::expr::{Context, compile, limits};
use weir_filter::opt::optimise;
use weir_lab::program::Tape;
use weir_wire::LinkType;

/// Maximum processor time for one filter in a debug build, from text to all back ends; a
/// release build has a tenth.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum memory of this process, in KiB.
const MEMORY_MAX_KIB: u64 = 2 << 20;

/// The stages that gave no result, with reasons.
type Refusals = Vec<String>;

fn runs_all() -> bool {
    std::env::var("WEIR_HOSTILE").is_ok_and(|value| value == "all")
}

/// The processor time of this thread.
fn spent(since: Instant) -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = text.and_then(|text| text.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

/// The peak memory of this process, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let count = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
    count.unwrap_or(0)
}

/// The verdicts of `run` on a few frames.
fn verdicts(mut run: impl FnMut(&[u8]) -> u32) -> Vec<u32> {
    let frame = |fill: u8| {
        let byte = |at: usize| fill.wrapping_mul(51) ^ (at as u8 & fill);
        (0..40 * usize::from(fill)).map(byte).collect::<Vec<u8>>()
    };
    (0..8).map(|fill| run(&frame(fill))).collect()
}

/// The length on the wire of those frames.
const WIRE_LEN: u32 = 400;

/// Runs a program through all stages; returns the refusals.
fn through_all(program: &Program) -> Refusals {
    let mut refusals = Refusals::new();
    let mut optimised = program.clone();
    optimise(&mut optimised);
    optimised.verify().unwrap();
    let mut interp = Interp::new(program);
    let expected = verdicts(|frame| interp.run(frame, WIRE_LEN));
    let mut interp = Interp::new(&optimised);
    assert_eq!(verdicts(|frame| interp.run(frame, WIRE_LEN)), expected);
    for program in [program, &optimised] {
        let mut note = |what: &str, error: Option<String>| {
            refusals.extend(error.map(|error| format!("{what}: {error}")));
        };
        let error = |error: &dyn std::error::Error| error.to_string();
        if let Ok(code) = Code::compile(program) {
            assert_eq!(verdicts(|frame| code.run(frame, WIRE_LEN)), expected);
        }
        for arch in [Arch::X64, Arch::A64] {
            let found = native::assemble(program, arch);
            note(arch.name(), found.err().map(|found| error(&found)));
        }
        let found = to_cbpf::emit(program);
        if let Ok(insns) = &found {
            assert_eq!(
                verdicts(|frame| cbpf::run(insns, frame, WIRE_LEN)),
                expected
            );
        }
        note("cbpf", found.err().map(|found| error(&found)));
        let found = to_ebpf::emit(program, &to_ebpf::Options::new(to_ebpf::Target::Memory));
        note("ebpf", found.err().map(|found| error(&found)));
        let found = to_cspf::emit(program, Dialect::Weir, LinkType::EN10MB);
        if let Ok(filter) = &found {
            let run = |frame: &[u8]| cspf::run(filter, LinkType::EN10MB, frame, WIRE_LEN).into();
            let truths = expected.iter().map(|&verdict| (verdict != 0).into());
            assert_eq!(verdicts(run), truths.collect::<Vec<u32>>());
        }
        note("cspf", found.err().map(|found| error(&found)));
        let _ = program.to_string();
    }
    refusals
}

/// Runs `work` and checks its time and memory.
fn bounded(name: &str, work: impl FnOnce() -> Refusals) {
    let since = Instant::now();
    let before = spent(since);
    let refusals = work();
    let took = spent(since) - before;
    let peak = peak_kib();
    if runs_all() {
        println!(
            "{name:40} {took:>12.3?} {:>6} MiB  {refusals:?}",
            peak >> 10
        );
    }
    assert!(took < TIME_MAX, "{name} took {took:?}");
    assert!(peak < MEMORY_MAX_KIB, "{name}: {peak} KiB of memory");
}

mod classic {
    use super::*;

    pub(crate) const LDB: u16 = 0x30;
    pub(crate) const LDB_X: u16 = 0x50;
    pub(crate) const LDW: u16 = 0x20;
    pub(crate) const LDX_IHL: u16 = 0xb1;
    pub(crate) const LD_MEM: u16 = 0x60;
    pub(crate) const LDX_MEM: u16 = 0x61;
    pub(crate) const ST: u16 = 0x02;
    pub(crate) const STX: u16 = 0x03;
    pub(crate) const ADD: u16 = 0x04;
    pub(crate) const ADD_X: u16 = 0x0c;
    pub(crate) const MUL_X: u16 = 0x2c;
    pub(crate) const DIV_X: u16 = 0x3c;
    pub(crate) const XOR_X: u16 = 0xac;
    pub(crate) const JEQ: u16 = 0x15;
    pub(crate) const JEQ_X: u16 = 0x1d;
    pub(crate) const JGT_X: u16 = 0x2d;
    pub(crate) const JSET: u16 = 0x45;
    pub(crate) const RET: u16 = 0x06;
    pub(crate) const RET_A: u16 = 0x16;
    pub(crate) const TAX: u16 = 0x07;

    pub(crate) fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
        Insn { code, jt, jf, k }
    }

    pub(crate) fn plain(code: u16, k: u32) -> Insn {
        insn(code, 0, 0, k)
    }

    /// Accepts if A equals `k`.
    fn accept_if(k: u32) -> [Insn; 2] {
        [insn(JEQ, 0, 1, k), plain(RET, k + 1)]
    }

    /// Repeats `step` up to `count` instructions.
    pub(crate) fn repeated(count: usize, mut step: impl FnMut(u32, &mut Vec<Insn>)) -> Vec<Insn> {
        let mut insns = Vec::new();
        for index in 0.. {
            let before = insns.len();
            step(index, &mut insns);
            if insns.len() + 1 > count {
                insns.truncate(before);
                break;
            }
        }
        insns.push(plain(RET_A, 0));
        insns
    }

    type Shape = (&'static str, fn(usize) -> Vec<Insn>);

    pub(crate) const SHAPES: &[Shape] = &[
        ("tests of many bytes", |count| {
            repeated(count, |index, insns| {
                insns.push(plain(LDB, index % 1_500));
                insns.extend(accept_if(index & 0xff));
            })
        }),
        ("tests of one byte", |count| {
            repeated(count, |index, insns| {
                insns.push(plain(LDB, 7));
                insns.extend(accept_if(index & 0xff));
            })
        }),
        ("sums on ways that part and meet", |count| {
            repeated(count, |index, insns| {
                insns.push(insn(JSET, 0, 1, 1 << (index % 32)));
                insns.push(plain(ADD, index));
            })
        }),
        ("words stored on ways that part and meet", |count| {
            repeated(count, |index, insns| {
                if index < 16 {
                    insns.push(plain(ST, index));
                    return;
                }
                insns.push(plain(LDB, index % 64));
                insns.push(insn(JEQ, 0, 1, index & 0xff));
                insns.push(plain(ST, index % 16));
                if index % 8 == 0 {
                    insns.push(plain(LDX_MEM, index / 8 % 16));
                    insns.push(insn(JGT_X, 0, 1, 0));
                    insns.push(plain(STX, (index + 3) % 16));
                }
            })
        }),
        ("a long sum of loads", |count| {
            let mut insns = vec![plain(LDX_IHL, 14)];
            insns.extend(repeated(count - 1, |index, insns| {
                insns.push(plain(LDB_X, index % 1_000));
                insns.push(plain(ADD_X, 0));
                insns.push(plain(TAX, 0));
            }));
            insns
        }),
        ("a long value", |count| {
            let mut insns = vec![plain(LDW, 0), plain(TAX, 0), plain(LDW, 4)];
            insns.extend(repeated(count - 3, |index, insns| {
                let code = [ADD_X, MUL_X, XOR_X][index as usize % 3];
                insns.push(plain(code, 0));
                if index % 5 == 0 {
                    insns.push(plain(TAX, 0));
                }
            }));
            insns
        }),
        ("tests of a long value that ways differ in", |count| {
            let mut insns = vec![
                plain(LDW, 0),
                insn(JSET, 0, 1, 1),
                plain(LDW, 4),
                plain(LDX_IHL, 14),
            ];
            insns.extend((0..count / 2).map(|index| plain([MUL_X, XOR_X][index % 2], 0)));
            insns.extend(repeated(count - insns.len(), |index, insns| {
                insns.extend(accept_if(index * 77));
            }));
            insns
        }),
        ("divisions between tests", |count| {
            let mut insns = vec![plain(LDW, 0), plain(LDX_IHL, 14)];
            insns.extend(repeated(count - 2, |index, insns| {
                insns.push(plain(DIV_X, 0));
                insns.push(plain(ADD_X, 0));
                insns.extend(accept_if(index));
            }));
            insns
        }),
        ("tests behind many divisions", |count| {
            let mut insns = vec![plain(LDW, 0), plain(LDX_IHL, 14)];
            for _ in 0..count / 4 {
                insns.extend([plain(DIV_X, 0), plain(ADD_X, 0)]);
            }
            insns.extend(repeated(count - insns.len(), |index, insns| {
                insns.extend(accept_if(index));
            }));
            insns
        }),
        ("loads at loaded positions", |count| {
            repeated(count, |index, insns| {
                insns.extend([plain(TAX, 0), plain(LDB_X, index)]);
                insns.extend(accept_if(index & 0xff));
            })
        }),
        ("tests behind loads at loaded positions", |count| {
            let mut insns = vec![plain(LDB, 0), insn(JSET, 0, 1, 1), plain(LDB, 1)];
            for index in 0..count as u32 / 4 {
                insns.extend([plain(TAX, 0), plain(LDB_X, index)]);
            }
            insns.extend(repeated(count - insns.len(), |index, insns| {
                insns.extend(accept_if(index & 0xff));
            }));
            insns
        }),
        ("words compared with words", |count| {
            let mut insns = Vec::new();
            for word in 0..16 {
                insns.extend([plain(LDW, 4 * word), plain(ST, word)]);
            }
            insns.extend(repeated(count - 32, |index, insns| {
                insns.push(plain(LD_MEM, index % 16));
                insns.push(plain(LDX_MEM, index / 16 % 16));
                insns.push(insn([JEQ_X, JGT_X][index as usize % 2], 0, 1, 0));
                insns.push(plain(ST, index / 3 % 16));
            }));
            insns
        }),
    ];

    /// Random instructions with jumps of up to 250 instructions.
    pub(crate) fn random(count: usize, seed: u64) -> Vec<Insn> {
        let mut tape = Tape::seeded(seed, 12 * count);
        let mut insns: Vec<Insn> = (0..16).map(|word| plain(ST, word)).collect();
        insns.push(plain(LDX_IHL, 14));
        while insns.len() + 1 < count {
            let left = (count - insns.len() - 2).min(250);
            let k = tape.below(6) as u32;
            insns.push(match tape.below(8) {
                0 | 1 => {
                    let code = tape.pick(&[JEQ, JEQ, JSET, JGT_X, JEQ_X]);
                    let ahead = tape.pick(&[3, 20, 250]).min(left);
                    let mut jump = || tape.below(ahead + 1) as u8;
                    insn(code, jump(), jump(), k)
                }
                2 => plain(tape.pick(&[ST, STX]), tape.below(16) as u32),
                3 => plain(tape.pick(&[LD_MEM, LDX_MEM]), tape.below(16) as u32),
                4 => plain(tape.pick(&[ADD, ADD_X, MUL_X, DIV_X, XOR_X]), k),
                5 => plain(TAX, 0),
                _ => plain(tape.pick(&[LDB, LDB, LDB_X]), k),
            });
        }
        insns.push(plain(RET_A, 0));
        insns
    }
}

fn classic(name: &str, insns: &[Insn]) {
    assert!(insns.len() <= cbpf::INSNS_MAX, "{name}: {}", insns.len());
    bounded(name, || {
        cbpf::verify(insns).unwrap();
        through_all(&cbpf::lift(insns).unwrap())
    });
}

#[test]
fn classic_programs_of_every_shape() {
    for (name, shape) in classic::SHAPES {
        let count = if runs_all() { cbpf::INSNS_MAX } else { 600 };
        classic(name, &shape(count));
    }
}

#[test]
fn classic_programs_of_random_instructions() {
    let (seeds, count) = if runs_all() {
        (20, cbpf::INSNS_MAX)
    } else {
        (3, 600)
    };
    for seed in 0..seeds {
        classic(
            &format!("random, seed {seed}"),
            &classic::random(count, seed),
        );
    }
}

type TextShape = (&'static str, fn(usize) -> String);

/// Repeats `part` up to `bytes` bytes.
fn text_of(bytes: usize, mut part: impl FnMut(usize) -> String) -> String {
    let mut text = String::new();
    for index in 0.. {
        let part = part(index);
        if text.len() + part.len() > bytes {
            break;
        }
        text += &part;
    }
    text
}

/// Repeats `term` with `with` between, up to `bytes` bytes.
fn joined(bytes: usize, with: &str, mut term: impl FnMut(usize) -> String) -> String {
    text_of(bytes, |index| match index {
        0 => term(0),
        _ => format!("{with}{}", term(index)),
    })
}

const TEXTS: &[TextShape] = &[
    ("ports", |bytes| {
        joined(bytes, " or ", |index| format!("port {}", index % 65_536))
    }),
    ("hosts and not hosts", |bytes| {
        joined(bytes, " or ", |index| {
            let not = ["", "not "][index % 2];
            format!("{not}host 10.{}.{}.9", index / 256 % 256, index % 256)
        })
    }),
    ("and, or by turns", |bytes| {
        let term = |index| format!("(ip[{}] = 1 {} ", index % 60, ["and", "or"][index % 2]);
        let mut text = text_of(bytes / 2, term);
        let depth = text.matches('(').count();
        text += "udp";
        text += &")".repeat(depth);
        text
    }),
    ("parentheses", |bytes| {
        let depth = (bytes - 3) / 2;
        format!("{}tcp{}", "(".repeat(depth), ")".repeat(depth))
    }),
    ("negations", |bytes| "not ".repeat(bytes / 4 - 1) + "tcp"),
    ("a long sum", |bytes| {
        joined(bytes - 8, " + ", |index| format!("ip[{}]", index % 1_000)) + " = 7"
    }),
    ("a deep sum", |bytes| {
        let depth = bytes / 8;
        format!("{}1{} = 7", "(len+".repeat(depth), ")".repeat(depth))
    }),
    ("a position in a position", |bytes| {
        let depth = bytes / 5;
        format!("{}1{} = 7", "ip[".repeat(depth), "]".repeat(depth))
    }),
    ("divisions", |bytes| {
        joined(bytes, " and ", |index| {
            format!("len / ip[{}] != {index}", 1 + index % 40)
        })
    }),
    ("header chains", |bytes| {
        joined(bytes, " or ", |index| {
            format!("ip6 protochain {}", index % 256)
        })
    }),
    ("tags", |bytes| {
        joined(bytes, " and ", |index| format!("vlan {}", index % 4_096))
    }),
    ("tags or tags", |bytes| {
        joined(bytes, " or ", |index| {
            format!("(vlan {} and port 1)", index % 4_096)
        })
    }),
    ("labels", |bytes| {
        joined(bytes, " and ", |index| format!("mpls {index}"))
    }),
    ("nets", |bytes| {
        joined(bytes, " or ", |index| {
            let mask = 8 + index % 25;
            let address = (index as u32).wrapping_mul(0x9e37_79b9) & (u32::MAX << (32 - mask));
            let [a, b, c, d] = address.to_be_bytes();
            format!("net {a}.{b}.{c}.{d}/{mask}")
        })
    }),
    ("long hosts", |bytes| {
        joined(bytes, " or ", |index| {
            format!("host 2001:db8::{:x}", index % 65_536)
        })
    }),
    ("ports of hosts", |bytes| {
        joined(bytes, " or ", |index| {
            let (host, port) = (index % 251, index % 1_021);
            format!(
                "(tcp and src 10.0.0.{host} and dst port {port} and ip[8] > {})",
                index % 7
            )
        })
    }),
    ("words and spaces", |bytes| " ".repeat(bytes - 3) + "tcp"),
];

#[test]
fn expressions_of_every_shape() {
    let context = Context::new(LinkType::EN10MB);
    for (name, shape) in TEXTS {
        let mut bytes = if runs_all() { limits::TEXT_MAX } else { 5_000 };
        // Text with too many tests is refused; half of the text may be accepted.
        let mut is_refused = true;
        while is_refused && bytes > 1_000 {
            let text = shape(bytes);
            assert!(text.len() <= bytes, "{name}: {} bytes", text.len());
            bounded(&format!("{name}, {bytes} bytes"), || {
                let compiled = compile(&text, &context);
                is_refused = compiled.is_err();
                match compiled {
                    Ok(program) => through_all(&program),
                    Err(error) => {
                        let message = error.to_string();
                        assert!(message.len() < 2_000, "{name}: {} bytes", message.len());
                        vec![message]
                    }
                }
            });
            bytes /= 2;
        }
        assert!(!is_refused, "{name}: refused however short it is");
    }
}

/// A text of `words` words.
fn stack_text(words: usize, mut part: impl FnMut(usize) -> String) -> String {
    let mut text = String::new();
    for index in 0..words {
        let _ = writeln!(text, "{}", part(index));
    }
    text
}

const STACK: &[TextShape] = &[
    ("each test tests the one before", |words| {
        let test = ["GT", "LT", "GE", "EQ"];
        stack_text(words, |index| match index {
            0 => "PUSHWORD+0".into(),
            _ => format!("PUSHWORD+{} | {}", index % 40, test[index % 4]),
        })
    }),
    ("each test tests the two before", |words| {
        // The stack holds 240 of these cells.
        stack_text(words, |index| match index {
            0 | 1 => format!("PUSHWORD+{index}"),
            ..480 if index % 2 == 0 => "PUSHSTK+1".into(),
            ..480 => format!("PUSHSTK+1 | {}", ["GT", "LE", "EQ"][index % 3]),
            _ => "PUSHSTK+1 | GE".into(),
        })
    }),
    ("early ends", |words| {
        // The dialects weir and paper push a result each time.
        stack_text(words, |index| {
            let operator = ["CAND", "COR", "CNAND", "CNOR"][index % 4];
            match index {
                0 => "PUSHWORD+0".into(),
                _ => format!("PUSHWORD+{} | {operator}", index % 30),
            }
        })
    }),
    ("arithmetic", |words| {
        stack_text(words, |index| match index {
            0 => "PUSHWORD+0".into(),
            _ => format!(
                "PUSHWORD+{} | {}",
                index % 40,
                ["ADD", "XOR", "SUB"][index % 3]
            ),
        })
    }),
];

#[test]
fn stack_programs_of_every_shape() {
    for (name, shape) in STACK {
        for dialect in [Dialect::Weir, Dialect::Mach, Dialect::Paper] {
            let words = if runs_all() {
                dialect.words_max()
            } else {
                dialect.words_max().min(600)
            };
            bounded(&format!("{name}, {dialect}"), || {
                let filter = match cspf::assemble(&shape(words), dialect) {
                    Ok(filter) => filter,
                    Err(error) => return vec![error.to_string()],
                };
                match cspf::lower(&filter, LinkType::EN10MB) {
                    Ok(program) => through_all(&program),
                    Err(error) => vec![error.to_string()],
                }
            });
        }
    }
}

type TreeShape = (&'static str, fn(usize, usize) -> String);

/// Shapes that no language yields, but the text form does: long chains of values, each
/// made of earlier ones. As trees they would have 2^count operations.
const TREES: &[TreeShape] = &[
    ("tests of tests", |a, b| {
        format!("test {} v{a}, v{b}", ["gt", "eq", "le"][a % 3])
    }),
    ("sums of sums", |a, b| {
        format!("{} v{a}, v{b}", ["add", "xor", "mul"][a % 3])
    }),
    ("truths of truths", |a, b| match a % 4 {
        0 | 2 => format!("{} v{a}, v{b}", ["and", "or"][a / 2 % 2]),
        _ => format!("test eq v{a}, v{b}"),
    }),
    ("alternatives of alternatives", |a, b| {
        format!("{} v{a}, v{b}", ["or", "and"][a % 2])
    }),
    ("divisions by quotients", |a, b| {
        format!("{} v{a}, v{b}", ["add", "div"][a % 2])
    }),
    ("positions from positions", |a, b| match a % 2 {
        0 => format!("add v{a}, v{b}"),
        _ => format!("load.1 [v{a} + {}]", b % 9),
    }),
];

#[test]
fn values_of_values() {
    let count = if runs_all() { 10_000 } else { 48 };
    for (name, value_of) in TREES {
        for (start, test) in [("load.1 [0]", "ne"), ("test eq v0, 7", "ne"), ("len", "gt")] {
            let mut text = String::from("filter {\nb0:\n  v0 = load.1 [1]\n");
            let _ = writeln!(text, "  v1 = {start}");
            for value in 2..count {
                let _ = writeln!(text, "  v{value} = {}", value_of(value - 1, value - 2));
            }
            let end = count - 1;
            let _ = writeln!(text, "  br {test} v{end}, 0, b1, b2");
            // The same after a join.
            text += "b1:\n  jmp b3(v0)\nb2:\n  jmp b3(v1)\nb3(v1000000):\n";
            let _ = writeln!(text, "  v1000001 = xor v1000000, v{end}");
            let names = |value: usize| value + 1_000_000;
            for value in 2..count / 10 {
                let op = value_of(names(value - 1), names(value - 2));
                let _ = writeln!(text, "  v{} = {op}", names(value));
            }
            let end = names(count / 10 - 1);
            let _ = writeln!(
                text,
                "  br {test} v{end}, 0, b4, b5\nb4:\n  ret 1\nb5:\n  ret 0\n}}"
            );
            let program: Program = text.parse().unwrap();
            bounded(&format!("{name} from {start}"), || through_all(&program));
        }
    }
}
