//! The views: rates and greatest rows, tables, the list of frames.

use super::{ALARM, HEAD, MARK, PLAIN, SOFT, paint, put, wrapped};
use crate::cmd::top::app::App;
use crate::cmd::top::sheet::{Kind, Sheet, Value, bits};
use crate::monitor::lines::line;
use crate::monitor::session::Session;
use crate::report::format::{grouped, time_of_day};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Sparkline, Widget};
use unicode_width::UnicodeWidthStr;

/// Least cells of a column that shares what the others leave.
const SHARED_WIDTH_MIN: u16 = 15;
/// Most cells that columns of lesser importance make room for: the longest address of IPv6 with a port.
const SHARED_WIDTH_MAX: u16 = 47;
/// Most lines of the selected row's texts, in full.
const FULL_LINES_MAX: usize = 3;

/// Rates as a plot, and below it the greatest talkers and protocols.
pub(super) fn overview(buffer: &mut Buffer, area: Rect, app: &mut App) {
    let plot_height = (area.height / 3).clamp(u16::from(area.height > 2), 10);
    let plot = Rect {
        height: plot_height.min(area.height),
        ..area
    };
    rates(buffer, plot, app);
    let rest = Rect {
        y: area.y + plot.height,
        height: area.height - plot.height,
        ..area
    };
    let half = rest.height.div_ceil(2);
    let upper = Rect {
        height: half,
        ..rest
    };
    let lower = Rect {
        y: rest.y + half,
        height: rest.height - half,
        ..rest
    };
    let App {
        sheets, session, ..
    } = app;
    for (number, area) in [(2, upper), (0, lower)] {
        let sheet = &mut sheets[number];
        let (selected, offset) = (sheet.selected, sheet.offset);
        rows(buffer, area, sheet, session, false);
        (sheet.selected, sheet.offset) = (selected, offset);
    }
}

/// Bits a second over time, the newest at the right.
fn rates(buffer: &mut Buffer, area: Rect, app: &App) {
    if area.height == 0 || area.width == 0 {
        return;
    }
    let history = app.session.model.history();
    let buckets = history.buckets();
    let shown = usize::from(area.width).min(buckets.len());
    let shown = &buckets[buckets.len() - shown..];
    let width = history.width_s();
    let values: Vec<u64> = shown
        .iter()
        .map(|one| (one.bytes as f64 * 8.0 / width) as u64)
        .collect();
    let most = values.iter().copied().max().unwrap_or(0);
    let frames = shown.iter().map(|one| one.frames).max().unwrap_or(0);
    let title = format!(
        "rate, {width} s a column: at most {}, {} frames/s",
        bits(most as f64),
        grouped((frames as f64 / width) as u64)
    );
    put(buffer, area, (0, 0), &title, HEAD);
    let plot = Rect {
        y: area.y + 1,
        height: area.height - 1,
        ..area
    };
    if plot.height > 0 {
        Sparkline::default()
            .data(&values)
            .max(most.max(1))
            .style(SOFT)
            .render(plot, buffer);
    }
}

/// A table.
pub(super) fn sheet(buffer: &mut Buffer, area: Rect, sheet: &mut Sheet, session: &Session) {
    if sheet.len() == 0
        && let Some(why) = empty(sheet.kind, session)
    {
        for (y, line) in (0..area.height).zip(wrapped(&why, area.width)) {
            put(buffer, area, (0, y), &line, PLAIN);
        }
        return;
    }
    let overflow = sheet.kind.overflow(session);
    let mut table = area;
    if overflow.frames > 0 && area.height > 2 {
        table.height -= 1;
        let said = format!(
            "others: {} frames, {} bytes of what exceeds the table's limit",
            grouped(overflow.frames),
            grouped(overflow.bytes)
        );
        put(buffer, area, (0, area.height - 1), &said, ALARM);
    }
    rows(buffer, table, sheet, session, true);
}

/// Why a table has no rows.
fn empty(kind: Kind, session: &Session) -> Option<String> {
    let facts = session.facts();
    match (kind, facts) {
        (Kind::Ports, None) => {
            Some("ports are shown beside live frames, as soon as they are known".to_owned())
        }
        (Kind::Ports, Some(facts)) => Some(match &facts.ports {
            Ok(_) => "no port is open".to_owned(),
            Err(why) => why.clone(),
        }),
        (Kind::Processes, None) => Some("processes are shown beside live frames".to_owned()),
        (Kind::Processes, Some(facts)) => Some(if facts.sees_all {
            "no conversation is of a process of this host".to_owned()
        } else {
            "no conversation is of a process that this user may look at".to_owned()
        }),
        _ => Some("no frame has come yet".to_owned()),
    }
}

/// Widths of the columns, in their order; 0 for one that is left out. Columns that share what the others
/// leave have texts of up to `longest` cells.
fn widths(sheet: &Sheet, width: u16, longest: u16) -> Vec<u16> {
    let columns = sheet.kind.columns();
    let mut is_in: Vec<bool> = vec![true; columns.len()];
    let need = |is_in: &[bool], shared: u16| -> u16 {
        let columns = columns.iter().zip(is_in).filter(|(_, is_in)| **is_in);
        let widths = columns.map(|(column, _)| match column.width {
            0 => shared,
            fixed => fixed,
        });
        widths.map(|width| width + 1).sum()
    };
    // The column that sorts stays.
    let rank = |number: usize| {
        if number == sheet.sort {
            0
        } else {
            columns[number].rank
        }
    };
    let wanted = longest.clamp(SHARED_WIDTH_MIN, SHARED_WIDTH_MAX);
    // For whole texts only columns that are less important go.
    for (shared, rank_least) in [(wanted, 2), (SHARED_WIDTH_MIN, 1)] {
        while need(&is_in, shared) > width {
            let last = (0..columns.len())
                .filter(|number| is_in[*number])
                .max_by_key(|number| rank(*number));
            match last {
                Some(number) if rank(number) >= rank_least => is_in[number] = false,
                _ => break,
            }
        }
    }
    let shared = columns
        .iter()
        .zip(&is_in)
        .filter(|(column, is_in)| **is_in && column.width == 0)
        .count();
    let fixed: u16 = columns
        .iter()
        .zip(&is_in)
        .filter(|(_, is_in)| **is_in)
        .map(|(column, _)| column.width + 1)
        .sum();
    let share = width.saturating_sub(fixed) / (shared.max(1) as u16);
    let widths = columns
        .iter()
        .zip(&is_in)
        .map(|(column, is_in)| match (is_in, column.width) {
            (false, _) => 0,
            (true, 0) => share.max(1),
            (true, width) => width,
        });
    widths.collect()
}

/// Moves the rows so that the selection is among `height` of them; without marks they begin with the first.
fn scroll(sheet: &mut Sheet, height: usize, marks: bool) {
    let last = sheet.len().saturating_sub(height);
    sheet.offset = if marks && height > 0 {
        let offset = sheet.offset.min(sheet.selected);
        offset
            .max((sheet.selected + 1).saturating_sub(height))
            .min(last)
    } else {
        0
    };
}

/// Cells of the longest text of the visible rows in a column that shares what the others leave.
fn longest_shared(sheet: &Sheet, session: &Session, height: usize) -> u16 {
    let columns = sheet.kind.columns();
    let rows = (0..height).map_while(|row| sheet.cells(session, sheet.offset + row));
    let lengths = rows.flat_map(|cells| {
        let shared = columns
            .iter()
            .zip(cells)
            .filter(|(column, _)| column.width == 0);
        shared
            .map(|(_, value)| value.shown().width())
            .collect::<Vec<_>>()
    });
    u16::try_from(lengths.max().unwrap_or(0)).unwrap_or(u16::MAX)
}

/// The texts of the selected row, if one of those that are shown is cut; else nothing.
fn selected_in_full(sheet: &Sheet, session: &Session, widths: &[u16]) -> String {
    let cells = sheet.cells(session, sheet.selected).unwrap_or_default();
    let all = sheet.kind.columns().iter().zip(widths).zip(&cells);
    let mut is_cut = false;
    let mut texts = Vec::new();
    for ((column, width), value) in all.filter(|((column, _), _)| !column.is_number) {
        let text = value.shown();
        is_cut |= *width > 0 && text.width() > usize::from(*width);
        if !text.is_empty() {
            texts.push(format!("{}: {text}", column.name));
        }
    }
    if is_cut {
        texts.join("  ")
    } else {
        String::new()
    }
}

/// The heading and the rows around the selection.
fn rows(buffer: &mut Buffer, area: Rect, sheet: &mut Sheet, session: &Session, marks: bool) {
    if area.height == 0 {
        return;
    }
    let columns = sheet.kind.columns();
    let mut height = usize::from(area.height - 1);
    scroll(sheet, height, marks);
    let longest = longest_shared(sheet, session, height);
    let widths = widths(sheet, area.width, longest);
    if marks {
        let full = selected_in_full(sheet, session, &widths);
        let lines = wrapped(&full, area.width);
        let lines = &lines[..lines.len().min(FULL_LINES_MAX).min(height / 3)];
        height -= lines.len();
        for (line, y) in lines.iter().zip(height as u16 + 1..) {
            put(buffer, area, (0, y), line, SOFT);
        }
        scroll(sheet, height, marks);
    }
    let mut x = 0;
    for (number, (column, width)) in columns.iter().zip(&widths).enumerate() {
        if *width == 0 {
            continue;
        }
        let arrow = match (marks && number == sheet.sort, sheet.is_descending) {
            (false, _) => "",
            (true, true) => "v",
            (true, false) => "^",
        };
        cell(
            buffer,
            area,
            (x, 0),
            &format!("{}{arrow}", column.name),
            *width,
            column.is_number,
            HEAD,
        );
        x += width + 1;
    }
    for row in 0..height {
        let place = sheet.offset + row;
        let Some(cells) = sheet.cells(session, place) else {
            break;
        };
        let y = row as u16 + 1;
        let is_marked = marks && place == sheet.selected;
        if is_marked {
            paint(buffer, area, y, MARK);
        }
        let mut x = 0;
        for ((column, width), value) in columns.iter().zip(&widths).zip(&cells) {
            if *width == 0 {
                continue;
            }
            let style = match value {
                Value::Number(lost) if column.name == "lost" && *lost > 0 => ALARM,
                _ => PLAIN,
            };
            let style = if is_marked { MARK } else { style };
            cell(
                buffer,
                area,
                (x, y),
                &value.shown(),
                *width,
                column.is_number,
                style,
            );
            x += width + 1;
        }
    }
}

/// A cell: numbers to the right, long texts with a mark that they are cut.
fn cell(
    buffer: &mut Buffer,
    area: Rect,
    (x, y): (u16, u16),
    text: &str,
    width: u16,
    is_number: bool,
    style: Style,
) {
    let len = text.width() as u16;
    let part = Rect {
        width: width.min(area.width.saturating_sub(x)),
        x: area.x + x.min(area.width),
        ..area
    };
    let start = if is_number {
        width.saturating_sub(len)
    } else {
        0
    };
    put(buffer, part, (start, y), text, style);
    if len > width && width > 1 {
        put(buffer, part, (width - 1, y), "~", style);
    }
}

/// The list of frames.
pub(super) fn frames(buffer: &mut Buffer, area: Rect, app: &mut App) {
    if area.height == 0 {
        return;
    }
    let store = &app.session.store;
    let list = &mut app.frames;
    let len = list.len(store);
    let place = list.place(store);
    let mut head = format!("{} frames", grouped(len));
    if let Some(only) = list.only() {
        head += &format!(" of {only}");
    }
    if !list.filter().is_empty() {
        head += &format!(" by {}", list.filter());
    }
    if store.first() > 0 {
        head += &format!("; the first {} are no longer kept", grouped(store.first()));
    }
    put(buffer, area, (0, 0), &head, HEAD);
    let height = u64::from(area.height - 1);
    if height == 0 || len == 0 {
        return;
    }
    // The selection is in the middle, except near the ends.
    let start = place
        .saturating_sub(height / 2)
        .min(len.saturating_sub(height));
    for row in 0..height.min(len) {
        let Some(kept) = list
            .number(store, start + row)
            .and_then(|number| store.get(number))
        else {
            break;
        };
        let y = row as u16 + 1;
        let style = if start + row == place { MARK } else { PLAIN };
        paint(buffer, area, y, style);
        let number_style = if style == MARK { MARK } else { SOFT };
        let mut x = put(
            buffer,
            area,
            (0, y),
            &format!("{:>7} ", kept.number + 1),
            number_style,
        );
        if let Some(time_ns) = kept.meta.time_ns {
            x = put(
                buffer,
                area,
                (x, y),
                &format!("{} ", time_of_day(time_ns)),
                style,
            );
        }
        match kept.meta.is_outgoing {
            Some(true) => x = put(buffer, area, (x, y), "Out ", style),
            Some(false) => x = put(buffer, area, (x, y), "In  ", style),
            None => {}
        }
        if kept.meta.lost_before > 0 {
            let lost = format!("({} lost before) ", grouped(kept.meta.lost_before.into()));
            x = put(buffer, area, (x, y), &lost, ALARM);
        }
        put(
            buffer,
            area,
            (x, y),
            &line(&kept, &app.views.look(&kept)),
            style,
        );
    }
}
