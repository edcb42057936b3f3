//! Test networks, load generation and measurement for tests, benches and `weir
//! lab`.
//!
//! | module | what |
//! |---|---|
//! | [`net`] | a network of namespaces: hosts, links, bridges, and ordinary traffic between them |
//! | [`load`] | a frame generator at a fixed rate, sinks, the search for the lossless rate |
//! | [`delay`], [`lossy`] | lines that delay frames, and that lose frames |
//! | [`frames`] | short frames, built byte by byte |
//! | [`affinity`] | CPU affinity and real-time priority |
//! | [`rfc2544`] | the tests of RFC 2544 for bridges and routers |
//! | [`results`] | results of benches: required and measured values |
//! | [`command`] | programs that a test starts, with time limits |
//! | `c` | programs in C with the libraries of the checkout (feature `oracles`) |
//! | [`testenv`] | what a test needs from its machine; skips the test otherwise |
//! | [`wait`] | waits with time limits |
//! | [`seeds`] | the random runs of a test |
//!
//! A test network needs root; a test skips without it:
//!
//! ```
//! use weir_lab::net::Pair;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! if !weir_lab::testenv::root() {
//!     return Ok(());
//! }
//! let pair = Pair::new()?; // two hosts, 10.0.0.1 and 10.0.0.2, and a link
//! let server = pair.server(7)?;
//! pair.send(7, 1)?;
//! let mut datagram = [0; 4];
//! server.recv(&mut datagram)?;
//! assert_eq!(datagram, [0; 4]);
//! # Ok(())
//! # }
//! ```
//!
//! The feature `oracles` adds the modules for tests only: libpcap as an oracle,
//! the corpus of filter expressions, rule sets, random programs and captured
//! frames. The `weir` binary is built without it.
//!
//! # Invariants
//!
//! - A network is held by descriptors and threads only: the kernel removes it
//!   when its process ends, even by SIGKILL.
//! - Every wait has a time limit.
//! - Random choices come from a seed, which a failure prints.
//!
//! Next: `docs/contributing/testing.md`, and `docs/how-to/measure.md` for `weir
//! lab`.

pub mod affinity;
#[cfg(feature = "oracles")]
pub mod c;
#[cfg(feature = "oracles")]
pub mod captures;
#[cfg(feature = "oracles")]
pub mod cbpf_sizes;
#[cfg(feature = "oracles")]
pub mod certificates;
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
pub mod postgres;
pub mod processor;
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
