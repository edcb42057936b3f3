//! `weir pup list`, `get`, `put`: FTP clients.

use super::link::{LinkArgs, stream_failure};
use crate::error::{CliError, harmless_line};
use crate::http::output::Output;
use crate::signals::ShutdownSignal;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use weir_protocols::pup::{Node, Stream, StreamError};
use weir_pup::datagram::{Address, Port, socket};
use weir_pup::ftp::{Piece, PropertyList, Reader, VERSION, coded, mark, no, read_coded};

/// A server's address and a path there: `1#2#a/b.txt`.
#[derive(Clone, Debug)]
struct Place {
    server: Address,
    path: String,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let wrong = || format!("`{text}` is no file of a Pup host: write NET#HOST#PATH");
        let second = text.match_indices('#').nth(1).ok_or_else(wrong)?.0;
        let (server, path) = text.split_at(second + 1);
        let server = server.parse().map_err(|_| wrong())?;
        Ok(Place {
            server,
            path: path.to_owned(),
        })
    }
}

/// List a server's files
#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    /// The server, and the names that are asked for, in which * stands for anything; all by
    /// default
    #[arg(value_name = "NET#HOST#[PATH]")]
    place: Place,

    #[command(flatten)]
    link: LinkArgs,

    #[command(flatten)]
    account: Account,
}

/// Retrieve a file
#[derive(clap::Args, Debug)]
pub(crate) struct GetArgs {
    /// The file
    #[arg(value_name = "NET#HOST#PATH")]
    place: Place,

    #[command(flatten)]
    link: LinkArgs,

    #[command(flatten)]
    account: Account,

    /// Write the file there instead of to standard output (-); it appears when it is whole
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

/// Store a file
#[derive(clap::Args, Debug)]
pub(crate) struct PutArgs {
    /// The file to store; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The file's name there
    #[arg(value_name = "NET#HOST#PATH")]
    place: Place,

    #[command(flatten)]
    link: LinkArgs,

    #[command(flatten)]
    account: Account,
}

/// Who asks, for servers that want to know.
#[derive(clap::Args, Debug)]
struct Account {
    /// The user, for a server that has users; the password travels in the clear
    #[arg(long, value_name = "NAME[:PASSWORD]")]
    user: Option<String>,
}

/// Why an FTP command fails.
enum FtpError {
    Stream(StreamError),
    Cli(CliError),
    /// The server refused.
    Refused(u8, String),
    /// The server sends another number of bytes than it stated.
    Length {
        stated: u64,
        sent: u64,
    },
    /// The server sent what makes no sense.
    Protocol,
}

impl From<StreamError> for FtpError {
    fn from(error: StreamError) -> FtpError {
        FtpError::Stream(error)
    }
}

impl From<CliError> for FtpError {
    fn from(error: CliError) -> FtpError {
        FtpError::Cli(error)
    }
}

impl FtpError {
    fn told(self, place: &Place, stop: &ShutdownSignal) -> CliError {
        let Place { server, path } = place;
        match self {
            FtpError::Cli(error) => error,
            FtpError::Stream(StreamError::Ended(ended)) => {
                let why = harmless_line(&ended.to_string());
                CliError::run(format!("{server}: {why}"))
            }
            FtpError::Stream(error) => stream_failure(error, stop),
            FtpError::Refused(code, text) => {
                let text = harmless_line(&text);
                CliError::run(format!("{server}{path}: {text} (code {code})"))
            }
            FtpError::Length { stated, sent } => CliError::run(format!(
                "{server}{path}: the server states {stated} bytes and sends {sent}"
            )),
            FtpError::Protocol => CliError::run(format!(
                "{server}: the server does not speak FTP as weir does"
            )),
        }
    }
}

/// Comments that a server may send before an answer.
const COMMENTS_MAX: usize = 100;

/// A session with a server.
struct Session<'a> {
    stream: Stream<'a>,
    reader: Reader,
}

impl<'a> Session<'a> {
    fn open(
        node: &'a mut Node,
        server: Address,
        stop: &'a dyn Fn() -> bool,
    ) -> Result<Session<'a>, FtpError> {
        let Address(asked) = server;
        let remote = Port {
            socket: if asked.socket == 0 {
                socket::FTP
            } else {
                asked.socket
            },
            ..asked
        };
        let mut session = Session {
            stream: Stream::open(node, remote, stop)?,
            reader: Reader::default(),
        };
        session
            .stream
            .command(mark::VERSION, &coded(VERSION, "weir"))?;
        match session.command()? {
            (mark::VERSION, _) => Ok(session),
            other => Err(refusal(&other)),
        }
    }

    /// The next command of the server; comments are skipped.
    fn command(&mut self) -> Result<(u8, Vec<u8>), FtpError> {
        for _ in 0..=COMMENTS_MAX {
            match self.stream.piece(&mut self.reader)? {
                Piece::Command(mark::COMMENT, _) => {}
                Piece::Command(command, argument) => return Ok((command, argument)),
                other => return Err(self.unexpected(&other)),
            }
        }
        Err(FtpError::Protocol)
    }

    /// Why a piece that should not come has come: the connection may have ended.
    fn unexpected(&mut self, piece: &Piece) -> FtpError {
        let ended = self.stream.connection().and_then(|one| one.ended());
        match (piece, ended) {
            (Piece::End, Some(ended)) => StreamError::Ended(ended).into(),
            _ => FtpError::Protocol,
        }
    }

    /// Ends the session after all that was asked: the server's reply to the end changes nothing.
    fn close(mut self) -> Result<(), FtpError> {
        match self.stream.close() {
            Ok(()) | Err(StreamError::Ended(_)) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }
}

/// The length of a file that a list names.
fn size(list: &PropertyList) -> Option<u64> {
    list.get("Size")?.trim().parse().ok()
}

impl Drop for Session<'_> {
    /// A client that stops before the end says so: the server waits for no more.
    fn drop(&mut self) {
        if let Some(connection) = self.stream.connection()
            && connection.ended().is_none()
        {
            connection.abort(0, "the client has stopped");
            let _ = self.stream.turn(Duration::ZERO);
        }
    }
}

fn refusal((command, argument): &(u8, Vec<u8>)) -> FtpError {
    match *command {
        mark::NO => {
            let (code, text) = read_coded(argument);
            FtpError::Refused(code, text)
        }
        _ => FtpError::Protocol,
    }
}

fn named(path: &str, account: &Account) -> PropertyList {
    let list = PropertyList::default()
        .with("Server-Filename", path)
        .with("Type", "Binary")
        .with("Byte-Size", "8");
    let Some(user) = &account.user else {
        return list;
    };
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    list.with("User-Name", name).with("User-Password", password)
}

fn require_name(place: &Place) -> Result<(), CliError> {
    if place.path.is_empty() {
        Err(CliError::refused(format!(
            "{} has no file's name: write one behind it",
            place.server
        )))
    } else {
        Ok(())
    }
}

pub(super) fn list(args: &ListArgs, stop: &ShutdownSignal) -> Result<(), CliError> {
    let mut node = args.link.client(args.place.server)?;
    let asked = || stop.is_requested();
    let path = if args.place.path.is_empty() {
        "*"
    } else {
        &args.place.path
    };
    let listed = (|| -> Result<Vec<PropertyList>, FtpError> {
        let mut session = Session::open(&mut node, args.place.server, &asked)?;
        let pattern = named(path, &args.account).text();
        session
            .stream
            .command(mark::NEW_ENUMERATE, pattern.as_bytes())?;
        let lists = match session.command()? {
            (mark::HERE_IS_PROPERTY_LIST, text) => {
                let text = String::from_utf8_lossy(&text);
                PropertyList::parse_all(&text).ok_or(FtpError::Protocol)?
            }
            (mark::END_OF_COMMAND, _) => Vec::new(),
            other => return Err(refusal(&other)),
        };
        session.close()?;
        Ok(lists)
    })();
    let listed = listed.map_err(|error| error.told(&args.place, stop))?;
    let mut out = io::stdout();
    for list in listed {
        let name = list
            .get("Server-Filename")
            .or(list.get("Name-Body"))
            .unwrap_or("?");
        let size = size(&list).map_or("-".to_owned(), |size| size.to_string());
        writeln!(out, "{size:>10} {}", harmless_line(name)).map_err(CliError::output)?;
    }
    Ok(())
}

pub(super) fn get(args: &GetArgs, stop: &ShutdownSignal) -> Result<(), CliError> {
    require_name(&args.place)?;
    let mut node = args.link.client(args.place.server)?;
    let asked = || stop.is_requested();
    let got = (|| -> Result<(), FtpError> {
        let mut session = Session::open(&mut node, args.place.server, &asked)?;
        let list = named(&args.place.path, &args.account).text();
        session.stream.command(mark::RETRIEVE, list.as_bytes())?;
        let stated = match session.command()? {
            (mark::HERE_IS_PROPERTY_LIST, text) => {
                let list = PropertyList::parse(&String::from_utf8_lossy(&text));
                list.as_ref().and_then(size)
            }
            (mark::END_OF_COMMAND, _) => {
                let text = "there is no such file".to_owned();
                return Err(FtpError::Refused(no::NOT_FOUND, text));
            }
            other => return Err(refusal(&other)),
        };
        session.stream.command(mark::YES, &coded(0, "send it"))?;
        let mut output = Output::open(args.output.as_deref(), stop)?;
        match session.stream.piece(&mut session.reader)? {
            Piece::File => {}
            other => return Err(session.unexpected(&other)),
        }
        let mut len = 0;
        loop {
            match session.stream.piece(&mut session.reader)? {
                Piece::Bytes(bytes) => {
                    len += bytes.len() as u64;
                    if let Some(stated) = stated.filter(|stated| len > *stated) {
                        return Err(FtpError::Length { stated, sent: len });
                    }
                    output.write(&bytes)?;
                }
                Piece::FileEnd => break,
                other => return Err(session.unexpected(&other)),
            }
        }
        match session.command()? {
            (mark::YES, _) if stated.is_some_and(|stated| stated != len) => {
                let stated = stated.unwrap_or_default();
                return Err(FtpError::Length { stated, sent: len });
            }
            (mark::YES, _) => output.finish()?,
            other => return Err(refusal(&other)),
        }
        session.close()
    })();
    got.map_err(|error| error.told(&args.place, stop))
}

pub(super) fn put(args: &PutArgs, stop: &ShutdownSignal) -> Result<(), CliError> {
    require_name(&args.place)?;
    let cannot =
        |error: io::Error| CliError::run(format!("cannot read {}: {error}", args.file.display()));
    let mut input: Box<dyn io::Read> = if args.file.as_os_str() == "-" {
        Box::new(stop.interruptible(io::stdin()))
    } else {
        Box::new(File::open(&args.file).map_err(cannot)?)
    };
    let mut node = args.link.client(args.place.server)?;
    let asked = || stop.is_requested();
    let put = (|| -> Result<(), FtpError> {
        let mut session = Session::open(&mut node, args.place.server, &asked)?;
        let list = named(&args.place.path, &args.account).text();
        session.stream.command(mark::NEW_STORE, list.as_bytes())?;
        match session.command()? {
            (mark::HERE_IS_PROPERTY_LIST, _) => {}
            other => return Err(refusal(&other)),
        }
        session.stream.mark(mark::HERE_IS_FILE)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = match input.read(&mut buffer) {
                Ok(count) => count,
                Err(error) => {
                    let text = "the file cannot be read";
                    session
                        .stream
                        .command(mark::NO, &coded(no::DATA_ERROR, text))?;
                    let _ = session.command();
                    return Err(cannot(error).into());
                }
            };
            if count == 0 {
                break;
            }
            session.stream.write_all(&buffer[..count])?;
        }
        if stop.is_requested() {
            return Err(StreamError::Stopped.into());
        }
        session
            .stream
            .command(mark::YES, &coded(0, "that is all"))?;
        match session.command()? {
            (mark::YES, _) => {}
            other => return Err(refusal(&other)),
        }
        session.close()
    })();
    put.map_err(|error| error.told(&args.place, stop))
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_place_is_an_address_and_a_path() {
        let place: Place = "1#2#a/b #c.txt".parse().unwrap();
        assert_eq!(
            (place.server.to_string().as_str(), &*place.path),
            ("1#2#", "a/b #c.txt")
        );
        for wrong in ["", "1#2", "hello.txt", "9#2#x"] {
            assert!(
                wrong
                    .parse::<Place>()
                    .unwrap_err()
                    .contains("NET#HOST#PATH"),
                "{wrong}"
            );
        }
    }
}
