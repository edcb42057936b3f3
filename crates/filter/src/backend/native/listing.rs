//! Code as text for people: each part of the IR beside the bytes it became.

use super::Arch;
use super::generate::{Generated, Mark};
use super::place::Place;
use crate::ir::{Program, Value};
use std::fmt::Write;

/// Bytes in one line.
const BYTES_PER_LINE: usize = 10;

/// The listing of `generated`, which was made of `program` with marks.
pub(super) fn text(program: &Program, arch: Arch, generated: &Generated) -> String {
    let mut out = String::new();
    let Generated {
        bytes,
        marks,
        places,
    } = generated;
    let _ = writeln!(
        out,
        "; {}: {} bytes, {} stack slots",
        arch.name(),
        bytes.len(),
        places.slots
    );
    let first = marks.first().map_or(bytes.len(), |&(offset, _)| offset);
    if first > 0 {
        part(&mut out, bytes, 0, first, "; entry");
    }
    for (index, &(start, mark)) in marks.iter().enumerate() {
        let end = marks.get(index + 1).map_or(bytes.len(), |&(end, _)| end);
        let lives = |value: Value| match places.of[value.index()] {
            Some(place) => format!("  ; {}", name(place, arch)),
            None => String::new(),
        };
        match mark {
            Mark::Block(block) => {
                let _ = write!(out, "{block}");
                for (index, &param) in program.block(block).params.iter().enumerate() {
                    let _ = write!(out, "{}{param}", if index == 0 { "(" } else { ", " });
                    if let Some(place) = places.of[param.index()] {
                        let _ = write!(out, " {}", name(place, arch));
                    }
                }
                let closing = if program.block(block).params.is_empty() {
                    ":"
                } else {
                    "):"
                };
                let _ = writeln!(out, "{closing}");
                part(&mut out, bytes, start, end, "; bounds");
            }
            Mark::Inst(value) => {
                let line = format!("{value} = {}{}", program.op(value), lives(value));
                part(&mut out, bytes, start, end, &line);
            }
            Mark::Reach(value) => {
                part(&mut out, bytes, start, end, &format!("; bounds by {value}"));
            }
            Mark::Term(block) => {
                let line = program.block(block).term.to_string();
                part(&mut out, bytes, start, end, &line);
            }
            Mark::Reject => {
                out.push_str("reject:\n");
                part(&mut out, bytes, start, end, "ret 0");
            }
        }
    }
    out
}

/// The bytes of one part with what they are; notes without bytes are left out.
fn part(out: &mut String, bytes: &[u8], start: usize, end: usize, what: &str) {
    let lines = bytes[start..end].chunks(BYTES_PER_LINE);
    if start == end && !what.starts_with(';') {
        let _ = writeln!(
            out,
            "{:6}  {:width$}  {what}",
            "",
            "",
            width = 3 * BYTES_PER_LINE - 1
        );
    }
    for (index, line) in lines.enumerate() {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "{:6x}  {:width$}  {}",
            start + index * BYTES_PER_LINE,
            hex.join(" "),
            if index == 0 { what } else { "" },
            width = 3 * BYTES_PER_LINE - 1
        );
        out.push_str(text.trim_end());
        out.push('\n');
    }
}

fn name(place: Place, arch: Arch) -> String {
    match (place, arch) {
        (Place::Slot(slot), _) => format!("[sp + {}]", 4 * u32::from(slot)),
        (Place::Reg(2), Arch::X64) => "edx".into(),
        (Place::Reg(reg), Arch::X64) => format!("r{reg}d"),
        (Place::Reg(reg), Arch::A64) => format!("w{reg}"),
    }
}
