//! Long filters: program size and compile time grow linearly with the text. A pass that
//! gives up on a long chain shows in the size; a pass of quadratic time shows in the
//! time.

use std::time::{Duration, Instant};
use weir_filter::backend::native::{self, Arch};
use weir_filter::ir::Program;
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_wire::LinkType;

/// Largest factor of the time for four times the terms: linear time takes 4, quadratic
/// time 16.
const GROWTH_MAX: f64 = 9.0;

/// Maximum number of runs to find the shortest time.
const RUNS_MAX: usize = 12;

struct Shape {
    name: &'static str,
    text: fn(usize) -> String,
    /// Maximum number of blocks of the optimised program for each term.
    blocks: usize,
}

fn host(index: usize) -> String {
    let [_, a, b, c] = (index as u32).to_be_bytes();
    format!("host 10.{a}.{b}.{c}")
}

fn joined(count: usize, with: &str, term: impl Fn(usize) -> String) -> String {
    (0..count).map(term).collect::<Vec<_>>().join(with)
}

const SHAPES: &[Shape] = &[
    Shape {
        name: "hosts",
        text: |count| joined(count, " or ", host),
        blocks: 4,
    },
    Shape {
        name: "ports",
        text: |count| joined(count, " or ", |index| format!("port {}", index + 1)),
        blocks: 4,
    },
    Shape {
        name: "port ranges",
        text: |count| {
            let term = |index| format!("portrange {}-{}", 3 * index, 3 * index + 1);
            joined(count, " or ", term)
        },
        blocks: 8,
    },
    Shape {
        name: "no hosts",
        text: |count| joined(count, " and ", |index| format!("not {}", host(index))),
        blocks: 4,
    },
    Shape {
        name: "hosts with ports",
        text: |count| {
            let term = |index: usize| format!("(src {} and tcp port {})", host(index), index % 90);
            joined(count, " or ", term)
        },
        blocks: 8,
    },
    Shape {
        name: "ports without hosts",
        text: |count| {
            let term = |index: usize| format!("(tcp port {} and not {})", index + 1, host(index));
            joined(count, " or ", term)
        },
        blocks: 16,
    },
    Shape {
        name: "pairs",
        text: |count| {
            let term = |index| format!("(src {} and dst {})", host(index), host(index + 7));
            joined(count, " or ", term)
        },
        blocks: 8,
    },
];

fn plain(shape: &Shape, count: usize) -> Program {
    let context = Context::new(LinkType::EN10MB);
    compile(&(shape.text)(count), &context).expect("a filter")
}

/// The processor time of this thread, which excludes other load; on systems other than
/// Linux, the elapsed time.
fn spent(since: Instant) -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = text.and_then(|text| text.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

/// Compiles a shape from text to native code; returns the time.
fn work(shape: &Shape, count: usize, since: Instant) -> Duration {
    let before = spent(since);
    let mut program = plain(shape, count);
    optimise(&mut program);
    program.verify().expect("a verified program");
    native::assemble(&program, Arch::X64).expect("native code");
    let _ = program.to_string();
    spent(since) - before
}

#[test]
fn long_filters_come_to_their_terms() {
    for shape in SHAPES {
        for count in [250, 600] {
            let mut program = plain(shape, count);
            optimise(&mut program);
            let blocks = program.blocks.len();
            assert!(
                blocks <= shape.blocks * count + 20,
                "{count} {}: {blocks} blocks",
                shape.name
            );
        }
    }
}

#[test]
fn work_grows_in_step_with_a_filter() {
    let since = Instant::now();
    for shape in SHAPES {
        let (mut small, mut large) = (Duration::MAX, Duration::MAX);
        let growth = |small: Duration, large: Duration| large.as_secs_f64() / small.as_secs_f64();
        for _ in 0..RUNS_MAX {
            small = small.min(work(shape, 250, since));
            large = large.min(work(shape, 1_000, since));
            if growth(small, large) < GROWTH_MAX {
                break;
            }
        }
        let growth = growth(small, large);
        assert!(
            growth < GROWTH_MAX,
            "{}: {small:?} for 250, {large:?} for 1,000: {growth:.1} times as long",
            shape.name
        );
    }
}
