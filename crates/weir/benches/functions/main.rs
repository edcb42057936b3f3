//! Network functions of `weir run`, compared with nftables, Linux' routing and weir's plain router.
//!
//! ```sh
//! sudo cargo bench -p weir --bench functions -- [cached] [new] [balance] [entries]
//! ```
//!
//! Rates are the highest without loss, 64 B into an XDP sink, medians of rounds in turn.
//!
//! - `cached`: mark and NAT in the kernel's entries : `weir route` with the flow cache, : Linux' routing,
//!   : nftables' masquerade; NAT without the flow cache : masquerade.
//! - `new`: each frame is the first of a session.
//! - `balance`: a service of two servers : nftables' `dnat` to a `jhash` map.
//! - `entries`: time of a frame with 1,000,000 entries in the kernel : with 10,000, one hot flow and flows
//!   at random.

mod routers;

use routers::{Bed, Flows, Router};
use std::time::Duration;
use weir_lab::load::{Rate, Search, Trial};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::testenv;

const ROUNDS: usize = 3;
const FEW: Flows = Flows {
    ports: 256,
    addresses: 1,
};
const SEARCH: Search = Search {
    attempts_max: 3,
    resolution: 0.03,
    rate_min: 1e4,
    rate_max: 1e7,
    trial: Duration::from_millis(200),
    confirmation: Duration::ZERO,
};
/// Frames whose flows the kernel learns meanwhile.
const LEARNING_RATE: f64 = 200_000.0;
/// Sessions of a trial: fewer than the kernel's connection tracking has room for by default.
const NEW_SESSIONS: u64 = 60_000;

fn main() {
    let results = recorder!();
    if !testenv::root() || !testenv::programs(&["nft", "sh", "sysctl"]) {
        return;
    }
    let named: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    if wanted("cached") {
        cached(&results);
    }
    if wanted("new") {
        new_sessions(&results);
    }
    if wanted("balance") {
        balance(&results);
    }
    if wanted("entries") {
        entries(&results);
    }
}

/// The median of each router's rates, in turn.
fn medians(routers: &[Router], rate: impl Fn(Router) -> f64) -> Vec<f64> {
    let mut all = vec![Vec::new(); routers.len()];
    for _ in 0..ROUNDS {
        for (rates, router) in all.iter_mut().zip(routers) {
            let found = rate(*router);
            println!("{}: {:.3} M frames/s", router.name(), found / 1e6);
            rates.push(found);
        }
    }
    let mut medians = Vec::new();
    for (mut rates, router) in all.into_iter().zip(routers) {
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        println!(
            "median of {}: {:.3} M frames/s",
            router.name(),
            median / 1e6
        );
        medians.push(median);
    }
    medians
}

/// The highest rate without loss of flows that have been learnt.
fn learnt(router: Router, learn: Flows, flows: Flows) -> f64 {
    let bed = Bed::new(router);
    let all = u64::from(learn.ports) * u64::from(learn.addresses);
    let mut first = bed.generator(learn);
    for _ in 0..2 {
        first
            .send(all.max(20_000), Rate::PerSecond(LEARNING_RATE))
            .expect("frames");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(first);
    let mut generator = bed.generator(flows);
    let found = SEARCH.run(|rate, time| {
        let frames = (rate * time.as_secs_f64()) as u64;
        Ok::<Trial, ()>(bed.trial(&mut generator, frames, rate))
    });
    bed.end();
    found.ok().and_then(|found| found.rate).unwrap_or_default()
}

fn cached(results: &Recorder) {
    let all = [
        Router::MarkNat,
        Router::Route,
        Router::Linux,
        Router::Nat,
        Router::Masquerade,
        Router::NatUncached,
    ];
    let rates = medians(&all, |router| learnt(router, FEW, FEW));
    let [mark_nat, route, linux, nat, masquerade, uncached] = rates[..] else {
        unreachable!("a rate each");
    };
    let ratio = |name: &str, rate: f64, peer: f64, peer_name: &'static str, bar: f64| {
        println!("{name} : {peer_name}: {:.2}", rate / peer);
        results.record(
            &format!("functions: {name} : {peer_name}"),
            rate / peer,
            Unit::RateOf(peer_name),
            Bar::AtLeast(bar),
        );
    };
    ratio(
        "mark and NAT, cached",
        mark_nat,
        route,
        "weir route, cached",
        0.9,
    );
    ratio(
        "mark and NAT, cached",
        mark_nat,
        linux,
        "Linux routing",
        2.3,
    );
    ratio("NAT, cached", nat, masquerade, "nftables masquerade", 2.5);
    ratio(
        "NAT, uncached",
        uncached,
        masquerade,
        "nftables masquerade",
        0.8,
    );
}

fn new_sessions(results: &Recorder) {
    let flows = Flows {
        ports: 60_000,
        addresses: 4,
    };
    // A fresh router each time: nothing is known of the sessions, and no table is full.
    let rate = |router: Router| {
        // A trial has its own router, which takes a second.
        let search = Search {
            resolution: 0.1,
            attempts_max: 2,
            ..SEARCH
        };
        let found = search.run(|rate, _| {
            let bed = Bed::new(router);
            let mut generator = bed.generator(flows);
            let trial = bed.trial(&mut generator, NEW_SESSIONS, rate);
            drop(generator);
            bed.end();
            Ok::<Trial, ()>(trial)
        });
        found.ok().and_then(|found| found.rate).unwrap_or_default()
    };
    let [weir, nft] = medians(&[Router::Nat, Router::Snat], rate)[..] else {
        unreachable!("a rate each");
    };
    println!("new NAT sessions : nftables: {:.2}", weir / nft);
    results.record(
        "functions: new NAT sessions a second",
        weir / nft,
        Unit::RateOf("nftables snat"),
        Bar::AtLeast(1.0),
    );
}

fn balance(results: &Recorder) {
    let rate = |router: Router| learnt(router, FEW, FEW);
    let [weir, nft] = medians(&[Router::Balance, Router::Jhash], rate)[..] else {
        unreachable!("a rate each");
    };
    println!("balance : nftables jhash: {:.2}", weir / nft);
    results.record(
        "functions: balance, cached",
        weir / nft,
        Unit::RateOf("nftables jhash map"),
        Bar::AtLeast(2.5),
    );
}

fn entries(results: &Recorder) {
    let flows = |addresses| Flows {
        ports: 10_000,
        addresses,
    };
    let hot = Flows {
        ports: 1,
        addresses: 1,
    };
    for (name, bar) in [("one hot flow", 1.2), ("flows at random", 1.8)] {
        let mut nanoseconds = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for (times, addresses) in nanoseconds.iter_mut().zip([1, 100]) {
                let learn = flows(addresses);
                let used = if bar == 1.2 { hot } else { learn };
                times.push(1e9 / learnt(Router::NatMany, learn, used));
            }
        }
        let [few, many] = nanoseconds.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!(
            "{name}: {few:.0} ns a frame with 10,000 entries, {many:.0} with 1,000,000: {:.2}",
            many / few
        );
        results.record(
            &format!("functions: 1,000,000 entries, {name}"),
            many / few,
            Unit::CostOf("10,000 entries"),
            Bar::AtMost(bar),
        );
    }
}
