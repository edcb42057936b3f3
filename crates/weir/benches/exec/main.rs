//! `weir exec` beside the kernel's sockets: the same programs, with the same peers.
//!
//! ```sh
//! sudo cargo bench -p weir --bench exec -- [iperf3] [redis] [nginx] [echo] [calls] [workers] [shared]
//! sudo cargo bench -p weir --bench exec -- reload   # nginx' reload every 2 s under load
//! ```
//!
//! The generator, in one network namespace with the kernel's sockets, has one core; the measured
//! program has the other:
//!
//! ```text
//!  generator ── veth ── program, the kernel's sockets
//!  generator ── TAP ─── program, weir's sockets
//! ```
//!
//! Both ends of the veth leave checksums and segmentation to each other ([`Offloads::VETH`]), and so
//! does the TAP interface. The cost is the time that the program's core works, softirq included: that
//! is the time of both cores less the generator's (see the `serve` bench). Both go before all else that
//! the machine does. All that is compared runs in turns; a ratio is of rates for that time, and the
//! median of the rounds counts.
//!
//! - `iperf3`: bytes, each way.
//! - `redis`: GET by 50 clients, without and with pipelining.
//! - `nginx`: a file of 1,024 bytes by wrk, 50 connections that stay open, and a connection a request.
//! - `echo`: messages of 64 bytes on 1 and 16 connections; a program of the standard library's
//!   sockets beside `weir echo`.
//! - `calls`: what calls on other descriptors take more than without weir, and than in a process that
//!   has a second thread and a filter of system calls, too: the library's own part.
//! - `workers`: nginx with a master process, whose worker's descriptors are relayed, beside nginx in
//!   one process; and two workers beside one.
//! - `shared`: both programs of `weir exec`, on a link in shared memory, beside the kernel's loopback:
//!   redis and iperf3.
//!
//! - `reload`, if it is named: for 60 s nginx with two workers gets a new configuration every 2 s,
//!   while wrk asks, and 10,000 connections idle beside; no request may fail.
//!
//! What needs a program that is not installed is skipped.
//!
//! [`Offloads::VETH`]: weir_lab::net::Offloads::VETH

mod calls;
mod echo;
mod programs;
mod reload;
mod shared;
mod world;

use weir_lab::results::{Bar, Figures, Parts, Recorder, Unit, recorder};
use weir_lab::{affinity, testenv};
use world::{Server, World};

const ROUNDS: usize = 3;
/// Seconds of a round, and of one before the first that does not count.
const ROUND_S: u64 = 2;
const WARM_UP_S: u64 = 1;

fn main() {
    let has = |word: &str| std::env::args().any(|argument| argument == word);
    let last = std::env::args().next_back().unwrap_or_default();
    if has(echo::SERVER) {
        return echo::serve(&last);
    }
    if has(reload::IDLE) {
        return reload::idle(&last);
    }
    // `cargo test --benches` passes no --bench: there is nothing to prove.
    if !has("--bench") || !testenv::root() || !testenv::tun() {
        return;
    }
    let cores = affinity::allowed().expect("the system says which");
    let [generator, program, ..] = cores[..] else {
        return testenv::skip("one core for the generator and one for the program");
    };
    if has("reload") && !testenv::programs(&["nginx", "wrk"]) {
        return;
    }
    let bench = Bench {
        world: World::new(generator, program),
        results: recorder!(),
    };
    if has("reload") {
        return reload::soak(&bench);
    }
    println!(
        "medians of {ROUNDS} rounds of {ROUND_S} s in turn\n\
         {:<40} {:>12} {:>12} {:>7}  of each round",
        "", "a second", "a core s", "ratio"
    );
    let parts = Parts::of_arguments();
    let all: [(&str, &[&str], Part); 7] = [
        ("iperf3", &["iperf3"], programs::iperf3),
        (
            "redis",
            &["redis-server", "redis-benchmark"],
            programs::redis,
        ),
        ("nginx", &["nginx", "wrk"], programs::nginx),
        ("echo", &[], echo::compare),
        ("calls", &[], calls::compare),
        ("workers", &["nginx", "wrk"], programs::workers),
        (
            "shared",
            &["redis-server", "redis-benchmark", "redis-cli", "iperf3"],
            shared::run,
        ),
    ];
    for (name, needs, run) in all {
        if parts.wants(name) && testenv::programs(needs) {
            run(&bench);
        }
    }
}

/// A part of the bench.
type Part = fn(&Bench);

/// The network, and where the figures go.
struct Bench {
    world: World,
    results: Recorder,
}

/// What one contestant did in one round.
#[derive(Clone, Copy)]
struct Round {
    /// Requests, bytes or messages.
    count: f64,
    /// How long the round took, and how long the program's core was busy, in seconds.
    took_s: f64,
    busy_s: f64,
}

impl Round {
    fn rate(self) -> f64 {
        self.count / self.busy_s
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Figures::of(values).expect("some rounds").median()
}

impl Bench {
    /// Puts this load on each server in turn; it returns what was done in these seconds. Prints the
    /// rates, and returns for each server but the first its rate as a part of the first one's.
    fn compare(
        &self,
        what: &str,
        servers: &[(&str, &Server)],
        load: impl Fn(&Server, u64) -> f64,
    ) -> Vec<f64> {
        for (_, server) in servers {
            load(server, WARM_UP_S);
        }
        let mut rounds = vec![Vec::new(); servers.len()];
        for _ in 0..ROUNDS {
            for ((_, server), rounds) in servers.iter().zip(&mut rounds) {
                rounds.push(self.world.round(|| load(server, ROUND_S)));
            }
        }
        let ratios = |of: &[Round]| -> Vec<f64> {
            let pairs = of.iter().zip(&rounds[0]);
            pairs
                .map(|(one, first)| one.rate() / first.rate())
                .collect()
        };
        let all: Vec<Vec<f64>> = rounds.iter().map(|of| ratios(of)).collect();
        for (((name, _), of), ratios) in servers.iter().zip(&rounds).zip(&all) {
            let each = ratios.iter().map(|ratio| format!("{ratio:.2}"));
            println!(
                "{:<40} {:>12.0} {:>12.0} {:>7.3}  {}",
                format!("{what}, {name}"),
                median(of.iter().map(|round| round.count / round.took_s)),
                median(of.iter().map(|round| round.rate())),
                median(ratios.iter().copied()),
                each.collect::<Vec<_>>().join(" "),
            );
        }
        all.into_iter().skip(1).map(median).collect()
    }

    /// As [`Bench::compare`], of the kernel's sockets and weir's; records the ratio.
    fn compare_kernel(
        &self,
        what: &str,
        [kernel, weir]: [&Server; 2],
        bar: f64,
        load: impl Fn(&Server, u64) -> f64,
    ) {
        let ratios = self.compare(what, &[("kernel", kernel), ("weir", weir)], load);
        self.record(what, ratios[0], "the kernel's sockets", bar);
    }

    fn record(&self, what: &str, ratio: f64, peer: &str, bar: f64) {
        let name = format!("exec: {what}, for the processor's time");
        self.record_as(&name, ratio, peer, bar);
    }

    fn record_as(&self, name: &str, ratio: f64, peer: &str, bar: f64) {
        let unit = Unit::RateOf(peer);
        self.results.record(name, ratio, unit, Bar::AtLeast(bar));
    }
}
