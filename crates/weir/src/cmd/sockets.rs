//! `weir sockets`: the sockets of programs that `weir exec` runs.

use crate::error::CliError;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Show the sockets of programs that weir exec runs
///
/// Shows the TCP and UDP sockets of the hosts in those programs, which ss(8) does not list: those of
/// one's own user, and for the superuser those of all users.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
States are those of RFC 9293; `shared` says that other processes than the one shown may use the
socket, which the one shown owns. Queues are bytes that no call has read, and bytes that the peer
has not acknowledged; they are unknown for datagrams and listeners.

Exit status: 0; 1 if a process that has sockets did not answer within 2 s.")]
pub(crate) struct Args {
    /// Print one line of JSON, an array: pid, uid, command, protocol, local, peer, state,
    /// receive_queue, send_queue, descriptors, shared; null where there is no value
    #[arg(long)]
    json: bool,
}

/// Processes of one folder that are asked.
const PROCESSES_MAX: usize = 4096;
/// Longest answer of a process, in bytes.
const ANSWER_MAX: usize = 16 << 20;
/// Longest time for an answer.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// A protocol, or a state of RFC 9293.
macro_rules! words {
    ($name:ident { $($word:ident $text:literal,)* }) => {
        #[derive(Deserialize, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
        enum $name { $(#[serde(rename = $text)] $word,)* }

        impl $name {
            fn text(self) -> String {
                match self { $($name::$word => $text,)* }.to_owned()
            }
        }
    };
}

words!(Protocol {
    Tcp "tcp",
    Udp "udp",
});

words!(State {
    Listen "listen",
    SynSent "syn-sent",
    SynReceived "syn-received",
    Established "established",
    FinWait1 "fin-wait-1",
    FinWait2 "fin-wait-2",
    CloseWait "close-wait",
    Closing "closing",
    LastAck "last-ack",
    TimeWait "time-wait",
    Closed "closed",
    Connected "connected",
    Unconnected "unconnected",
});

/// The first line of an answer.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

/// A line of an answer: see `exec/src/status.rs`.
#[derive(Deserialize, Serialize)]
struct Socket {
    protocol: Protocol,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    state: State,
    receive_queue: Option<u64>,
    send_queue: Option<u64>,
    descriptors: Vec<u32>,
    shared: bool,
}

/// A socket and its process.
#[derive(Serialize)]
struct Row {
    pid: i32,
    uid: u32,
    command: Option<String>,
    #[serde(flatten)]
    socket: Socket,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let own = rustix::process::geteuid().as_raw();
    let mut rows = Vec::new();
    let mut silent = Vec::new();
    for (path, uid) in folders(own) {
        for process in processes(&path, uid) {
            match process.ask() {
                Ok(mut more) => rows.append(&mut more),
                Err(Silent::Gone) => {}
                Err(Silent::Because(why)) => silent.push(format!("{}: {why}", process.shown())),
            }
        }
    }
    rows.sort_by_key(|row| (row.pid, row.socket.local, row.socket.peer));
    let text = if args.json {
        serde_json::to_string(&rows).map_err(CliError::run)?
    } else {
        table(&rows)
    };
    writeln!(std::io::stdout(), "{text}").map_err(CliError::output)?;
    match silent.first() {
        None => Ok(()),
        Some(first) => Err(CliError::run(format!(
            "{} of the processes did not tell their sockets: {first}",
            silent.len()
        ))),
    }
}

fn table(rows: &[Row]) -> String {
    let columns = [
        Left("protocol"),
        Left("state"),
        Right("receive"),
        Right("send"),
        Left("local"),
        Left("peer"),
        Right("pid"),
        Left("process"),
        Left("use"),
    ];
    let queue = |len: Option<u64>| len.map_or("-".to_owned(), |len| len.to_string());
    let address = |at: Option<SocketAddr>| at.map_or("-".to_owned(), |at| at.to_string());
    let rows = rows.iter().map(|row| {
        let socket = &row.socket;
        vec![
            socket.protocol.text(),
            socket.state.text(),
            queue(socket.receive_queue),
            queue(socket.send_queue),
            address(socket.local),
            address(socket.peer),
            row.pid.to_string(),
            row.command.clone().unwrap_or_else(|| "-".to_owned()),
            if socket.shared { "shared" } else { "own" }.to_owned(),
        ]
    });
    format::table(&columns, rows)
}

/// The folders that are asked, with their users.
fn folders(own: u32) -> Vec<(PathBuf, u32)> {
    let of = |uid| weir_socket::status_folders(uid).map(|path| (path, uid));
    let mut folders: Vec<_> = of(own).into();
    if own == 0 {
        let users = names("/run/user").filter_map(|name| name.parse().ok());
        let temporary = names("/tmp").filter_map(|name| {
            let uid = name.strip_prefix("weir-exec-")?;
            uid.parse().ok()
        });
        for uid in users.chain(temporary).filter(|uid| *uid != 0) {
            folders.extend(of(uid));
        }
        folders.sort();
        folders.dedup();
    }
    folders
}

fn names(folder: &str) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// A process that has a socket to be asked.
struct Process {
    folder: std::rc::Rc<OwnedFd>,
    name: String,
    uid: u32,
}

/// Why there is no answer.
enum Silent {
    /// The process has ended.
    Gone,
    Because(String),
}

/// The processes of a folder, which another user cannot have made.
fn processes(path: &Path, uid: u32) -> Vec<Process> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(path, flags, Mode::empty()) else {
        return Vec::new();
    };
    let is_private = rustix::fs::fstat(&folder).is_ok_and(|about| {
        about.st_uid == uid
            && about.st_mode & 0o077 == 0
            && FileType::from_raw_mode(about.st_mode) == FileType::Directory
    });
    let entries = Dir::read_from(&folder).ok().filter(|_| is_private);
    let folder = std::rc::Rc::new(folder);
    let entries = entries.into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let name = name.to_str()?.to_owned();
        name.parse::<u32>().ok().map(|_| name)
    });
    let names = names.take(PROCESSES_MAX);
    let process = |name| Process {
        folder: folder.clone(),
        name,
        uid,
    };
    names.map(process).collect()
}

impl Process {
    fn shown(&self) -> String {
        format!("process {}", self.name)
    }

    fn ask(&self) -> Result<Vec<Row>, Silent> {
        let because = |error: rustix::io::Errno| Silent::Because(error.to_string());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = made.map_err(because)?;
        let at = format!("/proc/self/fd/{}/{}", self.folder.as_raw_fd(), self.name);
        let at = SocketAddrUnix::new(at).map_err(because)?;
        match rustix::net::connect(&socket, &at) {
            Ok(()) => {}
            Err(rustix::io::Errno::CONNREFUSED) => {
                // The process was killed, and has left the name.
                let _ = rustix::fs::unlinkat(&*self.folder, &self.name, AtFlags::empty());
                return Err(Silent::Gone);
            }
            Err(rustix::io::Errno::NOENT) => return Err(Silent::Gone),
            Err(error) => return Err(because(error)),
        }
        let about = rustix::net::sockopt::socket_peercred(&socket).map_err(because)?;
        let text = read(UnixStream::from(socket)).map_err(Silent::Because)?;
        let pid = about.pid.as_raw_nonzero().get();
        parse(&text, pid, self.uid).map_err(Silent::Because)
    }
}

/// Reads the whole answer.
fn read(mut stream: UnixStream) -> Result<String, String> {
    let failed = |error: std::io::Error| error.to_string();
    let deadline = Instant::now() + WAIT_MAX;
    stream.set_nonblocking(false).map_err(failed)?;
    let mut bytes = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("no answer within 2 s".to_owned());
        }
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) if bytes.len() + count > ANSWER_MAX => {
                return Err(format!("the answer is longer than {ANSWER_MAX} bytes"));
            }
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    String::from_utf8(bytes).map_err(|_| "the answer is not text".to_owned())
}

/// The sockets of an answer. Its content is of another program: only known words, numbers and
/// addresses are taken from it.
fn parse(text: &str, pid: i32, uid: u32) -> Result<Vec<Row>, String> {
    let mut lines = text.lines();
    let head = lines.next().ok_or("an empty answer")?;
    let head: Head = serde_json::from_str(head).map_err(|error| error.to_string())?;
    if head.version != 1 {
        return Err(format!(
            "an answer of version {}: use the weir that started the program",
            head.version
        ));
    }
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let command = command.map(|name| name.trim_end().to_owned());
    let row = |line: &str| {
        let socket = serde_json::from_str(line).map_err(|error| error.to_string())?;
        Ok(Row {
            pid,
            uid,
            command: command.clone(),
            socket,
        })
    };
    lines.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this user with this mode, removed on drop.
    struct Made(PathBuf);

    impl Made {
        fn new(name: &str, mode: u32) -> Made {
            use std::os::unix::fs::PermissionsExt;
            let name = format!("weir-sockets-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Made(path)
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn folders_that_others_can_change_are_left_alone() {
        let own = rustix::process::geteuid().as_raw();
        for (name, mode, count) in [("private", 0o700, 1), ("open", 0o777, 0)] {
            let made = Made::new(name, mode);
            std::fs::write(made.0.join("7"), "").unwrap();
            std::fs::write(made.0.join("name"), "").unwrap();
            assert_eq!(processes(&made.0, own).len(), count, "{name}");
            assert!(processes(&made.0, own + 1).is_empty());
            let link = made.0.with_extension("link");
            std::os::unix::fs::symlink(&made.0, &link).unwrap();
            assert!(processes(&link, own).is_empty());
            std::fs::remove_file(link).unwrap();
        }
    }

    #[test]
    fn answers_without_end_are_given_up() {
        use std::os::unix::net::UnixListener;
        let made = Made::new("endless", 0o700);
        let listener = UnixListener::bind(made.0.join("7")).unwrap();
        let serves = std::thread::spawn(move || {
            // Nothing at all, and then more than is taken.
            let (silent, _) = listener.accept().unwrap();
            let (mut endless, _) = listener.accept().unwrap();
            let part = vec![b' '; 1 << 20];
            while endless.write_all(&part).is_ok() {}
            drop((silent, listener));
        });
        let own = rustix::process::geteuid().as_raw();
        for why in ["no answer within 2 s", "longer than"] {
            let all = processes(&made.0, own);
            let [process] = &all[..] else {
                panic!("one process");
            };
            match process.ask() {
                Err(Silent::Because(said)) => assert!(said.contains(why), "{said}"),
                _ => panic!("{why}"),
            }
        }
        serves.join().unwrap();
        // A killed process leaves its name, which goes.
        let all = processes(&made.0, own);
        assert!(matches!(all[0].ask(), Err(Silent::Gone)));
        assert!(processes(&made.0, own).is_empty());
    }

    #[test]
    fn only_known_words_numbers_and_addresses_are_taken() {
        let line = |state: &str, local: &str| {
            format!(
                "{{\"version\":1,\"pid\":7}}\n{{\"protocol\":\"tcp\",\"local\":\"{local}\",\
                 \"peer\":null,\"state\":\"{state}\",\"receive_queue\":null,\"send_queue\":5,\
                 \"descriptors\":[3,4],\"shared\":true}}\n"
            )
        };
        let rows = parse(&line("listen", "[::]:80"), 1, 0).unwrap();
        let [row] = &rows[..] else {
            panic!("one row");
        };
        assert_eq!(row.socket.state, State::Listen);
        assert_eq!(row.socket.local, Some("[::]:80".parse().unwrap()));
        let shown = table(&rows);
        assert!(
            shown.contains("[::]:80") && shown.contains("shared"),
            "{shown}"
        );
        for wrong in [
            line("\\u001b[2J", "[::]:80"),
            line("listen", "\\u001b[2J"),
            line("listen", "[::]:80").replace("version\":1", "version\":2"),
            String::new(),
            "x".to_owned(),
        ] {
            assert!(parse(&wrong, 1, 0).is_err(), "{wrong}");
        }
    }
}
