//! A tester as RFC 2544 describes it, for bridges and routers: throughput,
//! latency, loss and bursts, on virtual links.
//!
//! A [`Testbed`] has a tester with two ends and a host between them. What is
//! tested (a [`Dut`]: a program, or a [`Baseline`] such as the kernel's own
//! bridge) is started in that host. A [`Tester`] sends numbered frames of
//! known content in at one end, and a program of its own at the other tells
//! what was lost, reordered, duplicated or damaged. The functions
//! [`throughput`], [`latency`], [`loss`] and [`back_to_back`] make the
//! measurements of RFC 2544 §26 of such trials. `docs/reference/rfc2544.md` says where
//! it differs from the RFC, and why.
//!
//! ```no_run
//! use std::time::Duration;
//! use weir_lab::load::Search;
//! use weir_lab::rfc2544::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let setup = Setup {
//!     sink: SinkKind::Xdp,
//!     cpus: Cpus::first_two()?,
//!     both_ways: false,
//!     settle: Duration::from_millis(100),
//!     seed: 1,
//!     destinations: 0,
//! };
//! let bench = Testbed::new(Layout::Bridge, &setup)?;
//! let running = Baseline::LinuxBridge.start(&bench)?;
//! let mut tester = Tester::new(&bench, 64, CheckLevel::Quick, 10_000_000)?;
//! let found = throughput(&Search::QUICK, &mut |ask| tester.trial(ask))?;
//! println!("{:?} frames per second", found.rate);
//! drop(tester);
//! running.stop()?;
//! # Ok(())
//! # }
//! ```

mod baselines;
mod checker;
mod dut;
mod frame;
mod measure;
mod receiver;
mod testbed;
mod tester;

pub use baselines::Baseline;
pub use dut::{Dut, Program, Ready, Running};
pub use frame::{SIZE_MAX, SIZE_MIN, SIZES};
pub use measure::{
    BackToBack, Latency, LossPoint, RunTrial, Throughput, back_to_back, gentle, latency, loss,
    percentile, throughput,
};
pub use receiver::CheckResult;
pub use testbed::{Cpus, DESTINATIONS_MAX, Layout, Setup, Testbed};
pub use tester::{CheckLevel, Tester, TrialResult, TrialSpec};

use crate::load::GeneratorError;
use std::fmt;
use std::io;
use weir_link::bpf::{AttachError, Hook, LoadError, MapError};

/// What receives frames, and so what the kernel has to do before they count:
/// it changes every figure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SinkKind {
    /// XDP in the driver: the kernel makes no socket buffer of a frame that
    /// comes as bytes, and unwraps one that comes in such.
    Xdp,
    /// tc: the kernel makes a socket buffer of a frame that has none.
    Tc,
}

impl SinkKind {
    fn hook(self) -> Hook {
        match self {
            SinkKind::Xdp => Hook::XdpNative,
            SinkKind::Tc => Hook::TcIngress,
        }
    }
}

impl fmt::Display for SinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SinkKind::Xdp => "xdp",
            SinkKind::Tc => "tc",
        })
    }
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A frame size that Ethernet does not have.
    #[error(
        "frames of {size} bytes: they must have {SIZE_MIN} to {SIZE_MAX}, check sequence included"
    )]
    Size {
        /// What was asked for.
        size: usize,
    },
    /// A search without sense.
    #[error("{0}")]
    Search(String),
    /// The test bed could not be built.
    #[error(transparent)]
    Net(#[from] crate::net::Error),
    /// The sender failed.
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    /// Shared memory of the receiver failed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A program was not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A program was not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The tested device did not start, or ended by itself.
    #[error("{what}{}", tail(log))]
    Dut {
        /// What happened.
        what: String,
        /// The last lines that it wrote.
        log: String,
    },
    /// Something that the peer is made of is not installed.
    #[error("{what} is not installed: {remedy}")]
    Missing {
        /// What.
        what: String,
        /// How to get it.
        remedy: &'static str,
    },
    /// Anything else.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody asked to end.
    #[error("stopped")]
    Stopped,
}

fn tail(log: &str) -> String {
    if log.is_empty() {
        String::from("; it wrote nothing")
    } else {
        format!("; it wrote last:\n{log}")
    }
}

/// Says what was asked for when the system says no.
fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::System { what, source }
}
