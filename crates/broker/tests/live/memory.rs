//! The memory of rings is the broker's: charged to its control group, and held
//! within the limit of that.

use crate::net::net;
use crate::process::Folder;
use std::io;
use std::path::{Path, PathBuf};
use weir_broker::{Bytes, Port, PortError};
use weir_lab::net::unprivileged;
use weir_lab::testenv;

const POLICY: &str = "[[grant]]\nusers = ['*']\ninterfaces = ['*']\nports_max = 8\n\
                      memory_max = '256 MiB'\n";

/// A control group of its own, of either version, removed when it is dropped.
struct Group {
    path: PathBuf,
    used: &'static str,
    most: &'static str,
}

impl Group {
    fn new() -> io::Result<Group> {
        let name = format!("weir-broker-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let unified = std::fs::read_to_string(root.join("cgroup.subtree_control"));
        let has_memory = |names: String| names.split_whitespace().any(|name| name == "memory");
        let (path, used, most) = if unified.is_ok_and(has_memory) {
            (root.join(name), "memory.current", "memory.max")
        } else {
            (
                root.join("memory").join(name),
                "memory.usage_in_bytes",
                "memory.limit_in_bytes",
            )
        };
        std::fs::create_dir(&path)?;
        let group = Group { path, used, most };
        group.used()?;
        Ok(group)
    }

    fn admit(&self, process: u32) {
        std::fs::write(self.path.join("cgroup.procs"), process.to_string()).unwrap();
    }

    fn used(&self) -> io::Result<u64> {
        let text = std::fs::read_to_string(self.path.join(self.used))?;
        text.trim().parse().map_err(io::Error::other)
    }

    fn limit(&self, bytes: u64) {
        std::fs::write(self.path.join(self.most), bytes.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Not while the kernel is about the end of its last process.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn rings_are_charged_to_the_brokers_group_and_its_limit_refuses_one() {
    const RING: u64 = 16 << 20;
    let Some(net) = net() else { return };
    let Some(group) = testenv::kernel("a control group of memory", Group::new()) else {
        return;
    };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, POLICY);
    group.admit(broker.process.id());
    let open = || {
        unprivileged::run(|| {
            let port = Port::on(net.eth_b.name()).broker(&folder.socket);
            port.filter("udp").unwrap().queue(Bytes(RING)).open()
        })
    };
    let before = group.used().unwrap();
    let mut port = open().unwrap();
    let with_one = group.used().unwrap();
    assert!(with_one >= before + RING, "{before} {with_one}");
    group.limit(with_one + RING / 2);
    let refusal = open().unwrap_err();
    assert!(matches!(refusal, PortError::Refused(_)), "{refusal:?}");
    // The broker lives, and the port that it has goes on.
    assert_eq!(port.counters().unwrap().lost, 0);
    group.limit(with_one + 2 * RING);
    let second = open().unwrap();
    drop((port, second));
    broker.end();
}
