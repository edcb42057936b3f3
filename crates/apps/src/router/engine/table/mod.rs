//! What the engine looks up: routes and neighbours.

pub(super) mod arena;
pub mod fib;
pub(super) mod neighbours;
pub(super) mod routes;
