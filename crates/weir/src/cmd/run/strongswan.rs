//! The SAs of a stage `ipsec` that strongSwan on this host negotiates: VICI says which there are, and its log
//! their keys.

use super::kernel_sas::Said;
use crate::error::CliError;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use weir_chain::ipsec::Reload;
use weir_esp::Config;
use weir_esp::negotiated::Mapper;
use weir_esp::strongswan::{self, Child, Keys, Shunt};
use weir_esp::vici::{self, PACKET_MAX, Packet};
use zeroize::Zeroizing;

/// VICI's socket unless configured, as Debian has it.
pub(super) const VICI: &str = "/run/charon.vici";

/// Interval at which all SAs are asked for, also without an event.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which a log that is a regular file is read on.
const LOG_INTERVAL: Duration = Duration::from_millis(20);

/// Longest wait for an answer of strongSwan.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Longest line of the log, in bytes.
const LINE_MAX: u64 = 4096;

/// Events after which the SAs are asked for.
const EVENTS: [&str; 4] = ["child-updown", "child-rekey", "ike-updown", "ike-update"];

/// strongSwan as the source of a stage's SAs.
pub(super) struct Strongswan {
    pub(super) log: PathBuf,
    pub(super) vici: PathBuf,
    pub(super) mtu: usize,
    pub(super) reload: Reload,
}

/// What strongSwan has.
#[derive(Default, PartialEq, Eq)]
struct Listed {
    children: Vec<Child>,
    shunts: Vec<Shunt>,
}

impl Strongswan {
    /// A configuration without SAs, which are asked for once weir runs; whether the log may be read is checked.
    pub(super) fn read(&self) -> Result<Config, CliError> {
        self.open_log()?;
        let mut config =
            strongswan::config(&mut Mapper::default(), &[], &[], &Keys::default(), self.mtu);
        config.is_negotiated = true;
        Ok(config)
    }

    /// Opens the log: a FIFO so that it never ends, whichever process writes to it.
    fn open_log(&self) -> Result<File, CliError> {
        let name = self.log.display();
        let failed = |error: io::Error| {
            CliError::run(format!(
                "cannot read strongSwan's log {name}: {error}; make it with `mkfifo -m 600 {name}`"
            ))
        };
        let facts = std::fs::metadata(&self.log).map_err(failed)?;
        let mode = facts.mode() & 0o7777;
        if mode & 0o006 != 0 {
            return Err(CliError::refused(format!(
                "{name}: every user may read or change it (mode {mode:04o}), and it has keys: chmod 600 {name}"
            )));
        }
        let is_fifo = facts.file_type().is_fifo();
        File::options()
            .read(true)
            .write(is_fifo)
            .open(&self.log)
            .map_err(failed)
    }

    /// Follows strongSwan on threads, as long as the process lives.
    pub(super) fn watch(self) -> Result<(), CliError> {
        let keys = Arc::new(Mutex::new(Keys::default()));
        let (news, wakes) = sync_channel(1);
        let log = self.open_log()?;
        let of_log = (Arc::clone(&keys), news.clone());
        start("weir-keys", move || read_log(log, &of_log.0, &of_log.1))?;
        let path = self.vici.clone();
        start("weir-vici", move || await_events(&path, &news))?;
        start("weir-sas", move || self.follow(&keys, &wakes))
    }

    fn follow(&self, keys: &Mutex<Keys>, wakes: &Receiver<bool>) {
        let mut mapper = Mapper::default();
        let mut said = Said::default();
        let mut last = None;
        let mut has_key = true;
        loop {
            match list(&self.vici) {
                Ok(listed) => {
                    if has_key || last.as_ref() != Some(&listed) {
                        let keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
                        let Listed { children, shunts } = &listed;
                        let config =
                            strongswan::config(&mut mapper, children, shunts, &keys, self.mtu);
                        drop(keys);
                        config.refused.iter().for_each(|why| said.say(why));
                        self.reload.put(config);
                        last = Some(listed);
                    }
                }
                Err(error) => said.say(&format!(
                    "cannot ask strongSwan at {}: {error}; its earlier SAs stay",
                    self.vici.display()
                )),
            }
            has_key = match wakes.recv_timeout(INTERVAL) {
                Ok(is_key) => is_key,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
        }
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), CliError> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread
        .map(drop)
        .map_err(|error| CliError::run(format!("cannot start a thread: {error}")))
}

/// Reads the log's lines. A file that became shorter is read from its beginning.
fn read_log(log: File, keys: &Mutex<Keys>, news: &SyncSender<bool>) {
    let mut log = BufReader::new(log);
    let mut line = Zeroizing::new(Vec::with_capacity(LINE_MAX as usize + 1));
    loop {
        let read = log
            .by_ref()
            .take(LINE_MAX - line.len() as u64)
            .read_until(b'\n', &mut line);
        let is_whole = line.last() == Some(&b'\n') || line.len() as u64 >= LINE_MAX;
        match read {
            Ok(_) if is_whole => {
                let text = Zeroizing::new(String::from_utf8_lossy(&line).into_owned());
                let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
                let is_key = keys.line(text.trim_end());
                drop(keys);
                line.clear();
                if is_key {
                    // One that waits is enough.
                    let _ = news.send(true);
                }
            }
            Ok(_) => {
                std::thread::sleep(LOG_INTERVAL);
                rewind_if_shorter(&mut log);
            }
            Err(_) => std::thread::sleep(LOG_INTERVAL),
        }
    }
}

fn rewind_if_shorter(log: &mut BufReader<File>) {
    use std::io::Seek;
    let Ok(len) = log.get_ref().metadata().map(|facts| facts.len()) else {
        return;
    };
    if log.stream_position().is_ok_and(|at| at > len) {
        let _ = log.rewind();
    }
}

/// Wakes the follower at each event; connects anew when strongSwan has started anew.
fn await_events(path: &Path, news: &SyncSender<bool>) {
    loop {
        let await_all = || -> io::Result<()> {
            let mut connection = connect(path)?;
            for event in EVENTS {
                send(&mut connection, &vici::register(event))?;
                receive(&mut connection)?;
            }
            connection.set_read_timeout(None)?;
            let _ = news.try_send(false);
            loop {
                receive(&mut connection)?;
                let _ = news.try_send(false);
            }
        };
        let _ = await_all();
        std::thread::sleep(INTERVAL);
    }
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let connection = UnixStream::connect(path)?;
    connection.set_read_timeout(Some(ANSWER_MAX))?;
    connection.set_write_timeout(Some(ANSWER_MAX))?;
    Ok(connection)
}

fn send(connection: &mut UnixStream, packet: &[u8]) -> io::Result<()> {
    connection.write_all(&(packet.len() as u32).to_be_bytes())?;
    connection.write_all(packet)
}

fn receive(connection: &mut UnixStream) -> io::Result<Packet> {
    let mut len = [0; 4];
    connection.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > PACKET_MAX {
        return Err(io::Error::other(format!("a packet of {len} bytes")));
    }
    let mut packet = vec![0; len];
    connection.read_exact(&mut packet)?;
    vici::packet(&packet).ok_or_else(|| io::Error::other("a packet that VICI does not have"))
}

/// Asks for all CHILD_SAs, and for the policies that pass or drop.
fn list(path: &Path) -> io::Result<Listed> {
    let mut connection = connect(path)?;
    let mut listed = Listed::default();
    for event in ["list-sa", "list-policy"] {
        send(&mut connection, &vici::register(event))?;
        receive(&mut connection)?;
    }
    let policies = [("pass", "yes"), ("drop", "yes")];
    for (command, values) in [("list-sas", &[][..]), ("list-policies", &policies)] {
        send(&mut connection, &vici::command(command, values))?;
        loop {
            match receive(&mut connection)? {
                Packet::Event(name, message) if name == "list-sa" => {
                    listed.children.extend(strongswan::children(&message));
                }
                Packet::Event(_, message) => listed.shunts.extend(strongswan::shunt(&message)),
                Packet::Response(_) => break,
                Packet::Confirmed => {}
            }
        }
    }
    Ok(listed)
}
