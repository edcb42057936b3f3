//! The papers' experiments, repeated: their values beside ours.

pub mod tpca;
