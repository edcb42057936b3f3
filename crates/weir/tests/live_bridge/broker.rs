//! A broker on the same machine, with ports on a link of the bridge and on
//! another: whichever process dies, in whatever order, the links stay joined.

use crate::common::{Folder, weir};
use crate::live::{Running, open_folder};
use crate::{Cleaned, Net, net};
use std::net::UdpSocket;
use weir_lab::net::{Host, Lab, Signal, unprivileged};

const POLICY: &str = r#"
[[grant]]
users = [65534]
interfaces = ["left", "third"]
ports_max = 2
memory_max = "4 MiB"
take = true
"#;

/// A third link of the bridge's host, for the broker.
struct Beside<'a> {
    net: &'a Net,
    /// The host at the other end of the third link.
    c: Host,
    folder: Folder,
}

impl Beside<'_> {
    fn new<'a>(net: &'a Net, name: &str) -> Beside<'a> {
        let lab = Lab::new();
        let c = lab.host("c").unwrap();
        let link = lab.link(&c, &net.middle).names("eth0", "third");
        let link = link.addresses([10, 10, 0, 1], [10, 10, 0, 2], 24);
        link.neighbours().connect().unwrap();
        let folder = open_folder(name);
        folder.write("policy.toml", POLICY.as_bytes());
        Beside { net, c, folder }
    }

    fn broker(&self, options: &[&str]) -> Running {
        let [socket, keep] = ["socket", "keep"].map(|name| self.folder.path(name));
        let own = ["broker", "--socket", &socket, "--keep", &keep];
        Running::start(&self.net.middle, weir([]), &[&own, options].concat())
    }

    fn start(&self) -> Running {
        self.broker(&["--config", &self.folder.path("policy.toml")])
    }

    /// A port of an unprivileged user.
    fn listen(&self, arguments: &[&str]) -> Running {
        let socket = self.folder.path("socket");
        let own = ["listen", "--socket", &socket, "--json"];
        let command = unprivileged::command(env!("CARGO_BIN_EXE_weir"));
        Running::start(&self.net.middle, command, &[&own, arguments].concat())
    }

    /// Sends datagrams on the third link.
    fn send(&self, count: usize) {
        let socket = self.c.run(|| UdpSocket::bind("10.10.0.1:0")).unwrap();
        for _ in 0..count {
            socket.send_to(b"third", "10.10.0.2:5001").unwrap();
        }
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        self.broker(&["--clean"]).end();
    }
}

fn kill(running: Running) {
    running.signal(Signal::KILL);
    assert_eq!(running.end().code, None);
}

fn either_process_may_die_first(name: &str, broker_is_first: bool) {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    let beside = Beside::new(&net, name);
    let bypass = ["--bypass", "wire", "--hang-ms", "10000"];
    let broker = beside.start().until("ready");
    // One port is opened before the bridge starts, the other afterwards.
    let on_left = beside.listen(&["left"]).until("weir: port");
    let bridge = net.bridge(&bypass).until("ready");
    let taking = ["third", "udp dst port 5001", "--take", "--count", "30"];
    let on_third = beside.listen(&taking).until("which takes");
    assert!(net.pings());
    beside.send(10);
    if broker_is_first {
        kill(broker);
        assert!(net.pings(), "the bridge goes on");
        kill(bridge);
    } else {
        kill(bridge);
        assert!(net.pings(), "joined in the kernel");
        kill(broker);
    }
    assert!(net.pings(), "joined in the kernel");
    assert_eq!(net.attached(), [true, true]);
    beside.send(10);
    // Each successor takes over its own state, and leaves the other's.
    let broker = beside.start().until("that go on: 2; removed: 0");
    let broker = broker.until("ready");
    assert!(net.pings(), "joined in the kernel");
    let bridge = net.bridge(&bypass).until("ready");
    assert!(net.pings());
    beside.send(10);
    let ended = on_third.end();
    assert_eq!(ended.json()["frames"], 30, "{ended:?}");
    kill(bridge);
    kill(on_left);
    broker.signal(Signal::TERM);
    assert_eq!(broker.end().code, Some(0));
    let cleaned = beside.broker(&["--clean"]).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert!(net.pings(), "joined in the kernel");
    assert_eq!(net.clean().code, Some(0));
    assert_eq!(net.attached(), [false, false]);
}

#[test]
fn it_survives_the_death_of_the_broker() {
    either_process_may_die_first("bridge-broker-first", true);
}

#[test]
fn the_wire_survives_the_death_of_the_broker() {
    either_process_may_die_first("bridge-broker-last", false);
}
