//! Policing: what a policed frame costs, and its rate beside `nft limit`.

use super::flow_counter::{self, Driver};
use super::stage::{address, frame, services};
use super::tables::{SEED, run};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use weir_filter::lang::expr::NoNames;
use weir_lab::load::{Generator, Order, Rate, Udp};
use weir_lab::net::{Linear, Offloads};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::testenv;
use weir_link::bpf::{Attachment, Hook, Program};
use weir_link::xdp::{CutOwner, Meter, MeterError, MeterSpec, MeterStage};
use weir_meter::policy::{Policy, PolicyAction, RateLimit};
use weir_meter::{Direction, Key};

/// Policed sessions: few, and many at random.
const SESSIONS: [u32; 2] = [10, 100_000];
const ROUNDS: usize = 7;
const ROUNDS_LIVE: usize = 3;
/// How long frames come before and while they are measured.
const SETTLE: Duration = Duration::from_millis(1500);
const MEASURED: Duration = Duration::from_secs(2);
/// Bytes of a live frame as weir and nft at ingress count it.
const FRAME_BYTES: usize = 1000;

fn meter(subscribers: u32, polices: bool) -> Meter {
    let services = services(4);
    let spec = MeterSpec {
        subscribers,
        keys: subscribers,
        unknown: 128,
        services: &services,
        names: &NoNames,
        counts_ip: false,
        polices,
        measures: &[],
        adopts: false,
    };
    Meter::create(&spec).expect("a meter")
}

fn limit(bits_per_second: u64, burst_bytes: u32) -> Policy {
    let limit = RateLimit {
        bits_per_second,
        burst_bytes,
    };
    Policy {
        name: "bench".to_owned(),
        rates: [Some(limit); 2],
        over: PolicyAction::Drop,
        quota_bytes: None,
        spent: PolicyAction::Drop,
        spent_request: None,
    }
}

pub(crate) fn policing(results: &Recorder) {
    println!("policing, seed {SEED:x}");
    costs(results);
    if testenv::root() {
        live(results);
    }
}

/// The program alone, net of a program that does nothing.
fn costs(results: &Recorder) {
    // Next to nothing passes, of large frames; and all, of small ones.
    let kinds = [(8_000, 1_000), (400_000_000_000, 100_000)];
    let [small, mut large] = [frame(), frame()];
    large.resize(FRAME_BYTES, 0);
    large[16..18].copy_from_slice(&(FRAME_BYTES as u16 - 14).to_be_bytes());
    let frames = [&small, &small, &large, &small];
    let mut net = [[0.0; 3]; 2];
    for (sessions, net) in SESSIONS.into_iter().zip(&mut net) {
        let mut drivers = vec![Driver::new(sessions, 0, flow_counter::nothing())];
        let mut meters = Vec::new();
        for (rate, burst) in [(0, 0)].into_iter().chain(kinds) {
            let mut meter = meter(sessions, rate > 0);
            for number in 0..sessions {
                if rate > 0 {
                    let policy = limit(rate, burst);
                    meter.set_policy(number, Some(&policy), true).expect("room");
                }
                let key = Key::Ipv4(address(number));
                meter.insert(key, number).expect("room");
            }
            let stage = meter.stage(Direction::Up);
            let program = stage.program(Hook::XdpNative).expect("a program");
            drivers.push(Driver::new(sessions, 0, program));
            meters.push(meter);
        }
        let mut best = vec![f64::INFINITY; drivers.len()];
        for _ in 0..ROUNDS {
            for ((best, driver), frame) in best.iter_mut().zip(&drivers).zip(frames) {
                *best = best.min(run(&driver.program, frame));
            }
        }
        for (net, best_of) in net.iter_mut().zip(&best[1..]) {
            *net = best_of - best[0];
        }
        println!(
            "{sessions} sessions: metered {:.1} ns, policed and over the rate {:.1}, within it {:.1}",
            net[0], net[1], net[2]
        );
        let name = format!("policing: {sessions} sessions within their rates");
        results.record(&name, net[2], Unit::Nanoseconds, Bar::None);
    }
    let [few, many] = net;
    println!(
        "100,000 : 10: metered {:.2}, over {:.2}, within {:.2}",
        many[0] / few[0],
        many[1] / few[1],
        many[2] / few[2]
    );
}

/// Frames a second of few and of many sessions, over their rates and within. What passes is dropped
/// behind the policer, or the receiver's stack would take most of the time.
fn sessions(line: &Linear, udp: &Udp, results: &Recorder) {
    for (kind, bits, burst) in [
        ("over", 8_000, 10_000),
        ("within", 400_000_000_000, 100_000),
    ] {
        let mut frame_ns = [f64::INFINITY; 2];
        for _ in 0..ROUNDS_LIVE {
            for (sessions, frame_ns) in SESSIONS.into_iter().zip(&mut frame_ns) {
                let udp = Udp {
                    src_addresses: sessions,
                    order: Order::Scattered,
                    ..*udp
                };
                let mut policer =
                    Policer::weir(line, &udp, bits, burst, MeterStage::taking_program);
                let flooded = flood(line, &udp, &mut policer);
                policer.end(line);
                *frame_ns = frame_ns.min(1e9 / flooded.frames_per_s);
            }
        }
        let [few, many] = frame_ns;
        let ratio = many / few;
        println!(
            "{kind} their rates, live: 10 sessions {few:.0} ns a frame, 100,000 {many:.0}, {ratio:.2}"
        );
        let name = format!("policing: a frame {kind} the rate, of 100,000 sessions");
        results.record(&name, ratio, Unit::CostOf("one of ten"), Bar::AtMost(1.3));
    }
}

/// Frames a second through a policer at the receiver, and what passes of a rate.
fn live(results: &Recorder) {
    let line = Linear::new(Offloads::OFF).expect("a line");
    // The receiver polls, as with an XDP program.
    let polling = Offloads {
        generic_receive: true,
        ..Offloads::OFF
    };
    for device in [&line.eth_a, &line.left] {
        device.set_offloads(polling).expect("offloads");
    }
    let from = Ipv4Addr::new(10, 7, 0, 1);
    let udp = Udp {
        frame_bytes: FRAME_BYTES,
        ..Udp::new(
            line.eth_a.mac(),
            line.left.mac(),
            from,
            Ipv4Addr::new(10, 8, 0, 1),
        )
    };
    let mut own = [0.0_f64; 2];
    for (bits, burst) in [(80_000_000_u64, 100_000_u32), (800_000_000, 1_000_000)] {
        let mut all = Policer::drop_all(&line);
        let base_ns = 1e9 / flood(&line, &udp, &mut all).frames_per_s;
        all.end(&line);
        for (which, name) in ["weir", "nft limit"].into_iter().enumerate() {
            let policer = match which {
                0 => Some(Policer::weir(&line, &udp, bits, burst, MeterStage::program)),
                _ => Policer::nft(&line, bits, burst),
            };
            let Some(mut policer) = policer else {
                println!("no nft: not compared");
                continue;
            };
            let flooded = flood(&line, &udp, &mut policer);
            policer.end(&line);
            let frame_ns = 1e9 / flooded.frames_per_s;
            own[which] += frame_ns - base_ns;
            println!(
                "{name}, {} Mb/s, burst {burst}: {:.2} M frames/s ({frame_ns:.0} ns, {:.0} beside \
                 dropping all), passed {:.4} of the rate",
                bits / 1_000_000,
                flooded.frames_per_s / 1e6,
                frame_ns - base_ns,
                flooded.bytes_per_s / (bits as f64 / 8.0)
            );
            if which == 0 {
                let name = format!("policing: passed of {} Mb/s", bits / 1_000_000);
                let share = flooded.bytes_per_s / (bits as f64 / 8.0);
                results.record(&name, share, Unit::RateOf("rate"), Bar::AtLeast(0.99));
            }
        }
    }
    if own[1] > 0.0 {
        let ratio = own[1] / own[0];
        println!("own time of nft limit to weir's: {ratio:.2}");
        let name = "policing: frames a second, to nft limit, net of the generator";
        results.record(name, ratio, Unit::RateOf("nft limit"), Bar::AtLeast(2.5));
    }
    sessions(&line, &udp, results);
}

/// A policer under more frames than it lets through.
struct Flooded {
    frames_per_s: f64,
    /// Of frames that passed.
    bytes_per_s: f64,
}

/// Sends as fast as can be, and measures when the burst has passed: a bucket of nft's has a second of
/// the rate beside the burst.
fn flood(line: &Linear, udp: &Udp, policer: &mut Policer) -> Flooded {
    let mut generator = Generator::new(&line.eth_a, udp).expect("a generator");
    let sending = generator.start(u64::MAX, Rate::Flat).expect("frames");
    std::thread::sleep(SETTLE);
    let before = (Instant::now(), sending.sent());
    let mut passed = policer.passed(line);
    std::thread::sleep(MEASURED);
    let after = (Instant::now(), sending.sent());
    passed = policer.passed(line) - passed * policer.adds_up();
    sending.stop().expect("it stops");
    let took = (after.0 - before.0).as_secs_f64();
    Flooded {
        frames_per_s: (after.1 - before.1) as f64 / took,
        bytes_per_s: passed / took,
    }
}

/// What polices at the device `left`.
enum Policer {
    /// What the others are net of.
    DropAll(Attachment),
    Weir(Box<Meter>, Attachment),
    Nft,
}

impl Policer {
    fn drop_all(line: &Linear) -> Policer {
        // The verdict 1 of XDP drops.
        let program = flow_counter::nothing();
        let made = line
            .middle
            .run(|| Attachment::new(&program, line.left.index(), Hook::XdpNative));
        Policer::DropAll(made.expect("attached"))
    }

    /// 1 if [`passed`](Self::passed) is since the beginning, 0 if since the last call.
    fn adds_up(&self) -> f64 {
        match self {
            Policer::Nft => 1.0,
            Policer::Weir(..) | Policer::DropAll(_) => 0.0,
        }
    }

    /// With a session for each source address.
    fn weir(
        line: &Linear,
        udp: &Udp,
        bits: u64,
        burst: u32,
        program: fn(&MeterStage, Hook) -> Result<Program, MeterError>,
    ) -> Policer {
        let mut meter = meter(udp.src_addresses, true);
        let policy = limit(bits, burst);
        for row in 0..udp.src_addresses {
            let from = Ipv4Addr::from_bits(udp.src.to_bits() + row);
            meter.set_policy(row, Some(&policy), true).expect("room");
            meter.insert(Key::Ipv4(from), row).expect("room");
        }
        let stage = meter.stage(Direction::Up);
        let program = program(&stage, Hook::XdpNative).expect("a program");
        let made = line
            .middle
            .run(|| Attachment::new(&program, line.left.index(), Hook::XdpNative));
        Policer::Weir(Box::new(meter), made.expect("attached"))
    }

    fn nft(line: &Linear, bits: u64, burst: u32) -> Option<Policer> {
        let mut nft = testenv::program("nft")?;
        // nft counts the IP packet at ingress: 14 bytes less a frame.
        let share = (FRAME_BYTES - 14) as f64 / FRAME_BYTES as f64;
        let rate = (bits as f64 / 8.0 * share) as u64;
        let burst = (f64::from(burst) * share) as u64;
        let rules = format!(
            "add table netdev t; add chain netdev t c {{ type filter hook ingress device left \
             priority 0; }}; add rule netdev t c limit rate over {rate} bytes/second burst {burst} \
             bytes drop; add rule netdev t c counter drop"
        );
        nft.arg(rules);
        let output = line.middle.output(nft).expect("nft runs");
        assert!(output.status.success(), "{output:?}");
        Some(Policer::Nft)
    }

    /// Bytes of frames that passed.
    fn passed(&mut self, line: &Linear) -> f64 {
        match self {
            Policer::DropAll(_) => 0.0,
            Policer::Weir(meter, _) => {
                let cut = meter.cut().expect("a cut");
                let cells = cut.cells();
                let cells = cells.filter(|cell| matches!(cell.owner, CutOwner::Row(_)));
                let passed: u64 = cells.map(|cell| cell.bytes - cell.policed[1]).sum();
                meter.settle();
                passed as f64
            }
            Policer::Nft => {
                let mut nft = testenv::program("nft").expect("it ran before");
                nft.args(["list", "chain", "netdev", "t", "c"]);
                let output = line.middle.output(nft).expect("nft runs");
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let words: Vec<&str> = text.split_whitespace().collect();
                let at = words.iter().position(|word| *word == "packets");
                let packets: f64 = words[at.expect("a counter") + 1].parse().expect("a number");
                packets * FRAME_BYTES as f64
            }
        }
    }

    fn end(self, line: &Linear) {
        match self {
            Policer::Weir(_, attachment) | Policer::DropAll(attachment) => {
                attachment.detach().expect("detached");
            }
            Policer::Nft => {
                let mut nft = testenv::program("nft").expect("it ran before");
                nft.args(["delete", "table", "netdev", "t"]);
                let output = line.middle.output(nft).expect("nft runs");
                assert!(output.status.success(), "{output:?}");
            }
        }
    }
}
