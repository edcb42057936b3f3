//! Results of benches as data: each measurement with its requirement.
//!
//! A bench states both in one line:
//!
//! ```no_run
//! use weir_lab::results::{Bar, Unit, recorder};
//!
//! let results = recorder!();
//! # let (seconds, ratio) = (7.5, 1.2);
//! results.record("demux: a million ports of one shape, time", seconds, Unit::Seconds, Bar::AtMost(8.0));
//! results.record("acl: fw1, 10,000 rules", ratio, Unit::RateOf("rte_acl"), Bar::AtLeast(1.0));
//! ```
//!
//! With `WEIR_RESULTS=FILE` in the environment each call appends one [`Measurement`] to the file, a
//! line of JSON (JSON Lines); otherwise nothing is written. `weir lab results` runs benches in this
//! way and renders tables from the files.
//!
//! - [`Recorder`]: appends measurements.
//! - [`Machine`], [`Commit`]: the machine and the commit of a measurement.
//! - [`read`]: the measurements of a file.
//! - [`Summary`]: measurements of one name over several runs.
//! - [`Comparison`]: whether new runs are worse than old ones.
//! - [`Parts`]: the parts that a bench is to run.
//! - [`BENCHES`]: the list of benches; [`Running`]: runs them.

mod benches;
mod checkout;
mod compare;
mod machine;
mod measurement;
mod parts;
mod read;
mod recorder;
mod running;
mod summary;

pub use benches::{BENCHES, Listed, Needs, Runs, Tested};
pub use checkout::{Checkout, Commit};
pub use compare::{Comparison, Verdict, compare};
pub use machine::{Machine, Platform};
pub use measurement::{Bar, Better, Measurement, Unit};
pub use parts::Parts;
pub use read::{LineRef, ReadError, read};
pub use recorder::{RecordError, Recorder};
pub use running::{Ended, Running};
pub use summary::{Figures, Summary, SummaryError, summarise};

pub use crate::recorder;

/// The environment variable that names the file of results.
pub const FILE: &str = "WEIR_RESULTS";
