//! Network functions of `weir run`, compared with nftables, Linux' routing and weir's plain router.
//!
//! ```sh
//! sudo cargo bench -p weir --bench functions -- [cached] [new] [balance] [entries] [shape]
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
//! - `shape`: `weir shape` without a queue : `weir bridge` with the flow cache; with one, the 99th percentile
//!   of a sparse flow's round trips : the kernel's HTB with a FIFO.

mod routers;
mod shaping;

use routers::{Bed, Flows, Router};
use std::convert::Infallible;
use std::fmt::Display;
use std::time::Duration;
use weir_lab::load::{Order, Outcome, Rate, Search, SearchError};
use weir_lab::results::{Bar, Figures, Parts, Recorder, Unit, recorder};
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
/// Frames of each flow that the kernel learns: NAT has a session cached from its third packet on, and
/// some packets come before the router has dealt with the one before.
const LEARNING_FRAMES: u64 = 5;
/// Sessions of a trial: fewer than the kernel's connection tracking has room for by default.
const NEW_SESSIONS: u64 = 60_000;

fn main() {
    let results = recorder!();
    if !testenv::root() || !testenv::programs(&["nft", "sh", "sysctl"]) {
        return;
    }
    let parts = Parts::of_arguments();
    if parts.wants("cached") {
        cached(&results);
    }
    if parts.wants("new") {
        new_sessions(&results);
    }
    if parts.wants("balance") {
        balance(&results);
    }
    if parts.wants("entries") {
        entries(&results);
    }
    if parts.wants("shape") {
        shaping::uncongested(&results);
        shaping::congested(&results);
    }
}

/// The medians of what is measured of each of these, in turn.
fn medians<T: Copy>(all: &[T], measured: impl Fn(T) -> f64) -> Vec<f64> {
    let mut found = vec![Vec::new(); all.len()];
    for _ in 0..ROUNDS {
        for (values, one) in found.iter_mut().zip(all) {
            values.push(measured(*one));
        }
    }
    let figures = found.into_iter().map(Figures::of);
    figures.map(|it| it.expect("rounds").median()).collect()
}

/// The rate of a router, in frames a second; 0, with the reason, if there is none.
fn rate_of<E: Display>(router: Router, found: Result<Outcome, SearchError<E>>) -> f64 {
    let rate = match found {
        Ok(found) => found.rate.unwrap_or_default(),
        Err(error) => {
            println!("{}: {error}", router.name());
            0.0
        }
    };
    println!("{}: {:.3} M frames/s", router.name(), rate / 1e6);
    rate
}

/// Records a rate as a ratio to a peer's.
fn record(results: &Recorder, name: &str, rates: [f64; 2], peer: &'static str, bar: f64) {
    let ratio = rates[0] / rates[1];
    println!("{name} : {peer}: {ratio:.2}");
    let name = format!("functions: {name} : {peer}");
    results.record(&name, ratio, Unit::RateOf(peer), Bar::AtLeast(bar));
}

/// The highest rate without loss of flows that have been learnt.
fn learnt(router: Router, learn: Flows, flows: Flows) -> f64 {
    let bed = Bed::new(router);
    let all = u64::from(learn.ports) * u64::from(learn.addresses);
    let mut first = bed.generator(learn, Order::InTurn);
    for _ in 0..LEARNING_FRAMES {
        first
            .send(all.max(10_000), Rate::PerSecond(LEARNING_RATE))
            .expect("frames");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(first);
    let mut generator = bed.generator(flows, Order::Scattered);
    let found = SEARCH.run(|rate, time| {
        let frames = (rate * time.as_secs_f64()) as u64;
        Ok::<_, Infallible>(bed.trial(&mut generator, frames, rate))
    });
    bed.end();
    rate_of(router, found)
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
    for (name, rates, peer, bar) in [
        (
            "mark and NAT, cached",
            [mark_nat, route],
            "weir route, cached",
            0.9,
        ),
        (
            "mark and NAT, cached",
            [mark_nat, linux],
            "Linux routing",
            2.3,
        ),
        ("NAT, cached", [nat, masquerade], "nftables masquerade", 2.5),
        (
            "NAT, uncached",
            [uncached, masquerade],
            "nftables masquerade",
            0.8,
        ),
    ] {
        record(results, name, rates, peer, bar);
    }
}

fn new_sessions(results: &Recorder) {
    let flows = Flows {
        ports: 60_000,
        addresses: 4,
    };
    // A trial has its own router, which takes a second: nothing is known of the sessions, and no table
    // is full.
    let search = Search {
        resolution: 0.1,
        attempts_max: 2,
        ..SEARCH
    };
    let rates = medians(&[Router::Nat, Router::Snat], |router| {
        let found = search.run(|rate, _| {
            let bed = Bed::new(router);
            let mut generator = bed.generator(flows, Order::Scattered);
            let trial = bed.trial(&mut generator, NEW_SESSIONS, rate);
            drop(generator);
            bed.end();
            Ok::<_, Infallible>(trial)
        });
        rate_of(router, found)
    });
    record(
        results,
        "new NAT sessions",
        [rates[0], rates[1]],
        "nftables snat",
        1.0,
    );
}

fn balance(results: &Recorder) {
    let all = [Router::Balance, Router::Jhash];
    let rates = medians(&all, |router| learnt(router, FEW, FEW));
    record(
        results,
        "balance, cached",
        [rates[0], rates[1]],
        "nftables jhash map",
        2.5,
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
    for (name, is_hot, bar) in [("one hot flow", true, 1.2), ("flows at random", false, 1.8)] {
        let rates = medians(&[1, 100], |addresses| {
            let learn = flows(addresses);
            learnt(Router::NatMany, learn, if is_hot { hot } else { learn })
        });
        let [few, many] = [rates[0], rates[1]].map(|rate| 1e9 / rate);
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
