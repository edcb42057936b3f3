//! Brokers and programs in processes of their own, to be killed.
//!
//! Each is this test's executable again, with its role in the environment.

use crate::net::Net;
use rustix::process::Signal;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use weir_broker::daemon::Daemon;
use weir_broker::engine::kernel::KernelBackend;
use weir_broker::policy::{Accounts, Policy};
use weir_broker::protocol::Listener;
use weir_broker::runtime_dir::RuntimeDir;
use weir_broker::{Port, Timeout};
use weir_lab::command::Command;
use weir_lab::net::Process;
use weir_lab::net::unprivileged::{self, Capabilities};
use weir_link::bpf::{self, Map, ObjectKind, PinFolder};
use weir_link::live::Privileged;

/// What this process is to be; nothing, if it is the test itself.
#[test]
fn role() {
    match std::env::var("WEIR_TEST_ROLE").as_deref() {
        Ok("broker") => broker(),
        Ok("reader") => reader(),
        Ok("sender") => crate::sends::sender(),
        Ok("knocker") => crate::peer::knocker(),
        Ok("hostile") => crate::hostile::hostile(),
        _ => {}
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).expect("whoever starts this process says so")
}

pub(crate) fn say(line: &str) {
    println!("\n{line}");
    std::io::stdout().flush().unwrap();
}

/// A broker, until its input ends.
fn broker() {
    let accounts = Accounts::parse(&variable("WEIR_PASSWD"), &variable("WEIR_GROUP"));
    let policy = Policy::parse(&variable("WEIR_POLICY"), &accounts).unwrap();
    // Before any thread is started.
    let privileged = match rustix::process::geteuid().as_raw() {
        0 => Privileged::here(),
        _ => Privileged::separate_beside(1).unwrap(),
    };
    let keep = RuntimeDir::open(Path::new(&variable("WEIR_KEEP"))).unwrap();
    let fabric = KernelBackend::open().unwrap().pinned(&keep);
    let fabric = fabric.with_privileged(privileged);
    let listener = Listener::bind(Path::new(&variable("WEIR_SOCKET"))).unwrap();
    let mut daemon = Daemon::new(listener, fabric, policy, accounts).unwrap();
    let adopted = daemon.persist_in(keep).unwrap();
    say(&format!("ready {} {}", adopted.ports, adopted.swept));
    daemon.run(std::io::stdin().as_fd()).unwrap();
}

/// A program that reads a port for ever, and says how many frames it got.
fn reader() {
    let port = Port::on(&variable("WEIR_INTERFACE")).broker(Path::new(&variable("WEIR_SOCKET")));
    let mut port = port.filter(&variable("WEIR_FILTER")).unwrap().take(true);
    if let Ok(fanout) = std::env::var("WEIR_FANOUT") {
        port = port.fanout(fanout.parse().unwrap());
    }
    let mut port = port.open().unwrap();
    say("ready");
    let (mut count, mut told) = (0, 0);
    loop {
        let got = port.recv_batch(Timeout::after(Duration::from_secs(1)));
        count += got.unwrap().len();
        if count > told {
            told = count;
            say(&format!("got {count}"));
        }
    }
}

/// A process, and what it says.
pub(crate) struct Role {
    pub(crate) process: Process,
    lines: Receiver<String>,
    count: usize,
    input: Option<std::process::ChildStdin>,
}

impl Role {
    pub(crate) fn start(net: &Net, role: &str, user: Option<u32>, set: &[(&str, &str)]) -> Role {
        let mut command = Command::itself();
        if let Some(uid) = user {
            // Which clears every capability.
            command.uid(uid).gid(uid);
        }
        Role::start_by(net, role, command, set)
    }

    fn start_by(net: &Net, role: &str, mut command: Command, set: &[(&str, &str)]) -> Role {
        command
            .args([
                "process::role",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("WEIR_TEST_ROLE", role)
            .envs(set.iter().copied())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = net.b.spawn(command).unwrap();
        let output = process.child_mut().stdout.take().unwrap();
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.for_each(|line| drop(tell.send(line)));
        });
        Role {
            lines,
            count: 0,
            input: process.child_mut().stdin.take(),
            process,
        }
    }

    /// The rest of the next line that begins so.
    pub(crate) fn hear(&mut self, word: &str) -> String {
        let heard = self.try_hear(word);
        heard.unwrap_or_else(|| panic!("it does not say `{word}`"))
    }

    /// The same, if it comes within some seconds.
    pub(crate) fn try_hear(&mut self, word: &str) -> Option<String> {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(10)).ok()?;
            if let Some(rest) = line.strip_prefix(word) {
                return Some(rest.trim().to_owned());
            }
        }
    }

    /// How many frames a reader has got: waits for the expected number, and then until
    /// nothing more comes for a while.
    pub(crate) fn count(&mut self, expected: usize) -> usize {
        loop {
            let time = if self.count < expected {
                Duration::from_secs(10)
            } else {
                Duration::from_millis(200)
            };
            let Ok(line) = self.lines.recv_timeout(time) else {
                return self.count;
            };
            if let Some(count) = line.strip_prefix("got ") {
                self.count = count.parse().unwrap();
            }
        }
    }

    /// Stops it, as `kill -STOP`.
    pub(crate) fn stop(&self) {
        self.process.signal(Signal::STOP).unwrap();
    }

    pub(crate) fn kill(self) {
        drop(self.process);
    }

    /// Has it end by itself.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        let ended = self.process.wait(Duration::from_secs(5)).unwrap();
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
}

/// A folder for a broker; everything in it goes with this.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) socket: PathBuf,
    /// The user of the brokers.
    pub(crate) user: u32,
}

/// The first user of brokers that are not root's. Each folder has its own: what a
/// user's processes may lock of the memory is counted together.
const BROKER: u32 = 60_000;

thread_local! {
    static AS_USER: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test with brokers of unprivileged users instead of root's.
pub(crate) fn as_user(test: fn()) {
    AS_USER.set(true);
    test();
    AS_USER.set(false);
}

/// What such a broker is started with.
const CAPABILITIES: Capabilities = Capabilities::BPF
    .union(Capabilities::NET_ADMIN)
    .union(Capabilities::NET_RAW)
    .union(Capabilities::SYS_ADMIN);

impl Folder {
    pub(crate) fn new(net: &Net) -> Folder {
        if AS_USER.get() {
            return Folder::of_user(net);
        }
        let path = std::env::temp_dir().join(name(net, "keep"));
        Folder {
            socket: path.with_extension("sock"),
            path,
            user: 0,
        }
    }

    fn of_user(net: &Net) -> Folder {
        static USERS: AtomicU32 = AtomicU32::new(BROKER);
        let user = USERS.fetch_add(1, Ordering::Relaxed);
        // No other user can change what this path means, as in a folder for all.
        let path = Path::new("/run").join(name(net, "user"));
        RuntimeDir::prepare(&path, user, user).unwrap();
        Folder {
            socket: path.join("socket"),
            path,
            user,
        }
    }

    /// A broker, and what it says it took over and swept.
    pub(crate) fn broker(&self, net: &Net, policy: &str) -> (Role, String) {
        self.broker_with(net, policy, ["", ""])
    }

    /// The same, on a machine with these files of users and of groups.
    pub(crate) fn broker_with(
        &self,
        net: &Net,
        policy: &str,
        [passwd, group]: [&str; 2],
    ) -> (Role, String) {
        let set = [
            ("WEIR_SOCKET", self.socket.to_str().unwrap()),
            ("WEIR_KEEP", self.path.to_str().unwrap()),
            ("WEIR_POLICY", policy),
            ("WEIR_PASSWD", passwd),
            ("WEIR_GROUP", group),
        ];
        let mut role = match self.user {
            0 => Role::start(net, "broker", None, &set),
            user => {
                let itself = std::env::current_exe().unwrap();
                let command = unprivileged::command_with(itself, user, CAPABILITIES);
                Role::start_by(net, "broker", command, &set)
            }
        };
        let said = role.hear("ready");
        (role, said)
    }

    /// A user's program that takes the frames of a filter.
    pub(crate) fn reader(&self, net: &Net, uid: u32, filter: &str) -> Role {
        let mut role = self.reader_at_once(net, uid, filter);
        role.hear("ready");
        role
    }

    /// The same, as a member of a fan-out group.
    pub(crate) fn member(&self, net: &Net, uid: u32, filter: &str, group: &str) -> Role {
        let set = [
            ("WEIR_SOCKET", self.socket.to_str().unwrap()),
            ("WEIR_INTERFACE", net.eth_b.name()),
            ("WEIR_FILTER", filter),
            ("WEIR_FANOUT", group),
        ];
        let mut role = Role::start(net, "reader", Some(uid), &set);
        role.hear("ready");
        role
    }

    /// The same, not waiting until it does.
    pub(crate) fn reader_at_once(&self, net: &Net, uid: u32, filter: &str) -> Role {
        let set = [
            ("WEIR_SOCKET", self.socket.to_str().unwrap()),
            ("WEIR_INTERFACE", net.eth_b.name()),
            ("WEIR_FILTER", filter),
        ];
        Role::start(net, "reader", Some(uid), &set)
    }

    /// The kernel's numbers of everything that a broker has there.
    pub(crate) fn objects(&self, broker: &Role) -> Objects {
        let mut objects = Objects::default();
        objects.of_process(broker.process.id());
        let root = PinFolder::open_of(&self.path.join("bpf"), self.user).unwrap();
        for folder in root.list().unwrap().1 {
            let folder = root.folder(&folder).unwrap();
            for pin in folder.list().unwrap().0 {
                if let Some(slots) = pin.ends_with("-slots").then(|| folder.get(&pin).unwrap()) {
                    let slots = Map::from_fd(slots.unwrap()).unwrap();
                    let id = slots.lookup(&[0; 4]).unwrap();
                    let id = id.map(|id| u32::from_ne_bytes(id.try_into().unwrap()));
                    objects.0.extend(id.map(|id| (0, id)));
                }
            }
        }
        objects
    }
}

fn name(net: &Net, kind: &str) -> String {
    let name = format!("weir-{kind}-{}-{}", std::process::id(), net.eth_b.index());
    let thread = std::thread::current().id();
    format!("{name}-{thread:?}").replace(['(', ')'], "")
}

impl Drop for Folder {
    fn drop(&mut self) {
        let cleaned = RuntimeDir::clean(&self.path);
        let _ = std::fs::remove_file(&self.socket);
        let mut special = self.socket.clone().into_os_string();
        special.push(".root");
        let _ = std::fs::remove_file(special);
        let removed = std::fs::remove_dir(&self.path);
        if !std::thread::panicking() {
            cleaned.unwrap();
            removed.expect("nothing is left");
        }
    }
}

/// Objects of the kernel: kind (program, map, attachment) and number.
#[derive(Clone, Default, Debug)]
pub(crate) struct Objects(BTreeSet<(usize, u32)>);

const KINDS: [(&str, ObjectKind); 3] = [
    ("prog_id:", ObjectKind::Program),
    ("map_id:", ObjectKind::Map),
    ("link_id:", ObjectKind::Attachment),
];

impl Objects {
    /// Adds those that a process has descriptors of.
    fn of_process(&mut self, pid: u32) {
        for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
            for line in text.lines() {
                for (kind, (name, _)) in KINDS.iter().enumerate() {
                    if let Some(id) = line.strip_prefix(name) {
                        self.0.insert((kind, id.trim().parse().unwrap()));
                    }
                }
            }
        }
    }

    pub(crate) fn add(&mut self, other: Objects) {
        self.0.extend(other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Waits until none is left.
    pub(crate) fn assert_gone(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            // By their numbers alone. Who opens a program array and closes it
            // while the kernel is about to empty it makes the kernel forget a
            // reference, and it stays for good (`prog_array_map_clear` of
            // Linux 6.18 counts one for work that is queued already).
            let there = KINDS.map(|(_, kind)| bpf::ids(kind).unwrap());
            let is_there = |(kind, id): &&(usize, u32)| there[*kind].contains(id);
            let left: Vec<_> = self.0.iter().filter(is_there).collect();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left in the kernel: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
