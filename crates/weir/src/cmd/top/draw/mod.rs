//! Draws the monitor, at any size of the terminal.
//!
//! ```text
//!  state: source, counts, rates, recording
//!  what is wrong: lines of its own, if anything is
//!  tabs
//!  view, or what lies over it
//!  keys, message, or the line that is typed and its fault: as many lines as they need
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
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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
    let troubles = wrapped(&app.session.troubles.join("; "), area.width);
    let below = foot_text(app).map_or(Vec::new(), |text| wrapped(&text, area.width));
    let typed = usize::from(app.prompt.is_some());
    let [state, alarms, tabs, body, foot] = parts(area, troubles.len(), typed + below.len());
    app.page = usize::from(body.height.saturating_sub(1));
    let cursor = {
        let buffer = frame.buffer_mut();
        state_line(buffer, state, app, alarms.height == 0);
        for (y, line) in (0..alarms.height).zip(&troubles) {
            put(buffer, alarms, (0, y), line, ALARM);
        }
        tab_line(buffer, tabs, app);
        match &mut app.over {
            Over::Help(offset) => over::help(buffer, body, offset),
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
        foot_lines(buffer, foot, app, &below)
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

/// Most lines of troubles, and of the foot.
const LINES_MAX: u16 = 4;

/// The parts of the screen: state, troubles, tabs, view, foot. The view comes first where there is little
/// room: then troubles have no lines of their own, and the foot has one.
fn parts(area: Rect, troubles: usize, foot: usize) -> [Rect; 5] {
    let mut top = area.y;
    let take = |height: u16| {
        let part = Rect {
            y: top,
            height,
            ..area
        };
        top += height;
        part
    };
    let lines = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).min(LINES_MAX);
    let heights = match area.height {
        0 => [0; 5],
        1 => [0, 0, 0, 0, 1],
        height @ 2..6 => [1, 0, 0, height - 2, 1],
        height => {
            // A third of the screen at most, so that the view has the rest.
            let most = height / 3;
            let foot = lines(foot).clamp(1, most);
            let troubles = lines(troubles).min(most - foot);
            [1, troubles, 1, height - 2 - troubles - foot, foot]
        }
    };
    heights.map(take)
}

/// A text as lines of at most this many cells, with escapes in place of characters that the terminal would
/// obey. A word that is longer than a line goes on in the next one.
pub(super) fn wrapped(text: &str, width: u16) -> Vec<String> {
    let width = usize::from(width.max(1));
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    // Two spaces stay two.
    for word in text.split([' ', '\n']) {
        let word = escaped(word.to_owned());
        if !line.is_empty() && line.width() + 1 + word.width() > width {
            lines.push(std::mem::take(&mut line).trim_end().to_owned());
        }
        if !line.is_empty() {
            line.push(' ');
        }
        for c in word.chars() {
            if line.width() + c.width().unwrap_or(0) > width {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    if !line.trim().is_empty() {
        lines.push(line.trim_end().to_owned());
    }
    lines
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

fn state_line(buffer: &mut Buffer, area: Rect, app: &mut App, has_troubles: bool) {
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
    for trouble in app.session.troubles.iter().filter(|_| has_troubles) {
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

/// The text of the last lines, below the line that is typed if one is; `None` if there is none.
fn foot_text(app: &App) -> Option<String> {
    if let Some(prompt) = &app.prompt {
        // The further lines show the place in the text, which stands above.
        return prompt.error.as_ref()?.lines().next().map(str::to_owned);
    }
    if let Some((_, news)) = &app.news {
        return Some(news.clone());
    }
    let keys = match &app.over {
        Over::Help(_) => "Up Down  any other key: back",
        Over::Detail(_) => {
            "Up Down  Enter open  [ ] frame before, next  t tshark  F follow  w save  Esc back"
        }
        Over::Follow(_) => "Up Down  x hex or text  w save frames  Esc back",
        Over::Nothing => {
            "? help  f filter  / search  < > sort  Enter  F follow  r record  w save  q end"
        }
    };
    Some(keys.to_owned())
}

/// The last lines, of which `below` are those of [`foot_text`]; returns where the cursor is, if a line is
/// typed.
fn foot_lines(buffer: &mut Buffer, area: Rect, app: &App, below: &[String]) -> Option<(u16, u16)> {
    let (style, first) = match (&app.prompt, &app.news) {
        (Some(_), _) => (ALARM, 1),
        (None, Some(_)) => (HEAD, 0),
        (None, None) => (SOFT, 0),
    };
    for (y, line) in (first..area.height).zip(below) {
        put(buffer, area, (0, y), line, style);
    }
    let prompt = app.prompt.as_ref()?;
    prompt_line(buffer, area, prompt)
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
    if let Some(error) = prompt.error.as_ref().filter(|_| area.height == 1) {
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
