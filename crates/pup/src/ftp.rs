//! FTP on a byte stream: marks are commands, text follows them (Pup File Transfer
//! Protocol Specification).
//!
//! ```text
//!  command:  mark │ arguments, as bytes │ mark End-of-command
//!  file:     mark Here-is-file │ bytes │ mark Yes or No │ code 1, text │ mark End-of-command
//! ```
//!
//! Files are named by property lists: `((Server-Filename a.txt)(Size 5))`.

use crate::bsp::{Connection, Read};

/// Marks.
pub mod mark {
    /// Retrieve files; a property list follows.
    pub const RETRIEVE: u8 = 1;
    /// Store a file; a property list follows.
    pub const STORE: u8 = 2;
    /// Success; a code and a text follow.
    pub const YES: u8 = 3;
    /// Failure; a code and a text follow.
    pub const NO: u8 = 4;
    /// The bytes of a file follow.
    pub const HERE_IS_FILE: u8 = 5;
    /// The end of a command.
    pub const END_OF_COMMAND: u8 = 6;
    /// A comment follows.
    pub const COMMENT: u8 = 7;
    /// A version and a text follow.
    pub const VERSION: u8 = 8;
    /// Store a file; the server answers with the file's properties first.
    pub const NEW_STORE: u8 = 9;
    /// List files.
    pub const ENUMERATE: u8 = 10;
    /// A property list follows.
    pub const HERE_IS_PROPERTY_LIST: u8 = 11;
    /// List files; the server answers with all lists after one mark.
    pub const NEW_ENUMERATE: u8 = 12;
    /// Delete files.
    pub const DELETE: u8 = 14;
    /// Rename a file.
    pub const RENAME: u8 = 15;
}

/// Codes after No.
pub mod no {
    /// The command is unknown.
    pub const UNIMPLEMENTED: u8 = 1;
    /// The command is not expected.
    pub const ILLEGAL_COMMAND: u8 = 3;
    /// The property list is malformed.
    pub const MALFORMED_LIST: u8 = 8;
    /// The name is not allowed.
    pub const ILLEGAL_FILENAME: u8 = 9;
    /// There is no such file.
    pub const NOT_FOUND: u8 = 64;
    /// The client may not do this.
    pub const ACCESS_DENIED: u8 = 65;
    /// The file cannot be read.
    pub const DATA_ERROR: u8 = 67;
    /// Do not send the file.
    pub const DO_NOT_SEND: u8 = 69;
    /// The file was not stored.
    pub const STORE_NOT_COMPLETED: u8 = 70;
}

/// The version of the protocol.
pub const VERSION: u8 = 1;
/// Longest argument of a command, in bytes.
pub const ARGUMENT_LEN_MAX: usize = 64 << 10;
/// Properties of a list at most.
const PROPERTIES_MAX: usize = 256;

/// A property list.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PropertyList(Vec<(String, String)>);

impl PropertyList {
    /// The list with one property more.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> PropertyList {
        self.0.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The value of a property, whose name may be in any case.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self
            .0
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Reads lists that follow each other; `None` if they are malformed.
    pub fn parse_all(text: &str) -> Option<Vec<PropertyList>> {
        let mut rest = text.chars().peekable();
        let mut lists = Vec::new();
        while rest.peek().is_some() {
            (rest.next() == Some('(')).then_some(())?;
            let mut list = PropertyList::default();
            loop {
                match rest.next()? {
                    ')' => break,
                    '(' => {}
                    _ => return None,
                }
                let mut name = String::new();
                loop {
                    match rest.next()? {
                        ' ' => break,
                        '(' | ')' => return None,
                        c => name.push(c),
                    }
                }
                let mut value = String::new();
                loop {
                    match rest.next()? {
                        ')' => break,
                        '\'' => value.push(rest.next()?),
                        c => value.push(c),
                    }
                }
                if list.0.len() >= PROPERTIES_MAX {
                    return None;
                }
                list.0.push((name, value));
            }
            lists.push(list);
        }
        Some(lists)
    }

    /// Reads a single list; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<PropertyList> {
        let mut lists = PropertyList::parse_all(text)?;
        (lists.len() == 1).then(|| lists.remove(0))
    }

    /// The list as text, with special characters quoted.
    pub fn text(&self) -> String {
        let mut out = String::from("(");
        for (name, value) in &self.0 {
            out.push('(');
            out += name;
            out.push(' ');
            for c in value.chars() {
                if matches!(c, '\'' | '(' | ')') {
                    out.push('\'');
                }
                out.push(c);
            }
            out.push(')');
        }
        out.push(')');
        out
    }
}

/// A piece of the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// A command with its argument, without the mark at its end.
    Command(u8, Vec<u8>),
    /// The mark Here-is-file: bytes follow.
    File,
    /// Bytes of a file.
    Bytes(Vec<u8>),
    /// The bytes of the file end here; Yes or No follows as a command.
    FileEnd,
    /// The peer sent an argument that is too long, or bytes without a command.
    Malformed,
    /// The stream has ended.
    End,
}

/// Cuts a stream into pieces.
#[derive(Clone, Default, Debug)]
pub struct Reader {
    command: Option<u8>,
    argument: Vec<u8>,
    in_file: bool,
    /// A piece that follows the last one.
    next: Option<Piece>,
}

impl Reader {
    /// The next piece; `None` if it has not arrived yet.
    pub fn poll(&mut self, connection: &mut Connection) -> Option<Piece> {
        if let Some(next) = self.next.take() {
            return Some(next);
        }
        let mut buffer = [0; 8192];
        loop {
            match connection.read(&mut buffer) {
                Read::Nothing => return None,
                Read::End => return Some(Piece::End),
                Read::Data(count) if self.in_file => {
                    return Some(Piece::Bytes(buffer[..count].to_vec()));
                }
                Read::Data(_) if self.command.is_none() => return Some(Piece::Malformed),
                Read::Data(count) => {
                    if self.argument.len() + count > ARGUMENT_LEN_MAX {
                        return Some(Piece::Malformed);
                    }
                    self.argument.extend(&buffer[..count]);
                }
                Read::Mark(mark) => {
                    if let Some(piece) = self.mark(mark) {
                        return Some(piece);
                    }
                }
            }
        }
    }

    fn mark(&mut self, mark: u8) -> Option<Piece> {
        // A command without End-of-command ends where the next mark begins; Xerox's
        // own server sends such ones.
        let ended = self
            .command
            .take()
            .map(|command| Piece::Command(command, std::mem::take(&mut self.argument)));
        let was_file = std::mem::take(&mut self.in_file);
        match mark {
            mark::END_OF_COMMAND if ended.is_some() => return ended,
            mark::END_OF_COMMAND => return Some(Piece::Command(mark, Vec::new())),
            mark::HERE_IS_FILE => {
                self.in_file = true;
                return match ended {
                    Some(ended) => {
                        self.next = Some(Piece::File);
                        Some(ended)
                    }
                    None => Some(Piece::File),
                };
            }
            other => self.command = Some(other),
        }
        if was_file {
            Some(Piece::FileEnd)
        } else {
            ended
        }
    }
}

/// A code and a text, as after Yes, No and Version.
pub fn coded(code: u8, text: &str) -> Vec<u8> {
    [&[code], text.as_bytes()].concat()
}

/// Reads a code and a text.
pub fn read_coded(argument: &[u8]) -> (u8, String) {
    match argument.split_first() {
        Some((code, text)) => (*code, String::from_utf8_lossy(text).into_owned()),
        None => (0, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn property_lists_read_back() {
        let list = PropertyList::default()
            .with("Server-Filename", "a (b) 'c'.txt")
            .with("Size", "5");
        let text = list.text();
        assert_eq!(text, "((Server-Filename a '(b') ''c''.txt)(Size 5))");
        assert_eq!(PropertyList::parse(&text), Some(list.clone()));
        assert_eq!(list.get("server-filename"), Some("a (b) 'c'.txt"));
        let both = format!("{text}(()(");
        assert_eq!(PropertyList::parse_all(&both), None);
        let two = PropertyList::parse_all(&format!("{text}{text}")).unwrap();
        assert_eq!(two, [list.clone(), list]);
        for text in [
            "", "(", ")", "((a b)", "((a)", "(a b)", "((a b')", "x((a b))",
        ] {
            assert_eq!(PropertyList::parse(text), None, "{text}");
        }
    }
}
