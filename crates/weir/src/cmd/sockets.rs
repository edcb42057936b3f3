//! `weir sockets`: the sockets of programs that `weir exec` runs.

use crate::error::CliError;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Show the sockets of programs that weir exec runs
///
/// Shows the TCP and UDP sockets of the hosts in those programs, which ss(8) does not list: those of
/// one's own user, and for the superuser those of all users.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
States are those of RFC 9293. The process that is shown owns the socket; `shared by` is followed by
the processes that have a descriptor of a socket that several may use, as far as /proc shows them to
you. Queues are bytes that no call has read, and bytes that the peer has not acknowledged; they are
unknown for datagrams and listeners.

All processes of a user have 2 s together, 16 MiB and 65536 sockets. One that does not answer, as
one that is stopped, has a row that says so, and a message says why.

Exit status: 0, also if a process did not answer; 1 if the list cannot be written.")]
pub(crate) struct Args {
    /// Print one line of JSON, an array: pid, uid, command, protocol, local, peer, state,
    /// receive_queue, send_queue, descriptors, shared, processes; null where there is no value; of a
    /// process that did not answer pid, uid, command and error
    #[arg(long)]
    json: bool,
}

/// Names of one user's folders that are looked at. All limits are of a user: an answer costs its
/// sender as good as nothing.
const NAMES_MAX: usize = 4096;
/// Processes that are asked at the same time.
const ASKED_MAX: usize = 128;
/// Longest answers of a user's processes, in bytes.
const ANSWERS_MAX: usize = 16 << 20;
/// Sockets of a user's processes.
const ROWS_MAX: usize = 65_536;
/// Longest time for a user's processes.
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
    /// The Unix socket by which processes use a shared one.
    #[serde(default, skip_serializing)]
    inode: Option<u64>,
}

/// A socket and its process.
#[derive(Serialize)]
struct Row {
    pid: i32,
    uid: u32,
    command: Option<String>,
    #[serde(flatten)]
    socket: Socket,
    /// The processes that have a descriptor of it.
    processes: Vec<i32>,
}

/// A process that gave no answer, or an unusable one, and why.
#[derive(Serialize)]
struct Silent {
    pid: i32,
    uid: u32,
    command: Option<String>,
    error: String,
}

/// An element of the list.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Socket(&'a Row),
    Silent(&'a Silent),
}

/// Processes without an answer that have a message each.
const MESSAGES_MAX: usize = 10;
/// Longest message of why a process gave no answer, in characters: it may have the answer's words.
const WHY_MAX: usize = 200;
/// Users who are asked at the same time.
const USERS_MAX: usize = 32;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let own = rustix::process::geteuid().as_raw();
    let mut rows = Vec::new();
    let mut silent = Vec::new();
    for mut user in ask_all(users(own).into_iter().collect()) {
        rows.append(&mut user.rows);
        silent.append(&mut user.silent);
    }
    rows.sort_by_key(|row| (row.pid, row.socket.local, row.socket.peer));
    find_processes(&mut rows);
    let text = if args.json {
        let sockets = rows.iter().map(Entry::Socket);
        let all: Vec<Entry<'_>> = sockets.chain(silent.iter().map(Entry::Silent)).collect();
        serde_json::to_string(&all).map_err(CliError::run)?
    } else {
        table(&rows, &silent)
    };
    writeln!(std::io::stdout(), "{text}").map_err(CliError::output)?;
    for one in silent.iter().take(MESSAGES_MAX) {
        let why = format::escaped(one.error.clone());
        let (pid, uid) = (one.pid, one.uid);
        eprintln!("weir: process {pid} of user {uid} gave no answer: {why}");
    }
    if let Some(more @ 1..) = silent.len().checked_sub(MESSAGES_MAX) {
        eprintln!("weir: {more} more processes gave no answer");
    }
    Ok(())
}

/// Asks the processes of all users: those of one do not keep the others' from being asked.
fn ask_all(users: Vec<(u32, [PathBuf; 2])>) -> Vec<User> {
    let mut all = Vec::new();
    for users in users.chunks(USERS_MAX) {
        let ask = |(uid, folders): &(u32, [PathBuf; 2])| {
            let mut user = User::new(*uid);
            for folder in folders {
                user.ask_folder(folder);
            }
            user
        };
        std::thread::scope(|scope| {
            let begin = |user| Builder::new().spawn_scoped(scope, move || ask(user));
            let asked: Vec<_> = users.iter().map(|user| (user, begin(user))).collect();
            for (user, thread) in asked {
                // Without a thread, one after the other.
                all.push(match thread.map(ScopedJoinHandle::join) {
                    Ok(Ok(asked)) => asked,
                    Ok(Err(panic)) => std::panic::resume_unwind(panic),
                    Err(_) => ask(user),
                });
            }
        });
    }
    all
}

/// Finds the processes that have a descriptor of each shared socket, among those whose descriptors /proc
/// shows to this user. A socket that is not shared has its own process.
fn find_processes(rows: &mut [Row]) {
    let mut by_inode: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
    by_inode.extend(
        rows.iter()
            .filter_map(|row| Some((row.socket.inode?, Vec::new()))),
    );
    if !by_inode.is_empty() {
        for pid in names("/proc").filter_map(|name| name.parse::<i32>().ok()) {
            for inode in sockets_of(pid) {
                if let Some(pids) = by_inode.get_mut(&inode)
                    && !pids.contains(&pid)
                {
                    pids.push(pid);
                }
            }
        }
    }
    for row in rows {
        row.processes = match row.socket.inode.and_then(|inode| by_inode.get(&inode)) {
            Some(pids) => pids.clone(),
            None if row.socket.shared => Vec::new(),
            None => vec![row.pid],
        };
        row.processes.sort_unstable();
    }
}

/// The inodes of the sockets that a process has descriptors of.
fn sockets_of(pid: i32) -> impl Iterator<Item = u64> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
    entries.flatten().flatten().filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let number = target
            .to_str()?
            .strip_prefix("socket:[")?
            .strip_suffix(']')?;
        number.parse().ok()
    })
}

fn table(rows: &[Row], silent: &[Silent]) -> String {
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
    let none = || "-".to_owned();
    let sockets = rows.iter().map(|row| {
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
            used(row),
        ]
    });
    let silent = silent.iter().map(|one| {
        let mut row = vec![none(); columns.len()];
        row[6] = one.pid.to_string();
        row[7] = one.command.clone().unwrap_or_else(none);
        row[8] = "no answer".to_owned();
        row
    });
    format::table(&columns, sockets.chain(silent))
}

/// The processes that use a socket.
fn used(row: &Row) -> String {
    let pids: Vec<String> = row.processes.iter().map(i32::to_string).collect();
    if !row.socket.shared {
        "own".to_owned()
    } else if pids.is_empty() {
        "shared".to_owned()
    } else {
        format!("shared by {}", pids.join(", "))
    }
}

/// The users that are asked, with their folders.
fn users(own: u32) -> BTreeMap<u32, [PathBuf; 2]> {
    let mut all = vec![own];
    if own == 0 {
        all.extend(names("/run/user").filter_map(|name| name.parse::<u32>().ok()));
        all.extend(names("/tmp").filter_map(|name| {
            let uid: u32 = name.strip_prefix("weir-exec-")?.parse().ok()?;
            // Any user can make folders of any name there.
            let about = std::fs::symlink_metadata(Path::new("/tmp").join(&name));
            about.is_ok_and(|about| about.uid() == uid).then_some(uid)
        }));
    }
    let folders = |uid| (uid, weir_socket::status_folders(uid));
    all.into_iter().map(folders).collect()
}

fn names(folder: &str) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// A user whose processes are asked, and what is left for them.
struct User {
    uid: u32,
    deadline: Instant,
    names_left: usize,
    bytes_left: usize,
    /// Processes that have been asked.
    pids: BTreeSet<i32>,
    rows: Vec<Row>,
    /// Processes that gave no answer.
    silent: Vec<Silent>,
}

/// A process that has been asked.
struct Asked {
    pid: i32,
    stream: UnixStream,
    answer: Vec<u8>,
}

impl User {
    fn new(uid: u32) -> User {
        User {
            uid,
            deadline: Instant::now() + WAIT_MAX,
            names_left: NAMES_MAX,
            bytes_left: ANSWERS_MAX,
            pids: BTreeSet::new(),
            rows: Vec::new(),
            silent: Vec::new(),
        }
    }

    /// Asks the processes of a folder, if another user cannot have made it.
    fn ask_folder(&mut self, path: &Path) {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::open(path, flags, Mode::empty()) else {
            return;
        };
        let is_private = rustix::fs::fstat(&folder).is_ok_and(|about| {
            about.st_uid == self.uid
                && about.st_mode & 0o077 == 0
                && FileType::from_raw_mode(about.st_mode) == FileType::Directory
        });
        let entries = Dir::read_from(&folder).ok().filter(|_| is_private);
        let names = entries.into_iter().flatten().flatten().filter_map(|entry| {
            let name = entry.file_name().to_str().ok()?;
            name.parse::<u32>().ok().map(|_| name.to_owned())
        });
        let names: Vec<String> = names.take(self.names_left).collect();
        self.names_left -= names.len();
        for names in names.chunks(ASKED_MAX) {
            let mut asked = Vec::new();
            for name in names {
                match connect(&folder, name, self.uid) {
                    // It may have a name in each folder.
                    Ok(Some(process)) if self.pids.insert(process.pid) => asked.push(process),
                    Ok(_) => {}
                    // Whose name it is, is not known: in a container another process has the number.
                    Err(error) => self.note_silent(name.parse().unwrap_or(0), None, &error),
                }
            }
            self.read(asked);
        }
    }

    fn has_no_answer(&mut self, pid: i32, why: &impl Display) {
        self.note_silent(pid, command(pid), why);
    }

    fn note_silent(&mut self, pid: i32, command: Option<String>, why: &impl Display) {
        self.silent.push(Silent {
            pid,
            uid: self.uid,
            command,
            error: why.to_string().chars().take(WHY_MAX).collect(),
        });
    }

    /// Reads the answers, as long as there is time.
    fn read(&mut self, mut asked: Vec<Asked>) {
        while !asked.is_empty() {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "no answer within 2 s";
                asked.iter().for_each(|it| self.has_no_answer(it.pid, &why));
                return;
            }
            let streams = asked.iter().map(|it| &it.stream);
            let mut ready: Vec<_> = streams.map(|it| PollFd::new(it, PollFlags::IN)).collect();
            // A signal ends the wait.
            let _ = poll(
                &mut ready,
                Some(&Timespec::try_from(left).unwrap_or_default()),
            );
            let ready: Vec<bool> = ready.iter().map(|it| !it.revents().is_empty()).collect();
            let mut waiting = Vec::new();
            for (mut process, is_ready) in asked.into_iter().zip(ready) {
                let ended = if is_ready {
                    self.part(&mut process)
                } else {
                    Ok(false)
                };
                let done = match ended {
                    Ok(false) => {
                        waiting.push(process);
                        continue;
                    }
                    Ok(true) => self.take(&process),
                    Err(why) => Err(why),
                };
                if let Err(why) = done {
                    self.has_no_answer(process.pid, &why);
                }
            }
            asked = waiting;
        }
    }

    /// Reads what a process has sent; returns whether the answer has ended.
    fn part(&mut self, process: &mut Asked) -> Result<bool, String> {
        let mut part = [0; 16 << 10];
        match process.stream.read(&mut part) {
            Ok(0) => Ok(true),
            Ok(count) => {
                let left = self.bytes_left.checked_sub(count);
                self.bytes_left = left.ok_or_else(|| {
                    format!(
                        "the answers of user {} are longer than {ANSWERS_MAX} bytes",
                        self.uid
                    )
                })?;
                process.answer.extend_from_slice(&part[..count]);
                Ok(false)
            }
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes the sockets of a whole answer.
    fn take(&mut self, process: &Asked) -> Result<(), String> {
        let text = str::from_utf8(&process.answer).map_err(|_| "the answer is not text")?;
        let mut rows = parse(text, process.pid, self.uid)?;
        if self.rows.len() + rows.len() > ROWS_MAX {
            let uid = self.uid;
            return Err(format!("user {uid} has more than {ROWS_MAX} sockets"));
        }
        self.rows.append(&mut rows);
        Ok(())
    }
}

/// Connects to the process behind a name in its user's folder. `None` if there is no process: if it
/// has ended, or if the name leads to something else, to which a user must not lead root.
fn connect(folder: &OwnedFd, name: &str, uid: u32) -> rustix::io::Result<Option<Asked>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        file => file?,
    };
    let mode = rustix::fs::fstat(&file)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::Socket {
        return Ok(None);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // This file, whatever has the name by now.
    let at = SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    match rustix::net::connect(&socket, &at) {
        Err(Errno::CONNREFUSED) => {
            // The process was killed, and has left the name.
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
            return Ok(None);
        }
        connected => connected?,
    }
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    let pid = peer.pid.as_raw_nonzero().get();
    // One answer of a process: it has other names by links.
    let is_process = peer.uid.as_raw() == uid && own_pid(pid) == name;
    Ok(is_process.then(|| Asked {
        pid,
        stream: socket.into(),
        answer: Vec::new(),
    }))
}

/// The number of a process in its own PID namespace, by which it names its socket.
fn own_pid(pid: i32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own = numbers.and_then(|numbers| numbers.split_whitespace().last());
    own.map_or_else(|| pid.to_string(), str::to_owned)
}

/// The name of a process.
fn command(pid: i32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    name.map(|name| name.trim_end().to_owned())
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
    let command = command(pid);
    let row = |line: &str| {
        let socket = serde_json::from_str(line).map_err(|error| error.to_string())?;
        Ok(Row {
            pid,
            uid,
            command: command.clone(),
            socket,
            processes: Vec::new(),
        })
    };
    lines.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

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

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// The name of this process.
    fn name() -> String {
        std::process::id().to_string()
    }

    /// A process of this user, asked.
    fn asked(made: &Made) -> User {
        let mut user = User::new(own());
        user.ask_folder(&made.0);
        user
    }

    const LINE: &str = "{\"protocol\":\"tcp\",\"local\":null,\"peer\":null,\"state\":\"listen\",\
                        \"receive_queue\":null,\"send_queue\":null,\"descriptors\":[],\"shared\":true}\n";

    /// Answers each client with one socket.
    fn serve(listener: UnixListener) {
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let _ = write!(client, "{{\"version\":1,\"pid\":7}}\n{LINE}");
            }
        });
    }

    #[test]
    fn folders_that_others_can_change_are_left_alone() {
        for (folder, mode, count) in [("private", 0o700, 1), ("open", 0o777, 0)] {
            let made = Made::new(folder, mode);
            serve(UnixListener::bind(made.0.join(name())).unwrap());
            std::fs::write(made.0.join("name"), "").unwrap();
            std::fs::write(made.0.join("7"), "").unwrap();
            assert_eq!(asked(&made).rows.len(), count, "{folder}");
            let mut other = User::new(own() + 1);
            other.ask_folder(&made.0);
            assert_eq!(other.rows.len(), 0);
            let link = made.0.with_extension("link");
            std::os::unix::fs::symlink(&made.0, &link).unwrap();
            let mut by_link = User::new(own());
            by_link.ask_folder(&link);
            assert_eq!(by_link.rows.len(), 0);
            std::fs::remove_file(link).unwrap();
        }
    }

    /// To root, and to a user: a name leads to nothing but the user's process of this number.
    #[test]
    fn names_lead_to_no_other_process() {
        let made = Made::new("elsewhere", 0o700);
        let elsewhere = Made::new("real", 0o700);
        let socket = elsewhere.0.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let symlink = made.0.join(name());
        std::os::unix::fs::symlink(&socket, &symlink).unwrap();
        let user = asked(&made);
        assert!(user.rows.is_empty() && user.silent.is_empty());
        listener.set_nonblocking(true).unwrap();
        let came = listener.accept().map_err(|error| error.kind());
        assert_eq!(
            came.err(),
            Some(ErrorKind::WouldBlock),
            "root was led there"
        );
        // Another number, and another user.
        std::fs::remove_file(symlink).unwrap();
        std::fs::hard_link(&socket, made.0.join("7")).unwrap();
        let user = asked(&made);
        assert!(user.rows.is_empty() && user.silent.is_empty());
        std::fs::rename(made.0.join("7"), made.0.join(name())).unwrap();
        let folder = rustix::fs::open(&made.0, OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(connect(&folder, &name(), own() + 1).unwrap().is_none());
        assert!(connect(&folder, &name(), own()).unwrap().is_some());
    }

    #[test]
    fn one_process_with_many_names_is_asked_once() {
        let made = Made::new("links", 0o700);
        let first = made.0.join(name());
        let listener = UnixListener::bind(&first).unwrap();
        for number in 0..300 {
            std::fs::hard_link(&first, made.0.join(format!("{}", 5_000_000 + number))).unwrap();
        }
        serve(listener);
        let mut user = asked(&made);
        // By another folder, too.
        user.ask_folder(&made.0);
        assert_eq!(
            (user.rows.len(), user.silent.len()),
            (1, 0),
            "{:?}",
            user.silent.iter().map(|one| &one.error).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_users_processes_together_have_one_limit_of_time_bytes_and_sockets() {
        let connected = || {
            let (stream, process) = UnixStream::pair().unwrap();
            stream.set_nonblocking(true).unwrap();
            let (pid, answer) = (1, Vec::new());
            let asked = Asked {
                pid,
                stream,
                answer,
            };
            (asked, process)
        };
        // Those that are silent do not keep others from being heard, and wait together.
        let mut user = User::new(0);
        user.deadline = Instant::now() + Duration::from_millis(300);
        let began = Instant::now();
        let (mut all, mut ends): (Vec<_>, Vec<_>) = (0..100).map(|_| connected()).unzip();
        write!(ends[99], "{{\"version\":1,\"pid\":7}}\n{LINE}").unwrap();
        ends.pop();
        let more = all.split_off(50);
        user.read(more);
        user.read(all);
        assert_eq!((user.rows.len(), user.silent.len()), (1, 99));
        assert!(began.elapsed() < WAIT_MAX, "{:?}", began.elapsed());
        drop(ends);
        let mut user = User::new(0);
        let full = format!("{{\"version\":1}}\n{}", LINE.repeat(ROWS_MAX));
        user.rows = parse(&full, 1, 0).unwrap();
        for (bytes, why) in [(100, "longer than"), (1000, "more than")] {
            user.bytes_left = bytes;
            user.deadline = Instant::now() + WAIT_MAX;
            let (asked, mut process) = connected();
            write!(process, "{{\"version\":1}}\n{LINE}").unwrap();
            drop(process);
            user.read(vec![asked]);
            let said = user.silent.pop().unwrap();
            assert!(said.error.contains(why), "{}", said.error);
        }
    }

    #[test]
    fn killed_processes_leave_no_name() {
        let made = Made::new("killed", 0o700);
        drop(UnixListener::bind(made.0.join(name())).unwrap());
        let user = asked(&made);
        assert!(user.rows.is_empty() && user.silent.is_empty());
        assert_eq!(std::fs::read_dir(&made.0).unwrap().count(), 0);
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
        let shown = table(&rows, &[]);
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
