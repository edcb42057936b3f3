//! Two programs of `weir exec` on a link in shared memory, beside the same two on the kernel's loopback.
//!
//! The server has one core and the client the other, in both cases. Two ratios are printed: of rates,
//! and of rates for the time that both cores work.

use crate::world::World;
use crate::{Bench, ROUND_S, ROUNDS, WARM_UP_S, median};
use std::time::Instant;
use weir_lab::command::Command;
use weir_lab::net::Process;
use weir_lab::results::{Bar, Unit};
use weir_lab::wait;

const SERVER: &str = "192.0.2.101";
const CLIENT: &str = "192.0.2.102";
const LOOPBACK: &str = "127.0.0.1";

/// A server of one kind, and how its clients are started.
struct Contestant<'w> {
    world: &'w World,
    is_weirs: bool,
    _server: Process,
}

impl<'w> Contestant<'w> {
    /// Starts the server, and waits until the probe succeeds. Of a line, `AT` is the server's address.
    fn start(world: &'w World, is_weirs: bool, server: &str, probe: &str) -> Contestant<'w> {
        let command = command(world, is_weirs, SERVER, server);
        let contestant = Contestant {
            world,
            is_weirs,
            _server: world.serve(command),
        };
        wait::until("a server", || {
            let command = contestant.command(probe);
            world.try_generate(command).is_some()
        });
        contestant
    }

    fn command(&self, line: &str) -> Command {
        command(self.world, self.is_weirs, CLIENT, line)
    }

    fn client(&self, line: &str) -> String {
        self.world.generate(self.command(line))
    }
}

fn command(world: &World, is_weirs: bool, own: &str, line: &str) -> Command {
    let at = if is_weirs { SERVER } else { LOOPBACK };
    let words: Vec<String> = line.split(' ').map(|word| word.replace("AT", at)).collect();
    if is_weirs {
        world.on_shared_link(own, &words)
    } else {
        crate::world::command_of(&words)
    }
}

/// What one round has given, a second and a second of processor time.
fn round(bench: &Bench, load: impl FnOnce() -> f64) -> [f64; 2] {
    let (before, began) = (bench.world.busy_s(), Instant::now());
    let count = load();
    let took_s = began.elapsed().as_secs_f64();
    [count / took_s, count / (bench.world.busy_s() - before)]
}

/// Puts the load on the kernel's pair and on weir's in turn, and prints the figures; `bar` is that of the
/// ratio of rates.
fn compare(bench: &Bench, what: &str, bar: f64, pair: &[Contestant<'_>; 2], load: &Load) {
    for contestant in pair {
        load(contestant, WARM_UP_S);
    }
    let rounds: Vec<[[f64; 2]; 2]> = (0..ROUNDS)
        .map(|_| {
            pair.each_ref()
                .map(|one| round(bench, || load(one, ROUND_S)))
        })
        .collect();
    for (name, at) in [("loopback", 0), ("shared memory", 1)] {
        println!(
            "{:<40} {:>12.0} {:>12.0}",
            format!("{what}, {name}"),
            median(rounds.iter().map(|round| round[at][0])),
            median(rounds.iter().map(|round| round[at][1])),
        );
    }
    for (of, kind, bar) in [
        (0, "requests or bytes a second", Bar::AtLeast(bar)),
        (1, "for the processors' time", Bar::None),
    ] {
        let ratios: Vec<f64> = rounds
            .iter()
            .map(|round| round[1][of] / round[0][of])
            .collect();
        let each: Vec<_> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let ratio = median(ratios.iter().copied());
        println!("  {kind:<38} {ratio:>33.3}  {}", each.join(" "));
        let name = format!("exec: {what}, shared memory, {kind}");
        let unit = Unit::RateOf("the kernel's loopback");
        bench.results.record(&name, ratio, unit, bar);
    }
}

/// Runs a client for about as many seconds; returns how much it did.
type Load = dyn Fn(&Contestant<'_>, u64) -> f64;

pub(crate) fn run(bench: &Bench) {
    redis(bench);
    iperf3(bench);
}

fn redis(bench: &Bench) {
    /// Requests for each second that a round shall last, without and with pipelining.
    const COUNTS: [u64; 2] = [100_000, 800_000];
    let folder = bench.world.folder.display();
    let server = format!(
        "redis-server --bind AT --port 6380 --protected-mode no --appendonly no --dir {folder} --save "
    );
    let probe = "redis-cli -h AT -p 6380 set key:__rand_int__ xxx";
    let pair = [false, true].map(|weirs| Contestant::start(&bench.world, weirs, &server, probe));
    for (what, count, pipelined) in [
        ("redis, GET, 50 clients", COUNTS[0], ""),
        ("redis, GET, 50 clients, 16 pipelined", COUNTS[1], " -P 16"),
    ] {
        compare(bench, what, 1.3, &pair, &move |one, seconds| {
            let count = count * seconds;
            let said = one.client(&format!(
                "redis-benchmark -h AT -p 6380 -q -t get -c 50 -n {count}{pipelined}"
            ));
            assert!(
                said.contains("requests per second"),
                "redis-benchmark said {said}"
            );
            count as f64
        });
    }
}

fn iperf3(bench: &Bench) {
    let server = "iperf3 -s -p 5202 -B AT";
    let probe = "iperf3 -c AT -p 5202 -n 1";
    let pair = [false, true].map(|weirs| Contestant::start(&bench.world, weirs, server, probe));
    compare(bench, "iperf3", 1.0, &pair, &|one, seconds| {
        let said = one.client(&format!("iperf3 -J -c AT -p 5202 -t {seconds}"));
        let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let bytes = report["end"]["sum_received"]["bytes"].as_f64();
        bytes.unwrap_or_else(|| panic!("iperf3 said {report}"))
    });
}
