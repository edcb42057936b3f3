//! The papers' experiments, repeated: their values beside ours.

pub mod adapter;
pub mod setup;
pub mod tpca;
