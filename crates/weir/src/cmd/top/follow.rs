//! A followed connection, as text or hex.

use crate::monitor::lines::{hex_line, printable};
use crate::monitor::report::end_name;
use crate::monitor::session::Session;
use weir_monitor::{Chunk, Content, Digest, Flow, Follow, Side};

/// Most lines of a followed connection; further lines are counted.
const LINES_MAX: usize = 500_000;
/// Cells of a text line before it goes on in the next one.
const LINE_WIDTH: usize = 160;

/// A line, and its sender; `None` for the monitor's own remarks.
pub(super) type Line = (Option<Side>, String);

/// The connection that is shown.
pub(super) struct Followed {
    pub(super) flow: Flow,
    chunks: Vec<Chunk>,
    is_cut: bool,
    /// Whether frames may be missing at the beginning, since older ones are not kept.
    is_partial: bool,
    frames: u64,
    pub(super) is_hex: bool,
    pub(super) lines: Vec<Line>,
    pub(super) offset: usize,
}

impl Followed {
    /// Puts a conversation together from the kept frames; `None` unless it is of TCP or UDP.
    pub(super) fn new(session: &Session, flow: Flow) -> Option<Followed> {
        if !matches!(flow.kind, weir_monitor::Kind::Ip(6 | 17)) || flow.a_port == 0 {
            return None;
        }
        let mut follow = Follow::new(flow);
        let mut frames = 0;
        for kept in session.store.from(0) {
            let digest = Digest::of(kept.bytes, kept.meta.linktype);
            frames += u64::from(follow.frame(kept.bytes, &digest));
        }
        let (chunks, is_cut) = follow.finish();
        let mut followed = Followed {
            flow,
            chunks,
            is_cut,
            is_partial: session.store.first() > 0,
            frames,
            is_hex: false,
            lines: Vec::new(),
            offset: 0,
        };
        followed.layout();
        Some(followed)
    }

    /// Text instead of hex, or the other way.
    pub(super) fn toggle(&mut self) {
        self.is_hex = !self.is_hex;
        self.offset = 0;
        self.layout();
    }

    pub(super) fn go(&mut self, by: isize) {
        let last = self.lines.len().saturating_sub(1);
        self.offset = self.offset.saturating_add_signed(by).min(last);
    }

    /// The line above the connection's.
    pub(super) fn title(&self) -> String {
        let bytes = |side: Side| {
            let of_side = self.chunks.iter().filter(|chunk| chunk.side == side);
            let lens = of_side.map(|chunk| match &chunk.content {
                Content::Bytes(bytes) => bytes.len() as u64,
                Content::Missing(_) => 0,
            });
            crate::report::format::grouped(lens.sum())
        };
        let flow = &self.flow;
        format!(
            "{} > {}: {} bytes, < {} bytes, {} frames, {}",
            end_name(&flow.a, flow.a_port),
            end_name(&flow.b, flow.b_port),
            bytes(Side::A),
            bytes(Side::B),
            self.frames,
            if self.is_hex { "hex" } else { "text" },
        )
    }

    fn layout(&mut self) {
        let mut lines = Vec::new();
        if self.is_partial {
            lines.push((
                None,
                "older frames are no longer kept: give a greater --keep".to_owned(),
            ));
        }
        for chunk in &self.chunks {
            if lines.len() >= LINES_MAX {
                lines.push((None, "more lines are not shown: save the frames".to_owned()));
                break;
            }
            let side = Some(chunk.side);
            match &chunk.content {
                Content::Missing(count) => {
                    lines.push((side, format!("[{count} bytes are missing]")))
                }
                Content::Bytes(bytes) if self.is_hex => {
                    let rows = bytes.chunks(16).enumerate();
                    lines.extend(rows.map(|(row, bytes)| (side, hex_line(row * 16, bytes))));
                }
                Content::Bytes(bytes) => text_lines(bytes, side, &mut lines),
            }
        }
        if self.is_cut {
            lines.push((
                None,
                "the connection goes on beyond 16 MiB, the limit".to_owned(),
            ));
        }
        if self.chunks.is_empty() {
            lines.push((None, "no bytes in the frames that are kept".to_owned()));
        }
        self.lines = lines;
    }
}

fn text_lines(bytes: &[u8], side: Option<Side>, lines: &mut Vec<Line>) {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            lines.push((side, String::new()));
        }
        for part in line.chunks(LINE_WIDTH) {
            let shown = part.iter().map(|byte| {
                if *byte == b'\t' {
                    ' '
                } else {
                    printable(*byte)
                }
            });
            lines.push((side, shown.collect()));
        }
    }
}
