//! Pup on ports and over UDP.

mod gateway;
mod link;
mod node;
mod stream;

pub use gateway::{GatewayNode, Passed};
pub use link::{Link, LinkError};
pub use node::Node;
pub use stream::{Stream, StreamError};
