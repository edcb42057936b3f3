//! Output link scheduling: which frame leaves next, when, and which is marked or
//! dropped instead.
//!
//! ```text
//!  enqueue(class, flow, frame)
//!     └► Queue of the class: Fifo, Red, CoDel, FqCodel    may mark or drop
//!          └► Order among classes: priority, DRR, WFQ     whose turn it is
//!               └► Rate: when the next frame may leave ─► dequeue
//! ```
//!
//! A [`Scheduler`] has a queue for each class, an order in which classes are served,
//! and a rate. It is pure: the caller passes the time in, in nanoseconds of a clock
//! that does not go back, and gives each frame its class and flow. It owns the
//! frames that wait; those that it drops come back by the caller's list, because
//! a frame may be a chunk of shared memory.
//!
//! ```
//! use weir_sched::{Config, Order, Discipline, Next, Scheduler};
//!
//! # fn main() -> Result<(), weir_sched::ConfigError> {
//! // 1 Mb/s, two classes, the second with three times the share of the first.
//! let mut config = Config::new(125_000, Order::Drr);
//! config.class(1, Discipline::CoDel(Default::default()));
//! config.class(3, Discipline::Fifo(Default::default()));
//! let mut link = Scheduler::new(&config, 1)?;
//!
//! let mut dropped = Vec::new();
//! link.enqueue(0, 1, 7, vec![0; 1000], &mut dropped);
//! assert!(matches!(link.dequeue(0, &mut dropped), Next::Frame(_)));
//! assert!(matches!(link.dequeue(0, &mut dropped), Next::Empty));
//! # Ok(())
//! # }
//! ```
//!
//! # Modules in reading order
//!
//! 1. [`Frame`], what is queued; [`Config`], what is wanted.
//! 2. `scheduler`: the public type.
//! 3. `queue/`: FIFO, RED (Floyd and Jacobson 1993), CoDel (RFC 8289), FQ-CoDel
//!    (RFC 8290).
//! 4. `order/`: priority, deficit round robin (Shreedhar and Varghese 1995), weighted
//!    fair queueing (Demers, Keshav and Shenker 1989; Parekh and Gallager 1993).
//! 5. `rate`: the token bucket.
//!
//! # Limits
//!
//! Each queue holds a stated number of bytes and frames, see [`Limit`]; there are at
//! most [`CLASSES_MAX`] classes, and at most [`FLOWS_MAX`] queues of flows in a class.

mod config;
mod frame;
mod order;
mod queue;
mod rate;
mod scheduler;

pub use config::{
    CLASSES_MAX, Ceiling, Class, CoDelConfig, Config, ConfigError, Discipline, FLOWS_MAX,
    FqCodelConfig, Limit, Order, RATE_MAX, RedConfig, WEIGHT_MAX,
};
pub use frame::Frame;
pub use scheduler::{ClassCounts, Next, Scheduler};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
