//! The tests of RFC 2544 for bridges and routers (throughput, latency, frame loss, back-to-back
//! frames), on virtual links.
//!
//! A [`Testbed`] has a tester with two ends and a host between them, in which the device under test
//! (a [`Dut`]: a program, or a [`Baseline`] such as the Linux bridge) is started. A [`Tester`]
//! sends numbered frames of known content at one end; at the other end a program in the kernel
//! counts lost, reordered, duplicated and damaged frames. The functions [`throughput`],
//! [`latency`], [`loss`] and [`back_to_back`] make the measurements of RFC 2544 §26 from such
//! trials. `docs/reference/rfc2544.md` lists the differences from the RFC, with reasons.
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

/// The hook that receives frames. It determines the kernel's work before a frame counts, and thus
/// every result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SinkKind {
    /// XDP in the driver: the kernel allocates no socket buffer for a frame that arrives as plain
    /// bytes, and extracts one that arrives in a socket buffer.
    Xdp,
    /// tc: the kernel allocates a socket buffer for a frame that has none.
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
    /// The frame size is not valid on Ethernet.
    #[error("frames of {size} bytes: they must have {SIZE_MIN} to {SIZE_MAX}, FCS included")]
    Size {
        /// The requested size, in bytes.
        size: usize,
    },
    /// The search is not valid.
    #[error("{0}")]
    Search(String),
    /// The test bed could not be created.
    #[error(transparent)]
    Net(#[from] crate::net::Error),
    /// The sender failed.
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    /// Shared memory of the receiver failed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A program could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A program could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The device under test did not start, or ended by itself.
    #[error("{what}{}", tail(log))]
    Dut {
        /// A description.
        what: String,
        /// Its last lines of output.
        log: String,
    },
    /// A component of the baseline is not installed.
    #[error("{what} is not installed: {remedy}")]
    Missing {
        /// The component.
        what: String,
        /// How to install it.
        remedy: &'static str,
    },
    /// Any other error.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The measurement was stopped on request.
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

/// Adds the operation to a system error.
fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::System { what, source }
}
