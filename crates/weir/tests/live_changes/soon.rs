//! Reaction times of the router to changes.
//!
//! After each change one probe is sent after a delay; it shows whether the
//! change has taken effect by then. Probes do not help each other: there is one
//! for each change.

use super::{Background, HEARS, Ip, LOADS, Load, Net, SHARED, comes};
use std::net::UdpSocket;
use std::time::Duration;

/// Delays of the probe after the change.
const DELAYS_MS: [u64; 6] = [1, 2, 5, 10, 20, 40];

/// Probes this late allow for other load on the machine; the bound is 5 ms.
const LATE_MS: u64 = 20;

/// Pause after a change.
const SETTLED: Duration = Duration::from_millis(60);

/// Number of trials of each delay: `WEIR_TRIALS`, or 2.
fn trials() -> usize {
    let given = std::env::var("WEIR_TRIALS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Trials of one delay whose probe may be lost, at most: under full load a queue
/// may have no room for it.
const LOST_MAX: usize = 20;

/// Makes a change and reverts it, alternately. `change` writes the commands for
/// ip(8), and `holds` checks the result of a probe; `None` if the probe was lost,
/// which says nothing of the change.
fn measure(
    what: &str,
    ip: &mut Ip,
    change: impl Fn(bool) -> String,
    mut holds: impl FnMut(bool) -> Option<bool>,
) {
    let mut is_made = false;
    let (mut late, mut late_wrong) = (0, 0);
    let mut shares = Vec::new();
    for delay_ms in DELAYS_MS {
        let (mut right, mut done, mut lost) = (0, 0, 0);
        while done < trials() {
            is_made = !is_made;
            ip.tell(&change(is_made));
            std::thread::sleep(Duration::from_millis(delay_ms));
            let held = holds(is_made);
            std::thread::sleep(SETTLED);
            let Some(is_right) = held else {
                lost += 1;
                assert!(lost <= LOST_MAX, "{what}: {lost} probes are lost");
                continue;
            };
            done += 1;
            right += usize::from(is_right);
            late += usize::from(delay_ms >= LATE_MS);
            late_wrong += usize::from(delay_ms >= LATE_MS && !is_right);
        }
        shares.push(format!("{delay_ms} ms {right}/{done}, {lost} lost"));
    }
    println!("{what}: {}", shares.join(", "));
    assert!(
        late_wrong * 4 <= late,
        "{what}: of {late} probes {LATE_MS} ms after a change and later {late_wrong} found it undone"
    );
}

/// An address that two hosts have; a probe shows which receives.
struct Shared {
    probe: UdpSocket,
    b: UdpSocket,
    c: UdpSocket,
    number: u64,
    /// The receivers of the background load.
    _others: [UdpSocket; 2],
}

impl Shared {
    fn new(net: &Net) -> Shared {
        Shared {
            probe: net.sends(SHARED, 7),
            b: net.hears(&net.b, SHARED, 7),
            c: net.hears(&net.c, SHARED, 7),
            number: 0,
            _others: [&net.b, &net.c].map(|host| net.hears(host, SHARED, 9)),
        }
    }

    /// Whether `c` receives it and `b` does not, or the reverse; `None` if neither does.
    fn goes_to(&mut self, c: bool) -> Option<bool> {
        self.number += 1;
        let bytes = self.number.to_be_bytes();
        self.probe.send(&bytes).unwrap();
        let [right, wrong] = if c {
            [&self.c, &self.b]
        } else {
            [&self.b, &self.c]
        };
        if comes(right, &bytes) {
            Some(true)
        } else {
            comes(wrong, &bytes).then_some(false)
        }
    }

    /// Waits until both are reached, so that their neighbour entries exist.
    fn until_both(&mut self, ip: &mut Ip) {
        for c in [true, false] {
            ip.tell(&via(c));
            let reached = (0..100).any(|_| self.goes_to(c) == Some(true));
            assert!(reached, "nothing comes");
        }
    }
}

fn via(c: bool) -> String {
    let via = if c { "198.51.101.9" } else { "198.51.100.9" };
    format!("route replace {SHARED} via {via}")
}

fn routes(name: &str, fast: &str) {
    let Some(net) = Net::new(name) else { return };
    let Some(mut ip) = net.ip(&net.r) else { return };
    let weir = net.route(&["--hang-ms", "2000", "--flow-cache", fast]);
    let mut shared = Shared::new(&net);
    shared.until_both(&mut ip);
    for load in LOADS {
        let _background = Background::of(load, net.sends(SHARED, 9));
        let what = format!("route, {load:?}, --flow-cache {fast}");
        measure(&what, &mut ip, via, |c| shared.goes_to(c));
    }
    weir.stop();
}

#[test]
fn routes_are_learned_soon() {
    routes("soon-routes", "off");
}

#[test]
fn what_the_kernel_remembers_follows_routes_soon() {
    routes("soon-fast", "on");
}

/// Packets that fit a link's MTU and packets that do not, of both IP versions.
#[test]
fn mtus_are_followed_soon() {
    let Some(net) = Net::new("soon-mtu") else {
        return;
    };
    let Some(mut ip) = net.ip(&net.r) else { return };
    let weir = net.route(&["--hang-ms", "2000"]);
    let mut number = 0_u64;
    let families = ["198.51.100.9", "2001:db8:2::9"].map(|to| {
        let probe = net.sends(to, 7);
        super::mtu::never_fragments(&probe);
        (probe, net.hears(&net.b, to, 7))
    });
    let _other = net.hears(&net.b, "198.51.100.9", 9);
    for (probe, hears) in &families {
        let reached = (0..100).any(|_| {
            probe.send(&[1]).unwrap();
            comes(hears, &[1])
        });
        assert!(reached, "nothing comes");
    }
    for load in [Load::Idle, Load::Slow] {
        let _background = Background::of(load, net.sends("198.51.100.9", 9));
        let change = |low: bool| format!("link set eth1 mtu {}", if low { 1400 } else { 1500 });
        measure(&format!("MTU, {load:?}"), &mut ip, change, |low| {
            let holds = {
                number += 1;
                // Both changes for each IP version, alternately.
                let (probe, hears) = &families[number as usize / 2 % 2];
                let mut bytes = vec![0; 1420];
                bytes[..8].copy_from_slice(&number.to_be_bytes());
                // An earlier error.
                let _ = probe.take_error();
                let _ = probe.send(&bytes);
                if low {
                    // Fragmentation Needed, or Packet Too Big.

                    let refused = probe
                        .recv(&mut [0; 8])
                        .map_err(|error| error.raw_os_error());
                    refused == Err(Some(90)) // EMSGSIZE
                } else {
                    comes(hears, &bytes)
                }
            };
            Some(holds)
        });
    }
    weir.stop();
}

/// Whether the router answers for an address.
#[test]
fn addresses_are_followed_soon() {
    let Some(net) = Net::new("soon-addresses") else {
        return;
    };
    let Some(mut ip) = net.ip(&net.r) else { return };
    let weir = net.route(&["--hang-ms", "2000"]);
    let _other = net.hears(&net.b, "198.51.100.9", 9);
    let mut asks = net.ip(&net.a).unwrap();
    for load in [Load::Idle, Load::Slow] {
        let _background = Background::of(load, net.sends("198.51.100.9", 9));
        let change = |there: bool| {
            let what = if there { "add" } else { "del" };
            format!("addr {what} 192.0.2.77/24 dev eth0")
        };
        measure(&format!("address, {load:?}"), &mut ip, change, |there| {
            let holds = {
                // ARP resolves each time; the router refuses UDP to itself. Earlier
                // errors belong to another socket.
                let probe = net.sends("192.0.2.77", 7);
                let _ = probe.send(&[1]);
                let refused = probe
                    .recv(&mut [0; 8])
                    .map_err(|error| error.raw_os_error());
                asks.tell("neigh flush dev eth0");
                std::thread::sleep(HEARS / 10);
                (refused == Err(Some(111))) == there // ECONNREFUSED
            };
            Some(holds)
        });
    }
    weir.stop();
}

/// While a link is down, packets by that link are refused.
#[test]
fn links_are_followed_soon() {
    let Some(net) = Net::new("soon-links") else {
        return;
    };
    let Some(mut ip) = net.ip(&net.c) else { return };
    let weir = net.route(&["--hang-ms", "2000"]);
    let probe = net.sends("198.51.101.9", 7);
    let hears = net.hears(&net.c, "198.51.101.9", 7);
    let _other = net.hears(&net.b, "198.51.100.9", 9);
    let reached = (0..100).any(|_| {
        probe.send(&[1]).unwrap();
        comes(&hears, &[1])
    });
    assert!(reached, "nothing comes");
    for load in [Load::Idle, Load::Slow] {
        let _background = Background::of(load, net.sends("198.51.100.9", 9));
        let change = |down: bool| format!("link set eth0 {}", if down { "down" } else { "up" });
        measure(&format!("link, {load:?}"), &mut ip, change, |down| {
            let holds = {
                // An earlier error.
                let _ = probe.take_error();
                let _ = probe.send(&[2]);
                if down {
                    // EHOSTUNREACH or ENETUNREACH

                    let refused = probe
                        .recv(&mut [0; 8])
                        .map_err(|error| error.raw_os_error());
                    matches!(refused, Err(Some(101 | 113)))
                } else {
                    comes(&hears, &[2])
                }
            };
            Some(holds)
        });
    }
    weir.stop();
}
