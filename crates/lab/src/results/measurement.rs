//! One measurement, as in a line of a results file.

use super::{Commit, Machine};
use serde::{Deserialize, Serialize};

/// The unit of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit<'a> {
    /// Nanoseconds, of one operation unless the name says otherwise.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// Bytes of memory.
    Bytes,
    /// Megabytes of memory (10^6 bytes).
    Megabytes,
    /// Number of undesired events, such as lost frames.
    Losses,
    /// Events per second: `PerSecond("frames")`.
    PerSecond(&'a str),
    /// Gb/s.
    GigabitsPerSecond,
    /// Mb/s.
    MegabitsPerSecond,
    /// A number without a unit, such as Jain's index of fairness.
    Index,
    /// The rate divided by the named peer's rate in the same run.
    RateOf(&'a str),
    /// The time or memory divided by the named peer's in the same run.
    CostOf(&'a str),
}

impl Unit<'_> {
    /// The unit as shown in tables; a ratio's peer is shown beside it.
    pub fn symbol(self) -> String {
        let symbol = match self {
            Unit::Nanoseconds => "ns",
            Unit::Microseconds => "µs",
            Unit::Milliseconds => "ms",
            Unit::Seconds => "s",
            Unit::Bytes => "B",
            Unit::Megabytes => "MB",
            Unit::Losses => "lost",
            Unit::PerSecond(what) => return format!("{what}/s"),
            Unit::GigabitsPerSecond => "Gb/s",
            Unit::MegabitsPerSecond => "Mb/s",
            Unit::Index => "index",
            Unit::RateOf(_) => "× the rate of",
            Unit::CostOf(_) => "× the cost of",
        };
        symbol.to_owned()
    }

    /// The peer of a ratio; `None` for another unit.
    pub fn peer(self) -> Option<String> {
        match self {
            Unit::RateOf(peer) | Unit::CostOf(peer) => Some(peer.to_owned()),
            _ => None,
        }
    }

    /// Which values are better, unless the requirement says so.
    pub fn better(self) -> Better {
        match self {
            Unit::PerSecond(_)
            | Unit::GigabitsPerSecond
            | Unit::MegabitsPerSecond
            | Unit::RateOf(_) => Better::More,
            _ => Better::Less,
        }
    }
}

/// Which values of a measurement are better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Small ones: a cost.
    Less,
    /// Large ones: a rate.
    More,
}

/// The requirement on a value.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// No requirement: the value is only reported.
    #[default]
    None,
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
}

impl Bar {
    /// Whether a value meets the requirement; `None` if there is none.
    pub fn met(self, value: f64) -> Option<bool> {
        match self {
            Bar::None => None,
            Bar::AtMost(most) => Some(value <= most),
            Bar::AtLeast(least) => Some(value >= least),
        }
    }

    /// Which values are better according to the requirement; `None` if there is
    /// none.
    pub fn better(self) -> Option<Better> {
        match self {
            Bar::None => None,
            Bar::AtMost(_) => Some(Better::Less),
            Bar::AtLeast(_) => Some(Better::More),
        }
    }

    fn is_none(&self) -> bool {
        *self == Bar::None
    }
}

/// One measurement: a line of a results file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// The measurement's name. Measurements with one name are runs of the same
    /// thing.
    pub name: String,
    /// The measured value.
    pub value: f64,
    /// The value's unit: [`Unit::symbol`].
    pub unit: String,
    /// The peer of a ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Which values are better.
    pub better: Better,
    /// The requirement.
    #[serde(default, skip_serializing_if = "Bar::is_none")]
    pub bar: Bar,
    /// Whether the requirement is met; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// The bench: its package and name.
    pub bench: String,
    /// The command line that runs the bench.
    pub command: String,
    /// Start of the bench, in UTC (RFC 3339).
    pub time: String,
    /// The machine.
    pub machine: Machine,
    /// The checkout's commit, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// weir's version.
    pub version: String,
    /// The seed of the bench's random choices, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}
