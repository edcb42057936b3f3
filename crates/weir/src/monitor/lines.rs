//! What is shown of a frame: its line in a list, its fields, its bytes.

use super::views::{self, Look, Said};
use serde::Serialize;
use std::ops::Range;
use weir_monitor::StoredFrame;
use weir_monitor::frame_summary;

/// A line of the tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct TreeLine {
    pub(crate) depth: usize,
    pub(crate) text: String,
    /// Its bytes in the frame; empty for tshark's.
    pub(crate) range: Range<usize>,
    /// Whether it stands for a whole header.
    pub(crate) is_layer: bool,
}

/// The line of a frame by weir's own views.
pub(crate) fn summary(kept: &StoredFrame<'_>) -> String {
    frame_summary::line(kept.bytes, kept.meta.len as usize, kept.meta.linktype)
}

/// The line of a frame, with what a view of the user's says of it.
pub(crate) fn line(kept: &StoredFrame<'_>, look: &Look<'_>) -> String {
    let line = summary(kept);
    match look {
        Look::Said(name, Said::Fields(said, _)) => format!("{name}: {said}  {line}"),
        Look::Said(name, Said::Failed(_)) => format!("{name} failed  {line}"),
        _ => line,
    }
}

/// The lines of the headers. What a view of the user's says comes in place of what weir says of the
/// same bytes; a view that has not answered, or has failed, is said before.
pub(crate) fn tree(kept: &StoredFrame<'_>, look: &Look<'_>) -> Vec<TreeLine> {
    let payload = match look {
        Look::Nothing => kept.bytes.len()..kept.bytes.len(),
        _ => views::payload(kept),
    };
    let (before, behind): (Vec<_>, Vec<_>) =
        weir_monitor::tree::decode(kept.bytes, kept.meta.linktype)
            .into_iter()
            .partition(|layer| layer.range.start < payload.start);
    let mut lines: Vec<TreeLine> = before.into_iter().flat_map(layer_lines).collect();
    let header = |text| TreeLine {
        depth: 0,
        text,
        range: payload.clone(),
        is_layer: true,
    };
    match look {
        Look::Nothing => {}
        Look::Asked(name) => lines.push(header(format!("{name}: asked"))),
        Look::Said(name, said) => match said {
            Said::Nothing => {}
            Said::Failed(why) => lines.push(header(format!("{name} failed: {why}"))),
            Said::Fields(summary, fields) => {
                lines.push(header(format!("{name}: {summary}")));
                lines.extend(fields.iter().map(|field| TreeLine {
                    depth: 1 + usize::from(field.0),
                    text: format!("{}: {}", field.1, field.2),
                    range: field.range(&payload),
                    is_layer: false,
                }));
                return lines;
            }
        },
    }
    lines.extend(behind.into_iter().flat_map(layer_lines));
    lines
}

/// A header's line, and those of its fields.
fn layer_lines(layer: weir_monitor::tree::Layer) -> Vec<TreeLine> {
    let cut = if layer.is_cut { " [cut]" } else { "" };
    let mut lines = vec![TreeLine {
        depth: 0,
        text: format!("{}: {}{cut}", layer.name, layer.summary),
        range: layer.range,
        is_layer: true,
    }];
    lines.extend(layer.fields.into_iter().map(|field| TreeLine {
        depth: 1 + usize::from(field.depth),
        text: format!("{}: {}", field.name, field.value),
        range: field.range,
        is_layer: false,
    }));
    lines
}

/// A line of a hex dump: the offset, 16 bytes, and what is printable of them.
pub(crate) fn hex_line(offset: usize, bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(50);
    for number in 0..16 {
        match bytes.get(number) {
            Some(byte) => hex += &format!("{byte:02x} "),
            None => hex += "   ",
        }
        if number == 7 {
            hex.push(' ');
        }
    }
    let shown = bytes.iter().map(|byte| printable(*byte));
    format!("{offset:06x}  {hex} {}", shown.collect::<String>())
}

/// A byte as ASCII; `.` for others.
pub(crate) fn printable(byte: u8) -> char {
    match byte {
        b' '..=b'~' => byte.into(),
        _ => '.',
    }
}
