//! What a frame costs in the scheduler with few and with many classes:
//! `cargo bench -p weir-sched --bench classes`.

use std::hint::black_box;
use std::time::Instant;
use weir_lab::results::{Bar, Unit, recorder};
use weir_lab::rng::Rng;
use weir_sched::{Config, Discipline, Frame, Limit, Next, Order, Scheduler};

const SEED: u64 = 5;
const FRAMES: usize = 200_000;
const ROUNDS: usize = 15;

struct Chunk(u32);

impl Frame for Chunk {
    fn wire_len(&self) -> u32 {
        self.0
    }
}

/// A link with `classes` classes, and a frame in each of up to 1,000 of them.
struct Load {
    link: Scheduler<Chunk>,
    /// Classes of the frames that come.
    classes: Vec<usize>,
    now: u64,
}

impl Load {
    fn new(order: Order, classes: usize) -> Load {
        let mut rng = Rng::new(SEED);
        // So fast that the rate never holds a frame back.
        let mut config = Config::new(125_000_000_000, order);
        // All frames that wait may be in one class.
        let limit = Limit {
            frames: 10_000,
            bytes: 1 << 30,
        };
        for class in 0..classes {
            let weight = 1 + class as u32 % 4;
            config.class(weight, Discipline::Fifo(limit));
        }
        let mut link = Scheduler::new(&config, SEED).expect("the configuration is right");
        let mut dropped = Vec::new();
        for frame in 0..1_000 {
            link.enqueue(0, frame % classes, 0, Chunk(1_000), &mut dropped);
        }
        let classes = (0..FRAMES).map(|_| rng.below(classes));
        Load {
            link,
            classes: classes.collect(),
            now: 0,
        }
    }

    /// ns a frame: one comes, one leaves.
    fn round(&mut self) -> f64 {
        let start = Instant::now();
        let mut dropped = Vec::new();
        for &class in &self.classes {
            self.now += 1_000;
            let chunk = Chunk(64 + class as u32 % 1_400);
            self.link.enqueue(self.now, class, 0, chunk, &mut dropped);
            if let Next::Frame(chunk) = self.link.dequeue(self.now, &mut dropped) {
                black_box(chunk.0);
            }
        }
        assert!(dropped.is_empty(), "no queue is full");
        start.elapsed().as_nanos() as f64 / FRAMES as f64
    }
}

fn main() {
    let results = recorder!().seed(SEED);
    println!("ns a frame, in and out; least of {ROUNDS} rounds in turn");
    for order in [Order::Priority, Order::Drr, Order::Wfq] {
        let mut few = Load::new(order, 10);
        let mut many = Load::new(order, 10_000);
        let mut least = [f64::MAX; 2];
        for _ in 0..ROUNDS {
            least[0] = least[0].min(few.round());
            least[1] = least[1].min(many.round());
        }
        let ratio = least[1] / least[0];
        println!(
            "{order:?}: 10 classes {:.1}, 10,000 classes {:.1}, ratio {ratio:.2}",
            least[0], least[1]
        );
        let name = format!("sched: 10,000 classes, {order:?}");
        let unit = Unit::CostOf("10 classes");
        results.record(&name, ratio, unit, Bar::AtMost(1.3));
    }
}
