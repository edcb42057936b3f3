//! A running bridge or router when links, routes and addresses change, when it is asked to end, and
//! after a hang.
//!
//! The reaction times, with more trials and no other load on the machine:
//!
//! ```sh
//! WEIR_TRIALS=20 cargo test --release -p weir --test live_changes soon -- --nocapture --test-threads 1
//! ```

#[path = "../common/mod.rs"]
mod common;
mod hang;
#[path = "../common/live.rs"]
mod live;
mod mtu;
mod soon;
mod stops;
mod units;

use common::Folder;
use live::{Running, WAIT_MAX};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_lab::net::{Host, Lab, Offloads, Process, set_option};
use weir_lab::testenv;

/// A sending host, a router without kernel routing, and two receiving hosts.
///
/// ```text
///  a eth0 ── eth0 r eth1 ── eth0 b   198.51.100.9, 2001:db8:2::9
///                 r eth2 ── eth0 c   198.51.101.9
///  203.0.113.7 is both b's and c's
/// ```
struct Net {
    a: Host,
    r: Host,
    b: Host,
    c: Host,
    folder: Folder,
}

const SHARED: &str = "203.0.113.7";

impl Net {
    fn new(name: &str) -> Option<Net> {
        if !testenv::root() {
            return None;
        }
        let lab = Lab::new();
        let [a, r, b, c] = ["a", "r", "b", "c"].map(|name| lab.host(name).unwrap());
        let takes_redirected = Offloads {
            generic_receive: true,
            ..Offloads::OFF
        };
        let link = |one: &Host, other: &Host| {
            let link = lab.link(one, other).offloads(takes_redirected);
            link.connect().unwrap()
        };
        let (at_a, r0) = link(&a, &r);
        let (r1, at_b) = link(&r, &b);
        let (r2, at_c) = link(&r, &c);
        for (device, address, len) in [
            (&at_a, "192.0.2.9", 24),
            (&at_a, "2001:db8:1::9", 64),
            (&r0, "192.0.2.1", 24),
            (&r0, "2001:db8:1::1", 64),
            (&r1, "198.51.100.1", 24),
            (&r1, "2001:db8:2::1", 64),
            (&at_b, "198.51.100.9", 24),
            (&at_b, "2001:db8:2::9", 64),
            (&at_b, SHARED, 32),
            (&r2, "198.51.101.1", 24),
            (&at_c, "198.51.101.9", 24),
            (&at_c, SHARED, 32),
        ] {
            let address: IpAddr = address.parse().unwrap();
            device.add_address(address, len).unwrap();
        }
        let net = Net {
            a,
            r,
            b,
            c,
            folder: Folder::new(name),
        };
        let mut ip = net.ip(&net.a)?;
        ip.tell("route add default via 192.0.2.1");
        ip.tell("route add ::/0 via 2001:db8:1::1");
        for (host, via) in [(&net.b, "198.51.100.1"), (&net.c, "198.51.101.1")] {
            net.ip(host)?.tell(&format!("route add default via {via}"));
        }
        net.ip(&net.b)?.tell("route add ::/0 via 2001:db8:2::1");
        net.ip(&net.r)?
            .tell(&format!("route add {SHARED} via 198.51.100.9"));
        Some(net)
    }

    /// Starts a router of all three links that uses the kernel's routes.
    fn route(&self, options: &[&str]) -> Running {
        let always = ["route", "eth0", "eth1", "eth2", "--kernel-routes"];
        let arguments = [&always, options].concat();
        Running::start(&self.r, common::weir([]), &arguments).until("ready")
    }

    /// `ip -batch` in a host, which runs each line as it is written.
    fn ip(&self, host: &Host) -> Option<Ip> {
        let mut command = testenv::program("ip")?;
        command.args(["-force", "-batch", "-"]);
        command.stdin(Stdio::piped()).stderr(Stdio::inherit());
        Some(Ip(host.spawn(command).unwrap()))
    }

    /// A socket of a host that receives at an address.
    fn hears(&self, host: &Host, address: &str, port: u16) -> UdpSocket {
        let at = SocketAddr::new(address.parse().unwrap(), port);
        let socket = host.run(|| UdpSocket::bind(at)).unwrap();
        socket.set_read_timeout(Some(HEARS)).unwrap();
        socket
    }

    /// A socket of `a` that sends to an address with a fixed source port.
    fn sends(&self, to: &str, port: u16) -> UdpSocket {
        let to: IpAddr = to.parse().unwrap();
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = self.a.run(|| {
            let socket = UdpSocket::bind(any)?;
            socket.connect((to, port)).map(|()| socket)
        });
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(HEARS)).unwrap();
        // IP_RECVERR and IPV6_RECVERR: report all ICMP errors.
        let (level, name) = if to.is_ipv4() { (0, 11) } else { (41, 25) };
        set_option(&socket, level, name, 1).unwrap();
        socket
    }
}

/// Time limit for a datagram that arrives at once, if at all.
const HEARS: Duration = Duration::from_millis(150);

/// A running `ip -batch`: see [`Net::ip`].
struct Ip(Process);

impl Ip {
    fn tell(&mut self, line: &str) {
        let stdin = self.0.child_mut().stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

impl Drop for Ip {
    /// Ends it after all lines were run.
    fn drop(&mut self) {
        self.0.child_mut().stdin = None;
        let _ = self.0.wait(WAIT_MAX);
    }
}

/// Whether a datagram with exactly these bytes arrives within [`HEARS`]; others are skipped.
fn comes(socket: &UdpSocket, expected: &[u8]) -> bool {
    let mut buffer = vec![0; 65_536];
    let until = std::time::Instant::now() + HEARS;
    while std::time::Instant::now() < until {
        match socket.recv(&mut buffer) {
            Ok(len) if buffer[..len] == *expected => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

/// The background load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    Idle,
    /// 50 datagrams per second.
    Slow,
    /// As many datagrams as one thread can send.
    Full,
}

const LOADS: [Load; 3] = [Load::Idle, Load::Slow, Load::Full];

/// Sends until dropped.
struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    fn of(load: Load, socket: UdpSocket) -> Background {
        let stop = Arc::new(AtomicBool::new(load == Load::Idle));
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                // A refused datagram was sent all the same.
                let _ = socket.send(&[0; 30]);
                if load == Load::Slow {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Background {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
