//! The routers, each between two ends of a tester.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_lab::load::{Generator, Order, Rate, Sink, Trial, Udp};
use weir_lab::rfc2544::{
    Baseline, Cpus, Dut, Layout, Program, Ready, Running, Setup, SinkKind, Testbed,
};
use weir_link::bpf::Hook;

/// The addresses of [`weir_lab::rfc2544`]: the sender's network, and the receiver.
const SENDER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 2);
/// The balanced service, and its second server.
const SERVICE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 100);
const SECOND: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 3);
const PORT: u16 = 7;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Router {
    MarkNat,
    Nat,
    NatUncached,
    /// With room for 2,000,000 entries, and public addresses for as many sessions.
    NatMany,
    Route,
    Balance,
    Linux,
    Masquerade,
    /// To as many public addresses as weir has.
    Snat,
    Jhash,
}

/// The numbers of source ports and source addresses, in random order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flows {
    pub(crate) ports: u32,
    pub(crate) addresses: u32,
}

impl Router {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Router::MarkNat => "weir run: mark and NAT, cached",
            Router::Nat => "weir run: NAT, cached",
            Router::NatUncached => "weir run: NAT, uncached",
            Router::NatMany => "weir run: NAT, 2,000,000 entries",
            Router::Route => "weir route, cached",
            Router::Balance => "weir run: balance, cached",
            Router::Linux => "Linux routing",
            Router::Masquerade => "nftables masquerade",
            Router::Snat => "nftables snat",
            Router::Jhash => "nftables dnat to a jhash map",
        }
    }

    /// The address that frames are sent to.
    fn destination(self) -> Ipv4Addr {
        match self {
            Router::Balance | Router::Jhash => SERVICE,
            _ => RECEIVER,
        }
    }

    fn start(self, bench: &Testbed, folder: &Path) -> Box<dyn Running> {
        if self == Router::Linux {
            return Baseline::LinuxRouting.start(bench).expect("it starts");
        }
        let weir = env!("CARGO_BIN_EXE_weir");
        let words: Vec<String> = match self {
            Router::Route => vec![weir, "route", "{a}", "{b}", "--flow-cache", "on"]
                .into_iter()
                .map(String::from)
                .collect(),
            Router::Masquerade | Router::Snat | Router::Jhash => {
                let script = self.nftables();
                vec![
                    "/bin/sh".into(),
                    "-c".into(),
                    script,
                    "sh".into(),
                    "{a}".into(),
                    "{b}".into(),
                ]
            }
            _ => {
                let path = folder.join("box.toml");
                fs::write(&path, self.configuration(bench)).expect("a file");
                let mut words = vec![
                    weir.to_owned(),
                    "run".to_owned(),
                    path.display().to_string(),
                ];
                let more: &[&str] = match self {
                    Router::NatUncached => &["--flow-cache", "off"],
                    Router::NatMany => &["--flow-entries", "2000000"],
                    _ => &[],
                };
                words.extend(more.iter().map(|&word| word.to_owned()));
                words
            }
        };
        let program = Program {
            name: self.name().to_owned(),
            words,
            layout: Layout::Router,
            ready: Ready::Said("ready", Duration::from_secs(30)),
            open_input: false,
        };
        program.start(bench).expect("it starts")
    }

    /// `box.toml`.
    fn configuration(self, bench: &Testbed) -> String {
        let [inside, outside] = bench.ports().expect("a router has two ports");
        let (a, b) = (inside.name(), outside.name());
        let outside = if self == Router::Balance { a } else { b };
        let mut text = format!(
            "outside = \"{outside}\"\n[[link]]\nname = \"{a}\"\n[[link]]\nname = \"{b}\"\n\
             [kernel]\nroutes = true\n"
        );
        if self == Router::MarkNat {
            text += "[[stage]]\nkind = \"mark\"\ndscp = \"ef\"\n";
        }
        if self == Router::Balance {
            text += &format!(
                "[[stage]]\nkind = \"balance\"\nservice = \"{SERVICE}:{PORT}\"\nprotocol = \"udp\"\n\
                 [[stage.server]]\nto = \"{RECEIVER}:{PORT}\"\n[[stage.server]]\nto = \"{SECOND}:{PORT}\"\n"
            );
            return text;
        }
        let pool: Vec<String> = (0..32)
            .map(|n| format!("\"198.19.0.{}\"", 100 + n))
            .collect();
        text += &format!(
            "[[stage]]\nkind = \"nat\"\npool = [{}]\ninside = [\"198.18.0.0/16\"]\n\
             sessions_max = 2000000\n",
            pool.join(", ")
        );
        text
    }

    /// A script that has the interfaces as arguments.
    fn nftables(self) -> String {
        let rules = if self == Router::Jhash {
            format!(
                "nft add chain ip n p '{{ type nat hook prerouting priority -100; }}'\n\
                 nft add rule ip n p ip daddr {SERVICE} udp dport {PORT} dnat to \
                 jhash ip saddr . udp sport mod 2 map '{{ 0 : {RECEIVER}, 1 : {SECOND} }}'\n"
            )
        } else {
            let to = match self {
                Router::Snat => "snat to 198.19.0.100-198.19.0.131",
                _ => "masquerade",
            };
            format!(
                "nft add chain ip n p '{{ type nat hook postrouting priority 100; }}'\n\
                 nft add rule ip n p oif $2 {to}\n"
            )
        };
        format!(
            "set -e\nsysctl -qw net.ipv4.ip_forward=1\nnft add table ip n\n{rules}\
             trap 'exit 0' TERM\necho ready\nwhile :; do sleep 0.1; done\n"
        )
    }
}

/// A router that runs, and the tester around it.
pub(crate) struct Bed {
    bench: Testbed,
    running: Box<dyn Running>,
    sink: Sink,
    router: Router,
    folder: PathBuf,
}

impl Bed {
    pub(crate) fn new(router: Router) -> Bed {
        let name = format!("functions-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let setup = Setup {
            sink: SinkKind::Xdp,
            cpus: Cpus::first_two().expect("two CPUs"),
            both_ways: false,
            settle: Duration::from_millis(100),
            seed: 0,
            destinations: 0,
        };
        let bench = Testbed::new(Layout::Router, &setup).expect("a network");
        let [_, end] = bench.ends();
        let [_, port] = bench.ports().expect("two ports");
        end.add_address(SECOND, 24).expect("an address");
        port.add_neighbour(SECOND, end.mac()).expect("a neighbour");
        let running = router.start(&bench, &folder);
        // The router asks for the receivers' addresses before the sink takes all frames.
        let some = Flows {
            ports: 64,
            addresses: 1,
        };
        let mut generator = generator(&bench, router, some, Order::InTurn);
        generator
            .send(1_000, Rate::PerSecond(10_000.0))
            .expect("frames");
        drop(generator);
        std::thread::sleep(Duration::from_millis(100));
        let sink = Sink::new(end, Hook::XdpNative).expect("a sink");
        Bed {
            bench,
            running,
            sink,
            router,
            folder,
        }
    }

    pub(crate) fn generator(&self, flows: Flows, order: Order) -> Generator {
        generator(&self.bench, self.router, flows, order)
    }

    /// Sends frames, and waits until no more come.
    pub(crate) fn trial(&self, generator: &mut Generator, frames: u64, rate: f64) -> Trial {
        let count = || self.sink.counted().expect("counters").frames;
        let before = count();
        let sent = generator
            .send(frames, Rate::PerSecond(rate))
            .expect("frames");
        let (mut last, mut since) = (count(), Instant::now());
        while last - before < sent.frames && since.elapsed() < Duration::from_millis(100) {
            std::thread::sleep(Duration::from_millis(2));
            let now = count();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Trial {
            sent: sent.frames,
            // The host itself may send a frame.
            received: (last - before).min(sent.frames),
            elapsed: sent.elapsed,
        }
    }

    pub(crate) fn end(self) {
        self.running.stop().expect("it ends");
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn generator(bench: &Testbed, router: Router, flows: Flows, order: Order) -> Generator {
    let [from, _] = bench.ends();
    let [port, _] = bench.ports().expect("two ports");
    let frames = Udp {
        src_ports: flows.ports,
        src_addresses: flows.addresses,
        dst_port: PORT,
        order,
        ..Udp::new(from.mac(), port.mac(), SENDER, router.destination())
    };
    let generator = Generator::new(from, &frames).expect("a generator");
    generator.on_cpu(bench.setup().cpus.tester).realtime()
}
