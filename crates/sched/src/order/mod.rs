//! Whose turn it is among the classes that have frames.

mod drr;
mod priority;
mod wfq;

pub(crate) use drr::Drr;
pub(crate) use priority::Priority;
pub(crate) use wfq::Wfq;

/// The order of service, by [`crate::Order`].
#[derive(Debug)]
pub(crate) enum Turn {
    Priority(Priority),
    Drr(Drr),
    Wfq(Wfq),
}
