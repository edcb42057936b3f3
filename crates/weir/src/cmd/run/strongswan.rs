//! The SAs of a stage `ipsec` that strongSwan on this host negotiates: VICI says which there are, and its log
//! their keys.

use super::kernel_sas::Said;
use crate::error::CliError;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_chain::ipsec::Reload;
use weir_esp::Config;
use weir_esp::negotiated::Mapper;
use weir_esp::strongswan::{self, Child, Keys, Shunt};
use weir_esp::vici::{self, PACKET_MAX, Packet};
use zeroize::{Zeroize, Zeroizing};

/// VICI's socket unless configured, as Debian has it.
pub(super) const VICI: &str = "/run/charon.vici";

/// Interval at which all SAs are asked for, also without an event.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which a log that is a regular file is read on.
const LOG_INTERVAL: Duration = Duration::from_millis(20);

/// Longest wait for an answer of strongSwan.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Time for which SAs stay in use while strongSwan does not answer.
const UNANSWERED_MAX: Duration = Duration::from_secs(600);

/// Longest line of the log, in bytes.
const LINE_MAX: usize = 4096;

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

/// The keys that the log has said, and whether there is one that was not looked at.
#[derive(Default)]
struct LogKeys {
    keys: Mutex<Keys>,
    is_new: AtomicBool,
}

impl LogKeys {
    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Strongswan {
    /// A configuration without SAs, which are asked for once weir runs; whether the log may be read is checked.
    pub(super) fn read(&self) -> Result<Config, CliError> {
        self.open_log()?;
        Ok(self.empty(&mut Mapper::default()))
    }

    /// A configuration without SAs, which drops all.
    fn empty(&self, mapper: &mut Mapper) -> Config {
        strongswan::config(mapper, &[], &[], &Keys::default(), self.mtu)
    }

    /// Opens the log: a FIFO so that it never ends, whichever process writes to it, and a regular file at its
    /// end: an earlier weir may have used the keys before, and their sequence numbers must not begin anew.
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
        let mut log = File::options()
            .read(true)
            .write(is_fifo)
            .open(&self.log)
            .map_err(failed)?;
        if facts.is_file() {
            log.seek(SeekFrom::End(0)).map_err(failed)?;
        }
        Ok(log)
    }

    /// Follows strongSwan on threads, as long as the process lives.
    pub(super) fn watch(self) -> Result<(), CliError> {
        let keys = Arc::new(LogKeys::default());
        let (news, wakes) = sync_channel(1);
        let log = self.open_log()?;
        let of_log = (Arc::clone(&keys), news.clone());
        start("weir-keys", move || read_log(log, &of_log.0, &of_log.1))?;
        let path = self.vici.clone();
        start("weir-vici", move || await_events(&path, &news))?;
        start("weir-sas", move || self.follow(&keys, &wakes))
    }

    fn follow(&self, log: &LogKeys, wakes: &Receiver<()>) {
        let mut mapper = Mapper::default();
        let mut said = Said::default();
        let mut last = None;
        let mut answered = Instant::now();
        loop {
            match list(&self.vici) {
                Ok(listed) => {
                    answered = Instant::now();
                    let has_key = log.is_new.swap(false, Ordering::AcqRel);
                    if has_key || last.as_ref() != Some(&listed) {
                        let Listed { children, shunts } = &listed;
                        // The log's reader does not wait while policies are compiled.
                        let keys = log.lock().listed(children);
                        let config =
                            strongswan::config(&mut mapper, children, shunts, &keys, self.mtu);
                        config.refused.iter().for_each(|why| said.say(why));
                        self.reload.put(config);
                        last = Some(listed);
                    }
                }
                Err(error) => {
                    let vici = self.vici.display();
                    let minutes = UNANSWERED_MAX.as_secs() / 60;
                    said.say(&format!(
                        "cannot ask strongSwan at {vici}: {error}; its earlier SAs stay for {minutes} minutes"
                    ));
                    if answered.elapsed() >= UNANSWERED_MAX && last.take().is_some() {
                        said.say(&format!(
                            "cannot ask strongSwan at {vici} for {minutes} minutes: its SAs end, and all is dropped"
                        ));
                        self.reload.put(self.empty(&mut mapper));
                    }
                }
            }
            if wakes.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
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
fn read_log(mut log: File, keys: &LogKeys, news: &SyncSender<()>) {
    let mut buffer = Zeroizing::new(vec![0; LINE_MAX]);
    let mut len = 0;
    loop {
        match log.read(&mut buffer[len..]) {
            Ok(more) if more > 0 => len += more,
            _ => {
                std::thread::sleep(LOG_INTERVAL);
                if rewind_if_shorter(&mut log) {
                    len = 0;
                }
                continue;
            }
        }
        let mut at = 0;
        while let Some(end) = buffer[at..len].iter().position(|byte| *byte == b'\n') {
            read_line(&buffer[at..at + end], keys, news);
            at += end + 1;
        }
        if at == 0 && len == LINE_MAX {
            read_line(&buffer, keys, news);
            at = len;
        }
        buffer.copy_within(at..len, 0);
        // No key stays here until the next line comes.
        buffer[len - at..len].zeroize();
        len -= at;
    }
}

fn read_line(line: &[u8], keys: &LogKeys, news: &SyncSender<()>) {
    let text = Zeroizing::new(String::from_utf8_lossy(line).into_owned());
    let is_key = keys.lock().line(text.trim_end());
    if is_key {
        keys.is_new.store(true, Ordering::Release);
        // One that waits is enough; strongSwan waits for this reader.
        let _ = news.try_send(());
    }
}

/// Returns whether it did.
fn rewind_if_shorter(log: &mut File) -> bool {
    let len = log.metadata().map(|facts| facts.len());
    let at = log.stream_position();
    matches!((at, len), (Ok(at), Ok(len)) if at > len) && log.rewind().is_ok()
}

/// Wakes the follower at each event; connects anew when strongSwan has started anew.
fn await_events(path: &Path, news: &SyncSender<()>) {
    loop {
        let await_all = || -> io::Result<()> {
            let mut connection = connect(path)?;
            for event in EVENTS {
                send(&mut connection, &vici::register(event))?;
                receive(&mut connection)?;
            }
            connection.set_read_timeout(None)?;
            let _ = news.try_send(());
            loop {
                receive(&mut connection)?;
                let _ = news.try_send(());
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

/// Asks for all CHILD_SAs, and for the policies that pass, drop or wait for a CHILD_SA.
fn list(path: &Path) -> io::Result<Listed> {
    let mut connection = connect(path)?;
    let mut listed = Listed::default();
    for event in ["list-sa", "list-policy"] {
        send(&mut connection, &vici::register(event))?;
        receive(&mut connection)?;
    }
    let policies = [("pass", "yes"), ("drop", "yes"), ("trap", "yes")];
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const LOG: &str = "\
10[ENC] parsed IKE_AUTH request 1 [ SA TSi TSr ]
10[CHD] encryption initiator key => 20 bytes @ 0x7f5980005820
10[CHD]    0: D6 81 40 18 A7 66 4E 0B DB 29 8C A8 BA E3 EC D2  ..@..fN..)......
10[CHD]   16: FD B6 70 18                                      ..p.
10[CHD] adding inbound ESP SA
10[CHD]   SPI 0xb129729f, src 192.0.2.1 dst 192.0.2.2
";

    /// Waits until the log has said a key; returns whether it has within a time.
    fn has_key(keys: &LogKeys, within: Duration) -> bool {
        let began = Instant::now();
        let dst = "192.0.2.2".parse().unwrap();
        while keys.lock().key(0xb129_729f, dst).is_none() {
            if began.elapsed() > within {
                return false;
            }
            std::thread::sleep(LOG_INTERVAL);
        }
        true
    }

    /// Keys that an earlier weir may have used do not count; and those that come do, although no follower takes
    /// the news of them.
    #[test]
    fn a_log_is_read_from_its_end_and_without_waiting() {
        let path = std::env::temp_dir().join(format!("weir-keys-{}", std::process::id()));
        std::fs::write(&path, LOG).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let source = Strongswan {
            log: path.clone(),
            vici: PathBuf::new(),
            mtu: 1500,
            reload: Reload::default(),
        };
        let log = source.open_log().unwrap();
        let keys = Arc::new(LogKeys::default());
        let (news, wakes) = sync_channel(1);
        let reader = Arc::clone(&keys);
        start("test-keys", move || read_log(log, &reader, &news)).unwrap();
        assert!(!has_key(&keys, LOG_INTERVAL * 5));
        let mut more = File::options().append(true).open(&path).unwrap();
        let other = LOG.replace("b129729f", "b1297290");
        let long = "x".repeat(3 * LINE_MAX) + "\n";
        let text = [&*other, &other, &long, LOG].concat();
        let (first, rest) = text.split_at(130);
        more.write_all(first.as_bytes()).unwrap();
        std::thread::sleep(LOG_INTERVAL * 2);
        more.write_all(rest.as_bytes()).unwrap();
        assert!(has_key(&keys, Duration::from_secs(20)));
        assert!(keys.is_new.load(Ordering::Acquire) && wakes.try_recv().is_ok());
        std::fs::remove_file(&path).unwrap();
    }
}
