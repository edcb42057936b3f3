//! A line that the user types.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Largest number of characters of the line.
const CHARS_MAX: usize = 4_096;

/// The purpose of the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Filter,
    Search,
    Record,
    Save,
}

impl Purpose {
    pub(super) fn label(self) -> &'static str {
        match self {
            Purpose::Filter => "filter: ",
            Purpose::Search => "search: ",
            Purpose::Record => "record to: ",
            Purpose::Save => "save frames to: ",
        }
    }
}

/// The effect of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Typed {
    Changed,
    Moved,
    Done,
    Cancelled,
}

/// The line.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) purpose: Purpose,
    chars: Vec<char>,
    cursor: usize,
    /// The fault of its text.
    pub(super) error: Option<String>,
}

impl Prompt {
    pub(super) fn new(purpose: Purpose, text: &str) -> Prompt {
        let chars: Vec<char> = text.chars().take(CHARS_MAX).collect();
        Prompt {
            purpose,
            cursor: chars.len(),
            chars,
            error: None,
        }
    }

    pub(super) fn text(&self) -> String {
        self.chars.iter().collect()
    }

    pub(super) fn cursor(&self) -> usize {
        self.cursor
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Typed {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let before = self.chars.len();
        match key.code {
            KeyCode::Enter => return Typed::Done,
            KeyCode::Esc => return Typed::Cancelled,
            KeyCode::Char('c' | 'g') if is_control => return Typed::Cancelled,
            KeyCode::Char('u') if is_control => {
                self.chars.drain(..self.cursor);
                self.cursor = 0;
            }
            KeyCode::Char('k') if is_control => self.chars.truncate(self.cursor),
            KeyCode::Char('a') if is_control => self.cursor = 0,
            KeyCode::Char('e') if is_control => self.cursor = before,
            KeyCode::Char('w') if is_control => {
                let word = self.chars[..self.cursor].iter().rposition(|c| *c != ' ');
                let start = self.chars[..word.unwrap_or(0)]
                    .iter()
                    .rposition(|c| *c == ' ');
                let start = start.map_or(0, |at| at + 1);
                self.chars.drain(start..self.cursor);
                self.cursor = start;
            }
            KeyCode::Char(c) if !is_control && before < CHARS_MAX && !c.is_control() => {
                self.chars.insert(self.cursor, c);
                self.cursor += 1;
            }
            KeyCode::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.chars.remove(self.cursor);
            }
            KeyCode::Delete if self.cursor < before => {
                self.chars.remove(self.cursor);
            }
            KeyCode::Left => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Right => self.cursor = (self.cursor + 1).min(before),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = before,
            _ => {}
        }
        if self.chars.len() == before {
            Typed::Moved
        } else {
            Typed::Changed
        }
    }
}
