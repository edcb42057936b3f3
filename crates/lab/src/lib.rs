//! Networks of namespaces and load for tests, benchmarks and `weir lab`; and
//! oracles, corpora, rule sets and frames for tests and benchmarks.
//!
//! - [`net`]: hosts, links and bridges, and their ordinary traffic.
//! - [`load`]: frames at a rate, sinks, the lossless rate.
//! - [`delay`], [`lossy`]: lines that hold frames, and that lose some.
//! - [`frames`]: short ones, by hand.
//! - [`affinity`]: which CPU runs what, and before whom.
//! - [`rfc2544`]: bridges and routers measured as RFC 2544 says.
//! - [`results`]: what benches measure, and what is required of it.
//! - [`command`]: the programs that a test starts.
//! - [`testenv`]: what a test needs from its surroundings.
//! - [`wait`]: waits with limits.
//! - [`seeds`]: which random runs it makes.
//!
//! All else comes with the feature `oracles`, which the `weir` binary is built
//! without.

pub mod affinity;
#[cfg(feature = "oracles")]
pub mod captures;
#[cfg(feature = "oracles")]
pub mod cbpf_sizes;
pub mod command;
#[cfg(feature = "oracles")]
pub mod corpus;
pub mod delay;
pub mod frames;
#[cfg(feature = "oracles")]
pub mod guard_page;
mod libpcap;
pub mod load;
pub mod lossy;
pub mod net;
#[cfg(feature = "oracles")]
pub mod oracle;
#[cfg(feature = "oracles")]
pub mod program;
pub mod results;
pub mod rfc2544;
#[cfg(feature = "oracles")]
pub mod ringbuf_reference;
#[cfg(feature = "oracles")]
pub mod rings;
pub mod rng;
#[cfg(feature = "oracles")]
pub mod rules;
pub mod seeds;
mod shared_words;
pub mod testenv;
pub mod wait;
mod watch;
