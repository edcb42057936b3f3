//! Sessions of clients: FTP, and a terminal of a few commands.

use crate::error::{harmless_line, say};
use crate::http::files::{Folder, Resource, Served, Upload};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read as _, Write as _};
use weir_pup::bsp::{Connection, Read};
use weir_pup::ftp::{self, Piece, PropertyList, Reader, VERSION, coded, mark, no, read_coded};
use weir_pup::telnet::{Event, Parser};

/// Longest file that a client may store, in bytes.
const STORE_LEN_MAX: u64 = 1 << 30;
/// Files of a listing at most.
const LISTED_MAX: usize = 10_000;
/// Bytes of a file that are read at a time.
const CHUNK: usize = 32 << 10;
/// Longest line of a terminal's user.
const LINE_LEN_MAX: usize = 200;

/// Output that waits to be written into the stream.
enum Output {
    Bytes(Vec<u8>),
    Mark(u8),
}

/// Writes as much as there is room for; `false` if something remains.
fn drain(out: &mut VecDeque<Output>, connection: &mut Connection) -> bool {
    while let Some(front) = out.front_mut() {
        match front {
            Output::Mark(number) => {
                if !connection.write_mark(*number) {
                    return false;
                }
            }
            Output::Bytes(bytes) => {
                let count = connection.write(bytes);
                if count < bytes.len() {
                    bytes.drain(..count);
                    return false;
                }
            }
        }
        out.pop_front();
    }
    true
}

/// How far a session has gone on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// The session waits for its client.
    Waits,
    /// The session has more to do: others have their turn first.
    HasMore,
    /// The session is over.
    Over,
}

/// A session whose output the connection does not take now.
fn blocked(connection: &Connection) -> Progress {
    match connection.ended() {
        None => Progress::Waits,
        Some(_) => Progress::Over,
    }
}

enum State {
    /// A command is awaited.
    Command,
    /// A list for each of these files, in the folder of that path, is sent.
    Listing {
        parent: String,
        names: std::vec::IntoIter<(String, u64)>,
    },
    /// The client is asked whether it wants the file.
    Offered(Served),
    Sending {
        served: Served,
        /// Bytes that have been read.
        len: u64,
    },
    /// The client is asked for the file; `None` to throw it away.
    Accepting(Upload),
    Receiving {
        upload: Option<Upload>,
        len: u64,
    },
    /// The client's Yes or No after its file.
    Judged(Option<Upload>),
}

/// A session of FTP.
pub(super) struct Ftp {
    reader: Reader,
    state: State,
    out: VecDeque<Output>,
    writable: bool,
}

impl Ftp {
    pub(super) fn new(writable: bool) -> Ftp {
        Ftp {
            reader: Reader::default(),
            state: State::Command,
            out: VecDeque::new(),
            writable,
        }
    }

    fn say(&mut self, command: u8, argument: Vec<u8>) {
        self.out.push_back(Output::Mark(command));
        self.out.push_back(Output::Bytes(argument));
        self.out.push_back(Output::Mark(mark::END_OF_COMMAND));
    }

    fn refuse(&mut self, code: u8, text: &str) {
        self.say(mark::NO, coded(code, text));
    }

    /// Goes on until the client is asked, or a command is executed.
    pub(super) fn go_on(&mut self, connection: &mut Connection, folder: &Folder) -> Progress {
        if connection
            .ended()
            .is_some_and(|ended| ended != weir_pup::bsp::Ended::Closed)
        {
            return Progress::Over;
        }
        loop {
            if !drain(&mut self.out, connection) {
                return blocked(connection);
            }
            if let State::Listing { parent, names } = &mut self.state {
                match names.next() {
                    Some((name, len)) => {
                        let list = properties(&below(parent, &name), len).text();
                        self.out
                            .push_back(Output::Mark(mark::HERE_IS_PROPERTY_LIST));
                        self.out.push_back(Output::Bytes(list.into_bytes()));
                    }
                    None => {
                        self.state = State::Command;
                        self.out.push_back(Output::Mark(mark::END_OF_COMMAND));
                    }
                }
                continue;
            }
            if let State::Sending { served, len } = &mut self.state {
                let mut bytes = vec![0; CHUNK];
                match served.file.read(&mut bytes) {
                    // The whole file and no other: the client has its length.
                    Ok(count)
                        if *len + count as u64 > served.len
                            || count == 0 && (*len < served.len || !served.is_unchanged()) =>
                    {
                        self.state = State::Command;
                        self.refuse(no::DATA_ERROR, "the file has changed while it was read");
                    }
                    Ok(0) => {
                        self.state = State::Command;
                        self.out.push_back(Output::Mark(mark::YES));
                        let done = coded(0, "that is all");
                        self.out.push_back(Output::Bytes(done));
                        self.out.push_back(Output::Mark(mark::END_OF_COMMAND));
                    }
                    Ok(count) => {
                        *len += count as u64;
                        bytes.truncate(count);
                        self.out.push_back(Output::Bytes(bytes));
                    }
                    Err(_) => {
                        self.state = State::Command;
                        self.refuse(no::DATA_ERROR, "the file cannot be read");
                    }
                }
                continue;
            }
            match self.reader.poll(connection) {
                None => return Progress::Waits,
                Some(Piece::End) => return Progress::Over,
                Some(Piece::Malformed) => {
                    connection.abort(1, "this is no FTP");
                    return Progress::Over;
                }
                Some(piece) => {
                    // A command may look through a folder, or write to a disk.
                    self.take(piece, folder);
                    return Progress::HasMore;
                }
            }
        }
    }

    fn take(&mut self, piece: Piece, folder: &Folder) {
        let state = std::mem::replace(&mut self.state, State::Command);
        match (state, piece) {
            (state, Piece::Command(mark::COMMENT, _)) => self.state = state,
            (State::Command, Piece::Command(command, argument)) => {
                self.execute(command, &argument, folder);
            }
            (State::Offered(served), Piece::Command(mark::YES, _)) => {
                self.out.push_back(Output::Mark(mark::HERE_IS_FILE));
                self.state = State::Sending { served, len: 0 };
            }
            (State::Offered(_), Piece::Command(mark::NO, _)) => {
                self.out.push_back(Output::Mark(mark::END_OF_COMMAND));
            }
            (State::Accepting(upload), Piece::File) => {
                self.state = State::Receiving {
                    upload: Some(upload),
                    len: 0,
                };
            }
            (State::Receiving { mut upload, len }, Piece::Bytes(bytes)) => {
                let len = len + bytes.len() as u64;
                let written = upload.as_mut().map(|to| to.file.write_all(&bytes));
                if let Some(Err(error)) = &written {
                    say(&format!("weir: cannot store a file: {error}"));
                }
                let failed = len > STORE_LEN_MAX || matches!(written, Some(Err(_)));
                self.state = State::Receiving {
                    upload: upload.filter(|_| !failed),
                    len,
                };
            }
            (State::Receiving { upload, .. }, Piece::FileEnd) => {
                self.state = State::Judged(upload);
            }
            (State::Judged(upload), Piece::Command(command, _)) => {
                let stored = upload.filter(|_| command == mark::YES).map(Upload::finish);
                if let Some(Err(error)) = &stored {
                    say(&format!("weir: cannot store a file: {error}"));
                }
                match stored {
                    Some(Ok(())) => self.say(mark::YES, coded(0, "the file is stored")),
                    _ => self.refuse(no::STORE_NOT_COMPLETED, "the file is not stored"),
                }
            }
            // The client does not send the file after all.
            (State::Accepting(_), Piece::Command(mark::NO, argument)) => {
                let (_, text) = read_coded(&argument);
                self.refuse(no::STORE_NOT_COMPLETED, &text);
            }
            _ => self.refuse(no::ILLEGAL_COMMAND, "this command is not expected now"),
        }
    }

    fn execute(&mut self, command: u8, argument: &[u8], folder: &Folder) {
        match command {
            mark::VERSION => self.say(mark::VERSION, coded(VERSION, "weir")),
            mark::RETRIEVE | mark::NEW_STORE | mark::ENUMERATE | mark::NEW_ENUMERATE => {
                let list = std::str::from_utf8(argument)
                    .ok()
                    .and_then(PropertyList::parse);
                let Some(list) = list else {
                    self.refuse(no::MALFORMED_LIST, "the property list is malformed");
                    return;
                };
                let Some(path) = path(&list) else {
                    self.refuse(no::ILLEGAL_FILENAME, "the list names no file");
                    return;
                };
                match command {
                    mark::RETRIEVE => self.retrieve(&path, folder),
                    mark::NEW_STORE => self.store(&path, folder),
                    _ => self.enumerate(&path, command == mark::NEW_ENUMERATE, folder),
                }
            }
            mark::STORE | mark::DELETE | mark::RENAME => {
                self.refuse(no::UNIMPLEMENTED, "this server has no such command");
            }
            _ => self.refuse(no::ILLEGAL_COMMAND, "this is no command"),
        }
    }

    fn retrieve(&mut self, path: &str, folder: &Folder) {
        match folder.find_plain(path) {
            Resource::File(served) => {
                let list = properties(path, served.len);
                self.say(mark::HERE_IS_PROPERTY_LIST, list.text().into_bytes());
                self.state = State::Offered(served);
            }
            Resource::Nothing(403) => self.refuse(no::ACCESS_DENIED, "the file is not served"),
            _ => self.refuse(no::NOT_FOUND, "there is no such file"),
        }
    }

    fn store(&mut self, path: &str, folder: &Folder) {
        if !self.writable {
            self.refuse(no::ACCESS_DENIED, "this server stores no files");
            return;
        }
        match folder.create(path) {
            Ok(upload) => {
                let list = PropertyList::default().with("Server-Filename", path);
                self.say(mark::HERE_IS_PROPERTY_LIST, list.text().into_bytes());
                self.state = State::Accepting(upload);
            }
            Err(_) => self.refuse(no::ILLEGAL_FILENAME, "the file cannot be created"),
        }
    }

    fn enumerate(&mut self, pattern: &str, at_once: bool, folder: &Folder) {
        let (parent, last) = match pattern.rsplit_once('/') {
            Some((parent, last)) => (parent, last),
            None => ("", pattern),
        };
        let Ok(mut names) = folder.list(parent, |name| matches_pattern(last, name)) else {
            self.refuse(no::NOT_FOUND, "there is no such folder");
            return;
        };
        if names.is_empty() {
            self.refuse(no::NOT_FOUND, "there is no such file");
            return;
        }
        names.sort_unstable();
        names.truncate(LISTED_MAX);
        if at_once {
            let lists = names
                .iter()
                .map(|(name, len)| properties(&below(parent, name), *len).text());
            let bytes = joined(lists, ftp::ARGUMENT_LEN_MAX).into_bytes();
            self.say(mark::HERE_IS_PROPERTY_LIST, bytes);
            return;
        }
        self.state = State::Listing {
            parent: parent.to_owned(),
            names: names.into_iter(),
        };
    }
}

/// The path that a list names.
fn path(list: &PropertyList) -> Option<String> {
    let name = list.get("Server-Filename").or(list.get("Name-Body"))?;
    let path = match list.get("Directory") {
        Some(directory) if !directory.is_empty() => format!("{directory}/{name}"),
        _ => name.to_owned(),
    };
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// A name in a folder, of which an empty path is the served one.
fn below(parent: &str, name: &str) -> String {
    match parent {
        "" => name.to_owned(),
        parent => format!("{parent}/{name}"),
    }
}

fn properties(path: &str, len: u64) -> PropertyList {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    PropertyList::default()
        .with("Server-Filename", path)
        .with("Directory", directory)
        .with("Name-Body", name)
        .with("Type", "Binary")
        .with("Byte-Size", "8")
        .with("Size", &len.to_string())
}

/// The first of these texts that have no more than this many bytes together: a client reads no
/// longer argument.
fn joined(texts: impl Iterator<Item = String>, len_max: usize) -> String {
    let mut all = String::new();
    for text in texts {
        if all.len() + text.len() > len_max {
            break;
        }
        all += &text;
    }
    all
}

/// Whether a name matches a pattern, in which `*` stands for anything.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

/// A session of Telnet: lines with commands.
pub(super) struct Terminal {
    parser: Parser,
    /// Characters that wait until the output before them is on its way.
    typed: VecDeque<u8>,
    line: Vec<u8>,
    file: Option<File>,
    out: VecDeque<Output>,
    over: bool,
}

impl Terminal {
    pub(super) fn new() -> Terminal {
        let mut terminal = Terminal {
            parser: Parser::default(),
            typed: VecDeque::new(),
            line: Vec::new(),
            file: None,
            out: VecDeque::new(),
            over: false,
        };
        terminal.print("weir. Commands: list, type FILE, quit.\r\n> ");
        terminal
    }

    fn print(&mut self, text: &str) {
        self.out.push_back(Output::Bytes(text.as_bytes().to_vec()));
    }

    /// Goes on until the user is asked, or a line is obeyed.
    pub(super) fn go_on(&mut self, connection: &mut Connection, folder: &Folder) -> Progress {
        loop {
            if !drain(&mut self.out, connection) {
                return blocked(connection);
            }
            if let Some(file) = &mut self.file {
                let mut bytes = vec![0; CHUNK];
                match file.read(&mut bytes) {
                    Ok(count @ 1..) => {
                        bytes.truncate(count);
                        self.out.push_back(Output::Bytes(bytes));
                    }
                    _ => {
                        self.file = None;
                        self.print("\r\n> ");
                    }
                }
                continue;
            }
            if self.over {
                connection.close();
                return Progress::Over;
            }
            if let Some(character) = self.typed.pop_front() {
                if self.character(character, folder) {
                    return Progress::HasMore;
                }
                continue;
            }
            let mut buffer = [0; 512];
            match connection.read(&mut buffer) {
                Read::Nothing => return blocked(connection),
                Read::End => return Progress::Over,
                Read::Mark(number) => {
                    if self.parser.mark(number) == Some(Event::Timing) {
                        let reply = weir_pup::telnet::mark::TIMING_REPLY;
                        self.out.push_back(Output::Mark(reply));
                    }
                }
                Read::Data(count) => {
                    for byte in &buffer[..count] {
                        if let Event::Character(character) = self.parser.byte(*byte) {
                            self.typed.push_back(character);
                        }
                    }
                }
            }
        }
    }

    /// Takes a character; `true` if it ended a line, which was obeyed.
    fn character(&mut self, character: u8, folder: &Folder) -> bool {
        if !matches!(character, b'\r' | b'\n') {
            if self.line.len() < LINE_LEN_MAX {
                self.line.push(character);
            }
            return false;
        }
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "" => return false,
            "list" => {
                let mut names = folder.list("", |_| true).unwrap_or_default();
                names.sort_unstable();
                names.truncate(LISTED_MAX);
                let lines = names
                    .iter()
                    .map(|(name, len)| format!("{len:>10} {}\r\n", harmless_line(name)));
                let text: String = lines.collect();
                self.print(&text);
            }
            "type" => match folder.find_plain(rest.trim()) {
                Resource::File(served) => {
                    self.file = Some(served.file);
                    return true;
                }
                _ => self.print("There is no such file.\r\n"),
            },
            "quit" => {
                self.print("Goodbye.\r\n");
                self.over = true;
                return true;
            }
            _ => self.print("Commands: list, type FILE, quit.\r\n"),
        }
        self.print("> ");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weir_pup::datagram::{Port, Pup, kind};

    const NOW: Duration = Duration::ZERO;

    fn port(host: u8, socket: u32) -> Port {
        Port {
            net: 1,
            host,
            socket,
        }
    }

    /// A connection of a client that grants no window.
    fn connection() -> Connection {
        let (client, asked) = (port(3, 9), port(2, 3));
        let own = [&[1, 3][..], &9_u32.to_be_bytes()].concat();
        let request = Pup::new(kind::RFC, 500, asked, client, &own);
        Connection::accept(NOW, port(2, 77), &request).unwrap()
    }

    /// A folder with files, removed at the end.
    struct Files(std::path::PathBuf);

    impl Files {
        fn new(name: &str, count: usize) -> Files {
            let name = format!("weir-session-{name}-{}", std::process::id());
            let files = Files(std::env::temp_dir().join(name));
            std::fs::create_dir_all(&files.0).unwrap();
            for number in 0..count {
                std::fs::write(files.0.join(format!("f{number}")), b"x").unwrap();
            }
            files
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn bytes_waiting(ftp: &Ftp) -> usize {
        let bytes = ftp.out.iter().map(|one| match one {
            Output::Bytes(bytes) => bytes.len(),
            Output::Mark(_) => 1,
        });
        bytes.sum()
    }

    #[test]
    fn a_client_that_ends_while_output_waits_ends_the_session() {
        let files = Files::new("ends", 0);
        let folder = Folder::open(&files.0).unwrap();
        let mut connection = connection();
        let mut ftp = Ftp::new(false);
        ftp.out.push_back(Output::Bytes(vec![1; 1 << 20]));
        assert_eq!(ftp.go_on(&mut connection, &folder), Progress::Waits);
        let end = Pup::new(kind::END, 500, port(2, 77), port(3, 9), &[]);
        connection.handle(NOW, &end);
        assert_eq!(ftp.go_on(&mut connection, &folder), Progress::Over);
    }

    #[test]
    fn a_long_listing_is_made_as_there_is_room() {
        let files = Files::new("lists", 1000);
        let folder = Folder::open(&files.0).unwrap();
        let mut connection = connection();
        // What the connection takes without a window.
        while connection.write(&[0; 4096]) > 0 {}
        let mut ftp = Ftp::new(false);
        ftp.execute(mark::ENUMERATE, b"((Server-Filename ///f*))", &folder);
        assert_eq!(ftp.go_on(&mut connection, &folder), Progress::Waits);
        let State::Listing { names, .. } = &ftp.state else {
            panic!("the listing is not over");
        };
        assert!(names.len() >= 999, "{}", names.len());
        assert!(bytes_waiting(&ftp) < 1000, "{}", bytes_waiting(&ftp));
    }

    /// The marks that a session sends, to a client with room for all.
    fn marks(connection: &mut Connection) -> Vec<u8> {
        let grant = [2, 20, 0, 255, 0xff, 0xff];
        connection.handle(
            NOW,
            &Pup::new(kind::ACK, 500, port(2, 77), port(3, 9), &grant),
        );
        let sent = std::iter::from_fn(|| connection.poll_transmit(NOW));
        let marks = sent.filter(|pup| matches!(pup.head.pup_type, kind::MARK | kind::AMARK));
        marks.map(|pup| pup.payload[0]).collect()
    }

    #[test]
    fn a_file_that_changes_while_it_is_sent_is_refused_in_the_end() {
        let files = Files::new("changes", 1);
        let folder = Folder::open(&files.0).unwrap();
        for (content, end) in [
            (None, mark::YES),
            (Some(""), mark::NO),
            (Some("y"), mark::NO),
        ] {
            std::fs::write(files.0.join("f0"), "x").unwrap();
            let mut connection = connection();
            let mut ftp = Ftp::new(false);
            ftp.execute(mark::RETRIEVE, b"((Server-Filename f0))", &folder);
            ftp.take(Piece::Command(mark::YES, Vec::new()), &folder);
            if let Some(content) = content {
                // Later than the clock's tick, by which a file system counts.
                std::thread::sleep(Duration::from_millis(20));
                std::fs::write(files.0.join("f0"), content).unwrap();
            }
            assert_eq!(ftp.go_on(&mut connection, &folder), Progress::Waits);
            let sent = marks(&mut connection);
            let expected = [mark::HERE_IS_FILE, end, mark::END_OF_COMMAND];
            assert!(sent.ends_with(&expected), "{content:?}: {sent:?}");
        }
    }

    #[test]
    fn a_path_has_no_empty_parts() {
        let list = |name: &str| PropertyList::default().with("Server-Filename", name);
        assert_eq!(path(&list("/a//b/")), Some("a/b".to_owned()));
        assert_eq!(
            path(&list("a").with("Directory", "//d/")),
            Some("d/a".to_owned())
        );
        assert_eq!(path(&list("//")), None);
    }

    #[test]
    fn a_long_listing_ends_with_a_whole_name() {
        // Two bytes a character: the limit is in the middle of one.
        let names = || (0..100).map(|number| format!("((Name-Body {number}äöü))"));
        let all = joined(names(), 1000);
        assert!(all.len() > 900 && all.len() <= 1000, "{}", all.len());
        let whole: String = names().collect();
        assert!(whole.starts_with(&all) && all.ends_with("äöü))"), "{all}");
        assert_eq!(joined(names(), usize::MAX), whole);
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "a.txt"),
            ("a.txt", "a.txt"),
            ("*.txt", "a.txt"),
            ("a*t", "a.txt"),
            ("a*.*t", "a.b.txt"),
            ("**", "x"),
        ] {
            assert!(matches_pattern(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("a", "ab"),
            ("*.txt", "a.tx"),
            ("a*a", "a"),
            ("b*", "a"),
        ] {
            assert!(!matches_pattern(pattern, name), "{pattern} {name}");
        }
    }
}
