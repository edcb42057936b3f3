//! Windows over the views: help, one frame, a followed connection.

use super::{HEAD, MARK, PLAIN, SOFT, paint, put, wrapped};
use crate::cmd::top::detail::Detail;
use crate::cmd::top::follow::Followed;
use crate::cmd::top::keys::HELP;
use crate::monitor::lines::hex_line;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use weir_monitor::Side;

/// Cells of the keys in the help.
const KEYS_WIDTH: u16 = 27;

/// The keys, from a line on; the last lines if that is beyond them.
pub(super) fn help(buffer: &mut Buffer, area: Rect, offset: &mut usize) {
    let mut lines: Vec<(&str, u16, String)> = Vec::new();
    for (keys, what) in HELP {
        // Where there is little room, the words are below the keys.
        let column = match (keys, area.width) {
            ("", _) | (_, 0..=50) => 2,
            _ => KEYS_WIDTH,
        };
        let mut texts = wrapped(what, area.width.saturating_sub(column)).into_iter();
        let first = (column == KEYS_WIDTH).then(|| texts.next()).flatten();
        lines.push((keys, column, first.unwrap_or_default()));
        lines.extend(texts.map(|text| ("", column, text)));
    }
    let height = usize::from(area.height);
    *offset = (*offset).min(lines.len().saturating_sub(height));
    for (y, (keys, column, text)) in (0..area.height).zip(lines.iter().skip(*offset)) {
        put(buffer, area, (0, y), keys, HEAD);
        put(buffer, area, (*column, y), text, PLAIN);
    }
}

/// The fields and bytes of a frame.
pub(super) fn detail(buffer: &mut Buffer, area: Rect, detail: &Detail) {
    if area.height == 0 {
        return;
    }
    let from = if detail.is_foreign { " (tshark)" } else { "" };
    let title = format!("frame {}{from}: {}", detail.number + 1, detail.summary);
    put(buffer, area, (0, 0), &title, HEAD);
    // 16 bytes a line need 74 cells.
    let hex_height = match area.width {
        74.. => (area.height.saturating_sub(1) / 3).min(16),
        _ => 0,
    };
    let tree = Rect {
        y: area.y + 1,
        height: area.height - 1 - hex_height,
        ..area
    };
    let height = usize::from(tree.height);
    let start = detail
        .selected
        .saturating_sub(height / 2)
        .min(detail.lines.len().saturating_sub(height));
    for (row, line) in detail.lines.iter().skip(start).take(height).enumerate() {
        let y = row as u16;
        let style = match (start + row == detail.selected, line.is_layer) {
            (true, _) => MARK,
            (false, true) => SOFT.patch(HEAD),
            (false, false) => PLAIN,
        };
        paint(buffer, tree, y, style);
        put(buffer, tree, (2 * line.depth as u16, y), &line.text, style);
    }
    let hex = Rect {
        y: tree.y + tree.height,
        height: hex_height,
        ..area
    };
    dump(buffer, hex, detail);
}

/// Bytes around those of the selected field, which are marked.
fn dump(buffer: &mut Buffer, area: Rect, detail: &Detail) {
    let marked = detail.marked();
    let rows = detail.bytes.len().div_ceil(16);
    let height = usize::from(area.height);
    let start = (marked.start / 16).min(rows.saturating_sub(height));
    for row in 0..height.min(rows - start.min(rows)) {
        let offset = (start + row) * 16;
        let bytes = &detail.bytes[offset..detail.bytes.len().min(offset + 16)];
        let y = row as u16;
        put(buffer, area, (0, y), &hex_line(offset, bytes), PLAIN);
        for at in marked.start.max(offset)..marked.end.min(offset + bytes.len()) {
            let number = (at - offset) as u16;
            let column = 8 + 3 * number + u16::from(number > 7);
            mark(buffer, area, column, y, 2);
            mark(buffer, area, 8 + 49 + 1 + number, y, 1);
        }
    }
}

fn mark(buffer: &mut Buffer, area: Rect, x: u16, y: u16, width: u16) {
    let part = Rect {
        x: area.x + x.min(area.width),
        y: area.y + y,
        width: width.min(area.width.saturating_sub(x)),
        height: 1,
    };
    buffer.set_style(part, MARK);
}

/// The bytes of a connection; the sender's mark before each line is there without colours too.
pub(super) fn follow(buffer: &mut Buffer, area: Rect, follow: &Followed) {
    if area.height == 0 {
        return;
    }
    put(buffer, area, (0, 0), &follow.title(), HEAD);
    let height = usize::from(area.height - 1);
    for (row, (side, text)) in follow
        .lines
        .iter()
        .skip(follow.offset)
        .take(height)
        .enumerate()
    {
        let y = row as u16 + 1;
        let (sign, style) = match side {
            Some(Side::A) => ("> ", Style::new().fg(Color::Cyan)),
            Some(Side::B) => ("< ", Style::new().fg(Color::Magenta)),
            None => ("* ", HEAD),
        };
        let x = put(buffer, area, (0, y), sign, style);
        put(buffer, area, (x, y), text, style);
    }
}
