//! The router with cached verdicts: what leaves is what leaves without.

mod common;

use common::{udp_v4, udp_v6, v6};
use rustix::net::{RecvFlags, recv};
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_apps::router;
use weir_apps::router::engine::config::Config;
use weir_lab::net::{Device, Host, Linear, Offloads};
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_link::live::Sender;
use weir_tap::{FlowCacheConfig, FlowCacheStats, FlowKind};
use weir_wire::{EtherType, checksum, ethernet};

/// `a ── left │ r │ right ── b`.
struct Net {
    a: Device,
    b: Device,
    r: Host,
    links: [Device; 2],
    _line: Linear,
}

impl Net {
    fn new() -> Net {
        let line = Linear::new(Offloads::OFF).unwrap();
        for device in [&line.eth_a, &line.left, &line.right, &line.eth_b] {
            // Only so does a veth take redirected frames, and once it is up.
            let offloads = Offloads {
                generic_receive: true,
                ..Offloads::OFF
            };
            device.set_offloads(offloads).unwrap();
        }
        Net {
            a: line.eth_a.clone(),
            b: line.eth_b.clone(),
            r: line.middle.clone(),
            links: [line.left.clone(), line.right.clone()],
            _line: line,
        }
    }

    /// The router's configuration; the host is left what `host` accepts, in
    /// TOML.
    fn config(&self, host: &str) -> Config {
        let mac = self.b.mac();
        let text = format!(
            r#"
            [icmp]
            per_second = 0
            burst = 0
            [kernel]
            host = {host}
            [[link]]
            name = "left"
            addresses = ["192.0.2.1/24", "2001:db8:1::1/64"]
            [[link]]
            name = "right"
            addresses = ["198.51.100.1/24", "2001:db8:2::1/64"]
            [[route]]
            to = "203.0.113.0/24"
            via = ["198.51.100.9"]
            [[neighbour]]
            link = "right"
            address = "198.51.100.9"
            hardware = "{mac}"
            [[neighbour]]
            link = "right"
            address = "2001:db8:2::9"
            hardware = "{mac}"
            "#
        );
        Config::parse(&text, &[]).unwrap()
    }

    fn route(&self, is_fast: bool, host: &str) -> Running {
        let (config, host) = (self.config(host), self.r.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let to_host = Arc::new(AtomicU64::new(0));
        let left_to_host = Arc::clone(&to_host);
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            host.enter().unwrap();
            let tap = weir_tap::Config {
                hang_max: Some(Duration::from_secs(10)),
                complete_checksums: Some(false),
                flow_cache: is_fast.then(|| FlowCacheConfig::of(&[FlowKind::IpPair])),
                ..weir_tap::Config::default()
            };
            let mut counts = FlowCacheStats::default();
            let ran = router::run(&config, tap, &[], false, Vec::new(), |view| {
                counts = view
                    .tap
                    .flow_cache_stats()
                    .map(|fast| fast.counts())
                    .unwrap_or_default();
                let first = view.tap.links().next().expect("two links");
                let to_host = view.tap.link_counts(first).to_host;
                left_to_host.store(to_host, Ordering::Relaxed);
                let _ = ready.send(());
                if asked.load(Ordering::Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            ran.unwrap();
            counts
        });
        is_ready.recv().expect("the router runs");
        Running {
            stop,
            to_host,
            thread,
        }
    }
}

struct Running {
    stop: Arc<AtomicBool>,
    /// Number of frames of the first link that were left to the host.
    to_host: Arc<AtomicU64>,
    thread: JoinHandle<FlowCacheStats>,
}

impl Running {
    fn end(self) -> FlowCacheStats {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Few pairs of addresses, many kinds of packets between them.
fn frames(net: &Net, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let mut frames = Vec::new();
    for number in 0..1500_u32 {
        let len = 10 + rng.below(900);
        let hops = [0, 1, 2, 64, 64, 64, 64, 64][rng.below(8)];
        let src = |rng: &mut Rng| match rng.below(12) {
            0 => Ipv4Addr::new(127, 0, 0, 1),
            1 => Ipv4Addr::new(192, 0, 2, 1),
            2 => Ipv4Addr::new(224, 0, 0, 9),
            other => Ipv4Addr::new(192, 0, 2, 8 + other as u8 % 3),
        };
        let (kind, mut packet): (_, Vec<u8>) = match rng.below(4) {
            0 => {
                let src = format!("2001:db8:1::{}", 8 + rng.below(3));
                let dst = v6("2001:db8:2::9");
                (EtherType::IPV6, udp_v6(v6(&src), dst, hops, len))
            }
            other => {
                let dst = match other {
                    1 => Ipv4Addr::new(198, 51, 100, 9),
                    _ => Ipv4Addr::new(203, 0, 113, rng.below(3) as u8),
                };
                let whole = rng.below(2) == 0;
                (
                    EtherType::IPV4,
                    udp_v4(src(&mut rng), dst, hops, len, whole),
                )
            }
        };
        let mut packet = packet.split_off(14);
        // Later pieces of packets, damage, padding.
        if kind == EtherType::IPV4 && rng.below(8) == 0 {
            packet[7] = 0x10;
            packet[10..12].fill(0);
            let sum = checksum::internet_checksum(&packet[..20]).to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
        }
        if rng.below(10) == 0 {
            let at = rng.below(if kind == EtherType::IPV4 { 20 } else { 8 });
            packet[at] ^= 1 << rng.below(8);
        }
        if rng.below(5) == 0 {
            packet.resize(packet.len() + 1 + rng.below(30), 0xee);
        }
        // Each differs from all others.
        let end = packet.len();
        packet[end - 4..].copy_from_slice(&number.to_be_bytes());
        let mut frame = vec![0; 14];
        let header = ethernet::Repr {
            dst: net.links[0].mac(),
            src: net.a.mac(),
            ether_type: kind,
        };
        header.emit(&mut frame);
        frame.extend(packet);
        frames.push(frame);
    }
    frames
}

/// What leaves for b, without the stations, which are another network's;
/// sorted by addresses: between two of them it stays in order.
fn through(net: &Net, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let at_b = net.b.host().capture().unwrap();
    let sender = net.a.host().run(|| Sender::open(net.a.index())).unwrap();
    for batch in frames.chunks(16) {
        batch.iter().for_each(|frame| sender.send(frame).unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
    let stations = [net.b.mac().0, net.links[1].mac().0].concat();
    let (mut out, mut buffer) = (Vec::new(), vec![0; 1 << 12]);
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(300) {
        match recv(&at_b, &mut buffer, RecvFlags::empty()) {
            Ok((len, _)) if buffer[..12] == stations => {
                last = Instant::now();
                out.push(buffer[12..len].to_vec());
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    out.sort_by(|a, b| addresses(a).cmp(addresses(b)));
    out
}

fn addresses(packet: &[u8]) -> &[u8] {
    match packet[..2] {
        [0x08, 0x00] => &packet[14..22],
        _ => &packet[10..42],
    }
}

#[test]
fn the_same_leaves_with_cached_verdicts_as_without() {
    if !testenv::root() {
        return;
    }
    const SEED: u64 = 0x0004_2311;
    println!("seed {SEED:#x}");
    let [without, with] = [false, true].map(|is_fast| {
        let net = Net::new();
        let frames = frames(&net, SEED);
        let running = net.route(is_fast, "false");
        let out = through(&net, &frames);
        (out, running.end())
    });
    assert_eq!(without.1.traffic.frames, 0);
    println!("{} of 1,500 leave, {:?}", without.0.len(), with.1);
    let first = with.0.iter().zip(&without.0).position(|(a, b)| a != b);
    assert_eq!(first.map(|at| (&with.0[at], &without.0[at])), None);
    assert_eq!(with.0.len(), without.0.len());
    assert!(with.1.traffic.frames > 300, "{:?}", with.1);
    assert!(without.0.len() > 500);
}

/// UDP datagrams to an address beyond the router, to ports in turn; the last
/// four bytes distinguish them.
fn datagrams(net: &Net, dst: Ipv4Addr, ports: &[u16], count: u32) -> Vec<Vec<u8>> {
    let datagram = |number: u32| {
        let mut frame = udp_v4(Ipv4Addr::new(192, 0, 2, 8), dst, 64, 64, false);
        let header = ethernet::Repr {
            dst: net.links[0].mac(),
            src: net.a.mac(),
            ether_type: EtherType::IPV4,
        };
        header.emit(&mut frame);
        let port = ports[number as usize % ports.len()];
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        // No checksum (RFC 768).
        frame[40..42].fill(0);
        let end = frame.len();
        frame[end - 4..].copy_from_slice(&number.to_be_bytes());
        frame
    };
    (0..count).map(datagram).collect()
}

/// A rule of `kernel.host` reads ports, which the key of an entry has not: the
/// rule comes first, for addresses that the host has and for one that it gains
/// while there is an entry.
#[test]
fn an_entry_never_bypasses_a_host_rule() {
    if !testenv::root() {
        return;
    }
    const HOSTS: u16 = 5555;
    const OTHER: u16 = 2000;
    let [has, gains] = [1, 2].map(|last| Ipv4Addr::new(203, 0, 113, last));
    let net = Net::new();
    let lo = net.r.device("lo").unwrap();
    lo.add_address(has, 32).unwrap();
    let running = net.route(true, "\"udp dst port 5555\"");
    for dst in [has, gains] {
        let plain = datagrams(&net, dst, &[OTHER], 100);
        assert_eq!(through(&net, &plain).len(), 100, "to {dst}");
        if dst == gains {
            lo.add_address(gains, 32).unwrap();
            let sender = net.a.host().run(|| Sender::open(net.a.index())).unwrap();
            let probe = &datagrams(&net, dst, &[HOSTS], 1)[0];
            let (before, began) = (running.to_host.load(Ordering::Relaxed), Instant::now());
            while running.to_host.load(Ordering::Relaxed) == before {
                assert!(
                    began.elapsed().as_secs() < 10,
                    "{gains} is never the host's"
                );
                sender.send(probe).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let mixed = datagrams(&net, dst, &[OTHER, HOSTS], 200);
        let out = through(&net, &mixed);
        let to_host = out
            .iter()
            .filter(|packet| packet[24..26] == HOSTS.to_be_bytes());
        assert_eq!((to_host.count(), out.len()), (0, 100), "to {dst}");
    }
    let counts = running.end();
    assert!(counts.traffic.frames > 200, "{counts:?}");
}
