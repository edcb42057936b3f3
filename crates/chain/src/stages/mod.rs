//! Simple stages: [`Mark`], [`Discard`], [`Police`].

mod discard;
mod mark;
mod police;

pub use discard::Discard;
pub use mark::Mark;
pub use police::{BURST_BYTES_MAX, Police, RATE_BITS_MAX};
