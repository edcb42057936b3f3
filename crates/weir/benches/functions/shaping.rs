//! `weir shape`: without a queue beside the fast path, and with one beside the kernel's HTB.

use super::{ROUNDS, medians, record};
use std::net::Ipv4Addr;
use std::time::Duration;
use weir_lab::command::Command;
use weir_lab::load::Search;
use weir_lab::net::traffic::{UdpFlows, ping, spread};
use weir_lab::net::{Host, Linear, Offloads, Process, Signal};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::rfc2544::{
    CheckLevel, Cpus, Dut, Error, Layout, Program, Ready, Setup, SinkKind, Testbed, Tester,
    throughput,
};
use weir_lab::testenv;

const READY: Duration = Duration::from_secs(30);
/// Including the frame check sequence.
const FRAME_BYTES: usize = 64;
/// Frames of a trial at most.
const FRAMES_MAX: u64 = 1 << 23;
const SEARCH: Search = Search {
    attempts_max: 3,
    trial: Duration::from_millis(200),
    confirmation: Duration::from_millis(400),
    ..Search::QUICK
};

/// What joins two links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bump {
    Shape,
    FastPath,
    Bridge,
}

impl Bump {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            // So fast that nothing waits.
            Bump::Shape => &["shape", "{a}", "{b}", "--rate", "1T"],
            Bump::FastPath => &["bridge", "{a}", "{b}", "--flow-cache", "on"],
            Bump::Bridge => &["bridge", "{a}", "{b}"],
        }
    }

    /// The highest rate without loss, in frames a second.
    fn rate(self) -> Result<f64, Error> {
        let setup = Setup {
            sink: SinkKind::Xdp,
            cpus: Cpus::first_two().expect("two CPUs"),
            both_ways: false,
            settle: Duration::from_millis(100),
            seed: 0,
            destinations: 0,
        };
        let bench = Testbed::new(Layout::Bridge, &setup)?;
        let words = [env!("CARGO_BIN_EXE_weir")].iter().chain(self.arguments());
        let program = Program {
            name: format!("{self:?}"),
            words: words.map(|&word| word.to_owned()).collect(),
            layout: Layout::Bridge,
            ready: Ready::Said("ready", READY),
            open_input: false,
        };
        let running = program.start(&bench)?;
        let mut tester = Tester::new(&bench, FRAME_BYTES, CheckLevel::Quick, FRAMES_MAX)?;
        let found = throughput(&SEARCH, &mut |ask| tester.trial(ask))?;
        drop(tester);
        running.stop()?;
        Ok(found.rate.unwrap_or_default())
    }
}

/// The rate while nothing waits.
pub(crate) fn uncongested(results: &Recorder) {
    let rates = medians(&[Bump::Shape, Bump::FastPath, Bump::Bridge], |bump| {
        let rate = bump.rate().unwrap_or_else(|error| {
            println!("{bump:?}: {error}");
            0.0
        });
        println!("{bump:?}: {:.3} M frames/s", rate / 1e6);
        rate
    });
    let [shape, fast, bridge] = rates[..] else {
        unreachable!("a rate each");
    };
    let peer = "weir bridge, cached";
    record(results, "shape, uncongested", [shape, fast], peer, 0.9);
    println!("shape, uncongested : weir bridge: {:.2}", shape / bridge);
    results.record(
        "functions: shape, uncongested : weir bridge",
        shape / bridge,
        Unit::RateOf("weir bridge"),
        Bar::None,
    );
}

/// Payload of a datagram: a frame of 1,442 bytes.
const PAYLOAD: usize = 1_400;
/// Datagrams a second: half as many again as 100 Mb/s carry.
const LOAD: u32 = 13_000;
/// For how long: longer than the echo requests take.
const LOAD_TIME: Duration = Duration::from_secs(20);
/// Until a queue of 1,000 frames is full.
const FILLING: Duration = Duration::from_secs(1);
const REQUESTS: u32 = 100;
/// Beyond what a queue of 1,000 frames takes: 115 ms.
const WAIT_MAX: Duration = Duration::from_millis(300);

/// What keeps a link at 100 Mb/s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scheduler {
    Weir,
    Htb,
}

fn run(host: &Host, program: &str, words: &str) {
    let mut command = testenv::program(program).expect("looked for");
    command.args(words.split_whitespace());
    let done = host.output(command).expect("it runs");
    assert!(done.status.success(), "{program} {words}: {done:?}");
}

/// Starts `weir shape` in the middle, and waits until frames flow.
fn start(net: &Linear) -> Process {
    let mut command = Command::built(env!("CARGO_BIN_EXE_weir"));
    command.args(["shape", "left", "right", "--rate", "100M", "--restore"]);
    let process = net.middle.spawn(command).expect("it starts");
    let began = std::time::Instant::now();
    while !net.pings().expect("a route") {
        assert!(began.elapsed() < READY, "nothing passes");
    }
    process
}

impl Scheduler {
    /// The 99th percentile of the round trips of a sparse flow beside a load, in µs.
    fn delay(self) -> f64 {
        let line = Linear::new(Offloads::OFF).and_then(Linear::with_addresses);
        let net = line.expect("a network");
        let process = match self {
            Scheduler::Weir => Some(start(&net)),
            Scheduler::Htb => {
                let bridge = net.middle.bridge("br0").expect("a bridge");
                for port in [&net.left, &net.right] {
                    port.attach_to(&bridge).expect("a port");
                }
                bridge.up().expect("up");
                for words in [
                    "qdisc add dev right root handle 1: htb default 10",
                    "class add dev right parent 1: classid 1:10 htb rate 100mbit quantum 1514",
                    "qdisc add dev right parent 1:10 pfifo limit 1000",
                ] {
                    run(&net.middle, "tc", words);
                }
                None
            }
        };
        let mut times = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let flow = UdpFlows {
                    to: Ipv4Addr::new(10, 9, 0, 2),
                    dst_ports: 5_001..5_002,
                    count: u64::from(LOAD) * LOAD_TIME.as_secs(),
                    rate: Some(LOAD),
                    payload_len: PAYLOAD,
                };
                spread(&net.a, &flow)
            });
            std::thread::sleep(FILLING);
            let to = [10, 9, 0, 2].into();
            let pings = ping(&net.a, to, REQUESTS, WAIT_MAX).expect("a route");
            load.join().expect("no panic").expect("a load");
            pings.round_trips
        });
        if let Some(mut process) = process {
            process.signal(Signal::TERM).expect("it runs");
            process.wait(READY).expect("it ends");
        }
        times.sort_unstable();
        let at = times.len() * 99 / 100;
        let Some(p99) = times.get(at.min(times.len().saturating_sub(1))) else {
            println!("{self:?}: no reply");
            return f64::INFINITY;
        };
        let p99 = p99.as_secs_f64() * 1e6;
        println!(
            "{self:?}: {p99:.0} µs, {} of {REQUESTS} answered",
            times.len()
        );
        p99
    }
}

/// The delay of a sparse flow while another one fills the link.
pub(crate) fn congested(results: &Recorder) {
    if !testenv::programs(&["tc"]) {
        return;
    }
    println!("99th percentile of round trips beside a load; medians of {ROUNDS} rounds");
    let delays = medians(&[Scheduler::Weir, Scheduler::Htb], Scheduler::delay);
    let ratio = delays[0] / delays[1];
    println!("shape, congested : HTB with a FIFO: {ratio:.3}");
    results.record(
        "functions: shape, congested, a sparse flow's 99th percentile",
        ratio,
        Unit::CostOf("HTB with a FIFO"),
        Bar::AtMost(0.1),
    );
}
