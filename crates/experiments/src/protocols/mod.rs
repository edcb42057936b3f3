//! The measurements of §6.3 and §6.4 of the 1987 paper: VMTP and the Pup byte
//! stream on ports, beside the kernel's protocols.
//!
//! Client and server are threads of this process, each in a network namespace,
//! across a veth pair without offloads. Ports are opened by this process, as
//! root. All figures of a table are measured in turn, and several times: the
//! best counts, as in [`packet_filter`](crate::packet_filter).

mod demultiplexer;
mod kernel;
pub mod paper;
mod predict;
mod source;
mod stream;
mod vmtp;
mod world;

pub use predict::{Prediction, predict};
pub use stream::{bsp, telnet};
pub use vmtp::vmtp;
pub use world::{Settings, World};

use serde::Serialize;
use std::io;
use weir_protocols::pup::{LinkError, StreamError};
use weir_protocols::station::StationError;
use weir_protocols::vmtp::CallError;
use world::Measured;

/// Why there is no measurement.
#[derive(thiserror::Error, Debug)]
pub enum ProtocolError {
    /// The hosts, or their link.
    #[error(transparent)]
    Net(#[from] weir_lab::net::Error),
    /// A socket or a pipe.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A port.
    #[error(transparent)]
    Station(#[from] StationError),
    /// A VMTP call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A Pup link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A byte stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A thread's CPU.
    #[error("cannot choose a CPU: {0}")]
    Cpu(rustix::io::Errno),
    /// Another measurement that a prediction needs.
    #[error(transparent)]
    Measure(#[from] crate::packet_filter::MeasureError),
    /// A server ended before its client.
    #[error("the server ended early")]
    ServerEnded,
}

/// A figure's unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Microseconds for an operation: less is better.
    MicrosecondsAnOperation,
    /// Megabytes (10⁶ bytes) a second: more is better.
    MegabytesASecond,
    /// Characters a second: more is better.
    CharactersASecond,
}

/// A row of one of the paper's tables.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The paper's table.
    pub table: &'static str,
    /// The measured quantity.
    pub what: &'static str,
    /// The paper's figure and its unit; `None` if the paper has no such row.
    pub paper: Option<&'static str>,
    /// This machine's figure: the best of all rounds.
    pub now: f64,
    /// The least and the greatest of the rounds.
    pub range: [f64; 2],
    /// Its unit.
    pub unit: Unit,
}

impl Row {
    fn new(
        table: &'static str,
        what: &'static str,
        paper: &'static str,
        found: Measured,
        unit: Unit,
    ) -> Row {
        Row {
            table,
            what,
            paper: Some(paper),
            now: found.best(),
            range: found.range,
            unit,
        }
    }
}

/// A comparison of two rows that were measured in the same run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// The compared quantity.
    pub what: &'static str,
    /// This machine's ratio: of the best rounds.
    pub now: f64,
    /// The least and the greatest ratio of any two rounds.
    pub range: [f64; 2],
    /// The paper's.
    pub paper: Option<f64>,
    /// The requirement, as text; empty if there is none.
    pub required: &'static str,
    /// Whether that holds.
    pub holds: Option<bool>,
}

impl Ratio {
    fn new(what: &'static str, one: Measured, other: Measured, paper: f64) -> Ratio {
        Ratio {
            what,
            now: one.best() / other.best(),
            range: [one.range[0] / other.range[1], one.range[1] / other.range[0]],
            paper: Some(paper),
            required: "",
            holds: None,
        }
    }

    fn at_least(self, bar: f64, required: &'static str) -> Ratio {
        let holds = Some(self.now >= bar);
        Ratio {
            required,
            holds,
            ..self
        }
    }

    fn at_most(self, bar: f64, required: &'static str) -> Ratio {
        let holds = Some(self.now <= bar);
        Ratio {
            required,
            holds,
            ..self
        }
    }
}

/// The results of an experiment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// The rows.
    pub rows: Vec<Row>,
    /// The comparisons.
    pub ratios: Vec<Ratio>,
}
