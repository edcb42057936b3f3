//! Traffic, oracles and corpora for tests and benchmarks.

pub mod corpus;
pub mod counts;
pub mod guarded;
pub mod load;
pub mod need;
pub mod net;
pub mod oracle;
pub mod program;
pub mod records;
pub mod rng;
pub mod rules;
pub mod traffic;
