//! The papers' experiments, repeated: their values beside ours.

pub mod setup;
pub mod tpca;
