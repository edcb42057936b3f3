//! Configuration files: an error is one line of the same form for every
//! command, `FILE:LINE:COLUMN: why`, as compilers print it.

use crate::error::CliError;
use serde::de::DeserializeOwned;
use std::fmt;
use std::path::Path;

/// A position in a text: line and column, in characters, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TextPosition {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl TextPosition {
    /// The position of a byte of the text; the end for a byte behind it.
    pub(crate) fn of(text: &str, byte: usize) -> TextPosition {
        let before = &text[..text.floor_char_boundary(byte)];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        TextPosition {
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// An error in a file; without a position, in all of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wrong {
    pub(crate) place: Option<TextPosition>,
    pub(crate) why: String,
}

impl Wrong {
    /// An error at a byte of the text.
    pub(crate) fn at(text: &str, byte: usize, why: impl fmt::Display) -> Wrong {
        Wrong {
            place: Some(TextPosition::of(text, byte)),
            why: plain(&why.to_string()),
        }
    }

    /// An error without a position.
    pub(crate) fn in_all(why: impl fmt::Display) -> Wrong {
        Wrong {
            place: None,
            why: plain(&why.to_string()),
        }
    }

    /// The refusal of the file with this error.
    pub(crate) fn refused(&self, path: &Path) -> CliError {
        CliError::refused(self.of(name(path)))
    }

    /// The error as a line of text.
    pub(crate) fn of(&self, file: impl fmt::Display) -> String {
        let why = &self.why;
        match self.place {
            Some(TextPosition { line, column }) => format!("{file}:{line}:{column}: {why}"),
            None => format!("{file}: {why}"),
        }
    }
}

/// A file's name in messages.
pub(crate) fn name(path: &Path) -> String {
    if path == Path::new("-") {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    }
}

/// Parses a TOML text.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Wrong> {
    toml::from_str(text).map_err(|error: toml::de::Error| match error.span() {
        Some(span) => Wrong::at(text, span.start, error.message()),
        None => Wrong::in_all(error.message()),
    })
}

/// A parser message without the names of the program's types.
pub(crate) fn plain(message: &str) -> String {
    const WORDS: [(&str, &str); 7] = [
        ("u16", "a number from 0 to 65535"),
        ("u32", "a number from 0 to 4294967295"),
        ("u64", "a number, 0 or more"),
        ("usize", "a number, 0 or more"),
        ("a boolean", "true or false"),
        ("a sequence", "a list, in brackets"),
        ("a map", "a table"),
    ];
    let found = WORDS.iter().find_map(|(word, said)| {
        let before = message.strip_suffix(word)?;
        before
            .ends_with("expected ")
            .then(|| format!("{before}{said}"))
    });
    found.unwrap_or_else(|| message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, PartialEq, Debug)]
    #[serde(deny_unknown_fields)]
    struct Table {
        #[serde(default)]
        size: u16,
        #[serde(default)]
        names: Vec<String>,
        #[serde(default)]
        on: bool,
    }

    #[test]
    fn a_mistake_is_one_line_with_its_place_and_in_plain_words() {
        for (text, line, column, why) in [
            (
                "\nsize = 70000",
                2,
                8,
                "integer `70000`, expected a number from 0 to 65535",
            ),
            ("names = 1", 1, 9, "expected a list, in brackets"),
            ("on = 1", 1, 6, "expected true or false"),
            ("# é\nsie = 1", 2, 1, "unknown field `sie`"),
            ("names = ['é', 5]", 1, 15, "expected a string"),
            ("size", 1, 5, "expected `=`"),
        ] {
            let wrong = parse::<Table>(text).unwrap_err();
            assert_eq!(
                wrong.place,
                Some(TextPosition { line, column }),
                "{text}: {wrong:?}"
            );
            assert!(
                wrong.why.contains(why) && !wrong.why.contains('\n'),
                "{wrong:?}"
            );
            let said = wrong.refused(Path::new("a.toml")).to_string();
            assert_eq!(said, format!("a.toml:{line}:{column}: {}", wrong.why));
        }
        assert_eq!(
            Wrong::in_all("it is empty").of("a.toml"),
            "a.toml: it is empty"
        );
    }

    #[test]
    fn a_place_behind_the_text_is_its_end() {
        assert_eq!(
            TextPosition::of("a\nbc", 99),
            TextPosition { line: 2, column: 3 }
        );
        // Inside a character: its first byte.
        assert_eq!(
            TextPosition::of("é", 1),
            TextPosition { line: 1, column: 1 }
        );
    }
}
