//! Draws the monitor, at any size of the terminal.
//!
//! ```text
//!  state: source, counts, rates, recording
//!  tabs
//!  view, or what lies over it
//!  keys, message, or the line that is typed
//! ```

mod over;
mod views;

use super::app::{App, Over, View};
use super::prompt::Prompt;
use super::sheet::bits;
use crate::report::format::{escaped, grouped};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::{Frame, Terminal};
use unicode_width::UnicodeWidthStr;

/// Plain text.
pub(super) const PLAIN: Style = Style::new();
/// Headings.
pub(super) const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
/// The selection: visible without colours.
pub(super) const MARK: Style = Style::new().add_modifier(Modifier::REVERSED);
/// Faults and losses.
pub(super) const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Names and labels.
pub(super) const SOFT: Style = Style::new().fg(Color::Cyan);

const TABS: [&str; 7] = [
    "overview",
    "talkers",
    "conversations",
    "protocols",
    "ports",
    "processes",
    "frames",
];

/// Draws everything.
pub(super) fn all(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    let [state, tabs, body, foot] = parts(area);
    app.page = usize::from(body.height.saturating_sub(1));
    let cursor = {
        let buffer = frame.buffer_mut();
        state_line(buffer, state, app);
        tab_line(buffer, tabs, app);
        match &mut app.over {
            Over::Help => over::help(buffer, body),
            Over::Detail(detail) => over::detail(buffer, body, detail),
            Over::Follow(follow) => over::follow(buffer, body, follow),
            Over::Nothing => match app.view {
                View::Overview => views::overview(buffer, body, app),
                View::Sheet(number) => {
                    let (sheets, session) = (&mut app.sheets, &app.session);
                    views::sheet(buffer, body, &mut sheets[number], session);
                }
                View::Frames => views::frames(buffer, body, app),
            },
        }
        foot_line(buffer, foot, app)
    };
    if let Some(position) = cursor {
        frame.set_cursor_position(position);
    }
}

/// Draws everything on a screen that no terminal has, of this many columns and lines.
pub(super) fn screen(app: &mut App, (width, height): (u16, u16)) -> Buffer {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| all(frame, app));
    terminal.backend().buffer().clone()
}

/// The parts of the screen. The view comes first where there is little room.
fn parts(area: Rect) -> [Rect; 4] {
    let line = |row: u16| Rect {
        y: area.y + row,
        height: 1,
        ..area
    };
    let none = Rect { height: 0, ..area };
    match area.height {
        0 => [none; 4],
        1 => [none, none, none, line(0)],
        2 => [line(0), none, none, line(1)],
        3..6 => {
            let body = Rect {
                y: area.y + 1,
                height: area.height - 2,
                ..area
            };
            [line(0), none, body, line(area.height - 1)]
        }
        height => {
            let body = Rect {
                y: area.y + 2,
                height: height - 3,
                ..area
            };
            [line(0), line(1), body, line(height - 1)]
        }
    }
}

/// Writes text into a line of an area, from a column on; returns the column behind it. What does not
/// fit is left out, and characters that the terminal would obey are escaped.
pub(super) fn put(
    buffer: &mut Buffer,
    area: Rect,
    (x, y): (u16, u16),
    text: &str,
    style: Style,
) -> u16 {
    if x >= area.width || y >= area.height {
        return x;
    }
    let room = usize::from(area.width - x);
    let text = escaped(text.to_owned());
    let (end, _) = buffer.set_stringn(area.x + x, area.y + y, text, room, style);
    end - area.x
}

/// Fills a line of an area with a style.
pub(super) fn paint(buffer: &mut Buffer, area: Rect, y: u16, style: Style) {
    if y < area.height {
        let line = Rect {
            y: area.y + y,
            height: 1,
            ..area
        };
        buffer.set_style(line, style);
    }
}

fn state_line(buffer: &mut Buffer, area: Rect, app: &mut App) {
    let totals = app.session.model.totals();
    let name = app.input.name();
    let mut x = put(buffer, area, (0, 0), &format!("weir top {name}"), HEAD);
    let filter = app.input.filter();
    if !filter.is_empty() {
        x = put(buffer, area, (x + 1, 0), &format!("[{filter}]"), SOFT);
    }
    let (frames, bytes) = app.rates;
    let counts = format!(
        "  {} frames  {} bytes",
        grouped(totals.frames),
        grouped(totals.bytes)
    );
    x = put(buffer, area, (x, 0), &counts, PLAIN);
    let lost = format!("  {} lost", grouped(totals.lost));
    x = put(
        buffer,
        area,
        (x, 0),
        &lost,
        if totals.lost > 0 { ALARM } else { PLAIN },
    );
    let rates = format!("  {frames:.0}/s {}", bits(bytes * 8.0));
    x = put(buffer, area, (x, 0), &rates, PLAIN);
    for trouble in &app.session.troubles {
        x = put(buffer, area, (x, 0), &format!("  {trouble}"), ALARM);
    }
    if let Some(replay) = app.input.replay() {
        let state = match (replay.is_at_end(), replay.is_paused()) {
            (true, _) => "  end".to_owned(),
            (_, true) => "  paused".to_owned(),
            _ => format!("  {}", replay.speed),
        };
        x = put(buffer, area, (x, 0), &state, SOFT);
    } else if app.is_frozen {
        x = put(buffer, area, (x, 0), "  frozen", SOFT);
    }
    if let Some((path, frames)) = app.session.recording() {
        let said = format!("  REC {} {}", path.display(), grouped(frames));
        put(buffer, area, (x, 0), &said, ALARM);
    }
}

fn tab_line(buffer: &mut Buffer, area: Rect, app: &App) {
    let now = match app.view {
        View::Overview => 0,
        View::Sheet(number) => number + 1,
        View::Frames => 6,
    };
    let width: usize = TABS.iter().map(|name| name.len() + 3).sum();
    let is_narrow = width > usize::from(area.width);
    let mut x = 0;
    for (number, name) in TABS.iter().enumerate() {
        let name = if is_narrow && number != now {
            &name[..name.len().min(5)]
        } else {
            name
        };
        let style = if number == now { MARK } else { PLAIN };
        x = put(
            buffer,
            area,
            (x, 0),
            &format!("{}{name}", number + 1),
            style,
        );
        x = put(buffer, area, (x, 0), " ", PLAIN);
    }
}

/// The last line; returns where the cursor is, if a line is typed.
fn foot_line(buffer: &mut Buffer, area: Rect, app: &App) -> Option<(u16, u16)> {
    if let Some(prompt) = &app.prompt {
        return prompt_line(buffer, area, prompt);
    }
    if let Some((_, news)) = &app.news {
        put(buffer, area, (0, 0), news, HEAD);
        return None;
    }
    let keys = match &app.over {
        Over::Help => "any key: back",
        Over::Detail(_) => {
            "Up Down  Enter open  [ ] frame before, next  t tshark  F follow  w save  Esc back"
        }
        Over::Follow(_) => "Up Down  x hex or text  w save frames  Esc back",
        Over::Nothing => {
            "? help  f filter  / search  < > sort  Enter  F follow  r record  w save  q end"
        }
    };
    put(buffer, area, (0, 0), keys, SOFT);
    None
}

fn prompt_line(buffer: &mut Buffer, area: Rect, prompt: &Prompt) -> Option<(u16, u16)> {
    if area.height == 0 || area.width == 0 {
        return None;
    }
    let start = put(buffer, area, (0, 0), prompt.purpose.label(), HEAD);
    let room = usize::from(area.width.saturating_sub(start)).saturating_sub(1);
    let text = prompt.text();
    // The text is moved so that the cursor stays visible.
    let skipped = (prompt.cursor() + 1).saturating_sub(room.max(1));
    let shown: String = text.chars().skip(skipped).collect();
    let end = put(buffer, area, (start, 0), &shown, PLAIN);
    if let Some(error) = &prompt.error {
        let words: Vec<&str> = error.split_whitespace().collect();
        put(buffer, area, (end + 2, 0), &words.join(" "), ALARM);
    }
    let before: String = text
        .chars()
        .skip(skipped)
        .take(prompt.cursor() - skipped.min(prompt.cursor()))
        .collect();
    let column = start + u16::try_from(before.width()).unwrap_or(u16::MAX);
    Some((area.x + column.min(area.width - 1), area.y))
}
