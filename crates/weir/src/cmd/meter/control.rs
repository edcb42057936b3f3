//! The control socket: sessions by lines of JSON, each answered when its event is durable.
//!
//! ```text
//!  {"do":"up","id":"7","subscriber":"alice","keys":["192.0.2.1"]}     {"ok":true,"number":12}
//!  {"do":"down","id":"7"}                                             {"ok":true,"number":13}
//!  {"do":"get","id":"7"}                                              {"ok":true,"session":{…}}
//! ```

use super::rows::Table;
use crate::error::CliError;
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use weir_meter::sessions::KEYS_MAX;
use weir_meter::{Key, SessionEvent, SessionEventKind, SessionInfo, SessionSource};

/// Programs that are connected at a time.
const CLIENTS_MAX: usize = 64;
/// The longest request, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Answers that a program has not read, in bytes: it is disconnected then.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// Requests of one program that become durable together: the next one may be of the same session.
const REQUESTS_AT_ONCE: usize = 1;
/// Bytes of a session's identifier, and of a subscriber's name.
const NAME_BYTES_MAX: usize = 256;

/// A request.
#[derive(Deserialize, Debug)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// A session begins, or changes: its keys are these from now on.
    Up {
        id: String,
        subscriber: String,
        keys: Vec<String>,
        /// The name of a policy of the configuration.
        #[serde(default)]
        policy: Option<String>,
    },
    /// A session ends.
    Down { id: String },
    /// The properties of a session.
    Get { id: String },
}

/// An answer.
#[derive(Serialize, Debug)]
struct Answer {
    ok: bool,
    /// The event's place in the log of sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Answer {
    fn error(why: impl Into<String>) -> Answer {
        Answer {
            ok: false,
            number: None,
            session: None,
            error: Some(why.into()),
        }
    }
}

/// The socket and the programs that are connected.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    /// Device and inode of the socket: another process may have put its own there.
    made: (u64, u64),
    listener: UnixListener,
    clients: Vec<Client>,
    serial: u64,
    /// Answers that wait: client, and what to say; the place of the request's event in the batch, if
    /// it has one.
    waiting: Vec<(u64, Option<usize>, Answer)>,
}

#[derive(Debug)]
struct Client {
    serial: u64,
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// No further request comes: it ends when its answers are sent.
    is_closing: bool,
    has_ended: bool,
}

impl Control {
    /// Makes the socket, which its owner alone can use. One that a killed process has left is
    /// replaced.
    pub(super) fn bind(path: &Path) -> Result<Control, CliError> {
        let failed =
            |error: io::Error| CliError::run(format!("control socket {}: {error}", path.display()));
        if let Ok(there) = fs::symlink_metadata(path) {
            let is_left = there.file_type().is_socket() && UnixStream::connect(path).is_err();
            if !is_left {
                return Err(CliError::run(format!(
                    "control socket {}: it is in use: name another path",
                    path.display()
                )));
            }
            fs::remove_file(path).map_err(failed)?;
        }
        // For its owner alone from the first moment: made under another name, then renamed.
        let mut hidden = path.as_os_str().to_owned();
        hidden.push(format!(".{}", std::process::id()));
        let hidden = PathBuf::from(hidden);
        let _ = fs::remove_file(&hidden);
        let listener = UnixListener::bind(&hidden).map_err(failed)?;
        let ready = fs::set_permissions(&hidden, Permissions::from_mode(0o600))
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| fs::rename(&hidden, path))
            .and_then(|()| fs::symlink_metadata(path));
        let made = ready.inspect_err(|_| drop(fs::remove_file(&hidden)));
        let made = made.map_err(failed)?;
        Ok(Control {
            path: path.to_owned(),
            made: (made.dev(), made.ino()),
            listener,
            clients: Vec::new(),
            serial: 0,
            waiting: Vec::new(),
        })
    }

    /// Adds the descriptors to wait for.
    pub(super) fn fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.clients.len() < CLIENTS_MAX {
            fds.push(PollFd::from_borrowed_fd(
                self.listener.as_fd(),
                PollFlags::IN,
            ));
        }
        for client in &self.clients {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, !client.is_closing);
            flags.set(PollFlags::OUT, !client.output.is_empty());
            fds.push(PollFd::from_borrowed_fd(client.stream.as_fd(), flags));
        }
    }

    /// Whether there are requests that have arrived and were not taken yet.
    pub(super) fn has_more(&self) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|client| client.input.contains(&b'\n'))
    }

    /// Takes the requests that are there, and adds their events to the batch, in order.
    pub(super) fn receive(&mut self, batch: &mut Vec<SessionEvent>, now_ns: i64, table: &Table) {
        while self.clients.len() < CLIENTS_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                self.serial += 1;
                self.clients.push(Client {
                    serial: self.serial,
                    stream,
                    input: Vec::new(),
                    output: Vec::new(),
                    is_closing: false,
                    has_ended: false,
                });
            }
        }
        let waiting = &mut self.waiting;
        for client in &mut self.clients {
            client.flush();
            let lines = client.lines();
            for line in lines {
                let (event, answer) = answer_of(&line, now_ns, table);
                let at = event.map(|event| {
                    batch.push(event);
                    batch.len() - 1
                });
                waiting.push((client.serial, at, answer));
            }
        }
        self.clients.retain(|client| !client.has_ended);
    }

    /// Answers the requests whose events are durable, with these numbers; `refused` names the events
    /// that were not applied.
    pub(super) fn answer(&mut self, batch: &[SessionEvent], refused: &[(usize, String)]) {
        for (serial, at, mut answer) in self.waiting.drain(..) {
            if let Some(at) = at {
                answer.number = Some(batch[at].number);
                let why = refused.iter().find(|(place, _)| *place == at);
                if let Some((_, why)) = why {
                    answer = Answer::error(why.clone());
                }
            }
            let client = self.clients.iter_mut().find(|it| it.serial == serial);
            if let Some(client) = client {
                let json = serde_json::to_string(&answer).expect("an answer is JSON");
                client.output.extend_from_slice(json.as_bytes());
                client.output.push(b'\n');
                client.flush();
            }
        }
        self.clients.retain(|client| {
            let is_done = client.is_closing && client.output.is_empty();
            !client.has_ended && (!is_done || client.input.contains(&b'\n'))
        });
    }

    /// The events cannot be made durable now.
    pub(super) fn not_durable(&mut self, why: &str) {
        for (_, at, answer) in &mut self.waiting {
            if at.take().is_some() {
                let why =
                    format!("not durable yet: {why}: it is tried again, and may be sent again");
                *answer = Answer::error(why);
            }
        }
        self.answer(&[], &[]);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let there = fs::symlink_metadata(&self.path);
        if there.is_ok_and(|it| (it.dev(), it.ino()) == self.made) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Client {
    /// The requests that have arrived whole.
    fn lines(&mut self) -> Vec<Vec<u8>> {
        let mut piece = [0; 16 << 10];
        // The rest is read when these are answered.
        while !self.is_closing && !self.input.contains(&b'\n') && self.input.len() <= LINE_BYTES_MAX
        {
            match self.stream.read(&mut piece) {
                Ok(0) => self.is_closing = true,
                Ok(length) => self.input.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.has_ended = true;
                    break;
                }
            }
        }
        let mut lines = Vec::new();
        while lines.len() < REQUESTS_AT_ONCE
            && let Some(end) = self.input.iter().position(|byte| *byte == b'\n')
        {
            let rest = self.input.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.input, rest);
            line.truncate(end);
            if !line.trim_ascii().is_empty() {
                lines.push(line);
            }
        }
        if self.input.len() > LINE_BYTES_MAX && !self.input.contains(&b'\n') {
            let why = format!("a request is longer than {LINE_BYTES_MAX} bytes");
            let json = serde_json::to_string(&Answer::error(why)).expect("an answer is JSON");
            let _ = self.stream.write_all(format!("{json}\n").as_bytes());
            self.has_ended = true;
        }
        lines
    }

    fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(length) => drop(self.output.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.has_ended = true;
                    break;
                }
            }
        }
        self.has_ended |= self.output.len() > UNREAD_BYTES_MAX;
    }
}

/// The event of a request, and its answer.
fn answer_of(line: &[u8], now_ns: i64, table: &Table) -> (Option<SessionEvent>, Answer) {
    let request = match serde_json::from_slice::<Request>(line) {
        Ok(request) => request,
        Err(error) => return (None, Answer::error(format!("no request: {error}"))),
    };
    let done = Answer {
        ok: true,
        number: None,
        session: None,
        error: None,
    };
    match kind_of(request, table) {
        Ok(Wanted::Event(kind)) => {
            let event = SessionEvent {
                number: 0,
                received_unix_ns: now_ns,
                happened_unix_ns: None,
                source: SessionSource::Control,
                lost: None,
                kind,
            };
            (Some(event), done)
        }
        Ok(Wanted::Session(info)) => {
            let session = Some(info);
            (None, Answer { session, ..done })
        }
        Err(why) => (None, Answer::error(why)),
    }
}

enum Wanted {
    Event(SessionEventKind),
    Session(SessionInfo),
}

fn kind_of(request: Request, table: &Table) -> Result<Wanted, String> {
    let known = |id: &str| {
        let unknown = || format!("`{}`: no session of this identifier runs", short(id));
        let found = table.rows.running_session(id);
        // Sessions of other sources are named as records name them.
        let found = found.or_else(|| table.rows.running_session(&format!("control/{id}")));
        found.cloned().ok_or_else(unknown)
    };
    match request {
        Request::Up {
            id,
            subscriber,
            keys,
            policy,
        } => {
            if let Some(policy) = policy.as_ref().filter(|it| !table.rows.has_policy(it)) {
                return Err(format!(
                    "policy `{}`: there is no such [policy]",
                    short(policy)
                ));
            }
            name("id", &id)?;
            name("subscriber", &subscriber)?;
            if keys.len() > KEYS_MAX {
                return Err(format!("{} keys: at most {KEYS_MAX}", keys.len()));
            }
            let keys = keys.iter().map(|text| {
                let key: Key = text.parse().map_err(|error| format!("{error}"))?;
                if table.rows.looks_up(key.kind()) {
                    return Ok(key);
                }
                let kind = key.kind().name();
                Err(format!(
                    "{key} is never looked up: add \"{kind}\" to `keys`"
                ))
            });
            Ok(Wanted::Event(SessionEventKind::Up(SessionInfo {
                id: format!("control/{id}"),
                subscriber,
                keys: keys.collect::<Result<_, String>>()?,
                policy,
                ..SessionInfo::default()
            })))
        }
        Request::Down { id } => Ok(Wanted::Event(SessionEventKind::Down(known(&id)?))),
        Request::Get { id } => Ok(Wanted::Session(known(&id)?)),
    }
}

fn name(key: &str, text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.contains(char::is_control) {
        return Err(format!(
            "{key} `{}`: give 1 to {NAME_BYTES_MAX} bytes, none a control character",
            short(text)
        ));
    }
    Ok(())
}

/// The beginning of a text.
fn short(text: &str) -> String {
    text.chars().take(64).collect()
}
