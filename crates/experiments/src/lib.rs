//! The papers' experiments, repeated: their values beside ours.

pub mod adapter;
pub mod pcb;
pub mod setup;
pub mod tpca;
