//! The tables of the engine: the FIB and routes, and neighbours.

pub(super) mod arena;
pub mod fib;
pub(super) mod neighbours;
pub(super) mod routes;
