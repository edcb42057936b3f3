//! A network with a broker that serves user nobody.
#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::common::Folder;
use crate::live::{Net, Running, WAIT_MAX, net, open_folder};
use serde_json::Value;
use std::time::{Duration, Instant};

pub(crate) struct Brokered {
    pub(crate) net: Net,
    pub(crate) socket: String,
    pub(crate) broker: Running,
    pub(crate) folder: Folder,
}

/// `None` without root.
pub(crate) fn brokered(name: &str, policy: &str) -> Option<Brokered> {
    let net = net()?;
    let folder = open_folder(name);
    let config = folder.write("policy.toml", policy.as_bytes());
    let socket = folder.path("socket");
    let broker = net.weir(&["broker", "--config", &config, "--socket", &socket]);
    Some(Brokered {
        broker: broker.until("listens on").until("ready"),
        net,
        socket,
        folder,
    })
}

impl Brokered {
    /// What `weir ports --json` prints: an array.
    pub(crate) fn ports(&self) -> Value {
        let ports = ["ports", "--json", "--socket", &self.socket];
        let ended = self.net.weir(&ports).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.json()
    }

    /// Waits until this many ports are open, and returns them.
    pub(crate) fn until_ports(&self, count: usize) -> Value {
        let start = Instant::now();
        loop {
            let ports = self.ports();
            if ports.as_array().is_some_and(|all| all.len() == count) {
                return ports;
            }
            assert!(start.elapsed() < WAIT_MAX, "{ports}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
