//! The plan: which bindings get a frame, at a cost that does not grow with
//! their number.

mod binding;
mod expr;
mod filter;
pub mod limits;
mod plan;
mod verdict;

pub use binding::{Binding, BindingId, Rank, Target};
pub use expr::Exprs;
pub use filter::{Analysis, Field, Filter, Path, Snap, Test};
pub use plan::{BindError, EntryView, Explain, Plan, ShapeView};
pub use verdict::{Delivery, Verdict};
