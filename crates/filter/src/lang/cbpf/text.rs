//! Printer for the three text forms of tcpdump.

use std::fmt::Write;

use super::{Insn, code};

/// A text form of tcpdump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `-d`: a readable listing.
    Listing,
    /// `-dd`: initialisers for a C array.
    C,
    /// `-ddd`: decimal numbers, preceded by a count.
    Decimal,
}

/// Prints the program exactly as tcpdump does, with a newline after every line.
pub fn text(insns: &[Insn], form: Form) -> String {
    let mut out = String::with_capacity(insns.len() * 32);
    if form == Form::Decimal {
        write_line(&mut out, format_args!("{}", insns.len()));
    }
    for (at, insn) in insns.iter().enumerate() {
        let Insn { code, jt, jf, k } = *insn;
        match form {
            Form::Listing => listing_line(&mut out, at, insn),
            Form::C => write_line(
                &mut out,
                format_args!("{{ {code:#x}, {jt}, {jf}, {k:#010x} }},"),
            ),
            Form::Decimal => write_line(&mut out, format_args!("{code} {jt} {jf} {k}")),
        }
    }
    out
}

fn write_line(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("a String takes all that is written");
}

fn listing_line(out: &mut String, at: usize, insn: &Insn) {
    let (name, operand) = image(at, insn);
    let is_branch = code::class(insn.code) == code::JMP && code::op(insn.code) != code::JA;
    if is_branch {
        let then = at + 1 + usize::from(insn.jt);
        let otherwise = at + 1 + usize::from(insn.jf);
        write_line(
            out,
            format_args!("({at:03}) {name:<8} {operand:<16} jt {then}\tjf {otherwise}"),
        );
    } else if operand.is_empty() {
        // tcpdump 4.99 with libpcap 1.10 also pads the name of an instruction without
        // operand.
        write_line(out, format_args!("({at:03}) {name:<8} "));
    } else {
        write_line(out, format_args!("({at:03}) {name:<8} {operand}"));
    }
}

/// Name and operand of an instruction in the `-d` form; `unimp` with the code for an
/// unknown instruction.
fn image(at: usize, insn: &Insn) -> (&'static str, String) {
    let Insn { code: value, k, .. } = *insn;
    image_load(value, k)
        .or_else(|| image_alu(value, k))
        .or_else(|| image_jump(at, value, k))
        .unwrap_or_else(|| ("unimp", format!("{value:#x}")))
}

fn image_load(value: u16, k: u32) -> Option<(&'static str, String)> {
    use code::*;
    const LD_LEN: u16 = LD | W | LEN;
    const LDX_LEN: u16 = LDX | W | LEN;
    const LD_MEM: u16 = LD | MEM;
    const LDX_MEM: u16 = LDX | MEM;
    const LDX_IMM: u16 = LDX | IMM;
    const LDX_MSH: u16 = LDX | B | MSH;
    let sized = match size(value) {
        W => "ld",
        H => "ldh",
        _ => "ldb",
    };
    let signed = k as i32;
    Some(match value {
        0x20 | 0x28 | 0x30 => match ancillary_name(k) {
            Some(field) => (sized, format!("[{field}]")),
            None => (sized, format!("[{signed}]")),
        },
        0x40 | 0x48 | 0x50 => (sized, format!("[x + {signed}]")),
        LD_LEN => ("ld", "#pktlen".into()),
        LDX_LEN => ("ldx", "#pktlen".into()),
        LD => ("ld", format!("#{k:#x}")),
        LDX_IMM => ("ldx", format!("#{k:#x}")),
        LDX_MSH => ("ldxb", format!("4*([{signed}]&0xf)")),
        LD_MEM => ("ld", format!("M[{signed}]")),
        LDX_MEM => ("ldx", format!("M[{signed}]")),
        ST => ("st", format!("M[{signed}]")),
        STX => ("stx", format!("M[{signed}]")),
        _ => return None,
    })
}

/// Names of arithmetic operations, and whether `-d` prints the constant in hexadecimal.
pub(super) const ALU_NAMES: [(u16, &str, bool); 10] = [
    (code::ADD, "add", false),
    (code::SUB, "sub", false),
    (code::MUL, "mul", false),
    (code::DIV, "div", false),
    (code::MOD, "mod", false),
    (code::AND, "and", true),
    (code::OR, "or", true),
    (code::XOR, "xor", true),
    (code::LSH, "lsh", false),
    (code::RSH, "rsh", false),
];

/// Names of conditional jumps.
pub(super) const JUMP_NAMES: [(u16, &str); 4] = [
    (code::JEQ, "jeq"),
    (code::JGT, "jgt"),
    (code::JGE, "jge"),
    (code::JSET, "jset"),
];

fn image_alu(value: u16, k: u32) -> Option<(&'static str, String)> {
    match value {
        0x84 => return Some(("neg", String::new())),
        0x07 => return Some(("tax", String::new())),
        0x87 => return Some(("txa", String::new())),
        _ => {}
    }
    if code::class(value) != code::ALU || value > 0xff {
        return None;
    }
    let row = ALU_NAMES.iter().find(|(op, ..)| *op == code::op(value));
    let &(_, name, hex) = row?;
    Some(if code::takes_x(value) {
        (name, "x".into())
    } else if hex {
        (name, format!("#{k:#x}"))
    } else {
        (name, format!("#{}", k as i32))
    })
}

fn image_jump(at: usize, value: u16, k: u32) -> Option<(&'static str, String)> {
    match value {
        0x06 => return Some(("ret", format!("#{}", k as i32))),
        0x16 => return Some(("ret", String::new())),
        // Computed in 32 bits, as tcpdump does, so a backward jump prints as such.
        0x05 => {
            let target = (at as u32).wrapping_add(1).wrapping_add(k) as i32;
            return Some(("ja", target.to_string()));
        }
        _ => {}
    }
    if code::class(value) != code::JMP || value > 0xff {
        return None;
    }
    let row = JUMP_NAMES.iter().find(|(op, _)| *op == code::op(value));
    let &(_, name) = row?;
    Some(if code::takes_x(value) {
        (name, "x".into())
    } else {
        (name, format!("#{k:#x}"))
    })
}
