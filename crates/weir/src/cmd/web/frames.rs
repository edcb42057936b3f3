//! The last frames for a browser: a list, and the fields and bytes of one.

use crate::monitor::lines::{TreeLine, hex_line, line, tree};
use crate::monitor::session::Session;
use crate::monitor::views::{Look, Views};
use crate::report::format::{escaped, time_of_day};
use serde::Serialize;

/// Frames of the list.
const FRAMES_MAX: u64 = 200;
/// Bytes of a frame that a browser gets.
const BYTES_MAX: usize = 16 << 10;

#[derive(Serialize)]
struct Listed {
    /// From 1, as `weir top` counts.
    number: u64,
    time: Option<String>,
    length: u32,
    line: String,
    /// As of a shown frame.
    waiting: bool,
}

#[derive(Serialize)]
struct Shown {
    number: u64,
    line: String,
    /// Whether a view has been asked and has not answered.
    waiting: bool,
    fields: Vec<TreeLine>,
    hex: Vec<String>,
}

/// The last frames, as JSON.
pub(super) fn last(session: &Session, views: &mut Views) -> serde_json::Result<String> {
    let store = &session.store;
    let first = store.end().saturating_sub(FRAMES_MAX).max(store.first());
    let frames: Vec<Listed> = store
        .from(first)
        .map(|kept| {
            let look = views.look(&kept);
            Listed {
                number: kept.number + 1,
                time: kept.meta.time_ns.map(time_of_day),
                length: kept.meta.len,
                line: escaped(line(&kept, &look)),
                waiting: matches!(look, Look::Asked(_)),
            }
        })
        .collect();
    serde_json::to_string(&frames)
}

/// One frame, as JSON; `None` if it is not kept.
pub(super) fn one(
    session: &Session,
    views: &mut Views,
    number: u64,
) -> serde_json::Result<Option<String>> {
    let kept = number.checked_sub(1).and_then(|at| session.store.get(at));
    let Some(kept) = kept else {
        return Ok(None);
    };
    let look = views.look(&kept);
    let line = escaped(line(&kept, &look));
    let fields = tree(&kept, &look).into_iter().map(|line| TreeLine {
        text: escaped(line.text),
        ..line
    });
    let bytes = &kept.bytes[..kept.bytes.len().min(BYTES_MAX)];
    let rows = bytes.chunks(16).enumerate();
    let shown = Shown {
        number,
        line,
        waiting: matches!(look, Look::Asked(_)),
        fields: fields.collect(),
        hex: rows.map(|(row, bytes)| hex_line(row * 16, bytes)).collect(),
    };
    serde_json::to_string(&shown).map(Some)
}
