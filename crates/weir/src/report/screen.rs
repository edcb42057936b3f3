//! A terminal's screen as a picture (SVG).

use super::atomic_write;
use crate::error::CliError;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use std::fmt::Write;
use std::path::Path;
use unicode_width::UnicodeWidthStr;

/// A cell of the screen, and the room around all of them, in the picture's units.
const CELL: (u32, u32) = (8, 17);
const MARGIN: u32 = 10;
/// Where a line's letters stand, from the top of its cells.
const BASELINE: u32 = 13;

const PAPER: &str = "#16181d";
const INK: &str = "#d8dbe0";

/// How neighbouring cells look that are drawn as one.
#[derive(PartialEq, Eq, Clone, Copy)]
struct Style {
    ink: &'static str,
    paper: &'static str,
    is_bold: bool,
    /// Eighths of the cell that are filled from below; 0 for letters.
    filled: u32,
}

/// Writes the picture of a screen to a file.
pub(crate) fn write(path: &Path, screen: &Buffer) -> Result<(), CliError> {
    let written = atomic_write::replace(path, &svg(screen));
    written.map_err(|error| CliError::run(format!("cannot write {}: {error}", path.display())))
}

/// The picture of a screen.
fn svg(screen: &Buffer) -> String {
    let (columns, rows) = (u32::from(screen.area.width), u32::from(screen.area.height));
    let (width, height) = (columns * CELL.0 + 2 * MARGIN, rows * CELL.1 + 2 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{PAPER}\"/>\n"
    );
    let width = usize::from(screen.area.width).max(1);
    for (row, cells) in screen.content.chunks(width).enumerate() {
        line(&mut out, row as u32, cells);
    }
    out + "</svg>\n"
}

/// The screen that shows a text, its first line as a heading.
pub(crate) fn of_text(text: &str) -> Buffer {
    let mut screen = Buffer::with_lines(text.lines());
    let heading = ratatui::layout::Rect {
        height: screen.area.height.min(1),
        ..screen.area
    };
    screen.set_style(heading, Modifier::BOLD);
    screen
}

fn line(out: &mut String, row: u32, cells: &[Cell]) {
    let mut at = 0;
    while at < cells.len() {
        let style = style(&cells[at]);
        let len = cells[at..]
            .iter()
            .take_while(|cell| self::style(cell) == style);
        let len = len.count();
        run(out, (at as u32, row), &cells[at..at + len], style);
        at += len;
    }
}

/// Cells that look alike.
fn run(out: &mut String, (mut column, row): (u32, u32), cells: &[Cell], style: Style) {
    let (x, y) = (MARGIN + column * CELL.0, MARGIN + row * CELL.1);
    let width = cells.len() as u32 * CELL.0;
    let mut rect = |y, height, fill| {
        writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>"
        )
        .expect("a String takes all");
    };
    if style.paper != PAPER {
        rect(y, CELL.1, style.paper);
    }
    if style.filled > 0 {
        let height = CELL.1 * style.filled / 8;
        rect(y + CELL.1 - height, height, style.ink);
        return;
    }
    for cells in cells.chunk_by(|a, b| a.symbol() != " " || b.symbol() != " ") {
        text(out, (column, row), cells, style);
        column += cells.len() as u32;
    }
}

/// Letters in a row; a space in them stays as wide as it is.
fn text(out: &mut String, (column, row): (u32, u32), cells: &[Cell], style: Style) {
    let spaces = cells.iter().take_while(|cell| cell.symbol() == " ").count();
    let cells = &cells[spaces..];
    // A cell behind a wide character has no symbol of its own.
    let mut text = String::new();
    let mut behind = 0;
    for cell in cells {
        if behind > 0 {
            behind -= 1;
            continue;
        }
        behind = cell.symbol().width().saturating_sub(1);
        text += cell.symbol();
    }
    let text = text.trim_end();
    if text.is_empty() {
        return;
    }
    let weight = if style.is_bold {
        " font-weight=\"bold\""
    } else {
        ""
    };
    writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" textLength=\"{}\" fill=\"{}\"{weight}>{}</text>",
        MARGIN + (column + spaces as u32) * CELL.0,
        MARGIN + row * CELL.1 + BASELINE,
        text.width() as u32 * CELL.0,
        style.ink,
        escaped(text)
    )
    .expect("a String takes all");
}

fn style(cell: &Cell) -> Style {
    let (mut ink, mut paper) = (colour(cell.fg, INK), colour(cell.bg, PAPER));
    if cell.modifier.contains(Modifier::REVERSED) {
        (ink, paper) = (paper, ink);
    }
    Style {
        ink,
        paper,
        is_bold: cell.modifier.contains(Modifier::BOLD),
        filled: eighths(cell.symbol()),
    }
}

/// Of the block elements that fill a cell from below, how many eighths; of others 0.
fn eighths(symbol: &str) -> u32 {
    match symbol.chars().next() {
        Some(block @ '▁'..='█') => block as u32 - '▁' as u32 + 1,
        _ => 0,
    }
}

/// A terminal's colour, by its usual shade.
fn colour(colour: Color, otherwise: &'static str) -> &'static str {
    match colour {
        Color::Black => "#000000",
        Color::Red | Color::LightRed => "#f07178",
        Color::Green | Color::LightGreen => "#a5d06f",
        Color::Yellow | Color::LightYellow => "#e6c35c",
        Color::Blue | Color::LightBlue => "#6ea8fe",
        Color::Magenta | Color::LightMagenta => "#c792ea",
        Color::Cyan | Color::LightCyan => "#5ccfe6",
        Color::Gray | Color::White => "#ffffff",
        Color::DarkGray => "#7a808c",
        _ => otherwise,
    }
}

/// Text of XML: its own characters escaped, and none that it cannot have.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            // Of several spaces XML keeps one.
            ' ' => out += "&#160;",
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                out.push('�')
            }
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::style::Style;

    #[test]
    fn cells_that_look_alike_are_one_text() {
        let mut screen = Buffer::with_lines(["a<b  ▄▄", "plain  "]);
        screen.set_style(
            ratatui::layout::Rect::new(0, 0, 3, 1),
            Style::new().fg(Color::Red),
        );
        let picture = svg(&screen);
        assert_eq!(picture.matches("<text").count(), 2, "{picture}");
        assert!(picture.contains("textLength=\"24\""), "{picture}");
        assert!(picture.contains(">a&lt;b</text>"), "{picture}");
        let bar = "<rect x=\"50\" y=\"19\" width=\"16\" height=\"8\" fill=\"#d8dbe0\"/>";
        assert!(picture.contains(bar), "{picture}");
    }

    #[test]
    fn reversed_cells_have_the_ink_behind_them() {
        let mut screen = Buffer::with_lines(["ab"]);
        screen.set_style(screen.area, Modifier::REVERSED);
        let picture = svg(&screen);
        assert!(
            picture.contains("height=\"17\" fill=\"#d8dbe0\"/>"),
            "{picture}"
        );
        assert!(picture.contains("fill=\"#16181d\">ab</text>"), "{picture}");
    }

    #[test]
    fn what_xml_cannot_have_is_replaced() {
        assert_eq!(escaped("\u{1b}[&"), "�[&amp;");
        assert!(svg(&Buffer::empty(ratatui::layout::Rect::ZERO)).ends_with("</svg>\n"));
    }
}
