//! One measurement, as a line of a file of results has it.

use super::{Commit, Machine};
use serde::{Deserialize, Serialize};

/// What a value counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit<'a> {
    /// A time in nanoseconds, of one operation where the name says no more.
    Nanoseconds,
    /// A time in microseconds.
    Microseconds,
    /// A time in milliseconds.
    Milliseconds,
    /// A time in seconds.
    Seconds,
    /// Memory in bytes.
    Bytes,
    /// Memory in megabytes of 10^6 bytes.
    Megabytes,
    /// A number of events that are not wanted, such as lost frames.
    Losses,
    /// Events a second: `PerSecond("frames")`.
    PerSecond(&'a str),
    /// A rate in Gb/s.
    GigabitsPerSecond,
    /// A rate in Mb/s.
    MegabitsPerSecond,
    /// A number without a unit, such as Jain's index of fairness.
    Index,
    /// The rate divided by the rate of the named peer, of the same run.
    RateOf(&'a str),
    /// The time or memory divided by that of the named peer, of the same run.
    CostOf(&'a str),
}

impl Unit<'_> {
    /// The unit as tables show it; a ratio's peer stands beside it.
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

    /// What the value is divided by, if it is a ratio.
    pub fn peer(self) -> Option<String> {
        match self {
            Unit::RateOf(peer) | Unit::CostOf(peer) => Some(peer.to_owned()),
            _ => None,
        }
    }

    /// Which values are better where no requirement says so.
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

/// What is required of a value.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// Nothing: the value is reported.
    #[default]
    None,
    /// The value is this at most.
    AtMost(f64),
    /// The value is this at least.
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

    /// Which values are better by the requirement; `None` if there is none.
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

/// One measurement: a line of a file of results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// What was measured. Measurements of one name are runs of one thing.
    pub name: String,
    /// What came out.
    pub value: f64,
    /// What the value counts: [`Unit::symbol`].
    pub unit: String,
    /// What the value is divided by, if it is a ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Which values are better.
    pub better: Better,
    /// What is required.
    #[serde(default, skip_serializing_if = "Bar::is_none")]
    pub bar: Bar,
    /// Whether the requirement is met, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// The bench that measured: its package and name.
    pub bench: String,
    /// The command line that runs the bench.
    pub command: String,
    /// When the bench started, in UTC (RFC 3339).
    pub time: String,
    /// Where the bench ran.
    pub machine: Machine,
    /// The commit of the checkout, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// weir's version.
    pub version: String,
    /// What random choices of the bench were drawn from, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}
