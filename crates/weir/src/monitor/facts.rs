//! The system's facts beside the frames: weir's ports, and the process of each socket.
//!
//! A thread looks, so that a slow broker or a long `/proc` delays no frame.

use crate::cmd::ports::Sources;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use weir_broker::protocol::PortStatus;
use weir_monitor::Flow;
use weir_monitor::sockets::{Socket, Sockets, parse};

/// Interval of looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Largest number of processes that are looked at.
const PROCESSES_MAX: usize = 32_768;

/// A process that has sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    /// Its name in `/proc/PID/comm`.
    pub(crate) name: String,
    pub(crate) uid: u32,
}

/// The system's facts at one time.
pub(crate) struct Facts {
    /// The open ports, or why they are not known.
    pub(crate) ports: Result<Vec<PortStatus>, String>,
    sockets: Sockets,
    owners: HashMap<u64, Arc<Owner>>,
    own: HashSet<IpAddr>,
    /// Whether the sockets of other users' processes could be looked at.
    pub(crate) sees_all: bool,
}

impl Facts {
    /// Looks at the system.
    pub(crate) fn look(socket: Option<&Path>) -> Facts {
        let ports = Sources::of(socket).and_then(|mut sources| sources.snapshot());
        let mut sockets: Vec<Socket> = Vec::new();
        for (file, protocol) in [("tcp", 6), ("tcp6", 6), ("udp", 17), ("udp6", 17)] {
            // The thread's own network namespace.
            let text = fs::read_to_string(format!("/proc/thread-self/net/{file}"));
            sockets.extend(parse(&text.unwrap_or_default(), protocol));
        }
        let own = own_addresses(&sockets);
        let uids: HashMap<u64, u32> = sockets.iter().map(|one| (one.inode, one.uid)).collect();
        let (owners, sees_all) = owners(&uids);
        Facts {
            ports: ports
                .map(|snapshot| snapshot.ports.into_iter().map(|(_, port)| port).collect())
                .map_err(|error| error.to_string()),
            sockets: Sockets::new(sockets),
            owners,
            own,
            sees_all,
        }
    }

    /// The process of a conversation, if it is this host's.
    pub(crate) fn owner(&self, flow: &Flow) -> Option<Arc<Owner>> {
        let is_own = |address: &IpAddr| self.own.contains(address);
        let socket = self.sockets.of(flow, is_own)?;
        self.owners.get(&socket.inode).cloned()
    }
}

/// This host's addresses: of its interfaces, and of its sockets.
fn own_addresses(sockets: &[Socket]) -> HashSet<IpAddr> {
    let local = sockets.iter().map(|socket| socket.local.0);
    let local = local.filter(|address| !address.is_unspecified());
    let interfaces = weir_link::net::interfaces().unwrap_or_default();
    let interfaces = interfaces.iter().flat_map(|interface| &interface.addresses);
    local.chain(interfaces.map(|address| address.ip)).collect()
}

/// The processes of the sockets with these numbers; and whether no process was closed to this one.
fn owners(uids: &HashMap<u64, u32>) -> (HashMap<u64, Arc<Owner>>, bool) {
    let mut found = HashMap::new();
    let mut sees_all = true;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.take(PROCESSES_MAX) {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let Ok(descriptors) = fs::read_dir(folder.join("fd")) else {
            // A process may have ended meanwhile.
            sees_all &= !folder.exists();
            continue;
        };
        let mut owner: Option<Arc<Owner>> = None;
        for descriptor in descriptors.flatten() {
            let Ok(target) = fs::read_link(descriptor.path()) else {
                continue;
            };
            let target = target.to_string_lossy();
            let inode = target
                .strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']'));
            let Some(inode) = inode.and_then(|inode| inode.parse::<u64>().ok()) else {
                continue;
            };
            let Some(uid) = uids.get(&inode) else {
                continue;
            };
            let owner = owner.get_or_insert_with(|| {
                let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
                Arc::new(Owner {
                    pid,
                    name: name.trim_end().to_owned(),
                    uid: *uid,
                })
            });
            found.entry(inode).or_insert_with(|| Arc::clone(owner));
        }
    }
    (found, sees_all)
}

/// The thread that looks once a second; it ends when this is dropped.
pub(crate) struct Watcher {
    facts: Receiver<Arc<Facts>>,
    _end: Sender<()>,
}

impl Watcher {
    /// Starts to look. `None` if no thread can be started: then nothing is known.
    pub(crate) fn start(socket: Option<&Path>) -> Option<Watcher> {
        let socket = socket.map(Path::to_owned);
        let (end, ended) = channel();
        let (put, facts) = sync_channel(1);
        let look = move || {
            loop {
                let began = Instant::now();
                if put.send(Arc::new(Facts::look(socket.as_deref()))).is_err() {
                    return;
                }
                // A look that takes long is repeated less often.
                let pause = INTERVAL.max(began.elapsed() * 10);
                if !matches!(ended.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("facts".to_owned());
        thread.spawn(look).ok()?;
        Some(Watcher { facts, _end: end })
    }

    /// The newest facts, if there are new ones.
    pub(crate) fn fresh(&self) -> Option<Arc<Facts>> {
        self.facts.try_iter().last()
    }
}
