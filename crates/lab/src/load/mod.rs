//! Load: frames at a rate, what counts them, and the highest rate at which
//! none is lost.

mod search;

pub use search::{Outcome, Search, SearchError, Trial, Tried};
