//! Listing of generated code: each instruction of the IR with its bytes.

use super::Arch;
use super::generate::{Generated, ListingMark};
use super::location::Location;
use crate::ir::{Program, Value};
use std::fmt::Write;
use std::ops::Range;

/// Code bytes in one line.
const BYTES_PER_LINE: usize = 10;

/// The listing of `generated`, the code of `program` with marks.
pub(super) fn text(program: &Program, arch: Arch, generated: &Generated) -> String {
    let mut out = String::new();
    let bytes = &generated.bytes;
    let (name, slots) = (arch.name(), generated.locations.slots);
    let _ = writeln!(out, "; {name}: {} bytes, {slots} stack slots", bytes.len());
    let starts = generated.marks.iter().map(|&(start, _)| start);
    let ends = starts.clone().skip(1).chain([bytes.len()]);
    let entry = starts.clone().next().unwrap_or(bytes.len());
    part(&mut out, bytes, 0..entry, "; entry");
    for (&(start, mark), end) in generated.marks.iter().zip(ends) {
        let what = match mark {
            ListingMark::Block(block) => {
                let params = program.block(block).params.iter();
                let params: Vec<String> = params
                    .map(|&param| format!("{param}{}", location_of(param, arch, generated)))
                    .collect();
                let _ = if params.is_empty() {
                    writeln!(out, "{block}:")
                } else {
                    writeln!(out, "{block}({}):", params.join(", "))
                };
                continue;
            }
            ListingMark::Reject => {
                out.push_str("reject:\n");
                "ret 0".to_owned()
            }
            ListingMark::Check(None, extent) => format!("; bounds: {extent} bytes"),
            ListingMark::Check(Some(base), extent) => format!("; bounds: {base} + {extent} bytes"),
            ListingMark::Inst(value) => {
                let location = location_of(value, arch, generated);
                format!("{value}{location} = {}", program.op(value))
            }
            ListingMark::Term(block) => program.block(block).term.to_string(),
        };
        part(&mut out, bytes, start..end, &what);
    }
    out
}

/// Writes the bytes of one part and its text; a comment without bytes is omitted.
fn part(out: &mut String, bytes: &[u8], range: Range<usize>, what: &str) {
    const WIDTH: usize = 3 * BYTES_PER_LINE - 1;
    if range.is_empty() && !what.starts_with(';') {
        let _ = writeln!(out, "{:6}  {:WIDTH$}  {what}", "", "");
    }
    let mut offset = range.start;
    let mut what = what;
    for line in bytes[range].chunks(BYTES_PER_LINE) {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("{offset:6x}  {:WIDTH$}  {what}", hex.join(" "));
        out.push_str(text.trim_end());
        out.push('\n');
        offset += line.len();
        what = "";
    }
}

/// The location of a value in parentheses; empty if the value is unused.
fn location_of(value: Value, arch: Arch, generated: &Generated) -> String {
    let location = generated.locations.of[value.index()];
    location.map_or(String::new(), |location| {
        format!(" ({})", name(location, arch))
    })
}

fn name(location: Location, arch: Arch) -> String {
    match (location, arch) {
        (Location::Slot(slot), _) => format!("[sp + {}]", 4 * u32::from(slot)),
        (Location::Reg(2), Arch::X64) => "edx".into(),
        (Location::Reg(reg), Arch::X64) => format!("r{reg}d"),
        (Location::Reg(reg), Arch::A64) => format!("w{reg}"),
    }
}
