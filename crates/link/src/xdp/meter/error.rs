//! Why metering in the kernel failed.

use super::layout::PREFIX_LENGTHS_MAX;
use super::maps::SUBSCRIBERS_MAX;
use super::stage::MIRROR_PREFIXES_MAX;
use crate::bpf::{AttachError, LoadError, MapError, ObjectError, PinError, TestRunError};
use std::io;
use weir_filter::backend::ebpf::EmitError;
use weir_filter::lang::expr;
use weir_meter::Key;

/// Why metering in the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// Sizes that it cannot have.
    #[error("a meter has 1 to {SUBSCRIBERS_MAX} subscribers, keys and unknown keys, not {found}")]
    Size {
        /// The requested number.
        found: u64,
    },
    /// Too many cells.
    #[error(
        "{found} counters are more than the {} that a meter has: lower the number of subscribers or of unknown keys, or have fewer services",
        u32::MAX
    )]
    Cells {
        /// The requested number.
        found: u64,
    },
    /// The filter of a service.
    #[error("the filter of service `{service}` is wrong: {source}")]
    Filter {
        /// The service's name.
        service: String,
        /// The fault.
        source: expr::Error,
    },
    /// The filter of a measure.
    #[error("the filter of measure `{measure}` is wrong: {source}")]
    Measure {
        /// The measure's name.
        measure: String,
        /// The fault.
        source: expr::Error,
    },
    /// The filter of what goes up.
    #[error("from_inside: {0}")]
    FromInside(#[source] expr::Error),
    /// Too many prefixes of a mirror port.
    #[error(
        "{found} prefixes say what goes up at a mirror port, where there are at most {MIRROR_PREFIXES_MAX}: join some, or give from_inside"
    )]
    Prefixes {
        /// How many.
        found: usize,
    },
    /// A row that does not exist.
    #[error("row {row} does not exist: the meter was made for {subscribers} subscribers")]
    NoSuchRow {
        /// The row.
        row: u32,
        /// How many there are.
        subscribers: u32,
    },
    /// A policy without room for any.
    #[error("this meter was made without policies")]
    NoPolicies,
    /// Too many keys.
    #[error("there is no room for key `{key}`: the meter was made for {keys} keys")]
    Full {
        /// The key.
        key: Key,
        /// How many keys it was made for.
        keys: u32,
    },
    /// Too many prefix lengths.
    #[error(
        "`{key}` is one prefix length too many: prefixes of one family have at most {PREFIX_LENGTHS_MAX} lengths at a time"
    )]
    Lengths {
        /// The key.
        key: Key,
    },
    /// A cut before the last one was settled.
    #[error("period {period} was cut and not settled: settle it before the next cut")]
    Unsettled {
        /// The period.
        period: u64,
    },
    /// The pinned counters have a layout that this program does not know.
    #[error(
        "counters of layout {found} are in the kernel, and this weir reads layouts {} and {} alone: start the version of weir that made them and end it, which records them; or give up with --clean what they have counted since their last period",
        .known[0], .known[1]
    )]
    OtherVersion {
        /// The layout that is there.
        found: u64,
        /// The layouts that are known.
        known: [u64; 2],
    },
    /// A filter of a service does not fit into a program.
    #[error("the filters of services and measures do not fit into a program: {0}")]
    Emit(#[from] EmitError),
    /// A program was not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A program was not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A program that is attached.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A program was not run for the process.
    #[error(transparent)]
    Run(#[from] TestRunError),
    /// A pin.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Anything else.
    #[error("the system did not do what metering needs ({0})")]
    System(#[from] io::Error),
}
