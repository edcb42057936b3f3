//! The registry of ports that processes of the superuser opened without a
//! broker: each such process answers at a socket in a folder that only root can
//! access.
//!
//! ```text
//!  /run/weir/local/
//!  └── 4711-4026531840.sock    of process 4711, for one network namespace
//! ```
//!
//! A process sends its whole list to each connection and closes it. The next
//! process to run removes the sockets of dead ones.

use crate::protocol::{
    Channel, InterfaceStatus, Listener, PortStatus, Response, ServerMessage, decode, encode,
};
use crate::runtime_dir::{ROOT_FOLDER, open_folder};
use rustix::fs::Mode;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time that a process may take to answer; it may be stopped.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// The ports of one process and network namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LocalPorts {
    /// The inode of the network namespace.
    pub namespace: Option<u64>,
    /// The ports.
    pub ports: Vec<PortStatus>,
    /// The interfaces of these ports.
    pub interfaces: Vec<InterfaceStatus>,
}

fn folder() -> PathBuf {
    Path::new(ROOT_FOLDER).join("local")
}

/// Opens the socket at which this process lists its ports; `None` if that
/// fails, and then its ports are not listed.
pub(super) fn announce(namespace: u64) -> Option<Listener> {
    open_folder(Path::new(ROOT_FOLDER)).ok()?;
    let folder = folder();
    match rustix::fs::mkdir(&folder, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(_) => return None,
    }
    sweep();
    let name = format!("{}-{namespace}", std::process::id());
    // Under its name only once it listens: who is refused a connection takes the file away.
    let listener = Listener::bind(&folder.join(name.clone() + ".new")).ok()?;
    listener.renamed(&folder.join(name + ".sock")).ok()
}

/// Sends the list to a connection, on a separate thread, since the peer may not
/// read.
pub(super) fn serve_listing(channel: Channel, all: Vec<Response>) {
    let tell = move || {
        for answer in all {
            let Ok(bytes) = encode(&ServerMessage::Answer { to: 0, answer }) else {
                return;
            };
            if channel.send(&bytes, &[], true).is_err() {
                return;
            }
        }
    };
    // If no thread can be started, the peer gets no list.
    let thread = std::thread::Builder::new().name("weir-status".into());
    let _ = thread.spawn(tell);
}

/// The ports of all processes that opened some without a broker; empty for
/// users other than the superuser.
pub fn in_process() -> Vec<LocalPorts> {
    let listens = |path: &&PathBuf| path.extension().is_some_and(|kind| kind == "sock");
    let sockets = sockets();
    let listed = sockets.iter().filter(listens);
    listed.filter_map(|path| request_listing(path)).collect()
}

/// Removes the sockets of dead processes.
pub(crate) fn sweep() {
    for path in sockets() {
        let name = path.file_name().and_then(|name| name.to_str());
        let pid = name.and_then(|name| name.split('-').next());
        let is_dead = |pid: &str| !Path::new("/proc").join(pid).exists();
        if pid.is_none_or(is_dead) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn sockets() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The namespace in a socket's file name; `None` if the name has another form.
fn namespace_of(path: &Path) -> Option<u64> {
    let (_, namespace) = path.file_stem()?.to_str()?.split_once('-')?;
    namespace.parse().ok()
}

fn request_listing(path: &Path) -> Option<LocalPorts> {
    let channel = match Channel::connect(path) {
        Ok(channel) => channel,
        Err(error) => {
            // Another process now has the pid of the dead one.
            if error.kind() == io::ErrorKind::ConnectionRefused {
                let _ = std::fs::remove_file(path);
            }
            return None;
        }
    };
    channel.wait_at_most(REPLY_TIMEOUT).ok()?;
    let mut all = LocalPorts {
        namespace: namespace_of(path),
        ..LocalPorts::default()
    };
    // Read to the end of the connection.
    while let Ok(Some(message)) = channel.receive(true) {
        match decode(&message.bytes) {
            Ok(ServerMessage::Answer {
                answer: Response::Ports { mut ports, .. },
                ..
            }) => all.ports.append(&mut ports),
            Ok(ServerMessage::Answer {
                answer: Response::Interface(status),
                ..
            }) => all.interfaces.push(status),
            _ => return None,
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use weir_lab::testenv;

    /// A listing that comes while a process is about to listen takes nothing away.
    #[test]
    fn a_listing_leaves_the_socket_of_a_process_that_begins() {
        if !testenv::root() {
            return;
        }
        // Of no network namespace.
        let namespace = 1;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    in_process();
                }
            });
            let announced = (0..5_000).all(|_| announce(namespace).is_some());
            is_over.store(true, Ordering::Relaxed);
            assert!(announced, "a socket is gone");
        });
    }
}
